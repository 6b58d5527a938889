//! Timers that are hours away, and one that is 10 s away: nothing else may wake anybody.

use super::{Random, Values, counted_waker, poll_once};
use crate::peers::Peer;
use crate::sys;
use std::pin::Pin;
use std::time::Duration;

fn hours(random: &mut Random) -> Duration {
    Duration::from_millis(random.between(3_600_000, 24 * 3_600_000))
}

/// On the real clock.
pub fn run<P: Peer>(n: usize) -> Values {
    P::block_on(async move {
        let (waker, mut random) = (counted_waker(), Random::new());
        let mut far = Vec::with_capacity(n);
        for _ in 0..n {
            let mut sleep = Box::pin(P::sleep(hours(&mut random), Duration::ZERO));
            poll_once(sleep.as_mut(), &waker);
            far.push(sleep);
        }
        let (sleeps, cpu) = (sys::sleeps(), sys::process_cpu());
        P::sleep(Duration::from_secs(10), Duration::ZERO).await;
        let values = vec![
            ("wakeups", (sys::sleeps() - sleeps) as f64),
            ("cpu_ms", (sys::process_cpu() - cpu) / 1e6),
        ];
        std::mem::forget(far);
        values
    })
}

/// On the manual clock.
pub fn manual(n: usize) -> Values {
    let (mut driver, clock) = slackwheel::Driver::manual();
    let handle = driver.handle();
    let (waker, mut random) = (counted_waker(), Random::new());
    let mut far: Vec<_> = (0..n).map(|_| handle.sleep(hours(&mut random))).collect();
    for sleep in &mut far {
        poll_once(Pin::new(sleep), &waker);
    }
    clock.set_auto_advance(true);
    driver.block_on(handle.sleep(Duration::from_secs(10)));
    vec![("wakeups", handle.metrics().expect("the driver is there").wakeups as f64)]
}
