//! The process-wide default slack: a test binary of its own, since it acts on every plain sleep.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::Driver;
use slackwheel::thread as slack_thread;
use slackwheel::tunables::{SlackRule, default_slack};
use std::future::Future;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

const ZERO: Duration = Duration::ZERO;

/// One test turns the dial at a time.
static DIAL: Mutex<()> = Mutex::new(());

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn plain_sleeps_have_the_default_slack_once_it_is_set() {
    let _dial = DIAL.lock();
    let (send, receive) = mpsc::channel();
    let sleeper = |d: Duration| {
        let send = send.clone();
        let thread = thread::spawn(move || {
            send.send(tid()).unwrap();
            slack_thread::sleep(d);
        });
        let tid = receive.recv().unwrap();
        await_syscall(tid, libc::SYS_clock_nanosleep);
        let ns = slack_of(tid);
        thread.join().unwrap();
        ns
    };
    assert_eq!(default_slack().get(), SlackRule::EXACT);
    assert!(sleeper(ms(100)).is_none_or(|ns| ns == 1));
    default_slack().set(SlackRule::relative(20, ms(50)));
    assert!(sleeper(ms(100)).is_none_or(|ns| ns == 2_000_000));
    default_slack().set(SlackRule::fixed(ms(3)));
    assert!(sleeper(ms(100)).is_none_or(|ns| ns == 3_000_000));
    // The futures' plain sleeps follow the same rule; ranges do not.
    let (driver, _clock) = Driver::manual();
    let handle = driver.handle();
    let slack_of = |s: slackwheel::Sleep| s.latest() - s.deadline();
    assert_eq!(slack_of(handle.sleep(ms(5))), ms(3));
    assert_eq!(slack_of(handle.sleep_until(handle.now() + ms(5))), ms(3));
    assert_eq!(slack_of(handle.sleep_range(ms(5), ms(6))), ms(1));
    default_slack().set(SlackRule::relative(100, ms(50)));
    assert_eq!(slack_of(handle.sleep(ms(50))), ms(5));
    assert_eq!(slack_of(handle.sleep_until(handle.now() + ms(50))), ms(5));
    assert_eq!(slack_of(handle.sleep(Duration::MAX)), ZERO);
    default_slack().set(SlackRule::EXACT);
    assert_eq!(slack_of(handle.sleep(ms(5))), ZERO);
}

#[test]
fn c169_plain_sleeps_fire_at_their_tick_and_only_ranges_move() {
    let _dial = DIAL.lock();
    // The default is readable, and it is none.
    assert_eq!(default_slack().get(), SlackRule::EXACT);
    let (mut driver, clock) = Driver::manual();
    let handle = driver.handle();
    let mut seed = 9u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut pending = Vec::new();
    for i in 0..1200 {
        let d = ms(1 + random(1000));
        let mut sleep = if i < 1000 { handle.sleep(d) } else { handle.sleep_range(d, d + ms(100)) };
        assert!(std::pin::Pin::new(&mut sleep).poll(&mut cx).is_pending());
        pending.push((i < 1000, sleep));
    }
    while let Some(next) = driver.next_wake_exact() {
        clock.set(next);
        let _ = driver.turn();
        pending.retain_mut(|(plain, sleep)| {
            if std::pin::Pin::new(&mut *sleep).poll(&mut cx).is_pending() {
                return true;
            }
            let late = sleep.lateness().unwrap();
            assert!(late <= if *plain { ZERO } else { ms(100) }, "{late:?}");
            false
        });
    }
    assert!(pending.is_empty());
}
