//! Time moved by hand.

use crate::clock;
use crate::park::scripted::ScriptedAlarm;
use crate::tick::NEVER;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The clock of a driver made by [`Driver::manual`](super::Driver::manual). It stands still until it is
/// moved. Clones move the same clock.
///
/// Its instants are ordinary ones that lie near the machine's start; take them from
/// [`now`](ManualClock::now), not from `Instant::now()`.
#[derive(Clone)]
pub struct ManualClock(Arc<ScriptedAlarm>);

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}

impl ManualClock {
    pub(super) fn new(alarm: Arc<ScriptedAlarm>) -> Self {
        ManualClock(alarm)
    }

    /// The clock's present.
    pub fn now(&self) -> Instant {
        clock::instant_of(self.0.now())
    }

    /// Moves the clock forward by `d`, at most to its end (584 years). Fires nothing by itself: turn the
    /// driver, or let a parked one notice.
    pub fn advance(&self, d: Duration) {
        self.0.advance(d);
    }

    /// Moves the clock to `instant`, forward or back. Time that runs backwards is a fault to test
    /// against: no timer completes earlier by it.
    pub fn set(&self, instant: Instant) {
        self.0.set(clock::reading_of(instant));
    }

    /// With `true`, a parked driver moves the clock to its next wake by itself, instead of waiting for
    /// somebody to move it.
    pub fn set_auto_advance(&self, on: bool) {
        self.0.set_auto_advance(on);
    }

    /// What the driver's kernel timer stands at.
    pub fn armed(&self) -> Option<Instant> {
        self.0.armed().map(clock::instant_of)
    }

    /// Starts recording the calls that set the kernel timer, and hands out those recorded since the last
    /// call: when it was made, and for when (`None`: switched off).
    pub fn take_arms(&self) -> Vec<(Instant, Option<Instant>)> {
        let arms = self.0.take_arms();
        let at = |at: u64| (at != NEVER).then(|| clock::instant_of(at));
        arms.into_iter().map(|(now, armed)| (clock::instant_of(now), at(armed))).collect()
    }
}
