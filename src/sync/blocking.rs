//! A condition variable for threads whose timed waits carry their slack.
//!
//! ```
//! use slackwheel::sync::{WaitOutcome, blocking::Condvar};
//! use std::sync::Mutex;
//! use std::time::Duration;
//!
//! static QUEUE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
//! static FILLED: Condvar = Condvar::new();
//!
//! // A linger: wait for company between 200 and 500 us. Any moment in between is as good, so the
//! // kernel may end the wait together with another timer's wakeup.
//! let us = Duration::from_micros;
//! let queue = QUEUE.lock().unwrap();
//! let (queue, outcome) = FILLED
//!     .wait_while_range(&QUEUE, queue, us(200), us(500), |queue| queue.len() < 8)
//!     .unwrap();
//! assert_eq!(outcome, WaitOutcome::TimedOut);
//! # drop(queue);
//! ```
//!
//! # How it waits
//!
//! This is the literal mechanism of ZFS's timed waits on Linux: one futex wait until an absolute time on
//! the monotonic clock, with the thread's timer slack set to the window's width. The slack that the
//! thread had is set back before the mutex is taken again, so that neither the caller nor a
//! condition it passed ever runs with another. A real-time thread has no slack: its waits end at the window's start.
//!
//! A wait costs what std's costs plus three `prctl` calls (some 0.1 us each), or one where the
//! thread's slack is already the wanted one. Set it with [`thread::SlackGuard`](crate::thread::SlackGuard)
//! around a loop of equal waits to save the other two.
//!
//! Release the mutex before you notify (`drop(guard); condvar.notify_one()`): a thread that is woken into a held
//! mutex blocks a second time. parking_lot spares its users that by moving the waiter to its own mutex's
//! queue; a std mutex has no such way in. Notified after the release, both cost the same.
//!
//! Threads that wait here and threads or tasks that wait on a driver do not share wakeups in this
//! process; what they share is what the kernel makes of overlapping slacks on one processor. Tasks
//! share wakeups for certain with [`sync::Condvar`](crate::sync::Condvar).
//!
//! # Mutexes
//!
//! Stable Rust has no way from a `std::sync::MutexGuard` to its mutex, so every wait takes both.
//! For the guards of `lock_api` (parking_lot's, for one) see `compat::lock_api`, feature `lock_api`.
//!
//! After `fork` a child must not use a condvar that another thread of the parent was using at that
//! moment, as with any lock. A fresh one works in the child.

use super::WaitOutcome::{self, Notified, TimedOut};
use super::queue::{Entry, Queue};
use super::signal::OsSignal;
use crate::clock::{monotonic, reading_of};
use crate::sys::slack::Scoped;
use crate::tick::{NEVER, nanos};
use crate::tunables::{SlackFloor, effective_slack_ns};
use crate::window::{Span, Window};
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A condition variable for threads. See the [module's documentation](self).
///
/// Every wait takes the mutex and its guard and gives the guard back. Times are on the monotonic
/// clock: they do not count suspend and do not follow the wall clock.
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
    ///
    /// The mutex need not be held, but the condition must have been changed under it.
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

    /// This condvar's own floor for the slack of waits that give a resolution. It follows the
    /// process-wide [`slack_floor`](crate::tunables::slack_floor) until it is set; a change acts on the
    /// next wait.
    pub fn slack_floor(&self) -> &SlackFloor {
        &self.core.floor
    }

    /// Waits for a notify, however long it takes.
    ///
    /// # Errors
    /// As for every wait here: when the mutex is poisoned, an error that holds the result.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
    ) -> LockResult<MutexGuard<'a, T>> {
        match self.wait_span(mutex, guard, Span::NEVER) {
            Ok((guard, _)) => Ok(guard),
            Err(poisoned) => Err(PoisonError::new(poisoned.into_inner().0)),
        }
    }

    /// Waits for a notify until `deadline`, and later by at most the effective slack:
    /// `resolution` or the [slack floor](Self::slack_floor), whichever is larger, at most 1 ms
    /// ([`effective_slack`](crate::tunables::effective_slack)).
    ///
    /// # Errors
    /// When the mutex is poisoned.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_until<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
        resolution: Duration,
    ) -> TimedWait<'a, T> {
        self.wait_span(mutex, guard, self.core.until(deadline, resolution))
    }

    /// Waits for a notify for `duration`, and longer by at most the effective slack, as
    /// [`wait_until`](Self::wait_until) does. A duration past the clock's end waits for ever.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_for<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        duration: Duration,
        resolution: Duration,
    ) -> TimedWait<'a, T> {
        self.wait_span(mutex, guard, self.core.after(duration, resolution))
    }

    /// Waits for a notify for at least `min` and at most `max` (and for `min` when `max` is less).
    /// No tunable widens this.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_range<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        min: Duration,
        max: Duration,
    ) -> TimedWait<'a, T> {
        self.wait_span(mutex, guard, Span::range(monotonic(), min, max))
    }

    /// Waits for a notify until some instant of `window`. No tunable widens it.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_window<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        window: Window,
    ) -> TimedWait<'a, T> {
        self.wait_span(mutex, guard, span_of(window))
    }

    /// Waits while `condition` holds, however long it takes.
    ///
    /// # Errors
    /// When the mutex is poisoned. The condition is then not asked again.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        match self.while_span(mutex, guard, Span::NEVER, condition) {
            Ok((guard, _)) => Ok(guard),
            Err(poisoned) => Err(PoisonError::new(poisoned.into_inner().0)),
        }
    }

    /// Waits while `condition` holds, until `deadline` and later by at most the effective slack,
    /// as [`wait_until`](Self::wait_until) does. All wakeups share the one deadline.
    ///
    /// [`TimedOut`] means that the condition still held when it was last
    /// asked, which is after the deadline.
    ///
    /// # Errors
    /// When the mutex is poisoned. The condition is then not asked again.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_while_until<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
        resolution: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> TimedWait<'a, T> {
        self.while_span(mutex, guard, self.core.until(deadline, resolution), condition)
    }

    /// [`wait_while_until`](Self::wait_while_until) with a deadline `duration` from now.
    ///
    /// # Errors
    /// When the mutex is poisoned. The condition is then not asked again.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_while_for<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        duration: Duration,
        resolution: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> TimedWait<'a, T> {
        self.while_span(mutex, guard, self.core.after(duration, resolution), condition)
    }

    /// Waits while `condition` holds, for at least `min` and at most `max` (and for `min` when
    /// `max` is less). No tunable widens this.
    ///
    /// # Errors
    /// When the mutex is poisoned. The condition is then not asked again.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_while_range<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        min: Duration,
        max: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> TimedWait<'a, T> {
        self.while_span(mutex, guard, Span::range(monotonic(), min, max), condition)
    }

    /// Waits while `condition` holds, until some instant of `window`.
    ///
    /// # Errors
    /// When the mutex is poisoned. The condition is then not asked again.
    ///
    /// # Panics
    /// In debug builds, when the guard is of another mutex.
    pub fn wait_while_window<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        window: Window,
        condition: impl FnMut(&mut T) -> bool,
    ) -> TimedWait<'a, T> {
        self.while_span(mutex, guard, span_of(window), condition)
    }

    fn while_span<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        mut guard: MutexGuard<'a, T>,
        span: Span,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> TimedWait<'a, T> {
        loop {
            if !condition(&mut guard) {
                return judged(mutex, guard, Notified);
            }
            let (again, outcome) = self.wait_span(mutex, guard, span)?;
            guard = again;
            if outcome == TimedOut {
                let outcome = if condition(&mut guard) { TimedOut } else { Notified };
                return judged(mutex, guard, outcome);
            }
        }
    }

    fn wait_span<'a, T: ?Sized>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        span: Span,
    ) -> TimedWait<'a, T> {
        debug_assert!(guards(mutex, &guard), "the guard given to a condvar is of another mutex");
        if is_past(span) {
            return judged(mutex, guard, TimedOut);
        }
        let outcome = self.core.queued(|waiter| {
            drop(guard);
            waiter.wait(span)
        });
        match mutex.lock() {
            Ok(guard) => Ok((guard, outcome)),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), outcome))),
        }
    }
}

/// What a timed wait gives back: the guard and how the wait ended, also inside the error of a
/// poisoned mutex.
pub type TimedWait<'a, T> = LockResult<(MutexGuard<'a, T>, WaitOutcome)>;

/// The result of a wait that did not release the mutex.
fn judged<'a, T: ?Sized>(
    mutex: &Mutex<T>,
    guard: MutexGuard<'a, T>,
    outcome: WaitOutcome,
) -> TimedWait<'a, T> {
    if mutex.is_poisoned() {
        return Err(PoisonError::new((guard, outcome)));
    }
    Ok((guard, outcome))
}

/// Whether the value that the guard leads to lies within this mutex.
fn guards<T: ?Sized>(mutex: &Mutex<T>, guard: &MutexGuard<'_, T>) -> bool {
    let start = std::ptr::from_ref(mutex).addr();
    let value = std::ptr::from_ref(&**guard).addr();
    (start..=start + size_of_val(mutex)).contains(&value)
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

/// A condvar without its mutex: what the std and the lock_api flavour share.
pub(crate) struct Core {
    pub(crate) queue: Queue<OsSignal>,
    pub(crate) floor: SlackFloor,
}

impl Core {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Core { queue: Queue::new(), floor: SlackFloor::new() }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Core { queue: Queue::new(), floor: SlackFloor::new() }
    }

    /// A window from a deadline and a resolution, by the rules for slack.
    pub(crate) fn until(&self, deadline: Instant, resolution: Duration) -> Span {
        Span::with_slack(reading_of(deadline), self.slack(resolution))
    }

    pub(crate) fn after(&self, duration: Duration, resolution: Duration) -> Span {
        Span::with_slack(crate::tick::after(monotonic(), duration), self.slack(resolution))
    }

    fn slack(&self, resolution: Duration) -> u64 {
        effective_slack_ns(nanos(resolution), self.floor.ns())
    }

    /// Runs `f` as a queued waiter. `f` releases the user's mutex and then waits. The caller has made
    /// sure that the window has not begun.
    #[inline]
    pub(crate) fn queued<R>(&self, f: impl FnOnce(Waiter<'_>) -> R) -> R {
        self.queue.enter(|entry| f(Waiter(entry)))
    }
}

/// A thread in the queue of a [`Core`].
pub(crate) struct Waiter<'a>(&'a Entry<'a, OsSignal>);

impl Waiter<'_> {
    /// Waits for a notify until some moment of the window, with the thread's slack set to it. The slack
    /// is back when this returns.
    #[inline]
    pub(crate) fn wait(self, span: Span) -> WaitOutcome {
        let entry = self.0;
        let notified = if span.earliest == NEVER {
            entry.sleep(None)
        } else if entry.is_told() {
            // Before it could even sleep: the slack need not be touched.
            entry.sleep(None)
        } else {
            let _slack = Scoped::new(span.latest - span.earliest);
            entry.sleep(Some(span.earliest))
        };
        if notified { Notified } else { TimedOut }
    }
}

/// Whether there is nothing to wait for any more.
#[inline]
pub(crate) fn is_past(span: Span) -> bool {
    // No clock is read for an untimed wait.
    span.earliest != NEVER && span.earliest <= monotonic()
}

pub(crate) fn span_of(window: Window) -> Span {
    Span { earliest: reading_of(window.earliest()), latest: reading_of(window.latest()) }
}
