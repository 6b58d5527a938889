//! The boottime and the wall clock: on clocks moved by hand, on the real ones, and in a time namespace.
#![cfg(not(loom))]

mod cases_util;

use cases_util::{counter, poll};
use slackwheel::*;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

#[test]
fn c096_a_timer_counts_suspension_or_not_as_its_clock_does() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let (_, w) = counter();
    let mut mono = h.sleep(60 * MINUTE);
    let mut boot = h.sleep_boottime_range(60 * MINUTE, 60 * MINUTE);
    assert!(poll(&mut mono, &w).is_pending());
    assert!(poll(&mut boot, &w).is_pending());
    clock.advance(30 * MINUTE);
    clock.suspend(15 * MINUTE);
    clock.advance(15 * MINUTE - MS);
    assert_eq!(driver.turn().fired, 0);
    clock.advance(MS);
    assert_eq!(driver.turn().fired, 1);
    assert!(poll(&mut boot, &w).is_ready(), "an hour with the suspension");
    assert_eq!(boot.lateness(), Some(Duration::ZERO));
    assert!(poll(&mut mono, &w).is_pending());
    clock.advance(15 * MINUTE);
    assert_eq!(driver.turn().fired, 1);
    assert!(poll(&mut mono, &w).is_ready(), "an hour without it");
}

#[test]
fn c100_wall_clock_waits_follow_suspension_and_steps() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let (_, w) = counter();
    let mut s = h.sleep_until_system(clock.system_time() + 10 * MINUTE, Duration::ZERO);
    assert!(poll(&mut s, &w).is_pending());
    clock.suspend(120 * MINUTE);
    driver.turn();
    assert!(poll(&mut s, &w).is_ready(), "due at the resume");
}

#[test]
fn every_wakeup_serves_all_clocks() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let (count, w) = counter();
    let mut a = h.sleep_range(10 * MS, 50 * MS);
    let mut b = h.sleep_boottime_range(20 * MS, 40 * MS);
    let mut c = h.sleep_until_system(clock.system_time() + 30 * MS, 30 * MS);
    assert!(poll(&mut a, &w).is_pending());
    assert!(poll(&mut b, &w).is_pending());
    assert!(poll(&mut c, &w).is_pending());
    assert_eq!(driver.next_wake(), Some(clock.now() + 40 * MS));
    clock.set_auto_advance(true);
    assert_eq!(driver.park(None).fired, 3);
    assert_eq!(count.get(), 3);
    let m = h.metrics().unwrap();
    assert_eq!((m.wakeups, m.fired, m.coalesced), (1, 3, 2));
}

#[test]
fn a_wall_clock_set_forward_fires_what_has_become_due() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let (count, w) = counter();
    let start = clock.system_time();
    let mut near = h.sleep_until_system(start + 10 * MINUTE, Duration::ZERO);
    let mut far = h.sleep_until_system(start + 90 * MINUTE, Duration::ZERO);
    assert!(poll(&mut near, &w).is_pending());
    assert!(poll(&mut far, &w).is_pending());
    // Parked, so the timer is armed; the step ends the wait.
    let setter = {
        let clock = clock.clone();
        std::thread::spawn(move || {
            std::thread::sleep(20 * MS);
            clock.set_system_time(start + 60 * MINUTE);
        })
    };
    driver.park(None);
    setter.join().unwrap();
    assert!(count.get() >= 2, "everybody is asked to look again");
    assert!(poll(&mut near, &w).is_ready());
    assert!(poll(&mut far, &w).is_pending());
    clock.advance(30 * MINUTE);
    assert_eq!(driver.turn().fired, 1);
    assert!(poll(&mut far, &w).is_ready());
}

#[test]
fn c153_a_wall_clock_set_back_makes_nothing_early_and_nothing_lost() {
    let (mut driver, clock) = ExternalDriver::manual().unwrap();
    let h = driver.handle();
    let (_, w) = counter();
    let start = clock.system_time();
    let mut s = h.sleep_until_system(start + 10 * MINUTE, Duration::ZERO);
    let mut mono = h.sleep(10 * MINUTE);
    assert!(poll(&mut s, &w).is_pending());
    assert!(poll(&mut mono, &w).is_pending());
    clock.advance(5 * MINUTE);
    driver.turn();
    clock.set_system_time(start - 60 * MINUTE);
    driver.turn();
    assert!(poll(&mut s, &w).is_pending());
    // Made after the step, due in a time that the wheel has already seen once.
    let mut fresh = h.sleep_until_system(start - 50 * MINUTE, Duration::ZERO);
    assert!(poll(&mut fresh, &w).is_pending());
    clock.advance(10 * MINUTE - MS);
    driver.turn();
    assert!(poll(&mut fresh, &w).is_pending(), "early");
    assert!(poll(&mut mono, &w).is_ready(), "the monotonic clock does not care");
    clock.advance(MS);
    assert_eq!(driver.turn().fired, 1);
    assert!(poll(&mut fresh, &w).is_ready());
    clock.advance(60 * MINUTE);
    driver.turn();
    assert!(poll(&mut s, &w).is_ready());
}

#[test]
fn a_step_back_that_no_armed_timer_told_of_is_noticed_by_the_next_turn() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let (_, w) = counter();
    let start = clock.system_time();
    // Never parked: no kernel timer is armed.
    let mut s = h.sleep_until_system(start + 100 * MINUTE, Duration::ZERO);
    assert!(poll(&mut s, &w).is_pending());
    clock.advance(50 * MINUTE);
    driver.turn();
    clock.set_system_time(start);
    driver.turn();
    let mut fresh = h.sleep_until_system(start + 20 * MINUTE, Duration::ZERO);
    assert!(poll(&mut fresh, &w).is_pending());
    clock.advance(20 * MINUTE - MS);
    driver.turn();
    assert!(poll(&mut fresh, &w).is_pending(), "early");
    clock.advance(MS);
    driver.turn();
    assert!(poll(&mut fresh, &w).is_ready());
}

#[test]
fn who_asks_is_told_that_the_clock_was_set() {
    let (mut driver, clock) = ExternalDriver::manual().unwrap();
    let h = driver.handle();
    let (count, w) = counter();
    let start = clock.system_time();
    let mut told = h.sleep_until_system(start + 10 * MINUTE, Duration::ZERO).or_clock_change();
    assert!(poll(&mut told, &w).is_pending());
    clock.set_system_time(start + MINUTE);
    driver.turn();
    assert_eq!(count.get(), 1);
    assert_eq!(poll(&mut told, &w), Poll::Ready(Err(ClockChanged::default())));
    // It may be asked again: the wait goes on from here.
    assert!(poll(&mut told, &w).is_pending());
    clock.advance(9 * MINUTE);
    driver.turn();
    assert_eq!(poll(&mut told, &w), Poll::Ready(Ok(())));
}

#[test]
fn real_clocks_through_every_kind_of_driver() {
    let program = |h: Handle| async move {
        let before = BootInstant::now();
        h.sleep_boottime_range(2 * MS, 3 * MS).await;
        assert!(before.elapsed() >= 2 * MS);
        let before = SystemTime::now();
        h.sleep_until_system(before + 2 * MS, MS).await;
        // (A clock that NTP slews cannot go backwards.)
        assert!(SystemTime::now() >= before + 2 * MS);
        h.sleep_until_system(before - MINUTE, Duration::ZERO).await;
        h.sleep_until_boottime(BootInstant::now().saturating_sub(MINUTE), Duration::ZERO).await;
    };
    // All clocks; only the monotonic one (the others are the default driver's then); the portable one.
    let builder = Driver::builder().clock(Clock::Boottime).clock(Clock::Realtime);
    for builder in [builder, Driver::builder(), Driver::builder().parker(Parker::Mio)] {
        let mut driver = builder.build().unwrap();
        let h = driver.handle();
        driver.block_on(program(h));
    }
    futures::executor::block_on(async {
        sleep_boottime(MS).await;
        sleep_boottime_range(MS, 2 * MS).await;
        sleep_until_system(SystemTime::now() + MS).await;
    });
}

#[test]
fn an_external_driver_of_several_clocks_is_one_descriptor() {
    use mio::{Events, Interest, Poll as MioPoll, Token};
    let builder = Driver::builder().clock(Clock::Boottime).clock(Clock::Realtime);
    let mut driver = builder.external().unwrap();
    let h = driver.handle();
    let mut poller = MioPoll::new().unwrap();
    poller.registry().register(&mut driver, Token(0), Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(4);
    let (_, w) = counter();
    for round in 0..3 {
        let mut sleeps: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
            Box::pin(h.sleep(2 * MS)),
            Box::pin(h.sleep_boottime_range(4 * MS, 4 * MS)),
            Box::pin(h.sleep_until_system(SystemTime::now() + 6 * MS, Duration::ZERO)),
        ];
        while !sleeps.is_empty() {
            sleeps.retain_mut(|s| poll(s, &w).is_pending());
            if !sleeps.is_empty() {
                poller.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
                assert!(!events.is_empty(), "round {round}: the descriptor stays silent");
                driver.turn();
            }
        }
    }
}

#[test]
fn total_on_the_other_clocks_too() {
    let (driver, clock) = Driver::manual();
    let h = driver.handle();
    let (_, w) = counter();
    for d in [Duration::ZERO, MS, Duration::MAX, Duration::from_secs(10_000 * 31_557_600)] {
        let due = d.is_zero();
        assert_eq!(poll(&mut h.sleep_boottime_range(d, Duration::ZERO), &w).is_ready(), due);
        let at = clock.boottime().saturating_add(d);
        assert_eq!(poll(&mut h.sleep_until_boottime(at, d), &w).is_ready(), due);
        if let Some(at) = clock.system_time().checked_add(d) {
            assert_eq!(poll(&mut h.sleep_until_system(at, d), &w).is_ready(), due);
        }
    }
    let old = SystemTime::UNIX_EPOCH - Duration::from_secs(1 << 40);
    assert!(poll(&mut h.sleep_until_system(old, Duration::ZERO), &w).is_ready());
    assert_eq!(h.metrics().unwrap().pending, 0);
}

/// LTP timerfd04 and clock_nanosleep03 as facts: in a time namespace whose clocks are 10 s (here 10 days)
/// off, waits last as long as asked. The namespace is for this process's grandchild; the machine's clock
/// is not touched.
#[cfg(target_os = "linux")]
#[test]
fn waits_last_as_long_in_a_time_namespace() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    const STAGE: &str = "SLACKWHEEL_TEST_TIMENS";
    const NAME: &str = "waits_last_as_long_in_a_time_namespace";
    const NOT_PERMITTED: i32 = 77;
    let again = |stage: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([NAME, "--exact", "--nocapture"]).env(STAGE, stage);
        command
    };
    match std::env::var(STAGE).as_deref() {
        // The children of this process are in the namespace it has just made.
        Ok("outer") => {
            let status = again("inner").status().unwrap();
            std::process::exit(status.code().unwrap_or(1));
        }
        Ok(_) => {
            let offset = Duration::from_secs(864_000);
            let now = BootInstant::now();
            let back = now.saturating_sub(offset);
            assert_eq!(now.saturating_duration_since(back), offset, "not in the namespace");
            for d in [40 * MS, 100 * MS] {
                let start = Instant::now();
                futures::executor::block_on(sleep(d));
                let mono = start.elapsed();
                let start = BootInstant::now();
                futures::executor::block_on(sleep_boottime(d));
                let boot = start.elapsed();
                let mut driver = Driver::builder().clock(Clock::Boottime).build().unwrap();
                let start = BootInstant::now();
                let h = driver.handle();
                driver.block_on(h.sleep_boottime_range(d, d));
                let own = start.elapsed();
                for waited in [mono, boot, own] {
                    assert!(waited >= d && waited <= 5 * d, "{waited:?} for {d:?}");
                }
            }
        }
        Err(_) => {
            let mut outer = again("outer");
            let enter = || {
                // SAFETY: no pointers are passed.
                if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
                    std::process::exit(NOT_PERMITTED);
                }
                std::fs::write(
                    "/proc/self/timens_offsets",
                    "monotonic 864000 0\nboottime 864000 0\n",
                )
            };
            // SAFETY: between fork and exec the closure makes two system calls through libc and std's
            // file functions, which take no lock that another thread could hold.
            unsafe { outer.pre_exec(enter) };
            let status = outer.status().unwrap();
            match status.code() {
                Some(NOT_PERMITTED) => println!("no time namespace is permitted here: not checked"),
                code => assert_eq!(code, Some(0)),
            }
        }
    }
}
