//! What is measured, each scenario once for all peers. A scenario runs in a process of its own and
//! reports named values.

pub mod burst;
pub mod cancels;
pub mod churn;
pub mod delay_queue;
pub mod idle;
pub mod periodic;
pub mod precise;
pub mod reset;
pub mod threads;
pub mod timeouts;

use crate::{sys, with_peer};
use std::time::Duration;

use std::future::Future;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Named values of one run of one peer.
pub type Values = Vec<(&'static str, f64)>;

/// Runs one scenario for one peer in this process.
pub fn sample(scenario: &str, peer: &str, args: &[String]) -> Values {
    let word = |i: usize| args.get(i).map(String::as_str).unwrap_or_else(|| panic!("argument {i}"));
    let number = |i: usize| word(i).parse::<u64>().unwrap_or_else(|e| panic!("{}: {e}", word(i)));
    let size = |i: usize| number(i) as usize;
    let delay_queue = peer == "delay-queue";
    match scenario {
        "churn" if delay_queue => delay_queue::churn(size(0), number(2)),
        "churn" => {
            let order = match word(1) {
                "random" => churn::Order::Random,
                "earliest" => churn::Order::Earliest,
                "earliest-slack" => churn::Order::EarliestSlack,
                other => panic!("no such order: {other}"),
            };
            with_peer!(peer, P => churn::run::<P>(size(0), order, number(2)))
        }
        "timeout" => timeouts::run(peer, number(0) as u32, number(1)),
        "reset" => {
            let later = word(1) == "later";
            let ms = number(2);
            match peer {
                "delay-queue" => delay_queue::reset(size(0), later, ms),
                "slackwheel" => reset::run::<crate::peers::Ours>(size(0), later, ms),
                "slackwheel-local" => reset::run::<crate::peers::OursLocal>(size(0), later, ms),
                "tokio-ct" => reset::run::<crate::peers::TokioCt>(size(0), later, ms),
                "tokio-mt" => reset::run::<crate::peers::TokioMt>(size(0), later, ms),
                "monoio" => reset::run::<crate::peers::Monoio>(size(0), later, ms),
                "map-by-hand" => reset::run::<crate::peers::Map>(size(0), later, ms),
                "heap-by-hand" => reset::run::<crate::peers::Heap>(size(0), later, ms),
                other => panic!("{other} cannot be reset here"),
            }
        }
        "oldest" => reset::oldest(peer, size(0), number(1)),
        "burst" if delay_queue => delay_queue::burst(size(0), Duration::from_millis(number(1))),
        "burst" => {
            let spread = Duration::from_millis(number(1));
            with_peer!(peer, P => burst::run::<P>(size(0), spread))
        }
        "returned" => with_peer!(peer, P => burst::returned::<P>(size(0), size(1))),
        "stall" => burst::stall(size(0)),
        "threads" => threads::run(peer, size(0), number(1)),
        "crossed" => threads::crossed(peer, size(0), size(1)),
        "precise" if peer == "slackwheel" => precise::ours(number(0), size(1)),
        "precise" => with_peer!(peer, P => precise::run::<P>(number(0), size(1))),
        "periodic" => {
            let slack = periodic::Slack::named(word(1));
            if peer.ends_with("+prctl") {
                sys::set_timer_slack(slack.ns.max(1));
            }
            let span = Duration::from_millis(number(2));
            with_peer!(peer, P => periodic::run::<P>(size(0), slack, span))
        }
        "periodic-manual" => {
            let slack = periodic::Slack::named(word(1));
            periodic::manual(size(0), slack, Duration::from_millis(number(2)))
        }
        "cancels" => cancels::run(number(0), word(1) == "timeouts"),
        "idle" => with_peer!(peer, P => idle::run::<P>(size(0))),
        "idle-manual" => idle::manual(size(0)),
        other => panic!("no such scenario: {other}"),
    }
}

/// xorshift64: the same numbers for everybody.
pub struct Random(pub u64);

impl Random {
    pub fn new() -> Self {
        Random(88_172_645_463_325_252)
    }
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }
}

struct Nop;

impl Wake for Nop {
    fn wake(self: Arc<Self>) {}
}

/// A waker that costs what an executor's does: a reference count.
pub fn counted_waker() -> Waker {
    Waker::from(Arc::new(Nop))
}

/// Runs `work` inside of a runtime's context, synchronously.
pub async fn inside<T>(work: impl FnOnce() -> T) -> T {
    let mut work = Some(work);
    poll_fn(move |_| Poll::Ready(work.take().expect("polled once")())).await
}

/// Polls a sleep once and drops it.
#[inline]
pub fn poll_and_drop(sleep: impl Future<Output = ()>, waker: &Waker) {
    let sleep = pin!(sleep);
    let _ = std::hint::black_box(sleep.poll(&mut Context::from_waker(waker)));
}

/// Polls `sleep` once where it lies.
pub fn poll_once<S: Future<Output = ()>>(sleep: Pin<&mut S>, waker: &Waker) -> bool {
    sleep.poll(&mut Context::from_waker(waker)).is_ready()
}
