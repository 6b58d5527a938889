//! The blocking condvar for mutexes of `lock_api`, parking_lot's among them (feature `lock_api`).
//!
//! Such a guard knows its mutex and such a mutex has no poison, so a wait takes `&mut guard` and returns
//! the outcome alone. All else is as for [`sync::blocking::Condvar`](crate::sync::blocking::Condvar).
//!
//! ```
//! use slackwheel::compat::lock_api::Condvar;
//! use std::time::Duration;
//!
//! let mutex = parking_lot::Mutex::new(0);
//! let condvar = Condvar::new();
//! let ms = Duration::from_millis;
//! let mut guard = mutex.lock();
//! let outcome = condvar.wait_while_range(&mut guard, ms(1), ms(2), |value| *value == 0);
//! assert!(outcome.is_timed_out());
//! ```

use crate::clock::monotonic;
use crate::sync::WaitOutcome::{self, Notified, TimedOut};
use crate::sync::blocking::{Core, is_past, span_of};
use crate::tunables::SlackFloor;
use crate::window::{Span, Window};
use lock_api::{MutexGuard, RawMutex};
use std::time::{Duration, Instant};

/// A condition variable for threads whose mutex is one of `lock_api`. See the
/// [module's documentation](self).
///
/// If a lock's own code panics while it unlocks or locks, the wait ends with that panic; a notify
/// meant for it goes to the next waiter.
pub struct Condvar {
    core: Core,
}

impl Condvar {
    /// A condvar nobody waits on. Allocates nothing, now or later.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Condvar { core: Core::new() }
    }

    /// A condvar nobody waits on.
    #[cfg(loom)]
    pub fn new() -> Self {
        Condvar { core: Core::new() }
    }

    /// Wakes the thread that has waited longest; false when none waited. That costs one load.
    #[inline]
    pub fn notify_one(&self) -> bool {
        self.core.queue.notify_one()
    }

    /// Wakes all threads that wait at this moment, in the order in which they came; their number.
    #[inline]
    pub fn notify_all(&self) -> usize {
        self.core.queue.notify_all()
    }

    /// How many threads wait: a glimpse, out of date at once.
    pub fn waiting(&self) -> usize {
        self.core.queue.len()
    }

    /// This condvar's own floor for the slack of waits that give a resolution; see
    /// [`blocking::Condvar::slack_floor`](crate::sync::blocking::Condvar::slack_floor).
    pub fn slack_floor(&self) -> &SlackFloor {
        &self.core.floor
    }

    /// Waits for a notify, however long it takes.
    pub fn wait<R: RawMutex, T: ?Sized>(&self, guard: &mut MutexGuard<'_, R, T>) {
        self.wait_span(guard, Span::NEVER);
    }

    /// Waits for a notify until `deadline`, and later by at most the effective slack:
    /// `resolution` or the [slack floor](Self::slack_floor), whichever is larger, at most 1 ms.
    pub fn wait_until<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        deadline: Instant,
        resolution: Duration,
    ) -> WaitOutcome {
        self.wait_span(guard, self.core.until(deadline, resolution))
    }

    /// Waits for a notify for `duration`, and longer by at most the effective slack.
    pub fn wait_for<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        duration: Duration,
        resolution: Duration,
    ) -> WaitOutcome {
        self.wait_span(guard, self.core.after(duration, resolution))
    }

    /// Waits for a notify for at least `min` and at most `max` (and for `min` when `max` is less).
    pub fn wait_range<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        min: Duration,
        max: Duration,
    ) -> WaitOutcome {
        self.wait_span(guard, Span::range(monotonic(), min, max))
    }

    /// Waits for a notify until some instant of `window`.
    pub fn wait_window<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        window: Window,
    ) -> WaitOutcome {
        self.wait_span(guard, span_of(window))
    }

    /// Waits while `condition` holds, however long it takes.
    pub fn wait_while<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) {
        self.while_span(guard, Span::NEVER, condition);
    }

    /// Waits while `condition` holds, until `deadline` and later by at most the effective slack.
    /// [`TimedOut`] means that the condition still held after the deadline.
    pub fn wait_while_until<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        deadline: Instant,
        resolution: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> WaitOutcome {
        self.while_span(guard, self.core.until(deadline, resolution), condition)
    }

    /// [`wait_while_until`](Self::wait_while_until) with a deadline `duration` from now.
    pub fn wait_while_for<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        duration: Duration,
        resolution: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> WaitOutcome {
        self.while_span(guard, self.core.after(duration, resolution), condition)
    }

    /// Waits while `condition` holds, for at least `min` and at most `max` (and for `min` when
    /// `max` is less).
    pub fn wait_while_range<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        min: Duration,
        max: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> WaitOutcome {
        self.while_span(guard, Span::range(monotonic(), min, max), condition)
    }

    /// Waits while `condition` holds, until some instant of `window`.
    pub fn wait_while_window<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        window: Window,
        condition: impl FnMut(&mut T) -> bool,
    ) -> WaitOutcome {
        self.while_span(guard, span_of(window), condition)
    }

    fn while_span<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        span: Span,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> WaitOutcome {
        while condition(&mut *guard) {
            if self.wait_span(guard, span) == TimedOut {
                return if condition(&mut *guard) { TimedOut } else { Notified };
            }
        }
        Notified
    }

    fn wait_span<R: RawMutex, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        span: Span,
    ) -> WaitOutcome {
        if is_past(span) {
            return TimedOut;
        }
        self.core.queued(|waiter| MutexGuard::unlocked(guard, || waiter.wait(span)))
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Condvar").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}
