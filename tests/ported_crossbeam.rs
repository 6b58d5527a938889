//! The facts of crossbeam-channel's `after` and `tick` tests, written anew for this crate. Source: the crossbeam
//! repository, `crossbeam-channel/tests/after.rs` and `tick.rs` (MIT or Apache-2.0 licence).
//!
//! | suite | tests there | properties here | left out, and why |
//! | --- | --- | --- | --- |
//! | after | 14 | 9 | capacity and length of a channel (2), clones of a receiver (1): a timer is no channel; which of several equal select arms wins (2): that is the executor's |
//! | tick | 14 | 10 | capacity and length (2); fairness of select arms (2) |
//!
//! What is a receive there is a poll or an await here; a stamp that is read late is the scheduled instant.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

#[test]
fn a_timer_read_late_is_ready_once_and_knows_how_late() {
    let mut b = Bench::new();
    let mut s = b.h().sleep(ms(50));
    assert!(peek(&mut s).is_pending());
    b.at(ms(100));
    assert!(peek(&mut s).is_ready());
    assert_eq!(s.deadline(), b.t0 + ms(50));
    assert_eq!(s.lateness(), Some(ms(50)));
    // A queue hands it out once.
    let mut q = b.queue();
    q.insert_at((), b.t0 + ms(50));
    let popped = q.poll_expired(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let Poll::Ready(Some(popped)) = popped else { panic!("not out") };
    assert_eq!(popped.deadline(), b.t0 + ms(50));
    assert_eq!(popped.lateness(), ms(50));
    assert_eq!(pop(&mut q, std::task::Waker::noop()), Poll::Ready(None));
}

#[test]
fn timeouts_shorter_than_the_timer_come_first_and_change_nothing() {
    let sim = Sim::new();
    let h = sim.handle();
    let start = sim.now();
    let mut r = h.sleep(ms(200));
    assert!(sim.block_on(h.timeout(ms(100), &mut r)).is_err());
    assert_eq!(sim.now() - start, ms(100));
    assert!(sim.block_on(h.timeout(ms(200), &mut r)).is_ok());
    assert_eq!(sim.now() - start, ms(200), "received at its own time");
    assert!(sim.block_on(h.timeout(ms(200), std::future::pending::<()>())).is_err());
    assert_eq!(sim.now() - start, ms(400));

    // The same on the real clock, judged by a bare sleep.
    let start = Instant::now();
    futures::executor::block_on(async {
        let mut r = sleep(ms(40));
        assert!(timeout(ms(20), &mut r).await.is_err());
        assert!(start.elapsed() >= ms(20));
        assert!(timeout(ms(200), &mut r).await.is_ok());
    });
    let took = start.elapsed();
    assert!(took >= ms(40) && took < ms(150) + 4 * bare_overshoot(ms(10)), "{took:?}");
}

#[test]
fn of_two_timers_the_shorter_wins_whatever_the_order() {
    let sim = Sim::new();
    let h = sim.handle();
    for (a, b) in [(50, 100), (100, 50)] {
        let start = sim.now();
        let (mut x, mut y) = (h.sleep(ms(a)), h.sleep(ms(b)));
        sim.block_on(futures::future::select(&mut x, &mut y));
        assert_eq!(sim.now() - start, ms(50));
        assert_eq!((x.is_elapsed(), y.is_elapsed()), (a < b, b < a));
    }
}

#[test]
fn zero_is_ready_at_the_first_look_and_the_future_is_not() {
    let b = Bench::new();
    for _ in 0..10 {
        assert!(peek(&mut b.h().sleep(ms(0))).is_ready());
        assert!(peek(&mut b.h().sleep(ms(100))).is_pending());
    }
}

#[test]
fn a_thousand_timers_over_four_threads_are_each_delivered_once() {
    const COUNT: u32 = 1_000;
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let hits = Arc::new(AtomicU32::new(0));
    let next = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (hits, next) = (hits.clone(), next.clone());
            std::thread::spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    if i >= COUNT {
                        return;
                    }
                    let start = Instant::now();
                    let d = ms(i as u64 / 200);
                    futures::executor::block_on(h.sleep(d));
                    assert!(start.elapsed() >= d);
                    hits.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    while !threads.iter().all(|t| t.is_finished()) {
        driver.park(Some(ms(5)));
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(hits.load(Ordering::SeqCst), COUNT);
    assert_eq!(h.metrics().unwrap().pending, 0);
}

#[test]
fn ticks_stay_on_their_grid_after_a_pause() {
    // crossbeam hands out one late tick and goes on with the grid: that is `Skip`.
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0 + ms(50), ms(50)).missed_ticks(MissedTicks::Skip);
    b.at(ms(50));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(50)));
    b.at(ms(351));
    assert_eq!(
        tick(&mut iv),
        Poll::Ready(b.t0 + ms(100)),
        "the stamp of the first that was missed"
    );
    assert!(tick(&mut iv).is_pending());
    b.at(ms(400));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(400)));
    assert!(tick(&mut iv).is_pending());
}

#[test]
fn a_tick_waits_for_its_time_under_shorter_timeouts() {
    let sim = Sim::new();
    let h = sim.handle();
    let start = sim.now();
    let mut iv = h.interval_at(start + ms(200), ms(200));
    let took = |r: Result<Instant, Elapsed>, at: u64| {
        assert_eq!(sim.now() - start, ms(at));
        r.is_ok()
    };
    assert!(!took(sim.block_on(h.timeout(ms(100), iv.tick())), 100));
    assert!(took(sim.block_on(h.timeout(ms(200), iv.tick())), 200));
    assert!(!took(sim.block_on(h.timeout(ms(100), iv.tick())), 300));
    assert!(took(sim.block_on(h.timeout(ms(200), iv.tick())), 400));
}

#[test]
fn two_tickers_deliver_eight_ticks_in_eleven_hundred_milliseconds() {
    let sim = Sim::new();
    let hits = Arc::new(AtomicU32::new(0));
    for period in [200, 300] {
        let (h, hits) = (sim.handle(), hits.clone());
        sim.spawn(async move {
            let mut iv = h.interval_at(h.now() + ms(period), ms(period));
            let end = h.sleep(ms(1100));
            futures::pin_mut!(end);
            loop {
                let next = iv.tick();
                futures::pin_mut!(next);
                match futures::future::select(&mut end, next).await {
                    futures::future::Either::Left(_) => return,
                    futures::future::Either::Right(_) => hits.fetch_add(1, Ordering::SeqCst),
                };
            }
        });
    }
    sim.run_until_idle();
    assert_eq!(hits.load(Ordering::SeqCst), 8);
    assert_eq!(sim.elapsed(), Duration::from_millis(1100));
}
