//! What each thread knows: its shard, and the driver it has entered.
//!
//! The thread-locals here are constant-initialised and have no destructor, so they work while a
//! thread's other locals are being destroyed.

use super::Handle;
use super::arming::NEAR;
use crate::primitive::plain::{AtomicUsize, Ordering};
use std::cell::Cell;
use std::marker::PhantomData;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// One more than the shard; zero while the thread has none.
    static SHARD: Cell<usize> = const { Cell::new(0) };
    static ENTERED: Cell<Option<Handle>> = const { Cell::new(None) };
    /// A stale arm that was seen to be far away, and for how many operations it need not be looked at.
    static FAR_ARM: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// Sleeps that were ready at their first poll, in a row.
    static READY_RUN: Cell<u8> = const { Cell::new(0) };
}

/// The shard that this thread's timers go to. Threads take turns, so two threads rarely share one.
#[inline]
pub(crate) fn shard() -> usize {
    SHARD.with(|s| match s.get() {
        0 => {
            let shard = THREADS.fetch_add(1, Ordering::Relaxed);
            s.set(shard.wrapping_add(1));
            shard
        }
        n => n.wrapping_sub(1),
    })
}

/// The driver this thread has entered.
#[inline]
pub(crate) fn entered() -> Option<Handle> {
    ENTERED.with(Cell::get)
}

/// While it lives, futures made on this thread belong to the entered driver.
#[must_use = "the driver is left when the guard is dropped"]
#[derive(Debug)]
pub struct EnterGuard {
    before: Option<Handle>,
    /// The guard restores a thread-local: it stays on its thread.
    thread: PhantomData<*const ()>,
}

pub(crate) fn enter(handle: Handle) -> EnterGuard {
    EnterGuard { before: ENTERED.with(|e| e.replace(Some(handle))), thread: PhantomData }
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        ENTERED.with(|e| e.set(self.before));
    }
}

/// Called when a sleep is ready at its first poll. False after 128 in a row on this thread: then it must
/// let others run first.
#[inline]
pub(crate) fn may_be_ready() -> bool {
    READY_RUN.with(|run| {
        let ready = run.get() < 128;
        run.set(if ready { run.get() + 1 } else { 0 });
        ready
    })
}

/// Called when a sleep is pending.
#[inline]
pub(crate) fn was_pending() {
    READY_RUN.with(|run| run.set(0));
}

/// Called by an operation on a driver whose arm is stale: true when it may leave it alone, since another
/// one of this thread has just seen that it is far away.
#[inline]
pub(crate) fn is_known_far(armed: u64) -> bool {
    FAR_ARM.with(|far| {
        let (at, left) = far.get();
        let known = at == armed && left > 0;
        if known {
            far.set((at, left - 1));
        }
        known
    })
}

/// The arm is `ahead` nanoseconds away. An operation for each [`NEAR`] of them may pass unlooked, up to 64:
/// only where operations are rarer than that they miss its last [`NEAR`], and there one would hardly
/// have come at the right time.
pub(crate) fn seen_far(armed: u64, ahead: u64) {
    FAR_ARM.with(|far| far.set((armed, (ahead / NEAR).min(64) as u32)));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_a_far_arm_spares_as_many_as_it_is_milliseconds_away() {
        for (ahead, spared) in [(NEAR, 1), (5 * NEAR, 5), (5 * NEAR - 1, 4), (u64::MAX, 64)] {
            seen_far(7, ahead);
            assert!(!is_known_far(8), "another arm");
            assert_eq!((0..100).take_while(|_| is_known_far(7)).count(), spared, "{ahead} ns");
        }
    }
}
