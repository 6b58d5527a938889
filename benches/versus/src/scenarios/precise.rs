//! Sleeps as exact as they get, alternated with a bare loop of timerfd and epoll.

use super::Values;
use crate::peers::{BareLoop, Peer};
use crate::sys;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What one kind of sleep did: lateness of each, and CPU in all.
#[derive(Default)]
struct Kind {
    late: Vec<f64>,
    cpu: f64,
}

impl Kind {
    fn sleep(&mut self, d: u64, sleep: impl FnOnce(u64)) {
        let cpu = sys::process_cpu();
        let start = sys::monotonic();
        sleep(start + d);
        let late = sys::monotonic() as f64 - (start + d) as f64;
        self.cpu += sys::process_cpu() - cpu;
        assert!(late >= 0.0, "early by {late} ns");
        self.late.push(late / 1000.0);
    }
}

/// A bare loop on a thread of its own that wakes the waiting thread: what any default driver is at best.
struct HandOff {
    requests: mpsc::Sender<u64>,
    done: Arc<AtomicU64>,
}

impl HandOff {
    fn new() -> Self {
        let (requests, inbox) = mpsc::channel::<u64>();
        let done = Arc::new(AtomicU64::new(0));
        let (reached, waiting) = (done.clone(), std::thread::current());
        std::thread::spawn(move || {
            let bare = BareLoop::new();
            for at in inbox {
                bare.wait_until(at);
                reached.store(at, Ordering::Release);
                waiting.unpark();
            }
        });
        HandOff { requests, done }
    }

    fn wait_until(&self, at: u64) {
        self.requests.send(at).expect("the loop is there");
        while self.done.load(Ordering::Acquire) != at {
            std::thread::park();
        }
    }
}

/// This crate's sleeps of `us` beside the bare loop, in turn, `n` times.
pub fn ours(us: u64, n: usize) -> Values {
    const SPIN: u64 = 60_000;
    let d = us * 1000;
    let mut driver = slackwheel::Driver::new().expect("a driver");
    let handle = driver.handle();
    let bare = BareLoop::new();
    let hand_off = HandOff::new();
    let until = |at: u64| Duration::from_nanos(at.saturating_sub(sys::monotonic()));
    let [mut k_bare, mut k_own, mut k_handed, mut k_default, mut k_spun] =
        [(); 5].map(|()| Kind::default());
    for i in 0..n + 10 {
        if i == 10 {
            for k in [&mut k_bare, &mut k_own, &mut k_handed, &mut k_default, &mut k_spun] {
                *k = Kind::default();
            }
        }
        k_bare.sleep(d, |at| bare.wait_until(at));
        k_own.sleep(d, |at| driver.block_on(handle.sleep(until(at))));
        k_handed.sleep(d, |at| hand_off.wait_until(at));
        k_default.sleep(d, |at| futures::executor::block_on(slackwheel::sleep(until(at))));
        // The opt-in: sleep until a little before, then look at the clock.
        k_spun.sleep(d, |at| {
            driver.block_on(handle.sleep(until(at - SPIN.min(d))));
            while sys::monotonic() < at {
                std::hint::spin_loop();
            }
        });
    }
    let paired = |a: &Kind, b: &Kind| {
        median(a.late.iter().zip(&b.late).map(|(a, b)| a - b).collect::<Vec<f64>>())
    };
    let each = |k: &Kind| k.cpu / n as f64 / 1000.0;
    vec![
        ("own_over_bare_us", paired(&k_own, &k_bare)),
        ("default_over_hand_off_us", paired(&k_default, &k_handed)),
        ("own_cpu_ratio", k_own.cpu / k_bare.cpu),
        ("default_cpu_ratio", k_default.cpu / k_handed.cpu),
        ("bare_late_us", median(k_bare.late.clone())),
        ("late_us", median(k_own.late.clone())),
        ("default_late_us", median(k_default.late.clone())),
        ("spun_late_us", median(k_spun.late.clone())),
        ("cpu_us", each(&k_own)),
        ("spun_cpu_us", each(&k_spun)),
    ]
}

/// Anybody's sleeps of `us`.
pub fn run<P: Peer>(us: u64, n: usize) -> Values {
    P::block_on(async move {
        let mut late = Vec::with_capacity(n);
        let d = Duration::from_micros(us);
        let cpu = sys::process_cpu();
        for _ in 0..n {
            let start = sys::monotonic();
            P::sleep(d, Duration::ZERO).await;
            late.push((sys::monotonic() as f64 - (start + us * 1000) as f64) / 1000.0);
        }
        let cpu = (sys::process_cpu() - cpu) / n as f64 / 1000.0;
        vec![("late_us", median(late)), ("cpu_us", cpu)]
    })
}
