//! Futures: sleeps, timeouts, intervals, delay queues.

mod clocks;
mod delay_queue;
mod interval;
mod local;
mod sleep;
mod timeout;

pub use clocks::{
    BootSleep, ClockChanged, OrClockChange, SystemSleep, sleep_boottime, sleep_boottime_range,
    sleep_until_system,
};
pub use delay_queue::{DelayQueue, Expired, QueueKey};
pub use interval::{Interval, MissedTicks};
pub use local::{LocalSleep, LocalTimeout};
pub use sleep::Sleep;
pub use timeout::Timeout;

use crate::driver::Handle;
use crate::error::ZeroPeriod;
use crate::window::Window;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

impl Handle {
    /// Completes `d` from now, with the default slack (none unless set). See
    /// [`sleep`](crate::sleep).
    #[inline]
    pub fn sleep(&self, d: Duration) -> Sleep {
        Sleep::plain(*self, d)
    }

    /// Completes at `deadline`, with the default slack (none unless set). See
    /// [`sleep_until`](crate::sleep_until).
    #[inline]
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::plain_until(*self, deadline)
    }

    /// Completes between `min` and `max` from now. See [`sleep_range`](crate::sleep_range).
    #[inline]
    pub fn sleep_range(&self, min: Duration, max: Duration) -> Sleep {
        Sleep::range(*self, min, max)
    }

    /// Completes within `window`. See [`sleep_window`](crate::sleep_window).
    #[inline]
    pub fn sleep_window(&self, window: Window) -> Sleep {
        Sleep::window(*self, window)
    }

    /// A sleep that never completes, until it is reset. It holds no timer.
    pub fn never(&self) -> Sleep {
        Sleep::never(*self)
    }

    /// Gives `future` at most `d`. See [`timeout`](crate::timeout).
    #[inline]
    pub fn timeout<F: IntoFuture>(&self, d: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout::new(future.into_future(), self.sleep(d))
    }

    /// Gives `future` at least `min` and about at most `max`. See [`timeout_range`](crate::timeout_range).
    pub fn timeout_range<F: IntoFuture>(
        &self,
        min: Duration,
        max: Duration,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout::new(future.into_future(), self.sleep_range(min, max))
    }

    /// Gives `future` until `deadline`.
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> Timeout<F::IntoFuture> {
        Timeout::new(future.into_future(), self.sleep_until(deadline))
    }

    /// Ticks at once, then every `period`. See [`interval`](crate::interval).
    pub fn interval(&self, period: Duration) -> Interval {
        Interval::new(*self, self.reading(), period)
    }

    /// Ticks at `start`, then every `period`.
    pub fn interval_at(&self, start: Instant, period: Duration) -> Interval {
        Interval::new(*self, crate::clock::reading_of(start), period)
    }

    /// As [`interval`](Handle::interval), but refuses a period of zero.
    ///
    /// # Errors
    /// [`ZeroPeriod`] when `period` is zero.
    pub fn try_interval(&self, period: Duration) -> Result<Interval, ZeroPeriod> {
        if period.is_zero() { Err(ZeroPeriod::default()) } else { Ok(self.interval(period)) }
    }
}

/// Completes `d` from now (from this call, not from the first poll), with no slack, or with the
/// [`default_slack`](crate::tunables::default_slack) once that is set.
///
/// On the monotonic clock, which stands still while the machine is suspended. Never early, to the
/// nanosecond; late only by scheduling. A `d` past the clock's end (584 years) never completes. Works on
/// any executor: the future belongs to the driver this thread has [entered](crate::Handle::enter), else to
/// the process's default driver.
///
/// # Cancel safety
/// Dropping it frees its timer at once; a waker that was already collected may still be called once.
///
/// ```
/// # let mut driver = slackwheel::Driver::new()?;
/// # driver.block_on(async {
/// slackwheel::sleep(std::time::Duration::from_millis(1)).await;
/// # });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
#[inline]
pub fn sleep(d: Duration) -> Sleep {
    Handle::current().sleep(d)
}

/// Completes at `deadline`, with no slack, or with the
/// [`default_slack`](crate::tunables::default_slack) once that is set. A deadline in the past is due at
/// once. See [`sleep`] for clock, promises and cancel safety.
#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    Handle::current().sleep_until(deadline)
}

/// Completes at some instant between `min` and `max` from now: not a random one, but the one that costs
/// the fewest wakeups. (For jitter, add a random duration to a `sleep`.)
///
/// Never before `min`, and after `max` only by scheduling delay. The wider the range, the more timers
/// share one wakeup. A `max` below `min` acts as `min`. See [`sleep`] for clock and cancel safety.
///
/// ```
/// use std::time::{Duration, Instant};
/// # let mut driver = slackwheel::Driver::new()?;
/// # driver.block_on(async {
/// let start = Instant::now();
/// slackwheel::sleep_range(Duration::from_millis(2), Duration::from_millis(20)).await;
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// # });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
#[inline]
pub fn sleep_range(min: Duration, max: Duration) -> Sleep {
    Handle::current().sleep_range(min, max)
}

/// Completes within `window`. See [`sleep_range`] and [`sleep`].
#[inline]
pub fn sleep_window(window: Window) -> Sleep {
    Handle::current().sleep_window(window)
}

/// Gives `future` at most `d`: `Ok` with its output, or [`Elapsed`](crate::Elapsed).
///
/// The inner future is polled first, and only if it is pending a timer is registered: a future that is
/// ready at once costs no lock. When both are ready the output wins. A `d` past the clock's end waits for
/// the future alone. See [`sleep`] for the clock.
///
/// # Cancel safety
/// As the inner future's; the timer is freed at once.
///
/// ```
/// use std::time::Duration;
/// # let mut driver = slackwheel::Driver::new()?;
/// # driver.block_on(async {
/// let late = slackwheel::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
/// assert!(late.is_err());
/// # });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
pub fn timeout<F: IntoFuture>(d: Duration, future: F) -> Timeout<F::IntoFuture> {
    Handle::current().timeout(d, future)
}

/// Gives `future` at least `min` and, but for scheduling delay, at most `max`; in between it may be given up
/// at whatever instant costs the fewest wakeups. See [`timeout`].
pub fn timeout_range<F: IntoFuture>(
    min: Duration,
    max: Duration,
    future: F,
) -> Timeout<F::IntoFuture> {
    Handle::current().timeout_range(min, max, future)
}

/// Gives `future` until `deadline`. See [`timeout`].
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Handle::current().timeout_at(deadline, future)
}

/// Ticks at once, then every `period`, anchored to its schedule: tick `k` is due at start + `k` periods,
/// however late the ticks before it were. See [`Interval`] for leeway and for what happens after a stall.
///
/// A `period` of zero acts as one tick of the wheel, 1.024 us; [`Handle::try_interval`] refuses it.
pub fn interval(period: Duration) -> Interval {
    Handle::current().interval(period)
}

/// Ticks at `start`, then every `period`. See [`interval`].
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    Handle::current().interval_at(start, period)
}
