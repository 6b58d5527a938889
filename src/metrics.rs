//! Counters: what a driver did, and how late it was.

use std::time::Duration;

/// What a driver has done since it was built. Counts are exact; a snapshot taken while other threads
/// use the driver may mix moments.
///
/// Words: a *wakeup* is a return from the kernel; it is *spurious* when it fired nothing. *Lateness* is
/// completion minus `earliest`, an *overrun* completion minus `latest`. A timer is *coalesced* when it
/// fired on a wakeup that another window, or another event, forced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Timers pending now.
    pub pending: usize,
    /// Timers registered since the driver was built.
    pub registered: u64,
    /// Timers fired by a turn (not those that were due when first polled, or seen due by a poll).
    pub fired: u64,
    /// Fired timers that needed no wakeup of their own.
    pub coalesced: u64,
    /// Returns from the kernel, whatever the cause.
    pub wakeups: u64,
    /// Of these, the ones a timer had forced.
    pub timer_wakeups: u64,
    /// Wakeups that fired nothing.
    pub spurious: u64,
    /// Turns, with or without a wakeup.
    pub turns: u64,
    /// Calls that set the kernel timer.
    pub arm_calls: u64,
    /// Parked threads woken by an insert because no kernel timer could be moved for them.
    pub kick_calls: u64,
    /// Wakers that panicked when called.
    pub waker_panics: u64,
    /// Failed tries to start the default driver's thread.
    pub spawn_failures: u64,
    /// System calls that gave memory back.
    pub memory_hand_backs: u64,
    /// Bytes of pages that hold, or recently held, timers.
    pub resident_bytes: usize,
    /// How late fired timers were.
    pub lateness: Lateness,
}

/// A distribution of lateness, in powers of two of nanoseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct Lateness {
    buckets: [u64; 64],
    count: u64,
    sum: u128,
    max: u64,
    overruns: u64,
    overrun_max: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        Lateness { buckets: [0; 64], count: 0, sum: 0, max: 0, overruns: 0, overrun_max: 0 }
    }
}

impl std::fmt::Debug for Lateness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lateness")
            .field("count", &self.count)
            .field("mean", &self.mean())
            .field("max", &self.max())
            .field("overruns", &self.overruns)
            .field("overrun_max", &self.overrun_max())
            .finish()
    }
}

impl Lateness {
    /// Number of timers counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean of completion minus `earliest`; zero when nothing was counted.
    pub fn mean(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            n => Duration::from_nanos((self.sum / n as u128) as u64),
        }
    }

    /// Largest completion minus `earliest`.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// Timers completed after their `latest`.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Largest completion minus `latest`.
    pub fn overrun_max(&self) -> Duration {
        Duration::from_nanos(self.overrun_max)
    }

    /// An upper bound of the `q`-quantile (`0.0..=1.0`, clamped), to a factor of two.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bits, n) in self.buckets.iter().enumerate() {
            seen += n;
            if *n > 0 && seen >= rank {
                let bound = 1u64.checked_shl(bits as u32 + 1).map_or(u64::MAX, |b| b - 1);
                return Duration::from_nanos(bound.min(self.max));
            }
        }
        Duration::ZERO
    }

    /// Counts one completion at `now` of the window `[earliest, latest]`.
    #[inline]
    pub(crate) fn record(&mut self, now: u64, earliest: u64, latest: u64) {
        let late = now.saturating_sub(earliest);
        self.buckets[(63 - (late | 1).leading_zeros()) as usize] += 1;
        self.count += 1;
        self.sum += late as u128;
        self.max = self.max.max(late);
        if now > latest {
            self.overruns += 1;
            self.overrun_max = self.overrun_max.max(now - latest);
        }
    }

    pub(crate) fn add(&mut self, other: &Lateness) {
        for (a, b) in self.buckets.iter_mut().zip(other.buckets) {
            *a += b;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.overruns += other.overruns;
        self.overrun_max = self.overrun_max.max(other.overrun_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_bound_what_was_recorded() {
        let mut l = Lateness::default();
        assert_eq!(l.quantile(0.5), Duration::ZERO);
        for late in 1..=1000u64 {
            l.record(10_000 + late, 10_000, 10_500);
        }
        assert_eq!((l.count(), l.overruns()), (1000, 500));
        assert_eq!(l.overrun_max(), Duration::from_nanos(500));
        assert_eq!(l.mean(), Duration::from_nanos(500));
        let p50 = l.quantile(0.5).as_nanos();
        assert!((500..1000).contains(&p50), "{p50}");
        assert_eq!(l.quantile(1.0), Duration::from_nanos(1000));
        let mut sum = Lateness::default();
        sum.add(&l);
        sum.add(&l);
        assert_eq!(sum.count(), 2000);
        sum.record(u64::MAX, 0, 0);
        assert_eq!(sum.max(), Duration::from_nanos(u64::MAX));
    }
}
