//! Waiting in epoll for a timerfd and an eventfd.
//!
//! The kernel timer belongs to no thread: whoever moves the wake earlier sets it from its own thread,
//! one system call, and the waiting thread sleeps on. A timerfd ignores the thread's timer slack, so
//! all coalescing is the wheel's. Needs Linux 2.6.27.

use super::{Alarm, Armed, Halves, Park};
use crate::error::BuildError;
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use crate::sys::time::ClockId;
use crate::sys::timerfd::{Expiry, TimerFd};
use crate::tick::NEVER;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

const TIMER: u32 = 0;
const RING: u32 = 1;

/// The timer alone, for a loop of the user's own that polls its descriptor.
pub(crate) struct TimerAlarm(TimerFd);

impl TimerAlarm {
    pub(crate) fn new() -> Result<Self, BuildError> {
        TimerFd::new(ClockId::Monotonic).map(TimerAlarm).map_err(BuildError::new("a timerfd"))
    }

    fn set(&self, at: u64) -> Armed {
        // Fails only for arguments that cannot occur: the descriptor is ours and the time is valid.
        let set = self.0.set((at != NEVER).then_some(at));
        debug_assert!(set.is_ok(), "{set:?}");
        Armed::Timer
    }

    fn expired(&self) -> bool {
        self.0.take() == Expiry::Expired
    }
}

impl Alarm for TimerAlarm {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        self.set(at)
    }

    fn take_expiry(&self) -> bool {
        self.expired()
    }

    fn ring(&self) {
        // The host waits by its own means and wakes by its own means.
    }
}

impl AsFd for TimerAlarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

struct Shared {
    timer: TimerAlarm,
    bell: EventFd,
}

impl Alarm for Shared {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        self.timer.set(at)
    }

    fn take_expiry(&self) -> bool {
        self.timer.expired()
    }

    fn ring(&self) {
        self.bell.ring();
    }
}

struct TimerFdPark {
    epoll: Epoll,
    shared: Arc<Shared>,
}

impl Park for TimerFdPark {
    fn wait(&mut self, max: Option<Duration>) -> io::Result<bool> {
        let ready = self.epoll.wait(max)?;
        if ready.has(RING) {
            self.shared.bell.clear();
        }
        Ok(ready.has(TIMER))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

/// A parker.
pub(crate) fn build() -> Result<Halves, BuildError> {
    let epoll = Epoll::new().map_err(BuildError::new("an epoll descriptor"))?;
    let timer = TimerAlarm::new()?;
    let bell = EventFd::new().map_err(BuildError::new("an eventfd"))?;
    epoll
        .add(timer.as_fd(), TIMER)
        .and_then(|()| epoll.add(bell.as_fd(), RING))
        .map_err(BuildError::new("an epoll registration"))?;
    let shared = Arc::new(Shared { timer, bell });
    Ok((Box::new(TimerFdPark { epoll, shared: shared.clone() }), shared))
}
