//! Checkpoints: what the log holds moves into the data file, and the log gets its room back.
//!
//! The order is everything. (1) The open block is closed and everything appended so far becomes
//! durable in the log: only then may the data file change, or a crash could leave half of a write
//! that nobody logged. (2) The overlay as of that moment goes into the data file, which is synced.
//! (3) The superblock moves the log's start forward and is synced. (4) Only now is the room free.

use std::io;

use super::disk::Disk;
use super::log::Superblock;
use super::overlay::{Content, Extent};

/// The work of one checkpoint, collected under the lock.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The overlay when the plan was made.
    pub(crate) extents: Vec<Extent>,
    /// The last record in it; it ends a block.
    pub(crate) upto: u64,
}

/// Which step failed; they differ in what is lost.
#[derive(Debug)]
pub(crate) enum CheckpointFault {
    /// The log still holds everything: nothing is lost, and it can be tried again.
    Write(io::Error),
    /// Neither the data file nor the log can be trusted.
    Sync(io::Error),
}

/// Step 2, first half. One extent; the caller keeps readers out meanwhile.
pub(crate) fn write_extent(data: &dyn Disk, extent: &Extent) -> Result<(), CheckpointFault> {
    let result = match (&extent.content, extent.bytes()) {
        (Content::Zeros(how), _) => data.zero_at(extent.offset, extent.length, *how),
        (Content::Data(..), bytes) => data.write_at(bytes.unwrap_or_default(), extent.offset),
    };
    result.map_err(CheckpointFault::Write)
}

/// Step 2, second half, and step 3. Returns the new superblock.
pub(crate) fn move_tail(
    log: &dyn Disk,
    data: &dyn Disk,
    old: Superblock,
    tail: u64,
    first_seq: u64,
) -> Result<Superblock, CheckpointFault> {
    data.sync().map_err(CheckpointFault::Sync)?;
    let new = Superblock { generation: old.generation + 1, tail, first_seq, ..old };
    new.store(log).map_err(CheckpointFault::Sync)?;
    Ok(new)
}
