//! Time moved by hand.

use crate::clock::{self, BootInstant, Clock};
use crate::park::scripted::ManualClocks;
use crate::tick::NEVER;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The clock of a driver made by [`Driver::manual`](super::Driver::manual). It stands still until it is
/// moved. Clones move the same clock. A boottime and a wall clock go with it.
///
/// Its instants are ordinary ones that lie near the machine's start; take them from
/// [`now`](ManualClock::now), not from `Instant::now()`.
#[derive(Clone)]
pub struct ManualClock(Arc<ManualClocks>);

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}

impl ManualClock {
    pub(super) fn new(clocks: Arc<ManualClocks>) -> Self {
        ManualClock(clocks)
    }

    /// The clock's present.
    pub fn now(&self) -> Instant {
        clock::instant_of(self.0.now(Clock::Monotonic))
    }

    /// Moves the clock, and the other two with it, forward by `d`, at most to its end (584 years). Fires nothing by itself: turn the
    /// driver, or let a parked one notice.
    pub fn advance(&self, d: Duration) {
        self.0.advance(d);
    }

    /// Moves the clock to `instant`, forward or back. Time that runs backwards is a fault to test
    /// against: no timer completes earlier by it.
    pub fn set(&self, instant: Instant) {
        self.0.set(clock::reading_of(instant));
    }

    /// The present on the boottime clock, which counts suspensions.
    pub fn boottime(&self) -> BootInstant {
        BootInstant(self.0.now(Clock::Boottime))
    }

    /// The present on the wall clock.
    pub fn system_time(&self) -> SystemTime {
        clock::system_time(self.0.now(Clock::Realtime))
    }

    /// The machine is suspended for `d`: the boottime and the wall clock move, this one does not.
    pub fn suspend(&self, d: Duration) {
        self.0.suspend(d);
    }

    /// Somebody sets the wall clock, forward or back. The driver is told as the kernel would tell it:
    /// while a timer of that clock is armed.
    pub fn set_system_time(&self, time: SystemTime) {
        self.0.set_realtime(clock::system_reading(time));
    }

    /// With `true`, a parked driver moves the clock to its next wake by itself, instead of waiting for
    /// somebody to move it.
    pub fn set_auto_advance(&self, on: bool) {
        self.0.set_auto_advance(on);
    }

    /// True while the driver's thread is parked and nothing that has happened so far will wake it: a
    /// program that waits for this after each step runs the same way every time, though the driver has
    /// a thread of its own. Also false when no thread is in a park.
    ///
    /// ```
    /// use slackwheel::Driver;
    /// use std::time::Duration;
    ///
    /// let (mut driver, clock) = Driver::manual();
    /// let handle = driver.handle();
    /// let thread = std::thread::spawn(move || driver.park(None));
    /// while !clock.is_parked() {
    ///     std::thread::yield_now();
    /// }
    /// clock.advance(Duration::from_secs(3600));
    /// handle.unpark();
    /// assert!(thread.join().unwrap().notified);
    /// ```
    pub fn is_parked(&self) -> bool {
        self.0.is_parked()
    }

    /// What the driver's kernel timer stands at.
    pub fn armed(&self) -> Option<Instant> {
        self.0.armed(Clock::Monotonic).map(clock::instant_of)
    }

    /// Starts recording the calls that set the kernel timer, and hands out those recorded since the last
    /// call: when it was made, and for when (`None`: switched off).
    pub fn take_arms(&self) -> Vec<(Instant, Option<Instant>)> {
        let arms = self.0.take_arms();
        let at = |at: u64| (at != NEVER).then(|| clock::instant_of(at));
        arms.into_iter().map(|(now, armed)| (clock::instant_of(now), at(armed))).collect()
    }
}
