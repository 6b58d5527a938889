//! Wakers on their way out: collected under a shard's lock, called after it is released.
//!
//! Of one batch those whose `latest` has come go first. They are why the driver is awake; those that merely
//! may fire can wait for them, and where slacks differ there may be a hundred of these for each of those.

use crate::wheel::Fired;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Entries fired or moved while a shard is locked.
pub(crate) const BATCH: usize = 256;

/// Calls wakers one by one. One that panics costs no other its call.
#[derive(Default)]
pub(crate) struct WakeBatch {
    /// Their `latest` has come.
    due: Vec<Waker>,
    /// All others, each queue in the order of its coming.
    coalesced: Vec<Waker>,
    pub(crate) panics: u64,
    /// What the first panic threw.
    thrown: Option<Box<dyn Any + Send>>,
}

impl WakeBatch {
    /// Takes a waker whose time is of no matter.
    #[inline]
    pub(crate) fn push(&mut self, waker: Waker) {
        self.coalesced.push(waker);
    }

    /// Takes the waker of a timer that fires at `now`.
    #[inline]
    pub(crate) fn push_fired(&mut self, fired: Fired<Waker>, now: u64) {
        let queue = if fired.latest <= now { &mut self.due } else { &mut self.coalesced };
        queue.push(fired.value);
    }

    /// Calls all wakers, the due ones first. No lock of the crate may be held.
    pub(crate) fn wake(&mut self) {
        // Outside of the closure: a panic must not drop the rest unwoken.
        let mut wakers = self.due.drain(..).chain(self.coalesced.drain(..));
        loop {
            let called = catch_unwind(AssertUnwindSafe(|| wakers.by_ref().for_each(Waker::wake)));
            let Err(thrown) = called else { break };
            self.panics += 1;
            self.thrown.get_or_insert(thrown);
        }
    }

    /// Goes on with the first panic of a waker, if there was one.
    pub(crate) fn rethrow(&mut self) {
        if let Some(thrown) = self.thrown.take() {
            std::panic::resume_unwind(thrown);
        }
    }

    /// Forgets the first panic of a waker; it has been counted.
    pub(crate) fn swallow(&mut self) {
        if let Some(thrown) = self.thrown.take() {
            // What was thrown may panic itself when dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(thrown)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    struct Counted(Arc<AtomicU32>, bool);
    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!self.1, "a waker fails");
        }
    }

    #[test]
    fn a_panicking_waker_costs_no_other_its_call() {
        let calls = Arc::new(AtomicU32::new(0));
        let mut batch = WakeBatch::default();
        for i in 0..100 {
            batch.push(Arc::new(Counted(calls.clone(), i % 10 == 3)).into());
        }
        batch.wake();
        assert_eq!(calls.load(Ordering::Relaxed), 100);
        assert_eq!(batch.panics, 10);
        assert!(catch_unwind(AssertUnwindSafe(|| batch.rethrow())).is_err());
        batch.rethrow();
    }

    #[test]
    fn a_panic_of_a_due_waker_costs_no_coalesced_one_its_call() {
        let calls = Arc::new(AtomicU32::new(0));
        let mut batch = WakeBatch::default();
        for i in 0..10 {
            let value = Arc::new(Counted(calls.clone(), true)).into();
            batch.push_fired(Fired { earliest: 0, latest: i, value }, 4);
        }
        batch.wake();
        assert_eq!((calls.load(Ordering::Relaxed), batch.panics), (10, 10));
    }
}
