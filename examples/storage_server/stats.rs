//! Counters: what the server did, rather than how long it thinks it took.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::commit::settings::Nanos;

/// Each power of two is cut into so many buckets: quantiles are within 1/16 of the truth.
const SUB: usize = 16;

/// A histogram of times that many threads may add to.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Vec<AtomicU64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..64 * SUB).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Histogram {
    fn index(value: Nanos) -> usize {
        if value < SUB as u64 {
            return value as usize;
        }
        let power = value.ilog2() as usize;
        let within = (value >> (power - 4)) as usize & (SUB - 1);
        (power - 3) * SUB + within
    }

    /// The smallest value of a bucket.
    fn floor(index: usize) -> Nanos {
        if index < SUB {
            return index as Nanos;
        }
        let (power, within) = (index / SUB + 3, index % SUB);
        ((SUB + within) as Nanos) << (power - 4)
    }

    pub(crate) fn add(&self, value: Nanos) {
        self.buckets[Self::index(value)].fetch_add(1, Relaxed);
    }

    /// The value below which `share` of all values lie; zero when there are none.
    pub(crate) fn quantile(&self, share: f64) -> Nanos {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let rank = ((total as f64 * share) as u64).min(total.saturating_sub(1));
        let mut seen = 0;
        for (i, count) in counts.into_iter().enumerate() {
            seen += count;
            if count > 0 && seen > rank {
                return Self::floor(i);
            }
        }
        0
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }
}

/// One export's counters.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    commits: AtomicU64,
    records: AtomicU64,
    checkpoints: AtomicU64,
    requests: AtomicU64,
    /// How late the timed waits ended.
    lateness: Histogram,
    /// How long log writes took.
    latency: Histogram,
}

impl Stats {
    pub(crate) fn commit(&self, records: u64, took: Nanos) {
        self.commits.fetch_add(1, Relaxed);
        self.records.fetch_add(records, Relaxed);
        self.latency.add(took);
    }

    pub(crate) fn window_ended(&self, late: Nanos) {
        self.lateness.add(late);
    }

    pub(crate) fn checkpoint(&self) {
        self.checkpoints.fetch_add(1, Relaxed);
    }

    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Relaxed)
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Relaxed)
    }

    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Relaxed)
    }

    /// How many windows ended by their timer.
    pub(crate) fn windows(&self) -> u64 {
        self.lateness.count()
    }

    pub(crate) fn wait_p50(&self) -> Nanos {
        self.lateness.quantile(0.5)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "requests": self.requests.load(Relaxed),
            "commits": self.commits(),
            "records": self.records(),
            "checkpoints": self.checkpoints(),
            "windows_ended_by_timer": self.windows(),
            "window_lateness_p50_ns": self.wait_p50(),
            "window_lateness_p99_ns": self.lateness.quantile(0.99),
            "log_write_p50_ns": self.latency.quantile(0.5),
            "log_write_p99_ns": self.latency.quantile(0.99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let h = Histogram::default();
        assert_eq!(h.quantile(0.5), 0);
        (1..=100_000).for_each(|v| h.add(v));
        for share in [0.01, 0.5, 0.99] {
            let (got, want) = (h.quantile(share) as f64, share * 100_000.0);
            assert!((got - want).abs() <= want / 16.0 + 1.0, "{share}: {got}");
        }
        h.add(u64::MAX);
        assert!(h.quantile(1.0) > u64::MAX / 16 * 15);
    }
}
