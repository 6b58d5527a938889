//! The queue of threads behind a blocking condvar.
//!
//! Ground rules:
//! - A waiter is a [`Node`] on its own stack, linked into the list from [`Queue::enter`] until it is
//!   notified or leaves. Links and list are touched under `list`'s lock only.
//! - Whoever notifies a waiter takes it off the list *before* setting its signal, both under the lock. So a
//!   waiter that sees its signal set is on no list and may return without the lock, and one that ran
//!   out of time takes the lock and looks: still listed means timed out, off the list means
//!   notified, whatever the clock says. A notify that has taken a waiter is never lost to a timeout.
//! - Wakes are sent after the lock is released, to an address; the waiter may be gone by then.
//! - `waiting` mirrors the list's length for notifiers that need not take the lock. A relaxed load
//!   is enough: a waiter enters the list before it releases the user's mutex, so a notifier that
//!   has changed the condition under that mutex, and whose change the waiter did not see, comes
//!   after that release and sees it listed. Without the mutex there is nothing to promise.
//! - No user code runs in here but the closure of `enter`, and none under the lock.

use super::signal::{Signal, Wake};
use crate::primitive::plant::{Bug, planted};
use crate::primitive::{AtomicUsize, Mutex, Ordering, UnsafeCell};
use std::cell::Cell;
use std::ptr;

/// Waiters told per hold of the lock by [`Queue::notify_all`].
const BATCH: usize = 16;

/// A FIFO of waiting threads.
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

/// A waiter's place in the queue, on its stack.
struct Node<S: Signal> {
    signal: S,
    links: UnsafeCell<Links<S>>,
}

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
    fn release_first(&mut self, limit: u64) -> Option<S::Address> {
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
        let address = node.signal.address();
        node.signal.set();
        Some(address)
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
    /// `f` releases the user's mutex and then calls [`Entry::sleep`]. Should it end otherwise (a
    /// panic in a foreign lock's code) a notify that had been meant for it goes to the next.
    #[inline]
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&Entry<'_, S>) -> R) -> R {
        let node = Node {
            signal: S::new(),
            links: UnsafeCell::new(Links {
                previous: ptr::null(),
                next: ptr::null(),
                ticket: 0,
                listed: false,
            }),
        };
        self.with_list(|list| list.push(&node));
        // Dropped before `node`, and out of the caller's hands: the node never leaves listed.
        let entry = Entry { queue: self, node: &node, done: Cell::new(false) };
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
        match self.with_list(|list| list.release_first(u64::MAX)) {
            Some(address) => {
                S::wake(address);
                true
            }
            None => false,
        }
    }

    fn release_all(&self) -> usize {
        let mut total = 0;
        // Whoever enters later, woken threads that wait again included, is not meant.
        let mut limit = None;
        loop {
            let mut batch: [Option<S::Address>; BATCH] = [const { None }; BATCH];
            let n = self.with_list(|list| {
                let limit = *limit.get_or_insert(list.tickets);
                let mut n = 0;
                while n < BATCH
                    && let Some(address) = list.release_first(limit)
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

/// A waiter's own view of its place in the queue.
pub(crate) struct Entry<'a, S: Signal> {
    queue: &'a Queue<S>,
    node: &'a Node<S>,
    /// Off the list, and a notify, if there was one, has been reported.
    done: Cell<bool>,
}

impl<S: Signal> Entry<'_, S> {
    /// Whether a notify has come; then no list knows this waiter any more.
    #[inline]
    pub(crate) fn is_notified(&self) -> bool {
        let notified = self.node.signal.is_set();
        if notified {
            self.done.set(true);
        }
        notified
    }

    /// Blocks until a notify (true) or until `deadline` has passed without one (false).
    #[inline]
    pub(crate) fn sleep(&self, deadline: Option<u64>) -> bool {
        while !self.is_notified() {
            if self.node.signal.wait(deadline) == Wake::TimedOut {
                if planted(Bug::TrustTheClock) {
                    self.leave();
                    return false;
                }
                return self.leave();
            }
        }
        true
    }

    /// Ends the wait; true when a notify came first.
    #[cold]
    fn leave(&self) -> bool {
        self.done.set(true);
        !self.queue.with_list(|list| list.unlink(self.node))
    }
}

impl<S: Signal> Drop for Entry<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if !self.done.get() && self.leave() {
            self.queue.notify_one();
        }
    }
}
