//! Giving pages back to the system.

/// Tells the system that the pages at `p` hold nothing any more. They stay mapped and read as
/// zero or as they were; their memory is free for others at once (madvise(2), `MADV_DONTNEED`).
///
/// Where the call fails or does not exist the pages just stay: nothing depends on it.
pub(crate) fn give_back(p: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        debug_assert_eq!(p as usize % 4096, 0);
        // SAFETY: these are whole pages of the caller's own allocation, and the caller reads nothing in
        // them before writing again but what may be zero as well as what it was (see `wheel::arena`).
        let _ = unsafe { libc::madvise(p.cast(), bytes, libc::MADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (p, bytes);
}
