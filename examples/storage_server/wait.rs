//! The waits of the server, all in one place.
//!
//! Commit threads wait for the end of a window on [`CommitSignal`]; async connections wait for
//! their log block on a [`Gate`].

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::errno::Errno;

/// Locks a mutex that stays usable when a thread panicked while it held it: all state behind the
/// server's mutexes is changed in steps that leave it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes commit threads.
#[derive(Debug, Default)]
pub(crate) struct CommitSignal {
    condvar: Condvar,
}

impl CommitSignal {
    /// Wakes all waiting threads; each looks at the state again.
    pub(crate) fn notify_all(&self) {
        self.condvar.notify_all();
    }

    /// Waits to be woken.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits to be woken or for a deadline, at most `slack` past it. Says whether it was the
    /// deadline.
    pub(crate) fn wait_until<'a, T>(
        &self,
        _mutex: &Mutex<T>,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
        slack: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let left = (deadline + slack).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (guard, true);
        }
        let result = self.condvar.wait_timeout(guard, left);
        let (guard, timeout) = result.unwrap_or_else(PoisonError::into_inner);
        (guard, timeout.timed_out())
    }
}

/// Where the writers of one log block wait; it opens once, for all of them.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    outcome: OnceLock<Result<(), Errno>>,
    opened: Notify,
}

impl Gate {
    /// Lets all waiters go with the outcome. Only the first call counts.
    pub(crate) fn open(&self, outcome: Result<(), Errno>) {
        self.outcome.get_or_init(|| outcome);
        self.opened.notify_waiters();
    }

    /// Waits until the gate is open.
    pub(crate) async fn passed(&self) -> Result<(), Errno> {
        let opened = self.opened.notified();
        let mut opened = std::pin::pin!(opened);
        // Registered before the check, so an opening in between is not missed.
        opened.as_mut().enable();
        if let Some(outcome) = self.outcome.get() {
            return *outcome;
        }
        opened.await;
        self.outcome.get().copied().unwrap_or(Err(Errno::Io))
    }
}
