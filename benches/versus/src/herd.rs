//! Many sleeps in one task, each with a waker of its own: what a `FuturesUnordered` does, at about 6 ns a
//! wake and without allocating, so that the timers are what is measured.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

struct Shared {
    woken: Vec<u32>,
    parent: Option<Waker>,
}

struct Node {
    shared: &'static Mutex<Shared>,
    index: u32,
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |node| RawWaker::new(node, &VTABLE),
    wake,
    wake,
    |_| {},
);

fn wake(node: *const ()) {
    // SAFETY: the pointer is to a leaked `Node` (see `Herd::new`), shared for ever.
    let node = unsafe { &*node.cast::<Node>() };
    let mut shared = node.shared.lock().unwrap();
    shared.woken.push(node.index);
    let parent = if shared.woken.len() == 1 { shared.parent.take() } else { None };
    drop(shared);
    if let Some(parent) = parent {
        parent.wake();
    }
}

/// The wakers of a herd, made before anything is measured.
pub struct Wakers {
    shared: &'static Mutex<Shared>,
    nodes: &'static [Node],
}

impl Wakers {
    /// Leaks its nodes: wakers may outlive everything, and the process ends soon.
    pub fn new(n: usize) -> Self {
        let shared: &'static Mutex<Shared> =
            Box::leak(Box::new(Mutex::new(Shared { woken: Vec::with_capacity(n), parent: None })));
        let nodes = (0..n as u32).map(|index| Node { shared, index }).collect::<Vec<_>>();
        Wakers { shared, nodes: nodes.leak() }
    }

    pub fn get(&self, index: usize) -> Waker {
        let node: *const Node = &self.nodes[index];
        // SAFETY: the table's functions expect a pointer to a leaked node; a clone is the same pointer
        // and a drop does nothing.
        unsafe { Waker::from_raw(RawWaker::new(node.cast(), &VTABLE)) }
    }
}

/// What becomes of a sleep that has completed.
pub enum Next {
    Done,
    /// A new sleep in its place.
    Sleep(Duration, Duration),
}

/// Sleeps in place: they never move once polled, and `None` has been dropped.
pub struct Herd<S> {
    sleeps: Vec<Option<S>>,
    /// Completed: a waker that comes once more must not poll it again.
    done: Vec<bool>,
    wakers: Wakers,
    pub left: usize,
    taken: Vec<u32>,
}

impl<S: Future<Output = ()>> Herd<S> {
    pub fn with_wakers(wakers: Wakers) -> Self {
        let n = wakers.nodes.len();
        Herd { sleeps: Vec::with_capacity(n), done: vec![false; n], wakers, left: 0, taken: Vec::with_capacity(n) }
    }

    /// Makes the sleeps' own storage resident.
    pub fn touch(&mut self) {
        for place in self.sleeps.spare_capacity_mut() {
            // SAFETY: the place is this vector's own and unused; what is written is not read.
            unsafe { place.as_mut_ptr().cast::<u8>().write_volatile(0) };
        }
    }

    /// Adds a sleep and polls it. At most as many as there are wakers.
    #[inline]
    pub fn add(&mut self, sleep: S) {
        let i = self.sleeps.len();
        assert!(i < self.sleeps.capacity(), "the vector must not move its sleeps");
        self.sleeps.push(Some(sleep));
        self.left += 1;
        self.poll_one(i);
    }

    #[inline]
    fn poll_one(&mut self, i: usize) -> bool {
        let Some(sleep) = self.sleeps[i].as_mut().filter(|_| !self.done[i]) else { return false };
        // SAFETY: a sleep stays in its place in the vector, which never grows, until it is dropped there.
        let sleep = unsafe { Pin::new_unchecked(sleep) };
        let waker = self.wakers.get(i);
        match sleep.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => {
                self.done[i] = true;
                self.left -= 1;
                true
            }
            Poll::Pending => false,
        }
    }

    /// Drops a sleep; true when it was there.
    pub fn drop_one(&mut self, i: usize) -> bool {
        self.left -= !self.done[i] as usize;
        self.done[i] = true;
        self.sleeps[i].take().is_some()
    }

    /// Drops all sleeps.
    pub fn clear(&mut self) {
        self.sleeps.clear();
    }
}

impl<S: Future<Output = ()>> Herd<S> {
    /// Polls every woken sleep; `make` makes the sleep that follows a completed one. True when none is
    /// left.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut done: impl FnMut(usize) -> Next,
        mut make: impl FnMut(Duration, Duration) -> S,
    ) -> bool {
        loop {
            {
                let mut shared = self.wakers.shared.lock().unwrap();
                std::mem::swap(&mut shared.woken, &mut self.taken);
                if self.taken.is_empty() {
                    match &mut shared.parent {
                        Some(old) if old.will_wake(cx.waker()) => {}
                        parent => *parent = Some(cx.waker().clone()),
                    }
                    return self.left == 0;
                }
            }
            for at in 0..self.taken.len() {
                let i = self.taken[at] as usize;
                if self.poll_one(i)
                    && let Next::Sleep(d, slack) = done(i)
                {
                    self.sleeps[i] = Some(make(d, slack));
                    self.done[i] = false;
                    self.left += 1;
                    self.poll_one(i);
                }
            }
            self.taken.clear();
            if self.left == 0 {
                return true;
            }
        }
    }
}
