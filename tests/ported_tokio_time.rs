//! The facts of tokio's time tests, written anew for this crate. Source: the tokio repository,
//! `tokio/tests/time_sleep.rs`, `time_interval.rs`, `time_timeout.rs`, `time_pause.rs` and
//! `tokio-util/tests/time_delay_queue.rs` (MIT licence).
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
use std::task::{Poll, Waker};
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

// time_delay_queue

/// A queue with a counting waker, on a manual clock.
struct Queue {
    b: Bench,
    q: DelayQueue<&'static str>,
    count: Arc<Count>,
    waker: Waker,
    seen: u32,
}

impl Queue {
    fn new() -> Self {
        let b = Bench::new();
        let (count, waker) = counter();
        Queue { q: b.queue(), b, count, waker, seen: 0 }
    }
    fn insert(&mut self, v: &'static str, at: u64) -> QueueKey {
        self.q.insert_at(v, self.b.t0 + ms(at))
    }
    fn reset(&mut self, k: &QueueKey, at: u64) {
        assert!(self.q.reset_at(k, self.b.t0 + ms(at)));
    }
    fn at(&mut self, t: u64) {
        self.b.at(ms(t));
    }
    /// Woken since last asked.
    fn woken(&mut self) -> bool {
        let n = self.count.get();
        n != std::mem::replace(&mut self.seen, n)
    }
    fn pending(&mut self) {
        assert!(pop(&mut self.q, &self.waker).is_pending());
    }
    fn out(&mut self, v: &'static str) {
        assert_eq!(pop(&mut self.q, &self.waker), Poll::Ready(Some(v)));
    }
    fn end(&mut self) {
        assert_eq!(pop(&mut self.q, &self.waker), Poll::Ready(None));
    }
}

#[test]
fn immediate_entries_come_out_and_then_the_end() {
    let mut t = Queue::new();
    for v in ["1", "2", "3"] {
        t.insert(v, 0);
    }
    for v in ["1", "2", "3"] {
        t.out(v);
    }
    t.end();
    // In the past, before and after a poll that was pending; the latter wakes.
    t.at(10);
    t.insert("past", 0);
    t.out("past");
    t.insert("later", 200);
    t.pending();
    t.at(80);
    assert!(!t.woken());
    t.insert("past", 40);
    assert!(t.woken());
    t.out("past");
    t.pending();
}

#[test]
fn an_entry_wakes_its_poller_when_due_and_not_before() {
    let mut t = Queue::new();
    t.insert("foo", 5);
    t.pending();
    t.at(1);
    assert!(!t.woken());
    t.at(5);
    assert!(t.woken());
    t.out("foo");
    t.end();
}

#[test]
fn many_delays_wake_only_at_their_times() {
    let mut b = Bench::new();
    let (count, waker) = counter();
    let mut q = b.queue();
    let long = 262_144 + 9 * 4096;
    let delays = [1000, 2, 234, long, 60, 10];
    for d in delays {
        q.insert(d, ms(d));
    }
    assert!(pop(&mut q, &waker).is_pending());
    let mut wakes = 0;
    for t in 1..=1200 {
        b.at(ms(t));
        if delays.contains(&t) {
            wakes += 1;
            assert_eq!(pop(&mut q, &waker), Poll::Ready(Some(t)));
            assert!(pop(&mut q, &waker).is_pending());
        }
        // No wake at a level's boundary either.
        assert_eq!(count.get(), wakes, "at {t}");
    }
}

#[test]
fn entries_are_removed_in_every_state() {
    let mut t = Queue::new();
    let k = t.insert("foo", 5);
    t.pending();
    assert_eq!(t.q.remove(&k), Some("foo"));
    t.at(10);
    t.end();
    // Due when inserted.
    let k = t.insert("foo", 0);
    assert_eq!(t.q.remove(&k), Some("foo"));
    // Due at the start of a slot that is being emptied.
    let mut t = Queue::new();
    t.insert("foo", 64);
    let k = t.insert("bar", 64);
    t.at(80);
    t.out("foo");
    assert_eq!(t.q.remove(&k), Some("bar"));
    t.end();
    // Gone before: no panic.
    assert_eq!(t.q.remove(&k), None);
    assert!(!t.q.reset(&k, ms(1)));
}

#[test]
fn resets_move_entries_later_and_earlier() {
    let mut t = Queue::new();
    let k = t.insert("foo", 5);
    t.pending();
    t.at(1);
    t.reset(&k, 10);
    t.pending();
    t.at(8);
    assert!(!t.woken());
    t.pending();
    t.at(11);
    assert!(t.woken());
    t.out("foo");
    t.end();

    // From far to near, once and twice.
    for steps in [&[10][..], &[50, 40]] {
        let mut t = Queue::new();
        t.at(1);
        let k = t.insert("foo", 200);
        t.pending();
        t.at(4);
        for to in steps {
            t.reset(&k, *to);
        }
        let last = *steps.last().unwrap();
        t.at(last - 1);
        assert!(!t.woken());
        t.at(last);
        assert!(t.woken());
        t.out("foo");
    }

    // Across a slot whose start has passed, both ways.
    for (from, to) in [(100, 120), (200, 120)] {
        let mut t = Queue::new();
        let k = t.insert("foo", from);
        t.pending();
        t.at(80);
        assert!(!t.woken());
        t.reset(&k, to);
        t.pending();
        t.at(119);
        assert!(!t.woken());
        t.at(120);
        assert!(t.woken());
        t.out("foo");
    }
}

#[test]
fn an_entry_inserted_as_expired_can_be_reset_again_and_again() {
    let mut t = Queue::new();
    t.at(100);
    let k = t.insert("foo", 0);
    t.reset(&k, 200);
    assert_eq!(t.q.len(), 1);
    t.reset(&k, 150);
    t.pending();
    t.at(160);
    assert!(t.woken());
    t.out("foo");
    t.end();
}

#[test]
fn several_resets_keep_the_order_of_deadlines() {
    let mut t = Queue::new();
    let one = t.insert("one", 200);
    let two = t.insert("two", 250);
    t.pending();
    t.reset(&one, 300);
    t.reset(&two, 350);
    t.reset(&one, 400);
    t.at(310);
    t.pending();
    t.at(360);
    t.out("two");
    t.pending();
    t.at(410);
    t.out("one");
    t.end();

    // First or second moved to the front, the first moved behind.
    for (which, to, at, first) in
        [("one", 100, 100, "one"), ("two", 100, 100, "two"), ("one", 300, 250, "two")]
    {
        let mut t = Queue::new();
        let keys = [("one", t.insert("one", 200)), ("two", t.insert("two", 250))];
        t.pending();
        let key = keys.iter().find(|k| k.0 == which).unwrap().1;
        t.reset(&key, to);
        t.at(at);
        assert!(t.woken());
        t.out(first);
    }
}

#[test]
fn earlier_inserts_shorten_the_wait_polled_again_or_not() {
    for polled in [true, false] {
        let mut t = Queue::new();
        t.insert("foo", 10_000);
        t.pending();
        t.insert("bar", 600);
        if polled {
            t.pending();
        }
        t.at(599);
        assert!(!t.woken());
        t.at(600);
        assert!(t.woken());
        t.out("bar");
    }
}

#[test]
fn inserts_between_ready_polls_wait_their_turn() {
    let mut t = Queue::new();
    for v in ["1", "2", "3"] {
        t.insert(v, 100);
    }
    t.pending();
    t.at(100);
    assert!(t.woken());
    for v in ["1", "2", "3"] {
        t.out(v);
        t.insert("foo", 500);
    }
    t.pending();
}

#[test]
fn shrinking_keeps_keys_and_gives_memory_back() {
    let mut t = Queue::new();
    t.insert("foo1", 10);
    t.insert("foo2", 10);
    let (k3, k4) = (t.insert("foo3", 20), t.insert("foo4", 20));
    t.at(10);
    t.out("foo1");
    t.out("foo2");
    t.q.shrink_to_fit();
    let k5 = t.insert("foo5", 10);
    assert!(t.q.reset_at(&k4, t.b.t0 + ms(40)));
    assert_eq!(t.q.remove(&k3), Some("foo3"));
    t.q.shrink_to_fit();
    assert_eq!(t.q.remove(&k3), None);
    assert_eq!(t.q.remove(&k5), Some("foo5"));
    assert_eq!(t.q.len(), 1);
    t.at(40);
    t.out("foo4");
    t.q.shrink_to_fit();
    assert_eq!((t.q.len(), t.q.resident_bytes()), (0, 0));
    assert_eq!(t.q.remove(&k4), None);
}

#[test]
fn peek_shows_what_comes_next() {
    let mut t = Queue::new();
    assert_eq!(t.q.peek(), None);
    let far = t.insert("far", 1_000_000);
    assert_eq!(t.q.peek(), Some(far));
    let near = t.insert("near", 5);
    assert_eq!(t.q.peek(), Some(near));
    let again = t.insert("again", 5);
    assert_eq!(t.q.peek(), Some(near), "ties by insertion");
    t.at(5);
    assert_eq!(t.q.peek(), Some(near), "due, and not popped");
    t.out("near");
    assert_eq!(t.q.peek(), Some(again));
    t.reset(&again, 2_000_000);
    assert_eq!(t.q.peek(), Some(far));
    assert_eq!((t.q.get(&far), t.q.get(&near)), (Some(&"far"), None));
    assert_eq!(t.q.deadline(&far), Some(t.b.t0 + ms(1_000_000)));
}
