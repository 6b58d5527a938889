//! The promises of the contract, one test each, on the manual clock or the real one.
#![cfg(not(loom))]

mod cases_util;

use cases_util::{counter, ms, on_wake, poll};
use slackwheel::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn overlapping_windows_share_one_wakeup_at_the_smallest_latest() {
    let (mut driver, clock) = Driver::manual();
    let (count, waker) = counter();
    let h = driver.handle();
    let start = clock.now();
    let mut sleeps = [(10, 50), (20, 40), (30, 60)].map(|(a, b)| h.sleep_range(ms(a), ms(b)));
    for s in &mut sleeps {
        assert!(poll(s, &waker).is_pending());
    }
    assert_eq!(driver.next_wake(), Some(start + ms(40)));
    clock.set_auto_advance(true);
    let turn = driver.park(None);
    assert_eq!((turn.fired, clock.now()), (3, start + ms(40)));
    assert_eq!(count.get(), 3);
    for s in &mut sleeps {
        assert!(poll(s, &waker).is_ready());
        assert!(poll(s, &waker).is_ready(), "a poll after completion is ready again");
    }
    let m = h.metrics().unwrap();
    assert_eq!((m.wakeups, m.spurious, m.coalesced, m.pending), (1, 0, 2, 0));
}

#[test]
fn never_early_and_due_to_the_nanosecond() {
    let (mut driver, clock) = Driver::manual();
    let (_, waker) = counter();
    let mut s = driver.handle().sleep(Duration::from_nanos(1_500_001));
    assert!(poll(&mut s, &waker).is_pending());
    clock.advance(Duration::from_nanos(1_500_000));
    assert_eq!(driver.turn().fired, 0);
    assert!(poll(&mut s, &waker).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(driver.turn().fired, 1);
    assert!(poll(&mut s, &waker).is_ready());
    assert_eq!(s.lateness(), Some(Duration::ZERO));
}

#[test]
fn the_free_functions_work_on_any_executor() {
    let start = Instant::now();
    futures::executor::block_on(async {
        sleep(ms(5)).await;
        sleep_range(ms(2), ms(4)).await;
        assert!(timeout(ms(1), std::future::pending::<()>()).await.is_err());
        assert_eq!(timeout(ms(1), std::future::ready(7)).await, Ok(7));
        let mut every = interval(ms(1));
        let first = every.tick().await;
        assert_eq!(every.tick().await, first + ms(1));
    });
    assert!(start.elapsed() >= ms(9));
}

#[test]
fn a_driver_blocks_on_its_own_timers() {
    for parker in [Parker::TimerFd, Parker::Mio] {
        let mut driver = Driver::builder().parker(parker).build().unwrap();
        let start = Instant::now();
        driver.block_on(async {
            for _ in 0..20 {
                sleep(Duration::from_micros(500)).await;
            }
        });
        assert!(start.elapsed() >= ms(10));
        let m = driver.handle().metrics().unwrap();
        assert_eq!(m.registered, 20, "{parker:?}");
    }
}

#[test]
fn a_pending_sleep_survives_its_driver() {
    let (count, waker) = counter();
    let driver = Driver::new().unwrap();
    let mut s = driver.handle().sleep(ms(30));
    let start = Instant::now();
    assert!(poll(&mut s, &waker).is_pending());
    drop(driver);
    assert_eq!(count.get(), 1, "woken once");
    assert!(poll(&mut s, &waker).is_pending());
    futures::executor::block_on(&mut s);
    assert!(start.elapsed() >= ms(30));

    let (driver, _clock) = Driver::manual();
    let mut s = driver.handle().sleep(ms(30));
    assert!(poll(&mut s, &waker).is_pending());
    assert!(!s.is_orphaned());
    drop(driver);
    assert!(poll(&mut s, &waker).is_pending());
    assert!(s.is_orphaned());
}

#[test]
fn a_loop_of_zero_sleeps_lets_others_run() {
    let (_driver, _clock) = Driver::manual();
    let h = _driver.handle();
    let (count, waker) = counter();
    let mut ready = 0;
    loop {
        let mut s = h.sleep(Duration::ZERO);
        if poll(&mut s, &waker).is_pending() {
            assert_eq!(count.get(), 1, "it woke itself");
            assert!(poll(&mut s, &waker).is_ready());
            break;
        }
        ready += 1;
    }
    assert_eq!(ready, 128);
}

#[test]
fn an_insert_reaches_the_kernel_only_when_it_is_the_earliest() {
    let (mut driver, clock) = ExternalDriver::manual().unwrap();
    let h = driver.handle();
    let (_, waker) = counter();
    clock.take_arms();
    for _ in 0..1000 {
        driver.turn();
    }
    assert_eq!(clock.take_arms().len(), 0);
    let mut first = h.sleep(ms(10));
    assert!(poll(&mut first, &waker).is_pending());
    let mut later: Vec<_> = (0..1000).map(|i| h.sleep(ms(11 + i))).collect();
    for s in &mut later {
        assert!(poll(s, &waker).is_pending());
        driver.turn();
    }
    // A window that may wait longer than the armed wake does not move it either.
    let mut wide = h.sleep_range(ms(1), ms(20));
    assert!(poll(&mut wide, &waker).is_pending());
    assert_eq!(clock.take_arms().len(), 1);
    drop(later);
    assert_eq!(clock.take_arms().len(), 0);
}

#[test]
fn a_ring_that_comes_too_late_is_no_wakeup() {
    // A notifier may write its descriptor after a timer has ended the wait it meant. Here hundreds do,
    // as near to expiries as can be; whatever is counted then was a wakeup for a reason.
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let stop = Arc::new(AtomicU32::new(0));
    let notifier = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while stop.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_micros(90));
                h.unpark();
            }
        })
    };
    let (_, waker) = counter();
    for _ in 0..2000 {
        let mut s = h.sleep(Duration::from_micros(150));
        while poll(&mut s, &waker).is_pending() {
            let turn = driver.park(None);
            assert!(turn.fired > 0 || turn.notified, "a wakeup for nothing");
        }
    }
    stop.store(1, Ordering::SeqCst);
    notifier.join().unwrap();
}

/// Which sleeps `turn` wakes, as indices, in the order of the calls.
fn order_of_wakes<F: Future<Output = ()> + Unpin>(
    mut sleeps: Vec<F>,
    turn: impl FnOnce() -> Turn,
) -> Vec<usize> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    for (i, sleep) in sleeps.iter_mut().enumerate() {
        let calls = calls.clone();
        assert!(poll(sleep, &on_wake(move || calls.lock().unwrap().push(i))).is_pending());
    }
    assert_eq!(turn().fired, sleeps.len());
    calls.lock().unwrap().clone()
}

/// The order in which a turn at 100 ms wakes timers with these windows, in milliseconds.
fn order_at_100(windows: &[(u64, u64)]) -> Vec<usize> {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let sleeps = windows.iter().map(|(a, b)| h.sleep_range(ms(*a), ms(*b))).collect();
    let order = order_of_wakes(sleeps, || {
        clock.advance(ms(100));
        driver.turn()
    });
    let (mut driver, clock) = LocalDriver::manual();
    let h = driver.handle();
    let sleeps = windows.iter().map(|(a, b)| h.sleep_range(ms(*a), ms(*b))).collect();
    let local = order_of_wakes(sleeps, || {
        clock.advance(ms(100));
        driver.turn()
    });
    assert_eq!(order, local);
    order
}

#[test]
fn due_timers_are_woken_before_those_that_merely_may_fire() {
    // The last made may fire first.
    let mut windows: Vec<(u64, u64)> = (0..90).map(|i| (99 - i, 149 - i + 50)).collect();
    // The exact one forces the wakeup.
    windows.push((100, 100));
    // Wide, but its `latest` has come, too.
    windows.push((5, 100));
    let order: Vec<usize> = [91, 90].into_iter().chain((0..90).rev()).collect();
    assert_eq!(order_at_100(&windows), order);
}

#[test]
fn with_one_slack_for_all_the_order_is_by_earliest() {
    for slack in [0, 40, 1000] {
        let windows: Vec<(u64, u64)> = (0..99).map(|i| (99 - i, 99 - i + slack)).collect();
        assert_eq!(order_at_100(&windows), (0..99).rev().collect::<Vec<_>>(), "{slack} ms");
    }
}
