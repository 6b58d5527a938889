//! The facts of Go's timer tests, written anew for this crate. Source: the Go repository,
//! `src/time/sleep_test.go` and `src/time/tick_test.go` (BSD licence, copyright The Go Authors).
//!
//! | suite | tests there | properties here | left out, and why |
//! | --- | --- | --- | --- |
//! | sleep_test | 16 | 13 | a zero `Timer` that panics when used (2): there is no such value here; the runtime's own overflow hook (1), whose subject is among the 13 |
//! | tick_test | 7 | 2, and the load of its benchmark | negative durations (3): `Duration` has none; a ticker made by hand (1) and one with a callback (1): not offered here |
//!
//! Go retries with growing units because its tests run on the real clock. Here what can be is on a manual clock,
//! and exact; the rest is judged loosely.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Go's slots: `TestAfterQueuing`.
const SLOTS: [u64; 13] = [5, 3, 6, 6, 6, 1, 1, 2, 7, 9, 4, 8, 0];

#[test]
fn timers_come_in_the_order_of_their_deadlines() {
    // Real clock, default driver, any executor.
    let unit = ms(10);
    let start = Instant::now();
    let order = Arc::new(Mutex::new(Vec::new()));
    let all = SLOTS.map(|slot| {
        let order = order.clone();
        async move {
            sleep(unit * slot as u32).await;
            order.lock().unwrap().push((slot, start.elapsed()));
        }
    });
    futures::executor::block_on(futures::future::join_all(all));
    let order = order.lock().unwrap();
    assert!(order.iter().all(|(slot, at)| *at >= unit * *slot as u32), "early: {order:?}");

    // Simulated: to the nanosecond, and ties by insertion.
    let sim = Sim::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (i, slot) in SLOTS.into_iter().enumerate() {
        let (me, order) = (sim.clone(), order.clone());
        sim.spawn(async move {
            me.handle().sleep(unit * slot as u32).await;
            order.lock().unwrap().push((slot, i, me.elapsed()));
        });
    }
    sim.run_until_idle();
    let order = order.lock().unwrap();
    assert!(order.is_sorted_by_key(|(slot, i, _)| (*slot, *i)), "{order:?}");
    assert!(order.iter().all(|(slot, _, at)| *at == unit * *slot as u32));
}

#[test]
fn sleep_lasts_at_least_as_asked_and_ten_in_a_row_ten_times_that() {
    let start = Instant::now();
    futures::executor::block_on(sleep(ms(30)));
    assert!(start.elapsed() >= ms(30));
    let start = Instant::now();
    for _ in 0..10 {
        futures::executor::block_on(sleep(ms(5)));
    }
    let took = start.elapsed();
    assert!(took >= ms(50) && took < ms(500), "{took:?}");
}

#[test]
fn a_stopped_timer_never_fires_and_a_second_stop_says_so() {
    let sim = Sim::new();
    let mut q = DelayQueue::with_handle(sim.handle());
    let [a, b, c] = [50, 100, 150].map(|d| q.insert(d, ms(d)));
    q.insert(200, ms(200));
    assert_eq!(q.remove(&a), Some(50));
    assert_eq!(q.remove(&c), Some(150));
    let mut out = Vec::new();
    sim.block_on(async {
        while let Some(e) = std::future::poll_fn(|cx| q.poll_expired(cx)).await {
            out.push(e.into_inner());
        }
    });
    assert_eq!(out, [100, 200]);
    for k in [a, b, c] {
        assert_eq!(q.remove(&k), None);
    }
}

#[test]
fn stops_at_half_time_by_a_hundred_tasks() {
    let sim = Sim::new();
    let fired = Arc::new(AtomicU32::new(0));
    for _ in 0..100 {
        let (h, fired) = (sim.handle(), fired.clone());
        sim.spawn(async move {
            let timer = async {
                h.sleep(secs(2)).await;
                fired.fetch_add(1, Ordering::SeqCst);
            };
            let _ = h.timeout(secs(1), timer).await;
        });
    }
    sim.assert_wakeups(1, || sim.advance(secs(3)));
    assert_eq!(fired.load(Ordering::SeqCst), 0);
}

#[test]
fn reset_says_whether_the_timer_was_live() {
    let mut b = Bench::new();
    let d = ms(25);
    let mut q = b.queue();
    let k = q.insert("t", 2 * d);
    assert!(pop(&mut q, std::task::Waker::noop()).is_pending());
    b.at(d);
    assert!(q.reset(&k, 3 * d), "it has not fired");
    b.at(3 * d);
    assert!(pop(&mut q, std::task::Waker::noop()).is_pending(), "fired at the old time");
    b.at(4 * d);
    assert!(pop(&mut q, std::task::Waker::noop()).is_ready());
    assert!(!q.reset(&k, d), "it has fired");
}

#[test]
fn the_largest_duration_never_fires_and_the_past_fires_at_once() {
    let sim = Sim::new();
    let h = sim.handle();
    for big in [ns(i64::MAX as u64), ns(u64::MAX), Duration::MAX] {
        let mut big = h.sleep(big);
        let small = h.sleep(ms(25));
        sim.block_on(futures::future::select(&mut big, small));
        assert!(!big.is_elapsed());
    }
    let past = h.now().checked_sub(DAY).unwrap_or(h.now());
    assert!(peek(&mut h.sleep_until(past)).is_ready());
    assert_eq!(sim.elapsed(), ms(75));
}

#[test]
fn zero_timers_never_hang() {
    // Go: 100 zero sleeps beside a busy collector, and a million zero timers under 2 s each.
    let busy = std::thread::spawn(|| (0..100).for_each(|_| std::thread::yield_now()));
    futures::executor::block_on(async {
        let mut worst = ms(0);
        for _ in 0..100_000 {
            let start = Instant::now();
            sleep(ms(0)).await;
            worst = worst.max(start.elapsed());
        }
        assert!(worst < secs(2), "{worst:?}");
    });
    busy.join().unwrap();
}

#[test]
fn a_chain_of_callbacks_runs_to_its_end() {
    // Each timer, when it fires, starts the next one.
    let sim = Sim::new();
    let left = Arc::new(AtomicU32::new(10));
    fn next(sim: &Sim, left: Arc<AtomicU32>) {
        let me = sim.clone();
        sim.spawn(async move {
            me.handle().sleep(ms(0)).await;
            if left.fetch_sub(1, Ordering::SeqCst) > 1 {
                next(&me, left);
            }
        });
    }
    next(&sim, left.clone());
    sim.run_until_idle();
    assert_eq!((left.load(Ordering::SeqCst), sim.elapsed()), (0, ms(0)));
}

#[test]
fn a_ticker_under_load_delivers_a_hundred_ticks() {
    futures::executor::block_on(async {
        let mut iv = interval(ns(1));
        let garbage: Vec<Sleep> = (0..32_768).map(|_| sleep(secs(3600))).collect();
        for _ in 0..100 {
            iv.tick().await;
        }
        drop(garbage);
    });
}

#[test]
fn a_ticker_that_is_reset_doubles_its_period_and_stops() {
    let mut b = Bench::new();
    let delta = ms(20);
    let mut iv = b.h().interval_at(b.t0 + delta, delta);
    let mut got = 0;
    while got < 5 {
        if tick(&mut iv).is_ready() {
            got += 1;
        } else {
            let next = b.driver.next_wake().unwrap();
            b.clock.set(next);
            b.driver.turn();
        }
    }
    assert_eq!(b.now_ms(), 100);
    // A new period is a new interval; its schedule starts at the switch.
    iv = b.h().interval_at(b.clock.now() + 2 * delta, 2 * delta);
    for k in 1..=5u32 {
        assert!(tick(&mut iv).is_pending());
        let next = b.driver.next_wake().unwrap();
        b.clock.set(next);
        b.driver.turn();
        assert!(tick(&mut iv).is_ready());
        assert_eq!(b.now_ms(), 100 + 40 * k as u64);
    }
    iv.stop();
    b.at(secs(10));
    assert!(tick(&mut iv).is_pending());
}

#[test]
fn tickers_are_torn_down_without_a_deadlock() {
    for _ in 0..3 {
        futures::executor::block_on(async {
            let mut iv = interval(ms(5));
            iv.tick().await;
            iv.tick().await;
            iv.stop();
        });
    }
}

#[test]
fn a_panic_beside_a_ticker_leaves_it_stoppable() {
    let sim = Sim::new();
    let mut iv = sim.handle().interval(secs(3600));
    assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = sim.handle().sleep(secs(1));
        panic!("in between");
    }));
    assert!(caught.is_err());
    iv.stop();
    assert_eq!(sim.handle().metrics().unwrap().pending, 0);
}
