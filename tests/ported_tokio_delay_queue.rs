//! The facts of tokio's delay queue tests, written anew for this crate. Source: the tokio repository,
//! `tokio-util/tests/time_delay_queue.rs` (MIT licence). The table is in `ported_tokio_time.rs`.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::sync::Arc;
use std::task::{Poll, Waker};

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
