//! The write-ahead log: records, the ring they live in, and the two superblocks.
//!
//! ```text
//! 0        4096     8192                                     8192 + capacity
//! | super A | super B | ring: record record .. pad | record .. pad | ...  |
//! ```
//!
//! A record is a 64-byte header and a payload, padded to a sector. The records of one log write
//! stand side by side; the last one is padded to a page, so that no page is ever written by two
//! log writes: tearing the second could then damage the first, which is durable already.
//!
//! Positions are *logical*: they only ever grow, and a record's place in the ring is its position
//! modulo the capacity. The header holds the position, so a record left over from an earlier lap
//! is not taken for a new one. It also holds the log's *epoch*, a random number drawn at each
//! start, so neither records of earlier runs nor payloads made to look like records are.
//!
//! Each header says up to which record the log was durable when it was written. This is what
//! tells a torn tail from damage: a bad record that a later one calls durable was lost, not torn.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, Zeroing};

pub(crate) const SECTOR: u64 = 512;
pub(crate) const PAGE: u64 = 4096;
/// Where the ring starts.
pub(crate) const RING_START: u64 = 2 * PAGE;
pub(crate) const HEADER: usize = 64;
const MAGIC: u64 = 0x7377_6c6f_6772_6563;
const SUPER_MAGIC: u64 = 0x7377_6c6f_6773_7570;
const VERSION: u32 = 1;

/// A change to the export, as the log and the overlay see it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) change: Change,
}

/// What a record does at its offset.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write(Arc<[u8]>),
    Zero(u32, Zeroing),
}

impl Change {
    /// Bytes of the export that it covers.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Write(bytes) => bytes.len() as u64,
            Self::Zero(length, _) => u64::from(*length),
        }
    }

    /// Bytes that it carries.
    pub(crate) fn payload(&self) -> &[u8] {
        match self {
            Self::Write(bytes) => bytes,
            Self::Zero(..) => &[],
        }
    }

    /// Its size in the log, without the padding at the end of a block.
    pub(crate) fn encoded(&self) -> u64 {
        ((HEADER + self.payload().len()) as u64).next_multiple_of(SECTOR)
    }
}

/// What the headers of a log write share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) epoch: u64,
    /// The last record that was durable when this was written.
    pub(crate) durable: u64,
}

/// A decoded header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) last_of_block: bool,
    pub(crate) payload: u32,
    pub(crate) extent: u32,
    pub(crate) seq: u64,
    pub(crate) position: u64,
    pub(crate) stamp: Stamp,
    pub(crate) offset: u64,
    crc: u32,
}

impl Header {
    /// Reads the fields; `None` if this cannot be a header of a ring of this capacity. The
    /// checksum is not looked at.
    pub(crate) fn decode(raw: &[u8; HEADER], capacity: u64) -> Option<Self> {
        let header = Self {
            crc: u32_at(raw, 8),
            kind: raw[12],
            last_of_block: raw[13] & 1 != 0,
            payload: u32_at(raw, 16),
            extent: u32_at(raw, 20),
            seq: u64_at(raw, 24),
            position: u64_at(raw, 32),
            stamp: Stamp { epoch: u64_at(raw, 40), durable: u64_at(raw, 48) },
            offset: u64_at(raw, 56),
        };
        let fits = HEADER as u64 + u64::from(header.payload) <= capacity;
        (u64_at(raw, 0) == MAGIC && fits).then_some(header)
    }

    /// True when header and payload are what was written.
    pub(crate) fn verify(&self, raw: &[u8; HEADER], payload: &[u8]) -> bool {
        crc32c::crc32c_append(crc32c::crc32c(&raw[12..]), payload) == self.crc
    }

    /// The change; `None` for a kind this version does not know.
    pub(crate) fn change(&self, payload: Vec<u8>) -> Option<Change> {
        match self.kind {
            1 => Some(Change::Write(payload.into())),
            2 => Some(Change::Zero(self.extent, Zeroing::Discard)),
            3 => Some(Change::Zero(self.extent, Zeroing::KeepAllocated)),
            _ => None,
        }
    }

    /// The position of the record behind this one.
    pub(crate) fn next_position(&self) -> u64 {
        let unit = if self.last_of_block { PAGE } else { SECTOR };
        (self.position + HEADER as u64 + u64::from(self.payload)).next_multiple_of(unit)
    }
}

/// Encodes the records of one log write, placed at `position`, padded to a page.
pub(crate) fn encode_block(records: &[Arc<Record>], position: u64, stamp: Stamp) -> Vec<u8> {
    let size: u64 = records.iter().map(|r| r.change.encoded()).sum();
    let mut block = Vec::with_capacity(size.next_multiple_of(PAGE) as usize);
    for (i, record) in records.iter().enumerate() {
        let payload = record.change.payload();
        let kind = match record.change {
            Change::Write(_) => 1,
            Change::Zero(_, Zeroing::Discard) => 2,
            Change::Zero(_, Zeroing::KeepAllocated) => 3,
        };
        let mut raw = [0; HEADER];
        raw[..8].copy_from_slice(&MAGIC.to_le_bytes());
        raw[12] = kind;
        raw[13] = u8::from(i + 1 == records.len());
        raw[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        raw[20..24].copy_from_slice(&(record.change.length() as u32).to_le_bytes());
        raw[24..32].copy_from_slice(&record.seq.to_le_bytes());
        raw[32..40].copy_from_slice(&(position + block.len() as u64).to_le_bytes());
        raw[40..48].copy_from_slice(&stamp.epoch.to_le_bytes());
        raw[48..56].copy_from_slice(&stamp.durable.to_le_bytes());
        raw[56..64].copy_from_slice(&record.offset.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&raw[12..]), payload);
        raw[8..12].copy_from_slice(&crc.to_le_bytes());
        block.extend_from_slice(&raw);
        block.extend_from_slice(payload);
        block.resize(block.len().next_multiple_of(SECTOR as usize), 0);
    }
    block.resize(block.len().next_multiple_of(PAGE as usize), 0);
    block
}

/// The ring: maps logical positions to places on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) capacity: u64,
}

impl Ring {
    /// Where a logical position lies on the disk.
    pub(crate) fn place(self, position: u64) -> u64 {
        RING_START + position % self.capacity
    }

    pub(crate) fn read(self, disk: &dyn Disk, position: u64, buf: &mut [u8]) -> io::Result<()> {
        let room = (self.capacity - position % self.capacity).min(buf.len() as u64) as usize;
        let (head, tail) = buf.split_at_mut(room);
        disk.read_at(head, self.place(position))?;
        if tail.is_empty() { Ok(()) } else { disk.read_at(tail, RING_START) }
    }

    pub(crate) fn write(self, disk: &dyn Disk, position: u64, bytes: &[u8]) -> io::Result<()> {
        let room = (self.capacity - position % self.capacity).min(bytes.len() as u64) as usize;
        let (head, tail) = bytes.split_at(room);
        disk.write_at(head, self.place(position))?;
        if tail.is_empty() { Ok(()) } else { disk.write_at(tail, RING_START) }
    }
}

/// Where the log begins. Two copies are written in turn, so that a torn one leaves the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Grows by one with every write; the higher of the valid ones counts.
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) capacity: u64,
    pub(crate) export_size: u64,
    /// Position and sequence number of the first record that the data file may lack.
    pub(crate) tail: u64,
    pub(crate) first_seq: u64,
}

impl Superblock {
    fn encode(&self) -> [u8; SECTOR as usize] {
        let mut raw = [0; SECTOR as usize];
        raw[..8].copy_from_slice(&SUPER_MAGIC.to_le_bytes());
        raw[12..16].copy_from_slice(&VERSION.to_le_bytes());
        let fields = [
            self.generation,
            self.epoch,
            self.capacity,
            self.export_size,
            self.tail,
            self.first_seq,
        ];
        for (i, field) in fields.into_iter().enumerate() {
            raw[16 + 8 * i..24 + 8 * i].copy_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&raw[12..]);
        raw[8..12].copy_from_slice(&crc.to_le_bytes());
        raw
    }

    fn decode(raw: &[u8; SECTOR as usize]) -> Option<Self> {
        let whole = u64_at(raw, 0) == SUPER_MAGIC
            && u32_at(raw, 8) == crc32c::crc32c(&raw[12..])
            && u32_at(raw, 12) == VERSION;
        whole.then(|| Self {
            generation: u64_at(raw, 16),
            epoch: u64_at(raw, 24),
            capacity: u64_at(raw, 32),
            export_size: u64_at(raw, 40),
            tail: u64_at(raw, 48),
            first_seq: u64_at(raw, 56),
        })
    }

    /// The newest valid superblock.
    pub(crate) fn load(disk: &dyn Disk) -> io::Result<Option<Self>> {
        let mut newest: Option<Self> = None;
        for slot in [0, PAGE] {
            let mut raw = [0; SECTOR as usize];
            disk.read_at(&mut raw, slot)?;
            if let Some(sb) = Self::decode(&raw)
                && newest.is_none_or(|n| n.generation < sb.generation)
            {
                newest = Some(sb);
            }
        }
        Ok(newest)
    }

    /// Writes it over the older copy and makes it durable.
    pub(crate) fn store(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.write_at(&self.encode(), self.generation % 2 * PAGE)?;
        disk.sync()
    }
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}
