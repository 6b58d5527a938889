//! The driver's thread: it parks in a loop, and notes each wakeup.

use crate::run::{Cause, Wakeup};
use crate::task::Shared;
use crate::usage::thread_switches;
use slackwheel::{Driver, Handle, Metrics};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// What the driver's thread tells of a round.
pub(crate) struct Served {
    wakeups: Vec<(u64, Cause)>,
    /// Voluntary context switches of the thread.
    pub(crate) switches: Option<u64>,
}

impl Served {
    pub(crate) fn wakeups(self, round: usize) -> impl Iterator<Item = Wakeup> {
        self.wakeups.into_iter().map(move |(at, cause)| Wakeup { round, at, cause })
    }
}

/// The other threads' end of the driver's.
pub(crate) struct Server<'s> {
    handle: Handle,
    rounds: Sender<Arc<Shared>>,
    ready: Receiver<()>,
    served: Receiver<Served>,
    give_up: &'s AtomicBool,
    thread: ScopedJoinHandle<'s, Metrics>,
}

const RUNS: &str = "the driver's thread runs";

impl<'s> Server<'s> {
    /// Starts the thread. `give_up` makes it leave a round whose timers were lost.
    pub(crate) fn spawn<'e>(
        scope: &'s Scope<'s, 'e>,
        mut driver: Driver,
        give_up: &'s AtomicBool,
    ) -> Server<'s> {
        let handle = driver.handle();
        let (rounds, next_round) = channel::<Arc<Shared>>();
        let (is_ready, ready) = channel();
        let (is_served, served) = channel();
        let thread = scope.spawn(move || {
            for shared in next_round {
                // A send fails only when the other side has panicked, and that is reported there.
                let _ = is_served.send(serve(&mut driver, &shared, &is_ready, give_up));
            }
            driver.handle().metrics().unwrap_or_default()
        });
        Server { handle, rounds, ready, served, give_up, thread }
    }

    /// Returns when the thread is about to park.
    pub(crate) fn begin(&self, round: &Arc<Shared>) {
        self.rounds.send(round.clone()).expect(RUNS);
        self.ready.recv().expect(RUNS);
    }

    /// Waits for the end of the round, at most `patience`.
    pub(crate) fn end(&self, patience: Duration) -> Served {
        match self.served.recv_timeout(patience) {
            Ok(served) => served,
            Err(RecvTimeoutError::Disconnected) => panic!("{RUNS}"),
            Err(RecvTimeoutError::Timeout) => {
                self.give_up.store(true, Release);
                self.handle.unpark();
                self.served.recv().expect(RUNS)
            }
        }
    }

    /// Ends the thread. Returns what its driver counted.
    pub(crate) fn finish(self) -> Metrics {
        drop(self.rounds);
        self.thread.join().expect("the driver's thread does not panic")
    }
}

/// The driver's loop for one round.
fn serve(driver: &mut Driver, shared: &Shared, ready: &Sender<()>, give_up: &AtomicBool) -> Served {
    let counters = |driver: &Driver| driver.handle().metrics().unwrap_or_default();
    // Room for all, so that the list does not grow in the loop.
    let mut wakeups = Vec::with_capacity(2 * shared.left());
    // Something from outside came while the driver was awake or had just been woken by its timer. It has
    // been told, but the kernel's part of it may still be on its way, and is then a wakeup of its own. One
    // event accounts for one such wakeup at most.
    let mut echo = false;
    let _ = ready.send(());
    let mut before = counters(driver);
    let switches = thread_switches();
    while shared.left() > 0 && !give_up.load(Acquire) {
        let turn = driver.park(None);
        let now = shared.clock.ns();
        let first = shared.take_first();
        let after = counters(driver);
        let by_timer = after.timer_wakeups > before.timer_wakeups;
        // A pass that found something due without waiting is no wakeup.
        if after.wakeups > before.wakeups {
            let outside = !by_timer && (turn.notified || std::mem::take(&mut echo));
            let cause = match (by_timer, outside) {
                (true, _) => Cause::Timer,
                (false, true) => Cause::Outside,
                (false, false) => Cause::None,
            };
            wakeups.push((first.unwrap_or(now), cause));
            echo |= by_timer && turn.notified;
        } else {
            echo |= turn.notified;
        }
        before = after;
    }
    let switches = thread_switches().zip(switches).map(|(after, before)| after - before);
    Served { wakeups, switches }
}
