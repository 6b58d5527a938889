//! The calling thread's scheduling policy (sched(7)).

/// Whether the calling thread runs under a real-time or deadline policy, where timer slack is zero
/// whatever is set.
#[cfg(target_os = "linux")]
pub(crate) fn is_realtime() -> bool {
    // The raw call: musl's wrapper always fails.
    // SAFETY: the call takes no pointers; zero is the calling thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    // A failure (a sandbox) is -1, which is no policy.
    let policy = policy as libc::c_int;
    if policy < 0 {
        return false;
    }
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_realtime() -> bool {
    false
}

/// Whether the calling thread's nice value is above zero: the kernel then stretches poll timeouts more.
#[cfg(target_os = "linux")]
pub(crate) fn is_nice() -> bool {
    // The system call, unlike the C function, answers with 20 minus the nice value, or an error
    // below zero.
    // SAFETY: the call takes no pointers; zero is the calling thread.
    let answer = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    // When in doubt: yes.
    answer < 20
}
