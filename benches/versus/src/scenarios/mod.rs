//! What is measured, each scenario once for all peers. A scenario runs in a process of its own and
//! reports named values.

pub mod churn;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::future::Future;

/// Named values of one run of one peer.
pub type Values = Vec<(&'static str, f64)>;

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
