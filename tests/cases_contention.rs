//! Cases of timers that got slow, or lost, under contention elsewhere.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn c133_what_is_never_polled_pending_is_never_registered() {
    // The lock itself is counted in the crate's own tests; this is the outside view.
    let driver = Driver::new().unwrap();
    let h = driver.handle();
    for _ in 0..1_000 {
        drop(h.sleep(secs(1)));
        let mut t = h.timeout(secs(1), std::future::ready(1));
        assert!(peek(&mut t).is_ready());
    }
    assert_eq!(h.metrics().unwrap().registered, 0);
}

/// Median time of one idle poll, one look at the next wake, and one insert with its cancel.
fn idle_costs(n: u64) -> [Duration; 3] {
    let hour = 3_600_000 * MS;
    let mut w = Wheel::new();
    let mut rng = Rng(n);
    for i in 0..n {
        let at = hour + rng.below(hour);
        w.insert(at, at + MS * (i % 3), ());
    }
    let mut now = 0;
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..400 {
        now += 1_000_000;
        let start = Instant::now();
        let fired = w.advance(now, usize::MAX, |_| ()).fired;
        samples[0].push(start.elapsed());
        let start = Instant::now();
        let next = w.next_wake();
        samples[1].push(start.elapsed());
        assert!(fired == 0 && next >= Some(hour.min(now)));
        let at = hour + rng.below(hour);
        let start = Instant::now();
        let key = w.insert(at, at, ());
        let gone = w.cancel(key);
        samples[2].push(start.elapsed());
        assert!(gone.is_some());
    }
    samples.map(|mut s| median(&mut s))
}

#[test]
fn c135_finding_that_nothing_is_due_does_not_cost_the_population() {
    let few = idle_costs(10);
    for n in [1_000, 100_000, 1_000_000] {
        let many = idle_costs(n);
        for (few, many) in few.iter().zip(many) {
            // A look at every timer would cost thousands of times as much.
            assert!(many < 20 * *few + us(20), "{few:?} with 10 timers, {many:?} with {n}");
        }
    }
}

#[test]
fn c137_a_near_timer_on_any_shard_is_never_slept_through() {
    // The deterministic interleaving is among the crate's own tests; this one is threads at full speed.
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let churn: Vec<_> = (0..2u64)
        .map(|seed| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut rng = Rng(seed);
                while !stop.load(Ordering::SeqCst) {
                    let mut s = h.sleep(ms(50 + rng.below(100_000)));
                    let _ = peek(&mut s);
                }
            })
        })
        .collect();
    let sleepers: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                let mut worst = ms(0);
                for _ in 0..200 {
                    let start = Instant::now();
                    futures::executor::block_on(h.sleep(ms(1)));
                    assert!(start.elapsed() >= ms(1));
                    worst = worst.max(start.elapsed());
                }
                worst
            })
        })
        .collect();
    while !sleepers.iter().all(|t| t.is_finished()) {
        driver.park(Some(secs(5)));
        if sleepers.iter().all(|t| t.is_finished()) {
            break;
        }
    }
    stop.store(true, Ordering::SeqCst);
    let worst = sleepers.into_iter().map(|t| t.join().unwrap()).max().unwrap();
    churn.into_iter().for_each(|t| t.join().unwrap());
    assert!(worst < secs(2), "{worst:?} for a sleep of 1 ms");
}
