//! Once warm, creating, polling and dropping a timer allocates nothing and calls the kernel never; nor does
//! a reset, a turn or a park that has nothing to do.
#![cfg(not(loom))]

use slackwheel::{Driver, LocalDriver, Sleep};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

struct Counted;

thread_local! {
    /// By thread: the test harness and other tests allocate as they like.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread at its end has no locals any more.
    let _ = CALLS.try_with(|c| c.set(c.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

struct Nop;

impl Wake for Nop {
    fn wake(self: Arc<Self>) {}
}

fn waker() -> Waker {
    Waker::from(Arc::new(Nop))
}

/// Times all over the wheel, always the same.
fn ahead(i: u64) -> Duration {
    let scattered = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    Duration::from_nanos(2_000_000_000 + scattered % 58_000_000_000)
}

fn pending<F: Future<Output = ()> + Unpin>(mut sleep: F, waker: &Waker) -> F {
    assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(waker)).is_pending());
    sleep
}

const WARM: u64 = 20_000;
const MANY: u64 = 200_000;

#[test]
fn create_poll_drop_on_the_thread_that_drives() {
    let mut driver = Driver::new().unwrap();
    let handle = driver.handle();
    let waker = waker();
    let churn = |n: u64| (0..n).for_each(|i| drop(pending(handle.sleep(ahead(i)), &waker)));
    churn(WARM);
    assert_eq!(allocations(|| churn(MANY)), 0);
    let idle = || {
        for _ in 0..1000 {
            let _ = driver.turn();
            let _ = driver.next_wake();
        }
    };
    assert_eq!(allocations(idle), 0);
    let m = handle.metrics().unwrap();
    assert_eq!((m.arm_calls, m.kick_calls, m.memory_hand_backs), (0, 0, 0));
}

#[test]
fn create_poll_drop_beside_a_parked_driver() {
    let mut driver = Driver::new().unwrap();
    let handle = driver.handle();
    let waker = waker();
    // What the driver is armed for: earlier than all that follow.
    let mut first = pending(handle.sleep(Duration::from_millis(1500)), &waker);
    let parked = std::thread::spawn(move || {
        while !driver.park(None).notified {}
        driver
    });
    // Parked, or about to be: it has armed for `first` once it is.
    while handle.metrics().unwrap().arm_calls == 0 {
        std::thread::yield_now();
    }
    let churn = |n: u64| (0..n).for_each(|i| drop(pending(handle.sleep(ahead(i)), &waker)));
    churn(WARM);
    let before = handle.metrics().unwrap();
    assert_eq!(allocations(|| churn(MANY / 10)), 0);
    let after = handle.metrics().unwrap();
    assert_eq!(after.arm_calls, before.arm_calls);
    assert_eq!(after.kick_calls, before.kick_calls);
    first.reset_range(Duration::from_secs(9), Duration::from_secs(9));
    handle.unpark();
    drop(parked.join().unwrap());
}

#[test]
fn resets_and_timers_that_fire() {
    let (mut driver, clock) = Driver::manual();
    let handle = driver.handle();
    let waker = waker();
    let mut sleeps: Vec<Sleep> =
        (0..1000).map(|i| pending(handle.sleep(ahead(i)), &waker)).collect();
    let mut round = |n: u64| {
        for i in 0..n {
            for sleep in &mut sleeps {
                let d = ahead(i);
                sleep.reset_range(d, d + Duration::from_secs(1));
                if sleep.is_elapsed() {
                    unreachable!("it was just reset");
                }
            }
            clock.advance(Duration::from_secs(70));
            while driver.turn().more {}
            for sleep in &mut sleeps {
                let mut cx = Context::from_waker(&waker);
                assert!(Pin::new(&mut *sleep).poll(&mut cx).is_ready());
                sleep.reset_range(ahead(i), ahead(i));
                assert!(Pin::new(sleep).poll(&mut cx).is_pending());
            }
        }
    };
    round(100);
    assert_eq!(allocations(|| round(100)), 0);
}

#[test]
fn create_poll_drop_on_a_local_driver() {
    let mut driver = LocalDriver::new().unwrap();
    let handle = driver.handle();
    let waker = waker();
    let churn = |n: u64| (0..n).for_each(|i| drop(pending(handle.sleep(ahead(i)), &waker)));
    churn(WARM);
    assert_eq!(allocations(|| churn(MANY)), 0);
    let idle = || {
        for _ in 0..1000 {
            let _ = driver.turn();
            let _ = driver.next_wake();
        }
    };
    assert_eq!(allocations(idle), 0);
    assert_eq!(handle.metrics().arm_calls, 0);
}
