//! A descriptor that one thread makes readable to wake another (eventfd(2)).

use super::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A close-on-exec, non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the call just returned this descriptor; nobody else owns it.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable. A full counter is readable already.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: the buffer is eight bytes, as the descriptor demands.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: the buffer is eight bytes, as the descriptor demands.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
