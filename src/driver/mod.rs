//! Drivers: who owns the wheels, waits, and fires.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod` | [`Driver`] and its builder: the thread that waits |
//! | `external` | [`ExternalDriver`]: a driver as a descriptor in somebody else's loop |
//! | `local` | [`LocalDriver`]: a driver for one thread, without locks |
//! | `manual` | [`ManualClock`]: time moved by hand |
//! | `handle` | [`Handle`]: everybody else's way in |
//! | `default` | the process's default driver and its thread |
//! | `enter` | what each thread knows: its shard, the driver it entered |
//! | `core` | the shared control block, its life and death |
//! | `lane` | the shards, their published bounds, firing |
//! | `arming` | the protocol that sets the kernel timer |
//! | `firing` | the policies: where within the windows to wake |
//! | `batch` | wakers on their way out |

pub(crate) mod arming;
mod batch;
#[cfg(all(test, not(loom), target_os = "linux"))]
mod cases;
mod core;
mod default;
mod enter;
mod external;
mod firing;
mod handle;
mod lane;
mod local;
mod manual;
#[cfg(test)]
mod races;

pub use enter::EnterGuard;
pub use external::ExternalDriver;
pub use firing::Firing;
pub use handle::Handle;
pub use local::{LocalDriver, LocalHandle};
pub use manual::ManualClock;

pub(crate) use arming::NEAR;
pub(crate) use core::ClockLane;
pub(crate) use default::{ensure_driven, handle as default_handle};
pub(crate) use enter::{is_known_far, may_be_ready, seen_far, shard, was_pending};
pub(crate) use lane::Polled;
use lane::Turned;
pub(crate) use local::Local;

use crate::clock::{self, Clock};
use crate::error::BuildError;
use crate::park::scripted::{ManualClocks, ScriptedAlarm, ScriptedPark};
use crate::park::{self, Alarm, Bell, Clocks, Expiry, Halves, Park};
use crate::primitive::{AtomicU64, Ordering::Relaxed};
use crate::tick::NEVER;
use arming::Host;
use batch::WakeBatch;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How a driver's thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parker {
    /// The best the system has: timerfd on Linux, else the portable one.
    #[default]
    Auto,
    /// A timerfd in epoll (Linux): any thread moves the wake without waking the driver's.
    TimerFd,
    /// The timeout of an epoll_pwait2 with the thread's timer slack set to the windows (Linux 5.11; before
    /// that, a timerfd): the kernel may end the wait together with other timers of the processor, other
    /// programs' included. An insert before the armed time wakes the thread. For windows that are
    /// narrower than what the kernel adds to a timeout by itself (a thousandth of it, a two-hundredth when nice)
    /// it waits for a timerfd.
    Pwait2,
    /// A futex with the thread's timer slack set to the windows (Linux): needs no descriptor, so
    /// it cannot fail to be built. An insert before the armed time wakes the thread, and a step of the
    /// wall clock is noticed within a second.
    Futex,
    /// A mio poll with a timeout: portable, to the millisecond, and an earlier timer wakes the thread.
    Mio,
}

/// Names the parker of drivers that were not built with one: "timerfd", "pwait2", "futex", "mio" or "auto".
const PARKER_VARIABLE: &str = "SLACKWHEEL_PARKER";

fn parker_of_environment() -> Option<String> {
    let name = std::env::var_os(PARKER_VARIABLE)?;
    Some(name.to_string_lossy().into_owned())
}

fn named(name: &str) -> Result<Halves, BuildError> {
    halves(match name {
        "" | "auto" => Parker::Auto,
        "timerfd" => Parker::TimerFd,
        "pwait2" => Parker::Pwait2,
        "futex" => Parker::Futex,
        "mio" => Parker::Mio,
        other => {
            let unknown = format!("{PARKER_VARIABLE} is {other:?}, which is no parker");
            let unknown = io::Error::new(io::ErrorKind::InvalidInput, unknown);
            return Err(BuildError::new("the parker the environment asks for")(unknown));
        }
    })
}

#[cfg(target_os = "linux")]
fn halves(parker: Parker) -> Result<Halves, BuildError> {
    match parker {
        Parker::Auto => auto(),
        Parker::TimerFd => park::timerfd::build(),
        Parker::Pwait2 => park::pwait2::build(),
        Parker::Futex => Ok(park::futex::build()),
        Parker::Mio => park::mio::build(),
    }
}

#[cfg(not(target_os = "linux"))]
fn halves(parker: Parker) -> Result<Halves, BuildError> {
    match parker {
        Parker::Auto | Parker::Mio => park::mio::build(),
        _ => Err(BuildError::new("a parker of Linux")(io::ErrorKind::Unsupported.into())),
    }
}

#[cfg(target_os = "linux")]
fn auto() -> Result<Halves, BuildError> {
    park::timerfd::build()
}

#[cfg(not(target_os = "linux"))]
fn auto() -> Result<Halves, BuildError> {
    park::mio::build()
}

/// The best that can be had: the default driver has nobody to give an error to.
fn fallback() -> Result<Halves, BuildError> {
    #[cfg(target_os = "linux")]
    return Ok(auto().unwrap_or_else(|_| park::futex::build()));
    #[cfg(not(target_os = "linux"))]
    auto()
}

/// Builds a [`Driver`] or an [`ExternalDriver`].
#[derive(Clone, Debug)]
pub struct DriverBuilder {
    parker: Parker,
    clocks: Clocks,
    firing: Firing,
}

impl Default for DriverBuilder {
    fn default() -> Self {
        let clocks = Clocks::default().with(Clock::Monotonic);
        DriverBuilder { parker: Parker::default(), clocks, firing: Firing::default() }
    }
}

impl DriverBuilder {
    /// How the driver's thread waits.
    ///
    /// For experiments, the environment variable `SLACKWHEEL_PARKER` (`timerfd`, `pwait2`, `futex`, `mio`,
    /// `auto`) chooses for all drivers that were not told, the default driver included. It is read when a
    /// driver is built.
    pub fn parker(mut self, parker: Parker) -> Self {
        self.parker = parker;
        self
    }

    /// Where within the windows the driver wakes.
    pub fn firing(mut self, firing: Firing) -> Self {
        self.firing = firing;
        self
    }

    /// A driver whose time is moved by hand; see [`Driver::manual`]. It has all clocks and the scripted
    /// parker.
    pub fn manual(self) -> (Driver, ManualClock) {
        Driver::on_manual_clock(self.firing)
    }

    /// Adds a clock. Every driver has the monotonic one; the default driver has all. Timers of a clock
    /// that a driver was built without belong to the default driver.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clocks = self.clocks.with(clock);
        self
    }

    /// A driver for a loop of its own. The kernel timers of its further clocks are opened when they are
    /// first used.
    ///
    /// # Errors
    /// [`BuildError`] when the process has no descriptor left, when the parker does not exist on this
    /// system, or when the environment asks for one that does not exist. Nothing is left behind.
    pub fn build(self) -> Result<Driver, BuildError> {
        let (park, alarm) = match self.parker {
            Parker::Auto => parker_of_environment().map_or_else(auto, |name| named(&name)),
            parker => halves(parker),
        }?;
        let (core, life) = core::Core::claim(None, self.clocks, self.firing);
        core.start_driving();
        Ok(Driver::open(Handle::new(core, life), park, alarm))
    }

    /// A driver for somebody else's loop: it never waits, it is a descriptor to wait for.
    ///
    /// # Errors
    /// [`BuildError`] when the process has no descriptor left.
    #[cfg(target_os = "linux")]
    pub fn external(self) -> Result<ExternalDriver, BuildError> {
        ExternalDriver::new(self.clocks, self.firing)
    }
}

/// A driver and the thread that waits for it.
///
/// It owns its timers' wheels. Call [`park`](Driver::park) in a loop, or [`block_on`](Driver::block_on);
/// between parks the thread is awake, and timers that other threads create cost no kernel call, since
/// the next park looks at them. A driver that is neither parked nor turned fires nothing.
///
/// Dropping it ends its life: pending timers are woken once and register with the default driver at
/// their next poll.
///
/// ```
/// use slackwheel::{Driver, sleep_range};
/// use std::time::Duration;
///
/// let mut driver = Driver::new()?;
/// // Made inside of `block_on`, the sleep belongs to this driver.
/// driver.block_on(async { sleep_range(Duration::from_millis(1), Duration::from_millis(5)).await });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
pub struct Driver {
    handle: Handle,
    park: Box<dyn Park>,
    bell: Arc<Bell>,
    batch: WakeBatch,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// What one [`Driver::turn`] or [`Driver::park`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Timers fired.
    pub fired: usize,
    /// True when the turn's budget (131,072 timers) ran out: more is due, turn again.
    pub more: bool,
    /// True when a park was ended by [`Handle::unpark`], or by a wake of the future in `block_on`.
    pub notified: bool,
}

impl Driver {
    /// A driver on the monotonic clock, waiting in the best way the system has.
    ///
    /// # Errors
    /// [`BuildError`] when the process has no descriptor left.
    pub fn new() -> Result<Driver, BuildError> {
        Driver::builder().build()
    }

    /// Chooses how the driver waits.
    pub fn builder() -> DriverBuilder {
        DriverBuilder::default()
    }

    /// A driver whose time is moved by hand, for tests and simulations. Everything above the parker is
    /// the code of the real one.
    ///
    /// ```
    /// use slackwheel::Driver;
    /// use std::time::Duration;
    ///
    /// let (mut driver, clock) = Driver::manual();
    /// let start = driver.now();
    /// clock.set_auto_advance(true);
    /// driver.block_on(driver.handle().sleep(Duration::from_secs(3600)));
    /// assert_eq!(driver.now() - start, Duration::from_secs(3600));
    /// ```
    pub fn manual() -> (Driver, ManualClock) {
        Driver::builder().manual()
    }

    fn on_manual_clock(firing: Firing) -> (Driver, ManualClock) {
        let clocks = Arc::new(ManualClocks::new());
        let (core, life) = core::Core::claim(Some(clocks.clone()), Clocks::ALL, firing);
        core.start_driving();
        let park = Box::new(ScriptedPark(clocks.clone()));
        let alarm = ScriptedAlarm { clocks: clocks.clone(), clock: Clock::Monotonic };
        let driver = Driver::open(Handle::new(core, life), park, Arc::new(alarm));
        (driver, ManualClock::new(clocks))
    }

    fn open(handle: Handle, park: Box<dyn Park>, alarm: Arc<dyn Alarm>) -> Driver {
        let bell = Arc::new(Bell::new(alarm.clone()));
        handle.core.equip(&bell, &alarm, Host::Parks);
        Driver { handle, park, bell, batch: WakeBatch::default() }
    }

    /// The thread's half of the default driver.
    fn adopt(handle: Handle) -> Result<Driver, BuildError> {
        let asked = parker_of_environment().and_then(|name| named(&name).ok());
        let (park, alarm) = asked.map_or_else(fallback, Ok)?;
        Ok(Driver::open(handle, park, alarm))
    }

    /// A handle for other threads and for futures.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The present on the driver's clock.
    pub fn now(&self) -> Instant {
        self.handle.now()
    }

    /// While the guard lives, futures made on this thread belong to this driver.
    pub fn enter(&self) -> EnterGuard {
        self.handle.enter()
    }

    /// When the driver will wake, in the driver's time: with the policy `Latest` the smallest `latest` of all
    /// pending windows, or an instant before it when windows were cancelled in a crowded slot. `None`
    /// when nothing forces a turn.
    pub fn next_wake(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_wake())
    }

    /// The smallest `latest` of all pending windows, exactly. It may read many entries under their locks:
    /// it is for tests.
    pub fn next_wake_exact(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_wake_exact())
    }

    /// The smallest `earliest` of all pending windows, exactly. It may read many entries under their
    /// locks: it is for tests.
    pub fn next_deadline(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_deadline().unwrap_or(NEVER))
    }

    /// Fires everything whose `earliest` has come, without waiting.
    ///
    /// # Panics
    /// Goes on with the panic of a waker, after all the others have been called.
    pub fn turn(&mut self) -> Turn {
        let turn = self.fire();
        self.batch.rethrow();
        turn
    }

    /// Waits until a timer is due, until [`Handle::unpark`], or until about `max` (for ever without
    /// one), then fires everything whose `earliest` has come. Does not wait when something is due
    /// already. May return without having fired anything.
    ///
    /// Returns at once when the driver's life has ended (after a fork, in the child).
    ///
    /// # Panics
    /// Goes on with the panic of a waker, after all the others have been called.
    pub fn park(&mut self, max: Option<Duration>) -> Turn {
        let turn = self.wait_and_fire(max);
        self.batch.rethrow();
        turn
    }

    pub(crate) fn park_and_swallow(&mut self) {
        self.wait_and_fire(None);
        self.batch.swallow();
    }

    /// Runs a future to its end on this thread. The thread itself waits in the driver: no other thread
    /// takes part in a timer's wakeup. Futures made inside belong to this driver.
    ///
    /// # Panics
    /// When the future panics, or a waker that a turn calls.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let _entered = self.enter();
        let waker = Waker::from(self.bell.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            loop {
                if self.handle.is_shut_down() {
                    // The child of a fork: its timers are with its own default driver, which wakes
                    // through the bell; this thread cannot wait in the parent's descriptors.
                    std::thread::sleep(Duration::from_millis(1));
                    break;
                }
                let turn = self.park(None);
                // The future was woken by this very turn, or from outside.
                if turn.notified || self.bell.take() {
                    break;
                }
            }
        }
    }

    fn fire(&mut self) -> Turn {
        let core = self.handle.core;
        let turned = fire(self.handle, &mut self.batch);
        let c = &core.counters;
        add(&c.turns, 1);
        add(&c.waker_panics, std::mem::take(&mut self.batch.panics));
        Turn { fired: turned.fired, more: turned.more, notified: false }
    }

    /// The wait itself: whose time may have come.
    fn wait(&mut self, max: Option<Duration>) -> Clocks {
        let lane = &self.handle.core.lane;
        loop {
            let from = |at| lane.serves_from(at);
            let maybe = self.park.wait(max, &from).unwrap_or_else(|_| {
                // Cannot happen with descriptors of our own. Were it to, the driver would still work, a
                // millisecond at a time, instead of spinning.
                std::thread::sleep(Duration::from_millis(1));
                Clocks::ALL
            });
            // A wait that a timer ended just when it was notified leaves the ring to the next one, where
            // it means nothing; nor does a signal. Both would be spurious wakeups.
            let nothing = maybe == Clocks::default() && !self.bell.is_notified();
            if !nothing || max.is_some() || self.handle.is_shut_down() {
                return maybe;
            }
        }
    }

    fn wait_and_fire(&mut self, max: Option<Duration>) -> Turn {
        let core = self.handle.core;
        if self.handle.is_shut_down() {
            return Turn::default();
        }
        let notified = Turn { notified: true, ..Turn::default() };
        if !self.bell.prepare() {
            return Turn { notified: true, ..self.fire() };
        }
        // Awake anyway: what is eligible needs no wakeup of its own.
        let early = self.fire();
        if early.fired > 0 || early.more {
            return Turn { notified: self.bell.finish(), ..early };
        }
        for (clock, lane) in core.lanes() {
            let now = self.handle.on(clock).reading();
            if !lane.arming.park(now, lane) {
                let rung = self.bell.finish();
                return Turn { notified: rung, ..self.fire() };
            }
        }
        let maybe = self.wait(max);
        let rung = self.bell.finish();
        if self.handle.is_shut_down() {
            return notified;
        }
        let mut expired = false;
        for (clock, lane) in core.lanes() {
            let expiry = lane.arming.awake(maybe.has(clock));
            expired |= expiry == Expiry::Expired;
            if expiry == Expiry::ClockSet {
                clock_set(self.handle, lane, &mut self.batch);
            }
        }
        let turn = self.fire();
        let c = &core.counters;
        add(&c.wakeups, 1);
        add(&c.timer_wakeups, expired as u64);
        add(&c.spurious, (turn.fired == 0 && !rung) as u64);
        add(&c.coalesced, turn.fired.saturating_sub(expired as usize) as u64);
        Turn { notified: rung, ..turn }
    }
}

/// Fires what is due on every clock that is in use.
fn fire(handle: Handle, batch: &mut WakeBatch) -> Turned {
    let mut all = Turned::default();
    for (clock, lane) in handle.core.lanes() {
        // Reading a clock is the dearest part of an idle turn.
        if clock == Clock::Monotonic || lane.is_used() {
            let turned = lane.turn(handle.on(clock).reading(), batch);
            all.fired += turned.fired;
            all.more |= turned.more;
        }
    }
    all
}

/// The wall clock was set: whoever waits for it looks again.
#[cold]
fn clock_set(handle: Handle, lane: &ClockLane, batch: &mut WakeBatch) {
    let changes = &handle.core.clock_changes;
    changes.store(changes.load(Relaxed) + 1, crate::primitive::Ordering::Release);
    lane.judge_again(batch);
}

impl Drop for Driver {
    fn drop(&mut self) {
        end(self.handle, &mut self.batch);
    }
}

/// Ends a driver's life and wakes what was pending, once.
fn end(handle: Handle, batch: &mut WakeBatch) {
    handle.core.release(handle.life, |waker| batch.push(waker));
    batch.wake();
    // A panic of a waker has nowhere to go from a drop.
    batch.swallow();
}

/// The earliest of what `of` says of each clock's lane, on the monotonic clock.
#[inline]
fn next_wake(handle: Handle, of: impl Fn(&ClockLane) -> u64) -> Option<Instant> {
    let mut first = of(&handle.core.lane);
    for clock in [Clock::Boottime, Clock::Realtime] {
        let at = handle.core.lane_of(clock).map_or(NEVER, &of);
        if at != NEVER {
            let ahead = at.saturating_sub(handle.on(clock).reading());
            first = first.min(handle.reading().saturating_add(ahead));
        }
    }
    (first != NEVER).then(|| clock::instant_of(first))
}

/// Adds to a counter that one thread writes.
fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.store(counter.load(Relaxed) + n, Relaxed);
    }
}
