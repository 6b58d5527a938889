//! async-lock's mutex guards in [`sync::Condvar`](crate::sync::Condvar) (feature `async-lock`).

use crate::sync::Relock;
use async_lock::{Mutex, MutexGuard, MutexGuardArc};
use std::sync::Arc;

impl<'a, T: ?Sized> Relock for MutexGuard<'a, T> {
    type Value = T;
    type Mutex = &'a Mutex<T>;

    fn release(self) -> Self::Mutex {
        MutexGuard::source(&self)
    }

    async fn relock(mutex: Self::Mutex) -> Self {
        mutex.lock().await
    }

    fn value(&mut self) -> &mut T {
        self
    }
}

impl<T: ?Sized + Send> Relock for MutexGuardArc<T> {
    type Value = T;
    type Mutex = Arc<Mutex<T>>;

    fn release(self) -> Self::Mutex {
        MutexGuardArc::source(&self).clone()
    }

    async fn relock(mutex: Self::Mutex) -> Self {
        mutex.lock_arc().await
    }

    fn value(&mut self) -> &mut T {
        self
    }
}
