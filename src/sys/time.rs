//! Reading the system's clocks (clock_gettime(2)).

/// A clock of the system.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockId {
    Monotonic,
    Boottime,
    Realtime,
}

#[cfg(target_os = "linux")]
impl ClockId {
    #[inline(always)]
    pub(crate) fn raw(self) -> libc::clockid_t {
        match self {
            ClockId::Monotonic => libc::CLOCK_MONOTONIC,
            ClockId::Boottime => libc::CLOCK_BOOTTIME,
            ClockId::Realtime => libc::CLOCK_REALTIME,
        }
    }
}

/// The clock's reading in nanoseconds; zero for a time before its epoch.
#[cfg(target_os = "linux")]
#[inline]
pub(crate) fn now(clock: ClockId) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result, and the clock is one every kernel since 2.6.39
    // knows, so the call cannot fail.
    let rc = unsafe { libc::clock_gettime(clock.raw(), &mut ts) };
    debug_assert_eq!(rc, 0);
    match u64::try_from(ts.tv_sec) {
        Ok(s) => s.saturating_mul(1_000_000_000).saturating_add(ts.tv_nsec as u64),
        Err(_) => 0,
    }
}

/// Nanoseconds as the kernel's absolute time; the far end is clamped to a value it accepts
/// (seconds above `i64::MAX` would be negative: `EINVAL`).
#[cfg(target_os = "linux")]
pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}
