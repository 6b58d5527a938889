//! Cases of programs that woke, or called the kernel, for nothing elsewhere.
#![cfg(all(target_os = "linux", not(loom)))]

mod cases_util;

use cases_util::*;
use slackwheel::*;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A level-triggered epoll that watches one descriptor.
struct Epoll(OwnedFd);

impl Epoll {
    fn watching(fd: &impl AsFd) -> Epoll {
        // SAFETY: the call takes no pointer; what it returns is ours.
        let ep = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open and `event` lives through the call.
        let rc = unsafe {
            let fd = fd.as_fd().as_raw_fd();
            libc::epoll_ctl(ep.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event)
        };
        assert_eq!(rc, 0);
        Epoll(ep)
    }

    /// True when the descriptor was readable within so many milliseconds (-1: for ever).
    fn wait(&self, timeout_ms: i32) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for the one event that is asked for.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, timeout_ms) == 1 }
    }
}

#[test]
fn c123_a_descriptor_does_not_stay_readable_when_the_last_timer_has_gone() {
    let mut driver = Driver::builder().external().unwrap();
    let ep = Epoll::watching(&driver);
    let mut s = driver.handle().sleep(ms(5));
    assert!(peek(&mut s).is_pending());
    assert!(ep.wait(-1));
    drop(s);
    driver.turn();
    let cpu = thread_cpu();
    let mut returns = 0;
    let end = Instant::now() + ms(200);
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now()).as_millis() as i32;
        if ep.wait(left) {
            returns += 1;
            driver.turn();
        }
    }
    assert!(returns <= 1, "{returns} returns with no timers");
    assert!(thread_cpu() - cpu < ms(20));
}

#[test]
fn c125_the_kernel_timer_is_set_only_when_it_must_move() {
    let mut b = ExternalBench::new();
    let h = b.h();
    let calls = || h.metrics().unwrap().arm_calls;
    for _ in 0..1_000 {
        b.driver.turn();
    }
    assert_eq!(calls(), 0);
    let mut first = h.sleep(secs(3600));
    assert!(peek(&mut first).is_pending());
    for _ in 0..1_000 {
        b.driver.turn();
    }
    assert_eq!(calls(), 1);
    let mut later: Vec<Sleep> = (1..=1_000).map(|i| h.sleep(secs(3600) + ms(i))).collect();
    later.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    b.driver.turn();
    assert_eq!(calls(), 1);
    drop(later);
    b.driver.turn();
    assert_eq!(calls(), 1);
    assert_eq!(b.clock.take_arms().len(), 1);
}

#[test]
fn c127_whole_milliseconds_rounded_up_are_one_wait() {
    for d in [us(900), us(1_900), us(10_500)] {
        for _ in 0..10 {
            let mut driver = Driver::builder().external().unwrap();
            let ep = Epoll::watching(&driver);
            let start = Instant::now();
            let mut s = driver.handle().sleep(d);
            let mut waits = 0;
            while peek(&mut s).is_pending() {
                let left = driver.next_wake().map(|at| at.saturating_duration_since(driver.now()));
                // Rounded up, as the method says.
                let timeout = left.map_or(-1, |d| d.as_micros().div_ceil(1000) as i32);
                ep.wait(timeout);
                driver.turn();
                waits += 1;
            }
            assert!(start.elapsed() >= d, "early");
            assert!(waits <= 2, "{waits} waits for {d:?}");
        }
    }
}

#[test]
fn c129_due_work_is_not_armed_for_again_and_again() {
    let mut b = ExternalBench::new();
    let h = b.h();
    // Due before anybody polled them: nothing is registered.
    let mut due: Vec<Sleep> = (0..10_000).map(|i| h.sleep(us(i))).collect();
    b.clock.advance(ms(20));
    for _ in 0..100 {
        b.driver.turn();
    }
    assert_eq!(b.clock.take_arms().len(), 0);
    assert!(due.iter_mut().map(|s| peek(s).is_ready() as u32).sum::<u32>() >= 9_900);
    // Pending, then due, and nobody turns for long: reported as due at once, armed at most once.
    let mut sleeps: Vec<Sleep> = (0..10_000).map(|i| h.sleep(ms(1) + us(i))).collect();
    sleeps.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    b.clock.take_arms();
    b.clock.advance(secs(1));
    assert!(b.driver.next_wake().unwrap() <= b.clock.now());
    for _ in 0..100 {
        b.driver.turn();
    }
    let past = |arms: &[(Instant, Option<Instant>)]| {
        arms.iter().filter(|(now, at)| at.is_some_and(|at| at <= *now)).count()
    };
    let arms = b.clock.take_arms();
    assert!(arms.len() <= 1 && past(&arms) == 0, "{arms:?}");
    // Moved into the past, each further than the one before: one arm says all of it.
    let mut sleeps: Vec<Sleep> = (0..1_000).map(|_| h.sleep(secs(3600))).collect();
    sleeps.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    b.clock.take_arms();
    for (i, s) in sleeps.iter_mut().enumerate() {
        s.reset(b.clock.now() - us(i as u64));
    }
    let arms = b.clock.take_arms();
    assert!(past(&arms) <= 1, "{} arms for what is due already", past(&arms));
    assert_eq!(b.driver.turn().fired, 1_000);
    // A tiny interval that catches up arms nothing at all.
    let mut iv = h.interval(ns(1));
    b.clock.advance(ms(1));
    for _ in 0..10_000 {
        let _ = tick(&mut iv);
    }
    let arms = b.clock.take_arms();
    assert_eq!(past(&arms), 0, "{arms:?}");
}

#[test]
fn c131_a_far_timer_costs_no_cpu_and_one_arm() {
    let mut driver = Driver::new().unwrap();
    let mut far = driver.handle().sleep(secs(3600));
    assert!(peek(&mut far).is_pending());
    let (start, cpu) = (Instant::now(), thread_cpu());
    driver.park(Some(ms(400)));
    let (waited, used) = (start.elapsed(), thread_cpu() - cpu);
    assert!(waited >= ms(390), "woke after {waited:?}");
    assert!(used < ms(5), "{used:?} of CPU for doing nothing");
    assert!(driver.handle().metrics().unwrap().arm_calls <= 1);
    assert!(peek(&mut far).is_pending());
}

#[test]
fn c018_far_timers_wake_nobody() {
    let mut driver = Driver::new().unwrap();
    let h = driver.handle();
    let mut far: Vec<Sleep> = (0..20_000).map(|i| h.sleep(secs(3600) + ms(i))).collect();
    far.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    let near = h.sleep(ms(300));
    driver.block_on(near);
    let m = h.metrics().unwrap();
    assert_eq!((m.wakeups, m.timer_wakeups, m.spurious), (1, 1, 0));
    assert_eq!(m.lateness.count(), 1);
    assert!(Duration::ZERO <= m.lateness.max());
}

#[test]
fn a_wake_for_timers_that_were_all_cancelled_happens_once() {
    // Hundreds in one slot of the wheel, cancelled when their bound had been taken. (The wheel's own test and the
    // random programs with crowded slots have the sequence that once kept a driver turning without a wait.)
    for turns in [0, 1, 29] {
        let mut b = Bench::new();
        let h = b.h();
        let mut crowd: Vec<Sleep> = (0..200).map(|i| h.sleep(secs(30) + us(i))).collect();
        let mut far = h.sleep(secs(90));
        crowd.iter_mut().chain([&mut far]).for_each(|s| assert!(peek(s).is_pending()));
        drop(crowd.remove(0));
        assert!(b.driver.next_wake() <= Some(b.t0 + secs(30) + us(1)));
        drop(crowd);
        for t in 30 - turns..30 {
            // Turns for other reasons, also within the slot that is empty now.
            b.at(secs(t));
        }
        // One park for the bound, one for the timer that is left; each waits.
        b.clock.set_auto_advance(true);
        let fired: usize = (0..3).map(|_| b.driver.park(Some(secs(90))).fired).sum();
        assert_eq!(fired, 1, "after {turns} turns, at {} ms", b.now_ms());
        assert!(peek(&mut far).is_ready());
    }
}
