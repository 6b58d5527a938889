//! A task that waits once, and reads the clock when it completes.

use crate::run::Window;
use crate::workload::{Round, Timer};
use slackwheel::{Handle, ManualClock, Sleep};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

/// No time yet.
const NONE: u64 = u64::MAX;

/// The clock of a run. The machine's is read past the driver, so that the driver's word is checked.
#[derive(Clone)]
pub(crate) struct Clock {
    base: Instant,
    manual: Option<ManualClock>,
}

impl Clock {
    pub(crate) fn real() -> Clock {
        Clock { base: Instant::now(), manual: None }
    }

    pub(crate) fn manual(clock: ManualClock) -> Clock {
        Clock { base: clock.now(), manual: Some(clock) }
    }

    /// Nanoseconds since the run's start.
    pub(crate) fn ns(&self) -> u64 {
        self.ns_of(self.manual.as_ref().map_or_else(Instant::now, ManualClock::now))
    }

    pub(crate) fn ns_of(&self, instant: Instant) -> u64 {
        (instant - self.base).as_nanos() as u64
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.base + Duration::from_nanos(ns)
    }
}

/// What the tasks of a round share.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) handle: Handle,
    /// When the round began: its times count from there.
    start: AtomicU64,
    left: AtomicUsize,
    /// The first completion by a waker since the last [`Shared::take_first`].
    first: AtomicU64,
}

impl Shared {
    /// The round begins now.
    pub(crate) fn begin(&self) {
        self.start.store(self.clock.ns(), Release);
    }

    pub(crate) fn start(&self) -> u64 {
        self.start.load(Acquire)
    }

    /// Tasks of the round that have not completed.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Acquire)
    }

    /// When the first waker since the last call completed its task, as that task read the clock.
    pub(crate) fn take_first(&self) -> Option<u64> {
        let first = self.first.swap(NONE, Relaxed);
        (first != NONE).then_some(first)
    }
}

pub(crate) struct Task {
    timer: Timer,
    shared: Arc<Shared>,
    sleep: Mutex<Option<Sleep>>,
    /// Calls to run it that have not been answered. Whoever raises it from zero polls, for all: so a
    /// waker never waits for the thread that is just registering the task.
    calls: AtomicUsize,
    registered: AtomicU64,
    fired: AtomicU64,
}

/// The tasks of a round.
pub(crate) struct Stage {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Vec<Arc<Task>>,
}

impl Stage {
    pub(crate) fn new(round: &Round, handle: Handle, clock: &Clock) -> Stage {
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            handle,
            start: AtomicU64::new(clock.ns()),
            left: AtomicUsize::new(round.timers.len()),
            first: AtomicU64::new(NONE),
        });
        let task = |timer: &Timer| {
            Arc::new(Task {
                timer: *timer,
                shared: shared.clone(),
                sleep: Mutex::new(None),
                calls: AtomicUsize::new(0),
                registered: AtomicU64::new(NONE),
                fired: AtomicU64::new(NONE),
            })
        };
        Stage { tasks: round.timers.iter().map(task).collect(), shared }
    }

    /// What became of the tasks.
    pub(crate) fn windows(&self, round: usize) -> impl Iterator<Item = Window> + '_ {
        self.tasks.iter().map(move |task| {
            let earliest = self.shared.start() + task.timer.earliest;
            let fired = task.fired.load(Acquire);
            Window {
                round,
                earliest,
                latest: earliest + task.timer.slack,
                registered: task.registered.load(Acquire),
                fired: (fired != NONE).then_some(fired),
            }
        })
    }
}

impl Task {
    /// Registers its timer from this thread; it is complete already when its window is open.
    pub(crate) fn start(self: &Arc<Self>) {
        let Shared { clock, handle, .. } = &*self.shared;
        let earliest = clock.instant(self.shared.start() + self.timer.earliest);
        let slack = Duration::from_nanos(self.timer.slack);
        let window = slackwheel::Window::with_slack(earliest, slack);
        *self.sleep() = Some(handle.sleep_window(window));
        self.registered.store(clock.ns(), Release);
        if self.run() && self.shared.left() == 0 {
            // The driver's loop may be waiting for this last one, which no timer will end.
            handle.unpark();
        }
    }

    fn sleep(&self) -> std::sync::MutexGuard<'_, Option<Sleep>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when this call completed it.
    fn run(self: &Arc<Self>) -> bool {
        let mut answered = self.calls.fetch_add(1, AcqRel) + 1;
        if answered > 1 {
            return false;
        }
        let mut completed = false;
        loop {
            completed |= self.poll();
            let before = self.calls.fetch_sub(answered, AcqRel);
            if before == answered {
                return completed;
            }
            answered = before - answered;
        }
    }

    fn poll(self: &Arc<Self>) -> bool {
        let mut slot = self.sleep();
        let Some(sleep) = &mut *slot else { return false };
        let waker = Waker::from(self.clone());
        if Pin::new(sleep).poll(&mut Context::from_waker(&waker)).is_pending() {
            return false;
        }
        self.fired.store(self.shared.clock.ns(), Release);
        *slot = None;
        self.shared.left.fetch_sub(1, AcqRel);
        true
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if self.run() {
            self.shared.first.fetch_min(self.fired.load(Relaxed), Relaxed);
        }
    }
}
