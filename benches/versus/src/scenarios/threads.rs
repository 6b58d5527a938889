//! Two threads: churning at once, and creating what the other one drops.

use super::{Random, Values, counted_waker, inside, poll_and_drop, poll_once};
use crate::peers::Peer;
use crate::sys;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

/// Where threads wait for each other without blocking a worker, whose queue may hold the one waited for.
struct Start(AtomicUsize);

impl Start {
    fn of(n: usize) -> Arc<Start> {
        Arc::new(Start(AtomicUsize::new(n)))
    }

    async fn wait(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        poll_fn(|cx| match self.0.load(Ordering::SeqCst) {
            0 => Poll::Ready(()),
            _ => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }
}

/// Operations a second of one thread that churns for `ms`, with `others` of its own pending.
async fn churn<P: Peer>(others: usize, seed: u64, ms: u64, start: Arc<Start>) -> f64 {
    let waker = counted_waker();
    let mut random = Random(88_172_645_463_325_252 + seed);
    let mut pending = Vec::with_capacity(others);
    for _ in 0..others {
        let d = Duration::from_millis(random.between(5_000, 65_000));
        let mut sleep = Box::pin(P::sleep(d, Duration::ZERO));
        poll_once(sleep.as_mut(), &waker);
        pending.push(sleep);
    }
    P::sleep(Duration::from_millis(2), Duration::ZERO).await;
    start.wait().await;
    inside(move || {
        let begin = sys::monotonic();
        let mut ops = 0u64;
        while sys::monotonic() - begin < ms * 1_000_000 {
            for _ in 0..500 {
                let d = Duration::from_nanos(random.between(1_000_000_000, 60_000_000_000));
                poll_and_drop(P::sleep(d, Duration::ZERO), &waker);
            }
            ops += 500;
        }
        let rate = ops as f64 * 1e9 / (sys::monotonic() - begin) as f64;
        std::mem::forget(pending);
        rate
    })
    .await
}

/// Millions of operations a second of one and of two threads. Each thread has a runtime of its own; the
/// default driver of this crate is one for all.
fn apart<P: Peer>(others: usize, ms: u64) -> (f64, f64) {
    let run = |n: usize| {
        let start = Start::of(n);
        let threads: Vec<_> = (0..n)
            .map(|i| {
                let start = start.clone();
                std::thread::spawn(move || P::block_on(churn::<P>(others / n, i as u64, ms, start)))
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("it does not panic")).sum::<f64>() / 1e6
    };
    (run(1), run(2))
}

/// The same as tasks on the two workers of one runtime of tokio.
fn on_workers<P: Peer>(others: usize, ms: u64) -> (f64, f64) {
    let run = |n: usize| {
        let start = Start::of(n);
        P::block_on(async move {
            let tasks: Vec<_> = (0..n)
                .map(|i| {
                    let churn = churn::<P>(others / n, i as u64, ms, start.clone());
                    tokio::spawn(crate::peers::Movable(churn))
                })
                .collect();
            let mut sum = 0.0;
            for task in tasks {
                sum += task.await.expect("it does not panic");
            }
            sum / 1e6
        })
    };
    (run(1), run(2))
}

pub fn run(peer: &str, others: usize, ms: u64) -> Values {
    use crate::peers as p;
    let (one, two) = match peer {
        "slackwheel-default" => apart::<p::OursDefault>(others, ms),
        "slackwheel" => apart::<p::Ours>(others, ms),
        "slackwheel-local" => apart::<p::OursLocal>(others, ms),
        "monoio" => apart::<p::Monoio>(others, ms),
        "tokio-ct" => apart::<p::TokioCt>(others, ms),
        "tokio-mt" => on_workers::<p::TokioMt>(others, ms),
        #[cfg(tokio_unstable)]
        "tokio-alt" => on_workers::<p::TokioAlt>(others, ms),
        other => panic!("{other} does not run on two threads here"),
    };
    vec![("mops_one", one), ("mops_two", two), ("scaling", two / one)]
}

/// Created and polled on one thread, dropped on another.
pub fn crossed(peer: &str, n: usize, rounds: usize) -> Values {
    match peer {
        "slackwheel-default" => {
            let make = |d| slackwheel::sleep(d);
            let calls = || {
                let m = slackwheel::Handle::current().metrics().expect("it is there");
                m.arm_calls + m.kick_calls
            };
            cross(n, rounds, make, calls)
        }
        "tokio-mt" => {
            let rt = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            let _entered = rt.enter();
            cross(n, rounds, tokio::time::sleep, || 0)
        }
        other => panic!("{other} does not cross threads here"),
    }
}

fn cross<S: Future<Output = ()> + Send + 'static>(
    n: usize,
    rounds: usize,
    make: impl Fn(Duration) -> S,
    calls: impl Fn() -> u64,
) -> Values {
    // The vector's storage stays where it is when the vector is sent: its sleeps do not move.
    let (there, inbox) = mpsc::channel::<Vec<S>>();
    let (back, outbox) = mpsc::channel::<(Vec<S>, f64)>();
    let dropper = std::thread::spawn(move || {
        for mut sleeps in inbox {
            let cpu = sys::thread_cpu();
            sleeps.clear();
            let took = sys::thread_cpu() - cpu;
            if back.send((sleeps, took)).is_err() {
                return;
            }
        }
    });
    let waker = counted_waker();
    let mut random = Random::new();
    // The earliest of all, kept: what everybody else is later than.
    let mut first = Box::pin(make(Duration::from_millis(900)));
    poll_once(first.as_mut(), &waker);
    std::thread::sleep(Duration::from_millis(2));
    let mut sleeps: Vec<S> = Vec::with_capacity(n);
    let (mut created, mut dropped) = (0.0, 0.0);
    let before = calls();
    for round in 0..=rounds {
        let cpu = sys::thread_cpu();
        for _ in 0..n {
            sleeps.push(make(Duration::from_nanos(random.between(1_000_000_000, 60_000_000_000))));
            let last = sleeps.last_mut().expect("just pushed");
            // SAFETY: it stays in this place, within the capacity, until it is dropped there.
            poll_once(unsafe { std::pin::Pin::new_unchecked(last) }, &waker);
        }
        let took = sys::thread_cpu() - cpu;
        there.send(std::mem::take(&mut sleeps)).expect("the other thread is there");
        let (emptied, dropping) = outbox.recv().expect("the other thread is there");
        sleeps = emptied;
        // The first round warms up.
        if round > 0 {
            created += took;
            dropped += dropping;
        }
    }
    let ops = (n * rounds) as f64;
    let calls = (calls() - before) as f64;
    drop(there);
    dropper.join().expect("it does not panic");
    vec![
        ("ns", (created + dropped) / ops),
        ("create_ns", created / ops),
        ("drop_ns", dropped / ops),
        ("kernel_calls", calls),
    ]
}
