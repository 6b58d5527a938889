//! What each thread knows: its shard, and the driver it has entered.
//!
//! The thread-locals here are constant-initialised and have no destructor, so they work while a
//! thread's other locals are being destroyed.

use super::Handle;
use crate::primitive::plain::{AtomicUsize, Ordering};
use std::cell::Cell;
use std::marker::PhantomData;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// One more than the shard; zero while the thread has none.
    static SHARD: Cell<usize> = const { Cell::new(0) };
    static ENTERED: Cell<Option<Handle>> = const { Cell::new(None) };
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
