//! What the kernel says about this process.

use std::fs;
use std::time::Duration;

/// A reading of the kernel's counters.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) switches: Option<u64>,
    pub(crate) cpu: Duration,
}

impl Usage {
    /// Of all threads that live now. Two readings can be compared when no thread ends in between.
    pub(crate) fn of_process() -> Usage {
        Usage { switches: process_switches(), cpu: cpu() }
    }
}

/// Voluntary context switches of the calling thread: how often it gave up its CPU to wait.
pub(crate) fn thread_switches() -> Option<u64> {
    switches(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn process_switches() -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        sum += switches(&fs::read_to_string(task.ok()?.path().join("status")).ok()?)?;
    }
    Some(sum)
}

fn switches(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// CPU time of all threads. The files under `/proc` count it in ticks of 10 ms, too coarse here.
fn cpu() -> Duration {
    // SAFETY: a `timespec` is plain numbers, for which zeros are valid.
    let mut spent: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `timespec` of our own that outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut spent) };
    if failed != 0 {
        return Duration::ZERO;
    }
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_voluntary_switches_are_read() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(switches(status), Some(12));
        assert_eq!(switches("nonvoluntary_ctxt_switches:\t7\n"), None);
    }
}
