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

use super::settings::{MAX_SLACK, Nanos};

/// The extra wait beyond the nominal window in 1/16 of the mean latency. The first arm does not
/// wait at all, the second is the nominal window and no more.
const EXTRA: [Option<u64>; 6] = [None, Some(0), Some(1), Some(2), Some(4), Some(8)];

/// An epoch counts at least so many blocks.
const EPOCH_BLOCKS: u32 = 24;
/// An epoch counts at least so many acknowledgements, for each of them is a sample.
const EPOCH_ACKS: u64 = 48;
/// Blocks after the start of an epoch that are not counted: the writers are still in the step
/// that the previous wait gave them.
const SETTLE_BLOCKS: u32 = 8;
/// One epoch in so many tries another wait.
const PROBE_EVERY: u32 = 16;
/// Another wait must be better by this much to replace the best: noise must not cause changes.
const MARGIN: f64 = 0.005;

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
    waited: u128,
    /// Which neighbour the next probe tries.
    probe: usize,
}

impl Default for Adaptive {
    fn default() -> Self {
        let arm = 1;
        let score = [None; EXTRA.len()];
        Self {
            score,
            best: arm,
            arm,
            epoch: 0,
            blocks: 0,
            acks: 0,
            waited: 0,
            probe: 0,
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
            Some(extra) => nominal + (mean_latency / 16 * extra).min(MAX_SLACK),
        }
    }

    /// Takes in one durable block.
    pub(crate) fn learn(&mut self, sample: Sample) {
        if sample.epoch != self.epoch || sample.waiters == 0 {
            return;
        }
        self.blocks += 1;
        if self.blocks <= SETTLE_BLOCKS {
            return;
        }
        self.acks += sample.waiters;
        self.waited += u128::from(sample.waited);
        if self.blocks >= SETTLE_BLOCKS + EPOCH_BLOCKS && self.acks >= EPOCH_ACKS {
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        let mean = self.waited as f64 / self.acks as f64;
        let score = &mut self.score[self.arm];
        // A probe replaces what was known: it is rare, and the load may have changed since.
        *score = Some(match *score {
            Some(old) if self.arm == self.best => old + (mean - old) * 0.25,
            _ => mean,
        });
        self.choose();
        self.epoch = self.epoch.wrapping_add(1);
        (self.blocks, self.acks, self.waited) = (0, 0, 0);
        self.arm = self.next_arm();
    }

    fn choose(&mut self) {
        let known = |i: usize| self.score[i].unwrap_or(f64::INFINITY);
        let rival = (0..EXTRA.len()).min_by(|&a, &b| known(a).total_cmp(&known(b)));
        if let Some(rival) = rival
            && known(rival) < known(self.best) * (1.0 - MARGIN)
        {
            self.best = rival;
        }
    }

    /// First every arm once, then the best, with a probe now and then.
    fn next_arm(&mut self) -> usize {
        if let Some(untried) = self.score.iter().position(Option::is_none) {
            return untried;
        }
        if !self.epoch.is_multiple_of(PROBE_EVERY) {
            return self.best;
        }
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
