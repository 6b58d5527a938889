//! The one place that names atomics, locks and threads: std's, or loom's under `cfg(loom)`.
//!
//! [`Mutex`] has no poisoning: no user code ever runs under a lock of this crate (wakers are
//! cloned, called and dropped outside of every lock), so a panic cannot leave the guarded state
//! half changed.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
use std::sync::Mutex as Inner;

#[cfg(loom)]
use loom::sync::Mutex as Inner;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// Std's cell in the shape of loom's, which watches who looks while another writes.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

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

/// What the concurrency tests need: the same bodies run under loom, which tries every order, and
/// under std, often.
#[cfg(test)]
pub(crate) mod test {
    #[cfg(not(loom))]
    pub(crate) use std::{
        sync::{Arc, Condvar, Mutex as RawMutex},
        thread,
    };

    #[cfg(loom)]
    pub(crate) use loom::{
        sync::{Arc, Condvar, Mutex as RawMutex},
        thread,
    };

    #[cfg(loom)]
    pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        if builder.preemption_bound.is_none() {
            builder.preemption_bound = Some(2);
        }
        builder.check(body);
    }

    #[cfg(not(loom))]
    pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
        for _ in 0..500 {
            body();
        }
    }
}
