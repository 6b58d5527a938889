//! Cases of durations that broke timers elsewhere: huge, never, zero, negative.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

#[test]
fn c035_no_duration_collides_with_a_sentinel() {
    let seconds = [u64::MAX / 10, u64::MAX / 1000, u64::MAX / 1000 - 1, 1 << 54, (1 << 44) - 1];
    let millis = (30..=63).flat_map(|k| [(1u64 << k) - 1, 1 << k, (1 << k) + 1]);
    let all = seconds.into_iter().map(secs).chain(millis.map(ms));
    for d in all {
        let mut b = Bench::new();
        let mut s = b.h().sleep(d);
        assert!(peek(&mut s).is_pending());
        s.reset(b.t0 + ms(5));
        assert!(peek(&mut s).is_pending());
        assert_eq!(b.at(ms(5)).fired, 1);
        assert!(peek(&mut s).is_ready());
        let mut s2 = b.h().sleep(d);
        assert!(peek(&mut s2).is_pending());
        b.at(ms(6));
        assert!(peek(&mut s2).is_pending());
        drop(s2);
        assert_eq!(b.pending(), 0);
    }
}

#[test]
fn c037_an_interval_past_the_end_of_time_stays_pending() {
    let mut b = Bench::new();
    let mut iv = b.h().interval(Duration::MAX);
    assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
    b.at(YEAR);
    assert!(tick(&mut iv).is_pending());

    let mut b = Bench::new();
    let mut jv = b.h().interval_at(b.t0 + secs(1), Duration::MAX);
    assert!(tick(&mut jv).is_pending());
    b.at(secs(1));
    assert!(tick(&mut jv).is_ready() && tick(&mut jv).is_pending());

    let mut kv = b.h().interval(Duration::MAX / 2);
    assert!(tick(&mut kv).is_ready() && tick(&mut kv).is_pending());
    b.clock.advance(Duration::MAX);
    b.driver.turn();
    assert!(tick(&mut kv).is_pending());
}

const HUGE: [Duration; 5] =
    [Duration::MAX, secs(u64::MAX), secs(i64::MAX as u64), ms(u64::MAX), ns(u64::MAX)];

#[test]
fn c039_nothing_that_takes_a_duration_overflows() {
    for d in HUGE {
        let mut b = Bench::new();
        let h = b.h();
        let mut sleeps = [h.sleep(d), h.sleep_range(d, d), h.sleep_range(ms(1), d)];
        for s in &mut sleeps {
            assert!(peek(s).is_pending());
        }
        let mut t = h.timeout(d, std::future::pending::<()>());
        assert!(peek(&mut t).is_pending());
        let mut q = b.queue();
        let k = q.insert("v", d);
        assert!(pop(&mut q, Waker::noop()).is_pending());
        let mut iv = h.interval(d);
        assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
        // A window without an end is served with whatever else wakes the driver.
        b.at(ms(2));
        assert!(peek(&mut sleeps[2]).is_ready());
        assert!(peek(&mut sleeps[0]).is_pending() && peek(&mut sleeps[1]).is_pending());
        assert_eq!(q.remove(&k), Some("v"));
        drop((sleeps, t, q, iv));
        assert_eq!(b.pending(), 0);
    }
}

#[test]
fn c041_advancing_the_clock_to_its_end_saturates() {
    let mut b = Bench::new();
    let mut s = b.h().sleep(YEAR);
    let mut never = b.h().sleep(Duration::MAX);
    assert!(peek(&mut s).is_pending() && peek(&mut never).is_pending());
    b.clock.advance(Duration::MAX);
    b.driver.turn();
    let t1 = b.clock.now();
    b.clock.advance(ms(1));
    assert!(b.clock.now() >= t1 && t1 > b.t0 + YEAR);
    b.driver.turn();
    assert!(peek(&mut s).is_ready() && peek(&mut never).is_pending());

    let sim = Sim::new();
    let task = sim.spawn(sim.handle().sleep(YEAR));
    sim.advance(Duration::MAX);
    sim.advance(Duration::MAX);
    assert!(task.is_finished() && sim.elapsed() > 500 * YEAR);
}

#[test]
fn c043_no_deadline_is_refused_by_the_kernel() {
    // An arm that the kernel refuses is an assertion in the parker.
    for parker in [Parker::TimerFd, Parker::Mio] {
        let mut driver = Driver::builder().parker(parker).build().unwrap();
        let huge = [
            Duration::new(u64::MAX, 0),
            Duration::new(i64::MAX as u64 + 1, 999_999_999),
            ns(u64::MAX - (1 << 62)),
            ns(1 << 63),
        ];
        let mut sleeps = huge.map(|d| driver.handle().sleep(d));
        let start = Instant::now();
        for s in &mut sleeps {
            assert!(peek(s).is_pending());
            driver.park(Some(ms(50)));
            assert!(peek(s).is_pending());
        }
        assert!(start.elapsed() >= ms(150), "{parker:?} did not wait");
    }
}

#[test]
fn c048_a_queue_takes_delays_of_any_length() {
    let mut b = Bench::new();
    let mut q = b.queue();
    for days in [795, 796, 1_157, 36_500, 10_000_000u32] {
        let d = DAY * days;
        let k = q.insert(days, d);
        assert!(q.reset(&k, d));
        assert!(pop(&mut q, Waker::noop()).is_pending());
    }
    b.at(DAY * 1_157);
    let mut out = Vec::new();
    while let Poll::Ready(Some(days)) = pop(&mut q, Waker::noop()) {
        out.push(days);
    }
    assert_eq!(out, [795, 796, 1_157]);
    assert_eq!(q.len(), 2);
    // And it lives on for as long as the clock does.
    b.at(DAY * 40_000);
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some(36_500)));
    assert!(pop(&mut q, Waker::noop()).is_pending());
    assert!(q.insert_at(1, b.t0) != q.insert_at(2, b.clock.now() + secs(1)));
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some(1)));
}

#[test]
fn c049_a_timeout_without_end_waits_for_its_future() {
    for d in [ns(u64::MAX), ms(68_719_476_736), secs(u64::MAX)] {
        let b = Bench::new();
        let (tx, rx) = futures::channel::oneshot::channel();
        let mut t = b.h().timeout(d, rx);
        assert!(peek(&mut t).is_pending());
        tx.send(7).unwrap();
        assert_eq!(peek(&mut t), Poll::Ready(Ok(Ok(7))));
    }
}

#[test]
fn c051_never_is_a_state_that_holds_no_timer() {
    let mut b = Bench::new();
    let mut s = b.h().never();
    assert!(peek(&mut s).is_pending());
    assert_eq!((b.driver.next_deadline(), b.pending()), (None, 0));
    s.reset(b.t0 + ms(10));
    assert!(peek(&mut s).is_pending());
    b.at(ms(10));
    assert!(peek(&mut s).is_ready());

    let mut iv = b.h().interval(ms(1));
    assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
    iv.stop();
    assert_eq!((b.driver.next_deadline(), b.pending()), (None, 0));
    b.at(YEAR);
    assert!(tick(&mut iv).is_pending());
    iv.reset_after(ms(1));
    assert!(tick(&mut iv).is_pending());
    b.at(YEAR + ms(1));
    assert!(tick(&mut iv).is_ready());
}

#[test]
fn c053_what_is_due_already_completes() {
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let start = Instant::now();
    let now = h.now();
    let past = now.checked_sub(secs(1)).unwrap();
    driver.block_on(async {
        h.sleep(Duration::ZERO).await;
        h.sleep_until(now).await;
        h.sleep_until(past).await;
        h.sleep_range(Duration::ZERO, Duration::ZERO).await;
    });
    // With the driver parked by another thread, and deadlines that pass before they are armed.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let parked = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                driver.park(None);
            }
        })
    };
    futures::executor::block_on(async {
        for _ in 0..3_000 {
            h.sleep(ns(1)).await;
        }
    });
    // A pending one that is moved into the past, or to the clock's very start.
    for past in [past, now.checked_sub(DAY).unwrap_or(past)] {
        let mut s = h.sleep(secs(3600));
        let (count, waker) = counter();
        assert!(poll(&mut s, &waker).is_pending());
        s.reset(past);
        while count.get() == 0 && start.elapsed() < secs(10) {
            std::thread::yield_now();
        }
        assert!(poll(&mut s, &waker).is_ready());
    }
    stop.store(true, Ordering::SeqCst);
    h.unpark();
    parked.join().unwrap();
    assert!(start.elapsed() < secs(10), "a due timer was slept through");
}

#[test]
fn c055_a_tiny_period_catches_up_in_constant_time() {
    let mut b = Bench::new();
    let mut iv = b.h().interval(ns(1)).missed_ticks(MissedTicks::Skip);
    assert!(tick(&mut iv).is_ready());
    b.at(secs(3600));
    let start = Instant::now();
    assert!(tick(&mut iv).is_ready());
    assert!(start.elapsed() < ms(100));
    assert_eq!(iv.next_tick(), b.clock.now() + ns(1));

    // Burst: one tick a poll, and others run in between.
    let sim = Sim::new();
    let done = std::sync::Arc::new(AtomicU32::new(0));
    let (h, ticks) = (sim.handle(), done.clone());
    let start = sim.now();
    sim.spawn(async move {
        let mut jv = h.interval_at(start, ns(1));
        while ticks.fetch_add(1, Ordering::SeqCst) < 1_000 {
            jv.tick().await;
        }
    });
    sim.set_auto_advance(false);
    sim.advance(ms(1));
    // All ticks were due at one instant, and that was not the work of a single poll.
    assert_eq!(done.load(Ordering::SeqCst), 1_001);
    assert_eq!(sim.elapsed(), ms(1));
}

#[test]
fn c057_zero_sleeps_let_others_run() {
    let sim = Sim::new();
    let n = std::sync::Arc::new(AtomicU32::new(0));
    let seen = std::sync::Arc::new(AtomicU32::new(0));
    let (h, count) = (sim.handle(), n.clone());
    let looping = sim.spawn(async move {
        loop {
            h.sleep(Duration::ZERO).await;
            h.sleep_until(h.now()).await;
            if count.fetch_add(1, Ordering::SeqCst) > 10_000 {
                return;
            }
        }
    });
    let (count, saw) = (n.clone(), seen.clone());
    sim.spawn(async move { saw.store(count.load(Ordering::SeqCst), Ordering::SeqCst) });
    sim.settle();
    // 128 zero sleeps are ready in a row; then the other task had its turn.
    assert!((60..=64).contains(&seen.load(Ordering::SeqCst)), "{seen:?}");
    assert!(looping.is_finished());

    // And inside a wheel: what is added in a pass is of the next one.
    let mut w = Wheel::new();
    w.insert(5, 5, 0);
    for round in 0..10 {
        let mut out = Vec::new();
        let step = w.advance(5, usize::MAX, |f| out.push(f.value));
        assert_eq!((step.fired, step.more, out), (1, false, vec![round]));
        w.insert(5, 5, round + 1);
    }
}

#[test]
fn c059_an_interval_told_to_tick_now_ticks_now() {
    let mut b = Bench::new();
    let mut iv = b.h().interval(secs(1));
    assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
    b.at(ms(300));
    iv.reset_immediately();
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(300)));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(1299));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(1300));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(1300)));
}
