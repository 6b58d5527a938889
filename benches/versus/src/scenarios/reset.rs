//! Moving a registered timer, and asking for the next wake.

use super::{Random, Values, counted_waker, poll_once};
use crate::peers::Peer;
use crate::peers::{HeapSleep, MapSleep, Ours, OursLocal, TokioCt, TokioMt, local_handle};
use crate::sys;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

/// A sleep that can be moved; every reset reads the clock once, as its users do.
pub trait Moves: Peer {
    type Sleep: Future<Output = ()> + 'static;
    fn far(d: Duration) -> Self::Sleep;
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration);
}

impl Moves for Ours {
    type Sleep = slackwheel::Sleep;
    fn far(d: Duration) -> Self::Sleep {
        slackwheel::sleep(d)
    }
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
        sleep.get_mut().reset_range(d, d);
    }
}

impl Moves for OursLocal {
    type Sleep = slackwheel::LocalSleep;
    fn far(d: Duration) -> Self::Sleep {
        local_handle().sleep(d)
    }
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
        sleep.get_mut().reset_range(d, d);
    }
}

macro_rules! tokio_moves {
    ($($peer:ty),*) => {$(
        impl Moves for $peer {
            type Sleep = tokio::time::Sleep;
            fn far(d: Duration) -> Self::Sleep {
                tokio::time::sleep(d)
            }
            fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
                sleep.reset(tokio::time::Instant::now() + d);
            }
        }
    )*};
}
tokio_moves!(TokioCt, TokioMt);

impl Moves for crate::peers::Monoio {
    type Sleep = monoio::time::Sleep;
    fn far(d: Duration) -> Self::Sleep {
        monoio::time::sleep(d)
    }
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
        sleep.reset(monoio::time::Instant::now() + d);
    }
}

impl Moves for crate::peers::Map {
    type Sleep = MapSleep;
    fn far(d: Duration) -> Self::Sleep {
        MapSleep::new(d)
    }
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
        sleep.get_mut().reset(Instant::now() + d);
    }
}

impl Moves for crate::peers::Heap {
    type Sleep = HeapSleep;
    fn far(d: Duration) -> Self::Sleep {
        HeapSleep::new(d)
    }
    fn reset(sleep: Pin<&mut Self::Sleep>, d: Duration) {
        sleep.get_mut().reset(Instant::now() + d);
    }
}

/// One registered timer among others, moved again and again: to 30 s from now, or always a little earlier.
pub fn run<P: Moves>(others: usize, later: bool, budget_ms: u64) -> Values {
    P::block_on(async move {
        let waker = counted_waker();
        let mut random = Random::new();
        let mut pending = Vec::with_capacity(others);
        for _ in 0..others {
            let mut sleep = Box::pin(P::far(Duration::from_millis(random.between(5_000, 65_000))));
            poll_once(sleep.as_mut(), &waker);
            pending.push(sleep);
        }
        P::sleep(Duration::from_millis(2), Duration::ZERO).await;
        let mut sleep = pin!(P::far(Duration::from_secs(30)));
        poll_once(sleep.as_mut(), &waker);
        let mut ahead = Duration::from_secs(30);
        let mut batch = |n: u64| {
            for _ in 0..n {
                if !later {
                    ahead -= Duration::from_nanos(1_000);
                }
                P::reset(sleep.as_mut(), ahead);
            }
        };
        batch(20_000);
        let calls = P::kernel_calls();
        let (start, cpu) = (sys::monotonic(), sys::thread_cpu());
        let mut ops = 0u64;
        // At most to 5 s from now in all, earlier ones.
        while sys::monotonic() - start < budget_ms * 1_000_000 && ops < 20_000_000 {
            batch(1000);
            ops += 1000;
        }
        let mut values = vec![("ns", (sys::thread_cpu() - cpu) / ops as f64)];
        if let (Some(before), Some(after)) = (calls, P::kernel_calls()) {
            values.push(("kernel_calls", (after - before) as f64 / ops as f64));
        }
        std::mem::forget(pending);
        values
    })
}

/// `n` timeouts of 30 s, each put off in turn, and after each the next wake asked for.
pub fn oldest(peer: &str, n: usize, budget_ms: u64) -> Values {
    const D: Duration = Duration::from_secs(30);
    match peer {
        "slackwheel" => {
            let driver = slackwheel::Driver::new().expect("a driver");
            let handle = driver.handle();
            let sleeps = (0..n).map(|_| handle.sleep(D)).collect();
            rotate(sleeps, budget_ms, |s| s.reset_range(D, D), || driver.next_wake())
        }
        "slackwheel-local" => {
            let driver = slackwheel::LocalDriver::new().expect("a driver");
            let handle = driver.handle();
            let sleeps = (0..n).map(|_| handle.sleep(D)).collect();
            rotate(sleeps, budget_ms, |s| s.reset_range(D, D), || driver.next_wake())
        }
        "map-by-hand" => {
            let sleeps = (0..n).map(|_| MapSleep::new(D)).collect();
            rotate(sleeps, budget_ms, |s| s.reset(Instant::now() + D), MapSleep::next_wake)
        }
        "heap-by-hand" => {
            let sleeps = (0..n).map(|_| HeapSleep::new(D)).collect();
            rotate(sleeps, budget_ms, |s| s.reset(Instant::now() + D), HeapSleep::next_wake)
        }
        other => panic!("{other} has no next wake to ask for"),
    }
}

fn rotate<S: Future<Output = ()> + Unpin>(
    mut sleeps: Vec<S>,
    budget_ms: u64,
    reset: impl Fn(&mut S),
    next_wake: impl Fn() -> Option<Instant>,
) -> Values {
    let waker = counted_waker();
    for sleep in &mut sleeps {
        poll_once(Pin::new(sleep), &waker);
    }
    let n = sleeps.len();
    let (start, cpu) = (sys::monotonic(), sys::thread_cpu());
    let mut ops = 0;
    while sys::monotonic() - start < budget_ms * 1_000_000 {
        for _ in 0..1000 {
            reset(&mut sleeps[ops % n]);
            std::hint::black_box(next_wake());
            ops += 1;
        }
    }
    let values = vec![("ns", (sys::thread_cpu() - cpu) / ops as f64)];
    std::mem::forget(sleeps);
    values
}
