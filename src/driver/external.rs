//! A driver as a descriptor in somebody else's loop.

#![cfg(target_os = "linux")]

use super::arming::Host;
use super::batch::WakeBatch;
use super::{
    EnterGuard, Firing, Handle, ManualClock, Turn, add, clock_set, core::Core, end, fire, next_wake,
};
use crate::clock::Clock;
use crate::error::BuildError;
use crate::park::scripted::{ManualClocks, ScriptedAlarm};
use crate::park::timerfd::{self, TimerAlarm};
use crate::park::{Alarm, Bell, Clocks, Expiry};
use crate::tick::NEVER;
use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// A driver without a wait of its own: a timerfd (with several clocks an epoll descriptor) to poll for, and [`turn`](ExternalDriver::turn) to call
/// when it is readable.
///
/// The descriptor is always armed for the smallest `latest` of all pending windows, whichever thread
/// made them, and every turn ends armed; so both level- and edge-triggered loops work with a wait
/// without timeout. Turning at other times (whenever the loop is awake anyway) is welcome: it fires what
/// is eligible and saves wakeups.
///
/// ```
/// use slackwheel::Driver;
/// use mio::{Events, Interest, Poll, Token};
/// use std::time::Duration;
///
/// let mut poll = Poll::new()?;
/// let mut timers = Driver::builder().external()?;
/// poll.registry().register(&mut timers, Token(0), Interest::READABLE)?;
///
/// let mut events = Events::with_capacity(8);
/// let sleep = timers.handle().sleep(Duration::from_millis(2));
/// let task = std::pin::pin!(sleep);
/// # let mut task = task;
/// # let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// // Your executor polls its tasks, then waits, then turns.
/// # use std::future::Future;
/// while task.as_mut().poll(&mut cx).is_pending() {
///     poll.poll(&mut events, None)?;
///     timers.turn();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExternalDriver {
    handle: Handle,
    timer: Arc<TimerAlarm>,
    /// There are clocks besides the monotonic one: the descriptor is that of an epoll.
    several: bool,
    batch: WakeBatch,
}

impl std::fmt::Debug for ExternalDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalDriver").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl ExternalDriver {
    pub(super) fn new(clocks: Clocks, firing: Firing) -> Result<Self, BuildError> {
        let timer = timerfd::external()?;
        let (core, life) = Core::claim(None, clocks, firing);
        let several = clocks != Clocks::default().with(Clock::Monotonic);
        Ok(Self::open(core, life, timer.clone(), timer, several))
    }

    /// The same on a clock moved by hand. Its descriptor never becomes readable: what would be armed is
    /// [`ManualClock::armed`].
    ///
    /// # Errors
    /// [`BuildError`] when the process has no descriptor left.
    pub fn manual() -> Result<(ExternalDriver, ManualClock), BuildError> {
        let timer = timerfd::external()?;
        let clocks = Arc::new(ManualClocks::new());
        let (core, life) = Core::claim(Some(clocks.clone()), Clocks::ALL, Firing::Latest);
        let alarm = ScriptedAlarm { clocks: clocks.clone(), clock: Clock::Monotonic };
        let driver = Self::open(core, life, Arc::new(alarm), timer, false);
        Ok((driver, ManualClock::new(clocks)))
    }

    pub(super) fn open(
        core: &'static Core,
        life: u64,
        alarm: Arc<dyn Alarm>,
        timer: Arc<TimerAlarm>,
        several: bool,
    ) -> Self {
        core.start_driving();
        core.equip(&Arc::new(Bell::new(alarm.clone())), &alarm, Host::Polls);
        let handle = Handle::new(core, life);
        ExternalDriver { handle, timer, several, batch: WakeBatch::default() }
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

    /// When the driver must turn at the latest; see [`Driver::next_wake`](super::Driver::next_wake).
    /// Nanosecond resolution: round up, not down, where the loop's wait is coarser.
    pub fn next_wake(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_wake())
    }

    /// The smallest `latest` of all pending windows, exactly; for tests.
    pub fn next_wake_exact(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_wake_exact())
    }

    /// The smallest `earliest` of all pending windows, exactly; for tests.
    pub fn next_deadline(&self) -> Option<Instant> {
        next_wake(self.handle, |lane| lane.next_deadline().unwrap_or(NEVER))
    }

    /// Reads the descriptor, then the clock, fires everything whose `earliest` has come, and arms the
    /// descriptor for the next wake. Costs no kernel call but the read when nothing has changed.
    ///
    /// # Panics
    /// Goes on with the panic of a waker, after all the others have been called.
    pub fn turn(&mut self) -> Turn {
        if self.handle.is_shut_down() {
            return Turn::default();
        }
        let core = self.handle.core;
        let mut expired = false;
        for (_, lane) in core.lanes() {
            let expiry = lane.arming.polled();
            expired |= expiry != Expiry::NotYet;
            if expiry == Expiry::ClockSet {
                clock_set(self.handle, lane, &mut self.batch);
            }
        }
        let turned = fire(self.handle, &mut self.batch);
        for (_, lane) in core.lanes() {
            lane.arming.rearm(lane);
        }
        let c = &core.counters;
        add(&c.turns, 1);
        add(&c.waker_panics, std::mem::take(&mut self.batch.panics));
        add(&c.wakeups, expired as u64);
        add(&c.timer_wakeups, expired as u64);
        add(&c.spurious, (expired && turned.fired == 0) as u64);
        add(&c.coalesced, turned.fired.saturating_sub(expired as usize) as u64);
        self.batch.rethrow();
        Turn { fired: turned.fired, more: turned.more, notified: false }
    }

    /// True when nothing is pending: only registered timers count, not futures that merely exist.
    pub fn is_idle(&self) -> bool {
        self.handle.core.metrics().pending == 0
    }
}

impl Drop for ExternalDriver {
    fn drop(&mut self) {
        end(self.handle, &mut self.batch);
    }
}

impl AsFd for ExternalDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.several { self.timer.all() } else { self.timer.own() }
    }
}

impl Source for ExternalDriver {
    fn register(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).register(r, token, interests)
    }

    fn reregister(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).reregister(r, token, interests)
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).deregister(r)
    }
}
