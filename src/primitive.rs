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

/// A lock for a few dozen instructions: the shards'.
///
/// Releasing a [`Mutex`] costs a locked instruction, since it must see whether somebody sleeps until
/// then: as much as a whole insert. Here a release is a plain store, and whoever finds the lock taken looks
/// again by itself: at once, then letting other threads run, after some 100 us every 50 us. What it may cost is
/// bounded: no user code runs under it, and timers hold it for at most some 1,280 entries' work, so only a
/// holder that was preempted keeps others waiting. (`Handle::reap`, and the exact queries that say they are
/// for tests, hold it longer: waiters sleep then.) All models of the driver run on this very lock; under
/// loom only its pauses differ.
#[derive(Debug)]
pub(crate) struct BriefLock<T> {
    taken: AtomicBool,
    /// Threads that found it taken.
    waiting: plain::AtomicU32,
    value: UnsafeCell<T>,
}

mod brief {
    use super::{AtomicBool, BriefLock, Ordering, UnsafeCell, plain::AtomicU32};
    use std::marker::PhantomData;
    use std::ops::{Deref, DerefMut};

    // SAFETY: the lock hands out `&mut T` to one thread at a time, so sharing it needs no more of `T` than
    // to be sent; it is what std demands of its own mutex.
    unsafe impl<T: Send> Sync for BriefLock<T> {}

    // As std's mutex, whose poisoning this crate ignores anyway (see the module's header).
    impl<T> std::panic::UnwindSafe for BriefLock<T> {}
    impl<T> std::panic::RefUnwindSafe for BriefLock<T> {}

    /// Releases the lock when dropped.
    pub(crate) struct BriefGuard<'a, T> {
        lock: &'a BriefLock<T>,
        /// loom's watch over the value: whoever else looks while it lives is found.
        #[cfg(loom)]
        watch: Option<loom::cell::MutPtr<T>>,
        thread: PhantomData<*const ()>,
    }

    impl<T> BriefLock<T> {
        pub(crate) fn new(value: T) -> Self {
            BriefLock {
                taken: AtomicBool::new(false),
                waiting: AtomicU32::new(0),
                value: UnsafeCell::new(value),
            }
        }

        #[inline(always)]
        pub(crate) fn lock(&self) -> BriefGuard<'_, T> {
            if !self.take() {
                self.wait();
            }
            BriefGuard {
                lock: self,
                #[cfg(loom)]
                watch: Some(self.value.get_mut()),
                thread: PhantomData,
            }
        }

        /// For who takes the lock again and again: while somebody waits, waits for them in turn, for a moment.
        /// The few nanoseconds between a release and the next lock are no chance.
        #[inline]
        pub(crate) fn let_others_in(&self) {
            for _ in 0..PATIENCE {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    return;
                }
                pause(0);
            }
        }

        /// Tries to take it.
        #[cfg(not(loom))]
        #[inline(always)]
        fn take(&self) -> bool {
            !self.taken.swap(true, Ordering::Acquire)
        }

        /// loom does not know that the store of a swap that failed comes before the release.
        #[cfg(loom)]
        fn take(&self) -> bool {
            self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }

        #[cold]
        fn wait(&self) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            for round in 0u32.. {
                pause(round);
                // Reading first leaves the holder its cache line. (loom may let a load see the past for
                // ever.)
                let seems_taken = cfg!(not(loom)) && self.taken.load(Ordering::Relaxed);
                if !seems_taken && self.take() {
                    break;
                }
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Looks of `let_others_in`.
    const PATIENCE: u32 = if cfg!(loom) { 1 } else { 1000 };

    #[cfg(not(loom))]
    fn pause(round: u32) {
        match round {
            0..64 => std::hint::spin_loop(),
            // The holder may wait for this very CPU. Some 100 us, longer than anybody holds it.
            64..400 => std::thread::yield_now(),
            // Or be of a lower real-time priority: then only sleeping lets it run.
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }

    /// Who tries twice in vain ends up where one does who tries later, and that is explored anyway.
    #[cfg(loom)]
    fn pause(round: u32) {
        if round > 1 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }

    impl<T> BriefGuard<'_, T> {
        #[cfg(not(loom))]
        #[inline(always)]
        fn value(&self) -> *mut T {
            self.lock.value.with_mut(|value| value)
        }

        #[cfg(loom)]
        fn value(&self) -> *mut T {
            let watch = self.watch.as_ref().expect("the guard lives");
            // SAFETY: the guard holds the lock; the reference becomes a pointer at once.
            unsafe { watch.deref() }
        }
    }

    impl<T> Deref for BriefGuard<'_, T> {
        type Target = T;
        #[inline(always)]
        fn deref(&self) -> &T {
            // SAFETY: the guard holds the lock, so nobody else refers to the value.
            unsafe { &*self.value() }
        }
    }

    impl<T> DerefMut for BriefGuard<'_, T> {
        #[inline(always)]
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
            unsafe { &mut *self.value() }
        }
    }

    impl<T> Drop for BriefGuard<'_, T> {
        #[inline(always)]
        fn drop(&mut self) {
            #[cfg(loom)]
            drop(self.watch.take());
            let planted = super::plant::planted(super::plant::Bug::ReleaseRelaxed);
            let order = if planted { Ordering::Relaxed } else { Ordering::Release };
            self.lock.taken.store(false, order);
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
        /// A shutdown says that a shard is empty without saying that the driver has gone.
        CloseRelaxed,
        /// A turn says that it has passed a timer without saying when.
        PublishRelaxed,
        /// A shard's lock is released without handing over what was done under it.
        ReleaseRelaxed,
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

/// What the concurrency models need besides threads.
#[cfg(test)]
pub(crate) mod test {
    #[cfg(not(loom))]
    pub(crate) use std::sync::{Arc, Condvar, Mutex};

    #[cfg(loom)]
    pub(crate) use loom::sync::{Arc, Condvar, Mutex};

    /// Runs the body in every interleaving, at two preemptions unless `LOOM_MAX_PREEMPTIONS` says else.
    #[cfg(loom)]
    pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(body);
    }

    /// Without loom: runs the body many times.
    #[cfg(not(loom))]
    pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
        for _ in 0..400 {
            body();
        }
    }

    /// Asserts that the model finds the bug.
    #[cfg(loom)]
    pub(crate) fn finds(bug: super::plant::Bug, body: impl Fn() + Sync + Send + 'static) {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            super::plant::with(bug, || model(body));
        }));
        assert!(found.is_err(), "the model does not find {bug:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::test::{Arc, model};
    use super::*;

    fn add_on_two_threads() {
        let lock = Arc::new(BriefLock::new((0u64, 0u64)));
        let add = |lock: &BriefLock<(u64, u64)>| {
            let mut both = lock.lock();
            assert_eq!(both.0, both.1);
            both.0 += 1;
            both.1 += 1;
            drop(both);
            lock.let_others_in();
        };
        let other = {
            let lock = lock.clone();
            thread::spawn(move || add(&lock))
        };
        add(&lock);
        other.join().unwrap();
        assert_eq!(*lock.lock(), (2, 2));
    }

    #[test]
    fn a_brief_lock_excludes() {
        model(add_on_two_threads);
    }

    #[cfg(loom)]
    #[test]
    fn a_release_that_hands_nothing_over_is_found() {
        test::finds(plant::Bug::ReleaseRelaxed, add_on_two_threads);
    }

    #[cfg(not(loom))]
    #[test]
    fn a_brief_lock_excludes_under_load() {
        let lock = BriefLock::new((0u64, 0u64));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..50_000 {
                        let mut both = lock.lock();
                        assert_eq!(both.0, both.1);
                        both.0 += 1;
                        both.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (200_000, 200_000));
    }
}
