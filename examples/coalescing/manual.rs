//! The same run on a clock that is moved by hand: nothing takes time, and the same seed gives the same
//! run.
//!
//! The driver's thread and its loop are those of the real run, and two threads bring the mix's timers
//! here too. But only one thread moves at a time: after each step this one waits until the driver is
//! parked again, and a source answers when it has registered what it was given.

use crate::run::{Counted, Run};
use crate::serve::Server;
use crate::task::{Clock, Stage, Task};
use crate::usage::Usage;
use crate::workload::{Plan, Round, SOURCES, What};
use slackwheel::{Driver, ManualClock};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Runs the plan; `step` is called before each round.
pub(crate) fn run(plan: &Plan, step: &mut dyn FnMut(usize)) -> Run {
    let (driver, hand) = Driver::manual();
    let handle = driver.handle();
    let clock = Clock::manual(hand.clone());
    let give_up = AtomicBool::new(false);
    let mut run = Run::default();
    let before = Usage::of_process();
    thread::scope(|scope| {
        let server = Server::spawn(scope, driver, &give_up);
        let sources = [(); SOURCES].map(|()| {
            let (group, groups) = channel();
            let (brought, is_brought) = channel();
            scope.spawn(move || bring(&groups, &brought));
            (group, is_brought)
        });
        for (i, round) in plan.rounds.iter().enumerate() {
            step(i);
            let stage = Stage::new(round, handle, &clock);
            server.begin(&stage.shared);
            let stepper = Stepper { hand: &hand, clock: &clock, stage: &stage };
            stepper.settle();
            stepper.play(round, &sources);
            // Nothing is left to be waited for, unless a timer was lost.
            let patience = if stage.shared.left() > 0 { Duration::ZERO } else { Duration::MAX };
            let served = server.end(patience);
            run.starts.push(stage.shared.start());
            run.windows.extend(stage.windows(i));
            run.wakeups.extend(served.wakeups(i));
        }
        run.counted = Counted::default().by_driver(&server.finish());
    });
    run.counted.cpu_ns = (Usage::of_process().cpu - before.cpu).as_nanos() as u64;
    run
}

type Group = Vec<Arc<Task>>;

/// A source: registers what it is given, and says when it has.
fn bring(groups: &Receiver<Group>, brought: &Sender<()>) {
    for group in groups {
        group.iter().for_each(Task::start);
        if brought.send(()).is_err() {
            return;
        }
    }
}

/// Plays a round, step by step.
struct Stepper<'a> {
    hand: &'a ManualClock,
    clock: &'a Clock,
    stage: &'a Stage,
}

impl Stepper<'_> {
    fn play(&self, round: &Round, sources: &[(Sender<Group>, Receiver<()>)]) {
        let Stage { shared, tasks } = self.stage;
        shared.begin();
        if round.actions.is_empty() {
            tasks.iter().for_each(Task::start);
        }
        for action in &round.actions {
            let at = shared.start() + action.at;
            self.serve_until(at);
            // The driver's loop ends with the last timer: whatever is left in the script finds nobody.
            if shared.left() == 0 {
                return;
            }
            self.hand.set(self.clock.instant(at));
            match &action.what {
                What::Register(group) => {
                    let group = group.iter().map(|i| tasks[*i].clone()).collect();
                    let (bring, brought) = &sources[action.source];
                    bring.send(group).expect("a source runs");
                    brought.recv().expect("a source runs");
                }
                What::Wake => shared.handle.unpark(),
            }
            self.settle();
        }
        self.serve_until(u64::MAX);
    }

    /// Moves the clock from wake to wake, up to `at`.
    fn serve_until(&self, at: u64) {
        while self.stage.shared.left() > 0 {
            match self.hand.armed() {
                Some(wake) if self.clock.ns_of(wake) <= at => self.hand.set(wake),
                _ => return,
            }
            self.settle();
        }
    }

    /// Waits until the driver is parked again, or has completed the round.
    fn settle(&self) {
        while !self.hand.is_parked() && self.stage.shared.left() > 0 {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ClockKind, Slack};
    use crate::report::Report;

    #[test]
    fn every_promise_is_kept_and_the_same_seed_gives_the_same_run() {
        let slacks = [0, 1_000_000, 10_000_000, 100_000_000].map(Slack::Nanos);
        for slack in slacks.into_iter().chain([Slack::Mixed]) {
            for seed in 0..3 {
                let play = || run(&Plan::new(200, 0.5, slack, seed), &mut |_| {});
                let (one, two) = (play(), play());
                let report = Report::new(slack, &one);
                assert_eq!(report.broken(ClockKind::Manual), Vec::<String>::new());
                assert_eq!((report.timers, report.at_once), (800, 10));
                let told = |run: &Run| {
                    let Counted { wakeups, arm_calls, .. } = run.counted;
                    format!("{:?} {:?} {wakeups} {arm_calls}", run.windows, run.wakeups)
                };
                assert_eq!(told(&one), told(&two));
            }
        }
    }
}
