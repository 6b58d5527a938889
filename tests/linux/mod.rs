//! What tests ask of the kernel behind the crate's back.
#![allow(dead_code)]

pub(crate) mod sampler;

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

pub(crate) fn clock(id: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    assert_eq!(unsafe { libc::clock_gettime(id, &mut ts) }, 0);
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// The calling thread's slack in nanoseconds, by the raw call.
pub(crate) fn slack() -> u64 {
    // SAFETY: no pointers are passed.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) as u64 }
}

pub(crate) fn set_slack(ns: u64) {
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) };
    assert_eq!(rc, 0);
}

pub(crate) fn tid() -> i32 {
    // SAFETY: no pointers are passed.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Another thread's slack, as the kernel shows it (needs the right to look: root, mostly).
pub(crate) fn slack_of(tid: i32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{tid}/timerslack_ns")).ok()?.trim().parse().ok()
}

/// The system call that a thread of this process is blocked in: its number and arguments.
pub(crate) fn syscall_of(tid: i32) -> Option<Vec<u64>> {
    let line = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let arguments = words.map_while(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
    Some(std::iter::once(number).chain(arguments).collect())
}

/// Waits until the thread is blocked in this system call.
pub(crate) fn await_syscall(tid: i32, number: i64) -> Vec<u64> {
    let start = Instant::now();
    loop {
        if let Some(call) = syscall_of(tid)
            && call[0] == number as u64
        {
            return call;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "thread {tid} never blocked as expected"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes the calling thread real-time; false when that is not allowed here.
pub(crate) fn become_realtime() -> bool {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: `param` lives through the call; zero is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) == 0 }
}

pub(crate) fn become_ordinary() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives through the call; zero is the calling thread.
    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &param) }, 0);
}

/// A bare futex wait until an absolute time; the yardstick of every upper bound.
pub(crate) fn futex_until(deadline: u64) {
    let word = AtomicU32::new(0);
    let ts = timespec(deadline);
    loop {
        // SAFETY: `word` and `ts` live through the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
                0,
                &ts,
                std::ptr::null::<u32>(),
                !0u32,
            );
        }
        if monotonic() >= deadline {
            word.store(1, Ordering::Relaxed);
            return;
        }
    }
}

/// A bare clock_nanosleep until an absolute time.
pub(crate) fn nanosleep_until(deadline: u64) {
    let ts = timespec(deadline);
    // SAFETY: `ts` lives through the call.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &ts,
            std::ptr::null_mut(),
        );
    }
}

pub(crate) fn median(values: &mut [i64]) -> i64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Runs a fork's child: `f` in the child, which exits with its answer; the parent gets it.
pub(crate) fn in_child(f: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `f` and exits without unwinding or running the parent's destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // A hang must not outlive the test.
        // SAFETY: no pointers are passed.
        unsafe { libc::alarm(10) };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code.into()) }
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}
