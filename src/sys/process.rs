//! Threads and processes: what a helper thread inherits, and what a fork leaves behind.

/// Runs `f` with every signal blocked on this thread, so that a thread started by it inherits that:
/// the program's handlers never run on a helper thread.
pub(crate) fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(unix)]
    {
        struct Restore(libc::sigset_t);
        impl Drop for Restore {
            fn drop(&mut self) {
                // SAFETY: the set is the one this thread had; a null old set is allowed.
                unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
            }
        }
        // SAFETY: both sets are valid places; sigfillset initialises the one that is read.
        let _restore = unsafe {
            let mut all = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            Restore(old)
        };
        f()
    }
    #[cfg(not(unix))]
    f()
}

/// Takes from this thread what it inherited from whoever happened to start it: a real-time policy, a
/// set of allowed CPUs, a timer slack. Each may fail where the process may not change it back; the
/// thread then runs with what it has.
pub(crate) fn shed_inheritance() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the parameter and the set are valid for the calls; 0 is the calling thread.
        unsafe {
            let normal: libc::sched_param = std::mem::zeroed();
            if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
                libc::sched_setscheduler(0, libc::SCHED_OTHER, &normal);
            }
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            for cpu in 0..libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu, &mut all);
            }
            // The kernel keeps those CPUs the process may use.
            libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &all);
            // An explicit value: 0 would mean the slack of the thread that started this one.
            const DEFAULT_NS: libc::c_ulong = 50_000;
            libc::prctl(libc::PR_SET_TIMERSLACK, DEFAULT_NS);
        }
    }
}

/// Calls `child` in every child of a fork from now on. It may only do what is safe in a signal
/// handler: atomic accesses.
pub(crate) fn on_fork_in_child(child: extern "C" fn()) {
    #[cfg(unix)]
    {
        // SAFETY: the function lives as long as the program and does what such a handler may do (the
        // caller's promise). Failure means out of memory; then a fork is simply not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }
    #[cfg(not(unix))]
    let _ = child;
}

/// A number that is the same for all processes of this boot of the machine, and differs between boots and
/// machines (random(4), `boot_id`); zero where there is none.
pub(crate) fn boot_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}
