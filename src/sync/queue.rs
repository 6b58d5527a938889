//! The queue behind a condvar, blocking or async.
//!
//! Ground rules:
//! - A waiter is a [`Node`] inside a pinned [`Entry`], linked into the list from [`Entry::enter`] until
//!   it is notified or leaves. Links and list are touched under `list`'s lock only.
//! - Whoever notifies a waiter takes it off the list *before* setting its signal, both under the lock. So a
//!   waiter that sees its signal set is on no list and may end without the lock, and one that ran
//!   out of time takes the lock and looks: still listed means timed out, off the list means
//!   notified, whatever the clock says. A notify that has taken a waiter is never lost to a timeout.
//! - A notify counts as used once the waiter has reported it ([`Entry::used`]). A waiter that was told by
//!   `notify_one` and goes without using it (a cancelled task, a panic in a foreign lock) passes it
//!   to the next.
//! - Wakes are sent after the lock is released, to an address; the waiter may be gone by then.
//! - `waiting` mirrors the list's length for notifiers that need not take the lock. A relaxed load
//!   is enough: a waiter enters the list before it releases the user's mutex, so a notifier that
//!   has changed the condition under that mutex, and whose change the waiter did not see, comes
//!   after that release and sees it listed. Without the mutex there is nothing to promise.
//! - No user code runs under the lock.

use super::signal::{Signal, Sleepable, Told, Wake};
use crate::primitive::plain::AtomicU8;
use crate::primitive::plant::{Bug, planted};
use crate::primitive::{AtomicUsize, Mutex, Ordering, UnsafeCell};
use std::marker::PhantomPinned;
use std::pin::{Pin, pin};
use std::ptr;

/// Waiters told per hold of the lock by [`Queue::notify_all`].
const BATCH: usize = 16;

/// A FIFO of waiters.
pub(crate) struct Queue<S: Signal> {
    waiting: AtomicUsize,
    list: Mutex<List<S>>,
}

struct List<S: Signal> {
    first: *const Node<S>,
    last: *const Node<S>,
    len: usize,
    /// How many waiters ever entered: the next one's ticket.
    tickets: u64,
}

// SAFETY: the pointers lead to nodes whose links and signal may be used from any thread while they
// are listed (the ground rules), provided the signal itself may be.
unsafe impl<S: Signal + Sync> Send for List<S> {}

/// A waiter's place in the queue.
struct Node<S: Signal> {
    signal: S,
    links: UnsafeCell<Links<S>>,
}

// SAFETY: the links are touched under the queue's lock only, whatever thread does it.
unsafe impl<S: Signal + Send> Send for Node<S> {}
// SAFETY: as above, and the signal may be used from any thread.
unsafe impl<S: Signal + Sync> Sync for Node<S> {}

struct Links<S: Signal> {
    previous: *const Node<S>,
    next: *const Node<S>,
    ticket: u64,
    listed: bool,
}

impl<S: Signal> Node<S> {
    /// Reads or writes the links.
    ///
    /// # Safety
    /// The caller holds the lock of the queue that this node is, was or will be on.
    unsafe fn links<R>(&self, f: impl FnOnce(&mut Links<S>) -> R) -> R {
        // SAFETY: only this function makes a reference to the links, under the lock by the
        // caller's promise; no `f` here calls it again on the same node.
        self.links.with_mut(|links| f(unsafe { &mut *links }))
    }
}

impl<S: Signal> List<S> {
    const EMPTY: Self = List { first: ptr::null(), last: ptr::null(), len: 0, tickets: 0 };

    fn push(&mut self, node: &Node<S>) {
        let (last, ticket) = (self.last, self.tickets);
        // SAFETY: a `&mut List` is only had under its lock.
        unsafe {
            node.links(|l| *l = Links { previous: last, next: ptr::null(), ticket, listed: true });
        }
        self.set_next(last, node);
        self.last = node;
        self.len += 1;
        self.tickets += 1;
    }

    /// Takes `node` off; false when it was not listed.
    fn unlink(&mut self, node: &Node<S>) -> bool {
        // SAFETY: a `&mut List` is only had under its lock.
        let (listed, previous, next) = unsafe {
            node.links(|l| (std::mem::replace(&mut l.listed, false), l.previous, l.next))
        };
        if !listed {
            return false;
        }
        self.set_next(previous, next);
        if next.is_null() {
            self.last = previous;
        } else {
            // SAFETY: a listed node's neighbours are listed and so live; the lock is held.
            unsafe { (*next).links(|l| l.previous = previous) };
        }
        self.len -= 1;
        true
    }

    /// Makes `next` follow `node`, or be the first where `node` is null.
    fn set_next(&mut self, node: *const Node<S>, next: *const Node<S>) {
        if node.is_null() {
            self.first = next;
        } else {
            // SAFETY: every caller passes a listed node, which is live; the lock is held.
            unsafe { (*node).links(|l| l.next = next) };
        }
    }

    /// Takes the first waiter off and sets its signal, if its ticket is below `limit`.
    fn release_first(&mut self, limit: u64, told: Told) -> Option<S::Address> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: listed, hence live: its owner cannot leave before it took the lock or saw the
        // signal, and the signal is set last.
        let node = unsafe { &*self.first };
        // SAFETY: a `&mut List` is only had under its lock.
        if unsafe { node.links(|l| l.ticket) } >= limit {
            return None;
        }
        self.unlink(node);
        Some(node.signal.set(told))
    }
}

impl<S: Signal> Queue<S> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Queue { waiting: AtomicUsize::new(0), list: Mutex::new(List::EMPTY) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Queue { waiting: AtomicUsize::new(0), list: Mutex::new(List::EMPTY) }
    }

    /// Runs `f` as a waiter: it is queued before `f` starts and not any more when `f` has ended.
    ///
    /// `f` releases the user's mutex and then calls [`Entry::sleep`].
    #[inline]
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&Entry<'_, S>) -> R) -> R {
        let entry = pin!(Entry::new(self));
        entry.as_ref().enter();
        f(&entry)
    }

    /// Notifies the waiter that has waited longest. One load when nobody waits.
    #[inline(always)]
    pub(crate) fn notify_one(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 && self.release_one()
    }

    /// Notifies all who wait now, in their order; their number. One load when nobody waits.
    #[inline(always)]
    pub(crate) fn notify_all(&self) -> usize {
        if self.waiting.load(Ordering::Relaxed) == 0 { 0 } else { self.release_all() }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn release_one(&self) -> bool {
        match self.with_list(|list| list.release_first(u64::MAX, Told::Alone)) {
            Some(address) => {
                S::wake(address);
                true
            }
            None => false,
        }
    }

    /// [`notify_all`](Self::notify_all) for callers who have no mutex in common with the waiters: it
    /// always takes the lock, which orders what the caller did before for whoever enters after.
    pub(crate) fn release_all(&self) -> usize {
        let mut total = 0;
        // Whoever enters later, woken threads that wait again included, is not meant.
        let mut limit = None;
        loop {
            let mut batch: [Option<S::Address>; BATCH] = [const { None }; BATCH];
            let n = self.with_list(|list| {
                let limit = *limit.get_or_insert(list.tickets);
                let mut n = 0;
                while n < BATCH
                    && let Some(address) = list.release_first(limit, Told::WithAll)
                {
                    batch[n] = Some(address);
                    n += 1;
                }
                n
            });
            batch.into_iter().flatten().for_each(S::wake);
            total += n;
            if n < BATCH {
                return total;
            }
        }
    }

    #[inline]
    fn with_list<R>(&self, f: impl FnOnce(&mut List<S>) -> R) -> R {
        let mut list = self.list.lock();
        let result = f(&mut list);
        self.waiting.store(list.len, Ordering::Relaxed);
        result
    }
}

/// A waiter: its place in the queue, and what has become of it.
pub(crate) struct Entry<'a, S: Signal> {
    queue: &'a Queue<S>,
    node: Node<S>,
    stage: Stage,
    /// The list points to the node.
    _pinned: PhantomPinned,
}

/// What has become of an entry. Only its owner uses it; an atomic, so that a future may hold a
/// reference to its entry and still move between threads.
#[derive(Debug)]
struct Stage(AtomicU8);

/// Perhaps on the list.
const ENTERED: u8 = 0;
/// Off the list, told by `notify_one`, and nobody has used that yet.
const TOLD_ALONE: u8 = 1;
/// Off the list, told by `notify_all`.
const TOLD_WITH_ALL: u8 = 2;
/// Off the list, and nothing is left to do.
const OVER: u8 = 3;

impl Stage {
    #[inline(always)]
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, stage: u8) {
        self.0.store(stage, Ordering::Relaxed);
    }

    #[inline(always)]
    fn set_told(&self, told: Told) {
        self.set(if told == Told::Alone { TOLD_ALONE } else { TOLD_WITH_ALL });
    }

    #[inline(always)]
    fn is_told(&self) -> bool {
        matches!(self.get(), TOLD_ALONE | TOLD_WITH_ALL)
    }
}

impl<'a, S: Signal> Entry<'a, S> {
    #[inline]
    pub(crate) fn new(queue: &'a Queue<S>) -> Self {
        let links = Links { previous: ptr::null(), next: ptr::null(), ticket: 0, listed: false };
        let node = Node { signal: S::new(), links: UnsafeCell::new(links) };
        Entry { queue, node, stage: Stage(AtomicU8::new(OVER)), _pinned: PhantomPinned }
    }

    /// Puts it on the list, once.
    #[inline]
    pub(crate) fn enter(self: Pin<&Self>) {
        assert!(self.stage.get() == OVER && self.node.signal.told().is_none());
        // Pinned and dropped before its memory goes (see `Drop`): the node never leaves listed.
        self.queue.with_list(|list| list.push(&self.node));
        self.stage.set(ENTERED);
    }

    pub(crate) fn signal(&self) -> &S {
        &self.node.signal
    }

    /// Whether a notify has come; then no list knows this waiter any more.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        if self.stage.get() == ENTERED
            && let Some(told) = self.node.signal.told()
        {
            self.stage.set_told(told);
        }
        self.stage.is_told()
    }

    /// Ends the wait; true when a notify came first.
    #[cold]
    pub(crate) fn leave(&self) -> bool {
        if self.stage.get() == ENTERED {
            let listed = self.queue.with_list(|list| list.unlink(&self.node));
            match self.node.signal.told() {
                Some(told) if !listed => self.stage.set_told(told),
                _ => self.stage.set(OVER),
            }
        }
        self.stage.is_told()
    }

    /// The notify, if there was one, has been reported to somebody who will act on it.
    #[inline]
    pub(crate) fn used(&self) {
        debug_assert!(self.stage.get() != ENTERED);
        self.stage.set(OVER);
    }
}

impl<S: Sleepable> Entry<'_, S> {
    /// Blocks until a notify (true) or until `deadline` has passed without one (false).
    #[inline]
    pub(crate) fn sleep(&self, deadline: Option<u64>) -> bool {
        let mut notified = true;
        while !self.is_told() {
            if self.node.signal.wait(deadline) == Wake::TimedOut {
                notified = self.leave() && !planted(Bug::TrustTheClock);
                break;
            }
        }
        self.used();
        notified
    }
}

impl<S: Signal> Drop for Entry<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if self.stage.get() == OVER {
            return;
        }
        self.leave();
        if self.stage.get() == TOLD_ALONE && !planted(Bug::KeepTheNotify) {
            self.queue.notify_one();
        }
    }
}
