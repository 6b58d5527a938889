//! The calling thread's timer slack (prctl(2), `PR_SET_TIMERSLACK`).
//!
//! Facts the callers build on, all of them checked by `tests/ported_slack.rs`:
//! - A thread has a *current* and a *default* value; a new thread takes both from its creator's current
//!   one. Setting zero sets the current value back to the default.
//! - The reading is an `unsigned long`, but glibc's prctl returns an `int`: five seconds read as 0.7.
//!   Hence the raw system call.
//! - Real-time threads have no slack. Since Linux 6.12 they read zero, and setting does nothing.
//! - gVisor knows neither call (`EINVAL`): a missing reading is an answer, not an error.

/// The current slack in nanoseconds, `None` where the system has no such thing.
#[cfg(target_os = "linux")]
#[inline]
pub(crate) fn get() -> Option<u64> {
    // SAFETY: the call takes no pointers.
    let rc = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    if rc != -1 {
        return Some(rc as u64);
    }
    // The system call's value itself is what the C wrapper took for an error, for the last 4095
    // values below 2^64. Only these two codes are ever an error of this call.
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) | None => None,
        Some(code) => Some(0u64.wrapping_sub(code as u64)),
    }
}

/// Sets the current slack; zero sets it back to the thread's default. Nothing depends on success:
/// without it a wait is merely as late as the slack it already had allows.
#[cfg(target_os = "linux")]
#[inline]
pub(crate) fn set(ns: u64) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) == 0 }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn get() -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set(_ns: u64) -> bool {
    false
}

/// The widest slack ever handed to the kernel. At `2^64 - 1` a sleep of a millisecond does not
/// return; a second is already as many wakeups saved as one thread can notice.
pub(crate) const WIDEST: u64 = 1_000_000_000;

/// Sets the calling thread's slack and sets it back when dropped, also by a panic.
///
/// Stays on its thread: the slack does.
#[derive(Debug)]
pub(crate) struct Scoped {
    /// What to set back, when something was set.
    old: Option<u64>,
    on_thread: std::marker::PhantomData<*const ()>,
}

impl Scoped {
    /// `slack` in nanoseconds; zero means exact, and [`WIDEST`] is the limit.
    ///
    /// The present value is asked for each time: a caller may have changed it with prctl, or another
    /// process through `/proc`, so a remembered one would "restore" something else. When it is what
    /// is wanted, that one call is all.
    ///
    /// Setting back a zero is right, too. A thread reads zero when it is real-time (then setting does
    /// nothing, and the kernel restores the default when the policy changes) or when its default is
    /// zero, since nothing but the default can make it so.
    #[inline]
    pub(crate) fn new(slack: u64) -> Scoped {
        // Zero would mean "the default", one nanosecond is as good as none.
        let want = slack.clamp(1, WIDEST);
        let old = get().filter(|&old| old != want && set(want));
        Scoped { old, on_thread: std::marker::PhantomData }
    }
}

impl Drop for Scoped {
    #[inline]
    fn drop(&mut self) {
        if let Some(old) = self.old {
            set(old);
        }
    }
}
