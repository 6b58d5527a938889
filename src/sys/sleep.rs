//! Sleeping until an absolute time (clock_nanosleep(2)).

/// Sleeps until `CLOCK_MONOTONIC` reads `deadline`, or until a signal. The thread's timer slack
/// decides how much later it may become.
#[cfg(target_os = "linux")]
pub(crate) fn until(deadline: u64) {
    let ts = super::time::timespec(deadline);
    // An error is `EINTR`, and the caller looks at the clock in any case.
    // SAFETY: `ts` lives through the call; a null remainder is allowed, and unused for an absolute
    // time.
    let _ = unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &ts, std::ptr::null_mut())
    };
}
