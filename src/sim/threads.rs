//! The threads of a simulation: who is busy, who waits, and who then moves time.

use super::{Shared, Sim, Step};
use crate::primitive::plain::{MutexGuard, lock};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The simulations this thread is registered with, and its number in each.
    static HERE: RefCell<Vec<(*const Shared, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A thread's registration with a [`Sim`]: while it lives, time advances by itself only when this thread is
/// parked in [`block_on`](SimThread::block_on) or [`idle`](SimThread::idle).
///
/// ```
/// use slackwheel::sim::Sim;
/// use std::time::Duration;
///
/// let sim = Sim::new();
/// let main = sim.thread();
/// let other = {
///     let sim = sim.clone();
///     // Registered before it runs: time stands still until it waits.
///     let hold = sim.hold();
///     std::thread::spawn(move || {
///         let thread = sim.thread();
///         drop(hold);
///         thread.block_on(sim.handle().sleep(Duration::from_secs(3600)));
///         sim.elapsed()
///     })
/// };
/// main.block_on(sim.handle().sleep(Duration::from_secs(1800)));
/// let waiting = main.idle();
/// assert!(other.join().unwrap() >= Duration::from_secs(3600));
/// # drop(waiting);
/// ```
pub struct SimThread {
    sim: Sim,
    id: u64,
    /// Of the registrations of one thread with one simulation only the outermost counts.
    outermost: bool,
    /// The registration is the thread's.
    here: PhantomData<*const ()>,
}

/// While it lives, its thread counts as parked. See [`SimThread::idle`].
#[must_use = "the thread counts as parked only while this lives"]
pub struct Idle<'a> {
    thread: &'a SimThread,
    parked: bool,
}

#[derive(Default)]
pub(super) struct Threads {
    slots: BTreeMap<u64, Slot>,
    registered: u64,
    busy: usize,
}

#[derive(Default)]
struct Slot {
    idle: bool,
    woken: bool,
}

impl Threads {
    /// Registered threads that are not parked.
    pub(super) fn busy(&self) -> usize {
        self.busy
    }

    fn set_idle(&mut self, id: u64, idle: bool) {
        if let Some(slot) = self.slots.get_mut(&id)
            && slot.idle != idle
        {
            slot.idle = idle;
            if idle {
                self.busy -= 1;
            } else {
                self.busy += 1;
            }
        }
    }

    /// A thread is busy from the moment it is woken, not from when it has noticed.
    fn wake(&mut self, id: u64) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.woken = true;
        }
        self.set_idle(id, false);
    }

    fn take_woken(&mut self, id: u64) -> bool {
        self.slots.get_mut(&id).is_some_and(|slot| std::mem::take(&mut slot.woken))
    }
}

struct ThreadWaker {
    sim: Weak<Shared>,
    id: u64,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.sim.upgrade() {
            lock(&shared.state).threads.wake(self.id);
            shared.changed.notify_all();
        }
    }
}

impl std::fmt::Debug for SimThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimThread").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Idle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idle").field("parked", &self.parked).finish_non_exhaustive()
    }
}

impl Sim {
    fn number_here(&self) -> Option<u64> {
        let me = Arc::as_ptr(&self.shared);
        HERE.with_borrow(|here| here.iter().find(|h| h.0 == me).map(|h| h.1))
    }

    /// One when this thread is registered and busy, else zero.
    pub(super) fn here(&self) -> usize {
        let Some(id) = self.number_here() else { return 0 };
        self.lock().threads.slots.get(&id).is_some_and(|slot| !slot.idle) as usize
    }

    /// Registers this thread, until the guard is dropped. A thread that is about to start is best covered by
    /// a [`hold`](Sim::hold) until it has registered.
    pub fn thread(&self) -> SimThread {
        if let Some(id) = self.number_here() {
            return SimThread { sim: self.clone(), id, outermost: false, here: PhantomData };
        }
        let mut state = self.lock();
        let id = state.threads.registered;
        state.threads.registered += 1;
        state.threads.busy += 1;
        state.threads.slots.insert(id, Slot::default());
        drop(state);
        HERE.with_borrow_mut(|here| here.push((Arc::as_ptr(&self.shared), id)));
        SimThread { sim: self.clone(), id, outermost: true, here: PhantomData }
    }

    /// Waits until this thread is woken; meanwhile it runs tasks, and moves time when everybody is idle.
    fn park(&self, id: u64) {
        let mut state = self.lock();
        loop {
            if state.threads.take_woken(id) {
                state.threads.set_idle(id, false);
                return;
            }
            if state.tasks.is_ready() {
                state.threads.set_idle(id, false);
                drop(state);
                self.run_task();
                state = self.lock();
                continue;
            }
            if !state.threads.slots.get(&id).is_some_and(|slot| slot.idle) {
                state.threads.set_idle(id, true);
                self.shared.changed.notify_all();
            }
            state = match self.try_step(id, state) {
                Ok((state, _)) => state,
                Err(state) => self.wait_for_change(state),
            };
        }
    }

    /// Makes the next wakeup when everybody is idle and there is one; else gives the lock back. The thread
    /// is idle before, busy during the step.
    fn try_step<'a>(
        &'a self,
        id: u64,
        mut state: MutexGuard<'a, super::State>,
    ) -> Result<(MutexGuard<'a, super::State>, usize), MutexGuard<'a, super::State>> {
        let next = state.driver.as_ref().and_then(|driver| driver.next_wake());
        if next.is_none() || state.turning.is_some() || !state.is_idle(0) {
            return Err(state);
        }
        state.threads.set_idle(id, false);
        drop(state);
        let fired = match self.step(None, |state| state.is_idle(1)) {
            Step::Turned(fired) => fired,
            Step::Nothing | Step::Inside => 0,
        };
        Ok((self.lock(), fired))
    }
}

impl SimThread {
    /// Runs a future on this thread until it is done. See [`Sim::block_on`].
    ///
    /// # Panics
    /// When the future, a task or a waker panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let sim = &self.sim;
        let _entered = sim.enter();
        let waker = ThreadWaker { sim: Arc::downgrade(&sim.shared), id: self.id };
        let waker = Waker::from(Arc::new(waker));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            sim.park(self.id);
        }
    }

    /// Says that this thread waits in its own way, outside of the simulation, while the guard lives: for the
    /// park hook of a foreign executor, or around a blocking call.
    ///
    /// When that makes everybody idle, time advances right here, and the guard counts as parked only if
    /// nothing fired: a host that was woken by it does not sleep but looks again. Whoever gives work to a
    /// thread that is idle in this way should pass a [`hold`](Sim::hold) along with it, else time may move
    /// before the thread has noticed.
    pub fn idle(&self) -> Idle<'_> {
        let sim = &self.sim;
        while sim.run_task() {}
        let mut state = sim.lock();
        state.threads.set_idle(self.id, true);
        loop {
            match sim.try_step(self.id, state) {
                Ok((_, fired)) if fired > 0 => return Idle { thread: self, parked: false },
                Ok((again, _)) => {
                    state = again;
                    state.threads.set_idle(self.id, true);
                }
                Err(_) => {
                    sim.shared.changed.notify_all();
                    return Idle { thread: self, parked: true };
                }
            }
        }
    }
}

impl Idle<'_> {
    /// False when time advanced and something fired: then the thread should look for work, not wait.
    pub fn is_parked(&self) -> bool {
        self.parked
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if self.parked {
            self.thread.sim.lock().threads.set_idle(self.thread.id, false);
        }
    }
}

impl Drop for SimThread {
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        let me = Arc::as_ptr(&self.sim.shared);
        HERE.with_borrow_mut(|here| here.retain(|h| h.0 != me));
        let mut state = self.sim.lock();
        // Also when it unwinds from a park, idle.
        state.threads.set_idle(self.id, false);
        state.threads.slots.remove(&self.id);
        state.threads.busy -= 1;
        drop(state);
        self.sim.shared.changed.notify_all();
    }
}
