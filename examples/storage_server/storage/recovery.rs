//! Opening an export: replay of the log, and what is refused.
//!
//! Records are replayed in order until one is not whole. Then the rest of the ring is searched
//! for later records of the same run. If one of them says that the bad record was durable when it
//! was written, the log is damaged and the export does not start: an acknowledged write is gone,
//! and starting would hide that. Otherwise the bad record is a torn tail, nobody was told that it
//! is durable, and the log is cut there.
//!
//! What was replayed is synced into the data file before a new superblock starts an empty log
//! with a new epoch. A crash in between leaves the old superblock, and replay is repeated.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;

use super::disk::Disk;
use super::log::{Change, HEADER, Header, PAGE, RING_START, Ring, SECTOR, Superblock};

/// Why an export does not start.
#[derive(Debug)]
pub(crate) enum OpenError {
    Io(io::Error),
    /// A record that was durable is not whole any more.
    Damaged {
        seq: u64,
        offset: u64,
        proof: u64,
    },
    /// A whole record makes no sense.
    Nonsense {
        seq: u64,
        offset: u64,
    },
    /// Neither superblock is valid, and the log is not a new one.
    NoSuperblock,
    /// The log belongs to an export of another size.
    WrongSize {
        log: u64,
        export: u64,
    },
    /// The log's file is smaller than its superblock says.
    TooShort {
        capacity: u64,
        file: u64,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot read the log or the data: {error}"),
            Self::Damaged { seq, offset, proof } => write!(
                f,
                "the log is damaged: record {seq} at offset {offset} is not whole, \
                 but record {proof} behind it says that it was durable"
            ),
            Self::Nonsense { seq, offset } => {
                write!(f, "the log is damaged: record {seq} at offset {offset} makes no sense")
            }
            Self::NoSuperblock => {
                write!(f, "the log is damaged: no valid superblock at offset 0 or {PAGE}")
            }
            Self::WrongSize { log, export } => {
                write!(f, "the log is of an export of {log} bytes, this one has {export}")
            }
            Self::TooShort { capacity, file } => {
                write!(f, "the log holds {capacity} bytes, its file only {file}")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What recovery found and did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovered {
    pub(crate) superblock: Superblock,
    pub(crate) replayed: u64,
    /// Offset of the torn record that was cut, if there was one.
    pub(crate) cut_at: Option<u64>,
}

/// Starts a log on a disk of zeros.
pub(crate) fn format(log: &dyn Disk, log_size: u64, export_size: u64) -> io::Result<()> {
    let capacity = (log_size - RING_START) / PAGE * PAGE;
    let sb = Superblock {
        generation: 1,
        epoch: random_epoch(),
        capacity,
        export_size,
        tail: 0,
        first_seq: 1,
    };
    sb.store(log)
}

/// Replays the log into the data and starts an empty one.
pub(crate) fn recover(
    log: &dyn Disk,
    log_size: u64,
    data: &dyn Disk,
    export_size: u64,
) -> Result<Recovered, OpenError> {
    let old = Superblock::load(log)?.ok_or(OpenError::NoSuperblock)?;
    if old.export_size != export_size {
        return Err(OpenError::WrongSize { log: old.export_size, export: export_size });
    }
    if RING_START + old.capacity > log_size {
        return Err(OpenError::TooShort { capacity: old.capacity, file: log_size });
    }
    let ring = Ring { capacity: old.capacity };
    let (mut position, mut seq) = (old.tail, old.first_seq);
    while position - old.tail < old.capacity {
        let Some((header, payload)) = read_record(log, ring, position, old.epoch)? else {
            break;
        };
        if header.seq != seq {
            break;
        }
        let offset = ring.place(position);
        let nonsense = OpenError::Nonsense { seq, offset };
        let change = header.change(payload).ok_or(nonsense)?;
        let end = header.offset.checked_add(change.length());
        if end.is_none_or(|end| end > export_size) {
            return Err(OpenError::Nonsense { seq, offset });
        }
        match change {
            Change::Write(bytes) => data.write_at(&bytes, header.offset)?,
            Change::Zero(n, how) => data.zero_at(header.offset, u64::from(n), how)?,
        }
        position = header.next_position();
        seq += 1;
    }
    let cut_at = check_tail(log, ring, &old, position, seq)?;
    data.sync()?;
    let superblock = Superblock {
        generation: old.generation + 1,
        epoch: random_epoch(),
        // The next lap starts where this one ended, on a page of its own.
        tail: position.next_multiple_of(PAGE),
        first_seq: seq,
        ..old
    };
    superblock.store(log)?;
    Ok(Recovered { superblock, replayed: seq - old.first_seq, cut_at })
}

/// The record at a position, if it is whole and of this run.
fn read_record(
    log: &dyn Disk,
    ring: Ring,
    position: u64,
    epoch: u64,
) -> io::Result<Option<(Header, Vec<u8>)>> {
    let mut raw = [0; HEADER];
    ring.read(log, position, &mut raw)?;
    let header = Header::decode(&raw, ring.capacity);
    let Some(header) = header.filter(|h| h.position == position && h.stamp.epoch == epoch) else {
        return Ok(None);
    };
    let mut payload = vec![0; header.payload as usize];
    ring.read(log, position + HEADER as u64, &mut payload)?;
    Ok(header.verify(&raw, &payload).then_some((header, payload)))
}

/// Decides whether the record that ended replay is a torn tail (its offset, or `None` if there
/// are no traces of one) or a durable one that was damaged.
fn check_tail(
    log: &dyn Disk,
    ring: Ring,
    old: &Superblock,
    bad: u64,
    bad_seq: u64,
) -> Result<Option<u64>, OpenError> {
    let mut traces = None;
    let mut position = bad;
    let mut chunk = vec![0; 1 << 20];
    let end = old.tail + ring.capacity;
    while position < end {
        let size = (chunk.len() as u64).min(end - position) as usize;
        ring.read(log, position, &mut chunk[..size])?;
        for (i, sector) in chunk[..size].chunks_exact(SECTOR as usize).enumerate() {
            let at = position + i as u64 * SECTOR;
            let Some(raw) = sector.first_chunk::<HEADER>() else {
                continue;
            };
            let header = Header::decode(raw, ring.capacity);
            let ours = |h: &Header| h.position == at && h.stamp.epoch == old.epoch;
            let Some(header) = header.filter(ours) else {
                continue;
            };
            traces = Some(ring.place(bad));
            if header.stamp.durable >= bad_seq
                && let Some((whole, _)) = read_record(log, ring, at, old.epoch)?
            {
                let offset = ring.place(bad);
                return Err(OpenError::Damaged { seq: bad_seq, offset, proof: whole.seq });
            }
        }
        position += size as u64;
    }
    Ok(traces)
}

/// A number that no client can guess. The standard library seeds its hash tables from the
/// system's random source, and that is all that is needed here.
fn random_epoch() -> u64 {
    RandomState::new().build_hasher().finish()
}
