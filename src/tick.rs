//! Tick arithmetic: the only place where time is rounded.
//!
//! Ground rules:
//! - Inside the crate a point in time is a `u64` of nanoseconds on some clock. [`NEVER`] is past
//!   that clock's end: an entry there never fires and no kernel timer is armed for it.
//! - Every addition saturates to `NEVER`; every subtraction saturates to zero.
//! - A tick only *places* an entry in the wheel. Whether an entry fires is decided by comparing
//!   nanoseconds, so rounding can never make a timer early or late.

use std::time::Duration;

/// Past the end of every clock (about 584 years): a deadline that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// A tick of the wheel's finest level is `2^TICK_SHIFT` nanoseconds (1.024 us).
pub(crate) const TICK_SHIFT: u32 = 10;

/// The tick that holds the nanosecond `ns`.
#[inline]
pub(crate) const fn tick_of(ns: u64) -> u64 {
    ns >> TICK_SHIFT
}

/// The first nanosecond of `tick`.
#[inline]
pub(crate) const fn tick_start(tick: u64) -> u64 {
    tick << TICK_SHIFT
}

/// A duration in nanoseconds; [`NEVER`] when it does not fit.
#[inline]
pub(crate) const fn nanos(d: Duration) -> u64 {
    match d.as_secs().checked_mul(1_000_000_000) {
        Some(s) => s.saturating_add(d.subsec_nanos() as u64),
        None => NEVER,
    }
}

/// `ns + d`, or [`NEVER`] past the clock's end.
#[inline]
pub(crate) const fn after(ns: u64, d: Duration) -> u64 {
    ns.saturating_add(nanos(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_saturate_instead_of_wrapping() {
        assert_eq!(nanos(Duration::MAX), NEVER);
        assert_eq!(nanos(Duration::from_secs(u64::MAX)), NEVER);
        assert_eq!(nanos(Duration::from_nanos(u64::MAX)), NEVER);
        assert_eq!(nanos(Duration::from_nanos(u64::MAX - 1)), NEVER - 1);
        assert_eq!(nanos(Duration::ZERO), 0);
        assert_eq!(after(NEVER, Duration::from_nanos(1)), NEVER);
        assert_eq!(after(5, Duration::from_nanos(1)), 6);
    }

    #[test]
    fn a_tick_holds_its_own_start() {
        for ns in [0, 1, 1023, 1024, 1025, u64::MAX] {
            let tick = tick_of(ns);
            assert!(tick_start(tick) <= ns);
            assert!(ns - tick_start(tick) < 1 << TICK_SHIFT);
        }
    }
}
