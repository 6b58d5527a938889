//! Waiting in epoll_pwait2 with a timeout that the kernel may stretch: its timer slack, set to the window.
//!
//! The kernel can then end this wait together with other timers of the same processor, which a timerfd
//! never does. Nothing is lost by it: any instant of the window `[L, H]` fires the same timers of those
//! pending at the park, H being the armed time and L the largest `earliest` up to H.
//!
//! Ground rules:
//! - The kernel adds to an epoll timeout the larger of the thread's slack and a thousandth of the
//!   timeout (a two-hundredth when nice > 0), at most 100 ms (`select_estimate_accuracy` in fs/select.c).
//!   So a window is given to it only when it is at least that wide; else the wait is for a timerfd at H,
//!   as in [`timerfd`](super::timerfd). Exact timers always take that way.
//! - The slack is set for the one call and set back before anything else runs: no waker sees it.
//! - A timeout belongs to the call: nobody can move it. An insert before the armed time wakes the
//!   thread (a kick); one that moves it later lets the wait end when it would have, for nothing.
//! - Other clocks have a timerfd each in the same epoll.
//! - Where the system lacks epoll_pwait2 (before Linux 5.11, some sandboxes) or timer slack, every
//!   wait takes the timerfd.

use super::timerfd::{RING, Shared, TimerAlarm, shared};
use super::{Alarm, Armed, Clocks, Expiry, Halves, Park};
use crate::clock::{self, Clock};
use crate::error::BuildError;
use crate::primitive::{AtomicU64, Ordering::SeqCst};
use crate::sys::sched;
use crate::sys::slack::{self, Scoped};
use crate::tick::{NEVER, nanos};
use std::io;
use std::sync::Arc;
use std::time::Duration;

struct SlackAlarm {
    /// Where the next wait must end.
    armed: AtomicU64,
    /// From when on a wait may end by the kernel's choice; at or before `armed` while one waits so.
    from: AtomicU64,
    /// The monotonic clock's timerfd, for windows too narrow for the kernel.
    timer: TimerAlarm,
    shared: Arc<Shared>,
}

impl Alarm for SlackAlarm {
    fn arm(&self, at: u64, remote: bool) -> Armed {
        let before = self.armed.swap(at, SeqCst);
        self.from.store(at, SeqCst);
        if remote && at < before {
            self.ring();
            Armed::Kick
        } else {
            Armed::Quiet
        }
    }

    fn take_expiry(&self) -> Expiry {
        let from = self.from.load(SeqCst).min(self.armed.load(SeqCst));
        if from > clock::monotonic() {
            return Expiry::NotYet;
        }
        self.armed.store(NEVER, SeqCst);
        self.from.store(NEVER, SeqCst);
        Expiry::Expired
    }

    fn has_come(&self, at: u64) -> bool {
        clock::monotonic() >= at
    }

    fn ring(&self) {
        self.timer.ring();
    }

    fn open(&self, clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        self.timer.open(clock)
    }
}

struct SlackPark {
    alarm: Arc<SlackAlarm>,
    /// The system has all it takes.
    able: bool,
    /// What the timerfd stands at.
    set: u64,
}

impl SlackPark {
    /// Sets the timerfd, when it stands at something else.
    fn set_timer(&mut self, at: u64) {
        if self.set != at {
            self.set = at;
            self.alarm.timer.arm(at, false);
        }
    }
}

/// What the kernel makes of an epoll timeout whatever the thread's slack is; at least this much.
fn estimate(timeout: u64, nice: bool) -> u64 {
    (timeout / if nice { 200 } else { 1000 }).min(100_000_000)
}

/// How to wait for `[from, at]`: the timeout and the slack, or `None` for the timerfd.
fn lent(now: u64, from: u64, at: u64, nice: bool) -> Option<(u64, u64)> {
    let timeout = from.saturating_sub(now);
    let slack = at - from;
    (at != NEVER && slack > 0 && slack >= estimate(timeout, nice)).then_some((timeout, slack))
}

impl Park for SlackPark {
    fn wait(&mut self, max: Option<Duration>, from: &dyn Fn(u64) -> u64) -> io::Result<Clocks> {
        let alarm = self.alarm.clone();
        let at = alarm.armed.load(SeqCst);
        let from = if self.able && at != NEVER { from(at).min(at) } else { at };
        let now = clock::monotonic();
        let max_ns = max.map_or(NEVER, nanos);
        let ready = match lent(now, from, at, sched::is_nice()) {
            Some((timeout, slack)) if timeout < max_ns => {
                self.set_timer(NEVER);
                // Only for the books: whether the wait's time had come when it ended.
                alarm.from.store(from, SeqCst);
                // Set back before this function returns.
                let _slack = Scoped::new(slack.min(slack::WIDEST));
                alarm.shared.wait(Some(Duration::from_nanos(timeout)))?
            }
            _ => {
                self.set_timer(at);
                alarm.shared.wait(max)?
            }
        };
        if ready.has(Clock::Monotonic as u32) {
            alarm.timer.take_expiry();
            self.set = NEVER;
        }
        if ready.has(RING) {
            alarm.shared.hush();
        }
        let expired = |c: &Clock| {
            // A timeout is told by no descriptor.
            ready.has(*c as u32) || *c == Clock::Monotonic && from <= clock::monotonic()
        };
        Ok(Clock::ALL.into_iter().filter(expired).fold(Clocks::default(), Clocks::with))
    }
}

/// A parker.
pub(crate) fn build() -> Result<Halves, BuildError> {
    let shared = shared()?;
    let timer = TimerAlarm::new(Clock::Monotonic, shared.clone());
    let timer = timer.map_err(BuildError::new("a timerfd"))?;
    let able = shared.has_fine_timeouts() && slack::get().is_some();
    let alarm = Arc::new(SlackAlarm {
        armed: AtomicU64::new(NEVER),
        from: AtomicU64::new(NEVER),
        timer,
        shared,
    });
    Ok((Box::new(SlackPark { alarm: alarm.clone(), able, set: NEVER }), alarm))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_windows_that_cover_the_kernels_own_stretch_are_lent() {
        // 10 s: the kernel adds 10 ms (50 ms when nice), so 1 ms would be overrun.
        let at = |from_ms: u64, slack_us: u64, nice| {
            lent(0, from_ms * MS, from_ms * MS + slack_us * 1000, nice)
        };
        assert_eq!(at(10_000, 1_000, false), None);
        assert_eq!(at(10_000, 10_000, false), Some((10_000 * MS, 10 * MS)));
        assert_eq!(at(10_000, 10_000, true), None);
        assert_eq!(at(10_000, 50_000, true), Some((10_000 * MS, 50 * MS)));
        // The stretch ends at 100 ms.
        assert_eq!(at(1_000_000, 99_999, false), None);
        assert!(at(1_000_000, 100_000, false).is_some());
        assert!(at(1, 2_000, false).is_some());
        // Exact timers, and no timers at all.
        assert_eq!(at(1, 0, false), None);
        assert_eq!(lent(5, NEVER, NEVER, false), None);
        // A window that began long ago: the kernel may take all that is left of it.
        assert_eq!(lent(9 * MS, MS, 10 * MS, false), Some((0, 9 * MS)));
    }
}
