//! Cases of windows, and of drivers embedded in somebody else's loop.
#![cfg(all(target_os = "linux", not(loom)))]

mod cases_util;

use cases_util::*;
use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

fn due<T>(w: &mut Wheel<T>, now: u64) -> Vec<T> {
    let mut out = Vec::new();
    let _ = w.advance(now, usize::MAX, |f| {
        assert!((f.earliest..=f.latest).contains(&now), "outside its window");
        out.push(f.value);
    });
    out
}

#[test]
fn c161_overlapping_ranges_share_wakeups() {
    let windows = [(10, 50, "a"), (20, 40, "b"), (30, 60, "c")];
    let fill = || {
        let mut w = Wheel::new();
        for (a, b, v) in windows {
            w.insert(a * MS, b * MS, v);
        }
        w
    };
    let mut w = fill();
    let n = w.next_wake().unwrap();
    assert!((30 * MS..=40 * MS).contains(&n));
    assert_eq!(due(&mut w, n), ["a", "b", "c"]);
    // Awake anyway at 22: what may fire then does.
    let mut w = fill();
    assert_eq!(due(&mut w, 22 * MS), ["a", "b"]);
    let n = w.next_wake().unwrap();
    assert!((30 * MS..=60 * MS).contains(&n));
    assert_eq!(due(&mut w, n), ["c"]);

    let mut w = Wheel::new();
    for (a, b, v) in [(10, 12, "e"), (13, 15, "f"), (11, 14, "g")] {
        w.insert(a * MS, b * MS, v);
    }
    let mut wakes = 0;
    while let Some(n) = w.next_wake() {
        wakes += 1;
        assert!(!due(&mut w, n).is_empty());
    }
    assert_eq!(wakes, 2);
}

#[test]
fn c167_wakeups_are_the_optimum_for_any_slack() {
    for slack in [0, 100_000, MS, 10 * MS] {
        let mut rng = Rng(slack);
        let windows: Vec<(u64, u64)> = (0..1_000)
            .map(|_| {
                let m = rng.below(1_000 * MS);
                (m, m + slack)
            })
            .collect();
        let mut w = Wheel::new();
        for (i, (a, b)) in windows.iter().enumerate() {
            w.insert(*a, *b, i);
        }
        let (mut wakes, mut fired) = (0, 0);
        while let Some(n) = w.next_wake() {
            wakes += 1;
            fired += due(&mut w, n).len();
        }
        assert_eq!((wakes, fired), (piercing(&windows), 1_000), "slack of {slack} ns");
        if slack == 0 {
            let mut distinct: Vec<u64> = windows.iter().map(|w| w.0).collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(wakes, distinct.len());
        }
    }
}

#[test]
fn c169_plain_sleeps_have_no_slack_that_nobody_asked_for() {
    let mut b = Bench::new();
    let h = b.h();
    let mut rng = Rng(169);
    let mut plain: Vec<Sleep> = (0..1_000).map(|_| h.sleep(ms(1 + rng.below(1_000)))).collect();
    let mut ranges: Vec<Sleep> = (0..200)
        .map(|_| {
            let m = 1 + rng.below(1_000);
            h.sleep_range(ms(m), ms(m + 100))
        })
        .collect();
    for s in plain.iter_mut().chain(&mut ranges) {
        assert!(peek(s).is_pending());
    }
    let mut left = 1_200;
    while left > 0 {
        b.clock.set(b.driver.next_wake().unwrap());
        left -= b.driver.turn().fired;
        for s in plain.iter_mut().chain(&mut ranges).filter(|s| !s.is_elapsed()) {
            let _ = peek(s);
        }
    }
    assert!(plain.iter().all(|s| s.lateness() == Some(Duration::ZERO)));
    assert!(ranges.iter().all(|s| s.overrun() == Some(Duration::ZERO)));
    assert!(ranges.iter().any(|s| s.lateness() > Some(Duration::ZERO)));
}

fn epoll_of(fd: &impl AsFd) -> i32 {
    // SAFETY: the call takes no pointer.
    let ep = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open and `event` lives through the call.
    let rc =
        unsafe { libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd.as_fd().as_raw_fd(), &mut event) };
    assert_eq!(rc, 0);
    ep
}

fn epoll_wait(ep: i32, timeout_ms: i32) -> i32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for the one event that is asked for.
    unsafe { libc::epoll_wait(ep, &mut event, 1, timeout_ms) }
}

#[test]
fn c170_a_waiting_host_learns_of_a_sooner_timer() {
    let mut driver = Driver::builder().external().unwrap();
    let h = driver.handle();
    let mut far = h.sleep(secs(60));
    assert!(peek(&mut far).is_pending());
    let (told, waiting) = mpsc::channel();
    let host = std::thread::spawn(move || {
        let ep = epoll_of(&driver);
        // The old timeout, read before the sooner timer exists.
        let old = driver.next_wake().unwrap().saturating_duration_since(driver.now());
        told.send(()).unwrap();
        assert_eq!(epoll_wait(ep, old.as_millis() as i32), 1, "slept for the old timeout");
        let woke = Instant::now();
        driver.turn();
        // On the host itself: a timer made between reading the timeout and the wait.
        let old = driver.next_wake().unwrap().saturating_duration_since(driver.now());
        let mut near = driver.handle().sleep(ms(5));
        assert!(peek(&mut near).is_pending());
        assert_eq!(epoll_wait(ep, old.as_millis() as i32), 1);
        driver.turn();
        assert!(peek(&mut near).is_ready());
        // SAFETY: the descriptor is ours and is not used any more.
        unsafe { libc::close(ep) };
        woke
    });
    waiting.recv().unwrap();
    std::thread::sleep(ms(10));
    let start = Instant::now();
    let mut s = h.sleep(ms(20));
    assert!(peek(&mut s).is_pending());
    let woke = host.join().unwrap();
    assert!(woke >= start + ms(20), "early");
    assert!(woke < start + secs(5));
}

#[test]
fn c172_embedding_is_not_limited_to_milliseconds() {
    let d = us(2_300);
    let mut driver = Driver::builder().external().unwrap();
    let h = driver.handle();
    let ep = epoll_of(&driver);
    let (mut by_fd, mut by_timeout, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..300 {
        let start = Instant::now();
        let mut s = h.sleep(d);
        while peek(&mut s).is_pending() {
            if i % 2 == 0 {
                epoll_wait(ep, -1);
            } else {
                let left = driver.next_wake().unwrap().saturating_duration_since(driver.now());
                let ts = libc::timespec {
                    tv_sec: left.as_secs() as libc::time_t,
                    tv_nsec: left.subsec_nanos() as libc::c_long,
                };
                // SAFETY: no descriptors are passed; `ts` lives through the call.
                unsafe { libc::ppoll(std::ptr::null_mut(), 0, &ts, std::ptr::null()) };
            }
            driver.turn();
        }
        let took = start.elapsed();
        assert!(took >= d, "early: {took:?}");
        if i % 2 == 0 { &mut by_fd } else { &mut by_timeout }.push(took - d);
        bare.push(bare_overshoot(d));
    }
    // SAFETY: the descriptor is ours and is not used any more.
    unsafe { libc::close(ep) };
    let bare = median(&mut bare);
    for (way, mut late) in [("descriptor", by_fd), ("timeout", by_timeout)] {
        let late = median(&mut late);
        // A millisecond's rounding would cost 700 us.
        assert!(late < us(150) + bare, "{way}: {late:?} late, bare {bare:?}");
    }
}

#[test]
fn c174_the_documented_host_loop_runs_its_timers() {
    // { run what is ready; when idle, wait(next wake); turn }
    let mut b = ExternalBench::new();
    let h = b.h();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (clock, t0, seen) = (b.clock.clone(), b.t0, log.clone());
    let mut task = pin!(async move {
        for _ in 0..3 {
            h.sleep(ms(50)).await;
            seen.lock().unwrap().push((clock.now() - t0).as_millis());
        }
    });
    let mut waits = 0;
    while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        let at = b.driver.next_wake().expect("a sleep is registered");
        b.clock.advance(at.saturating_duration_since(b.driver.now()));
        b.driver.turn();
        waits += 1;
    }
    assert_eq!(*log.lock().unwrap(), [50, 100, 150]);
    assert_eq!(waits, 3);
}
