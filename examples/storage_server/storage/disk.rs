//! What the storage code needs of a disk, and the real file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock};

/// How a range is made to read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// The space may be given back.
    Discard,
    /// The space stays allocated: a later write there must not run out of it.
    KeepAllocated,
}

/// A disk: bytes at offsets, and a sync that makes all finished writes durable.
///
/// Nothing is promised about unsynced writes after a crash: they may be missing, torn at sector
/// bounds, or there in another order. A failed `sync` means the same for ever: what was written
/// since the last good one may be lost, and a later sync that succeeds says nothing about it.
pub(crate) trait Disk: Send + Sync {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn zero_at(&self, offset: u64, length: u64, how: Zeroing) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// A hint that a range will be read soon.
    fn prefetch(&self, _offset: u64, _length: u64) {}
    /// True when `zero_at` costs much less than writing the zeros.
    fn zeroes_fast(&self) -> bool {
        false
    }
}

/// Zeros are written in pieces of this size where the file system has no better way.
const ZERO_CHUNK: u64 = 1 << 20;

/// Writes zeros the slow way.
pub(crate) fn write_zeroes(disk: &dyn Disk, offset: u64, length: u64) -> io::Result<()> {
    let zeros = vec![0; ZERO_CHUNK.min(length) as usize];
    let mut done = 0;
    while done < length {
        let piece = ZERO_CHUNK.min(length - done);
        disk.write_at(&zeros[..piece as usize], offset + done)?;
        done += piece;
    }
    Ok(())
}

/// A file, through positioned reads and writes and `fdatasync`.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: File,
    punches: bool,
}

impl FileDisk {
    /// Opens a file, or makes it, with exactly `size` bytes. An existing file keeps its contents
    /// and must have that size already. It is locked: two servers with one log would destroy it.
    pub(crate) fn open(path: &Path, size: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = format!("{} is in use by another process", path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let old = file.metadata()?.len();
        if old == 0 {
            file.set_len(size)?;
            file.sync_all()?;
            sync_directory_of(path)?;
        } else if old != size {
            let text = format!("{} has {old} bytes, not {size}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // Asked for nothing, the call only says whether the file system knows how.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let past_end = fallocate(&file, flags, size.next_multiple_of(4096), 4096);
        Ok(Self { punches: past_end.is_ok(), file })
    }

    /// Writes every block once, so that later writes change no metadata: an `fdatasync` after a
    /// write into an allocated but never written extent has to commit the extent tree as well.
    pub(crate) fn preallocate(&self, size: u64) -> io::Result<()> {
        write_zeroes(self, 0, size)?;
        self.file.sync_all()
    }
}

/// Makes the name of a new file durable.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

impl Disk for FileDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, length: u64, how: Zeroing) -> io::Result<()> {
        let flags = match how {
            Zeroing::Discard => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Zeroing::KeepAllocated => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        match fallocate(&self.file, flags, offset, length) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeroes(self, offset, length),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn prefetch(&self, offset: u64, length: u64) {
        // A hint that cannot be taken changes nothing for the client.
        let length = std::num::NonZeroU64::new(length);
        let _ = fadvise(&self.file, offset, length, Advice::WillNeed);
    }

    fn zeroes_fast(&self) -> bool {
        self.punches
    }
}
