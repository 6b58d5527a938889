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

/// One herd at a time: so a waker is its index and nothing else, and costs no memory access.
static SHARED: Mutex<Shared> = Mutex::new(Shared { woken: Vec::new(), parent: None });

static VTABLE: RawWakerVTable =
    RawWakerVTable::new(|index| RawWaker::new(index, &VTABLE), wake, wake, |_| {});

fn wake(index: *const ()) {
    let mut shared = SHARED.lock().unwrap();
    shared.woken.push(index.addr() as u32);
    let parent = if shared.woken.len() == 1 { shared.parent.take() } else { None };
    drop(shared);
    if let Some(parent) = parent {
        parent.wake();
    }
}

/// The waker of the sleep at `index`.
pub fn waker(index: usize) -> Waker {
    // SAFETY: the table's functions take the data as a number and never as a pointer; a clone is the same
    // number and a drop does nothing.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::without_provenance(index), &VTABLE)) }
}

/// What becomes of a sleep that has completed.
pub enum Next {
    Done,
    /// A new sleep in its place.
    Sleep(Duration, Duration),
}

struct Place<S> {
    /// `None`: dropped.
    sleep: Option<S>,
    /// Completed: a waker that comes once more must not poll it again.
    done: bool,
}

/// Sleeps in place: they are polled and dropped where they are, and never move.
pub struct Herd<S> {
    places: Vec<Place<S>>,
    pub left: usize,
    taken: Vec<u32>,
}

impl<S: Future<Output = ()>> Herd<S> {
    /// A herd of at most `n`, instead of the last one.
    pub fn new(n: usize) -> Self {
        let mut shared = SHARED.lock().unwrap();
        shared.woken = Vec::with_capacity(n);
        shared.parent = None;
        Herd { places: Vec::with_capacity(n), left: 0, taken: Vec::with_capacity(n) }
    }

    /// Bytes of its own storage.
    pub fn bytes(&self) -> f64 {
        let lists = self.taken.capacity() + SHARED.lock().unwrap().woken.capacity();
        (self.places.capacity() * size_of::<Place<S>>() + lists * size_of::<u32>()) as f64
    }

    /// Makes the sleeps' own storage resident.
    pub fn touch(&mut self) {
        for place in self.places.spare_capacity_mut() {
            // SAFETY: the place is this vector's own and unused; what is written is not read.
            unsafe { place.as_mut_ptr().cast::<u8>().write_volatile(0) };
        }
    }

    /// Adds a sleep and polls it.
    #[inline]
    pub fn add(&mut self, sleep: S) {
        let i = self.places.len();
        assert!(i < self.places.capacity(), "the vector must not move its sleeps");
        self.places.push(Place { sleep: Some(sleep), done: false });
        self.left += 1;
        self.poll_one(i);
    }

    #[inline]
    fn poll_one(&mut self, i: usize) -> bool {
        let Place { sleep: Some(sleep), done } = &mut self.places[i] else { return false };
        if *done {
            return false;
        }
        // SAFETY: a sleep stays in its place in the vector, which never grows, until it is dropped there.
        let sleep = unsafe { Pin::new_unchecked(sleep) };
        match sleep.poll(&mut Context::from_waker(&waker(i))) {
            Poll::Ready(()) => {
                *done = true;
                self.left -= 1;
                true
            }
            Poll::Pending => false,
        }
    }

    /// Drops a sleep.
    pub fn drop_one(&mut self, i: usize) {
        let place = &mut self.places[i];
        self.left -= !place.done as usize;
        place.done = true;
        // In its place: it is pinned.
        place.sleep = None;
    }

    /// Drops all sleeps.
    pub fn clear(&mut self) {
        self.places.clear();
    }

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
                let mut shared = SHARED.lock().unwrap();
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
                    self.places[i] = Place { sleep: Some(make(d, slack)), done: false };
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
