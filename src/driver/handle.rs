//! Handles: how threads and futures reach a driver.

use super::core::{ClockLane, Core};
use super::{EnterGuard, default, enter};
use crate::clock::{self, Clock};
use crate::error::{BuildError, Shutdown};
use crate::metrics::Metrics;
use crate::tunables::SlackFloor;
use crate::window::Span;
use std::time::{Duration, Instant};

/// Refers to a driver: create timers on it from any thread. Copying one costs nothing and keeps nothing
/// alive: the driver lives as long as its owner.
///
/// Timers made through a handle whose driver has gone belong to the default driver (or, on a manual
/// clock, stay pending; see [`Sleep::is_orphaned`](crate::Sleep::is_orphaned)).
#[derive(Clone, Copy)]
pub struct Handle {
    pub(crate) core: &'static Core,
    pub(crate) life: u64,
    pub(crate) manual: bool,
    /// What the timers made through it are measured by.
    pub(crate) clock: Clock,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("life", &self.life)
            .field("manual_clock", &self.manual)
            .field("shut_down", &self.is_shut_down())
            .finish()
    }
}

/// The same driver, not merely an equal one.
impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.life == other.life
    }
}

impl Eq for Handle {}

impl Handle {
    pub(crate) fn new(core: &'static Core, life: u64) -> Self {
        Handle { core, life, manual: core.is_manual(), clock: Clock::Monotonic }
    }

    /// The driver this thread has entered, else the default driver. This is what the free functions of
    /// the crate use.
    #[inline]
    pub fn current() -> Handle {
        enter::entered().unwrap_or_else(default::handle)
    }

    /// The default driver, with its background thread running.
    ///
    /// # Errors
    /// [`BuildError`] when a descriptor cannot be made or the thread cannot be started. Timers of the
    /// default driver work even then: each poll tries again, and looks at the clock itself.
    pub fn try_default() -> Result<Handle, BuildError> {
        let handle = default::handle();
        default::ensure_driven(handle)?;
        Ok(handle)
    }

    /// While the guard lives, futures made on this thread belong to this driver.
    pub fn enter(&self) -> EnterGuard {
        enter::enter(*self)
    }

    /// The present on the driver's monotonic clock.
    pub fn now(&self) -> Instant {
        clock::instant_of(self.on(Clock::Monotonic).reading())
    }

    #[inline]
    pub(crate) fn reading(&self) -> u64 {
        self.core.now(self.clock, self.manual)
    }

    /// The same driver, for timers of another clock.
    pub(crate) fn on(self, clock: Clock) -> Handle {
        Handle { clock, ..self }
    }

    /// The lane that its timers are in; `None` while the driver has not used the clock.
    #[inline]
    pub(crate) fn lane(&self) -> Option<&'static ClockLane> {
        self.core.lane_of(self.clock)
    }

    /// True once the driver was dropped, shut down, or left behind by a fork.
    pub fn is_shut_down(&self) -> bool {
        !self.core.is_alive(self.life)
    }

    pub(crate) fn check(&self) -> Result<(), Shutdown> {
        if self.is_shut_down() { Err(Shutdown::default()) } else { Ok(()) }
    }

    /// This driver's floor for the slack of waits on a [`sync::Condvar`](crate::sync::Condvar) that give a
    /// resolution: for condvars without a floor of their own. It follows the process-wide
    /// [`slack_floor`](crate::tunables::slack_floor) until it is set; a change acts on the next wait. (Of
    /// a driver that has gone it is nobody's, or its successor's.)
    pub fn slack_floor(&self) -> &'static SlackFloor {
        &self.core.slack_floor
    }

    /// What the driver has done so far. Takes each shard's lock for a moment.
    ///
    /// # Errors
    /// [`Shutdown`] when the driver has gone.
    pub fn metrics(&self) -> Result<Metrics, Shutdown> {
        self.check()?;
        Ok(self.core.metrics())
    }

    /// Wakes the driver's thread from its park, or makes its next park return at once. Timers need no
    /// such thing; it is for whatever else the thread waits for. Does nothing once the driver has gone.
    pub fn unpark(&self) {
        if self.check().is_ok() {
            self.core.unpark();
        }
    }

    /// Gives memory that a burst of timers left behind back to the system, one call per run of pages.
    /// Drivers do so by themselves, a little at a time; this takes all at once.
    ///
    /// # Errors
    /// [`Shutdown`] when the driver has gone.
    pub fn reap(&self) -> Result<(), Shutdown> {
        self.check()?;
        for (_, lane) in self.core.lanes() {
            lane.reap();
        }
        Ok(())
    }

    /// The window of a wait that starts now, and whether its first poll must read the clock: it need
    /// not when `earliest` is more than a millisecond ahead (one that becomes due unnoticed fires at the
    /// next wakeup, never past `latest`). A manual clock moves by leaps, so there it must.
    #[inline(always)]
    pub(crate) fn span(&self, min: Duration, max: Duration) -> (Span, bool) {
        let now = self.reading();
        let span = Span::range(now, min, max);
        (
            span,
            self.manual
                || self.clock != Clock::Monotonic
                || span.earliest.saturating_sub(now) <= 1_000_000,
        )
    }
}
