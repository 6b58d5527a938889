//! Waiting on a futex: no descriptor at all. What is left when the process has run out of them.
//!
//! One word, one waiting thread, an absolute time on the monotonic clock, with the thread's timer slack set
//! to the window for the length of the call. A futex wait, unlike an epoll timeout, is not stretched
//! beyond that.
//!
//! Nobody else can move the wait: an insert before the armed time wakes the thread (a kick). Other clocks
//! are waited for by their distance; nothing tells that the wall clock was set, so with a timer of
//! that clock pending no wait is longer than [`LOOK`]. The boottime clock's suspensions are noticed then,
//! too.

use super::{Alarm, Armed, Clocks, Expiry, Halves, Park};
use crate::clock::{self, Clock};
use crate::primitive::plain::{AtomicU32, AtomicU64, Ordering::SeqCst};
use crate::sys::futex;
use crate::sys::slack::Scoped;
use crate::tick::{NEVER, after};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait while a timer of another clock is pending: one second.
const LOOK: u64 = 1_000_000_000;

const QUIET: u32 = 0;
const RUNG: u32 = 1;

struct Shared {
    word: AtomicU32,
    armed: [AtomicU64; Clock::COUNT],
    /// From when on the wait may end by the kernel's choice, on the monotonic clock.
    from: AtomicU64,
}

impl Shared {
    fn ring(&self) {
        if self.word.swap(RUNG, SeqCst) == QUIET {
            futex::wake(&self.word);
        }
    }
}

struct FutexAlarm {
    clock: Clock,
    shared: Arc<Shared>,
}

impl FutexAlarm {
    fn armed(&self) -> &AtomicU64 {
        &self.shared.armed[self.clock as usize]
    }
}

impl Alarm for FutexAlarm {
    fn arm(&self, at: u64, remote: bool) -> Armed {
        let before = self.armed().swap(at, SeqCst);
        if remote && at < before {
            self.shared.ring();
            Armed::Kick
        } else {
            Armed::Quiet
        }
    }

    fn take_expiry(&self) -> Expiry {
        let mut at = self.armed().load(SeqCst);
        if self.clock == Clock::Monotonic {
            at = at.min(self.shared.from.swap(NEVER, SeqCst));
        }
        if at > self.clock.reading() {
            return Expiry::NotYet;
        }
        self.armed().store(NEVER, SeqCst);
        Expiry::Expired
    }

    fn has_come(&self, at: u64) -> bool {
        self.clock.reading() >= at
    }

    fn ring(&self) {
        self.shared.ring();
    }

    fn open(&self, clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        Ok(Arc::new(FutexAlarm { clock, shared: self.shared.clone() }))
    }
}

struct FutexPark(Arc<Shared>);

impl FutexPark {
    /// When the wait must end for the clocks but the monotonic one, on that.
    fn others(&self, now: u64) -> u64 {
        [Clock::Boottime, Clock::Realtime]
            .into_iter()
            .filter_map(|clock| match self.0.armed[clock as usize].load(SeqCst) {
                NEVER => None,
                at => Some(now + at.saturating_sub(clock.reading()).min(LOOK)),
            })
            .min()
            .unwrap_or(NEVER)
    }
}

impl Park for FutexPark {
    fn wait(&mut self, max: Option<Duration>, from: &dyn Fn(u64) -> u64) -> io::Result<Clocks> {
        let at = self.0.armed[Clock::Monotonic as usize].load(SeqCst);
        let now = clock::monotonic();
        let other = self.others(now).min(max.map_or(NEVER, |max| after(now, max)));
        // The kernel's choice within the window, as long as nothing else is before its end.
        let (from, to) = match at {
            NEVER => (NEVER, NEVER),
            at => (from(at).min(at), at),
        };
        // Only for the books: whether the wait's time had come when it ended.
        self.0.from.store(from, SeqCst);
        let (from, to) = (from.min(other), to.min(other));
        if self.0.word.load(SeqCst) == QUIET {
            let deadline = (from != NEVER).then_some(from);
            let _slack = deadline.map(|_| Scoped::new(to - from));
            futex::wait(&self.0.word, QUIET, deadline);
        }
        self.0.word.store(QUIET, SeqCst);
        let expired = |c: &Clock| {
            let mut at = self.0.armed[*c as usize].load(SeqCst);
            if *c == Clock::Monotonic {
                at = at.min(self.0.from.load(SeqCst));
            }
            at != NEVER && at <= c.reading()
        };
        Ok(Clock::ALL.into_iter().filter(expired).fold(Clocks::default(), Clocks::with))
    }
}

/// A parker. Cannot fail.
pub(crate) fn build() -> Halves {
    let armed = [const { AtomicU64::new(NEVER) }; Clock::COUNT];
    let shared =
        Arc::new(Shared { word: AtomicU32::new(QUIET), armed, from: AtomicU64::new(NEVER) });
    let alarm = FutexAlarm { clock: Clock::Monotonic, shared: shared.clone() };
    (Box::new(FutexPark(shared)), Arc::new(alarm))
}
