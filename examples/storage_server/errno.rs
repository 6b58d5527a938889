//! The error numbers that cross the wire, and how an operating-system error becomes one of them.

use std::fmt;
use std::io;

/// The error numbers that the NBD protocol knows. They are fixed by the protocol, whatever the
/// host's own numbering is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    /// The export does not allow this.
    NotPermitted = 1,
    /// The disk failed, or failed before and can no longer be trusted.
    Io = 5,
    /// The request is malformed or outside of the export.
    Invalid = 22,
    /// A write reaches past the end of the export, or there is no room for it.
    NoSpace = 28,
    /// The request is well formed and this server cannot do it.
    NotSupported = 95,
    /// The server is stopping.
    Shutdown = 108,
}

impl Errno {
    /// The number that goes on the wire.
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    /// Maps a failed disk call: a full disk is told apart, all else is an I/O error.
    pub(crate) fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "EPERM",
            Self::Io => "EIO",
            Self::Invalid => "EINVAL",
            Self::NoSpace => "ENOSPC",
            Self::NotSupported => "ENOTSUP",
            Self::Shutdown => "ESHUTDOWN",
        })
    }
}

impl std::error::Error for Errno {}
