//! The waits of the server, all in one place.
//!
//! Commit threads wait for the end of a window on a [`CommitSignal`]; async connections wait for
//! their log block on a [`Gate`]. Both are thin: the crate's condvars do the work.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackwheel::sync::{Condvar, WaitOutcome, blocking};
use tokio::sync::Mutex as AsyncMutex;

use crate::errno::Errno;

/// Locks a mutex that stays usable when a thread panicked while it held it: all state behind the
/// server's mutexes is changed in steps that leave it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes commit threads.
#[derive(Debug, Default)]
pub(crate) struct CommitSignal {
    condvar: blocking::Condvar,
}

impl CommitSignal {
    /// Wakes all waiting threads; each looks at the state again. Next to nothing when none waits.
    pub(crate) fn notify_all(&self) {
        self.condvar.notify_all();
    }

    /// Waits to be woken.
    pub(crate) fn wait<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
    ) -> MutexGuard<'a, T> {
        self.condvar.wait(mutex, guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits to be woken or for a deadline, at most `slack` past it. Says whether it was the
    /// deadline.
    ///
    /// The slack is what the kernel may use to end this wait together with another one: this is
    /// the seed of the whole example, a window instead of a point.
    pub(crate) fn wait_until<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
        slack: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let wait = self.condvar.wait_until(mutex, guard, deadline, slack);
        let (guard, outcome) = wait.unwrap_or_else(PoisonError::into_inner);
        (guard, outcome == WaitOutcome::TimedOut)
    }
}

/// Where the writers of one log block wait; it opens once, for all of them.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    outcome: AsyncMutex<Option<Result<(), Errno>>>,
    opened: Condvar,
}

impl Gate {
    /// Lets all waiters go with the outcome. Only the first call counts. For threads: it may
    /// block for a moment.
    pub(crate) fn open(&self, outcome: Result<(), Errno>) {
        self.outcome.blocking_lock().get_or_insert(outcome);
        self.opened.notify_all();
    }

    /// Waits until the gate is open.
    pub(crate) async fn passed(&self) -> Result<(), Errno> {
        let closed = |outcome: &mut Option<_>| outcome.is_none();
        let guard = self.outcome.lock().await;
        let outcome = *self.opened.wait_while(guard, closed).await;
        outcome.unwrap_or(Err(Errno::Io))
    }
}
