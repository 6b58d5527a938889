//! Cases of timers that fired too early or too late elsewhere.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::wheel::{Key, Wheel};
use slackwheel::*;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Everything due at `now`, as `(earliest, value)`.
fn due<T>(w: &mut Wheel<T>, now: u64) -> Vec<(u64, T)> {
    let mut out = Vec::new();
    let step = w.advance(now, usize::MAX, |f| out.push((f.earliest, f.value)));
    assert!(!step.more);
    out
}

#[test]
fn c001_a_timer_longer_than_a_lap_fires_on_its_own_lap() {
    // There is no horizon: every level's width is tried as if it were one.
    for bits in [16, 22, 28, 34, 40, 46, 52, 58] {
        let lap = 1u64 << bits;
        let deadlines =
            [lap - 1, lap, lap + 1, 2 * lap, 2 * lap + 1, lap.saturating_mul(3).saturating_add(7)];
        let mut w = Wheel::new();
        for d in deadlines {
            w.insert(d, d, d);
        }
        let mut seen = Vec::new();
        while let Some(t) = w.next_wake() {
            for (_, d) in due(&mut w, t) {
                assert_eq!(t, d, "out on another lap");
                seen.push(d);
            }
        }
        assert_eq!(seen, deadlines, "lap of 2^{bits} ns");
    }
}

#[test]
fn c004_a_sleep_counts_from_the_call_not_from_the_last_turn() {
    let mut b = Bench::new();
    b.driver.turn();
    b.set(ms(80));
    let mut s = b.h().sleep(ms(100));
    assert_eq!(s.deadline(), b.t0 + ms(180));
    assert!(peek(&mut s).is_pending());
    b.at(ms(100));
    assert!(peek(&mut s).is_pending());
    b.at(ms(179));
    assert!(peek(&mut s).is_pending());
    b.at(ms(180));
    assert!(peek(&mut s).is_ready());
}

#[test]
fn c006_the_part_of_now_below_a_millisecond_counts() {
    for offset in [us(700), ns(1), ns(999_999)] {
        for delay in [ns(1), us(1), ms(1), ms(1) + ns(1)] {
            let mut b = Bench::new();
            b.set(offset);
            let mut s = b.h().sleep(delay);
            assert!(peek(&mut s).is_pending());
            b.at(offset + delay - ns(1));
            assert!(peek(&mut s).is_pending(), "early after {offset:?} + {delay:?}");
            b.at(offset + delay);
            assert!(peek(&mut s).is_ready(), "not ready at {offset:?} + {delay:?}");
            assert_eq!(s.lateness(), Some(Duration::ZERO));
        }
    }
}

#[test]
fn c007_a_pending_timer_is_never_counted_as_expired_on_the_way() {
    let mut w = Wheel::new();
    assert!(due(&mut w, 100 * MS).is_empty());
    let k = w.insert(248 * MS, 248 * MS, ());
    for t in [130, 191, 192, 200, 247] {
        assert!(due(&mut w, t * MS).is_empty());
        assert!(w.contains(k) && w.len() == 1);
    }
    assert_eq!(due(&mut w, 250 * MS).len(), 1);
    assert!(w.is_empty() && !w.contains(k));

    // Nor in the driver's counts.
    let mut b = Bench::new();
    let mut s = b.h().sleep(ms(248));
    assert!(peek(&mut s).is_pending());
    for t in [130, 191, 192, 200, 247] {
        assert_eq!(b.at(ms(t)).fired, 0);
        assert_eq!((b.h().metrics().unwrap().fired, b.pending()), (0, 1));
    }
    assert_eq!(b.at(ms(250)).fired, 1);
    assert_eq!((b.h().metrics().unwrap().fired, b.pending()), (1, 0));
}

#[test]
fn c009_one_poll_at_the_deadline_is_enough() {
    let rows = [(0, 64), (5, 69), (63, 127), (60, 4096), (4095, 4096), (4095, 8192), (1, 262_144)];
    // As milliseconds, and as ticks of each level.
    for unit in [MS, 1024, 1024 << 6, 1024 << 12, 1024 << 18] {
        for (now, d) in rows {
            for late in [0, 3] {
                let mut w = Wheel::new();
                assert!(due(&mut w, now * unit).is_empty());
                w.insert(d * unit, d * unit, ());
                assert_eq!(due(&mut w, (d + late) * unit).len(), 1, "{unit} {now} {d} {late}");
            }
        }
    }
}

#[test]
fn c013_one_poll_catches_up_with_everything() {
    let second = 1_000_000_000u64;
    let mut w = Wheel::new();
    w.insert(11 * second, 11 * second, ());
    let mut t = 0;
    while due(&mut w, t).is_empty() {
        t += 18 * second / 10;
    }
    assert_eq!(t, 126 * second / 10, "the first poll at or after 11 s");

    let mut w = Wheel::new();
    for i in 1..=50u64 {
        w.insert(i * 7 * MS, i * 7 * MS, i);
    }
    let all: Vec<u64> = due(&mut w, 10_000 * MS).into_iter().map(|x| x.1).collect();
    assert_eq!(all, (1..=50).collect::<Vec<_>>());
}

#[test]
fn c014_now_is_due_now_and_a_second_is_a_second() {
    let b = Bench::new();
    let mut s = b.h().sleep_until(b.clock.now());
    assert!(peek(&mut s).is_ready());
    assert_eq!(b.now_ms(), 0);

    let sim = Sim::new();
    let start = sim.now();
    let until = sim.handle().sleep_until(start + secs(1));
    sim.spawn(until);
    sim.run_until_idle();
    assert_eq!(sim.now() - start, secs(1));
}

#[test]
fn c015_the_next_deadline_is_the_smallest_live_one() {
    let mut b = Bench::new();
    let h = b.h();
    let [mut a, mut x, mut c] = [5, 1, 3].map(|s| h.sleep(secs(s)));
    for s in [&mut a, &mut x, &mut c] {
        assert!(peek(s).is_pending());
    }
    assert_eq!(b.driver.next_deadline(), Some(b.t0 + secs(1)));
    drop(x);
    assert_eq!(b.driver.next_deadline(), Some(b.t0 + secs(3)));
    assert_eq!(b.driver.next_wake_exact(), Some(b.t0 + secs(3)));
    b.at(secs(3));
    assert!(peek(&mut c).is_ready() && peek(&mut a).is_pending());
    assert_eq!(b.driver.next_deadline(), Some(b.t0 + secs(5)));
}

#[test]
fn c018_an_idle_driver_waits_for_the_timer_not_for_a_fixed_time() {
    let d = ms(10);
    for setup in ["alone", "with one far timer", "with 1,000 cancelled timers"] {
        let mut driver = Driver::new().unwrap();
        let h = driver.handle();
        let mut others: Vec<Sleep> = Vec::new();
        match setup {
            "with one far timer" => others.push(h.sleep(secs(3600))),
            "with 1,000 cancelled timers" => others.extend((0..1000).map(|i| h.sleep(secs(i + 1)))),
            _ => {}
        }
        for s in &mut others {
            assert!(peek(s).is_pending());
        }
        if others.len() > 1 {
            others.clear();
        }
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..60 {
            let start = Instant::now();
            driver.block_on(h.sleep(d));
            let took = start.elapsed();
            assert!(took >= d, "early: {took:?}");
            ours.push(took - d);
            bare.push(bare_overshoot(d));
        }
        let (p50, bare50) = (median(&mut ours), median(&mut bare));
        assert!(p50 < bare50 + ms(1), "{setup}: median {p50:?} late, bare {bare50:?}");
        let (p95, bare95) = (quantile(&ours, 0.95), quantile(&bare, 0.95));
        assert!(p95 < 3 * bare95 + ms(5), "{setup}: p95 {p95:?} late, bare {bare95:?}");
    }
}

#[test]
fn c019_a_wheel_that_lags_behind_the_clock_places_by_its_own_time() {
    for unit in [MS, 1024, 1024 << 6, 1024 << 12] {
        for lag in [40, 63, 64, 65] {
            let mut w = Wheel::new();
            assert!(due(&mut w, 0).is_empty());
            // The clock reads `lag` now, but the wheel was not told.
            let mut put = |t: u64| -> (u64, Key) { (t, w.insert(t * unit, t * unit, t)) };
            let mut all = [put(lag + 60), put(lag + 63), put(lag + 24), put(lag + 23)];
            all.sort_by_key(|x| x.0);
            assert!(due(&mut w, lag * unit).is_empty());
            for (t, key) in all {
                assert!(due(&mut w, t * unit - 1).is_empty(), "early");
                assert!(w.contains(key));
                assert_eq!(due(&mut w, t * unit), [(t * unit, t)]);
            }
        }
    }
}

#[test]
fn a_poll_that_finds_a_sleep_due_completes_it_without_a_turn() {
    let b = Bench::new();
    let mut s = b.h().sleep_range(ms(5), ms(50));
    assert!(peek(&mut s).is_pending());
    b.set(ms(5));
    assert_eq!(peek(&mut s), Poll::Ready(()));
    assert_eq!(b.pending(), 0);
}
