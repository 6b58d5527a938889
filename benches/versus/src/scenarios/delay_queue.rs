//! tokio-util's `DelayQueue`: no futures but keys, so its scenarios are written out.

use super::{Random, Values, counted_waker};
use crate::sys;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::time::{DelayQueue, delay_queue::Key};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build();
    rt.expect("a runtime").block_on(tokio::task::unconstrained(future))
}

fn ahead(random: &mut Random) -> Duration {
    Duration::from_nanos(random.between(1_000_000_000, 60_000_000_000))
}

/// A queue with `others` entries that has been polled.
async fn filled(others: usize, random: &mut Random) -> DelayQueue<u32> {
    let mut queue = DelayQueue::with_capacity(others);
    for i in 0..others {
        queue.insert(i as u32, Duration::from_millis(random.between(5_000, 65_000)));
    }
    let waker = counted_waker();
    let _ = queue.poll_expired(&mut Context::from_waker(&waker));
    tokio::time::sleep(Duration::from_millis(2)).await;
    queue
}

/// Runs `op` for `budget_ms`, and reports nanoseconds each.
fn timed(budget_ms: u64, mut op: impl FnMut()) -> Values {
    for _ in 0..20_000 {
        op();
    }
    let (start, cpu) = (sys::monotonic(), sys::thread_cpu());
    let mut ops = 0u64;
    while sys::monotonic() - start < budget_ms * 1_000_000 {
        for _ in 0..1000 {
            op();
        }
        ops += 1000;
    }
    vec![("ns", (sys::thread_cpu() - cpu) / ops as f64)]
}

/// Insert and remove.
pub fn churn(others: usize, budget_ms: u64) -> Values {
    block_on(async {
        let mut random = Random::new();
        let mut queue = filled(others, &mut random).await;
        timed(budget_ms, || {
            let key = queue.insert(0, ahead(&mut random));
            std::hint::black_box(queue.remove(&key));
        })
    })
}

/// Reset of one entry among others, later or earlier.
pub fn reset(others: usize, later: bool, budget_ms: u64) -> Values {
    block_on(async {
        let mut random = Random::new();
        let mut queue = filled(others, &mut random).await;
        let key: Key = queue.insert(0, Duration::from_secs(60));
        let mut ahead = Duration::from_secs(60);
        timed(budget_ms, || {
            if !later {
                ahead -= Duration::from_nanos(1);
            }
            queue.reset(&key, ahead);
        })
    })
}

/// Insert, drive, drop.
pub fn burst(n: usize, spread: Duration) -> Values {
    block_on(async move {
        let mut random = Random::new();
        let mut queue = DelayQueue::new();
        let mut fired = 0;
        let (live, cpu) = (sys::live_bytes(), sys::process_cpu());
        for i in 0..n {
            let d = Duration::from_nanos(random.between(1, spread.as_nanos() as u64));
            queue.insert(i as u32, d);
        }
        let inserted = sys::process_cpu();
        let heap = (sys::live_bytes() - live) / n as f64;
        poll_fn(|cx| {
            loop {
                match queue.poll_expired(cx) {
                    Poll::Ready(Some(_)) => fired += 1,
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        assert_eq!(fired, n);
        let driven = sys::process_cpu();
        drop(queue);
        let end = sys::process_cpu();
        let n = n as f64;
        vec![
            ("cpu_ns", (end - cpu) / n),
            ("insert_ns", (inserted - cpu) / n),
            ("drive_ns", (driven - inserted) / n),
            ("drop_ns", (end - driven) / n),
            ("heap_bytes", heap),
        ]
    })
}
