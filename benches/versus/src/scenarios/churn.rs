//! Create, poll once, drop: what most timers do.

use super::{Random, Values, counted_waker, inside, poll_and_drop};
use crate::peers::Peer;
use crate::sys;
use std::time::Duration;

/// How the time of each new timer is chosen.
#[derive(Clone, Copy, PartialEq)]
pub enum Order {
    /// 1 to 60 s ahead.
    Random,
    /// Each earlier than all before it, without slack.
    Earliest,
    /// Each earlier than all before it, and may be a minute late.
    EarliestSlack,
}

/// Nanoseconds of `budget_ms` of churn with `others` pending.
pub fn run<P: Peer>(others: usize, order: Order, budget_ms: u64) -> Values {
    P::block_on(async move {
        let waker = counted_waker();
        let mut random = Random::new();
        // Pinned for ever: the process ends with the sample.
        let mut pending = Vec::with_capacity(others);
        for _ in 0..others {
            let ms = random.between(5_000, 65_000);
            let mut sleep = Box::pin(P::sleep(Duration::from_millis(ms), Duration::ZERO));
            super::poll_once(sleep.as_mut(), &waker);
            pending.push(sleep);
        }
        // A runtime that has waited once knows what it waits for: some wake it at every insert before.
        P::sleep(Duration::from_millis(2), Duration::ZERO).await;
        inside(move || {
            let mut ahead = Duration::from_secs(3);
            // One loop for each, so that the choice costs an operation nothing.
            let mut batch = |n: u64| match order {
                Order::Random => {
                    for _ in 0..n {
                        let d = Duration::from_nanos(random.between(1_000_000_000, 60_000_000_000));
                        poll_and_drop(P::sleep(d, Duration::ZERO), &waker);
                    }
                }
                Order::Earliest | Order::EarliestSlack => {
                    let slack = Duration::from_secs(60 * (order == Order::EarliestSlack) as u64);
                    for _ in 0..n {
                        ahead -= Duration::from_nanos(1);
                        poll_and_drop(P::sleep(ahead, slack), &waker);
                    }
                }
            };
            batch(20_000);
            let allocations = sys::allocations();
            let calls = P::kernel_calls();
            let (start, cpu, all) = (sys::monotonic(), sys::thread_cpu(), sys::process_cpu());
            let mut ops = 0u64;
            while sys::monotonic() - start < budget_ms * 1_000_000 {
                batch(1000);
                ops += 1000;
            }
            let n = ops as f64;
            let mut values = vec![
                ("ns", (sys::thread_cpu() - cpu) / n),
                ("wall_ns", (sys::monotonic() - start) as f64 / n),
                ("process_ns", (sys::process_cpu() - all) / n),
                ("floor_ns", floor(&waker)),
                ("allocations", (sys::allocations() - allocations) as f64 / n),
            ];
            if let (Some(before), Some(after)) = (calls, P::kernel_calls()) {
                values.push(("kernel_calls", (after - before) as f64 / n));
            }
            // Dropping a million of them is not part of the sample.
            std::mem::forget(pending);
            values
        })
        .await
    })
}

/// What nobody can do without: one reading of the clock and one reference to the waker.
fn floor(waker: &std::task::Waker) -> f64 {
    const N: u64 = 100_000;
    let cpu = sys::thread_cpu();
    for _ in 0..N {
        std::hint::black_box(std::time::Instant::now());
        drop(std::hint::black_box(waker.clone()));
    }
    (sys::thread_cpu() - cpu) / N as f64
}
