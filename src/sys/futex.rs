//! Waiting for a word of memory to change (futex(2)).

use super::time::timespec;
use crate::primitive::plain::AtomicU32;
use std::io;

/// Why a [`wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Woken, or the word had another value, or a signal came: look at the word.
    Look,
    /// The deadline has passed.
    TimedOut,
}

/// Blocks while `word` holds `expected`, until a [`wake`] or until `deadline`, an absolute time in
/// nanoseconds on `CLOCK_MONOTONIC`.
///
/// This is `FUTEX_WAIT_BITSET`: the plain wait takes a relative time, which would drift by each
/// preemption before the call. It honours the thread's timer slack; `futex_waitv` does not.
#[inline]
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline: Option<u64>) -> Wake {
    let ts = deadline.map(timespec);
    let timeout = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `word` is a live, aligned 32-bit word and `timeout` is null or points to `ts`, both
    // through the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
            std::ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        )
    };
    if rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT) {
        Wake::TimedOut
    } else {
        Wake::Look
    }
}

/// Wakes one thread that waits on the word at this address.
///
/// The word may be gone already: the kernel only compares addresses. At worst some other thread
/// that came to wait at the same address looks at its word once more.
#[inline]
pub(crate) fn wake(word: *const AtomicU32) {
    // SAFETY: a wake reads nothing at the address, which need not even be mapped.
    unsafe {
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}
