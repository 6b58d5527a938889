//! The group-commit state machine.
//!
//! Writers append records to the open block and then want them durable. A block goes out
//!
//! - when it is full, or a record no longer fits into it;
//! - when its window ends: the window opens with the first writer that wants the block durable;
//! - but never while as many log writes are in flight as the log takes (its *depth*). A block
//!   that is due and may not start yet keeps collecting records. This natural batching is what
//!   keeps blocks large when the log is the bottleneck.
//!
//! Blocks are acknowledged in order, though their log writes may finish in any order: a writer
//! that read another's record is durable only with it.
//!
//! Ground rules: times only ever come in as arguments; nothing here blocks; every call says
//! whether a sleeping commit thread has to look again.

use std::collections::{BTreeMap, VecDeque};

use super::adaptive::{Adaptive, Sample};
use super::settings::{Nanos, Policy, RESOLUTION, Settings, effective_slack};

/// A log write that failed this often in a row is given up.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// One log block: a run of records that one log write makes durable.
#[derive(Debug)]
struct Block {
    id: u64,
    first: u64,
    last: u64,
    /// Bytes of payload, the measure of "full".
    bytes: usize,
    /// Takes no more records.
    sealed: bool,
    /// Goes out as soon as the log's depth allows.
    due: bool,
    window: Option<Window>,
    /// Writers that wait for it, and the sum of their arrival times.
    waiters: u64,
    arrivals: u128,
    /// The adaptive policy's epoch, if that policy chose the wait.
    epoch: Option<u32>,
    attempts: u32,
    issued: Nanos,
}

/// The wait that holds a block open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) deadline: Nanos,
    /// How late the wait may end.
    pub(crate) slack: Nanos,
}

/// What a commit thread should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write records `first..=last` as block `id`, then call `done` or `failed`.
    Issue { id: u64, first: u64, last: u64 },
    /// Wait until the window of block `id` ends, then call `window_ended`.
    Wait { id: u64, window: Window },
    /// Wait to be woken.
    Idle,
}

/// The block a writer waits for, and whether a commit thread must be woken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) block: u64,
    pub(crate) wake: bool,
}

/// A block that became durable: its number and its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) block: u64,
    pub(crate) last: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    /// How many log writes may be in flight.
    depth: usize,
    /// Blocks not issued, oldest first; only the last may be unsealed.
    waiting: VecDeque<Block>,
    flying: BTreeMap<u64, Block>,
    /// Written, but an earlier block is not.
    written: BTreeMap<u64, Block>,
    next_id: u64,
    next_ack: u64,
    mean_latency: Nanos,
    adaptive: Adaptive,
}

impl GroupCommit {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            depth,
            waiting: VecDeque::new(),
            flying: BTreeMap::new(),
            written: BTreeMap::new(),
            next_id: 0,
            next_ack: 0,
            mean_latency: 0,
            adaptive: Adaptive::default(),
        }
    }

    /// Adds record `seq` to the open block; says whether a block became due.
    pub(crate) fn append(&mut self, seq: u64, bytes: usize, max_block: usize) -> bool {
        let mut wake = false;
        let open = self.waiting.back_mut().filter(|b| !b.sealed);
        match open {
            Some(block) if block.bytes + bytes <= max_block => {
                block.last = seq;
                block.bytes += bytes;
            }
            full => {
                if let Some(block) = full {
                    (block.sealed, block.due, wake) = (true, true, true);
                }
                self.waiting.push_back(Block::new(self.next_id, seq, bytes));
                self.next_id += 1;
            }
        }
        if let Some(block) = self.waiting.back_mut()
            && block.bytes >= max_block
        {
            (block.sealed, block.due, wake) = (true, true, true);
        }
        wake
    }

    /// A writer wants record `seq` durable. `None`: no block holds it, so it already is.
    pub(crate) fn want(&mut self, now: Nanos, seq: u64, settings: &Settings) -> Option<Ticket> {
        let window = self.window(now, settings);
        let adapts = settings.policy == Policy::Adaptive;
        let epoch = adapts.then(|| self.adaptive.epoch());
        let holds = |b: &&mut Block| b.first <= seq && seq <= b.last;
        if let Some(block) = self.waiting.iter_mut().rev().find(holds) {
            block.waiters += 1;
            block.arrivals += u128::from(now);
            let opens = !block.due && block.window.is_none();
            if opens {
                block.epoch = epoch;
                match window {
                    Some(_) => block.window = window,
                    None => block.due = true,
                }
            }
            return Some(Ticket { block: block.id, wake: opens });
        }
        let issued = self.flying.values_mut().chain(self.written.values_mut());
        let block = issued.into_iter().find(holds)?;
        block.waiters += 1;
        block.arrivals += u128::from(now);
        let id = block.id;
        // An earlier block whose log write failed stands in the way and must go again now.
        let mut wake = false;
        for earlier in self.waiting.iter_mut().filter(|b| b.id < id && !b.due) {
            (earlier.due, wake) = (true, true);
        }
        Some(Ticket { block: id, wake })
    }

    /// The window a block gets that opens it now; `None` is "do not wait".
    fn window(&self, now: Nanos, s: &Settings) -> Option<Window> {
        let share = u128::from(self.mean_latency) * u128::from(s.pct) / 100;
        let nominal = Nanos::try_from(share).unwrap_or(Nanos::MAX).max(s.min_window);
        let (length, slack) = match s.policy {
            Policy::Fixed => (nominal, effective_slack(RESOLUTION, s.slack)),
            Policy::Resolution => (nominal, RESOLUTION),
            // Without a nominal window there is nothing to adapt: windows are switched off.
            Policy::Adaptive if nominal == 0 => (0, RESOLUTION),
            Policy::Adaptive => (self.adaptive.hold(nominal, self.mean_latency), RESOLUTION),
        };
        (length > 0).then(|| Window { deadline: now.saturating_add(length), slack })
    }

    /// What to do now. After `Issue` the block is in flight.
    pub(crate) fn next(&mut self, now: Nanos) -> Step {
        if self.flying.len() < self.depth {
            // Only in order: a due block takes the ones before it along, one log write each.
            if self.waiting.iter().any(|b| b.due)
                && let Some(mut block) = self.waiting.pop_front()
            {
                block.sealed = true;
                block.issued = now;
                let step = Step::Issue { id: block.id, first: block.first, last: block.last };
                self.flying.insert(block.id, block);
                return step;
            }
            let held = self.waiting.iter().find_map(|b| Some((b.id, b.window?)));
            if let Some((id, window)) = held {
                return Step::Wait { id, window };
            }
        }
        Step::Idle
    }

    /// The wait of block `id` ended. Harmless when the block has gone out meanwhile.
    pub(crate) fn window_ended(&mut self, id: u64) {
        if let Some(block) = self.waiting.iter_mut().find(|b| b.id == id) {
            block.due = true;
        }
    }

    /// Closes the open block and sends it out at once; says whether there was one to send.
    pub(crate) fn seal(&mut self) -> bool {
        for block in &mut self.waiting {
            (block.sealed, block.due) = (true, true);
        }
        !self.waiting.is_empty()
    }

    /// Block `id` is written and synced. Returns the blocks that are durable by that, in order.
    pub(crate) fn done(&mut self, now: Nanos, id: u64) -> Vec<Acked> {
        let Some(block) = self.flying.remove(&id) else {
            return Vec::new();
        };
        let latency = now.saturating_sub(block.issued);
        self.mean_latency = match self.mean_latency {
            0 => latency,
            mean => mean - mean / 8 + latency / 8,
        };
        self.written.insert(id, block);
        let mut acked = Vec::new();
        while let Some(block) = self.written.remove(&self.next_ack) {
            self.next_ack += 1;
            acked.push(Acked { block: block.id, last: block.last });
            let waited = u128::from(now) * u128::from(block.waiters) - block.arrivals;
            if let Some(epoch) = block.epoch {
                let waited = Nanos::try_from(waited).unwrap_or(Nanos::MAX);
                self.adaptive.learn(Sample { epoch, waiters: block.waiters, waited });
            }
        }
        acked
    }

    /// The log write of block `id` failed before anything was synced. Its waiters get the error
    /// and its records go back to the head of the queue, to be written again with the next
    /// commit. `false`: it failed too often, and the caller has to give up.
    pub(crate) fn failed(&mut self, id: u64) -> bool {
        let Some(mut block) = self.flying.remove(&id) else {
            return true;
        };
        block.attempts += 1;
        let give_up = block.attempts >= MAX_ATTEMPTS;
        (block.waiters, block.arrivals) = (0, 0);
        block.window = None;
        // Blocks behind it wait for it; if anyone waits for them, it must not wait for a writer.
        let behind = self.flying.range(id..).chain(self.written.range(id..));
        block.due = behind.map(|(_, b)| b).chain(&self.waiting).any(|b| b.id > id && b.waiters > 0);
        let place = self.waiting.iter().position(|b| b.id > id).unwrap_or(self.waiting.len());
        self.waiting.insert(place, block);
        !give_up
    }

    /// True when nothing is queued and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }

    /// True when blocks are queued that are not in flight.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The running mean of the log-write latency.
    pub(crate) fn mean_latency(&self) -> Nanos {
        self.mean_latency
    }
}

impl Block {
    fn new(id: u64, seq: u64, bytes: usize) -> Self {
        Self {
            id,
            first: seq,
            last: seq,
            bytes,
            sealed: false,
            due: false,
            window: None,
            waiters: 0,
            arrivals: 0,
            epoch: None,
            attempts: 0,
            issued: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Nanos = 1_000;

    fn settings(policy: Policy) -> Settings {
        Settings { policy, ..Settings::default() }
    }

    /// Writes and finishes one block of one record, so that the mean latency is `latency`.
    fn prime(g: &mut GroupCommit, latency: Nanos) {
        g.append(0, 512, 4096);
        g.seal();
        let Step::Issue { id, .. } = g.next(0) else { panic!("no block") };
        assert_eq!(g.done(latency, id), [Acked { block: 0, last: 0 }]);
    }

    #[test]
    fn c157_four_writers_share_one_sync_at_the_end_of_the_window() {
        // Twenty thousand days into the clock's life, where a relative deadline taken for an
        // absolute one shows at once.
        let t0 = 20_000 * 86_400 * 1_000_000 * US;
        let s = Settings { pct: 0, min_window: 250 * US, ..settings(Policy::Resolution) };
        let mut g = GroupCommit::new(1);
        for i in 0..4 {
            let now = t0 + i * 40 * US;
            assert!(!g.append(i, 4096, s.max_block));
            assert_eq!(g.want(now, i, &s).unwrap().wake, i == 0, "only the first opens a window");
            let Step::Wait { id: 0, window } = g.next(now) else { panic!("not held") };
            assert_eq!(window.deadline, t0 + 250 * US);
        }
        g.window_ended(0);
        assert_eq!(g.next(t0 + 250 * US), Step::Issue { id: 0, first: 0, last: 3 });
    }

    #[test]
    fn the_window_is_a_share_of_the_mean_latency_and_a_change_acts_on_the_next() {
        let mut g = GroupCommit::new(4);
        prime(&mut g, 800 * US);
        let mut s = settings(Policy::Fixed);
        s.slack = 100 * US;
        g.append(1, 8192, s.max_block);
        g.want(1_000 * US, 1, &s);
        let window = Window { deadline: 1_040 * US, slack: 100 * US };
        assert_eq!(g.next(1_000 * US), Step::Wait { id: 1, window });
        s.slack = 300 * US;
        g.want(1_001 * US, 1, &s);
        assert_eq!(g.next(1_001 * US), Step::Wait { id: 1, window }, "the open window stays");
        g.seal();
        let Step::Issue { id, .. } = g.next(1_002 * US) else { panic!() };
        g.done(1_802 * US, id);
        g.append(2, 8192, s.max_block);
        g.want(2_000 * US, 2, &s);
        let Step::Wait { window, .. } = g.next(2_000 * US) else { panic!() };
        assert_eq!(window.slack, 300 * US);
    }

    #[test]
    fn a_full_block_goes_at_once_and_never_past_the_depth() {
        let mut g = GroupCommit::new(1);
        assert!(g.append(0, 128 << 10, 128 << 10));
        assert_eq!(g.next(0), Step::Issue { id: 0, first: 0, last: 0 });
        assert!(g.append(1, 128 << 10, 128 << 10));
        assert_eq!(g.next(1), Step::Idle, "one log write is in flight already");
        g.done(2, 0);
        assert_eq!(g.next(2), Step::Issue { id: 1, first: 1, last: 1 });
    }

    #[test]
    fn a_due_block_collects_until_a_log_write_may_start() {
        let mut g = GroupCommit::new(1);
        let s = Settings { pct: 0, ..settings(Policy::Resolution) };
        g.append(0, 512, s.max_block);
        g.want(0, 0, &s);
        assert!(matches!(g.next(0), Step::Issue { .. }));
        for seq in 1..=5 {
            g.append(seq, 512, s.max_block);
            g.want(seq, seq, &s);
        }
        g.done(10, 0);
        assert_eq!(g.next(10), Step::Issue { id: 1, first: 1, last: 5 });
    }

    #[test]
    fn blocks_are_acknowledged_in_order() {
        let mut g = GroupCommit::new(3);
        for seq in 0..3 {
            g.append(seq, 4096, 4096);
            assert!(matches!(g.next(seq), Step::Issue { .. }));
        }
        assert_eq!(g.done(5, 2), []);
        assert_eq!(g.done(6, 1), []);
        let acked = g.done(7, 0);
        assert_eq!(acked.iter().map(|a| a.last).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_failed_block_is_written_again_before_the_blocks_behind_it() {
        let mut g = GroupCommit::new(2);
        let s = Settings { pct: 0, ..settings(Policy::Resolution) };
        for seq in 0..2 {
            g.append(seq, 4096, 4096);
            assert!(matches!(g.next(seq), Step::Issue { .. }));
        }
        assert!(g.failed(0));
        assert_eq!(g.done(5, 1), [], "block 1 is durable only with block 0");
        assert_eq!(g.next(5), Step::Idle, "nobody waits for either");
        assert!(g.want(6, 1, &s).unwrap().wake);
        assert_eq!(g.next(6), Step::Issue { id: 0, first: 0, last: 0 });
        assert_eq!(g.done(7, 0).len(), 2);
    }

    #[test]
    fn a_block_that_keeps_failing_is_given_up() {
        let mut g = GroupCommit::new(1);
        let s = Settings { pct: 0, ..settings(Policy::Resolution) };
        g.append(0, 4096, 4096);
        for attempt in 1..=MAX_ATTEMPTS {
            g.want(0, 0, &s);
            assert!(matches!(g.next(0), Step::Issue { id: 0, .. }));
            assert_eq!(g.failed(0), attempt < MAX_ATTEMPTS);
        }
    }

    #[test]
    fn wanting_a_durable_record_is_no_wait() {
        let mut g = GroupCommit::new(1);
        prime(&mut g, 1);
        assert_eq!(g.want(5, 0, &settings(Policy::Fixed)), None);
        assert!(g.is_idle());
    }
}
