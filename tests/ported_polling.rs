//! The facts of polling's precision tests, written anew for this crate. Source: the polling repository,
//! `tests/precision.rs` (MIT or Apache-2.0 licence).
//!
//! | suite | tests there | properties here | left out, and why |
//! | --- | --- | --- | --- |
//! | precision | 2 | 2, for both parkers of a driver and for a bare park | |
//!
//! There: 1,000 waits of 100 us and of 3.1 ms, none early, the best at most 500 us late. Here the same, with
//! fewer of the long ones.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::time::{Duration, Instant};

const MARGIN: Duration = us(500);

/// The best lateness of so many waits; none may be early.
fn best(n: usize, d: Duration, mut wait: impl FnMut()) -> Duration {
    (0..n)
        .map(|_| {
            let start = Instant::now();
            wait();
            let took = start.elapsed();
            assert!(took >= d, "early: {took:?} of {d:?}");
            took - d
        })
        .min()
        .unwrap()
}

#[test]
fn sleeps_below_and_above_a_millisecond_are_precise() {
    for (n, d) in [(1_000, us(100)), (200, us(3_100))] {
        let mut driver = Driver::builder().parker(Parker::TimerFd).build().unwrap();
        let h = driver.handle();
        let late = best(n, d, || driver.block_on(h.sleep(d)));
        assert!(late < MARGIN, "{late:?} late for {d:?}");

        let late = best(n / 2, d, || futures::executor::block_on(sleep(d)));
        assert!(late < MARGIN, "{late:?} late for {d:?} by the default driver");
    }
}

#[test]
fn parks_with_a_limit_are_precise() {
    for (n, d) in [(500, us(100)), (100, us(3_100))] {
        let mut driver = Driver::new().unwrap();
        let late = best(n, d, || {
            let end = Instant::now() + d;
            // A park may return early for no reason; its caller then parks for the rest.
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                if left.is_zero() {
                    break;
                }
                driver.park(Some(left));
            }
        });
        assert!(late < MARGIN, "{late:?} late for a park of {d:?}");
    }
}

#[test]
fn the_portable_parker_is_never_early_and_a_millisecond_late_at_most() {
    for (n, d) in [(100, us(100)), (100, us(3_100))] {
        let mut driver = Driver::builder().parker(Parker::Mio).build().unwrap();
        let h = driver.handle();
        let late = best(n, d, || driver.block_on(h.sleep(d)));
        assert!(late < MARGIN + ms(1), "{late:?} late for {d:?}");
    }
}
