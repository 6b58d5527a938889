//! Thousands of seeded histories: the storage code over a disk that crashes.
//!
//! Each history interleaves writes, waits for durability, log writes in flight, checkpoints and
//! reads in a random order, cuts the power at a random operation and recovers, which is sometimes
//! cut as well. What must hold: the export is as it was after some prefix of the changes, in
//! their order, and the prefix holds everything that was acknowledged. A reply that came before
//! its sync is caught at once, by recovering from what is synced at that very moment.

use std::sync::Arc;

use crate::commit::group::Step;
use crate::commit::settings::{Policy, Settings};

use super::checkpoint::{Plan, move_tail, write_extent};
use super::core::{AppendError, Core, LogWrite, Wanted};
use super::crashdisk::{CrashDisk, Faults, Power};
use super::disk::Zeroing;
use super::log::{Change, RING_START};
use super::recovery::{format, recover};

const EXPORT: u64 = 16 << 10;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

struct Flight {
    id: u64,
    write: LogWrite,
    written: bool,
}

struct Checkpoint {
    plan: Plan,
    done: usize,
}

struct History {
    dice: Dice,
    power: Arc<Power>,
    log: Arc<CrashDisk>,
    data: Arc<CrashDisk>,
    core: Core,
    settings: Settings,
    now: u64,
    flights: Vec<Flight>,
    checkpoint: Option<Checkpoint>,
    /// The export after each number of changes.
    states: Vec<Vec<u8>>,
    base: u64,
    acknowledged: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let power = Power::new();
        let capacity = [32, 48, 96][dice.roll(3) as usize] << 10;
        let log = CrashDisk::new(vec![0; (RING_START + capacity) as usize], power.clone());
        let data = CrashDisk::new(vec![0; EXPORT as usize], power.clone());
        format(&*log, log.size(), EXPORT).unwrap();
        let recovered = recover(&*log, log.size(), &*data, EXPORT).unwrap();
        let depth = 1 + dice.roll(3) as usize;
        let policies = [Policy::Fixed, Policy::Resolution, Policy::Adaptive];
        let settings = Settings {
            policy: policies[dice.roll(3) as usize],
            min_window: dice.roll(2) * 1_000,
            max_block: [4_096, 8_192][dice.roll(2) as usize],
            ..Settings::default()
        };
        Self {
            core: Core::new(recovered.superblock, depth),
            base: recovered.superblock.first_seq - 1,
            dice,
            power,
            log,
            data,
            settings,
            now: 0,
            flights: Vec::new(),
            checkpoint: None,
            states: vec![vec![0; EXPORT as usize]],
            acknowledged: 0,
        }
    }

    fn step(&mut self) {
        self.now += self.dice.roll(2_000);
        match self.dice.roll(10) {
            0..=2 => self.append(),
            3 => self.want(),
            4 | 5 => self.commit_thread(),
            6 | 7 => self.fly(),
            8 => self.move_checkpoint(),
            _ => self.read(),
        }
    }

    fn append(&mut self) {
        let length = 1 + self.dice.roll(5_000);
        let offset = self.dice.roll(EXPORT - length);
        let fill = 1 + self.dice.roll(255) as u8;
        let change = match self.dice.roll(6) {
            0 => Change::Zero(length as u32, Zeroing::Discard),
            1 => Change::Zero(length as u32, Zeroing::KeepAllocated),
            _ => Change::Write(vec![fill; length as usize].into()),
        };
        let mut state = self.states.last().unwrap().clone();
        let range = offset as usize..(offset + length) as usize;
        state[range].fill(if matches!(change, Change::Write(_)) { fill } else { 0 });
        match self.core.append(offset, change, &self.settings) {
            Ok((seq, _)) => {
                self.states.push(state);
                assert_eq!(seq - self.base, self.states.len() as u64 - 1);
            }
            Err(AppendError::Full) => assert!(self.core.used() > 0, "an empty log is not full"),
            Err(AppendError::Refused(_)) => assert!(self.core.poisoned().is_some()),
        }
    }

    fn want(&mut self) {
        let seq = self.core.last_seq() - self.dice.roll(3).min(self.core.last_seq() - self.base);
        match self.core.want(self.now, seq, &self.settings) {
            Wanted::Durable => self.acknowledge(seq),
            // Opens with the block; `fly` acknowledges by the durable sequence number then.
            Wanted::Wait(..) => {}
            Wanted::Refused(_) => assert!(self.core.poisoned().is_some()),
        }
    }

    fn commit_thread(&mut self) {
        match self.core.next(self.now) {
            Step::Issue { id, first, last } => {
                let write = self.core.prepare(id, first, last);
                self.flights.push(Flight { id, write, written: false });
            }
            Step::Wait { id, .. } => self.core.group.window_ended(id),
            Step::Idle => {}
        }
    }

    /// One half of a random log write in flight.
    fn fly(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let index = self.dice.roll(self.flights.len() as u64) as usize;
        let flight = &mut self.flights[index];
        let outcome = if flight.written {
            LogWrite::sync(&*self.log)
        } else {
            let outcome = flight.write.write(&*self.log);
            flight.written = true;
            if outcome.is_ok() {
                return;
            }
            outcome
        };
        let id = self.flights.remove(index).id;
        let effects = self.core.complete(self.now, id, outcome);
        // A gate that opens with success says that everything up to its block is durable.
        if effects.open.iter().any(|(_, outcome)| outcome.is_ok()) {
            self.acknowledge(self.core.durable_seq());
        }
    }

    /// A reply goes out: what is synced at this moment must be enough to recover it.
    fn acknowledge(&mut self, seq: u64) {
        if seq - self.base <= self.acknowledged {
            return;
        }
        self.acknowledged = seq - self.base;
        let (log, data) = (self.log.synced_image(), self.data.synced_image());
        self.check_recovery(log, data, "what was synced when a reply went out");
    }

    fn move_checkpoint(&mut self) {
        if self.core.poisoned().is_some() {
            return;
        }
        let Some(work) = &mut self.checkpoint else {
            let upto = self.core.last_seq();
            if upto > self.core.durable_seq() || self.core.end_of(upto).is_some() {
                let plan = Plan { extents: self.core.overlay.snapshot(), upto };
                self.core.group.seal();
                self.checkpoint = Some(Checkpoint { plan, done: 0 });
            }
            return;
        };
        if self.core.durable_seq() < work.plan.upto {
            return;
        }
        if let Some(extent) = work.plan.extents.get(work.done) {
            // A failed write is tried again: the log still has it.
            work.done += usize::from(write_extent(&*self.data, extent).is_ok());
            return;
        }
        let upto = work.plan.upto;
        let tail = self.core.end_of(upto).unwrap();
        match move_tail(&*self.log, &*self.data, self.core.superblock, tail, upto + 1) {
            Ok(superblock) => self.core.checkpointed(upto, superblock),
            Err(_) => self.core.poison(crate::errno::Errno::Io, &mut Default::default()),
        }
        self.checkpoint = None;
    }

    fn read(&mut self) {
        let mut seen = self.data.cached_image();
        for extent in self.core.overlay.slice(0, EXPORT) {
            let range = extent.offset as usize..(extent.offset + extent.length) as usize;
            match extent.bytes() {
                Some(bytes) => seen[range].copy_from_slice(bytes),
                None => seen[range].fill(0),
            }
        }
        assert!(seen == *self.states.last().unwrap(), "a read does not see the last change");
    }

    /// Recovers from these images, with the power cut now and then, and checks the outcome.
    fn check_recovery(&mut self, log: Vec<u8>, data: Vec<u8>, what: &str) {
        let (mut log, mut data) = (log, data);
        for attempt in 0.. {
            let power = Power::new();
            let log_disk = CrashDisk::new(log.clone(), power.clone());
            let data_disk = CrashDisk::new(data.clone(), power.clone());
            if attempt < 2 && self.dice.roll(3) == 0 {
                power.fail_in(self.dice.roll(8));
            }
            let size = log_disk.size();
            match recover(&*log_disk, size, &*data_disk, EXPORT) {
                Ok(_) => {
                    // The superblock is synced last: everything else is durable with it.
                    data = data_disk.synced_image();
                    break;
                }
                Err(error) => {
                    assert!(power.is_off() || attempt < 2, "{what}: {error}");
                    let dice = &mut self.dice;
                    log = log_disk.crash_image(&mut |n| dice.roll(n));
                    data = data_disk.crash_image(&mut |n| dice.roll(n));
                }
            }
        }
        let allowed = &self.states[self.acknowledged as usize..];
        assert!(
            allowed.contains(&data),
            "{what}: not a prefix with all {} acknowledged of {} changes (prefix {:?})",
            self.acknowledged,
            self.states.len() - 1,
            self.states.iter().position(|s| *s == data),
        );
    }
}

/// Runs histories; in each, this share of 8 has disk errors as well.
fn run(seeds: std::ops::Range<u64>, with_errors: bool) {
    let (mut acknowledged, mut changes, mut poisoned, mut checkpoints) = (0, 0, 0, 0);
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut h = History::new(seed);
            let cut = h.dice.roll(40);
            h.power.fail_in(cut);
            for step in 0..120 {
                if with_errors && step % 30 == 10 {
                    let faults = Faults {
                        write_errors: h.dice.roll(3) as u32,
                        sync_errors: u32::from(h.dice.roll(4) == 0),
                        ..Faults::default()
                    };
                    let disk = if h.dice.roll(3) == 0 { &h.data } else { &h.log };
                    disk.set_faults(faults);
                }
                h.step();
                if h.power.is_off() {
                    break;
                }
            }
            let dice = &mut h.dice;
            let log = h.log.crash_image(&mut |n| dice.roll(n));
            let data = h.data.crash_image(&mut |n| dice.roll(n));
            h.check_recovery(log, data, "after the crash");
            (
                h.acknowledged,
                h.states.len() as u64 - 1,
                u64::from(h.core.poisoned().is_some()),
                h.core.superblock.generation - 2,
            )
        });
        let counts = result.unwrap_or_else(|_| panic!("the history of seed {seed} failed"));
        acknowledged += counts.0;
        changes += counts.1;
        poisoned += counts.2;
        checkpoints += counts.3;
    }
    println!(
        "{changes} changes, {acknowledged} acknowledged, {checkpoints} checkpoints, {poisoned} poisoned"
    );
    // A test that exercises nothing would pass as well.
    assert!(acknowledged > 1_000 && checkpoints > 100, "the histories do too little");
    assert!(!with_errors || poisoned > 100, "the histories fail too rarely");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_torn_is_seen() {
    run(0..3_000, false);
}

#[test]
fn the_same_with_disk_errors() {
    run(10_000..12_000, true);
}
