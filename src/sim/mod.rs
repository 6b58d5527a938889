//! Simulated time: a test clock for any executor and any number of threads.
//!
//! A [`Sim`] owns a driver on a clock that is moved by hand. Above the parker it is the code of the real
//! driver: a simulated wakeup is a park that the clock ended, at the instant at which the kernel timer stood,
//! so that what a test counts here is what a program pays later.
//!
//! - [`advance`](Sim::advance) moves time and makes the wakeups on the way, in order: whoever is woken by a
//!   timer due at 10 ms sees 10 ms, not the end of the advance.
//! - [`advance_to_next`](Sim::advance_to_next) goes to the next wakeup, however far.
//! - [`run_until_idle`](Sim::run_until_idle) and [`block_on`](Sim::block_on) advance by themselves whenever
//!   everybody is idle: every task of the simulation waits, and every thread registered with
//!   [`thread`](Sim::thread) is parked in it or [said so](SimThread::idle). A [`hold`](Sim::hold) keeps time
//!   still while work is done elsewhere.
//! - [`cost`](Sim::cost) and [`assert_wakeups`](Sim::assert_wakeups) count wakeups.
//!
//! ```
//! use slackwheel::sim::Sim;
//! use std::time::Duration;
//!
//! let sim = Sim::new();
//! let ms = Duration::from_millis;
//! for i in 0..40 {
//!     sim.spawn(async move { slackwheel::sleep_range(ms(100 + i), ms(150 + i)).await });
//! }
//! sim.assert_wakeups(1, || sim.run_until_idle());
//! assert_eq!(sim.elapsed(), ms(150));
//! ```
//!
//! # Executors
//!
//! The simulation brings a small executor, deterministic when one thread runs it: tasks run in the order in
//! which they were woken or, with a [seed](Sim::seeded), in an order that the seed decides and that replays.
//! Any other executor works as well. Drive it by hand, between the steps of
//! [`advance_with`](Sim::advance_with); or run it on a thread that [registered](Sim::thread) and announces
//! its parks through [`SimThread::idle`]; or poll futures yourself. Futures find the simulation's driver
//! by [`enter`](Sim::enter) or through its [`handle`](Sim::handle).
//!
//! # Ground rules
//!
//! - Time moves forward only, under the state's lock, and never while a turn is under way elsewhere.
//! - The driver is out of the state while it turns, so wakers may use the simulation. A call from a waker
//!   that would move time moves the clock and leaves the firing to the turn that is under way.
//! - A waker makes its thread, or its task, count as busy before it returns. So nobody sees an idle
//!   simulation between a wake and the reaction to it.

mod tasks;
mod threads;

pub use tasks::Task;
pub use threads::{Idle, SimThread};

use crate::clock;
use crate::driver::{Driver, EnterGuard, Handle, ManualClock};
use crate::primitive::plain::{Condvar, Mutex, MutexGuard, PoisonError, lock};
use crate::tick;
use std::future::Future;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use tasks::Tasks;
use threads::Threads;

/// A simulation: a driver, its clock, tasks and threads. Clones are the same simulation; it ends with the
/// last of them. See the [module's documentation](self).
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
}

struct Shared {
    handle: Handle,
    clock: ManualClock,
    start: Instant,
    seed: Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Absent while it turns, and once it was shut down.
    driver: Option<Driver>,
    /// The thread on which it turns.
    turning: Option<ThreadId>,
    shut_down: bool,
    auto_advance: bool,
    holds: usize,
    tasks: Tasks,
    threads: Threads,
}

/// What happened in a simulation: wakeups are returns from the (simulated) kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// Wakeups of the driver.
    pub wakeups: u64,
    /// Of these, the ones that fired nothing.
    pub spurious: u64,
    /// Timers fired.
    pub fired: u64,
}

/// Keeps time from advancing by itself while it lives. May be sent along with work to another thread.
#[must_use = "time is held only while this lives"]
pub struct Hold(Sim);

/// What one step did.
enum Step {
    /// The driver turned, and fired so many.
    Turned(usize),
    /// No wakeup lies ahead, or none before the limit.
    Nothing,
    /// Called from a waker: a turn of this thread is under way.
    Inside,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}

impl Default for Sim {
    fn default() -> Self {
        Sim::new()
    }
}

impl Sim {
    /// A simulation whose tasks run in the order in which they are woken. Time advances by itself when
    /// everybody is idle.
    pub fn new() -> Sim {
        Sim::build(None)
    }

    /// A simulation whose tasks run in an order that `seed` decides: the same seed replays the same order.
    pub fn seeded(seed: u64) -> Sim {
        Sim::build(Some(seed))
    }

    fn build(seed: Option<u64>) -> Sim {
        let (driver, clock) = Driver::manual();
        // A park is made only when a wakeup is to happen: it goes there, and does not wait.
        clock.set_auto_advance(true);
        let handle = driver.handle();
        let state = State {
            driver: Some(driver),
            turning: None,
            shut_down: false,
            auto_advance: true,
            holds: 0,
            tasks: Tasks::new(seed),
            threads: Threads::default(),
        };
        let shared = Shared {
            handle,
            start: clock.now(),
            clock,
            seed,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Sim { shared: Arc::new(shared) }
    }

    /// The seed, when it has one: print it where a test fails.
    pub fn seed(&self) -> Option<u64> {
        self.shared.seed
    }

    /// The next number of the simulation's own random sequence; the same for the same seed and the same
    /// calls before.
    pub fn random(&self) -> u64 {
        self.lock().tasks.random()
    }

    /// A handle of the simulation's driver.
    pub fn handle(&self) -> Handle {
        self.shared.handle
    }

    /// While the guard lives, futures made on this thread belong to the simulation.
    pub fn enter(&self) -> EnterGuard {
        self.shared.handle.enter()
    }

    /// The present. Its instants are ordinary ones that lie near the machine's start.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// How much time has passed since the simulation was made.
    pub fn elapsed(&self) -> Duration {
        self.now().saturating_duration_since(self.shared.start)
    }

    /// With `false` time moves only by [`advance`](Sim::advance) and its kin; with `true` (the default) also
    /// by itself when everybody is idle.
    pub fn set_auto_advance(&self, on: bool) {
        self.lock().auto_advance = on;
        self.shared.changed.notify_all();
    }

    /// Keeps time from advancing by itself while the guard lives; explicit advances still work. For work
    /// outside of the simulation that is going to wake somebody in it.
    pub fn hold(&self) -> Hold {
        self.lock().holds += 1;
        Hold(self.clone())
    }

    /// Runs the tasks that can run, and waits until every registered thread (but this one) is parked. Time
    /// stands still.
    pub fn settle(&self) {
        let me = self.here();
        loop {
            while self.run_task() {}
            let state = self.lock();
            if state.tasks.is_ready() {
                continue;
            }
            if state.threads.busy() <= me && state.tasks.running() <= tasks::depth() {
                return;
            }
            drop(self.wait_for_change(state));
        }
    }

    /// Runs tasks, and whenever everybody is idle advances to the next wakeup, until nothing is left to
    /// wait for. With auto-advance off, or held, it only [settles](Sim::settle). Never returns while an
    /// interval keeps ticking.
    pub fn run_until_idle(&self) {
        let me = self.here();
        loop {
            self.settle();
            match self.step(None, |state| state.is_idle(me)) {
                Step::Turned(_) => {}
                Step::Nothing | Step::Inside => return,
            }
        }
    }

    /// Moves time forward by `d`, making the wakeups on the way one by one at their instants, and running
    /// tasks in between and at the end. At its end time is exactly `d` later, or later still when somebody
    /// advanced further meanwhile. Time past the clock's end (584 years) stays there.
    ///
    /// What a driver would not wake for is not fired: a window that is open at the end, but need not be served
    /// yet, stays pending. It completes when it is polled, or when time next moves: that begins, as every
    /// wait of a driver does, with what is open while it is awake anyway.
    ///
    /// From inside a task it advances for all others; from inside a waker it only moves the clock.
    pub fn advance(&self, d: Duration) {
        self.advance_to(clock::instant_of(tick::after(self.reading(), d)));
    }

    /// As [`advance`](Sim::advance), to `instant`; does nothing when that has passed.
    pub fn advance_to(&self, instant: Instant) {
        self.advance_while(Some(instant), || self.settle());
    }

    /// As [`advance`](Sim::advance), calling `run` after every step, and first: for the host of another
    /// executor, to run its tasks until they all wait.
    ///
    /// ```
    /// use futures::{executor::LocalPool, task::LocalSpawnExt};
    /// use slackwheel::sim::Sim;
    /// use std::{cell::RefCell, rc::Rc, time::Duration};
    ///
    /// let (sim, mut pool, log) = (Sim::new(), LocalPool::new(), Rc::new(RefCell::new(vec![])));
    /// for ms in [25, 10] {
    ///     let (handle, sim, log) = (sim.handle(), sim.clone(), log.clone());
    ///     pool.spawner()
    ///         .spawn_local(async move {
    ///             handle.sleep(Duration::from_millis(ms)).await;
    ///             log.borrow_mut().push(sim.elapsed().as_millis());
    ///         })
    ///         .unwrap();
    /// }
    /// sim.advance_with(Duration::from_millis(100), || pool.run_until_stalled());
    /// assert_eq!(*log.borrow(), [10, 25]);
    /// ```
    pub fn advance_with(&self, d: Duration, mut run: impl FnMut()) {
        let instant = clock::instant_of(tick::after(self.reading(), d));
        self.advance_while(Some(instant), || {
            run();
            self.settle();
        });
    }

    /// Moves time to the next wakeup that fires something and runs the tasks it woke. Returns the present
    /// then, or `None`, with time unmoved, when no wakeup lies ahead.
    pub fn advance_to_next(&self) -> Option<Instant> {
        self.settle();
        loop {
            match self.step(None, |_| true) {
                Step::Turned(0) => {}
                Step::Turned(_) => {
                    let now = self.now();
                    self.settle();
                    return Some(now);
                }
                Step::Nothing | Step::Inside => return None,
            }
        }
    }

    fn advance_while(&self, until: Option<Instant>, mut run: impl FnMut()) {
        if self.is_turning_here() {
            if let Some(until) = until {
                self.move_to(until);
            }
            return;
        }
        loop {
            run();
            match self.step(until, |_| true) {
                Step::Turned(_) => {}
                Step::Nothing | Step::Inside => break,
            }
        }
        run();
    }

    /// What `f` costs in wakeups.
    pub fn cost<R>(&self, f: impl FnOnce() -> R) -> (R, Cost) {
        let before = self.counts();
        let result = f();
        let after = self.counts();
        let cost = Cost {
            wakeups: after.wakeups.saturating_sub(before.wakeups),
            spurious: after.spurious.saturating_sub(before.spurious),
            fired: after.fired.saturating_sub(before.fired),
        };
        (result, cost)
    }

    /// Checks that `f` costs exactly so many wakeups.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn assert_wakeups<R>(&self, wakeups: u64, f: impl FnOnce() -> R) -> R {
        let (result, cost) = self.cost(f);
        assert!(cost.wakeups == wakeups, "expected {wakeups} wakeups, there were: {cost:?}");
        result
    }

    fn counts(&self) -> Cost {
        match self.shared.handle.metrics() {
            Ok(m) => Cost { wakeups: m.wakeups, spurious: m.spurious, fired: m.fired },
            // Its driver has been shut down: nothing happens any more.
            Err(_) => Cost::default(),
        }
    }

    /// Drops the simulation's driver, as a program does at its end: what is pending is woken once and never
    /// completes. Doing so twice does nothing.
    pub fn shut_down(&self) {
        let mut state = self.lock();
        state.shut_down = true;
        // During a turn the driver is elsewhere; the turn's end sees the mark.
        let driver = state.driver.take();
        drop(state);
        drop(driver);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> u64 {
        clock::reading_of(self.now())
    }

    fn is_turning_here(&self) -> bool {
        self.lock().turning == Some(thread::current().id())
    }

    fn move_to(&self, instant: Instant) {
        let _state = self.lock();
        self.shared.clock.advance(instant.saturating_duration_since(self.now()));
    }

    /// Makes the next wakeup, when it lies not after `until` and `when` allows. When none does, moves the
    /// clock to `until`.
    fn step(&self, until: Option<Instant>, when: impl Fn(&State) -> bool) -> Step {
        let me = thread::current().id();
        let mut state = self.lock();
        while let Some(other) = state.turning {
            if other == me {
                return Step::Inside;
            }
            state = self.wait_for_change(state);
        }
        if !when(&state) {
            return Step::Nothing;
        }
        let now = self.now();
        let next = state.driver.as_ref().and_then(Driver::next_wake);
        match (next, until) {
            (Some(next), until) if until.is_none_or(|until| next <= until) => {
                let driver = state.driver.take();
                state.turning = Some(me);
                drop(state);
                let mut turning = Turning { sim: self, driver };
                let driver = turning.driver.as_mut().expect("it has just been taken");
                // Ends at the armed time, which the clock then jumps to; or at once, when something is due.
                // The limit only keeps it from waiting for ever, were the timer cancelled right now.
                Step::Turned(driver.park(Some(next.saturating_duration_since(now))).fired)
            }
            (_, Some(until)) => {
                self.shared.clock.advance(until.saturating_duration_since(now));
                Step::Nothing
            }
            (_, None) => Step::Nothing,
        }
    }
}

impl State {
    /// Nobody can do anything but wait, not counting `me` (0 or 1) busy thread, the caller's own.
    fn is_idle(&self, me: usize) -> bool {
        self.auto_advance
            && self.holds == 0
            && self.threads.busy() <= me
            && self.tasks.running() <= tasks::depth()
            && !self.tasks.is_ready()
    }
}

/// Brings the driver back, also when a waker panicked.
struct Turning<'a> {
    sim: &'a Sim,
    driver: Option<Driver>,
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        let mut state = self.sim.lock();
        state.turning = None;
        if !state.shut_down {
            state.driver = self.driver.take();
        }
        drop(state);
        self.sim.shared.changed.notify_all();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.lock().holds -= 1;
        self.0.shared.changed.notify_all();
    }
}

impl Sim {
    /// Runs a future on this thread until it is done, and the simulation's tasks beside it. Time advances
    /// when everybody is idle (see [`set_auto_advance`](Sim::set_auto_advance)); else the thread really waits
    /// until something is woken or time is moved from another thread.
    ///
    /// # Panics
    /// When the future, a task or a waker panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.thread().block_on(future)
    }
}
