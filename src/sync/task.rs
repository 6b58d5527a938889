//! How a waiting task is told: a flag and the waker to call, under one small lock.
//!
//! The lock makes "set the flag and take the waker" one step. Were the waker taken first, a task that
//! moves to another executor thread in between would leave its new waker unread and see no flag: it
//! would sleep for ever. And were the flag seen without the lock, the task could end, and its memory
//! go, while the notifier is still about to take the waker.

use super::queue::Entry;
use super::signal::{Signal, Told};
use crate::primitive::Mutex;
use crate::primitive::plant::{Bug, planted};
use std::task::{Context, Poll, Waker};

/// The signal of a task.
#[derive(Debug)]
pub(crate) struct TaskSignal(Mutex<State>);

#[derive(Debug)]
struct State {
    told: Option<Told>,
    waker: Option<Waker>,
}

impl Signal for TaskSignal {
    type Address = Option<Waker>;

    fn new() -> Self {
        TaskSignal(Mutex::new(State { told: None, waker: None }))
    }

    fn set(&self, told: Told) -> Option<Waker> {
        if planted(Bug::WakerFirst) {
            let waker = self.0.lock().waker.take();
            self.0.lock().told = Some(told);
            return waker;
        }
        let mut state = self.0.lock();
        state.told = Some(told);
        state.waker.take()
    }

    fn told(&self) -> Option<Told> {
        self.0.lock().told
    }

    fn wake(waker: Option<Waker>) {
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl TaskSignal {
    /// Leaves the waker to be called; false when the flag is set already.
    fn leave_waker(&self, waker: &Waker) -> bool {
        {
            let state = self.0.lock();
            match &state.waker {
                _ if state.told.is_some() => return false,
                Some(old) if old.will_wake(waker) => return true,
                _ => {}
            }
        }
        // A clone is user code: outside of the lock, so look again.
        let fresh = waker.clone();
        let mut state = self.0.lock();
        let listens = state.told.is_none();
        let old = if listens { state.waker.replace(fresh) } else { Some(fresh) };
        drop(state);
        // So is a drop.
        drop(old);
        listens
    }
}

impl Entry<'_, TaskSignal> {
    /// Ready once a notify has come; leaves the task's waker until then.
    pub(crate) fn poll_told(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_told() || !self.signal().leave_waker(cx.waker()) {
            // Takes note of it.
            self.is_told();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
