//! Giving pages back to the system.

/// Tells the system that the pages at `p` hold nothing any more. They stay mapped and read as
/// zero or as they were; their memory is free for others at once (madvise(2), `MADV_DONTNEED`).
///
/// Where the call fails or does not exist the pages just stay: nothing depends on it.
pub(crate) fn give_back(p: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        debug_assert_eq!(p as usize % 4096, 0);
        // SAFETY: the caller owns these whole pages of its own allocation and reads none of them
        // before writing again, so it does not matter that their content goes.
        let _ = unsafe { libc::madvise(p.cast(), bytes, libc::MADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (p, bytes);
}
