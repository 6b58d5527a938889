//! The facts of tokio's time tests, written anew for this crate. Source: the tokio repository,
//! `tokio/tests/time_sleep.rs`, `time_interval.rs`, `time_timeout.rs`, `time_pause.rs` (here) and
//! `tokio-util/tests/time_delay_queue.rs` (in `ported_tokio_delay_queue.rs`), MIT licence.
//!
//! Counted in the versions read; where there are more since, that number is behind it.
//!
//! | suite | tests there | properties here | left out, and why |
//! | --- | --- | --- | --- |
//! | time_sleep | 21 | 20 | a sleep made outside of a runtime panics there: here it has the default driver, tested as that |
//! | time_interval | 5 (12) | 5, and the four resets of the later ones | a period of zero panics there: here `try_interval` refuses it and `interval` ticks, tested as that; two about tokio's budget for tasks |
//! | time_timeout | 8 | 8 | |
//! | time_pause | 16 | 12 | the four of where time may be paused: a simulation is an object, and any thread may use it |
//! | time_delay_queue | 30 (35) | 28, and peek | two expect a panic for keys already gone: here those are `None`, tested as that |
//!
//! Where tokio allows a tick of a millisecond, the same is exact here: every time below is to the nanosecond.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How much simulated time `f` takes.
fn takes<F: Future>(sim: &Sim, f: F) -> Duration {
    let start = sim.now();
    sim.block_on(f);
    sim.now() - start
}

// time_sleep

#[test]
fn sleep_now_is_immediate_and_elapsed_says_so() {
    let sim = Sim::new();
    let h = sim.handle();
    assert_eq!(takes(&sim, h.sleep_until(sim.now())), ms(0));
    let mut s = h.sleep(ms(10));
    assert!(!s.is_elapsed());
    assert!(peek(&mut s).is_pending() && !s.is_elapsed());
    sim.block_on(&mut s);
    assert!(s.is_elapsed());
}

#[test]
fn sleeps_within_and_across_a_level_are_exact() {
    let sim = Sim::new();
    let h = sim.handle();
    for d in [1, 10, 60, 63, 64, 65, 4095, 4096] {
        assert_eq!(takes(&sim, h.sleep(ms(d))), ms(d));
    }
    // Below a millisecond, too.
    for _ in 0..5 {
        assert_eq!(takes(&sim, h.sleep(ms(1) + ns(1))), ms(1) + ns(1));
    }
    // Wrapping around a level that was left in its middle.
    sim.block_on(h.sleep(ms(5)));
    assert_eq!(takes(&sim, h.sleep(ms(60))), ms(60));
}

#[test]
fn resets_before_and_after_firing_move_the_deadline() {
    for (first, reset_at, to) in [(100, 0, 200), (100, 0, 80), (100, 10, 80), (100, 100, 110)] {
        let sim = Sim::new();
        let h = sim.handle();
        let start = sim.now();
        let mut s = h.sleep_until(start + ms(first));
        assert!(peek(&mut s).is_pending());
        if reset_at == first {
            sim.block_on(&mut s);
        } else {
            sim.block_on(h.sleep(ms(reset_at)));
        }
        s.reset(start + ms(to));
        sim.block_on(&mut s);
        assert_eq!(sim.now() - start, ms(to));
    }
}

#[test]
fn a_sleep_reset_into_the_past_is_ready() {
    let sim = Sim::new();
    let start = sim.now();
    let (count, waker) = counter();
    let mut s = sim.handle().sleep(ms(100));
    assert!(poll(&mut s, &waker).is_pending());
    sim.advance(ms(50));
    assert_eq!(count.get(), 0);
    s.reset(start + ms(40));
    assert!(poll(&mut s, &waker).is_ready());
}

#[test]
fn a_sleep_outside_of_any_runtime_works() {
    futures::executor::block_on(sleep_until(Instant::now() + ms(5)));
}

#[test]
fn years_and_the_largest_distances_of_other_wheels_are_exact() {
    let year = secs(365 * 24 * 3600);
    let max = (1u64 << 36) - 1;
    for d in [year * 5, year * 10, ms(max), ms(max - 1), ms(max + 1)] {
        let sim = Sim::new();
        assert_eq!(takes(&sim, sim.handle().sleep(d)), d);
    }
    let sim = Sim::new();
    for _ in 0..5 {
        assert_eq!(takes(&sim, sim.handle().sleep(year)), year);
    }
    assert_eq!(takes(&sim, sim.handle().sleep(year * 10)), year * 10);
    // A practically infinite one loses a race against a nanosecond (tokio issue 5183).
    let h = sim.handle();
    let race = futures::future::select(h.sleep(secs(u64::MAX / 10)), h.sleep(ns(1)));
    assert_eq!(takes(&sim, race), ns(1));
}

#[test]
fn ten_thousand_zero_sleeps_end() {
    let sim = Sim::new();
    let h = sim.handle();
    let all = async {
        for _ in 0..10_000 {
            h.sleep(ms(0)).await;
        }
    };
    assert_eq!(takes(&sim, all), ms(0));
}

#[test]
fn a_fired_sleep_is_ready_again_and_can_be_reset() {
    let sim = Sim::new();
    let mut s = sim.handle().sleep(ms(1));
    let deadline = s.deadline();
    sim.block_on(&mut s);
    assert!(peek(&mut s).is_ready());
    s.reset(sim.now() + secs(600));
    assert_ne!(s.deadline(), deadline);
    assert!(peek(&mut s).is_pending() && peek(&mut s).is_pending());
}

#[test]
fn a_sleep_moved_to_the_time_of_another_can_be_dropped_there() {
    let sim = Sim::new();
    let h = sim.handle();
    let start = sim.now();
    let [mut a, mut b, mut c] = [5, 5, 10].map(|d| h.sleep(ms(d)));
    for s in [&mut a, &mut b, &mut c] {
        assert!(peek(s).is_pending());
    }
    b.reset(start + ms(10));
    sim.block_on(a);
    drop(b);
    sim.block_on(c);
    assert_eq!(sim.elapsed(), ms(10));
}

#[test]
fn a_waker_may_drop_a_hundred_sleeps() {
    let sim = Sim::new();
    let list: Arc<Mutex<Vec<Sleep>>> = Arc::default();
    for _ in 0..100 {
        let mut s = sim.handle().sleep(ms(10));
        let all = list.clone();
        let waker = on_wake(move || {
            let gone = std::mem::take(&mut *all.lock().unwrap());
            drop(gone);
        });
        assert!(poll(&mut s, &waker).is_pending());
        list.lock().unwrap().push(s);
    }
    sim.advance(ms(11));
    assert!(list.lock().unwrap().is_empty());
    assert_eq!(sim.handle().metrics().unwrap().pending, 0);
}

// time_interval

/// Polls at the given times; each time the ticks handed out before it is pending.
fn ticks(missed: MissedTicks, times: &[u64]) -> Vec<Vec<u64>> {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0, ms(300)).missed_ticks(missed);
    times
        .iter()
        .map(|t| {
            b.at(ms(*t));
            let mut got = Vec::new();
            while let Poll::Ready(at) = tick(&mut iv) {
                got.push((at - b.t0).as_millis() as u64);
            }
            got
        })
        .collect()
}

#[test]
fn burst_delay_and_skip_hand_out_what_tokios_do() {
    let times = [0, 100, 300, 950, 1150, 1250, 1500, 1800];
    let none = Vec::new;
    assert_eq!(
        ticks(MissedTicks::Burst, &times),
        [vec![0], none(), vec![300], vec![600, 900], none(), vec![1200], vec![1500], vec![1800]]
    );
    assert_eq!(
        ticks(MissedTicks::Delay, &[0, 100, 300, 950, 1050, 1250, 1550, 1850]),
        [vec![0], none(), vec![300], vec![600], none(), vec![1250], vec![1550], vec![1850]]
    );
    assert_eq!(
        ticks(MissedTicks::Skip, &[0, 100, 300, 950, 1200, 1500, 1800]),
        [vec![0], none(), vec![300], vec![600], vec![1200], vec![1500], vec![1800]]
    );
}

#[test]
fn an_interval_is_reset_in_each_way() {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0, ms(300));
    assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
    b.at(ms(400));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(300)));
    iv.reset();
    b.at(ms(650));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(700));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(700)));
    assert!(tick(&mut iv).is_pending());
    iv.reset_immediately();
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(700)));
    iv.reset_after(ms(20));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(720));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(720)));
    iv.reset_at(b.t0 + ms(800));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(800));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(800)));
    assert_eq!(iv.next_tick(), b.t0 + ms(1100));
    // Reset while it is due already, and to a time that has passed.
    b.at(ms(1200));
    iv.reset();
    assert!(tick(&mut iv).is_pending());
    iv.reset_at(b.t0 + ms(1100));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(1100)));
}

#[test]
fn a_zero_period_is_refused_or_a_tick() {
    let b = Bench::new();
    assert_eq!(b.h().try_interval(ms(0)).err(), Some(ZeroPeriod::default()));
    assert!(b.h().interval(ms(0)).period() > ms(0));
}

#[test]
fn a_tick_future_that_is_dropped_loses_no_tick() {
    let sim = Sim::new();
    let h = sim.handle();
    let mut iv = h.interval(ms(10));
    let first = sim.block_on(iv.tick());
    // A timeout drops the future of the tick again and again.
    for _ in 0..3 {
        assert!(sim.block_on(h.timeout(ms(2), iv.tick())).is_err());
    }
    assert_eq!(sim.block_on(iv.tick()), first + ms(10));
    assert_eq!(sim.block_on(iv.tick()), first + ms(20));
}

// time_timeout

#[test]
fn a_ready_future_wins_over_its_deadline() {
    let b = Bench::new();
    b.set(secs(2));
    let mut t = b.h().timeout_at(b.clock.now(), std::future::ready(1));
    assert_eq!(peek(&mut t), Poll::Ready(Ok(1)));
    let mut t = b.h().timeout_at(b.t0 + secs(1), std::future::ready(1));
    assert_eq!(peek(&mut t), Poll::Ready(Ok(1)));
}

#[test]
fn a_timeout_passes_its_future_through_until_the_deadline() {
    for d in [ms(100), Duration::MAX] {
        let b = Bench::new();
        let (count, waker) = counter();
        let (tx, rx) = futures::channel::oneshot::channel();
        let mut t = b.h().timeout(d, rx);
        assert!(poll(&mut t, &waker).is_pending());
        b.clock.advance(if d == ms(100) { ms(90) } else { YEAR * 10 });
        assert!(poll(&mut t, &waker).is_pending());
        tx.send(3).unwrap();
        assert_eq!(count.get(), 1);
        assert_eq!(poll(&mut t, &waker), Poll::Ready(Ok(Ok(3))));
    }
}

#[test]
fn a_timeout_elapses_now_and_later() {
    let mut b = Bench::new();
    let mut t = b.h().timeout_at(b.t0, std::future::pending::<()>());
    assert_eq!(peek(&mut t), Poll::Ready(Err(Elapsed::default())));
    let (count, waker) = counter();
    let mut t = b.h().timeout(ms(300), std::future::pending::<()>());
    assert!(poll(&mut t, &waker).is_pending());
    b.at(ms(300));
    assert_eq!(count.get(), 1);
    assert!(poll(&mut t, &waker).is_ready());
}

#[test]
fn a_future_that_never_yields_for_long_does_not_starve_its_timeout() {
    // Always pending, always waking itself: the deadline is still looked at.
    let busy = futures::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    assert!(futures::executor::block_on(timeout(ms(1), busy)).is_err());
}

// time_pause

#[test]
fn simulated_time_is_deterministic() {
    let run = || {
        let sim = Sim::seeded(1);
        let mut times = Vec::new();
        sim.block_on(async {
            for _ in 0..10_000 {
                sim.handle().sleep(ns(sim.random() % 1_000_000_000)).await;
                times.push(sim.elapsed());
            }
        });
        times
    };
    assert_eq!(run(), run());
}

#[test]
fn advances_are_exact_with_and_without_timers_polled_or_not() {
    let sim = Sim::new();
    let start = sim.now();
    for d in [us(51_592), us(1), us(3_141_592), us(3_123_456), ms(1), ms(1), ns(1)] {
        let before = sim.now();
        sim.advance(d);
        assert_eq!(sim.now() - before, d);
    }
    let (mut polled, mut not) = (sim.handle().sleep(ms(300)), sim.handle().sleep(ms(300)));
    assert!(peek(&mut polled).is_pending());
    for d in [ms(100), us(51_592)] {
        let before = sim.now();
        sim.advance(d);
        assert_eq!(sim.now() - before, d);
        assert!(peek(&mut polled).is_pending());
    }
    assert!(peek(&mut not).is_pending());
    assert!(sim.now() > start);
}

#[test]
fn a_task_that_advances_time_itself_sees_it_exactly() {
    for poll_first in [true, false] {
        let sim = Sim::new();
        let me = sim.clone();
        let task = sim.spawn(async move {
            me.advance(ms(1));
            let mut s = me.handle().sleep(ms(300));
            if poll_first {
                assert!(peek(&mut s).is_pending());
            }
            let before = me.now();
            me.advance(ms(100));
            assert_eq!(me.now() - before, ms(100));
            assert!(peek(&mut s).is_pending());
            me.advance(ms(200));
            assert!(peek(&mut s).is_ready());
        });
        sim.settle();
        assert_eq!(task.take(), Some(()));
    }
}

#[test]
fn advances_in_parts_add_up_to_the_deadline() {
    for parts in [&[250, 250, 250, 250][..], &[250, 1500]] {
        let sim = Sim::new();
        let (count, waker) = counter();
        let mut s = sim.handle().sleep(ms(1));
        assert!(poll(&mut s, &waker).is_pending());
        let (last, rest) = parts.split_last().unwrap();
        for part in rest {
            sim.advance(us(*part));
            assert!(count.get() == 0 && poll(&mut s, &waker).is_pending());
        }
        sim.advance(us(*last));
        assert_eq!(count.get(), 1);
        assert!(poll(&mut s, &waker).is_ready());
    }
}

#[test]
fn an_interval_under_advances() {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0, ms(300));
    let mut at = |t: u64, expected: &[u64]| {
        b.at(ms(t));
        for e in expected {
            assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(*e)));
        }
        assert!(tick(&mut iv).is_pending());
    };
    at(1, &[0]);
    at(101, &[]);
    at(301, &[300]);
    at(701, &[600]);
    at(1201, &[900, 1200]);
}
