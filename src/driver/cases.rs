//! Cases that need a look, or a hand, inside the driver.

use super::arming::{Arming, Bound, Host, Windows};
use super::lane::Lane;
use super::{Driver, ExternalDriver, Firing, Handle, core::Core};
use crate::clock::Clock;
use crate::park::scripted::{ManualClocks, ScriptedAlarm};
use crate::park::{Alarm, Armed, Clocks, Expiry, KernelTimer, timerfd};
use crate::primitive::plain::{AtomicU64, Mutex, Ordering, lock};
use crate::window::Span;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const MS: u64 = 1_000_000;

fn poll<F: Future + Unpin>(f: &mut F) -> Poll<F::Output> {
    Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
}

fn counter() -> (Arc<AtomicU64>, Waker) {
    struct Count(Arc<AtomicU64>);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let count = Arc::new(AtomicU64::new(0));
    (count.clone(), Waker::from(Arc::new(Count(count))))
}

#[test]
fn c133_creating_and_dropping_takes_no_lock() {
    let driver = Driver::new().unwrap();
    let handle = driver.handle();
    let work = move || {
        for _ in 0..1_000 {
            // Never polled, and never pending.
            drop(handle.sleep(Duration::from_secs(1)));
            let mut t = handle.timeout(Duration::from_secs(1), std::future::ready(1));
            assert!(poll(&mut t).is_ready());
        }
    };
    let polled = move || {
        let mut s = handle.sleep(Duration::from_secs(1));
        assert!(poll(&mut s).is_pending());
    };
    // With every lock of the driver taken, whoever wants one waits.
    let shards = handle.core.lane.hold_all();
    let kernel = handle.core.lane.arming.kernel();
    let (done, finished) = mpsc::channel();
    let tell = done.clone();
    std::thread::spawn(move || {
        work();
        let _ = done.send("work");
    });
    assert_eq!(finished.recv_timeout(Duration::from_secs(20)), Ok("work"), "it waits for a lock");
    std::thread::spawn(move || {
        polled();
        let _ = tell.send("polled");
    });
    let waits = finished.recv_timeout(Duration::from_millis(50));
    assert!(waits.is_err(), "a pending poll does need a lock, or this test sees nothing");
    drop((shards, kernel));
    assert_eq!(finished.recv_timeout(Duration::from_secs(20)), Ok("polled"));
}

/// A kernel timer that remembers what it was set to.
#[derive(Clone, Default)]
struct Recorded(Rc<RefCell<Vec<u64>>>);

impl KernelTimer for Recorded {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        self.0.borrow_mut().push(at);
        Armed::Timer
    }

    fn take_expiry(&self) -> Expiry {
        Expiry::NotYet
    }
}

/// Reads the shards for the arming protocol and then, once, lets another thread's insert happen.
struct Between<'a> {
    lane: &'a Lane<Recorded>,
    shard: usize,
    inserted: Cell<bool>,
}

impl Windows for Between<'_> {
    fn bound(&self, closely: bool) -> Bound {
        let bound = self.lane.bound(closely);
        if !self.inserted.replace(true) {
            let span = Span { earliest: MS, latest: MS };
            let added = self.lane.register(self.shard, 1, span, Waker::noop().clone());
            assert!(added.is_ok());
        }
        bound
    }

    fn point(&self, latest: u64) -> u64 {
        latest
    }
}

#[test]
fn c025_c137_an_insert_between_the_look_at_the_shards_and_the_park_is_armed() {
    for shard in 0..4 {
        for other in 0..4 {
            let lane: Lane<Recorded> = Lane::new(4, false);
            lane.open(1, Firing::Latest);
            let timer = Recorded::default();
            lane.arming.open(timer.clone(), Host::Parks);
            let far = Span { earliest: 60_000 * MS, latest: 60_000 * MS };
            assert!(lane.register(other, 1, far, Waker::noop().clone()).is_ok());
            let between = Between { lane: &lane, shard, inserted: Cell::new(false) };
            assert!(lane.arming.park(0, &between), "nothing is due yet");
            assert_eq!(timer.0.borrow().last(), Some(&MS), "sleeps for a minute past a timer");
            // Due by now: then there is no wait at all.
            let arming: &Arming<Recorded> = &lane.arming;
            assert!(!arming.park(MS, &lane));
        }
    }
}

/// A kernel timer whose reads return what a test wants.
struct Odd {
    inner: ScriptedAlarm,
    reads: Mutex<VecDeque<Expiry>>,
}

impl Alarm for Odd {
    fn arm(&self, at: u64, remote: bool) -> Armed {
        self.inner.arm(at, remote)
    }

    fn take_expiry(&self) -> Expiry {
        lock(&self.reads).pop_front().unwrap_or(Expiry::NotYet)
    }

    fn has_come(&self, at: u64) -> bool {
        self.inner.has_come(at)
    }

    fn ring(&self) {}

    fn open(&self, _clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn c098_due_timers_fire_by_the_clock_whatever_the_descriptor_says() {
    // What the descriptor's reads became (see the case of the same name beside it).
    let reads = [Expiry::NotYet, Expiry::NotYet, Expiry::NotYet, Expiry::NotYet, Expiry::Expired];
    let clocks = Arc::new(ManualClocks::new());
    let only = Clocks::default().with(Clock::Monotonic);
    let (core, life) = Core::claim(Some(clocks.clone()), only, Firing::Latest);
    let inner = ScriptedAlarm { clocks: clocks.clone(), clock: Clock::Monotonic };
    let alarm = Arc::new(Odd { inner, reads: Mutex::new(reads.into()) });
    let mut driver = ExternalDriver::open(core, life, alarm, timerfd::external().unwrap(), false);
    let handle: Handle = driver.handle();
    for read in reads {
        let mut due = handle.sleep(Duration::from_millis(1));
        let mut far = handle.sleep(Duration::from_secs(3600));
        let (woken, waker) = counter();
        assert!(Pin::new(&mut due).poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(poll(&mut far).is_pending());
        clocks.advance(Duration::from_millis(1));
        driver.turn();
        assert_eq!(woken.load(Ordering::SeqCst), 1, "after a read of {read:?}");
        assert!(poll(&mut due).is_ready() && poll(&mut far).is_pending());
        // It ends armed for what is left.
        assert!(clocks.armed(Clock::Monotonic) >= Some(clocks.now(Clock::Monotonic)));
        drop(far);
    }
}
