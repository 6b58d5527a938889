//! Timed waits whose slack is part of the call: condition variables for threads and for tasks.
//!
//! Both follow ZFS's `cv_timedwait_hires`: a wait has an absolute deadline and a *resolution*, or a
//! window, and the resolution is how late the wait may end without harm. The rules are the same for
//! the two:
//!
//! - **A notify beats a timeout.** A waiter that was notified reports [`Notified`](WaitOutcome::Notified),
//!   even when its deadline passed before it could run.
//! - **An expired deadline** is [`TimedOut`](WaitOutcome::TimedOut) at once; the mutex is not released.
//! - **First in, first out.** Waiters are woken in the order in which they began to wait. In which
//!   order they then get the mutex is the mutex's affair.
//! - **One deadline.** Nothing is counted from a spurious wakeup anew; there are none to be seen.
//! - **Never early, and late only by the window** (and by what the scheduler adds).
//! - **One mutex per condvar** at any one time.

pub mod blocking;
mod condvar;
pub(crate) mod queue;
mod signal;
mod task;
mod token;

#[cfg(test)]
mod model;
#[cfg(test)]
mod races;

pub use condvar::{CancellableWaits, Condvar};
pub use token::CancelToken;

use std::future::Future;

/// The guard of an async mutex, as [`Condvar`] needs it: released, and taken again.
///
/// Implemented for the guards of async-lock and tokio behind the features of those names. Implement it for
/// a guard of your own if the guard can tell its mutex.
pub trait Relock: Sized {
    /// What the mutex guards.
    type Value: ?Sized;
    /// The mutex, or a reference to it.
    type Mutex;

    /// Unlocks the mutex. Must not block.
    fn release(self) -> Self::Mutex;

    /// Locks the mutex. May be dropped before it has got it.
    fn relock(mutex: Self::Mutex) -> impl Future<Output = Self>;

    /// The guarded value.
    fn value(&mut self) -> &mut Self::Value;
}

/// How a timed wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOutcome {
    /// By `notify_one` or `notify_all`; for the `wait_while` forms: the condition no longer holds.
    Notified,
    /// The deadline, or the start of the window, has passed.
    TimedOut,
    /// The wait's token was cancelled. The blocking condvar never says this.
    Cancelled,
}

impl WaitOutcome {
    /// Whether it is [`Notified`](WaitOutcome::Notified).
    pub fn is_notified(self) -> bool {
        self == WaitOutcome::Notified
    }

    /// Whether it is [`TimedOut`](WaitOutcome::TimedOut).
    pub fn is_timed_out(self) -> bool {
        self == WaitOutcome::TimedOut
    }

    /// Whether it is [`Cancelled`](WaitOutcome::Cancelled).
    pub fn is_cancelled(self) -> bool {
        self == WaitOutcome::Cancelled
    }
}
