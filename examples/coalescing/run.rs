//! What a run leaves behind.

use serde::Serialize;
use slackwheel::Metrics;

/// A timer that was served. Times are nanoseconds since the run's start.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) round: usize,
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
    pub(crate) registered: u64,
    /// When its task completed, as that task read the clock.
    pub(crate) fired: Option<u64>,
}

/// What made the driver return from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cause {
    /// The kernel timer, also when something from outside came at the same moment.
    Timer,
    /// Something that is no timer. Also the echo of such an event that had come a moment before, while
    /// the driver was awake.
    Outside,
    /// Neither: a wakeup for nothing.
    None,
}

#[derive(Clone, Debug)]
pub(crate) struct Wakeup {
    pub(crate) round: usize,
    /// The first reading of the clock on the driver's thread after it: by the first task it completed,
    /// else by the loop.
    pub(crate) at: u64,
    pub(crate) cause: Cause,
}

/// Counted from a round's start to its end, summed over the rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// By the driver.
    pub(crate) wakeups: u64,
    pub(crate) arm_calls: u64,
    pub(crate) kick_calls: u64,
    /// By the kernel: voluntary context switches of all threads, and of the driver's. Absent where they
    /// cannot be read, and on the manual clock, which waits in no kernel.
    pub(crate) kernel: Option<u64>,
    pub(crate) driver_kernel: Option<u64>,
    pub(crate) cpu_ns: u64,
}

impl Counted {
    /// With what the driver counted.
    pub(crate) fn by_driver(self, m: &Metrics) -> Counted {
        let Metrics { wakeups, arm_calls, kick_calls, .. } = *m;
        Counted { wakeups, arm_calls, kick_calls, ..self }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) windows: Vec<Window>,
    pub(crate) wakeups: Vec<Wakeup>,
    pub(crate) counted: Counted,
    /// When each round started.
    pub(crate) starts: Vec<u64>,
}
