//! Facts from the Open POSIX Test Suite, as properties and values; no code of it.
//!
//! | source | property | here |
//! | --- | --- | --- |
//! | `pthread_cond_timedwait` 2-1 | a deadline already passed times out at once | `pthread_cond_timedwait_2_*` |
//! | `pthread_cond_timedwait` 4-1 | the mutex is held on return; never `EINTR` | `pthread_cond_timedwait_4_*` |
//! | `pthread_cond_wait` 1-1, 2-1 | the mutex is released while waiting and held after | `pthread_cond_wait_*` |
//! | `pthread_cond_signal` 1-1, `pthread_cond_broadcast` 1-1 | one waiter wakes, all waiters wake | `pthread_cond_signal_*`, `pthread_cond_broadcast_*` |
//! | `stress/threads/pthread_cond_timedwait` | many waiters, half signalled and half timed out, for a while | `stress_*` |
//! | `timer_settime` 1-9 | zero disarms, setting replaces, the past fires at once, rounding is upward, never before schedule | `timer_settime_*` |
//! | `clock_nanosleep` 3-1, 4-1, 5-1 | an absolute time that has come returns at once; relative and absolute sleeps are never short | `clock_nanosleep_*` |
#![cfg(target_os = "linux")]

use slackwheel::sync::blocking::Condvar;
use slackwheel::thread::{sleep, sleep_until};
use slackwheel::wheel::Wheel;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ZERO: Duration = Duration::ZERO;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn pthread_cond_timedwait_2_a_passed_deadline_times_out_at_once() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let start = Instant::now();
    let past = start.checked_sub(Duration::from_secs(1)).unwrap_or(start);
    let guard = mutex.lock().unwrap();
    let (_guard, outcome) = condvar.wait_until(&mutex, guard, past, ZERO).unwrap();
    assert!(outcome.is_timed_out());
    assert_eq!(condvar.waiting(), 0);
}

#[test]
fn pthread_cond_timedwait_4_the_mutex_is_held_on_return() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let guard = mutex.lock().unwrap();
    let (guard, outcome) = condvar.wait_for(&mutex, guard, ms(3), ZERO).unwrap();
    assert!(outcome.is_timed_out());
    assert!(mutex.try_lock().is_err());
    drop(guard);
    assert!(mutex.try_lock().is_ok());
}

#[test]
fn pthread_cond_wait_releases_the_mutex_and_takes_it_again() {
    let (mutex, condvar) = (Mutex::new(0), Condvar::new());
    thread::scope(|s| {
        s.spawn(|| {
            let guard = condvar.wait(&mutex, mutex.lock().unwrap()).unwrap();
            assert_eq!(*guard, 1);
            assert!(mutex.try_lock().is_err());
        });
        while condvar.waiting() == 0 {
            thread::yield_now();
        }
        let mut guard = mutex.lock().unwrap();
        condvar.notify_one();
        // The waiter was told but cannot return before this is released.
        thread::sleep(ms(5));
        *guard = 1;
    });
}

/// `n` threads wait; how many have returned 50 ms after `act`.
fn woken_by(n: usize, act: impl Fn(&Condvar)) -> usize {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let woken = AtomicUsize::new(0);
    thread::scope(|s| {
        for _ in 0..n {
            s.spawn(|| {
                drop(condvar.wait(&mutex, mutex.lock().unwrap()).unwrap());
                woken.fetch_add(1, Ordering::Relaxed);
            });
        }
        while condvar.waiting() < n {
            thread::yield_now();
        }
        act(&condvar);
        let expected = n - condvar.waiting();
        while woken.load(Ordering::Relaxed) < expected {
            thread::yield_now();
        }
        thread::sleep(ms(50));
        let result = woken.load(Ordering::Relaxed);
        condvar.notify_all();
        result
    })
}

#[test]
fn pthread_cond_signal_wakes_one() {
    assert_eq!(woken_by(3, |condvar| assert!(condvar.notify_one())), 1);
}

#[test]
fn pthread_cond_broadcast_wakes_all() {
    assert_eq!(woken_by(20, |condvar| assert_eq!(condvar.notify_all(), 20)), 20);
}

#[test]
fn stress_waiters_that_are_told_and_waiters_that_are_not() {
    let (mutex, condvar) = (Mutex::new(0u32), Condvar::new());
    let (told, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(2);
    thread::scope(|s| {
        for i in 0..16u64 {
            let (mutex, condvar, told, late) = (&mutex, &condvar, &told, &late);
            s.spawn(move || {
                while Instant::now() < end {
                    let mut guard = mutex.lock().unwrap();
                    let start = Instant::now();
                    let wait = Duration::from_micros(200 + 137 * i);
                    let outcome;
                    (guard, outcome) = condvar.wait_for(mutex, guard, wait, ZERO).unwrap();
                    *guard += 1;
                    if outcome.is_notified() {
                        told.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert!(start.elapsed() >= wait);
                        late.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut notified = 0;
        while Instant::now() < end {
            thread::sleep(Duration::from_micros(300));
            notified += usize::from(condvar.notify_one());
        }
        while condvar.waiting() > 0 {
            thread::sleep(ms(1));
        }
        // Those between their last wait and their end were counted by then or are about to be.
        let start = Instant::now();
        while told.load(Ordering::Relaxed) != notified {
            assert!(start.elapsed() < Duration::from_secs(10), "a notify was lost or made up");
            thread::sleep(ms(1));
        }
    });
    assert!(told.into_inner() > 0 && late.into_inner() > 0);
}

#[test]
fn timer_settime_zero_disarms_setting_replaces_and_the_past_fires_at_once() {
    let mut wheel = Wheel::new();
    let mut fired = Vec::new();
    let _ = wheel.advance(1_000_000, usize::MAX, |f| fired.push(f.value));
    let key = wheel.insert(5_000_000, 5_000_000, 'a');
    // Replaced, earlier and later: only the last schedule counts.
    assert!(wheel.reset(key, 3_000_000, 3_000_000));
    assert!(wheel.reset(key, 9_000_000, 9_000_000));
    let _ = wheel.advance(8_999_999, usize::MAX, |f| fired.push(f.value));
    assert_eq!(fired, [], "never before its schedule, to the nanosecond");
    let _ = wheel.advance(9_000_000, usize::MAX, |f| fired.push(f.value));
    assert_eq!(fired, ['a']);
    // Disarmed, then set in the past.
    let key = wheel.insert(20_000_000, 20_000_000, 'b');
    assert_eq!(wheel.cancel(key), Some('b'));
    assert_eq!(wheel.next_wake(), None);
    wheel.insert(1, 1, 'c');
    assert!(wheel.next_wake().is_some_and(|at| at <= wheel.now()));
    let _ = wheel.advance(9_000_000, usize::MAX, |f| fired.push(f.value));
    assert_eq!(fired, ['a', 'c']);
}

#[test]
fn timer_settime_rounds_upward_only() {
    // Deadlines of every alignment: a timer must not end before its schedule by rounding.
    for k in 0..200 {
        let deadline = Instant::now() + Duration::from_nanos(20_000 + 37 * k);
        sleep_until(deadline);
        assert!(Instant::now() >= deadline);
    }
}

#[test]
fn clock_nanosleep_3_to_5_never_short_and_at_once_when_it_has_come() {
    let now = Instant::now();
    sleep_until(now);
    for d in [1, 1_000, 100_000, 10_000_000] {
        let d = Duration::from_nanos(d);
        let start = Instant::now();
        sleep(d);
        assert!(start.elapsed() >= d);
        let until = Instant::now() + d;
        sleep_until(until);
        assert!(Instant::now() >= until);
    }
}
