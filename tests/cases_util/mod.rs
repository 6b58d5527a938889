//! What the case files share: a driver on a manual clock, counting wakers, polls by hand.
// Each file is a program of its own and uses a part of this.
#![allow(dead_code)]

use slackwheel::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A millisecond in the wheel's nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub(crate) const fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A day, a year: as the cases count them.
pub(crate) const DAY: Duration = secs(86_400);
pub(crate) const YEAR: Duration = secs(31_557_600);

pub(crate) struct Count(AtomicU32);

impl Count {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that counts its calls.
pub(crate) fn counter() -> (Arc<Count>, Waker) {
    let c = Arc::new(Count(AtomicU32::new(0)));
    (c.clone(), c.into())
}

/// A waker that calls `f`, the first time it is called.
pub(crate) fn on_wake(f: impl FnOnce() + Send + 'static) -> Waker {
    struct Once<F>(std::sync::Mutex<Option<F>>);
    impl<F: FnOnce() + Send + 'static> Wake for Once<F> {
        fn wake(self: Arc<Self>) {
            let f = self.0.lock().unwrap().take();
            if let Some(f) = f {
                f();
            }
        }
    }
    Arc::new(Once(std::sync::Mutex::new(Some(f)))).into()
}

/// One poll.
pub(crate) fn poll<F: Future + Unpin>(f: &mut F, w: &Waker) -> Poll<F::Output> {
    Pin::new(f).poll(&mut Context::from_waker(w))
}

/// One poll with a waker that does nothing.
pub(crate) fn peek<F: Future + Unpin>(f: &mut F) -> Poll<F::Output> {
    poll(f, Waker::noop())
}

/// One poll of an interval.
pub(crate) fn tick(iv: &mut Interval) -> Poll<Instant> {
    iv.poll_tick(&mut Context::from_waker(Waker::noop()))
}

/// One poll of a delay queue.
pub(crate) fn pop<V>(q: &mut DelayQueue<V>, w: &Waker) -> Poll<Option<V>> {
    q.poll_expired(&mut Context::from_waker(w)).map(|x| x.map(Expired::into_inner))
}

/// A driver on a manual clock; times are milliseconds after its start.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) clock: ManualClock,
    pub(crate) t0: Instant,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let (driver, clock) = Driver::manual();
        Bench { t0: clock.now(), driver, clock }
    }

    pub(crate) fn h(&self) -> Handle {
        self.driver.handle()
    }

    pub(crate) fn queue<V>(&self) -> DelayQueue<V> {
        DelayQueue::with_handle(self.h())
    }

    /// Moves the clock to `t` without a turn.
    pub(crate) fn set(&self, t: Duration) {
        self.clock.set(self.t0 + t);
    }

    /// Moves the clock to `t`, then turns once.
    pub(crate) fn at(&mut self, t: Duration) -> Turn {
        self.set(t);
        self.driver.turn()
    }

    /// The present, in whole milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock.now() - self.t0).as_millis() as u64
    }

    pub(crate) fn pending(&self) -> usize {
        self.h().metrics().unwrap().pending
    }
}

/// An external driver on a manual clock: its kernel timer is a record.
pub(crate) struct ExternalBench {
    pub(crate) driver: ExternalDriver,
    pub(crate) clock: ManualClock,
    pub(crate) t0: Instant,
}

impl ExternalBench {
    pub(crate) fn new() -> Self {
        let (driver, clock) = ExternalDriver::manual().unwrap();
        clock.take_arms();
        ExternalBench { t0: clock.now(), driver, clock }
    }

    pub(crate) fn h(&self) -> Handle {
        self.driver.handle()
    }

    pub(crate) fn at(&mut self, t: Duration) -> Turn {
        self.clock.set(self.t0 + t);
        self.driver.turn()
    }

    /// What the kernel timer stands at, after the start.
    pub(crate) fn armed(&self) -> Option<Duration> {
        self.clock.armed().map(|at| at - self.t0)
    }
}

/// SplitMix64: the same numbers on every run.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Fewest points that pierce all `(earliest, latest)` windows: take the smallest `latest` that is not yet
/// pierced, again and again.
pub(crate) fn piercing(windows: &[(u64, u64)]) -> usize {
    let mut by_latest = windows.to_vec();
    by_latest.sort_unstable_by_key(|w| w.1);
    let mut points: Vec<u64> = Vec::new();
    for (earliest, latest) in by_latest {
        if points.last().is_none_or(|p| *p < earliest) {
            points.push(latest);
        }
    }
    points.len()
}

pub(crate) fn median(v: &mut [Duration]) -> Duration {
    v.sort_unstable();
    v[v.len() / 2]
}

/// The `q`-quantile of sorted samples.
pub(crate) fn quantile(v: &[Duration], q: f64) -> Duration {
    v[((v.len() - 1) as f64 * q) as usize]
}

/// A bare wait of the kernel, to judge ours against: how much longer than `d` it takes.
pub(crate) fn bare_overshoot(d: Duration) -> Duration {
    let start = Instant::now();
    let ts = libc::timespec {
        tv_sec: d.as_secs() as libc::time_t,
        tv_nsec: d.subsec_nanos() as libc::c_long,
    };
    // SAFETY: `ts` lives through the call; the remainder may be null.
    unsafe { libc::nanosleep(&ts, std::ptr::null_mut()) };
    start.elapsed().saturating_sub(d)
}

/// CPU time of this thread.
pub(crate) fn thread_cpu() -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    assert_eq!(rc, 0);
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}
