//! `timeout` around a future that needs no timer, and around one that is ready at its second poll.

use super::{Values, counted_waker, inside, poll_once};
use crate::peers::{Monoio, Ours, OursDefault, OursLocal, Peer, TokioCt, TokioMt, local_handle};
use crate::sys;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Ready after so many polls that were pending.
struct After(u32);

impl Future for After {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.0 {
            0 => Poll::Ready(()),
            _ => {
                self.0 -= 1;
                Poll::Pending
            }
        }
    }
}

pub fn run(peer: &str, pending_polls: u32, budget_ms: u64) -> Values {
    match peer {
        "slackwheel" => {
            timed::<Ours, _>(budget_ms, pending_polls, |f| slackwheel::timeout(LIMIT, f))
        }
        "slackwheel-default" => {
            timed::<OursDefault, _>(budget_ms, pending_polls, |f| slackwheel::timeout(LIMIT, f))
        }
        "slackwheel-local" => {
            timed::<OursLocal, _>(budget_ms, pending_polls, |f| local_handle().timeout(LIMIT, f))
        }
        "tokio-ct" => {
            timed::<TokioCt, _>(budget_ms, pending_polls, |f| tokio::time::timeout(LIMIT, f))
        }
        "tokio-mt" => {
            timed::<TokioMt, _>(budget_ms, pending_polls, |f| tokio::time::timeout(LIMIT, f))
        }
        "monoio" => {
            timed::<Monoio, _>(budget_ms, pending_polls, |f| monoio::time::timeout(LIMIT, f))
        }
        other => panic!("{other} has no timeout here"),
    }
}

fn timed<P: Peer, F: Future>(
    budget_ms: u64,
    pending_polls: u32,
    make: impl Fn(After) -> F + 'static,
) -> Values {
    P::block_on(async move {
        let waker = counted_waker();
        let mut other = Box::pin(P::sleep(Duration::from_secs(5), Duration::ZERO));
        poll_once(other.as_mut(), &waker);
        P::sleep(Duration::from_millis(2), Duration::ZERO).await;
        inside(move || {
            let mut cx = Context::from_waker(&waker);
            let mut batch = |n: u64| {
                for _ in 0..n {
                    let mut future = pin!(make(After(pending_polls)));
                    for _ in 0..pending_polls {
                        assert!(future.as_mut().poll(&mut cx).is_pending());
                    }
                    assert!(future.as_mut().poll(&mut cx).is_ready());
                }
            };
            batch(20_000);
            let (start, cpu) = (sys::monotonic(), sys::thread_cpu());
            let mut ops = 0u64;
            while sys::monotonic() - start < budget_ms * 1_000_000 {
                batch(1000);
                ops += 1000;
            }
            let values = vec![("ns", (sys::thread_cpu() - cpu) / ops as f64)];
            std::mem::forget(other);
            values
        })
        .await
    })
}
