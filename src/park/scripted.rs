//! The parker of a manual clock: the clocks themselves, kernel timers that expire when their clock is
//! moved past them, and a record of what they were asked to do.

use super::{Alarm, Armed, Clocks, Expiry, Park};
use crate::clock::{Clock, MANUAL_START};
use crate::primitive::plain::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, lock};
use crate::tick::{NEVER, after};
use std::io;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct Script {
    armed: [Option<u64>; Clock::COUNT],
    /// The realtime clock was set while its timer was armed.
    clock_set: bool,
    rung: bool,
    auto_advance: bool,
    /// While a thread waits: its wait's `until`.
    waiting: Option<u64>,
    /// `(clock, armed for)` of every arm call of the monotonic timer, while recording.
    arms: Option<Vec<(u64, u64)>>,
}

/// Clocks moved by hand, and who waits for them.
pub(crate) struct ManualClocks {
    now: [AtomicU64; Clock::COUNT],
    script: Mutex<Script>,
    changed: Condvar,
}

impl ManualClocks {
    pub(crate) fn new() -> Self {
        ManualClocks {
            // Apart from each other, so that readings that are mixed up show.
            now: [
                AtomicU64::new(MANUAL_START),
                AtomicU64::new(3 * MANUAL_START),
                AtomicU64::new(1000 * MANUAL_START),
            ],
            script: Mutex::new(Script::default()),
            changed: Condvar::new(),
        }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    /// The clock's reading.
    pub(crate) fn now(&self, clock: Clock) -> u64 {
        self.now[clock as usize].load(Ordering::SeqCst)
    }

    /// Moves the monotonic clock to `at`, also back: clocks are broken in this way, and drivers must
    /// bear it. The others move along when it is forward.
    pub(crate) fn set(&self, at: u64) {
        let before = self.now[0].swap(at, Ordering::SeqCst);
        self.add(
            &[Clock::Boottime, Clock::Realtime],
            Duration::from_nanos(at.saturating_sub(before)),
        );
    }

    /// Moves all clocks forward by `d`, at most to their end.
    pub(crate) fn advance(&self, d: Duration) {
        self.add(&Clock::ALL, d);
    }

    /// The machine sleeps for `d`: the monotonic clock stands still.
    pub(crate) fn suspend(&self, d: Duration) {
        self.add(&[Clock::Boottime, Clock::Realtime], d);
    }

    /// Somebody sets the realtime clock.
    pub(crate) fn set_realtime(&self, at: u64) {
        let mut script = self.script();
        self.now[Clock::Realtime as usize].store(at, Ordering::SeqCst);
        script.clock_set |= script.armed[Clock::Realtime as usize].is_some();
        drop(script);
        self.changed.notify_all();
    }

    fn add(&self, clocks: &[Clock], d: Duration) {
        // The lock orders this after a waiting thread's look at the clocks.
        let script = self.script();
        for clock in clocks {
            let now = &self.now[*clock as usize];
            now.store(after(now.load(Ordering::SeqCst), d), Ordering::SeqCst);
        }
        drop(script);
        self.changed.notify_all();
    }

    /// Whether a parked driver moves the clocks to its next armed time by itself.
    pub(crate) fn set_auto_advance(&self, on: bool) {
        self.script().auto_advance = on;
        self.changed.notify_all();
    }

    /// What the clock's kernel timer stands at.
    pub(crate) fn armed(&self, clock: Clock) -> Option<u64> {
        self.script().armed[clock as usize]
    }

    /// How far off the end of a wait is, whatever it comes from; `until` is on the monotonic clock.
    /// `None` when only a later event can end it.
    fn ahead(&self, script: &Script, until: u64) -> Option<u64> {
        if script.rung || script.clock_set {
            return Some(0);
        }
        let timers = Clock::ALL.into_iter().filter_map(|c| Some((script.armed[c as usize]?, c)));
        let until = (until != NEVER).then_some((until, Clock::Monotonic));
        timers.chain(until).map(|(at, clock)| at.saturating_sub(self.now(clock))).min()
    }

    /// True while the driver's thread waits and nothing that has happened so far will end that wait. A
    /// thread that was woken but has not run yet does not count as waiting.
    pub(crate) fn is_parked(&self) -> bool {
        let script = self.script();
        script.waiting.is_some_and(|until| match self.ahead(&script, until) {
            Some(ahead) => ahead > 0 && !script.auto_advance,
            None => true,
        })
    }

    /// Keeps every arm call of the monotonic timer from now on; hands out those kept so far.
    pub(crate) fn take_arms(&self) -> Vec<(u64, u64)> {
        self.script().arms.replace(Vec::new()).unwrap_or_default()
    }
}

/// The timer of one of the clocks.
pub(crate) struct ScriptedAlarm {
    pub(crate) clocks: Arc<ManualClocks>,
    pub(crate) clock: Clock,
}

impl Alarm for ScriptedAlarm {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        let now = self.clocks.now(self.clock);
        let mut script = self.clocks.script();
        script.armed[self.clock as usize] = (at != NEVER).then_some(at);
        if self.clock == Clock::Monotonic
            && let Some(arms) = &mut script.arms
        {
            arms.push((now, at));
        }
        drop(script);
        self.clocks.changed.notify_all();
        Armed::Timer
    }

    fn take_expiry(&self) -> Expiry {
        let mut script = self.clocks.script();
        let armed = script.armed[self.clock as usize];
        if self.clock == Clock::Realtime && std::mem::take(&mut script.clock_set) {
            script.armed[self.clock as usize] = None;
            Expiry::ClockSet
        } else if armed.is_some_and(|at| at <= self.clocks.now(self.clock)) {
            script.armed[self.clock as usize] = None;
            Expiry::Expired
        } else {
            Expiry::NotYet
        }
    }

    fn has_come(&self, at: u64) -> bool {
        at <= self.clocks.now(self.clock)
    }

    fn ring(&self) {
        self.clocks.script().rung = true;
        self.clocks.changed.notify_all();
    }

    fn open(&self, clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        Ok(Arc::new(ScriptedAlarm { clocks: self.clocks.clone(), clock }))
    }
}

pub(crate) struct ScriptedPark(pub(crate) Arc<ManualClocks>);

impl Park for ScriptedPark {
    /// `max` counts on the manual monotonic clock.
    fn wait(&mut self, max: Option<Duration>, _from: &dyn Fn(u64) -> u64) -> io::Result<Clocks> {
        let clocks = &*self.0;
        let until = max.map_or(NEVER, |max| after(clocks.now(Clock::Monotonic), max));
        let mut script = clocks.script();
        loop {
            match clocks.ahead(&script, until) {
                Some(0) => {
                    script.rung = false;
                    return Ok(Clocks::ALL);
                }
                Some(ahead) if script.auto_advance => {
                    drop(script);
                    clocks.advance(Duration::from_nanos(ahead));
                    return Ok(Clocks::ALL);
                }
                _ => {}
            }
            script.waiting = Some(until);
            script = clocks.changed.wait(script).unwrap_or_else(PoisonError::into_inner);
            script.waiting = None;
        }
    }
}
