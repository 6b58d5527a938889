//! Sleeps on the other clocks: time that counts suspensions, and the wall clock.

use super::Sleep;
use crate::clock::{BootInstant, Clock, system_reading, system_time};
use crate::driver::Handle;
use crate::primitive::Ordering;
use crate::tick::nanos;
use crate::window::Span;
use futures::future::FusedFuture;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// A sleep on the boottime clock, which counts also while the machine is suspended. Made by
/// [`sleep_boottime`] and its kin. After a resume it completes as soon as the machine runs; it does not
/// wake the machine.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct BootSleep(Sleep);

impl BootSleep {
    /// From when on it may complete.
    pub fn deadline(&self) -> BootInstant {
        BootInstant(self.0.span().earliest)
    }

    /// By when it should complete.
    pub fn latest(&self) -> BootInstant {
        BootInstant(self.0.span().latest)
    }

    /// Moves it to complete between `deadline` and `slack` after it.
    pub fn reset(&mut self, deadline: BootInstant, slack: Duration) {
        self.0.reset_span(Span::with_slack(deadline.0, nanos(slack)));
    }

    /// How long after its `earliest` it completed; `None` before.
    pub fn lateness(&self) -> Option<Duration> {
        self.0.lateness()
    }
}

impl Future for BootSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl FusedFuture for BootSleep {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

/// A sleep on the wall clock. Made by [`sleep_until_system`] and its kin. It follows the clock when that
/// is set: forward it may complete at once, back it waits longer.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SystemSleep(Sleep);

impl SystemSleep {
    /// From when on it may complete.
    pub fn deadline(&self) -> SystemTime {
        system_time(self.0.span().earliest)
    }

    /// By when it should complete.
    pub fn latest(&self) -> SystemTime {
        system_time(self.0.span().latest)
    }

    /// How long after its `earliest` it completed; `None` before.
    pub fn lateness(&self) -> Option<Duration> {
        self.0.lateness()
    }

    /// The same wait, but it also ends when the clock is set: for those who computed `deadline` from
    /// something else than the wall clock, and want to do so again.
    ///
    /// A change is noticed while the sleep is pending (`TFD_TIMER_CANCEL_ON_SET`, timerfd_create(2)); a
    /// clock that is merely slewed, as NTP does, is not set.
    pub fn or_clock_change(self) -> OrClockChange {
        OrClockChange { sleep: self, seen: None }
    }
}

impl Future for SystemSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl FusedFuture for SystemSleep {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

/// The wall clock was set before a wait on it was over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockChanged {}

impl fmt::Display for ClockChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wall clock was set during the wait")
    }
}

impl Error for ClockChanged {}

/// The future of [`SystemSleep::or_clock_change`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct OrClockChange {
    sleep: SystemSleep,
    /// The driver's life and its count of changes when the wait began.
    seen: Option<(u64, u64)>,
}

impl Future for OrClockChange {
    type Output = Result<(), ClockChanged>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if Pin::new(&mut self.sleep).poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        // After the poll: by now the sleep has settled with a driver.
        let Handle { core, life, .. } = self.sleep.0.handle();
        let now = (life, core.clock_changes.load(Ordering::Acquire));
        match self.seen {
            Some(seen) if seen.0 == life && seen != now => {
                self.seen = Some(now);
                Poll::Ready(Err(ClockChanged::default()))
            }
            _ => {
                self.seen = Some(now);
                Poll::Pending
            }
        }
    }
}

impl Handle {
    /// Completes between `min` and `max` from now on the boottime clock. See [`sleep_boottime`].
    pub fn sleep_boottime_range(&self, min: Duration, max: Duration) -> BootSleep {
        BootSleep(Sleep::range(self.on(Clock::Boottime), min, max))
    }

    /// Completes between `deadline` and `slack` after it. See [`sleep_boottime`].
    pub fn sleep_until_boottime(&self, deadline: BootInstant, slack: Duration) -> BootSleep {
        let span = Span::with_slack(deadline.0, nanos(slack));
        BootSleep(Sleep::spanning(self.on(Clock::Boottime), span))
    }

    /// Completes between `deadline` and `slack` after it, on the wall clock. See [`sleep_until_system`].
    pub fn sleep_until_system(&self, deadline: SystemTime, slack: Duration) -> SystemSleep {
        let span = Span::with_slack(system_reading(deadline), nanos(slack));
        SystemSleep(Sleep::spanning(self.on(Clock::Realtime), span))
    }
}

/// Completes `d` from now on the boottime clock, with no slack: a machine that is suspended meanwhile makes
/// it no later than its resume. See [`sleep`](crate::sleep) for everything else. A driver that was built
/// without this clock leaves the timer to the default driver.
pub fn sleep_boottime(d: Duration) -> BootSleep {
    Handle::current().sleep_boottime_range(d, d)
}

/// Completes between `min` and `max` from now on the boottime clock. See [`sleep_boottime`].
pub fn sleep_boottime_range(min: Duration, max: Duration) -> BootSleep {
    Handle::current().sleep_boottime_range(min, max)
}

/// Completes at `deadline` on the wall clock, with no slack; it follows the clock when that is set. Times
/// before 1970 are due at once, those after the year 2554 never come. See [`sleep`](crate::sleep) for
/// everything else. A driver that was built without this clock leaves the timer to the default driver.
pub fn sleep_until_system(deadline: SystemTime) -> SystemSleep {
    Handle::current().sleep_until_system(deadline, Duration::ZERO)
}
