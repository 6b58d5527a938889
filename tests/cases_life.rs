//! Cases of what happens around a timer's life: drop order, shutdown, memory.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

/// Fails the test when `f` hangs.
fn watched(f: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    match finished.recv_timeout(secs(20)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap(),
    }
}

/// A waker whose drop uses the driver it was registered with.
struct Meddler {
    handle: Handle,
    other: Mutex<Option<Sleep>>,
    queue: Arc<Mutex<DelayQueue<u32>>>,
    drops: Arc<AtomicU32>,
}

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Meddler {
    fn drop(&mut self) {
        drop(self.other.lock().unwrap().take());
        self.queue.lock().unwrap().insert(1, ms(1));
        let mut s = self.handle.sleep(ms(2));
        let _ = peek(&mut s);
        let _ = self.handle.metrics();
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn c109_a_waker_may_use_the_driver_when_it_is_dropped() {
    watched(|| {
        let drops = Arc::new(AtomicU32::new(0));
        let b = Bench::new();
        let h = b.h();
        let queue = Arc::new(Mutex::new(b.queue()));
        let meddler = || -> Waker {
            let mut other = h.sleep(ms(50));
            assert!(peek(&mut other).is_pending());
            Arc::new(Meddler {
                handle: h,
                other: Mutex::new(Some(other)),
                queue: queue.clone(),
                drops: drops.clone(),
            })
            .into()
        };
        // Replaced by another waker; dropped with its sleep; moved; dropped with the driver.
        let mut s = h.sleep(ms(100));
        assert!(poll(&mut s, &meddler()).is_pending());
        assert!(peek(&mut s).is_pending());
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        assert!(poll(&mut s, &meddler()).is_pending());
        s.reset_never();
        assert_eq!(drops.load(Ordering::SeqCst), 2);
        let mut s = h.sleep(ms(100));
        assert!(poll(&mut s, &meddler()).is_pending());
        drop(s);
        assert_eq!(drops.load(Ordering::SeqCst), 3);
        let mut s = h.sleep(ms(100));
        assert!(poll(&mut s, &meddler()).is_pending());
        drop(b.driver);
        assert_eq!(drops.load(Ordering::SeqCst), 4);
        drop(s);
    });
}

#[test]
fn c111_futures_that_outlive_their_driver() {
    for reverse in [false, true] {
        // On a manual clock they are woken once and stay pending, and say so.
        let b = Bench::new();
        let h = b.h();
        let counts: [(Arc<Count>, Waker); 4] = std::array::from_fn(|_| counter());
        let mut s1 = h.sleep(ms(10));
        let mut s2 = h.sleep(ms(10));
        let mut q = b.queue();
        q.insert("x", ms(10));
        let mut iv = h.interval_at(b.t0 + ms(10), ms(10));
        let mut t = h.timeout(ms(10), std::future::pending::<()>());
        assert!(poll(&mut s1, &counts[0].1).is_pending());
        assert!(pop(&mut q, &counts[1].1).is_pending());
        assert!(iv.poll_tick(&mut std::task::Context::from_waker(&counts[2].1)).is_pending());
        assert!(poll(&mut t, &counts[3].1).is_pending());
        drop(b);
        assert!(counts.iter().all(|c| c.0.get() == 1), "woken once");
        for _ in 0..2 {
            assert!(peek(&mut s1).is_pending() && peek(&mut s2).is_pending());
            assert!(pop(&mut q, Waker::noop()).is_pending());
            assert!(tick(&mut iv).is_pending() && peek(&mut t).is_pending());
        }
        assert!(s1.is_orphaned() && s2.is_orphaned() && q.is_orphaned());
        assert!(h.is_shut_down() && h.metrics().is_err());
        if reverse {
            drop((t, iv));
            drop((q, s2, s1));
        } else {
            drop((s1, s2, q));
            drop((iv, t));
        }

        // On the monotonic clock they move to the default driver and complete.
        let driver = Driver::new().unwrap();
        let h = driver.handle();
        let mut s = h.sleep(ms(20));
        let mut q = DelayQueue::with_handle(h);
        q.insert(7, ms(20));
        assert!(peek(&mut s).is_pending() && pop(&mut q, Waker::noop()).is_pending());
        drop(driver);
        futures::executor::block_on(async {
            s.await;
            let popped = std::future::poll_fn(|cx| q.poll_expired(cx)).await.unwrap();
            assert_eq!(popped.into_inner(), 7);
        });
    }
}

#[test]
fn c113_shutdown_while_others_park_and_use_the_driver() {
    watched(|| {
        for round in 0..150u64 {
            let mut driver = Driver::new().unwrap();
            let h = driver.handle();
            let mut rng = Rng(round);
            let (count, waker) = counter();
            let mut sleeps: Vec<Sleep> =
                (0..500).map(|_| h.sleep(ms(100 + rng.below(3_600_000)))).collect();
            for s in &mut sleeps {
                assert!(poll(s, &waker).is_pending());
            }
            let stop = Arc::new(AtomicBool::new(false));
            let parked = {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        driver.park(Some(ms(1)));
                    }
                    drop(driver);
                })
            };
            // Another thread uses the driver meanwhile.
            let user = std::thread::spawn(move || {
                while !h.is_shut_down() {
                    let mut s = h.sleep(secs(1));
                    let _ = peek(&mut s);
                    s.reset(std::time::Instant::now() + secs(2));
                }
            });
            stop.store(true, Ordering::SeqCst);
            parked.join().unwrap();
            user.join().unwrap();
            assert_eq!(count.get(), 500, "each is told once");
            assert!(h.metrics().is_err());
            h.unpark();
        }
    });
}

#[test]
fn c117_a_timer_that_is_cancelled_before_any_turn_leaves_nothing() {
    let mut b = Bench::new();
    let h = b.h();
    let once = || {
        let mut s = h.sleep(YEAR);
        assert!(peek(&mut s).is_pending());
    };
    (0..100).for_each(|_| once());
    let level = h.metrics().unwrap().resident_bytes;
    (0..100_000).for_each(|_| once());
    b.driver.turn();
    let m = h.metrics().unwrap();
    assert_eq!((m.pending, m.resident_bytes), (0, level));

    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    let mut s = h.sleep(YEAR);
                    assert!(peek(&mut s).is_pending());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    b.driver.turn();
    let m = h.metrics().unwrap();
    assert_eq!(m.pending, 0);
    // Each shard that was used keeps a page or two.
    assert!(m.resident_bytes <= 8 * level.max(4096), "{} of {level}", m.resident_bytes);
}

#[test]
fn c119_a_timer_that_is_cancelled_while_its_batch_fires_is_counted_once() {
    let mut b = Bench::new();
    let h = b.h();
    let others: Arc<Mutex<Vec<Sleep>>> = Arc::default();
    let mut first = h.sleep(ms(200));
    let victims = others.clone();
    let waker = on_wake(move || {
        let gone = std::mem::take(&mut *victims.lock().unwrap());
        assert_eq!(gone.len(), 10);
    });
    assert!(poll(&mut first, &waker).is_pending());
    for _ in 0..10 {
        let mut s = h.sleep(ms(200));
        assert!(peek(&mut s).is_pending());
        others.lock().unwrap().push(s);
    }
    b.at(ms(200));
    assert_eq!(b.pending(), 0);
    let mut more: Vec<Sleep> = (0..5).map(|_| h.sleep(ms(1))).collect();
    more.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    assert_eq!(b.pending(), 5);

    let mut q = b.queue();
    let keys: Vec<QueueKey> = (0..11).map(|i| q.insert(i, ms(1))).collect();
    assert!(pop(&mut q, Waker::noop()).is_pending());
    b.at(ms(300));
    assert_eq!(pop(&mut q, Waker::noop()), Poll::Ready(Some(0)));
    assert!(keys[1..].iter().all(|k| q.remove(k).is_some()));
    assert!(keys.iter().all(|k| q.remove(k).is_none()));
    assert_eq!((q.len(), q.is_empty()), (0, true));
    for i in 0..5 {
        q.insert(i, ms(1));
    }
    assert_eq!(q.len(), 5);
}

#[test]
fn c121_a_queue_shrinks_after_a_burst_and_keeps_its_keys() {
    let b = Bench::new();
    let mut q = b.queue();
    let keys: Vec<QueueKey> = (0..100_000u64).map(|i| q.insert(i, ms(1 + i))).collect();
    let full = q.resident_bytes();
    let kept = [7usize, 50_000, 99_999];
    for (i, k) in keys.iter().enumerate().filter(|(i, _)| !kept.contains(i)) {
        assert_eq!(q.remove(k), Some(i as u64));
    }
    q.shrink_to_fit();
    let left = q.resident_bytes();
    assert!(left <= 64 * 1024, "{left} of {full} bytes for 3 entries");
    let fresh: Vec<QueueKey> = (0..1_000u64).map(|i| q.insert(200_000 + i, ms(5))).collect();
    assert!(fresh.iter().all(|k| !keys.contains(k)), "a key came again");
    for i in kept {
        assert_eq!(q.deadline(&keys[i]), Some(b.t0 + ms(1 + i as u64)));
        assert!(q.reset(&keys[i], ms(9)));
        assert_eq!(q.get(&keys[i]), Some(&(i as u64)));
        assert_eq!(q.remove(&keys[i]), Some(i as u64));
    }
    assert_eq!(q.len(), 1_000);
}

#[test]
fn a_burst_of_sleeps_gives_its_memory_back() {
    let b = Bench::new();
    let mut sleeps: Vec<Sleep> = (0..50_000).map(|i| b.h().sleep(ms(1 + i))).collect();
    sleeps.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    let full = b.h().metrics().unwrap().resident_bytes;
    assert!(full / sleeps.len() <= 90, "{} bytes each", full / sleeps.len());
    sleeps.clear();
    b.h().reap().unwrap();
    assert_eq!(b.h().metrics().unwrap().resident_bytes, 0);
}

#[test]
fn a_waker_that_panics_costs_no_other_its_call_and_loses_no_driver() {
    let mut b = Bench::new();
    let h = b.h();
    let (count, waker) = counter();
    let bad = on_wake(|| panic!("a waker fails"));
    let mut sleeps: Vec<Sleep> = (0..100).map(|_| h.sleep(ms(1))).collect();
    for (i, s) in sleeps.iter_mut().enumerate() {
        assert!(poll(s, if i == 50 { &bad } else { &waker }).is_pending());
    }
    b.set(ms(1));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| b.driver.turn()));
    assert!(caught.is_err());
    assert_eq!(count.get(), 99);
    assert_eq!(h.metrics().unwrap().waker_panics, 1);
    let mut next = h.sleep(Duration::from_millis(1));
    assert!(poll(&mut next, &waker).is_pending());
    assert_eq!(b.at(ms(2)).fired, 1);
    assert_eq!(count.get(), 100);
}
