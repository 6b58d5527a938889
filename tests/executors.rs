//! The same program on every executor at hand: the futures need no runtime of their own.
#![cfg(not(loom))]

use slackwheel::{Driver, interval, sleep, sleep_range, timeout};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

async fn program() {
    let start = Instant::now();
    let mut s = Box::pin(sleep_range(2 * MS, 4 * MS));
    s.as_mut().await;
    assert!(start.elapsed() >= 2 * MS, "never early");
    assert!(timeout(MS, std::future::pending::<()>()).await.is_err());
    assert_eq!(timeout(1000 * MS, async { 5 }).await, Ok(5));
    let mut every = interval(MS).leeway(MS / 2);
    let first = every.tick().await;
    for k in 1..5 {
        assert_eq!(every.tick().await, first + k * MS);
        assert!(Instant::now() >= first + k * MS);
    }
    futures::future::join_all((0..50).map(|i| sleep(i * MS / 10))).await;
}

#[test]
fn tokio_current_thread() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(program());
}

#[test]
fn tokio_multi_thread() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(program())).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn smol_executor() {
    let executor = async_executor::Executor::new();
    let tasks: Vec<_> = (0..10).map(|_| executor.spawn(program())).collect();
    futures::executor::block_on(executor.run(async {
        for task in tasks {
            task.await;
        }
    }));
}

#[test]
fn futures_executor() {
    futures::executor::block_on(program());
    let mut pool = futures::executor::LocalPool::new();
    pool.run_until(program());
}

#[test]
fn a_bare_block_on() {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut program: Pin<Box<dyn Future<Output = ()>>> = Box::pin(program());
    while program.as_mut().poll(&mut cx).is_pending() {
        thread::park();
    }
}

#[test]
fn a_driver_of_its_own_takes_no_thread() {
    let mut driver = Driver::new().unwrap();
    driver.block_on(program());
    let m = driver.handle().metrics().unwrap();
    assert!(m.registered > 50, "the timers were the driver's own: {m:?}");
    assert_eq!(m.pending, 0);
}

#[test]
fn timers_move_between_threads() {
    let mut sleeps: Vec<_> = (1..100).map(|i| sleep(i * MS / 10)).collect();
    let start = Instant::now();
    let handles: Vec<_> = sleeps
        .drain(..)
        .map(|mut s| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let _ = Pin::new(&mut s).poll(&mut cx);
            s
        })
        .collect();
    thread::spawn(move || {
        for s in handles {
            let deadline = s.deadline();
            futures::executor::block_on(s);
            assert!(Instant::now() >= deadline);
        }
    })
    .join()
    .unwrap();
    assert!(start.elapsed() >= 99 * MS / 10);
}
