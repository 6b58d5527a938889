//! The storage: a write-ahead log in front of a data file, and the threads that drive both.
//!
//! | file | lesson |
//! | --- | --- |
//! | [`disk`] | what storage needs of a disk, and the real file |
//! | [`device`] | a device model with a chosen latency |
//! | [`log`] | records, the ring they live in, the superblocks |
//! | [`recovery`] | replay; a torn tail is cut, damage in the middle is refused |
//! | [`overlay`] | changes that are in the log and not yet in the data file |
//! | [`core`] | one export's state, without threads |
//! | [`volume`] | the same with commit threads, checkpoints and async waits |

pub(crate) mod checkpoint;
pub(crate) mod core;
pub(crate) mod device;
pub(crate) mod disk;
pub(crate) mod log;
pub(crate) mod overlay;
pub(crate) mod recovery;
pub(crate) mod volume;

#[cfg(test)]
pub(crate) mod crashdisk;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod log_tests;
