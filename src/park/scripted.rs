//! The parker of a manual clock: the clock itself, a kernel timer that expires when the clock is moved
//! past it, and a record of what it was asked to do.

use super::{Alarm, Armed, Park};
use crate::clock::MANUAL_START;
use crate::primitive::plain::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, lock};
use crate::tick::{NEVER, after};
use std::io;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct Script {
    armed: Option<u64>,
    rung: bool,
    auto_advance: bool,
    /// `(clock, armed for)` of every arm call, while recording.
    arms: Option<Vec<(u64, u64)>>,
}

/// See the module's header.
pub(crate) struct ScriptedAlarm {
    now: AtomicU64,
    script: Mutex<Script>,
    changed: Condvar,
}

impl ScriptedAlarm {
    pub(crate) fn new() -> Self {
        ScriptedAlarm {
            now: AtomicU64::new(MANUAL_START),
            script: Mutex::new(Script::default()),
            changed: Condvar::new(),
        }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    /// The clock's reading.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Moves the clock to `at`, also back: clocks are broken in this way, and drivers must bear it.
    pub(crate) fn set(&self, at: u64) {
        self.now.store(at, Ordering::SeqCst);
        self.moved();
    }

    /// Moves the clock forward by `d`, at most to its end.
    pub(crate) fn advance(&self, d: Duration) {
        let _ = self.now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(after(n, d)));
        self.moved();
    }

    fn moved(&self) {
        // Taking the lock orders this after a waiting thread's look at the clock.
        drop(self.script());
        self.changed.notify_all();
    }

    /// Whether a parked driver moves the clock to its armed time by itself.
    pub(crate) fn set_auto_advance(&self, on: bool) {
        self.script().auto_advance = on;
        self.changed.notify_all();
    }

    /// What the kernel timer stands at.
    pub(crate) fn armed(&self) -> Option<u64> {
        self.script().armed
    }

    /// Keeps every arm call from now on; hands out those kept so far.
    pub(crate) fn take_arms(&self) -> Vec<(u64, u64)> {
        self.script().arms.replace(Vec::new()).unwrap_or_default()
    }
}

impl Alarm for ScriptedAlarm {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        let now = self.now();
        let mut script = self.script();
        script.armed = (at != NEVER).then_some(at);
        if let Some(arms) = &mut script.arms {
            arms.push((now, at));
        }
        drop(script);
        self.changed.notify_all();
        Armed::Timer
    }

    fn take_expiry(&self) -> bool {
        let mut script = self.script();
        let expired = script.armed.is_some_and(|at| at <= self.now());
        if expired {
            script.armed = None;
        }
        expired
    }

    fn ring(&self) {
        self.script().rung = true;
        self.changed.notify_all();
    }
}

pub(crate) struct ScriptedPark(pub(crate) Arc<ScriptedAlarm>);

impl Park for ScriptedPark {
    /// `max` counts on the manual clock, too.
    fn wait(&mut self, max: Option<Duration>) -> io::Result<bool> {
        let alarm = &*self.0;
        let until = max.map_or(NEVER, |max| after(alarm.now(), max));
        let mut script = alarm.script();
        loop {
            if std::mem::take(&mut script.rung) {
                return Ok(true);
            }
            let end = script.armed.unwrap_or(NEVER).min(until);
            if end <= alarm.now() {
                return Ok(true);
            }
            if script.auto_advance && end != NEVER {
                alarm.now.fetch_max(end, Ordering::SeqCst);
                return Ok(true);
            }
            script = alarm.changed.wait(script).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
