//! The one place that names atomics, locks and threads: std's, or loom's under `cfg(loom)`.
//!
//! [`Mutex`] has no poisoning: no user code ever runs under a lock of this crate (wakers are
//! cloned, called and dropped outside of every lock), so a panic cannot leave the guarded state
//! half changed.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
use std::sync::Mutex as Inner;

#[cfg(loom)]
use loom::sync::Mutex as Inner;

/// A mutex that ignores poisoning (see the module's header).
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Mutex(Inner::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn new(value: T) -> Self {
        Mutex(Inner::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Hints the processor to load the cache line at `p`. Any pointer is fine.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it never faults and reads nothing the program can see,
    // whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Keeps what it holds on cache lines of its own (two, since processors fetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// std's, also under loom: for statics (loom has no constant constructors) and for code that no
/// model runs.
pub(crate) mod plain {
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    /// Locks, and ignores poisoning (see the module's header).
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
