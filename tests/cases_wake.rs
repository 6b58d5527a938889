//! Cases of timers whose wake was missed elsewhere.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Instant;

#[test]
fn c020_an_earlier_item_moves_the_wait_of_a_queue() {
    let mut b = Bench::new();
    let (count, waker) = counter();
    let mut q = b.queue();
    q.insert_at("late", b.t0 + secs(9));
    assert!(pop(&mut q, &waker).is_pending());
    q.insert_at("soon", b.t0 + ms(700));
    b.at(ms(699));
    assert_eq!(count.get(), 0);
    b.at(ms(700));
    assert_eq!(count.get(), 1);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("soon")));
    assert!(pop(&mut q, &waker).is_pending());
    b.at(secs(9));
    assert_eq!(count.get(), 2);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("late")));
    assert_eq!(pop(&mut q, &waker), Poll::Ready(None));
}

#[test]
fn c020_also_when_nothing_could_come_out_before() {
    let mut b = Bench::new();
    let (count, waker) = counter();
    let mut q = b.queue();
    q.insert("never", std::time::Duration::MAX);
    assert!(pop(&mut q, &waker).is_pending());
    assert_eq!(b.pending(), 0, "what never comes holds no timer");
    q.insert("soon", ms(7));
    b.at(ms(7));
    assert_eq!(count.get(), 1);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("soon")));
    // And when the new one is due at once.
    assert!(pop(&mut q, &waker).is_pending());
    q.insert("now", ms(0));
    assert_eq!(count.get(), 2);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("now")));
}

#[test]
fn c022_removing_the_last_item_wakes_the_poller() {
    let b = Bench::new();
    let (count, waker) = counter();
    let mut q = b.queue();
    let k = q.insert("x", secs(100));
    assert!(pop(&mut q, &waker).is_pending());
    assert_eq!(q.remove(&k), Some("x"));
    assert_eq!(count.get(), 1);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(None));
    // The same by `clear`, once; and nobody is woken when nobody waits.
    q.insert("y", secs(1));
    assert!(pop(&mut q, &waker).is_pending());
    q.clear();
    q.clear();
    assert_eq!(count.get(), 2);
    assert_eq!(pop(&mut q, &waker), Poll::Ready(None));
    let k = q.insert("z", secs(1));
    q.remove(&k);
    assert_eq!(count.get(), 2);
    assert_eq!(b.pending(), 0);
}

#[test]
fn c025_a_new_timer_reaches_a_parked_driver() {
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let parked = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut far = h.sleep(secs(60));
            assert!(peek(&mut far).is_pending());
            while !stop.load(Ordering::SeqCst) {
                driver.park(None);
            }
            drop(far);
        })
    };
    let mut worst = ms(0);
    let mut bare = ms(0);
    for i in 0..700 {
        let start = Instant::now();
        futures::executor::block_on(h.sleep(ms(1)));
        worst = worst.max(start.elapsed());
        if i % 10 == 0 {
            bare = bare.max(bare_overshoot(ms(1)));
        }
    }
    stop.store(true, Ordering::SeqCst);
    h.unpark();
    parked.join().unwrap();
    assert!(worst < secs(1) + bare, "{worst:?}, while a bare sleep was {bare:?} late");
}

#[test]
fn c027_a_burst_of_inserts_without_a_turn_loses_none() {
    let mut b = Bench::new();
    let h = b.h();
    let (count, waker) = counter();
    let mut due_by = vec![0u32; 10_001];
    let mut sleeps: Vec<Sleep> = (0..100_000u64)
        .map(|i| {
            let d = 1 + i * 7919 % 10_000;
            due_by[d as usize] += 1;
            h.sleep(ms(d))
        })
        .collect();
    for s in &mut sleeps {
        assert!(poll(s, &waker).is_pending());
    }
    let mut expected = 0;
    for (t, n) in due_by.iter().enumerate().skip(1) {
        expected += n;
        b.at(ms(t as u64));
        assert_eq!(count.get(), expected, "wakes by {t} ms");
    }
    assert_eq!(expected, 100_000);
    assert!(sleeps.iter_mut().all(|s| peek(s).is_ready()));
    assert_eq!(b.pending(), 0);
}

#[test]
fn c029_the_next_wake_is_the_minimum_in_any_order_of_inserts() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut b = Bench::new();
        let h = b.h();
        let deadlines = [10, 500, 300];
        let mut sleeps = deadlines.map(|d| h.sleep(ms(d)));
        let mut smallest = u64::MAX;
        for i in order {
            assert!(peek(&mut sleeps[i]).is_pending());
            smallest = smallest.min(deadlines[i]);
            assert_eq!(b.driver.next_deadline(), Some(b.t0 + ms(smallest)), "{order:?}");
            assert_eq!(b.driver.next_wake(), Some(b.t0 + ms(smallest)), "{order:?}");
        }
        b.at(ms(10));
        assert!(peek(&mut sleeps[0]).is_ready());
        assert_eq!(b.driver.next_deadline(), Some(b.t0 + ms(300)));
    }
}

#[test]
fn c031_a_later_deadline_is_armed_after_the_earlier_one_has_gone() {
    for fire in [false, true] {
        let mut b = ExternalBench::new();
        let h = b.h();
        let mut first = h.sleep(ms(10));
        assert!(peek(&mut first).is_pending());
        assert_eq!(b.armed(), Some(ms(10)));
        if fire {
            assert_eq!(b.at(ms(10)).fired, 1);
        }
        drop(first);
        let mut second = h.sleep_until(b.t0 + ms(50));
        assert!(peek(&mut second).is_pending());
        if !fire {
            // One spurious wakeup at the stale arm is allowed; after it the live head must be armed.
            assert!(b.armed() == Some(ms(50)) || b.at(ms(10)).fired == 0);
        }
        assert_eq!(b.armed(), Some(ms(50)));
        assert_eq!(b.at(ms(50)).fired, 1);
        let m = h.metrics().unwrap();
        assert!(m.spurious <= 1, "{m:?}");
    }
}

#[test]
fn c033_cancelling_the_first_timer_moves_on_to_the_next() {
    for reset in [false, true] {
        let mut b = ExternalBench::new();
        let h = b.h();
        let mut a = h.sleep(secs(3));
        let mut x = h.sleep(secs(2));
        assert!(peek(&mut a).is_pending() && peek(&mut x).is_pending());
        assert_eq!(b.armed(), Some(secs(2)));
        if reset {
            x.reset(b.t0 + secs(10));
        } else {
            x.reset_never();
        }
        assert_eq!(b.driver.next_deadline(), Some(b.t0 + secs(3)));
        // As above: one wakeup at the stale arm, then the live head.
        assert_eq!(b.at(secs(2)).fired, 0);
        assert_eq!(b.armed(), Some(secs(3)));
        assert_eq!(b.at(secs(3)).fired, 1);
        assert!(peek(&mut a).is_ready());
        assert_eq!(b.armed(), reset.then_some(secs(10)));
    }
}
