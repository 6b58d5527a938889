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

/// Threads of the models: they run under loom, and as plain threads in `cargo test`.
#[cfg(all(test, not(loom)))]
pub(crate) use std::thread;

#[cfg(all(test, loom))]
pub(crate) use loom::thread;

/// Faults that a model plants in the code it runs, to show that it would find them. Outside of the
/// models [`planted`](plant::planted) is a constant.
pub(crate) mod plant {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Bug {
        /// A park or raise publishes what it armed and does not look at the shards again.
        NoRescan,
        /// An insert arms the kernel timer and publishes the armed time in two steps.
        ArmThenPublish,
        /// A raise does not take the lock under which others arm.
        RaiseUnlocked,
        /// A driver reads the clock, then the descriptor (planted in the model's own driver).
        #[cfg(test)]
        ClockFirst,
        /// A cancel looks for the entry, then takes it out under another lock.
        CancelTwice,
        /// A shutdown empties a shard before it closes it.
        DrainThenClose,
        /// A condvar's waiter believes its clock although a notify has taken it off the list.
        TrustTheClock,
        /// A waiter that goes without using its notify does not pass it on.
        KeepTheNotify,
        /// A notify looks for the task's waker before it sets the task's flag.
        WakerFirst,
    }

    #[cfg(all(test, loom))]
    std::thread_local! {
        /// All threads of one model run on one thread of the system.
        static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    }

    #[cfg(all(test, loom))]
    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.with(|p| p.get() == Some(bug))
    }

    #[cfg(not(all(test, loom)))]
    #[inline(always)]
    pub(crate) const fn planted(_bug: Bug) -> bool {
        false
    }

    /// Runs `f` with the bug in place.
    #[cfg(all(test, loom))]
    pub(crate) fn with(bug: Bug, f: impl FnOnce()) {
        PLANTED.with(|p| p.set(Some(bug)));
        f();
        PLANTED.with(|p| p.set(None));
    }
}

/// std's, also under loom: for statics (loom has no constant constructors) and for code that no
/// model runs.
pub(crate) mod plain {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

    /// Locks, and ignores poisoning (see the module's header).
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the model of the blocking condvar needs besides threads.
#[cfg(test)]
pub(crate) mod test {
    #[cfg(not(loom))]
    pub(crate) use std::sync::{Arc, Condvar, Mutex};

    #[cfg(loom)]
    pub(crate) use loom::sync::{Arc, Condvar, Mutex};
}
