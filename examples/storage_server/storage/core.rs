//! One export's state, without threads, waits or a clock.
//!
//! Ground rules: the volume keeps this under one mutex and never does I/O while it holds it. A
//! log write is prepared here (its place, its records), carried out elsewhere, and reported back
//! with [`Core::complete`]. Everything that must be seen together changes together in here:
//! record, overlay, sequence number.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use crate::commit::group::{GroupCommit, Step};
use crate::commit::settings::{Nanos, Settings};
use crate::errno::Errno;
use crate::wait::Gate;

use super::disk::Disk;
use super::log::{Change, PAGE, Record, Ring, SECTOR, Stamp, Superblock, encode_block};
use super::overlay::{Content, Extent, Overlay};

/// Why a change was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendError {
    /// The log has no room until a checkpoint makes some.
    Full,
    /// It never will be taken.
    Refused(Errno),
}

/// How a log write failed.
#[derive(Debug)]
pub(crate) enum LogFault {
    /// Before the sync: nothing is lost, the records can be written again.
    Write(Errno),
    /// In the sync: what the disk holds is unknown from here on.
    Sync(Errno),
}

/// The answer to "I want this durable".
pub(crate) enum Wanted {
    Durable,
    Refused(Errno),
    /// Wait for the gate; wake the commit threads if the flag says so.
    Wait(Arc<Gate>, bool),
}

/// A log write, ready to be carried out without the lock.
pub(crate) struct LogWrite {
    position: u64,
    ring: Ring,
    stamp: Stamp,
    records: Vec<Arc<Record>>,
}

impl LogWrite {
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    /// The first half: the block is written.
    pub(crate) fn write(&self, log: &dyn Disk) -> Result<(), LogFault> {
        let block = encode_block(&self.records, self.position, self.stamp);
        self.ring.write(log, self.position, &block).map_err(|e| LogFault::Write(Errno::from_io(&e)))
    }

    /// The second half: the block is durable.
    pub(crate) fn sync(log: &dyn Disk) -> Result<(), LogFault> {
        log.sync().map_err(|e: io::Error| LogFault::Sync(Errno::from_io(&e)))
    }
}

/// The gates and the wake-ups that a change of state brings about.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) open: Vec<(Arc<Gate>, Result<(), Errno>)>,
    /// The commit threads have to look again.
    pub(crate) wake: bool,
    pub(crate) poisoned: bool,
}

/// See the module's text.
pub(crate) struct Core {
    pub(crate) group: GroupCommit,
    pub(crate) overlay: Overlay,
    ring: Ring,
    pub(crate) superblock: Superblock,
    /// Where the next log write goes.
    head: u64,
    /// Room promised to records that have no place yet.
    reserved: u64,
    next_seq: u64,
    durable: u64,
    /// Records that are not durable, oldest first.
    pending: VecDeque<Arc<Record>>,
    /// Places of the blocks that were issued and are not durable.
    places: BTreeMap<u64, (u64, u64)>,
    /// Last record and end of each durable block that is not checkpointed.
    ends: VecDeque<(u64, u64)>,
    gates: BTreeMap<u64, Arc<Gate>>,
    poisoned: Option<Errno>,
    /// A commit thread waits for the end of a window; the others need no timer for it.
    pub(crate) window_is_watched: bool,
}

impl Core {
    pub(crate) fn new(superblock: Superblock, depth: usize) -> Self {
        Self {
            group: GroupCommit::new(depth),
            overlay: Overlay::default(),
            ring: Ring { capacity: superblock.capacity },
            superblock,
            head: superblock.tail,
            reserved: 0,
            next_seq: superblock.first_seq,
            durable: superblock.first_seq - 1,
            pending: VecDeque::new(),
            places: BTreeMap::new(),
            ends: VecDeque::new(),
            gates: BTreeMap::new(),
            poisoned: None,
            window_is_watched: false,
        }
    }

    /// The most room a change can take: it may be alone in its block.
    fn room(change: &Change) -> u64 {
        change.encoded() + PAGE - SECTOR
    }

    /// True when the log could take the change if it were empty.
    pub(crate) fn could_take(&self, change: &Change) -> bool {
        Self::room(change) <= self.ring.capacity
    }

    /// Bytes of the log in use or promised.
    pub(crate) fn used(&self) -> u64 {
        self.head - self.superblock.tail + self.reserved
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.ring.capacity
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    pub(crate) fn durable_seq(&self) -> u64 {
        self.durable
    }

    pub(crate) fn poisoned(&self) -> Option<Errno> {
        self.poisoned
    }

    /// Takes a change: from here on reads see it, and it is in the log's queue. Returns its
    /// sequence number and whether the commit threads must be woken.
    pub(crate) fn append(
        &mut self,
        offset: u64,
        change: Change,
        settings: &Settings,
    ) -> Result<(u64, bool), AppendError> {
        if let Some(errno) = self.poisoned {
            return Err(AppendError::Refused(errno));
        }
        let room = Self::room(&change);
        if self.used() + room > self.ring.capacity {
            return Err(AppendError::Full);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.reserved += room;
        let content = match &change {
            Change::Write(bytes) => Content::Data(bytes.clone(), 0),
            Change::Zero(_, how) => Content::Zeros(*how),
        };
        self.overlay.insert(Extent { offset, length: change.length(), seq, content });
        let bytes = change.payload().len().max(SECTOR as usize);
        self.pending.push_back(Arc::new(Record { seq, offset, change }));
        Ok((seq, self.group.append(seq, bytes, settings.max_block)))
    }

    /// A writer wants record `seq`, and with it all before it, durable.
    pub(crate) fn want(&mut self, now: Nanos, seq: u64, settings: &Settings) -> Wanted {
        if let Some(errno) = self.poisoned {
            return Wanted::Refused(errno);
        }
        if seq <= self.durable {
            return Wanted::Durable;
        }
        match self.group.want(now, seq, settings) {
            None => Wanted::Durable,
            Some(ticket) => {
                let gate = self.gates.entry(ticket.block).or_default();
                Wanted::Wait(gate.clone(), ticket.wake)
            }
        }
    }

    /// What a commit thread should do now.
    pub(crate) fn next(&mut self, now: Nanos) -> Step {
        if self.poisoned.is_some() { Step::Idle } else { self.group.next(now) }
    }

    /// Gives an issued block its place and collects its records.
    pub(crate) fn prepare(&mut self, id: u64, first: u64, last: u64) -> LogWrite {
        let start = self.pending.front().map_or(first, |r| r.seq);
        let range = (first - start) as usize..=(last - start) as usize;
        let records: Vec<_> = self.pending.range(range).cloned().collect();
        let size: u64 = records.iter().map(|r| r.change.encoded()).sum();
        let size = size.next_multiple_of(PAGE);
        // A block that goes out again after an error keeps its place.
        let (position, _) = *self.places.entry(id).or_insert_with(|| {
            let place = (self.head, size);
            self.head += size;
            self.reserved -= records.iter().map(|r| Self::room(&r.change)).sum::<u64>();
            place
        });
        let stamp = Stamp { epoch: self.superblock.epoch, durable: self.durable };
        LogWrite { position, ring: self.ring, stamp, records }
    }

    /// Takes in the outcome of a log write.
    pub(crate) fn complete(
        &mut self,
        now: Nanos,
        id: u64,
        outcome: Result<(), LogFault>,
    ) -> Effects {
        let mut effects = Effects { wake: true, ..Effects::default() };
        match outcome {
            // A sync that succeeds after another failed proves nothing.
            Ok(()) if self.poisoned.is_some() => {}
            Ok(()) => {
                for acked in self.group.done(now, id) {
                    self.durable = acked.last;
                    if let Some((position, size)) = self.places.remove(&acked.block) {
                        self.ends.push_back((acked.last, position + size));
                    }
                    let gate = self.gates.remove(&acked.block);
                    effects.open.extend(gate.map(|g| (g, Ok(()))));
                }
                while self.pending.front().is_some_and(|r| r.seq <= self.durable) {
                    self.pending.pop_front();
                }
            }
            Err(LogFault::Write(errno)) => {
                let gate = self.gates.remove(&id);
                effects.open.extend(gate.map(|g| (g, Err(errno))));
                if !self.group.failed(id) {
                    self.poison(errno, &mut effects);
                }
            }
            Err(LogFault::Sync(errno)) => self.poison(errno, &mut effects),
        }
        effects
    }

    /// Nothing this export says about durability can be believed any more: every waiter and
    /// every later change gets the error, until a restart replays what is really on the disk.
    pub(crate) fn poison(&mut self, errno: Errno, effects: &mut Effects) {
        self.poisoned.get_or_insert(errno);
        let gates = std::mem::take(&mut self.gates);
        effects.open.extend(gates.into_values().map(|g| (g, Err(errno))));
        (effects.wake, effects.poisoned) = (true, true);
    }

    /// The end of the durable log whose last record is `seq`, which must end a block.
    pub(crate) fn end_of(&self, seq: u64) -> Option<u64> {
        self.ends.iter().find(|(last, _)| *last == seq).map(|(_, end)| *end)
    }

    /// Records up to `seq` are in the data file and the superblock says so.
    pub(crate) fn checkpointed(&mut self, seq: u64, superblock: Superblock) {
        self.superblock = superblock;
        self.overlay.remove_up_to(seq);
        while self.ends.front().is_some_and(|(last, _)| *last <= seq) {
            self.ends.pop_front();
        }
    }
}
