//! The contract on a driver that belongs to one thread: manual clock for what is exact, the real one for
//! what only it can show.
#![cfg(not(loom))]

use futures::FutureExt;
use slackwheel::{LocalDriver, LocalHandle, LocalSleep, Window};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (count.clone(), count.into())
}

fn poll(sleep: &mut LocalSleep, waker: &Waker) -> Poll<()> {
    Pin::new(sleep).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_window_is_kept_to_the_nanosecond() {
    let (mut driver, clock) = LocalDriver::manual();
    let h = driver.handle();
    let (count, waker) = counter();
    let mut s = h.sleep_range(ms(10), ms(15));
    assert!(poll(&mut s, &waker).is_pending());
    assert_eq!(driver.next_wake(), Some(s.latest()));
    assert_eq!(driver.next_deadline(), Some(s.deadline()));
    clock.advance(ms(10) - Duration::from_nanos(1));
    assert_eq!(driver.turn().fired, 0);
    assert!(poll(&mut s, &waker).is_pending(), "early");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(driver.turn().fired, 1);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll(&mut s, &waker).is_ready());
    assert!(poll(&mut s, &waker).is_ready(), "ready again");
    assert_eq!(s.lateness(), Some(Duration::ZERO));
    assert_eq!(driver.next_wake(), None);
}

#[test]
fn one_wakeup_serves_every_window_that_is_open() {
    let (mut driver, clock) = LocalDriver::manual();
    clock.set_auto_advance(true);
    let h = driver.handle();
    let (_, waker) = counter();
    let mut all: Vec<_> = (0..100).map(|i| h.sleep_range(ms(100 + i), ms(200 + i))).collect();
    for s in &mut all {
        assert!(poll(s, &waker).is_pending());
    }
    assert_eq!(driver.park(None).fired, 100);
    let m = h.metrics();
    assert_eq!((m.wakeups, m.timer_wakeups, m.coalesced, m.spurious), (1, 1, 99, 0));
    assert_eq!((m.registered, m.fired, m.pending, m.arm_calls), (100, 100, 0, 1));
    assert_eq!(m.lateness.max(), ms(100));
}

#[test]
fn a_drop_frees_its_timer_and_a_reset_keeps_its_waker() {
    let (mut driver, clock) = LocalDriver::manual();
    let h = driver.handle();
    let (count, waker) = counter();
    let mut kept = h.sleep(ms(5));
    let mut dropped = h.sleep(ms(5));
    assert!(poll(&mut kept, &waker).is_pending());
    assert!(poll(&mut dropped, &waker).is_pending());
    drop(dropped);
    assert_eq!(h.metrics().pending, 1);
    for d in [50, 20, 30] {
        kept.reset_range(ms(d), ms(d));
    }
    clock.advance(ms(29));
    assert_eq!(driver.turn().fired, 0);
    clock.advance(ms(1));
    assert_eq!(driver.turn().fired, 1);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll(&mut kept, &waker).is_ready());
    kept.reset(driver.now() + ms(1));
    assert!(poll(&mut kept, &waker).is_pending());
    kept.reset_window(Window::at(driver.now()));
    assert!(poll(&mut kept, &waker).is_ready());
}

#[test]
fn the_newest_waker_is_called() {
    let (mut driver, clock) = LocalDriver::manual();
    let ((old, old_waker), (new, new_waker)) = (counter(), counter());
    let mut s = driver.handle().sleep(ms(1));
    assert!(poll(&mut s, &old_waker).is_pending());
    assert!(poll(&mut s, &new_waker).is_pending());
    clock.advance(ms(1));
    let _ = driver.turn();
    assert_eq!((old.0.load(Ordering::SeqCst), new.0.load(Ordering::SeqCst)), (0, 1));
}

#[test]
fn no_input_panics_or_hangs() {
    let (mut driver, clock) = LocalDriver::manual();
    clock.set_auto_advance(true);
    let h = driver.handle();
    let (_, waker) = counter();
    driver.block_on(h.sleep(Duration::ZERO));
    driver.block_on(h.sleep_until(clock.now() - ms(1)));
    driver.block_on(h.sleep_range(ms(3), ms(1)));
    let mut never = h.sleep(Duration::MAX);
    assert!(poll(&mut never, &waker).is_pending());
    assert_eq!(driver.next_wake(), None);
    never.reset_range(ms(1), Duration::MAX);
    assert!(poll(&mut never, &waker).is_pending());
    assert_eq!(driver.next_wake(), None, "nothing forces a turn");
    clock.advance(ms(1));
    assert_eq!(driver.turn().fired, 1);
}

#[test]
fn a_loop_of_zero_sleeps_lets_others_run() {
    let (driver, _clock) = LocalDriver::manual();
    let (count, waker) = counter();
    let ready = (0..1000)
        .take_while(|_| poll(&mut driver.handle().sleep(Duration::ZERO), &waker).is_ready())
        .count();
    assert_eq!((ready, count.0.load(Ordering::SeqCst)), (128, 1));
}

#[test]
fn timeouts_end_what_takes_too_long() {
    let (mut driver, clock) = LocalDriver::manual();
    clock.set_auto_advance(true);
    let h = driver.handle();
    assert_eq!(driver.block_on(h.timeout(ms(1), async { 7 })), Ok(7));
    assert!(driver.block_on(h.timeout(ms(1), std::future::pending::<()>())).is_err());
    assert!(driver.block_on(h.timeout_range(ms(1), ms(2), h.sleep(ms(9)))).is_err());
    assert_eq!(driver.block_on(h.timeout(ms(9), h.sleep(ms(1)))), Ok(()));
}

/// A waker that does to the driver what a waker should not.
struct Meddler(Rc<RefCell<Vec<LocalSleep>>>, LocalHandle, Cell<usize>);

fn meddling_waker(m: &Rc<Meddler>) -> Waker {
    use std::task::{RawWaker, RawWakerVTable};
    fn meddle(p: *const ()) {
        // SAFETY: the pointer is to the `Meddler` of the test below, which outlives the waker and stays
        // on this thread.
        let m = unsafe { &*p.cast::<Meddler>() };
        m.2.set(m.2.get() + 1);
        m.0.borrow_mut().pop();
        let _ = m.1.sleep(ms(1)).now_or_never();
    }
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |p| {
            meddle(p);
            RawWaker::new(p, &TABLE)
        },
        meddle,
        meddle,
        meddle,
    );
    // SAFETY: the table's functions take the pointer they are given here.
    unsafe { Waker::from_raw(RawWaker::new(Rc::as_ptr(m).cast(), &TABLE)) }
}

#[test]
fn wakers_may_use_the_driver_they_are_called_by() {
    let (mut driver, clock) = LocalDriver::manual();
    let h = driver.handle();
    let sleeps = Rc::new(RefCell::new(Vec::new()));
    let (_, plain) = counter();
    for _ in 0..300 {
        let mut s = h.sleep(ms(1));
        assert!(poll(&mut s, &plain).is_pending());
        sleeps.borrow_mut().push(s);
    }
    let meddler = Rc::new(Meddler(sleeps.clone(), h.clone(), Cell::new(0)));
    let waker = meddling_waker(&meddler);
    let mut mine: Vec<_> = (0..300).map(|_| h.sleep(ms(1))).collect();
    for s in &mut mine {
        assert!(poll(s, &waker).is_pending());
        assert!(poll(s, &plain).is_pending());
        assert!(poll(s, &waker).is_pending());
    }
    clock.advance(ms(1));
    while driver.turn().more {}
    assert!(meddler.2.get() >= 900, "{}", meddler.2.get());
    assert!(mine.iter_mut().all(|s| poll(s, &plain).is_ready()));
}

#[test]
fn a_pending_sleep_survives_its_driver() {
    let (count, waker) = counter();
    let driver = LocalDriver::new().unwrap();
    let h = driver.handle();
    let (mut s, mut untouched) = (h.sleep(ms(30)), h.sleep(ms(1)));
    let start = Instant::now();
    assert!(poll(&mut s, &waker).is_pending());
    drop(driver);
    assert!(h.is_shut_down());
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "woken once");
    assert!(poll(&mut s, &waker).is_pending());
    futures::executor::block_on(&mut s);
    assert!(start.elapsed() >= ms(30));
    assert!(s.is_elapsed() && s.lateness().is_some());
    futures::executor::block_on(&mut untouched);

    let (driver, _clock) = LocalDriver::manual();
    let mut s = driver.handle().sleep(ms(30));
    assert!(poll(&mut s, &waker).is_pending());
    drop(driver);
    assert!(s.is_orphaned());
    assert!(poll(&mut s, &waker).is_pending());
    s.reset_range(ms(0), ms(0));
    assert!(s.is_orphaned());
}

#[test]
fn block_on_is_woken_from_other_threads() {
    let mut driver = LocalDriver::new().unwrap();
    let (tx, rx) = futures::channel::oneshot::channel();
    let helper = std::thread::spawn(move || {
        std::thread::sleep(ms(20));
        tx.send(7).unwrap();
    });
    let h = driver.handle();
    let got = driver.block_on(h.timeout(Duration::from_secs(30), rx));
    assert_eq!(got, Ok(Ok(7)));
    helper.join().unwrap();
    assert_eq!(h.metrics().pending, 0);
}

#[test]
fn real_sleeps_are_never_early() {
    let mut driver = LocalDriver::new().unwrap();
    let h = driver.handle();
    driver.block_on(async {
        for us in [0, 1, 50, 100, 500, 1500] {
            let d = Duration::from_micros(us);
            let start = Instant::now();
            h.sleep(d).await;
            assert!(start.elapsed() >= d);
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn the_descriptor_is_readable_when_a_turn_is_due() {
    use std::os::fd::AsRawFd;
    let mut driver = LocalDriver::new().unwrap();
    let fd = driver.descriptor().unwrap().as_raw_fd();
    let readable = |timeout: i32| {
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut p, 1, timeout) == 1 }
    };
    let (_, waker) = counter();
    let mut s = driver.handle().sleep(ms(5));
    assert!(poll(&mut s, &waker).is_pending());
    assert!(driver.arm());
    assert!(!readable(0));
    assert!(readable(10_000));
    assert_eq!(driver.turn().fired, 1);
    assert!(!readable(0), "the expiry was taken");
    assert!(driver.arm());
    let calls = driver.handle().metrics().arm_calls;
    for _ in 0..100 {
        assert!(driver.arm());
    }
    assert_eq!(driver.handle().metrics().arm_calls, calls, "nothing changed, nothing armed");
}

#[test]
fn many_sleeps_in_one_task() {
    let mut driver = LocalDriver::new().unwrap();
    let h = driver.handle();
    let mut sleeps: Vec<_> =
        (0..2000u64).map(|i| h.sleep_range(Duration::from_micros(i % 700), ms(5))).collect();
    driver.block_on(poll_fn(|cx| {
        sleeps.retain_mut(|s| s.poll_unpin(cx).is_pending());
        if sleeps.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert_eq!(h.metrics().pending, 0);
}

#[test]
fn what_a_driver_has_done_can_be_asked_after_its_end() {
    let (mut driver, clock) = LocalDriver::manual();
    let timers = driver.handle();
    let (_, waker) = counter();
    let mut near = timers.sleep(ms(1));
    let mut far = timers.sleep(ms(100));
    assert!(poll(&mut near, &waker).is_pending());
    assert!(poll(&mut far, &waker).is_pending());
    clock.advance(ms(2));
    assert_eq!(driver.turn().fired, 1);
    drop(driver);
    let m = timers.metrics();
    assert_eq!((m.registered, m.fired, m.pending), (2, 1, 0));
}
