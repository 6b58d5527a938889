//! What the system says about this process: CPU time, context switches, memory; and what the allocator
//! was asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn clock(id: libc::clockid_t) -> f64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(id, &mut ts) };
    ts.tv_sec as f64 * 1e9 + ts.tv_nsec as f64
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu() -> f64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the whole process, in nanoseconds.
pub fn process_cpu() -> f64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Nanoseconds on the monotonic clock.
pub fn monotonic() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Voluntary context switches of the whole process: how often its threads went to sleep.
pub fn sleeps() -> u64 {
    // SAFETY: all-zero bytes are a valid `rusage`, and `usage` is a valid place for the result.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}

/// Involuntary context switches of the calling thread: how often it was pushed aside.
pub fn pushed_aside() -> u64 {
    // SAFETY: as in `sleeps`.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nivcsw as u64
}

/// Resident bytes of the process.
pub fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    pages * 4096.0
}

/// Gives what the C allocator holds in reserve back to the system, for everybody alike.
pub fn trim() {
    // SAFETY: plain call without pointers.
    unsafe { libc::malloc_trim(0) };
}

/// Sets the timer slack of the calling thread and of the threads it will start.
pub fn set_timer_slack(ns: u64) {
    // SAFETY: this option takes a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) };
}

/// The system's allocator, counted.
pub struct Counted;

static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);

/// Allocations made so far.
pub fn allocations() -> u64 {
    CALLS.load(Relaxed)
}

/// Bytes asked for and not yet given back.
pub fn live_bytes() -> f64 {
    LIVE.load(Relaxed) as i64 as f64
}

// SAFETY: every call goes to the system's allocator unchanged; the counters touch no memory of it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        LIVE.fetch_add((size as u64).wrapping_sub(layout.size() as u64), Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
