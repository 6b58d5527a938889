//! No input panics, hangs or wraps: every entry point with zero, the past, `Duration::MAX`, `max < min`,
//! ten thousand years, on the manual clock, on a real driver and through the default driver.
#![cfg(not(loom))]

use slackwheel::wheel::Wheel;
use slackwheel::*;
use std::future::{Future, pending, ready};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const YEAR: u64 = 31_557_600;

fn durations() -> Vec<Duration> {
    let mut all = vec![
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(10_000 * YEAR),
        Duration::MAX,
        Duration::MAX / 2,
        Duration::from_secs(u64::MAX),
        Duration::from_secs(i64::MAX as u64),
        Duration::from_secs(i64::MAX as u64 + 1),
        Duration::from_millis(u64::MAX),
        Duration::from_nanos(u64::MAX),
        Duration::from_nanos(u64::MAX - 1),
    ];
    all.extend((0..64).map(|bits| Duration::from_nanos(1 << bits)));
    all
}

fn instants(now: Instant) -> Vec<Instant> {
    let mut all = vec![now];
    for d in durations() {
        all.extend(now.checked_add(d));
        all.extend(now.checked_sub(d));
    }
    all
}

/// A poll that must return; ready exactly when `due`.
fn once<F: Future>(future: F, due: Option<bool>, what: &str) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    let mut polled = future.as_mut().poll(&mut cx);
    if polled.is_pending() {
        // The rule of 128 may have asked for another poll.
        polled = future.as_mut().poll(&mut cx);
    }
    if let Some(due) = due {
        assert_eq!(polled.is_ready(), due, "{what}");
    }
}

fn every_way_in(h: Handle, exact: bool) {
    let due = |d: Duration| exact.then_some(d.is_zero());
    for d in durations() {
        once(h.sleep(d), due(d), &format!("sleep {d:?}"));
        once(h.timeout(d, pending::<()>()), due(d), &format!("timeout {d:?}"));
        once(h.timeout(d, ready(1)), Some(true), "timeout of a ready future");
        once(h.interval(d).tick(), Some(true), "first tick");
        let mut every = h.interval(d).leeway(Duration::MAX).missed_ticks(MissedTicks::Skip);
        every.reset_after(d);
        every.reset();
        every.reset_at(h.now());
        every.reset_immediately();
        once(every.tick(), Some(true), "tick at once");
        assert_eq!(h.try_interval(d).is_err(), d.is_zero());
        for e in durations() {
            // With `max < min` as with every other pair, `min` alone decides what is due.
            once(h.sleep_range(d, e), due(d), &format!("sleep_range {d:?} {e:?}"));
            once(h.timeout_range(d, e, pending::<()>()), due(d), "timeout_range");
            let mut s = h.sleep(d);
            once(&mut s, None, "before a reset");
            s.reset_range(e, d);
            once(&mut s, due(e), &format!("reset_range {e:?} {d:?}"));
            s.reset_never();
            once(&mut s, Some(false), "never");
        }
    }
    let now = h.now();
    for i in instants(now) {
        let due = if exact { Some(i <= now) } else { None };
        once(h.sleep_until(i), due, &format!("sleep_until {i:?}"));
        once(h.timeout_at(i, pending::<()>()), due, "timeout_at");
        once(h.interval_at(i, Duration::MAX).tick(), due, "interval_at");
        let mut s = h.never();
        s.reset(i);
        once(&mut s, due, "reset");
        let _ = (s.deadline(), s.latest(), s.lateness(), s.overrun(), s.is_orphaned());
        for d in durations() {
            once(h.sleep_window(Window::with_slack(i, d)), due, "sleep_window");
        }
    }
    assert_eq!(h.metrics().unwrap().pending, 0, "everything was dropped");
}

/// Runs `f` on a thread, and fails when it takes longer than a minute.
fn in_time(f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    if wait.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("hangs");
    }
    thread.join().unwrap();
}

#[test]
fn on_the_manual_clock() {
    in_time(|| {
        let (driver, _clock) = Driver::manual();
        every_way_in(driver.handle(), true);
    });
}

#[test]
fn on_the_manual_clock_at_its_end() {
    in_time(|| {
        let (mut driver, clock) = Driver::manual();
        let h = driver.handle();
        let mut year = h.sleep(Duration::from_secs(YEAR));
        let mut never = h.sleep(Duration::MAX);
        once(&mut year, Some(false), "a year");
        once(&mut never, Some(false), "never");
        let before = clock.now();
        clock.advance(Duration::MAX);
        assert_eq!(driver.turn().fired, 1);
        assert!(clock.now() > before);
        let end = clock.now();
        clock.advance(Duration::from_millis(1));
        assert!(clock.now() >= end, "the clock never wraps");
        once(&mut year, Some(true), "after a year");
        once(&mut never, Some(false), "past the clock's end");
    });
}

#[test]
fn on_real_drivers() {
    in_time(|| {
        for parker in [Parker::Auto, Parker::Mio] {
            let mut driver = Driver::builder().parker(parker).build().unwrap();
            every_way_in(driver.handle(), false);
            for d in durations().into_iter().filter(|d| *d < Duration::from_millis(2)) {
                driver.block_on(driver.handle().sleep(d));
                driver.block_on(driver.handle().sleep_range(d, Duration::ZERO));
                driver.park(Some(d));
            }
            driver.block_on(async { sleep_until(Instant::now() - Duration::from_secs(1)).await });
        }
        let mut external = Driver::builder().external().unwrap();
        every_way_in(external.handle(), false);
        external.turn();
    });
}

#[test]
fn through_the_default_driver() {
    in_time(|| {
        every_way_in(Handle::try_default().unwrap(), false);
        futures::executor::block_on(async {
            sleep(Duration::ZERO).await;
            sleep_range(Duration::ZERO, Duration::ZERO).await;
            sleep_range(Duration::from_micros(10), Duration::ZERO).await;
            assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
            for _ in 0..1000 {
                sleep(Duration::from_nanos(1)).await;
            }
        });
    });
}

#[test]
fn an_unreachable_latest_may_complete_at_any_wakeup() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let mut s = h.sleep_range(Duration::from_millis(1), Duration::MAX);
    once(&mut s, Some(false), "not yet");
    assert_eq!(driver.next_wake(), None, "it forces no wakeup");
    clock.advance(Duration::from_millis(1));
    driver.turn();
    once(&mut s, Some(true), "eligible at a wakeup");
}

#[test]
fn the_wheel_takes_every_number() {
    let edges = || (0..64).flat_map(|b| [(1u64 << b) - 1, 1 << b, (1 << b) + 1]).chain([u64::MAX]);
    let mut wheel = Wheel::new();
    for e in edges() {
        for l in edges() {
            let key = wheel.insert(e, l, ());
            assert_eq!(wheel.window(key), Some((e, l.max(e))));
            assert!(wheel.reset(key, l, e));
            wheel.cancel(key);
        }
    }
    for now in edges() {
        wheel.insert(now, 0, ());
        let _ = wheel.advance(now, 0, |_| ());
        let _ = (wheel.next_wake(), wheel.next_deadline(), wheel.first_due());
    }
    let _ = wheel.advance(u64::MAX, usize::MAX, |_| ());
    assert!(wheel.is_empty());
}
