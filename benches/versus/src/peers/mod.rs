//! This crate and its rivals behind one small trait, so that every scenario is the same code for all.

mod by_hand;

pub use by_hand::{BareLoop, Heap, HeapSleep, Map, MapSleep};

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
// Its budget of 128 polls a turn is for tasks that would starve others; here there is one task.
use tokio::task::unconstrained;

/// A library with timers, and the way its users run them.
pub trait Peer: 'static {
    /// Completes between `d` and `d + slack` from now; rivals know no slack.
    fn sleep(d: Duration, slack: Duration) -> impl Future<Output = ()>;
    /// Runs a future in a fresh runtime of this library.
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T;
    /// Kernel calls its timers have made so far, where it counts them. Called inside of `block_on`.
    fn kernel_calls() -> Option<u64> {
        None
    }
    /// Gives memory back on demand, where it can.
    fn reap() {}
}

fn current_kernel_calls() -> Option<u64> {
    let m = slackwheel::Handle::current().metrics().ok()?;
    Some(m.arm_calls + m.kick_calls)
}

/// Runs `$body` with `$P` standing for the peer called `$name`.
#[macro_export]
macro_rules! with_peer {
    ($name:expr, $P:ident => $body:expr) => {{
        use $crate::peers as p;
        match $name {
            "slackwheel" => {
                type $P = p::Ours;
                $body
            }
            "slackwheel-default" => {
                type $P = p::OursDefault;
                $body
            }
            "slackwheel-local" => {
                type $P = p::OursLocal;
                $body
            }
            "tokio-ct" | "tokio-ct+prctl" => {
                type $P = p::TokioCt;
                $body
            }
            "tokio-mt" => {
                type $P = p::TokioMt;
                $body
            }
            #[cfg(tokio_unstable)]
            "tokio-alt" => {
                type $P = p::TokioAlt;
                $body
            }
            "monoio" => {
                type $P = p::Monoio;
                $body
            }
            "async-io" => {
                type $P = p::AsyncIo;
                $body
            }
            "futures-timer" => {
                type $P = p::FuturesTimer;
                $body
            }
            "pingora" => {
                type $P = p::Pingora;
                $body
            }
            "map-by-hand" => {
                type $P = p::Map;
                $body
            }
            "heap-by-hand" => {
                type $P = p::Heap;
                $body
            }
            other => panic!("no such peer here: {other}"),
        }
    }};
}

/// slackwheel, the waiting thread being the driver's.
pub struct Ours;

impl Peer for Ours {
    #[inline]
    fn sleep(d: Duration, slack: Duration) -> impl Future<Output = ()> {
        slackwheel::sleep_range(d, d + slack)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        slackwheel::Driver::new().expect("a driver").block_on(future)
    }
    fn kernel_calls() -> Option<u64> {
        current_kernel_calls()
    }
    fn reap() {
        let _ = slackwheel::Handle::current().reap();
    }
}

/// slackwheel, its free functions on a foreign executor: the default driver's thread does the waiting.
pub struct OursDefault;

impl Peer for OursDefault {
    #[inline]
    fn sleep(d: Duration, slack: Duration) -> impl Future<Output = ()> {
        slackwheel::sleep_range(d, d + slack)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        futures::executor::block_on(future)
    }
    fn kernel_calls() -> Option<u64> {
        current_kernel_calls()
    }
    fn reap() {
        let _ = slackwheel::Handle::current().reap();
    }
}

thread_local! {
    /// Leaked: a sample is a process. Like that it is one load, as an executor's own scoped handle is.
    static LOCAL: Cell<Option<&'static slackwheel::LocalHandle>> = const { Cell::new(None) };
}

/// The handle of this thread's local driver, inside of its `block_on`.
#[inline]
pub fn local_handle() -> &'static slackwheel::LocalHandle {
    LOCAL.get().expect("inside of block_on")
}

/// slackwheel, a local driver.
pub struct OursLocal;

impl Peer for OursLocal {
    #[inline]
    fn sleep(d: Duration, slack: Duration) -> impl Future<Output = ()> {
        local_handle().sleep_range(d, d + slack)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        let mut driver = slackwheel::LocalDriver::new().expect("a driver");
        LOCAL.set(Some(Box::leak(Box::new(driver.handle()))));
        let output = driver.block_on(future);
        LOCAL.set(None);
        output
    }
    fn kernel_calls() -> Option<u64> {
        Some(LOCAL.get()?.metrics().arm_calls)
    }
    fn reap() {
        local_handle().reap();
    }
}

/// tokio's current-thread runtime, as `#[tokio::main(flavor = "current_thread")]` builds it.
pub struct TokioCt;

impl Peer for TokioCt {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build();
        rt.expect("a runtime").block_on(unconstrained(future))
    }
}

/// A future that may move to another thread, which the compiler cannot see through `impl Future`.
pub struct Movable<F>(pub F);

// SAFETY: it wraps only the scenarios of this program on tokio's timers: those are `Send`, the rest of a
// scenario is plain data that no other thread refers to, and it is moved before it is first polled.
unsafe impl<F> Send for Movable<F> {}

impl<F: Future> Future for Movable<F> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the field is pinned when the wrapper is; it is never moved out.
        unsafe { self.map_unchecked_mut(|m| &mut m.0) }.poll(cx)
    }
}

fn on_a_worker<F: Future<Output = T> + 'static, T: Send + 'static>(
    rt: tokio::runtime::Runtime,
    future: F,
) -> T {
    let output =
        rt.block_on(rt.spawn(unconstrained(Movable(future)))).expect("the scenario does not panic");
    rt.shutdown_background();
    output
}

/// tokio with two workers; the scenario runs on one of them.
pub struct TokioMt;

impl Peer for TokioMt {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        on_a_worker(rt.expect("a runtime"), future)
    }
}

/// tokio with two workers and its unstable per-worker timer.
#[cfg(tokio_unstable)]
pub struct TokioAlt;

#[cfg(tokio_unstable)]
impl Peer for TokioAlt {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .enable_alt_timer()
            .build();
        on_a_worker(rt.expect("a runtime"), future)
    }
}

/// monoio with its better driver, io_uring where the kernel has it.
pub struct Monoio;

impl Peer for Monoio {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        monoio::time::sleep(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        let rt = monoio::RuntimeBuilder::<monoio::FusionDriver>::new().enable_timer().build();
        rt.expect("a runtime").block_on(future)
    }
}

/// async-io's timer, driven by its own `block_on` and its reactor thread.
pub struct AsyncIo;

impl Peer for AsyncIo {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        let timer = async_io::Timer::after(d);
        async {
            timer.await;
        }
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        async_io::block_on(future)
    }
}

/// futures-timer and its helper thread.
pub struct FuturesTimer;

impl Peer for FuturesTimer {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        futures_timer::Delay::new(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        futures::executor::block_on(future)
    }
}

/// pingora-timeout: one shared entry per 10 ms, and a thread that ticks.
pub struct Pingora;

impl Peer for Pingora {
    #[inline]
    fn sleep(d: Duration, _: Duration) -> impl Future<Output = ()> {
        pingora_timeout::fast_timeout::fast_sleep(d)
    }
    fn block_on<F: Future<Output = T> + 'static, T: Send + 'static>(future: F) -> T {
        TokioCt::block_on(future)
    }
}
