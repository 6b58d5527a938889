//! Facts from the kernel's own timer tests (`tools/testing/selftests/timers`, `futex`), as properties and
//! values; no code of them.
//!
//! | source | property | here |
//! | --- | --- | --- |
//! | `nanosleep` | 10 ns to 1 s, absolute and relative: never short of the target | `nanosleep_*` |
//! | `nsleep-lat` | mean latency of 10 rounds below 40 ms | `nsleep_lat_*` |
//! | `set-timer-lat` | 5 periodic ticks never early; a one-shot fires exactly once | `set_timer_lat_*` |
//! | `mqueue-lat` | 100 waits of 100 ms: mean below 140 ms (here 20 of them) | `mqueue_lat_*` |
//! | `posix_timers` | a 2 s timer within 0.5 s | `posix_timers_*` |
//! | `inconsistency-check` | 64 successive readings never decrease | `inconsistency_check_*` |
//! | `threadtest` | 8 threads share a list of 128 readings that never decrease | `threadtest_*` |
//! | `epoll_wakeup` epoll61 | an event that races the timeout is not lost | `epoll61_*` |
//! | `futex_wait_timeout` | a futex wait of 100 us times out | `futex_wait_timeout_*` |
//!
//! Upper bounds are "or twice what a bare call took in the same run".
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::sync::blocking::Condvar;
use slackwheel::thread::{sleep, sleep_until};
use slackwheel::wheel::Wheel;
use slackwheel::{Driver, Parker};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

/// What the kernel's tests call an unreasonable latency.
const UNREASONABLE: u64 = 40_000_000;

fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

#[test]
fn nanosleep_never_ends_before_its_target() {
    for length in [10, 1_000, 100_000, 10_000_000, 1_000_000_000] {
        let start = Instant::now();
        sleep(ns(length));
        assert!(start.elapsed() >= ns(length));
        let target = Instant::now() + ns(length);
        sleep_until(target);
        assert!(Instant::now() >= target);
    }
}

/// Mean lateness in nanoseconds of `rounds` of a subject and of a bare sleep, in turn.
fn mean_late(rounds: u64, length: u64, subject: impl Fn(Instant)) -> (u64, u64) {
    let (mut ours, mut bare) = (0, 0);
    for _ in 0..rounds {
        let target = Instant::now() + ns(length);
        subject(target);
        let late = Instant::now().checked_duration_since(target).expect("never early");
        ours += late.as_nanos() as u64;
        let target = monotonic() + length;
        nanosleep_until(target);
        bare += monotonic() - target;
    }
    (ours / rounds, bare / rounds)
}

#[test]
fn nsleep_lat_is_reasonable() {
    for length in [1_000, 100_000, 10_000_000, 100_000_000] {
        let (ours, bare) = mean_late(10, length, sleep_until);
        assert!(ours < UNREASONABLE.max(2 * bare), "{ours} ns late, a bare sleep {bare}");
    }
}

#[test]
fn mqueue_lat_of_timed_waits_is_reasonable() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let (ours, bare) = mean_late(20, 100_000_000, |target| {
        let guard = mutex.lock().unwrap();
        drop(condvar.wait_until(&mutex, guard, target, Duration::ZERO).unwrap());
    });
    assert!(ours < UNREASONABLE.max(2 * bare), "{ours} ns late, a bare sleep {bare}");
}

#[test]
fn set_timer_lat_periods_are_never_early_and_one_shots_fire_once() {
    // A period kept by absolute deadlines, as an interval is.
    let start = Instant::now();
    for k in 1..=5 {
        let due = start + ns(200_000_000) * k;
        sleep_until(due);
        assert!(Instant::now() >= due);
    }
    let mut wheel = Wheel::new();
    let at = monotonic() + 5_000_000;
    wheel.insert(at, at, ());
    let mut fired = 0;
    for _ in 0..5 {
        sleep(ns(3_000_000));
        let _ = wheel.advance(monotonic(), usize::MAX, |_| fired += 1);
    }
    assert_eq!(fired, 1);
}

#[test]
fn posix_timers_two_seconds_are_two_seconds() {
    let (ours, bare) = mean_late(1, 2_000_000_000, sleep_until);
    assert!(ours < 500_000_000.max(2 * bare), "{ours} ns late, a bare sleep {bare}");
}

#[test]
fn inconsistency_check_readings_never_decrease() {
    // Ten seconds a clock there; half a second here, on the clock that everything hangs on.
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        let readings: [Instant; 64] = std::array::from_fn(|_| Instant::now());
        assert!(readings.is_sorted());
        let raw: [u64; 64] = std::array::from_fn(|_| monotonic());
        assert!(raw.is_sorted());
    }
}

#[test]
fn threadtest_a_shared_list_of_readings_is_in_order() {
    // Thirty seconds there, one here.
    let list = Mutex::new(Vec::with_capacity(128));
    let end = Instant::now() + Duration::from_secs(1);
    thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                while Instant::now() < end {
                    let mut list = list.lock().unwrap();
                    list.push(monotonic());
                    if list.len() == 128 {
                        assert!(list.is_sorted());
                        list.clear();
                    }
                }
            });
        }
    });
}

#[test]
fn futex_wait_timeout_of_100_us_times_out() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    for _ in 0..100 {
        let start = Instant::now();
        let guard = mutex.lock().unwrap();
        let (_guard, outcome) =
            condvar.wait_for(&mutex, guard, ns(100_000), Duration::ZERO).unwrap();
        assert!(outcome.is_timed_out());
        assert!(start.elapsed() >= ns(100_000));
    }
}

#[test]
fn epoll61_a_wake_that_races_the_timeout_is_not_lost() {
    // An unpark comes when the sleep is about to end, on every parker. 1,000 repeats of 10-11 ms
    // there, 300 of about 1 ms on each parker here.
    for parker in [Parker::TimerFd, Parker::Pwait2, Parker::Futex, Parker::Mio] {
        let mut driver = Driver::builder().parker(parker).build().unwrap();
        let handle = driver.handle();
        let (send, receive) = std::sync::mpsc::channel::<Instant>();
        let told = Arc::new(AtomicU64::new(0));
        let ringer = thread::spawn({
            let told = told.clone();
            move || {
                for at in receive {
                    sleep_until(at);
                    told.fetch_add(1, Ordering::SeqCst);
                    handle.unpark();
                }
            }
        });
        for round in 1..=300u64 {
            let at = Instant::now() + ns(900_000 + round * 700);
            send.send(at).unwrap();
            // Without the timer, or with one at about the same instant.
            let mut sleep =
                handle.sleep_until(if round % 3 == 0 { at + ns(u32::MAX.into()) } else { at });
            let end = std::future::poll_fn(|cx| {
                let _ = std::pin::Pin::new(&mut sleep).poll(cx);
                if told.load(Ordering::SeqCst) == round { Poll::Ready(()) } else { Poll::Pending }
            });
            driver.block_on(end);
        }
        drop(send);
        ringer.join().unwrap();
    }
}
