//! A driver for one thread: the timers of a thread-per-core executor.
//!
//! Ground rules:
//! - Everything here belongs to one thread, and the types are not `Send`; so the timer paths take no lock
//!   and touch no atomic. The bell is the exception, and only `block_on` uses it: its waker may be called
//!   from anywhere.
//! - The wheel is borrowed only for the length of one of its calls. Wakers are user code that may create,
//!   reset or drop sleeps of this very driver: they are cloned before a borrow, called and dropped after it.
//! - Timers are only made while the thread is awake, so one look at the wheel before a wait is enough: no
//!   arming protocol.
//! - After a fork the child has the parent's descriptors, and a timer set there would be the parent's. A
//!   driver that finds itself in another process touches none of them: it waits by milliseconds.

use super::batch::{BATCH, WakeBatch};
use super::lane::TURN_BUDGET;
use super::{ManualClock, Turn};
use crate::clock::{self, Clock};
use crate::error::BuildError;
use crate::metrics::{Lateness, Metrics};
use crate::park::scripted::{ManualClocks, ScriptedAlarm, ScriptedPark};
use crate::park::{Alarm, Armed, Bell, Expiry, Park};
use crate::primitive::plain::{AtomicU64, Ordering};
use crate::sys::process::on_fork_in_child;
use crate::tick::NEVER;
use crate::wheel::{Key, Wheel};
use crate::window::Span;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Forks this process is away from the first one.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A driver that belongs to one thread: no locks, no atomics, no `Send`. For thread-per-core executors.
///
/// Its timers are made through its [handle](LocalHandle), on its thread, and keep every promise of the
/// crate's other sleeps. It waits by itself ([`block_on`](LocalDriver::block_on),
/// [`park`](LocalDriver::park)), or somebody else does: an executor with a loop of its own asks
/// [`next_wake`](LocalDriver::next_wake) how long it may wait and then calls
/// [`turn`](LocalDriver::turn), or polls the driver's [descriptor](LocalDriver::descriptor).
///
/// Dropping it ends its life: pending timers are woken once and register with the default driver at
/// their next poll. After a fork make a new one in the child: this one would still fire there, but wait by
/// milliseconds.
///
/// ```
/// use slackwheel::LocalDriver;
/// use std::time::Duration;
///
/// let mut driver = LocalDriver::new()?;
/// let timers = driver.handle();
/// driver.block_on(async {
///     timers.sleep_range(Duration::from_millis(1), Duration::from_millis(5)).await;
/// });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
pub struct LocalDriver {
    local: Rc<Local>,
    park: Box<dyn Park>,
    alarm: Arc<dyn Alarm>,
    bell: Arc<Bell>,
    batch: WakeBatch,
    /// What the kernel timer is set to; `NEVER` when off.
    set: u64,
    /// `FORKS` when the descriptors were made.
    forks: u64,
}

/// Makes timers of a [`LocalDriver`]. Clones refer to the same driver; they stay on its thread.
#[derive(Clone)]
pub struct LocalHandle {
    pub(crate) local: Rc<Local>,
}

/// What driver, handles and sleeps share.
pub(crate) struct Local {
    state: RefCell<State>,
    manual: Option<Arc<ManualClocks>>,
    closed: Cell<bool>,
    /// At or below every pending `earliest`.
    due: Cell<u64>,
    /// The reading of the last turn.
    turned: Cell<u64>,
}

struct State {
    wheel: Wheel<Waker>,
    lateness: Lateness,
    counters: Metrics,
}

impl Local {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match &self.manual {
            None => clock::monotonic(),
            Some(manual) => manual.now(Clock::Monotonic),
        }
    }

    #[inline]
    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// The driver has gone.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Adds a window. The caller has made sure that the driver is there.
    #[inline]
    pub(crate) fn register(&self, span: Span, waker: Waker) -> Key {
        if span.earliest < self.due.get() {
            self.due.set(span.earliest);
        }
        let mut state = self.state.borrow_mut();
        state.wheel.insert(span.earliest, span.latest, waker)
    }

    /// Takes an entry out. The caller drops the waker.
    #[inline]
    pub(crate) fn cancel(&self, key: Key) -> Option<Waker> {
        self.state.borrow_mut().wheel.cancel(key)
    }

    /// Moves a pending entry; false when it is no longer pending.
    #[inline]
    pub(crate) fn reset(&self, key: Key, span: Span) -> bool {
        if span.earliest < self.due.get() {
            self.due.set(span.earliest);
        }
        self.state.borrow_mut().wheel.reset(key, span.earliest, span.latest)
    }

    /// When nothing with this `earliest` can be pending any more, the reading with which a turn has fired it,
    /// or that of a later turn.
    #[inline]
    pub(crate) fn passed_at(&self, earliest: u64) -> Option<u64> {
        (self.due.get() > earliest).then(|| self.turned.get())
    }

    /// True while the entry is pending; then it has `waker`.
    pub(crate) fn poll(&self, key: Key, waker: &Waker) -> bool {
        match self.state.borrow().wheel.get(key) {
            None => return false,
            Some(old) if old.will_wake(waker) => return true,
            Some(_) => {}
        }
        // A clone is user code, and so is the drop of the old one. Either may cancel this very entry.
        let fresh = waker.clone();
        let mut state = self.state.borrow_mut();
        let old = state.wheel.get_mut(key).map(|old| std::mem::replace(old, fresh));
        drop(state);
        old.is_some()
    }

    fn next_wake(&self) -> u64 {
        self.state.borrow_mut().wheel.next_wake().unwrap_or(NEVER)
    }

    fn turn(&self, now: u64, batch: &mut WakeBatch) -> Turn {
        let mut turn = Turn::default();
        let mut left = TURN_BUDGET;
        self.state.borrow_mut().counters.turns += 1;
        self.turned.set(now);
        loop {
            let more = {
                let mut state = self.state.borrow_mut();
                let State { wheel, lateness, .. } = &mut *state;
                let step = wheel.advance(now, BATCH, |fired| {
                    lateness.record(now, fired.earliest, fired.latest);
                    batch.push_fired(fired, now);
                });
                turn.fired += step.fired;
                self.due.set(wheel.first_due());
                step.more
            };
            batch.wake();
            left = left.saturating_sub(BATCH);
            if !more || left == 0 {
                turn.more = more;
                return turn;
            }
        }
    }
}

impl std::fmt::Debug for LocalHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalHandle")
            .field("manual_clock", &self.local.is_manual())
            .field("shut_down", &self.is_shut_down())
            .finish()
    }
}

/// The same driver, not merely an equal one.
impl PartialEq for LocalHandle {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.local, &other.local)
    }
}

impl Eq for LocalHandle {}

impl LocalHandle {
    /// The present on the driver's clock.
    pub fn now(&self) -> Instant {
        clock::instant_of(self.local.now())
    }

    /// True once the driver was dropped.
    pub fn is_shut_down(&self) -> bool {
        self.local.is_closed()
    }

    /// What the driver has done so far.
    pub fn metrics(&self) -> Metrics {
        let state = self.local.state.borrow();
        let mut m = state.counters.clone();
        m.pending = state.wheel.len();
        m.registered = state.wheel.inserted();
        m.fired = state.lateness.count();
        m.lateness = state.lateness.clone();
        m.resident_bytes = state.wheel.resident_bytes();
        m.memory_hand_backs = state.wheel.hand_backs();
        m
    }

    /// Gives memory that a burst of timers left behind back to the system; see
    /// [`Handle::reap`](crate::Handle::reap).
    pub fn reap(&self) {
        self.local.state.borrow_mut().wheel.reap();
    }
}

impl std::fmt::Debug for LocalDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalDriver").field("handle", &self.handle()).finish_non_exhaustive()
    }
}

impl LocalDriver {
    /// A driver on the monotonic clock, for this thread.
    ///
    /// # Errors
    /// [`BuildError`] when the process has no descriptor left.
    pub fn new() -> Result<LocalDriver, BuildError> {
        let (park, alarm) = super::auto()?;
        Ok(Self::open(None, park, alarm))
    }

    /// A driver whose time is moved by hand, for tests and simulations; see
    /// [`Driver::manual`](crate::Driver::manual).
    pub fn manual() -> (LocalDriver, ManualClock) {
        let clocks = Arc::new(ManualClocks::new());
        let park = Box::new(ScriptedPark(clocks.clone()));
        let alarm = ScriptedAlarm { clocks: clocks.clone(), clock: Clock::Monotonic };
        (Self::open(Some(clocks.clone()), park, Arc::new(alarm)), ManualClock::new(clocks))
    }

    fn open(
        manual: Option<Arc<ManualClocks>>,
        park: Box<dyn Park>,
        alarm: Arc<dyn Alarm>,
    ) -> LocalDriver {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| on_fork_in_child(forked));
        let state = State {
            wheel: Wheel::new(),
            lateness: Lateness::default(),
            counters: Metrics::default(),
        };
        LocalDriver {
            local: Rc::new(Local {
                state: RefCell::new(state),
                manual,
                closed: Cell::new(false),
                due: Cell::new(0),
                turned: Cell::new(0),
            }),
            park,
            bell: Arc::new(Bell::new(alarm.clone())),
            alarm,
            batch: WakeBatch::default(),
            set: NEVER,
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// A handle to make timers with.
    pub fn handle(&self) -> LocalHandle {
        LocalHandle { local: self.local.clone() }
    }

    /// The present on the driver's clock.
    pub fn now(&self) -> Instant {
        clock::instant_of(self.local.now())
    }

    /// When the driver must turn at the latest: the smallest `latest` of all pending windows, or an instant
    /// before it when windows were cancelled in a crowded slot. `None` when nothing forces a turn. No
    /// kernel call, and at most 64 entries of a slot are read.
    pub fn next_wake(&self) -> Option<Instant> {
        let at = self.local.next_wake();
        (at != NEVER).then(|| clock::instant_of(at))
    }

    /// The smallest `latest` of all pending windows, exactly; it may read many entries, for tests.
    pub fn next_wake_exact(&self) -> Option<Instant> {
        let exact = self.local.state.borrow_mut().wheel.next_wake_exact();
        exact.map(clock::instant_of)
    }

    /// The smallest `earliest` of all pending windows, exactly; it may read many entries, for tests.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.local.state.borrow().wheel.next_deadline().map(clock::instant_of)
    }

    /// Fires everything whose `earliest` has come, without waiting. No kernel call, but for one that takes
    /// the expiry of the [descriptor](LocalDriver::descriptor) when that was armed and its time has come.
    ///
    /// # Panics
    /// Goes on with the panic of a waker, after all the others have been called.
    pub fn turn(&mut self) -> Turn {
        let turn = self.fire();
        self.batch.rethrow();
        turn
    }

    /// Waits until a timer is due, or until about `max` (for ever without one), then fires everything whose
    /// `earliest` has come. Does not wait when something is due already. May return without having fired
    /// anything.
    ///
    /// # Panics
    /// Goes on with the panic of a waker, after all the others have been called.
    pub fn park(&mut self, max: Option<Duration>) -> Turn {
        let turn = self.wait_and_fire(max);
        self.batch.rethrow();
        turn
    }

    /// Runs a future to its end on this thread, which waits in the driver. The future's waker may be called
    /// from any thread.
    ///
    /// # Panics
    /// When the future panics, or a waker that a turn calls.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let waker = Waker::from(self.bell.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            // Until the future was woken, by such a turn or from outside.
            while !self.park(None).notified && !self.bell.take() {}
        }
    }

    /// A descriptor that becomes readable when the driver must turn, for a loop that waits for many things
    /// at once; `None` on a manual clock and where there is no timerfd. It is armed by
    /// [`arm`](LocalDriver::arm) only: call that before each wait, and [`turn`](LocalDriver::turn) after it.
    #[cfg(unix)]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.park.descriptor()
    }

    /// Arms the [descriptor](LocalDriver::descriptor) for the next wake: one kernel call when that has
    /// changed, none otherwise. False when something is due at once: turn, do not wait. (Also false in the
    /// child of a fork, whose descriptor is the parent's.)
    pub fn arm(&mut self) -> bool {
        let at = self.local.next_wake();
        if at <= self.local.now() || self.is_foreign() {
            return false;
        }
        self.set_alarm(at);
        true
    }

    fn set_alarm(&mut self, at: u64) {
        if at != self.set {
            self.set = at;
            if self.alarm.arm(at, false) == Armed::Timer {
                self.local.state.borrow_mut().counters.arm_calls += 1;
            }
        }
    }

    /// True in the child of a fork.
    fn is_foreign(&self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.forks
    }

    fn fire(&mut self) -> Turn {
        let now = self.local.now();
        if self.set <= now && !self.is_foreign() && self.alarm.take_expiry() != Expiry::NotYet {
            self.set = NEVER;
        }
        let turn = self.local.turn(now, &mut self.batch);
        self.local.state.borrow_mut().counters.waker_panics +=
            std::mem::take(&mut self.batch.panics);
        turn
    }

    fn wait_and_fire(&mut self, max: Option<Duration>) -> Turn {
        if self.is_foreign() {
            std::thread::sleep(Duration::from_millis(1));
            return Turn { notified: self.bell.take(), ..self.fire() };
        }
        if !self.bell.prepare() {
            return Turn { notified: true, ..self.fire() };
        }
        // Awake anyway: what is eligible needs no wakeup of its own.
        let early = self.fire();
        if early.fired > 0 || early.more {
            return Turn { notified: self.bell.finish(), ..early };
        }
        // A wake that comes due just here is armed in the past, which ends the wait at once.
        let at = self.local.next_wake();
        self.set_alarm(at);
        if self.park.wait(max, &|at| at).is_err() {
            // Cannot happen with descriptors of our own. Were it to, the driver would still work, a
            // millisecond at a time, instead of spinning.
            std::thread::sleep(Duration::from_millis(1));
        }
        let rung = self.bell.finish();
        let expired = self.set <= self.local.now();
        let turn = self.fire();
        let mut state = self.local.state.borrow_mut();
        let c = &mut state.counters;
        c.wakeups += 1;
        c.timer_wakeups += expired as u64;
        c.spurious += (turn.fired == 0 && !rung) as u64;
        c.coalesced += turn.fired.saturating_sub(expired as usize) as u64;
        Turn { notified: rung, ..turn }
    }
}

impl Drop for LocalDriver {
    fn drop(&mut self) {
        self.local.closed.set(true);
        // Out of the cell first: a waker may use it.
        let mut wheel = self.local.state.borrow_mut().wheel.restart();
        wheel.drain(|waker| self.batch.push(waker));
        self.batch.wake();
        // A panic of a waker has nowhere to go from a drop.
        self.batch.swallow();
    }
}
