//! The adaptive policy: how long to hold an open block, learned from how long writers waited.
//!
//! A lesson from the fixed policies: a short wait wins while writers are few, for each of them
//! pays the whole wait; a long one wins when it lets the last free log write go out full. Where
//! the change-over lies depends on the device, and the server knows no device. What it does see
//! is the time from a writer's arrival to its acknowledgement. With a fixed number of writers,
//! less of that time is more throughput (Little's law), and with an open load it is what the
//! writers care about. So the policy measures it for a handful of waits and uses the best.
//!
//! The waits are fractions of the mean log-write latency, so they mean the same on every device.
//! Time is cut into epochs, each with one wait. Most epochs use the best wait known; now and
//! then one tries a neighbour. Blocks that went out before an epoch began are not counted in it.

use super::settings::{MAX_HOLD, Nanos};

/// The extra wait beyond the nominal window in 1/16 of the mean latency. The first arm does not
/// wait at all, the second is the nominal window and no more.
const EXTRA: [Option<u64>; 6] = [None, Some(0), Some(1), Some(2), Some(4), Some(8)];
/// Where to start: on a disk that nobody tuned for, not to wait does the least harm.
const START: usize = 0;

/// An epoch counts at least so many blocks.
const EPOCH_BLOCKS: u32 = 32;
/// An epoch counts at least so many acknowledgements, for each of them is a sample.
const EPOCH_ACKS: u64 = 48;
/// Blocks after the start of an epoch that are not counted: the writers are still in the step
/// that the previous wait gave them.
const SETTLE_BLOCKS: u32 = 8;
/// The same for another wait than the best.
const SETTLE_OTHER: u32 = 32;
/// So many epochs with the best wait come before the first probe of another one. Each probe that
/// finds nothing better doubles the number, up to the second constant: a probe disturbs a step
/// that the writers may take long to fall into again.
const FIRST_GAP: u32 = 8;
const LAST_GAP: u32 = 512;
/// Another wait must be better by this much to replace the best.
const MARGIN: f64 = 0.01;
/// A challenger's mean counts as that plus so many standard errors: noise must not cause changes.
const DOUBT: f64 = 1.0;
/// How much one more epoch counts in the score of the best wait.
const SMOOTHING: f64 = 0.1;
/// When the best wait's epochs differ from what was known by this factor, three times in a row,
/// the load is another one, and everything known is forgotten.
const CHANGED: f64 = 1.5;
/// A block that took so many times the median counts as that: a disk that hiccups says nothing
/// about the wait.
const OUTLIER: f64 = 3.0;

/// What a block tells the policy when it is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Number of the epoch in which the block's window opened.
    pub(crate) epoch: u32,
    /// Writers that waited for the block.
    pub(crate) waiters: u64,
    /// The sum of their times from arrival to acknowledgement.
    pub(crate) waited: Nanos,
}

/// The learner. It has no clock: all it is told are samples.
#[derive(Debug)]
pub(crate) struct Adaptive {
    /// Mean time to acknowledgement by arm, smoothed over its epochs.
    score: [Option<f64>; EXTRA.len()],
    /// The best arm known.
    best: usize,
    /// The arm in use in this epoch.
    arm: usize,
    epoch: u32,
    blocks: u32,
    acks: u64,
    /// Mean time to acknowledgement of each block that counts, and its writers.
    samples: Vec<(f64, u64)>,
    /// Which neighbour the next probe tries.
    probe: usize,
    /// Epochs with the best wait until the next probe, and how many there will be after that.
    until_probe: u32,
    gap: u32,
    /// An arm that was better than the best in its last epoch.
    rival: Option<usize>,
    /// Epochs in a row that did not look like the load known.
    strange: u32,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            score: [None; EXTRA.len()],
            best: START,
            arm: START,
            epoch: 0,
            blocks: 0,
            acks: 0,
            samples: Vec::new(),
            probe: 0,
            until_probe: FIRST_GAP,
            gap: FIRST_GAP,
            rival: None,
            strange: 0,
        }
    }
}

impl Adaptive {
    /// The epoch whose wait a block gets that opens its window now.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How long to hold a block whose nominal window is `nominal`; zero is "do not wait".
    pub(crate) fn hold(&self, nominal: Nanos, mean_latency: Nanos) -> Nanos {
        match EXTRA[self.arm] {
            None => 0,
            Some(extra) => nominal + (mean_latency / 16 * extra).min(MAX_HOLD),
        }
    }

    /// Takes in one durable block.
    pub(crate) fn learn(&mut self, sample: Sample) {
        if sample.epoch != self.epoch || sample.waiters == 0 {
            return;
        }
        self.blocks += 1;
        let settle = if self.arm == self.best { SETTLE_BLOCKS } else { SETTLE_OTHER };
        if self.blocks <= settle {
            return;
        }
        self.acks += sample.waiters;
        self.samples.push((sample.waited as f64 / sample.waiters as f64, sample.waiters));
        if self.blocks >= settle + EPOCH_BLOCKS && self.acks >= EPOCH_ACKS {
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        let (mean, error) = winsorised_mean(&mut self.samples);
        self.epoch = self.epoch.wrapping_add(1);
        (self.blocks, self.acks) = (0, 0);
        self.samples.clear();
        self.note(mean, error);
        self.arm = self.next_arm();
    }

    /// Takes in the mean time to acknowledgement of an epoch with the current arm.
    fn note(&mut self, mean: f64, error: f64) {
        match self.score[self.arm] {
            Some(old) if self.arm == self.best => {
                let differs = !(old / CHANGED..=old * CHANGED).contains(&mean);
                self.strange = if differs { self.strange + 1 } else { 0 };
                if self.strange == 3 {
                    self.score = [None; EXTRA.len()];
                    self.rival = None;
                    (self.gap, self.until_probe, self.strange) = (FIRST_GAP, FIRST_GAP, 0);
                } else if !differs {
                    self.score[self.arm] = Some(old + (mean - old) * SMOOTHING);
                }
            }
            // A probe replaces what was known: it is rare, and the load may have drifted since.
            _ if self.arm == self.best => self.score[self.arm] = Some(mean),
            _ => self.score[self.arm] = Some(mean + error * DOUBT),
        }
        let known = |i: usize| self.score[i].unwrap_or(f64::INFINITY);
        let rival = (0..EXTRA.len()).min_by(|&a, &b| known(a).total_cmp(&known(b)));
        let rival = rival.filter(|&r| known(r) < known(self.best) * (1.0 - MARGIN));
        match rival {
            None => self.rival = None,
            // Once may be luck: the writers may still be in the step that the best wait gave
            // them. It has to be better again at once.
            Some(rival) if self.rival != Some(rival) => self.rival = Some(rival),
            Some(rival) => {
                (self.best, self.rival) = (rival, None);
                self.gap = (self.gap / 2).max(FIRST_GAP);
                self.until_probe = self.gap;
            }
        }
    }

    /// First every arm once, then the best, with a probe now and then.
    fn next_arm(&mut self) -> usize {
        if let Some(untried) = self.score.iter().position(Option::is_none) {
            return untried;
        }
        if let Some(rival) = self.rival {
            return rival;
        }
        if self.until_probe > 0 {
            self.until_probe -= 1;
            return self.best;
        }
        self.gap = (self.gap * 2).min(LAST_GAP);
        self.until_probe = self.gap;
        // Neighbours first, since they cost least; every fourth probe looks further.
        self.probe = self.probe.wrapping_add(1);
        let last = EXTRA.len() - 1;
        match self.probe % 4 {
            0 => (self.best + 1 + self.probe / 4 % last) % (last + 1),
            1 | 3 => (self.best + 1).min(last),
            _ => self.best.saturating_sub(1),
        }
    }
}

/// The mean of the samples, weighted by their writers, with outliers cut down to size; and its
/// standard error.
fn winsorised_mean(samples: &mut [(f64, u64)]) -> (f64, f64) {
    samples.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let most = samples.get(samples.len() / 2).map_or(0.0, |(median, _)| median * OUTLIER);
    let weight: u64 = samples.iter().map(|(_, n)| n).sum();
    let sum: f64 = samples.iter().map(|(mean, n)| mean.min(most) * *n as f64).sum();
    let mean = sum / weight.max(1) as f64;
    let square = |(sample, n): &(f64, u64)| (sample.min(most) - mean).powi(2) * *n as f64;
    let variance = samples.iter().map(square).sum::<f64>() / weight.max(1) as f64;
    (mean, (variance / samples.len().max(1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds blocks of one writer whose wait is `time(arm)`; returns how often each arm was used.
    fn feed(a: &mut Adaptive, blocks: u32, mut time: impl FnMut(usize) -> f64) -> Vec<u32> {
        let mut used = vec![0; EXTRA.len()];
        for _ in 0..blocks {
            used[a.arm] += 1;
            let waited = time(a.arm) as Nanos;
            a.learn(Sample { epoch: a.epoch(), waiters: 1, waited });
        }
        used
    }

    #[test]
    fn finds_the_best_wait_and_hardly_ever_leaves_it() {
        for best in 0..EXTRA.len() {
            let mut a = Adaptive::default();
            feed(&mut a, 3_000, |arm| 1e6 * (1.0 + 0.05 * arm.abs_diff(best) as f64));
            assert_eq!(a.best, best);
            let used = feed(&mut a, 20_000, |arm| 1e6 * (1.0 + 0.05 * arm.abs_diff(best) as f64));
            assert!(used[best] > 19_000, "{used:?}");
        }
    }

    #[test]
    fn hiccups_of_the_disk_do_not_lead_it_astray() {
        // One block in ten takes twenty times as long, whatever the wait is.
        let mut rng = 1u64;
        let mut a = Adaptive::default();
        let used = feed(&mut a, 40_000, |arm| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hiccup = if (rng >> 33).is_multiple_of(10) { 20.0 } else { 1.0 };
            1e5 * (1.0 + 0.1 * arm as f64) * hiccup
        });
        assert!(used[0] > 34_000, "{used:?}");
    }

    #[test]
    fn another_load_is_learned_anew() {
        let mut a = Adaptive::default();
        feed(&mut a, 5_000, |arm| 1e6 * (1.0 + 0.1 * arm as f64));
        assert_eq!(a.best, 0);
        feed(&mut a, 5_000, |arm| 4e6 * (2.0 - 0.1 * arm as f64));
        assert_eq!(a.best, EXTRA.len() - 1);
    }
}
