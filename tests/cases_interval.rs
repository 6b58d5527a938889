//! Cases of intervals that drifted, or flooded, elsewhere; and of clocks that step.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

#[test]
fn c082_late_deliveries_do_not_shift_the_schedule() {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0 + ms(100), ms(100));
    let mut got = Vec::new();
    for t in [103, 207, 301, 409, 500, 618] {
        assert!(tick(&mut iv).is_pending());
        b.at(ms(t));
        let Poll::Ready(at) = tick(&mut iv) else { panic!("no tick at {t}") };
        got.push((at - b.t0).as_millis());
    }
    assert_eq!(got, [100, 200, 300, 400, 500, 600]);
    b.at(ms(699));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(700));
    assert!(tick(&mut iv).is_ready());
}

#[test]
fn c084_a_first_tick_by_hand_costs_no_period() {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0 + secs(1), secs(1));
    iv.reset_immediately();
    let mut log = Vec::new();
    loop {
        while tick(&mut iv).is_ready() {
            log.push(b.now_ms());
        }
        let next = b.driver.next_deadline().unwrap();
        if next > b.t0 + secs(4) {
            break;
        }
        b.clock.set(next);
        b.driver.turn();
    }
    assert_eq!(log, [0, 1000, 2000, 3000, 4000]);
}

#[test]
fn c086_lateness_below_the_threshold_is_not_missed() {
    let mut b = Bench::new();
    let mut iv = b.h().interval(ms(100)).missed_ticks(MissedTicks::Delay);
    assert!(tick(&mut iv).is_ready());
    for k in 1..=1_000 {
        assert!(tick(&mut iv).is_pending());
        b.at(ms(100 * k) + us(300));
        assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(100 * k)));
    }
    assert_eq!(iv.next_tick(), b.t0 + ms(100_100));
    assert!(tick(&mut iv).is_pending());
    b.at(ms(100_170));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(100_100)));
    assert_eq!(iv.next_tick(), b.t0 + ms(100_270), "moved by exactly the 70 ms");
}

#[test]
fn c088_burst_delay_and_skip_after_a_stall() {
    let rows = [
        (MissedTicks::Burst, [(430, 200), (430, 300), (430, 400), (500, 500)]),
        (MissedTicks::Delay, [(430, 200), (530, 530), (630, 630), (730, 730)]),
        (MissedTicks::Skip, [(430, 200), (500, 500), (600, 600), (700, 700)]),
    ];
    assert_eq!(MissedTicks::default(), MissedTicks::Burst);
    for (missed, expected) in rows {
        let mut b = Bench::new();
        let mut iv = b.h().interval_at(b.t0 + ms(100), ms(100)).missed_ticks(missed);
        assert!(tick(&mut iv).is_pending());
        b.at(ms(100));
        assert!(tick(&mut iv).is_ready() && tick(&mut iv).is_pending());
        let mut log = Vec::new();
        let mut now = 430;
        while log.len() < 4 {
            b.at(ms(now));
            while let Poll::Ready(at) = tick(&mut iv) {
                log.push((now, (at - b.t0).as_millis() as u64));
            }
            now += 1;
        }
        assert_eq!(log[..4], expected, "{missed:?}");
    }
}

#[test]
fn c090_years_of_missed_ticks_are_counted_by_division() {
    let mut b = Bench::new();
    let mut iv = b.h().interval_at(b.t0, ns(1)).missed_ticks(MissedTicks::Skip);
    b.at(10 * YEAR);
    let start = Instant::now();
    let got = tick(&mut iv);
    let took = start.elapsed();
    assert_eq!(got, Poll::Ready(b.t0));
    assert!(took < ms(50), "{took:?}");
    assert_eq!(iv.next_tick(), b.clock.now() + ns(1));
}

#[test]
fn c093_after_a_freeze_the_default_hands_out_every_tick_and_skip_one() {
    let periods = [1, 1, 5, 15, 900];
    for (missed, expected) in
        [(MissedTicks::Burst, [7200, 7200, 1440, 480, 8]), (MissedTicks::Skip, [1; 5])]
    {
        let mut b = Bench::new();
        let mut all: Vec<Interval> = periods
            .iter()
            .map(|s| {
                let iv = b.h().interval(secs(*s));
                if missed == MissedTicks::default() { iv } else { iv.missed_ticks(missed) }
            })
            .collect();
        for iv in &mut all {
            assert!(tick(iv).is_ready() && tick(iv).is_pending());
        }
        b.at(secs(7200));
        for ((iv, n), period) in all.iter_mut().zip(expected).zip(periods) {
            let (mut got, mut rests) = (0, 0);
            // A poll that let others run after 128 ticks has woken itself: poll again.
            while rests < 2 {
                match tick(iv) {
                    Poll::Ready(_) => (got, rests) = (got + 1, 0),
                    Poll::Pending => rests += 1,
                }
            }
            assert_eq!(got, n, "{missed:?}, every {period} s");
            assert_eq!(iv.next_tick(), b.t0 + secs(7200 + period), "the phase is the original one");
        }
    }
}

#[test]
fn c094_a_clock_that_steps_back_is_borne() {
    let mut b = Bench::new();
    b.at(ms(995));
    let (count, waker) = counter();
    let mut s = b.h().sleep(ms(5) + us(1_500));
    let mut iv = b.h().interval_at(b.t0 + ms(1000), ms(1));
    let mut q = b.queue();
    q.insert_at("x", b.t0 + ms(1001));
    assert!(poll(&mut s, &waker).is_pending());
    let mut ready = None;
    let mut ticks = Vec::new();
    let mut popped = 0;
    for t in [1000, 1001, 1000, 1001, 999, 1002] {
        b.at(ms(t));
        if ready.is_none() && poll(&mut s, &waker).is_ready() {
            ready = Some(t);
        }
        while let Poll::Ready(at) = tick(&mut iv) {
            ticks.push((at - b.t0).as_millis());
        }
        if let Poll::Ready(Some(_)) = pop(&mut q, Waker::noop()) {
            popped += 1;
        }
    }
    assert_eq!((ready, count.get()), (Some(1002), 1));
    assert_eq!(ticks, [1000, 1001, 1002]);
    assert_eq!(popped, 1);

    let mut w = Wheel::new();
    w.insert(1001 * MS + 1, 1001 * MS + 1, ());
    let _ = w.advance(1001 * MS, usize::MAX, |_| ());
    assert_eq!(w.advance(1000 * MS, usize::MAX, |_| ()).fired, 0);
    assert_eq!(w.now(), 1001 * MS);
    assert_eq!(w.advance(1001 * MS + 1, usize::MAX, |_| ()).fired, 1);
}

#[test]
fn leeway_moves_no_schedule_and_is_at_most_half_a_period() {
    let mut b = Bench::new();
    let mut iv = b.h().interval(ms(10)).leeway(Duration::MAX);
    assert!(tick(&mut iv).is_ready());
    for k in 1..=100u64 {
        assert!(tick(&mut iv).is_pending());
        assert_eq!(b.driver.next_wake(), Some(b.t0 + ms(10 * k + 5)));
        b.at(ms(10 * k + 5));
        assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ms(10 * k)));
    }
}
