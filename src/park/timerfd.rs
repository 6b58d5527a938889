//! Waiting in epoll for a timerfd a clock and an eventfd.
//!
//! A kernel timer belongs to no thread: whoever moves the wake earlier sets it from its own thread, one
//! system call, and the waiting thread sleeps on. A timerfd ignores the thread's timer slack, so all
//! coalescing is the wheel's. Needs Linux 2.6.27, and 3.15 for `CLOCK_BOOTTIME`.

use super::{Alarm, Armed, Clocks, Expiry, Halves, Park};
use crate::clock::Clock;
use crate::error::BuildError;
use crate::sys::epoll::{Epoll, Ready};
use crate::sys::eventfd::EventFd;
use crate::sys::timerfd::{self, TimerFd};
use crate::tick::NEVER;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The token of the eventfd; those of the timers are their clocks.
pub(super) const RING: u32 = 8;

/// What all alarms of one parker share.
pub(super) struct Shared {
    epoll: Epoll,
    /// `None` for a loop of the user's own, which waits and wakes by its own means.
    bell: Option<EventFd>,
}

impl Shared {
    /// Waits for any of the descriptors. Where epoll_pwait2 is missing, `max` rounds up to
    /// milliseconds.
    pub(super) fn wait(&self, max: Option<Duration>) -> io::Result<Ready> {
        self.epoll.wait(max)
    }

    /// Whether `max` counts in nanoseconds.
    pub(super) fn has_fine_timeouts(&self) -> bool {
        self.epoll.has_fine_timeouts()
    }

    /// Takes a ring.
    pub(super) fn hush(&self) {
        if let Some(bell) = &self.bell {
            bell.clear();
        }
    }
}

/// One clock's timer.
pub(crate) struct TimerAlarm {
    timer: TimerFd,
    clock: Clock,
    shared: Arc<Shared>,
}

impl TimerAlarm {
    pub(super) fn new(clock: Clock, shared: Arc<Shared>) -> io::Result<Self> {
        let timer = TimerFd::new(clock.id())?;
        shared.epoll.add(timer.as_fd(), clock as u32)?;
        Ok(TimerAlarm { timer, clock, shared })
    }

    /// The descriptor that becomes readable when any of the parker's timers expires.
    pub(crate) fn all(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }

    /// This timer's own descriptor.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl Alarm for TimerAlarm {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        // Fails only for arguments that cannot occur: the descriptor is ours and the time is valid.
        let set = self.timer.set((at != NEVER).then_some(at));
        debug_assert!(set.is_ok(), "{set:?}");
        Armed::Timer
    }

    fn take_expiry(&self) -> Expiry {
        match self.timer.take() {
            timerfd::Expiry::NotYet => Expiry::NotYet,
            timerfd::Expiry::Expired => Expiry::Expired,
            timerfd::Expiry::ClockSet => Expiry::ClockSet,
        }
    }

    fn has_come(&self, at: u64) -> bool {
        at <= self.clock.reading()
    }

    fn ring(&self) {
        if let Some(bell) = &self.shared.bell {
            bell.ring();
        }
    }

    fn open(&self, clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        Ok(Arc::new(TimerAlarm::new(clock, self.shared.clone())?))
    }
}

struct TimerFdPark(Arc<Shared>);

impl Park for TimerFdPark {
    fn wait(&mut self, max: Option<Duration>, _from: &dyn Fn(u64) -> u64) -> io::Result<Clocks> {
        let ready = self.0.wait(max)?;
        if ready.has(RING) {
            self.0.hush();
        }
        let expired = |c: &Clock| ready.has(*c as u32);
        Ok(Clock::ALL.into_iter().filter(expired).fold(Clocks::default(), Clocks::with))
    }
}

/// An epoll with a bell in it and no timer yet.
pub(super) fn shared() -> Result<Arc<Shared>, BuildError> {
    let bell = EventFd::new().map_err(BuildError::new("an eventfd"))?;
    let epoll = Epoll::new().map_err(BuildError::new("an epoll descriptor"))?;
    epoll.add(bell.as_fd(), RING).map_err(BuildError::new("an epoll registration"))?;
    Ok(Arc::new(Shared { epoll, bell: Some(bell) }))
}

/// A parker.
pub(crate) fn build() -> Result<Halves, BuildError> {
    let shared = shared()?;
    let alarm = TimerAlarm::new(Clock::Monotonic, shared.clone());
    let alarm = alarm.map_err(BuildError::new("a timerfd"))?;
    Ok((Box::new(TimerFdPark(shared)), Arc::new(alarm)))
}

/// A timer for a loop of the user's own.
pub(crate) fn external() -> Result<Arc<TimerAlarm>, BuildError> {
    let epoll = Epoll::new().map_err(BuildError::new("an epoll descriptor"))?;
    let shared = Arc::new(Shared { epoll, bell: None });
    let alarm = TimerAlarm::new(Clock::Monotonic, shared);
    Ok(Arc::new(alarm.map_err(BuildError::new("a timerfd"))?))
}
