//! The simulation's executor: tasks, whose turn it is, and who wakes them.

use super::{Shared, Sim};
use crate::primitive::plain::{Mutex, lock};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// Tasks that this thread is polling right now, one inside the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// See [`DEPTH`].
pub(super) fn depth() -> usize {
    DEPTH.with(Cell::get)
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task of a [`Sim`]. Dropping it lets the task run on.
#[derive(Debug)]
pub struct Task<T> {
    sim: Weak<Shared>,
    id: u64,
    output: Arc<Mutex<Option<T>>>,
}

struct Slot {
    /// Absent while it is polled.
    future: Option<Boxed>,
    waker: Waker,
    /// In the ready queue, or woken while it was being polled.
    woken: bool,
}

/// All tasks, by number; so that nothing depends on addresses.
pub(super) struct Tasks {
    slots: BTreeMap<u64, Slot>,
    ready: VecDeque<u64>,
    spawned: u64,
    running: usize,
    /// Shuffles the ready queue when there is a seed.
    shuffle: bool,
    random: u64,
}

struct TaskWaker {
    sim: Weak<Shared>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.sim.upgrade() {
            lock(&shared.state).tasks.wake(self.id);
            shared.changed.notify_all();
            // Were this the last reference, the tasks would be dropped here, with no lock held.
        }
    }
}

impl Tasks {
    pub(super) fn new(seed: Option<u64>) -> Self {
        Tasks {
            slots: BTreeMap::new(),
            ready: VecDeque::new(),
            spawned: 0,
            running: 0,
            shuffle: seed.is_some(),
            random: seed.unwrap_or(0),
        }
    }

    /// SplitMix64.
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True when a task can run.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Tasks being polled, by any thread.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    fn wake(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if !std::mem::replace(&mut slot.woken, true) && slot.future.is_some() {
            self.ready.push_back(id);
        }
    }

    /// Takes the next task that can run.
    fn pick(&mut self) -> Option<(u64, Boxed, Waker)> {
        while !self.ready.is_empty() {
            let at = match self.shuffle {
                true => (self.random() % self.ready.len() as u64) as usize,
                false => 0,
            };
            let id = self.ready.remove(at).expect("the position is within the queue");
            // It may have been cancelled since.
            if let Some(slot) = self.slots.get_mut(&id)
                && let Some(future) = slot.future.take()
            {
                slot.woken = false;
                self.running += 1;
                return Some((id, future, slot.waker.clone()));
            }
        }
        None
    }

    /// A task waits again; returns the future when the task was cancelled meanwhile.
    fn put_back(&mut self, id: u64, future: Boxed) -> Option<Boxed> {
        let Some(slot) = self.slots.get_mut(&id) else { return Some(future) };
        slot.future = Some(future);
        if slot.woken {
            self.ready.push_back(id);
        }
        None
    }
}

/// Ends the poll of a task; one that panicked is gone.
struct Running<'a> {
    sim: &'a Sim,
    id: u64,
    waits: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        DEPTH.with(|d| d.set(d.get() - 1));
        let mut state = self.sim.lock();
        state.tasks.running -= 1;
        let gone = if self.waits { None } else { state.tasks.slots.remove(&self.id) };
        drop(state);
        self.sim.shared.changed.notify_all();
        drop(gone);
    }
}

impl Sim {
    /// Adds a task. It runs when the simulation next runs tasks; futures that it makes belong to the
    /// simulation.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let output = Arc::new(Mutex::new(None));
        let slot = output.clone();
        let future = Box::pin(async move {
            let value = future.await;
            *lock(&slot) = Some(value);
        });
        let mut state = self.lock();
        let id = state.tasks.spawned;
        state.tasks.spawned += 1;
        let waker = Waker::from(Arc::new(TaskWaker { sim: Arc::downgrade(&self.shared), id }));
        state.tasks.slots.insert(id, Slot { future: Some(future), waker, woken: false });
        state.tasks.wake(id);
        drop(state);
        self.shared.changed.notify_all();
        Task { sim: Arc::downgrade(&self.shared), id, output }
    }

    /// Polls one task that can run; false when there is none.
    pub(super) fn run_task(&self) -> bool {
        let Some((id, mut future, waker)) = self.lock().tasks.pick() else { return false };
        DEPTH.with(|d| d.set(d.get() + 1));
        let mut running = Running { sim: self, id, waits: false };
        let _entered = self.enter();
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => drop(future),
            Poll::Pending => {
                running.waits = true;
                let cancelled = self.lock().tasks.put_back(id, future);
                drop(cancelled);
            }
        }
        true
    }
}

impl<T> Task<T> {
    /// True when it has ended: by itself, by a panic, or because it was cancelled.
    pub fn is_finished(&self) -> bool {
        match self.sim.upgrade() {
            Some(shared) => !lock(&shared.state).tasks.slots.contains_key(&self.id),
            None => true,
        }
    }

    /// Takes what it returned, once it has.
    pub fn take(&self) -> Option<T> {
        lock(&self.output).take()
    }

    /// Drops the task's future now, or, when it is just being polled, right after.
    pub fn cancel(&self) {
        if let Some(shared) = self.sim.upgrade() {
            let slot = lock(&shared.state).tasks.slots.remove(&self.id);
            drop(slot);
        }
    }
}
