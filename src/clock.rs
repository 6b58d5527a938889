//! Clocks: the only place that reads the time.
//!
//! Ground rules:
//! - A clock's reading is a `u64` of nanoseconds. On Linux the monotonic one is `CLOCK_MONOTONIC`
//!   itself, so that it can be handed to the kernel as an absolute time.
//! - Users speak `std::time::Instant`, which has no stable conversion. One *anchor* per process pairs an
//!   `Instant` with a reading taken just after it; an `Instant` becomes the anchor's reading plus its
//!   distance from the anchor's `Instant`. The pair is some 20 ns apart, and the error has one
//!   direction: a deadline may become later by it, never earlier.
//! - A manual clock uses the same conversion from a reading of its own, so its instants are ordinary
//!   ones that lie near the machine's start.

#[cfg(target_os = "linux")]
use crate::sys::time::{ClockId, now};
use crate::tick::{NEVER, nanos};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// The reading of a manual clock when it is made: not zero, so that a test can look at the past.
pub(crate) const MANUAL_START: u64 = 1 << 40;

/// What a timer's time is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Clock {
    /// Steady time since some start; stands still while the machine is suspended
    /// (`CLOCK_MONOTONIC`). What `std::time::Instant` reads.
    #[default]
    Monotonic = 0,
    /// Steady time since the machine's start, suspended or not (`CLOCK_BOOTTIME`). Read as
    /// [`BootInstant`].
    Boottime = 1,
    /// The wall clock, which can be set (`CLOCK_REALTIME`). Read as `std::time::SystemTime`.
    Realtime = 2,
}

impl Clock {
    pub(crate) const COUNT: usize = 3;
    pub(crate) const ALL: [Clock; Clock::COUNT] =
        [Clock::Monotonic, Clock::Boottime, Clock::Realtime];

    #[cfg(target_os = "linux")]
    pub(crate) fn id(self) -> ClockId {
        match self {
            Clock::Monotonic => ClockId::Monotonic,
            Clock::Boottime => ClockId::Boottime,
            Clock::Realtime => ClockId::Realtime,
        }
    }

    /// The clock's reading in nanoseconds.
    #[inline]
    pub(crate) fn reading(self) -> u64 {
        match self {
            Clock::Monotonic => monotonic(),
            #[cfg(target_os = "linux")]
            other => now(other.id()),
            #[cfg(not(target_os = "linux"))]
            Clock::Boottime => monotonic(),
            #[cfg(not(target_os = "linux"))]
            Clock::Realtime => system_reading(SystemTime::now()),
        }
    }
}

/// A point on the boottime clock, which counts also while the machine is suspended. `Instant` does not:
/// a wait of an hour on it may take days on a laptop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(pub(crate) u64);

impl BootInstant {
    /// The present on the machine's boottime clock.
    pub fn now() -> Self {
        BootInstant(Clock::Boottime.reading())
    }

    /// Time from `earlier` to this point; zero when `earlier` is later.
    pub fn saturating_duration_since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time since this point; zero when it lies ahead.
    pub fn elapsed(self) -> Duration {
        BootInstant::now().saturating_duration_since(self)
    }

    /// This point `d` later, at most the clock's end (584 years), which never comes.
    pub fn saturating_add(self, d: Duration) -> Self {
        BootInstant(crate::tick::after(self.0, d))
    }

    /// This point `d` earlier, at the earliest the machine's start.
    pub fn saturating_sub(self, d: Duration) -> Self {
        BootInstant(self.0.saturating_sub(nanos(d)))
    }
}

/// A wall-clock time as a reading: nanoseconds since 1970. Earlier times become zero, those past the
/// year 2554 [`NEVER`].
pub(crate) fn system_reading(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos)
}

/// The wall-clock time of a reading.
pub(crate) fn system_time(reading: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(reading)
}

struct Anchor {
    instant: Instant,
    /// At or after `instant`, on the monotonic clock.
    reading: u64,
}

static ANCHOR: OnceLock<Anchor> = OnceLock::new();

fn anchor() -> &'static Anchor {
    ANCHOR.get_or_init(|| {
        // The tightest of a few pairs: a preemption in between would make every deadline late by it.
        (0..16)
            .map(|_| {
                let before = raw_monotonic();
                let instant = Instant::now();
                let reading = raw_monotonic();
                (reading - before, Anchor { instant, reading })
            })
            .min_by_key(|(gap, _)| *gap)
            .expect("sixteen pairs were taken")
            .1
    })
}

#[cfg(target_os = "linux")]
fn raw_monotonic() -> u64 {
    now(ClockId::Monotonic)
}

/// Elsewhere readings count from the first one; a day is added so that the past has room.
#[cfg(not(target_os = "linux"))]
fn raw_monotonic() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    nanos(FIRST.get_or_init(Instant::now).elapsed()) + 86_400_000_000_000
}

/// The monotonic clock's reading in nanoseconds.
#[inline]
pub(crate) fn monotonic() -> u64 {
    raw_monotonic()
}

/// How far away `at` surely is at least, in nanoseconds. Cheap: it reads a coarse clock where
/// there is one, and says less when in doubt.
#[inline]
pub(crate) fn surely_ahead(at: u64) -> u64 {
    /// How far the coarse clock may be behind: its interrupts come every 10 ms or faster.
    #[cfg(target_os = "linux")]
    const BEHIND: u64 = 20_000_000;
    #[cfg(target_os = "linux")]
    return at.saturating_sub(now(ClockId::MonotonicCoarse)).saturating_sub(BEHIND);
    #[cfg(not(target_os = "linux"))]
    return at.saturating_sub(raw_monotonic());
}

/// An instant as a reading: at or after it, by the anchor's width. Instants before the clock's start
/// become zero, those past its end [`NEVER`].
#[inline]
pub(crate) fn reading_of(instant: Instant) -> u64 {
    let anchor = anchor();
    match instant.checked_duration_since(anchor.instant) {
        Some(d) => anchor.reading.saturating_add(nanos(d)),
        None => anchor.reading.saturating_sub(nanos(anchor.instant - instant)),
    }
}

/// The instant that [`reading_of`] maps to this reading.
pub(crate) fn instant_of(reading: u64) -> Instant {
    let anchor = anchor();
    if reading == NEVER {
        return crate::window::add(anchor.instant, Duration::MAX);
    }
    if reading >= anchor.reading {
        crate::window::add(anchor.instant, Duration::from_nanos(reading - anchor.reading))
    } else {
        let back = Duration::from_nanos(anchor.reading - reading);
        anchor.instant.checked_sub(back).unwrap_or(anchor.instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_never_becomes_an_earlier_reading() {
        for _ in 0..10_000 {
            let before = monotonic();
            let instant = Instant::now();
            assert!(reading_of(instant) >= before);
            // Once the reading has been reached, so has the instant.
            let reading = reading_of(instant);
            while monotonic() < reading {}
            assert!(Instant::now() >= instant);
        }
    }

    #[test]
    fn readings_and_instants_convert_both_ways() {
        for reading in [MANUAL_START, monotonic(), monotonic() + 1, 1 << 62] {
            assert_eq!(reading_of(instant_of(reading)), reading);
        }
        assert_eq!(reading_of(instant_of(NEVER)), NEVER);
        assert_eq!(reading_of(Instant::now() + Duration::from_secs(1 << 40)), NEVER);
        let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert!(reading_of(past) < monotonic());
    }
}
