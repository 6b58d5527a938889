//! What a process lives through: forks, execs, threads that come and go, destructors of thread-locals,
//! clocks and kernel timers that misbehave.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::sync::blocking::Condvar;
use slackwheel::thread::{SlackGuard, set_timer_slack, sleep_range};
use slackwheel::{Driver, ExternalDriver, Handle, Sleep};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn poll_once(sleep: &mut Sleep) -> bool {
    Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Whether the sleep ends on some executor, and not early.
fn lasts(d: Duration) -> bool {
    let start = Instant::now();
    futures::executor::block_on(slackwheel::sleep(d));
    start.elapsed() >= d
}

#[test]
fn c102_timers_work_in_a_forked_child() {
    assert!(lasts(ms(1)), "the parent's default driver runs");
    let mut driver = Driver::new().unwrap();
    let handle = driver.handle();
    // Pending in the parent: one with its default driver, one with a driver of its own.
    let mut with_default = slackwheel::sleep(ms(30));
    let mut with_own = handle.sleep(ms(30));
    assert!(!poll_once(&mut with_default) && !poll_once(&mut with_own));
    let code = in_child(|| {
        if !lasts(ms(20)) {
            return 1;
        }
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let wait = condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(20), us(1));
        if !wait.is_ok_and(|(_, outcome)| outcome.is_timed_out()) {
            return 2;
        }
        // The parent's driver is over here; what was pending moves to the child's default driver.
        if !handle.is_shut_down() || driver.park(Some(ms(1))).fired != 0 {
            return 3;
        }
        futures::executor::block_on(async { futures::join!(&mut with_default, &mut with_own) });
        driver.block_on(slackwheel::sleep(ms(5)));
        // And the child may fork again.
        u8::try_from(in_child(|| if lasts(ms(5)) { 0 } else { 9 })).unwrap_or(8)
    });
    assert_eq!(code, 0);
    assert!(!handle.is_shut_down(), "the parent goes on");
    driver.block_on(async { futures::join!(with_default, with_own) });
    assert!(lasts(ms(1)));
}

#[test]
fn slack_is_kept_over_fork_and_exec() {
    thread::spawn(|| {
        set_slack(123_000);
        assert_eq!(in_child(|| u8::from(slack() == 123_000)), 1);
        let guard = SlackGuard::new(ms(2));
        assert_eq!(in_child(|| u8::from(slack() == 2_000_000)), 1);
        drop(guard);
        let output = Command::new("cat").arg("/proc/self/timerslack_ns").output().unwrap().stdout;
        let shown = String::from_utf8_lossy(&output).trim().to_owned();
        assert!(shown.is_empty() || shown == "123000", "{shown}");
    })
    .join()
    .unwrap();
}

/// Uses everything while the thread's other locals are being destroyed.
struct AtExit(Handle, mpsc::Sender<bool>);

impl Drop for AtExit {
    fn drop(&mut self) {
        let mut own = self.0.sleep(ms(1));
        let mut default = slackwheel::sleep(ms(1));
        let pending = !poll_once(&mut own) & !poll_once(&mut default);
        drop((own, default));
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let wait = condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(1), us(1));
        let timed_out = wait.is_ok_and(|(_, outcome)| outcome.is_timed_out());
        SlackGuard::with(us(1), || sleep_range(us(10), us(20)));
        let entered = self.0.enter();
        drop(entered);
        self.1.send(pending && timed_out).unwrap();
    }
}

thread_local! {
    static AT_EXIT: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

#[test]
fn c106_timers_work_in_destructors_of_thread_locals() {
    let driver = Driver::new().unwrap();
    let handle = driver.handle();
    let (send, receive) = mpsc::channel();
    for i in 0..8 {
        let send = send.clone();
        thread::spawn(move || {
            let register = || AT_EXIT.with(|slot| *slot.borrow_mut() = Some(AtExit(handle, send)));
            let touch = || {
                let _entered = handle.enter();
                poll_once(&mut handle.sleep(ms(1)));
                poll_once(&mut slackwheel::sleep(ms(1)));
            };
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
    assert_eq!(handle.metrics().unwrap().pending, 0);
}

#[test]
fn c108_a_thousand_short_threads_leave_no_timer_behind() {
    static MUTEX: Mutex<()> = Mutex::new(());
    static CONDVAR: Condvar = Condvar::new();
    let driver = Driver::new().unwrap();
    let handle = driver.handle();
    // What a thread leaves pending still fires: it belongs to the driver.
    let (left, right) = (handle.sleep_range(ms(400), ms(500)), handle.sleep(ms(401)));
    let orphans = thread::spawn(move || {
        let (mut left, mut right) = (left, right);
        assert!(!poll_once(&mut left) && !poll_once(&mut right));
        (left, right)
    })
    .join()
    .unwrap();
    for batch in 0..100u64 {
        let threads: Vec<_> = (0..10u64)
            .map(|i| {
                thread::spawn(move || {
                    let guard = MUTEX.lock().unwrap_or_else(|e| e.into_inner());
                    drop(CONDVAR.wait_range(&MUTEX, guard, us(100), us(300)));
                    let mut sleep = handle.sleep(Duration::from_secs(1 + i));
                    poll_once(&mut sleep);
                    set_timer_slack(us(20 + i)).unwrap();
                    if (batch + i) % 97 == 0 {
                        std::panic::resume_unwind(Box::new("some end by a panic"));
                    }
                })
            })
            .collect();
        let panics = threads.into_iter().filter_map(|t| t.join().err()).count() as u64;
        assert_eq!(panics, (0..10).filter(|i| (batch + i) % 97 == 0).count() as u64);
    }
    assert_eq!(CONDVAR.waiting(), 0);
    assert_eq!(handle.metrics().unwrap().pending, 2);
    let mut driver = driver;
    driver.block_on(async { futures::join!(orphans.0, orphans.1) });
    assert_eq!(handle.metrics().unwrap().pending, 0);
}

#[test]
fn c094_a_clock_that_goes_back_and_forth_fires_once_and_not_early() {
    let (mut driver, clock) = Driver::manual();
    let start = driver.now();
    let mut sleep = driver.handle().sleep(us(5));
    let mut interval = driver.handle().interval(us(2));
    assert!(!poll_once(&mut sleep));
    let mut cx = Context::from_waker(Waker::noop());
    let mut fired = 0;
    for micros in [0, 1, 0, 1, 0, 4, 3, 4, 5, 3, 6, 2] {
        clock.set(start + us(micros));
        fired += driver.turn().fired;
        let _ = std::pin::pin!(interval.tick()).poll(&mut cx);
        if poll_once(&mut sleep) {
            assert!(micros >= 5 || sleep.is_elapsed());
        } else {
            assert!(micros < 5);
        }
    }
    assert!(sleep.is_elapsed() && fired >= 1);
    assert!(sleep.lateness().unwrap() < us(2));
}

#[test]
fn c098_due_timers_fire_by_the_clock_and_not_by_what_the_descriptor_says() {
    // This driver's descriptor never becomes readable: each read of it says "not yet".
    let (mut driver, clock) = ExternalDriver::manual().unwrap();
    for round in 1..=5 {
        let mut due = driver.handle().sleep(ms(1));
        let mut far = driver.handle().sleep(Duration::from_secs(3600));
        assert!(!poll_once(&mut due) && !poll_once(&mut far));
        assert_eq!(driver.turn().fired, 0, "round {round}");
        clock.advance(ms(1));
        assert_eq!(driver.turn().fired, 1);
        assert!(poll_once(&mut due) && !poll_once(&mut far));
    }
    // A real one whose expiry was taken by somebody else: the clock decides.
    let mut driver = Driver::builder().external().unwrap();
    let mut due = driver.handle().sleep(us(100));
    assert!(!poll_once(&mut due));
    thread::sleep(ms(2));
    assert_eq!(driver.turn().fired, 1);
    assert_eq!(driver.turn().fired, 0, "a read without an expiry does not block");
    assert!(poll_once(&mut due));
}
