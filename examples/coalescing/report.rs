//! The figures of a run.

use crate::args::{ClockKind, Slack};
use crate::optimum::optimum;
use crate::run::{Cause, Run};
use hdrhistogram::Histogram;
use serde::Serialize;

/// One object of `--json`, one row of the table. Counts are of all four rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(rename = "slack_ns")]
    pub(crate) slack: Slack,
    pub(crate) timers: usize,
    /// Tasks that completed.
    pub(crate) fired: usize,
    /// Returns from the kernel on the driver's thread, as the driver counts them, whatever the cause.
    pub(crate) wakeups: u64,
    /// Of these, the ones that something else than a timer caused.
    pub(crate) outside_wakeups: usize,
    /// Voluntary context switches of all threads: also of those that bring the timers.
    pub(crate) kernel_wakeups: Option<u64>,
    /// Those of the driver's thread alone.
    pub(crate) driver_kernel_wakeups: Option<u64>,
    /// The fewest wakeups that timers had to force.
    pub(crate) optimum: usize,
    /// (`wakeups` - `outside_wakeups`) / `optimum`. On the real clock it may be below 1: the kernel wakes
    /// a little after the moment it was asked for, and whatever has opened meanwhile is served too.
    pub(crate) ratio: f64,
    /// Timers that were eligible when they registered.
    pub(crate) at_once: usize,
    /// Completed before `earliest`.
    pub(crate) early: usize,
    /// Completed after `latest`. On the real clock that is usual for the window that forces a wakeup: the
    /// kernel is asked to wake at `latest`, and takes its time.
    pub(crate) missed: usize,
    /// By how much the worst of these.
    pub(crate) overrun_max_ns: u64,
    pub(crate) lateness_p50_ns: u64,
    pub(crate) lateness_p99_ns: u64,
    pub(crate) arm_calls: u64,
    pub(crate) kick_calls: u64,
    /// Of the whole process.
    pub(crate) cpu_ns: u64,
}

impl Report {
    pub(crate) fn new(slack: Slack, run: &Run) -> Report {
        let outside = run.wakeups.iter().filter(|w| w.cause == Cause::Outside);
        let free: Vec<u64> = outside.map(|w| w.at).collect();
        let optimum = optimum(&run.windows, &free);
        let forced = run.counted.wakeups as usize - free.len();
        let mut lateness = Histogram::<u64>::new_with_max(1 << 50, 3).expect("valid bounds");
        let (mut fired, mut early, mut missed, mut overrun_max) = (0, 0, 0, 0);
        for window in &run.windows {
            let Some(at) = window.fired else { continue };
            fired += 1;
            early += usize::from(at < window.earliest);
            missed += usize::from(at > window.latest);
            overrun_max = overrun_max.max(at.saturating_sub(window.latest));
            lateness.saturating_record(at.saturating_sub(window.earliest));
        }
        Report {
            slack,
            timers: run.windows.len(),
            fired,
            wakeups: run.counted.wakeups,
            outside_wakeups: free.len(),
            kernel_wakeups: run.counted.kernel,
            driver_kernel_wakeups: run.counted.driver_kernel,
            optimum,
            // Nothing had to be woken: every wakeup is one too many.
            ratio: if optimum == 0 { 1.0 + forced as f64 } else { forced as f64 / optimum as f64 },
            at_once: run.windows.iter().filter(|w| w.earliest <= w.registered).count(),
            early,
            missed,
            overrun_max_ns: overrun_max,
            lateness_p50_ns: lateness.value_at_quantile(0.5),
            lateness_p99_ns: lateness.value_at_quantile(0.99),
            arm_calls: run.counted.arm_calls,
            kick_calls: run.counted.kick_calls,
            cpu_ns: run.counted.cpu_ns,
        }
    }

    /// What the run broke of the crate's contract. Misses and the ratio depend on the machine, but not
    /// on a clock that is moved by hand.
    pub(crate) fn broken(&self, clock: ClockKind) -> Vec<String> {
        let mut broken = Vec::new();
        let mut check = |kept: bool, what: String| {
            if !kept {
                broken.push(format!("slack {}: {what}", self.slack));
            }
        };
        check(self.fired == self.timers, format!("{} of {} fired", self.fired, self.timers));
        check(self.early == 0, format!("{} fired early", self.early));
        if clock == ClockKind::Manual {
            check(self.missed == 0, format!("{} fired late", self.missed));
            check(self.ratio == 1.0, format!("{} wakeups per needed one", self.ratio));
        }
        broken
    }
}
