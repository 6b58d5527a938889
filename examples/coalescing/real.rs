//! A run on the machine's clock: the driver parks in a loop on a thread of its own, this thread and two
//! others bring it timers.
//!
//! The kernel's counting starts when the driver's thread is about to park and no timer is there yet, and
//! ends when the last task of the round has completed; what lies between the rounds is not counted. No
//! thread starts or ends while it goes on.

use crate::run::{Counted, Run};
use crate::serve::Server;
use crate::task::{Clock, Shared, Stage, Task};
use crate::usage::Usage;
use crate::workload::{Action, Plan, Round, SOURCES, What};
use slackwheel::{BuildError, Driver};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

/// How long after twice a round's length its timers are given up as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the plan; `step` is called before each round, while nothing is counted.
pub(crate) fn run(plan: &Plan, step: &mut dyn FnMut(usize)) -> Result<Run, BuildError> {
    let driver = Driver::new()?;
    let handle = driver.handle();
    let clock = Clock::real();
    let give_up = AtomicBool::new(false);
    let patience = 2 * Duration::from_nanos(plan.round_ns) + PATIENCE;
    let mut run = Run::default();
    let mut counted = Counted { kernel: Some(0), driver_kernel: Some(0), ..Counted::default() };
    thread::scope(|scope| {
        let server = Server::spawn(scope, driver, &give_up);
        for (i, round) in plan.rounds.iter().enumerate() {
            step(i);
            let stage = Stage::new(round, handle, &clock);
            let sources = Sources::spawn(scope, round, &stage);
            server.begin(&stage.shared);

            let before = Usage::of_process();
            stage.shared.begin();
            if round.actions.is_empty() {
                stage.tasks.iter().for_each(Task::start);
            }
            sources.begin();
            let served = server.end(patience);
            let after = Usage::of_process();
            sources.end();

            let switches = after.switches.zip(before.switches).map(|(a, b)| a - b);
            counted.kernel = sum(counted.kernel, switches);
            counted.driver_kernel = sum(counted.driver_kernel, served.switches);
            counted.cpu_ns += (after.cpu - before.cpu).as_nanos() as u64;
            run.starts.push(stage.shared.start());
            run.windows.extend(stage.windows(i));
            run.wakeups.extend(served.wakeups(i));
        }
        run.counted = counted.by_driver(&server.finish());
    });
    Ok(run)
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a + b)
}

/// The threads that bring a round's timers while it goes on, and wake the driver now and then.
struct Sources {
    begin: Vec<Sender<()>>,
    /// Dropped to let them end.
    end: Vec<Sender<()>>,
}

impl Sources {
    /// None for a round without actions.
    fn spawn<'s>(scope: &'s Scope<'s, '_>, round: &'s Round, stage: &Stage) -> Sources {
        let mut sources = Sources { begin: Vec::new(), end: Vec::new() };
        if round.actions.is_empty() {
            return sources;
        }
        for source in 0..SOURCES {
            let (begin, begun) = channel();
            let (end, ended) = channel::<()>();
            sources.begin.push(begin);
            sources.end.push(end);
            let (shared, tasks) = (stage.shared.clone(), stage.tasks.clone());
            let actions = round.actions.iter().filter(move |a| a.source == source);
            scope.spawn(move || {
                if begun.recv().is_ok() {
                    actions.for_each(|action| act(action, &shared, &tasks));
                }
                // A thread that ended would take its counters along before they are read.
                let _ = ended.recv();
            });
        }
        sources
    }

    fn begin(&self) {
        for source in &self.begin {
            source.send(()).expect("a source waits to begin");
        }
    }

    fn end(self) {
        drop(self.end);
    }
}

fn act(action: &Action, shared: &Shared, tasks: &[Arc<Task>]) {
    let due = shared.start() + action.at;
    thread::sleep(Duration::from_nanos(due.saturating_sub(shared.clock.ns())));
    match &action.what {
        What::Register(group) => group.iter().for_each(|i| tasks[*i].start()),
        What::Wake => shared.handle.unpark(),
    }
}
