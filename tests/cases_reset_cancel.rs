//! Cases of resets and cancels that went wrong elsewhere.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

#[test]
fn c062_a_queue_item_moved_earlier_comes_earlier() {
    for first in [300, 100, 150, 190, 700, 5_000, 70_000] {
        let mut b = Bench::new();
        let (count, waker) = counter();
        let mut q = b.queue();
        b.at(ms(1));
        let k = q.insert_at("x", b.t0 + ms(first));
        assert!(pop(&mut q, &waker).is_pending());
        b.at(ms(4));
        assert!(q.reset_at(&k, b.t0 + ms(9)));
        b.at(ms(8));
        assert_eq!(count.get(), 0, "from {first}");
        b.at(ms(9));
        assert_eq!(count.get(), 1, "from {first}");
        assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("x")));

        // Three resets in a row, down and up.
        let k = q.insert_at("y", b.t0 + ms(first + 10));
        assert!(pop(&mut q, &waker).is_pending());
        for t in [first + 5, 12, 20] {
            assert!(q.reset_at(&k, b.t0 + ms(t)));
        }
        b.at(ms(19));
        assert_eq!(count.get(), 1, "from {first}");
        b.at(ms(20));
        assert_eq!(count.get(), 2, "from {first}");
        assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("y")));
    }
}

#[test]
fn c064_an_item_that_is_due_but_not_popped_can_be_moved() {
    for (base, unit) in [(4096, ms(1)), (64, ms(1)), (65, ms(1)), (262_144, ms(1)), (64, us(1))] {
        let mut b = Bench::new();
        let mut q = b.queue();
        let t = |n: u32| unit * n;
        let a = q.insert_at("a", b.t0 + t(base));
        let x = q.insert_at("b", b.t0 + t(base));
        let c = q.insert_at("c", b.t0 + t(base + 1));
        assert!(pop(&mut q, Waker::noop()).is_pending());
        b.at(t(base));
        assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some("a")));
        assert!(q.reset_at(&x, b.t0 + t(base + 104)));
        assert!(q.reset(&c, t(1)));
        assert_eq!(q.remove(&a), None);
        assert!(!q.reset(&a, t(1)));
        assert!(pop(&mut q, Waker::noop()).is_pending());
        b.at(t(base + 1));
        assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some("c")));
        b.at(t(base + 103));
        assert!(pop(&mut q, Waker::noop()).is_pending());
        b.at(t(base + 104));
        assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some("b")));
        assert!(q.is_empty());
    }
}

#[test]
fn c068_moving_the_first_timer_behind_the_others_arms_for_the_new_first() {
    let mut b = ExternalBench::new();
    let h = b.h();
    let (mut a, mut x) = (h.sleep(ms(10)), h.sleep(ms(20)));
    assert!(peek(&mut a).is_pending() && peek(&mut x).is_pending());
    a.reset(b.t0 + ms(30));
    // One spurious wakeup at the stale arm, and it repairs the arm.
    assert_eq!(b.at(ms(10)).fired, 0);
    assert_eq!(b.armed(), Some(ms(20)));
    assert_eq!(b.at(ms(20)).fired, 1);
    assert_eq!(b.armed(), Some(ms(30)));
    assert_eq!(b.at(ms(30)).fired, 1);
    assert!(peek(&mut a).is_ready() && peek(&mut x).is_ready());
    assert_eq!(h.metrics().unwrap().spurious, 1);

    // Moving earlier arms at once.
    let mut a2 = h.sleep_until(b.t0 + ms(50));
    assert!(peek(&mut a2).is_pending());
    a2.reset(b.t0 + ms(40));
    assert_eq!(b.armed(), Some(ms(40)));
    assert_eq!(b.at(ms(40)).fired, 1);
    assert_eq!(b.armed(), None);
}

#[test]
fn c070_a_reset_within_a_slot_whose_start_has_passed_is_not_lost() {
    for from in 128..=179u64 {
        for to in 181..=191u64 {
            let mut b = Bench::new();
            let (count, waker) = counter();
            let mut q = b.queue();
            let k = q.insert_at("x", b.t0 + ms(180));
            assert!(pop(&mut q, &waker).is_pending());
            b.set(ms(from));
            assert!(q.reset_at(&k, b.t0 + ms(to)));
            b.at(ms(to - 1));
            assert_eq!(count.get(), 0, "{from} {to}");
            b.at(ms(to));
            assert_eq!(count.get(), 1, "{from} {to}");
            assert_eq!(pop(&mut q, &waker), Poll::Ready(Some("x")));
        }
    }
}

#[test]
fn c071_a_timer_that_is_reset_for_ever_holds_back_no_other() {
    let mut b = Bench::new();
    let (mut s, mut other) = (b.h().sleep(ms(250)), b.h().sleep(secs(1)));
    assert!(peek(&mut s).is_pending() && peek(&mut other).is_pending());
    for step in 1..=50 {
        let t = ms(100 * step);
        b.set(t);
        s.reset(b.t0 + t + ms(250));
        b.driver.turn();
        assert!(peek(&mut s).is_pending());
        assert_eq!(peek(&mut other).is_ready(), step >= 10);
    }

    // On the real clock.
    let start = Instant::now();
    let busy = async {
        let mut s = sleep(ms(75));
        loop {
            let _ = futures::poll!(&mut s);
            sleep(ms(30)).await;
            s.reset(Instant::now() + ms(75));
        }
    };
    let other = sleep(ms(300));
    futures::pin_mut!(busy);
    futures::executor::block_on(futures::future::select(busy, other));
    let took = start.elapsed();
    let slack = ms(100) + 4 * bare_overshoot(ms(10));
    assert!(took >= ms(300) && took < ms(300) + slack, "{took:?}");
}

#[test]
fn c072_cancel_and_start_again_restarts_the_countdown() {
    let mut b = Bench::new();
    let mut s = b.h().sleep(ms(500));
    let mut q = b.queue();
    let mut k = q.insert(0u64, ms(500));
    for i in 1..=20 {
        assert!(peek(&mut s).is_pending() && pop(&mut q, Waker::noop()).is_pending());
        b.set(ms(100 * i));
        s.reset_never();
        s.reset_range(ms(500), ms(500));
        assert_eq!(q.remove(&k), Some(i - 1));
        k = q.insert(i, ms(500));
        b.driver.turn();
    }
    assert!(peek(&mut s).is_pending() && pop(&mut q, Waker::noop()).is_pending());
    b.at(ms(2_499));
    assert!(peek(&mut s).is_pending() && pop(&mut q, Waker::noop()).is_pending());
    b.at(ms(2_500));
    assert!(peek(&mut s).is_ready());
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some(20)));
}

#[test]
fn c073_dropping_timers_that_are_being_fired_is_harmless() {
    let mut b = Bench::new();
    let h = b.h();
    let sleeps: Arc<Mutex<Vec<Option<Sleep>>>> = Arc::default();
    let counts: Vec<_> = (0..1_000usize)
        .map(|i| {
            let mut s = h.sleep(ms(64));
            let (count, waker) = counter();
            let waker = if i % 2 == 0 {
                let all = sleeps.clone();
                on_wake(move || {
                    waker.wake();
                    let gone = all.lock().unwrap()[i + 1].take();
                    drop(gone);
                })
            } else {
                waker
            };
            assert!(poll(&mut s, &waker).is_pending());
            sleeps.lock().unwrap().push(Some(s));
            count
        })
        .collect();
    b.at(ms(64));
    // A waker that had been collected when its sleep was dropped may be called, once.
    assert!(counts.iter().step_by(2).all(|c| c.get() == 1));
    assert!(counts.iter().skip(1).step_by(2).all(|c| c.get() <= 1));
    let before: Vec<u32> = counts.iter().map(|c| c.get()).collect();
    sleeps.lock().unwrap().clear();
    assert_eq!(b.pending(), 0);
    b.at(ms(65));
    assert!(counts.iter().map(|c| c.get()).eq(before), "woken after the turn that it was due in");

    // Threads that drop their sleeps just when they are due.
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            std::thread::spawn(move || {
                let mut rng = Rng(t);
                for _ in 0..300 {
                    let start = Instant::now();
                    let mut s = h.sleep(ms(1));
                    let _ = peek(&mut s);
                    let busy = us(900 + rng.below(200));
                    while start.elapsed() < busy {
                        std::hint::spin_loop();
                    }
                    if peek(&mut s).is_ready() {
                        assert!(start.elapsed() >= ms(1));
                    }
                }
            })
        })
        .collect();
    while !threads.iter().all(|t| t.is_finished()) {
        driver.park(Some(ms(1)));
    }
    for t in threads {
        t.join().unwrap();
    }
    assert_eq!(h.metrics().unwrap().pending, 0);
}

#[test]
fn c075_removed_or_delivered_never_both_never_neither() {
    let mut b = Bench::new();
    let mut q = b.queue();
    let k = q.insert_at("x", b.t0 + ms(10));
    assert!(pop(&mut q, Waker::noop()).is_pending());
    b.at(ms(10));
    assert_eq!(q.remove(&k), Some("x"));
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(None));
    let k = q.insert_at("y", b.t0 + ms(10));
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some("y")));
    assert_eq!(q.remove(&k), None);

    // Pops racing with removes.
    const ROUNDS: u64 = 200;
    const ITEMS: u64 = 100;
    let q = Arc::new(Mutex::new(b.queue::<u64>()));
    let seen: Arc<Vec<AtomicU32>> = Arc::new((0..ITEMS).map(|_| AtomicU32::new(0)).collect());
    let gate = Arc::new(Barrier::new(2));
    let popper = {
        let (q, seen, gate) = (q.clone(), seen.clone(), gate.clone());
        std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                gate.wait();
                loop {
                    let popped = pop(&mut q.lock().unwrap(), Waker::noop());
                    match popped {
                        Poll::Ready(Some(i)) => seen[i as usize].fetch_add(1, Ordering::SeqCst),
                        Poll::Ready(None) => break,
                        // It let others run: they are woken at once.
                        Poll::Pending => continue,
                    };
                }
                gate.wait();
            }
        })
    };
    for round in 1..=ROUNDS {
        let keys: Vec<QueueKey> = {
            let mut q = q.lock().unwrap();
            (0..ITEMS).map(|i| q.insert_at(i, b.t0)).collect()
        };
        gate.wait();
        for (i, k) in keys.iter().enumerate().rev() {
            if let Some(v) = q.lock().unwrap().remove(k) {
                assert_eq!(v, i as u64);
                seen[i].fetch_add(1, Ordering::SeqCst);
            }
        }
        gate.wait();
        assert!(seen.iter().all(|s| s.load(Ordering::SeqCst) == round as u32));
    }
    popper.join().unwrap();
}

#[test]
fn c077_a_cancelled_timer_wakes_nobody_not_even_its_successor() {
    let sim = Sim::new();
    let h = sim.handle();
    for _ in 0..100 {
        let start = sim.now();
        let late = sim.block_on(h.timeout(secs(2), h.sleep(secs(3))));
        assert!(late.is_err());
        assert_eq!(sim.now() - start, secs(2));
    }

    let mut b = Bench::new();
    let ((a_count, a), (b_count, w)) = (counter(), counter());
    let mut first = b.h().sleep(ms(5));
    assert!(poll(&mut first, &a).is_pending());
    drop(first);
    let mut second = b.h().sleep(ms(50));
    assert!(poll(&mut second, &w).is_pending());
    b.at(ms(5));
    assert_eq!((a_count.get(), b_count.get()), (0, 0));
    b.at(ms(50));
    assert_eq!((a_count.get(), b_count.get()), (0, 1));
}

#[test]
fn c079_removing_one_of_a_slot_leaves_its_neighbours() {
    for pos in 0..=7 {
        let mut w = Wheel::new();
        let mut keys: Vec<_> = (0..7).map(|i| w.insert(640 * MS, 640 * MS, i)).collect();
        w.insert(639 * MS, 639 * MS, 100);
        w.insert(641 * MS, 641 * MS, 101);
        let mut expected = vec![100];
        if pos < 7 {
            assert_eq!(w.cancel(keys.remove(pos)), Some(pos));
            expected.extend((0..7).filter(|i| *i != pos));
        } else {
            for k in keys {
                assert!(w.cancel(k).is_some());
            }
        }
        expected.push(101);
        let mut out = Vec::new();
        let _ = w.advance(641 * MS, usize::MAX, |f| out.push(f.value));
        assert_eq!(out, expected);
    }
}

#[test]
fn c081_a_timer_between_two_levels_can_still_be_cancelled() {
    // In the middle of a split: a big slot moves down a step at a time.
    for which in 0..2_000usize {
        if which % 97 != 0 {
            continue;
        }
        let mut w = Wheel::new();
        let keys: Vec<_> = (0..2_000u64).map(|i| w.insert(80_000 + i % 7, u64::MAX, i)).collect();
        let step = w.advance(80_003, 1, |_| ());
        assert!(step.more, "not in the middle of a split");
        let alive = w.contains(keys[which]);
        assert_eq!(w.cancel(keys[which]).is_some(), alive);
        let mut fired_later = false;
        while w.advance(80_010, 100, |f| fired_later |= f.value == which as u64).more {}
        assert!(!fired_later && w.is_empty());
    }

    // With threads: one turns across a level boundary, one drops.
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let unit = ns(1024);
    let gate = Arc::new(Barrier::new(2));
    let (fired, cancelled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    const ROUNDS: u64 = 2_000;
    let dropper = {
        let (gate, cancelled, clock) = (gate.clone(), cancelled.clone(), clock.clone());
        let fired = fired.clone();
        std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                let (count, waker) = counter();
                // On the next boundary of 64 ticks and one more: it cascades there.
                let mut s = h.sleep(unit * 65);
                assert!(poll(&mut s, &waker).is_pending());
                gate.wait();
                drop(s);
                let after = count.get();
                gate.wait();
                // Fired before the drop, or never; a waker on its way at the drop may come once.
                assert!(count.get() <= 1 && after <= count.get());
                fired.fetch_add(count.get() as u64, Ordering::SeqCst);
                cancelled.fetch_add(1 - count.get() as u64, Ordering::SeqCst);
            }
            drop(clock);
        })
    };
    for _ in 0..ROUNDS {
        gate.wait();
        clock.advance(unit * 64);
        driver.turn();
        clock.advance(unit);
        driver.turn();
        gate.wait();
    }
    dropper.join().unwrap();
    assert_eq!(fired.load(Ordering::SeqCst) + cancelled.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(h.metrics().unwrap().pending, 0);
}
