//! The public bug reports about slack, huge sleeps, thread exit and fork, each as a test named
//! after its case, as far as they need no driver; and the promise behind them: the caller's slack is
//! what it was, after every way in.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::sync::blocking::Condvar;
use slackwheel::thread::{self as slack_thread, SlackGuard, set_timer_slack, timer_slack};
use slackwheel::wheel::Wheel;
use slackwheel::{Driver, Parker, Window, tunables};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const ZERO: Duration = Duration::ZERO;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn c043_huge_sleeps_neither_fail_nor_return() {
    let (send, receive) = mpsc::channel();
    for d in [
        Duration::new(u64::MAX, 0),
        Duration::new(i64::MAX as u64 + 1, 999_999_999),
        Duration::MAX,
        Duration::from_secs(i64::MAX as u64 / 1_000_000_000),
    ] {
        let send = send.clone();
        thread::spawn(move || {
            send.send(Ok(tid())).unwrap();
            slack_thread::sleep_range(d, ZERO);
            send.send(Err(d)).unwrap();
        });
    }
    let tids: Vec<i32> = (0..4).map(|_| receive.recv().unwrap().unwrap()).collect();
    for &tid in &tids {
        let call = await_syscall(tid, libc::SYS_clock_nanosleep);
        assert_eq!((call[1], call[2]), (libc::CLOCK_MONOTONIC as u64, libc::TIMER_ABSTIME as u64));
    }
    assert!(receive.recv_timeout(ms(200)).is_err(), "a sleep without end returned");
    for tid in tids {
        await_syscall(tid, libc::SYS_clock_nanosleep);
    }
}

#[test]
fn c161_overlapping_ranges_share_the_smallest_max() {
    let ms = |n: u64| n * 1_000_000;
    let fill = |windows: &[(u64, u64, char)]| {
        let mut wheel = Wheel::new();
        for &(min, max, name) in windows {
            wheel.insert(ms(min), ms(max), name);
        }
        wheel
    };
    let turn = |wheel: &mut Wheel<char>, now: u64| {
        let mut fired = Vec::new();
        let _ = wheel.advance(now, usize::MAX, |f| fired.push(f.value));
        fired.sort_unstable();
        fired
    };
    let three = [(10, 50, 'a'), (20, 40, 'b'), (30, 60, 'c')];
    let mut wheel = fill(&three);
    let n = wheel.next_wake().unwrap();
    assert!((ms(30)..=ms(40)).contains(&n));
    assert_eq!(turn(&mut wheel, n), ['a', 'b', 'c']);

    let mut wheel = fill(&three);
    assert_eq!(turn(&mut wheel, ms(22)), ['a', 'b']);
    assert!((ms(30)..=ms(60)).contains(&wheel.next_wake().unwrap()));

    let mut wheel = fill(&[(10, 12, 'e'), (13, 15, 'f'), (11, 14, 'g')]);
    let mut wakes = Vec::new();
    while let Some(n) = wheel.next_wake() {
        wakes.push((n, turn(&mut wheel, n)));
    }
    assert_eq!(wakes, [(ms(12), vec!['e', 'g']), (ms(15), vec!['f'])]);
}

#[test]
fn c167_no_range_is_late_and_the_wakes_are_the_optimum() {
    // A fixed linear congruence: the same windows on every machine.
    let mut seed = 0x5eed_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mins: Vec<u64> = (0..1000).map(|_| random(1_000_000_000)).collect();
    for slack in [0, 100_000, 1_000_000, 10_000_000] {
        let mut wheel = Wheel::new();
        for &min in &mins {
            wheel.insert(min, min + slack, min);
        }
        let (mut wakes, mut fired) = (0, 0);
        while let Some(now) = wheel.next_wake() {
            wakes += 1;
            let _ = wheel.advance(now, usize::MAX, |f| {
                fired += 1;
                assert!(f.value <= now && now <= f.value + slack);
            });
        }
        assert_eq!(fired, 1000);
        let mut sorted = mins.clone();
        sorted.sort_unstable();
        let mut optimum = 0;
        let mut point = None;
        for min in sorted {
            if point.is_none_or(|p| p < min) {
                point = Some(min + slack);
                optimum += 1;
            }
        }
        assert_eq!(wakes, optimum, "slack {slack}");
    }
}

/// Every blocking way in, by name.
fn every_entry(mut each: impl FnMut(&str, &dyn Fn())) {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let lock = || mutex.lock().unwrap();
    let soon = || Instant::now() + us(300);
    each("sleep", &|| slack_thread::sleep(us(300)));
    each("sleep_range", &|| slack_thread::sleep_range(us(300), us(400)));
    each("sleep_until", &|| slack_thread::sleep_until(soon()));
    each("sleep_window", &|| slack_thread::sleep_window(Window::with_slack(soon(), us(50))));
    each("sleep in the past", &|| slack_thread::sleep_until(Instant::now()));
    each("wait_for", &|| drop(condvar.wait_for(&mutex, lock(), us(300), us(70))));
    each("wait_until", &|| drop(condvar.wait_until(&mutex, lock(), soon(), us(70))));
    each("wait_range", &|| drop(condvar.wait_range(&mutex, lock(), us(300), us(400))));
    each("wait_window", &|| {
        drop(condvar.wait_window(&mutex, lock(), Window::with_slack(soon(), us(50))))
    });
    each("wait_while_for", &|| {
        drop(condvar.wait_while_for(&mutex, lock(), us(300), us(70), |_| true))
    });
    each("wait_while_until", &|| {
        drop(condvar.wait_while_until(&mutex, lock(), soon(), us(70), |_| true))
    });
    each("wait_while_range", &|| {
        drop(condvar.wait_while_range(&mutex, lock(), us(300), us(400), |_| true))
    });
    each("wait_while_window", &|| {
        let window = Window::with_slack(soon(), us(50));
        drop(condvar.wait_while_window(&mutex, lock(), window, |_| true))
    });
    each("an expired wait", &|| drop(condvar.wait_for(&mutex, lock(), ZERO, us(70))));
    each("SlackGuard", &|| drop(SlackGuard::new(ms(3))));
    each("SlackGuard::with", &|| SlackGuard::with(ms(3), || assert_eq!(slack(), 3_000_000)));
    each("a nested wait", &|| {
        let inner = Mutex::new(());
        let _ = condvar.wait_while_for(&mutex, lock(), us(300), us(70), |_| {
            // The condition runs with the caller's slack, and may wait itself.
            let before = slack();
            let other = Condvar::new();
            drop(other.wait_for(&inner, inner.lock().unwrap(), us(100), us(20)));
            assert_eq!(slack(), before);
            true
        });
    });
}

#[test]
fn the_callers_slack_is_what_it_was_after_every_entry_point() {
    for own in [1, 50_000, 77_000, 5_000_000_000] {
        thread::spawn(move || {
            set_slack(own);
            every_entry(|name, entry| {
                entry();
                assert_eq!(slack(), own, "after {name}");
            });
        })
        .join()
        .unwrap();
    }
}

#[test]
fn the_slack_is_back_after_a_panic() {
    thread::spawn(|| {
        set_slack(77_000);
        let seen = RefCell::new(Vec::new());
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let guard = mutex.lock().unwrap();
            drop(condvar.wait_while_for(&mutex, guard, us(300), us(10), |_| {
                seen.borrow_mut().push(slack());
                assert!(seen.borrow().len() < 2, "the condition panics after its wait");
                true
            }));
        }));
        assert!(panicked.is_err());
        assert_eq!(*seen.borrow(), [77_000, 77_000], "user code runs with the caller's slack");
        assert_eq!(slack(), 77_000);
        let panicked = catch_unwind(|| {
            SlackGuard::with(ms(2), || {
                assert_eq!(slack(), 2_000_000);
                let _inner = SlackGuard::new(ms(4));
                panic!("inside two guards");
            })
        });
        assert!(panicked.is_err());
        assert_eq!(slack(), 77_000);
    })
    .join()
    .unwrap();
}

#[test]
fn a_thread_spawned_inside_a_guard_inherits_it_and_one_after_does_not() {
    thread::spawn(|| {
        set_slack(60_000);
        let inherited = SlackGuard::with(ms(2), || thread::spawn(slack).join().unwrap());
        assert_eq!(inherited, 2_000_000);
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let guard = mutex.lock().unwrap();
        // A condition is user code: what it spawns gets the caller's slack, not the wait's.
        let mut spawned = Vec::new();
        drop(condvar.wait_while_for(&mutex, guard, us(200), us(900), |_| {
            spawned.push(thread::spawn(slack).join().unwrap());
            true
        }));
        assert_eq!(spawned, [60_000, 60_000]);
    })
    .join()
    .unwrap();
}

#[test]
fn a_real_time_thread_has_no_slack_and_gets_its_default_back() {
    thread::spawn(|| {
        set_slack(60_000);
        // The default of the next thread.
        thread::spawn(|| {
            if !become_realtime() {
                eprintln!("skipped: real-time policies are not allowed here");
                return;
            }
            let raw = slack();
            assert_eq!(timer_slack().unwrap(), ZERO);
            assert!(set_timer_slack(ms(1)).is_err());
            every_entry(|name, entry| {
                // The one that looks inside would see what a real-time thread has: nothing.
                if name != "SlackGuard::with" {
                    entry();
                    assert_eq!(slack(), raw, "after {name}");
                }
            });
            let guard = SlackGuard::new(ms(3));
            assert_eq!(timer_slack().unwrap(), ZERO);
            drop(guard);
            become_ordinary();
            assert_eq!(timer_slack().unwrap(), us(60));
            // The policy changes under a guard, both ways.
            set_slack(70_000);
            let guard = SlackGuard::new(ms(3));
            assert!(become_realtime());
            become_ordinary();
            drop(guard);
            assert_eq!(timer_slack().unwrap(), us(70));
            assert!(become_realtime());
            let guard = SlackGuard::new(ms(3));
            become_ordinary();
            drop(guard);
            assert!(timer_slack().unwrap() <= us(70));
        })
        .join()
        .unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn a_child_of_a_real_time_thread_keeps_its_zero() {
    thread::spawn(|| {
        if !become_realtime() {
            eprintln!("skipped: real-time policies are not allowed here");
            return;
        }
        thread::spawn(|| {
            become_ordinary();
            let own = slack();
            every_entry(|name, entry| {
                entry();
                assert_eq!(slack(), own, "after {name}");
            });
        })
        .join()
        .unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn slack_is_set_read_and_reset_without_the_traps() {
    thread::spawn(|| {
        set_slack(60_000);
        thread::spawn(|| {
            set_timer_slack(ms(2)).unwrap();
            assert_eq!((timer_slack().unwrap(), slack()), (ms(2), 2_000_000));
            // Zero is "none", not "the default".
            set_timer_slack(ZERO).unwrap();
            assert_eq!(timer_slack().unwrap(), Duration::from_nanos(1));
            assert_eq!(SlackGuard::with(ZERO, slack), 1);
            // A huge value is cut before it can stop the thread for good.
            set_timer_slack(Duration::MAX).unwrap();
            assert_eq!(timer_slack().unwrap(), slack_thread::MAX_TIMER_SLACK);
            assert_eq!(SlackGuard::with(Duration::MAX, slack), 1_000_000_000);
            slack_thread::reset_timer_slack().unwrap();
            assert_eq!(timer_slack().unwrap(), us(60), "the creator's slack is the default");
            // What others set is read as it is, and comes back as it was.
            for odd in [5_000_000_000, i64::MAX as u64, u64::MAX - 5000, u64::MAX] {
                set_slack(odd);
                assert_eq!(timer_slack().unwrap(), Duration::from_nanos(odd));
                slack_thread::sleep_range(us(50), us(60));
                assert_eq!(timer_slack().unwrap(), Duration::from_nanos(odd));
            }
        })
        .join()
        .unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn c163_the_waiting_thread_has_the_slack_and_nobody_else() {
    let main = tid();
    let own = slack();
    let check = |tid: i32, call: i64, width: Duration| {
        await_syscall(tid, call);
        match slack_of(tid) {
            Some(ns) => assert_eq!(ns, width.as_nanos() as u64, "thread {tid} waiting"),
            None => eprintln!("skipped: another thread's slack is not readable here"),
        }
    };
    // Two widths on two threads at once, each with an observer.
    let one = |width: Duration| {
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let (send, receive) = mpsc::channel();
        thread::scope(|s| {
            s.spawn(|| {
                set_slack(90_000);
                send.send(tid()).unwrap();
                let guard = mutex.lock().unwrap();
                let long = Duration::from_secs(60);
                drop(condvar.wait_range(&mutex, guard, long, long + width));
                assert_eq!(slack(), 90_000);
                slack_thread::sleep_range(ms(500), ms(500) + width);
                assert_eq!(slack(), 90_000);
            });
            let waiter = receive.recv().unwrap();
            while condvar.waiting() == 0 {
                thread::yield_now();
            }
            check(waiter, libc::SYS_futex, width);
            condvar.notify_one();
            check(waiter, libc::SYS_clock_nanosleep, width);
        });
    };
    thread::scope(|s| {
        s.spawn(|| one(us(600)));
        s.spawn(|| one(us(900)));
        assert_eq!(slack(), own);
    });
    assert!(slack_of(main).is_none_or(|ns| ns == own));
}

#[test]
fn c165_a_wide_thread_slack_widens_neither_a_window_nor_a_timerfd() {
    thread::spawn(|| {
        set_slack(5_000_000);
        let mut driver = Driver::builder().parker(Parker::TimerFd).build().unwrap();
        let (mut bare, mut range, mut timerfd) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..200 {
            let until = monotonic() + 200_000;
            futex_until(until);
            bare.push((monotonic() - until) as i64);
            let start = monotonic();
            slack_thread::sleep_range(us(200), us(700));
            range.push((monotonic() - start) as i64 - 200_000);
            let start = monotonic();
            driver.block_on(driver.handle().sleep(us(200)));
            timerfd.push((monotonic() - start) as i64 - 200_000);
        }
        assert!(range.iter().chain(&timerfd).all(|&late| late >= 0));
        let [bare, range, timerfd] = [bare, range, timerfd].map(|mut v| median(&mut v));
        println!("median lateness, ns: bare {bare}, range {range}, timerfd {timerfd}");
        // The bare wait may be late by 5 ms (less when another timer's interrupt ends it); a range
        // only by its own 500 us, and a sleep through the timerfd not at all.
        assert!(range < 500_000 + 1_000_000, "median {range} ns past min, max is 500,000");
        assert!(timerfd < 1_000_000, "median {timerfd} ns late through the timerfd");
        // Two ranges on the timerfd whose windows overlap by 2 ms share one wakeup: the crate does
        // that itself.
        let before = driver.handle().metrics().unwrap().wakeups;
        driver.block_on(async {
            let a = slackwheel::sleep_range(ms(10), ms(14));
            let b = slackwheel::sleep_range(ms(12), ms(16));
            futures::join!(a, b)
        });
        assert_eq!(driver.handle().metrics().unwrap().wakeups - before, 1);
        assert_eq!(slack(), 5_000_000);
    })
    .join()
    .unwrap();
}

#[test]
fn the_dials_act_on_the_next_wait() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let (send, receive) = mpsc::channel();
    thread::scope(|s| {
        s.spawn(|| {
            send.send(tid()).unwrap();
            for _ in 0..4 {
                let guard = mutex.lock().unwrap();
                drop(condvar.wait_for(&mutex, guard, Duration::from_secs(60), us(5)).unwrap());
            }
        });
        let tid = receive.recv().unwrap();
        let seen = |expected: u64| {
            // The slack is set before the futex is entered.
            while condvar.waiting() == 0 {
                thread::yield_now();
            }
            await_syscall(tid, libc::SYS_futex);
            if let Some(ns) = slack_of(tid) {
                assert_eq!(ns, expected);
            }
        };
        seen(5_000);
        condvar.slack_floor().set(700).unwrap();
        seen(5_000);
        condvar.notify_one();
        seen(700_000);
        assert!(condvar.slack_floor().parse_and_set("-1").is_err());
        condvar.notify_one();
        seen(700_000);
        condvar.slack_floor().clear();
        condvar.notify_one();
        seen(5_000 + tunables::slack_floor().get().as_nanos() as u64);
        condvar.notify_one();
    });
}

/// Waits in every blocking way while the thread's other locals are being destroyed.
struct AtExit(mpsc::Sender<bool>);

impl Drop for AtExit {
    fn drop(&mut self) {
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let start = Instant::now();
        let timed_out = condvar
            .wait_for(&mutex, mutex.lock().unwrap(), ms(1), us(10))
            .is_ok_and(|(_, outcome)| outcome.is_timed_out());
        SlackGuard::with(us(1), || slack_thread::sleep(us(10)));
        condvar.notify_all();
        self.0.send(timed_out && start.elapsed() >= ms(1)).unwrap();
    }
}

thread_local! {
    static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

#[test]
fn c106_waits_work_in_destructors_of_thread_locals() {
    let (send, receive) = mpsc::channel();
    for i in 0..8 {
        let send = send.clone();
        thread::spawn(move || {
            let register = || AT_EXIT.with(|slot| *slot.borrow_mut() = Some(AtExit(send)));
            let touch = || slack_thread::sleep_range(us(1), us(2));
            // Both orders of first use, hence of destruction.
            if i % 2 == 0 {
                register();
                touch();
            } else {
                touch();
                register();
            }
        })
        .join()
        .unwrap();
    }
    drop(send);
    assert_eq!(receive.iter().collect::<Vec<_>>(), [true; 8]);
}

#[test]
fn c108_a_thousand_short_threads_leave_nothing_behind() {
    static MUTEX: Mutex<()> = Mutex::new(());
    static CONDVAR: Condvar = Condvar::new();
    for batch in 0..100 {
        let threads: Vec<_> = (0..10)
            .map(|i| {
                thread::Builder::new()
                    .spawn(move || {
                        let guard = MUTEX.lock().unwrap_or_else(|e| e.into_inner());
                        drop(CONDVAR.wait_range(&MUTEX, guard, us(100), us(300)));
                        set_timer_slack(us(20 + i)).unwrap();
                        if (batch + i) % 97 == 0 {
                            std::panic::resume_unwind(Box::new("some end by a panic"));
                        }
                    })
                    .unwrap()
            })
            .collect();
        let panics = threads.into_iter().filter_map(|t| t.join().err()).count() as u64;
        let expected = (0..10).filter(|i| (batch + i) % 97 == 0).count() as u64;
        assert_eq!(panics, expected);
    }
    assert_eq!(CONDVAR.waiting(), 0);
}

#[test]
fn c102_a_condvar_and_sleeps_work_in_a_forked_child() {
    let code = in_child(|| {
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let start = monotonic();
        let Ok((_guard, outcome)) = condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(20), ZERO)
        else {
            return 1;
        };
        if !outcome.is_timed_out() || monotonic() - start < 20_000_000 {
            return 2;
        }
        let start = monotonic();
        slack_thread::sleep_range(ms(20), ms(25));
        if monotonic() - start < 20_000_000 {
            return 3;
        }
        0
    });
    assert_eq!(code, 0);
}
