//! tokio's mutex guards in [`sync::Condvar`](crate::sync::Condvar) (feature `tokio`).

use crate::sync::Relock;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

impl<'a, T: ?Sized> Relock for MutexGuard<'a, T> {
    type Value = T;
    type Mutex = &'a Mutex<T>;

    fn release(self) -> Self::Mutex {
        MutexGuard::mutex(&self)
    }

    async fn relock(mutex: Self::Mutex) -> Self {
        mutex.lock().await
    }

    fn value(&mut self) -> &mut T {
        self
    }
}

impl<T: ?Sized> Relock for OwnedMutexGuard<T> {
    type Value = T;
    type Mutex = Arc<Mutex<T>>;

    fn release(self) -> Self::Mutex {
        OwnedMutexGuard::mutex(&self).clone()
    }

    async fn relock(mutex: Self::Mutex) -> Self {
        mutex.lock_owned().await
    }

    fn value(&mut self) -> &mut T {
        self
    }
}
