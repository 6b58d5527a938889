//! The async condvar: the rules of its blocking sibling on a clock moved by hand, cancel safety, and both
//! kinds of mutex (features `async-lock` and `tokio`).
#![cfg(all(feature = "async-lock", feature = "tokio"))]

use slackwheel::sync::{CancelToken, Condvar, WaitOutcome};
use slackwheel::{Driver, ManualClock, Window};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const ZERO: Duration = Duration::ZERO;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future polled by hand, with a count of its wakes.
struct Task<F> {
    future: Pin<Box<F>>,
    calls: Arc<Calls>,
}

impl<F: Future> Task<F> {
    fn new(future: F) -> Self {
        Task { future: Box::pin(future), calls: Arc::default() }
    }
    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.calls.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
    fn calls(&self) -> usize {
        self.calls.0.load(Ordering::Relaxed)
    }
    fn ready(&mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the task is still waiting"),
        }
    }
}

fn manual() -> (Driver, ManualClock) {
    Driver::manual()
}

/// The bodies that run for both kinds of mutex.
macro_rules! for_mutex {
    ($name:ident, $mutex:path) => {
        mod $name {
            use super::*;
            use $mutex as Mutex;

            #[test]
            fn a_wait_times_out_at_its_deadline_and_not_before() {
                let (mut driver, clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(7), Condvar::new());
                let mut wait =
                    Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(5), us(100)));
                assert!(wait.poll().is_pending());
                assert!(mutex.try_lock().is_ok_or_some(), "the mutex is free meanwhile");
                assert_eq!(driver.next_wake_exact(), Some(driver.now() + ms(5) + us(100)));
                clock.advance(ms(5) - Duration::from_nanos(1));
                let _ = driver.turn();
                assert!(wait.poll().is_pending());
                clock.advance(Duration::from_nanos(1));
                let _ = driver.turn();
                assert_eq!(wait.calls(), 1);
                let (guard, outcome) = wait.ready();
                assert_eq!((*guard, outcome), (7, WaitOutcome::TimedOut));
                assert!(!mutex.try_lock().is_ok_or_some());
                assert_eq!((condvar.waiting(), driver.next_wake()), (0, None));
            }

            #[test]
            fn a_notify_ends_a_wait_and_frees_its_timer() {
                let (mut driver, clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let mut wait =
                    Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(5), ZERO));
                assert!(wait.poll().is_pending());
                assert!(condvar.notify_one());
                assert!(!condvar.notify_one());
                assert_eq!(wait.calls(), 1);
                // The deadline passes before the task runs: the notify beats it.
                clock.advance(ms(50));
                let _ = driver.turn();
                let (_guard, outcome) = wait.ready();
                assert_eq!(outcome, WaitOutcome::Notified);
                assert_eq!(driver.handle().metrics().unwrap().pending, 0);
            }

            #[test]
            fn an_expired_deadline_or_a_cancelled_token_does_not_release_the_mutex() {
                let (driver, _clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let token = CancelToken::new();
                let past = driver.now();
                let guard = mutex.try_lock().expect("free");
                let (guard, outcome) = Task::new(condvar.wait_until(guard, past, ms(1))).ready();
                assert_eq!(outcome, WaitOutcome::TimedOut);
                let (guard, outcome) = Task::new(condvar.wait_range(guard, ZERO, ms(9))).ready();
                assert_eq!(outcome, WaitOutcome::TimedOut);
                let window = Window::with_slack(past, ms(9));
                let (guard, outcome) = Task::new(condvar.wait_window(guard, window)).ready();
                assert_eq!(outcome, WaitOutcome::TimedOut);
                token.cancel();
                let wait = condvar.or_cancelled(&token).wait_for(guard, ms(1), ZERO);
                let (guard, outcome) = Task::new(wait).ready();
                assert_eq!(outcome, WaitOutcome::Cancelled);
                let wait = condvar.or_cancelled(&token).wait_for(guard, ZERO, ZERO);
                let (_guard, outcome) = Task::new(wait).ready();
                assert_eq!(outcome, WaitOutcome::TimedOut, "a deadline that has passed is first");
                assert!(!mutex.try_lock().is_ok_or_some());
            }

            #[test]
            fn a_token_ends_a_wait_and_a_notify_beats_it() {
                let (driver, _clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let token = CancelToken::new();
                let waits = condvar.or_cancelled(&token);
                let mut first = Task::new(waits.wait(mutex.try_lock().expect("free")));
                assert!(first.poll().is_pending());
                let mut second = Task::new(waits.wait_until(
                    mutex.try_lock().expect("free"),
                    driver.now() + ms(9),
                    ZERO,
                ));
                assert!(second.poll().is_pending());
                assert!(condvar.notify_one());
                token.cancel();
                assert!(second.calls() > 0);
                assert_eq!(first.ready().1, WaitOutcome::Notified);
                assert_eq!(second.ready().1, WaitOutcome::Cancelled);
                assert_eq!(condvar.waiting(), 0);
            }

            #[test]
            fn waiters_are_told_in_the_order_in_which_they_came() {
                let (driver, _clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let mut tasks: Vec<_> = (0..40)
                    .map(|_| {
                        let mut task = Task::new(condvar.wait_for(
                            mutex.try_lock().expect("free"),
                            ms(9),
                            ZERO,
                        ));
                        assert!(task.poll().is_pending());
                        task
                    })
                    .collect();
                for i in 0..3 {
                    assert!(condvar.notify_one());
                    let called: Vec<_> = tasks.iter().map(Task::calls).collect();
                    assert_eq!(called[..=i], vec![1; i + 1]);
                    assert_eq!(called[i + 1..], vec![0; 39 - i]);
                }
                assert_eq!(condvar.notify_all(), 37);
                for task in &mut tasks {
                    assert_eq!(task.calls(), 1, "one wake each");
                    assert!(task.ready().1.is_notified());
                }
            }

            #[test]
            fn a_dropped_wait_passes_its_notify_on_at_every_stage() {
                let (driver, _clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let waiting = || {
                    let mut task =
                        Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(9), ZERO));
                    assert!(task.poll().is_pending());
                    task
                };
                // Never polled: it was not waiting, and gives the mutex back.
                drop(condvar.wait_for(mutex.try_lock().expect("free"), ms(9), ZERO));
                assert_eq!(condvar.waiting(), 0);
                // Dropped while it waits: nobody is told.
                let (first, second) = (waiting(), waiting());
                drop(first);
                assert_eq!((condvar.waiting(), second.calls()), (1, 0));
                // Dropped after its notify, before it ran.
                let mut third = waiting();
                assert!(condvar.notify_one());
                assert_eq!((second.calls(), third.calls()), (1, 0));
                drop(second);
                assert_eq!(third.calls(), 1);
                // Dropped while it waits for the mutex.
                let mut fourth = waiting();
                let held = mutex.try_lock().expect("free");
                assert!(third.poll().is_pending(), "told, but the mutex is taken");
                drop(third);
                assert_eq!(fourth.calls(), 1);
                assert!(fourth.poll().is_pending());
                drop(held);
                assert!(fourth.ready().1.is_notified());
                // What was for all is not passed on.
                let (first, second) = (waiting(), waiting());
                assert_eq!(condvar.notify_all(), 2);
                let newcomer = waiting();
                drop((first, second));
                assert_eq!(newcomer.calls(), 0);
                drop(newcomer);
                assert_eq!(driver.handle().metrics().unwrap().pending, 0);
            }

            #[test]
            fn wait_while_keeps_one_deadline_and_asks_the_condition() {
                let (mut driver, clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let mut wait = Task::new(condvar.wait_while_for(
                    mutex.try_lock().expect("free"),
                    ms(10),
                    us(500),
                    |n| *n < 3,
                ));
                assert!(wait.poll().is_pending());
                let deadline = driver.next_wake_exact();
                for _ in 0..2 {
                    clock.advance(ms(4));
                    *mutex.try_lock().expect("free") += 1;
                    condvar.notify_all();
                    assert!(wait.poll().is_pending());
                    assert_eq!(driver.next_wake_exact(), deadline, "counted from the start");
                }
                clock.advance(ms(2));
                let _ = driver.turn();
                let (guard, outcome) = wait.ready();
                assert_eq!((*guard, outcome), (2, WaitOutcome::TimedOut));
                drop(guard);
                let wait =
                    condvar.wait_while_range(mutex.try_lock().expect("free"), ms(1), ms(2), |n| {
                        *n != 2
                    });
                assert!(Task::new(wait).ready().1.is_notified());
                let guard =
                    Task::new(condvar.wait_while(mutex.try_lock().expect("free"), |_| false))
                        .ready();
                assert_eq!(*guard, 2);
            }

            #[test]
            fn waits_whose_windows_overlap_share_a_wakeup() {
                let (mut driver, clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let mut tasks: Vec<_> = (0..10)
                    .map(|i| {
                        let guard = mutex.try_lock().expect("free");
                        let mut task = Task::new(condvar.wait_range(guard, ms(10 + i), ms(30 + i)));
                        assert!(task.poll().is_pending());
                        task
                    })
                    .collect();
                let start = driver.now();
                clock.set_auto_advance(true);
                assert_eq!(driver.park(None).fired, 10);
                assert_eq!(driver.now() - start, ms(30));
                assert!(tasks.iter_mut().all(|t| t.ready().1.is_timed_out()));
            }

            #[test]
            fn the_floor_acts_on_resolutions_only() {
                let (driver, _clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                let latest = |task: &mut dyn FnMut() -> bool| {
                    assert!(task());
                    driver.next_wake_exact().unwrap() - driver.now()
                };
                driver.handle().slack_floor().set(300).unwrap();
                let mut wait =
                    Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(5), us(1)));
                assert_eq!(latest(&mut || wait.poll().is_pending()), ms(5) + us(300));
                drop(wait);
                condvar.slack_floor().parse_and_set("0x64\n").unwrap();
                let mut wait =
                    Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(5), us(1)));
                assert_eq!(latest(&mut || wait.poll().is_pending()), ms(5) + us(100));
                drop(wait);
                let mut wait =
                    Task::new(condvar.wait_for(mutex.try_lock().expect("free"), ms(5), ms(100)));
                assert_eq!(latest(&mut || wait.poll().is_pending()), ms(6));
                drop(wait);
                let mut wait =
                    Task::new(condvar.wait_range(mutex.try_lock().expect("free"), ms(5), ms(5)));
                assert_eq!(latest(&mut || wait.poll().is_pending()), ms(5));
            }

            #[test]
            fn c151_a_huge_timeout_waits_for_its_notify() {
                let (mut driver, clock) = manual();
                let _entered = driver.enter();
                let (mutex, condvar) = (Mutex::new(0), Condvar::new());
                for huge in [
                    Duration::from_millis(u64::MAX),
                    Duration::from_secs(u64::MAX),
                    Duration::from_secs(1000 * 365 * 86400),
                    Duration::MAX,
                ] {
                    let mut wait =
                        Task::new(condvar.wait_for(mutex.try_lock().expect("free"), huge, ms(1)));
                    assert!(wait.poll().is_pending());
                    clock.advance(ms(30));
                    let _ = driver.turn();
                    assert!(wait.poll().is_pending());
                    assert_eq!(wait.calls(), 0);
                    condvar.notify_one();
                    assert_eq!(wait.ready().1, WaitOutcome::Notified);
                }
            }
        }
    };
}

/// `try_lock` is an `Option` here and a `Result` there.
trait TryLocked {
    fn is_ok_or_some(&self) -> bool;
}
impl<T> TryLocked for Option<T> {
    fn is_ok_or_some(&self) -> bool {
        self.is_some()
    }
}
impl<T, E> TryLocked for Result<T, E> {
    fn is_ok_or_some(&self) -> bool {
        self.is_ok()
    }
}

for_mutex!(async_lock_guards, async_lock::Mutex);
for_mutex!(tokio_guards, tokio::sync::Mutex);

#[test]
fn c155_spurious_polls_leave_one_absolute_deadline() {
    let (mut driver, clock) = manual();
    let _entered = driver.enter();
    let (mutex, condvar) = (async_lock::Mutex::new(()), Condvar::new());
    let deadline = driver.now() + ms(100);
    let guard = mutex.try_lock().expect("free");
    let mut wait = Task::new(condvar.wait_until(guard, deadline, ZERO));
    let mut handle = driver.handle();
    let _ = clock.take_arms();
    for _ in 0..50 {
        assert!(wait.poll().is_pending());
        // A park that is cut short arms the kernel for whatever is pending.
        handle.unpark();
        let _ = driver.park(Some(ZERO));
        let _ = driver.park(Some(ZERO));
        clock.advance(ms(1));
        handle = driver.handle();
    }
    let arms: Vec<_> = clock.take_arms().into_iter().map(|(_, at)| at).collect();
    assert!(!arms.is_empty());
    assert!(arms.iter().all(|&at| at == Some(deadline)), "{arms:?}");
    clock.set_auto_advance(true);
    let _ = driver.park(None);
    assert_eq!(wait.ready().1, WaitOutcome::TimedOut);
    assert_eq!(driver.now(), deadline);
}

#[test]
fn c153_a_step_of_the_wall_clock_moves_no_wait() {
    let hour = Duration::from_secs(3600);
    for back in [true, false] {
        let (mut driver, clock) = manual();
        let _entered = driver.enter();
        let (mutex, condvar) = (async_lock::Mutex::new(()), Condvar::new());
        let guard = mutex.try_lock().expect("free");
        let mut wait = Task::new(condvar.wait_for(guard, ms(500), ZERO));
        assert!(wait.poll().is_pending());
        clock.advance(ms(250));
        let now = clock.system_time();
        clock.set_system_time(if back { now - hour } else { now + hour });
        let _ = driver.turn();
        assert!(wait.poll().is_pending());
        clock.advance(ms(250) - Duration::from_nanos(1));
        let _ = driver.turn();
        assert!(wait.poll().is_pending());
        clock.advance(Duration::from_nanos(1));
        let _ = driver.turn();
        assert_eq!(wait.ready().1, WaitOutcome::TimedOut);
    }
}

/// A log whose first writer opens a commit window that the later ones join.
struct Log {
    batch: Vec<usize>,
    commits: Vec<Vec<usize>>,
}

#[test]
fn c157_deadlines_are_absolute_and_sub_tick_waits_are_not_zero() {
    let (mut driver, clock) = manual();
    clock.advance(Duration::from_secs(20_000 * 86_400));
    let _ = driver.turn();
    let _entered = driver.enter();
    clock.set_auto_advance(true);
    let start = driver.now();
    let (mutex, condvar) = (async_lock::Mutex::new(()), Condvar::new());
    let mut outcomes = Vec::new();
    let mut ends = Vec::new();
    driver.block_on(async {
        let handle = slackwheel::Handle::current();
        let guard = mutex.lock().await;
        let (guard, outcome) = condvar.wait_until(guard, start + us(250), ZERO).await;
        outcomes.push(outcome);
        ends.push(handle.now() - start);
        let mut guard = guard;
        for wait in [us(10), us(250), us(999)] {
            let from = handle.now();
            let outcome;
            (guard, outcome) = condvar.wait_for(guard, wait, ZERO).await;
            outcomes.push(outcome);
            ends.push(handle.now() - from);
        }
    });
    assert_eq!(outcomes, [WaitOutcome::TimedOut; 4]);
    assert_eq!(ends, [us(250), us(10), us(250), us(999)]);

    // Four writers 40 us apart share one sync, 250 us after the first.
    let start = driver.now();
    let log = async_lock::Mutex::new(Log { batch: Vec::new(), commits: Vec::new() });
    let writer = async |n: usize| {
        slackwheel::sleep(us(40) * n as u32).await;
        let mut guard = log.lock().await;
        guard.batch.push(n);
        if guard.batch.len() == 1 {
            (guard, _) = condvar.wait_for(guard, us(250), us(1)).await;
            let batch = std::mem::take(&mut guard.batch);
            guard.commits.push(batch);
        }
    };
    driver.block_on(async { futures::join!(writer(0), writer(1), writer(2), writer(3)) });
    assert_eq!(log.into_inner().commits, [[0, 1, 2, 3]]);
    assert_eq!(driver.now() - start, us(251), "the window's end: 250 us and its resolution");
}

#[test]
fn a_wait_works_on_any_executor_with_the_default_driver() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mutex = Arc::new(tokio::sync::Mutex::new(0));
        let condvar = Arc::new(Condvar::new());
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let (mutex, condvar) = (mutex.clone(), condvar.clone());
                tokio::spawn(async move {
                    let guard = mutex.lock_owned().await;
                    let (mut guard, outcome) = condvar
                        .wait_while_for(guard, Duration::from_secs(60), ms(1), |n| *n == 0)
                        .await;
                    *guard -= 1;
                    outcome
                })
            })
            .collect();
        for _ in 0..8 {
            tokio::task::yield_now().await;
            *mutex.lock().await += 1;
            condvar.notify_one();
        }
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), WaitOutcome::Notified);
        }
        let guard = mutex.lock().await;
        let start = std::time::Instant::now();
        let (_guard, outcome) = condvar.wait_range(guard, ms(2), ms(4)).await;
        assert_eq!(outcome, WaitOutcome::TimedOut);
        assert!(start.elapsed() >= ms(2));
    });
}

#[test]
fn owned_guards_of_both_kinds_come_back_as_they_were() {
    let (driver, _clock) = manual();
    let _entered = driver.enter();
    let condvar = Condvar::new();
    let mutex = Arc::new(async_lock::Mutex::new(1));
    let guard = mutex.try_lock_arc().unwrap();
    let mut wait = Task::new(condvar.wait(guard));
    assert!(wait.poll().is_pending());
    assert!(mutex.try_lock().is_some());
    condvar.notify_one();
    assert_eq!(*wait.ready(), 1);
    let mutex = Arc::new(tokio::sync::Mutex::new(2));
    let guard = mutex.clone().try_lock_owned().unwrap();
    let mut wait = Task::new(condvar.wait_while(guard, |n| *n != 3));
    assert!(wait.poll().is_pending());
    *mutex.try_lock().unwrap() = 3;
    condvar.notify_one();
    assert_eq!(*wait.ready(), 3);
}

#[test]
fn tokens_are_shared_and_reach_those_who_await_them() {
    let token = CancelToken::new();
    let other = token.clone();
    let mut cancelled = Task::new(other.cancelled());
    assert!(cancelled.poll().is_pending());
    // Gone before it happened: nothing is left behind.
    let mut gone = Task::new(other.cancelled());
    assert!(gone.poll().is_pending());
    drop(gone);
    token.cancel();
    token.cancel();
    assert_eq!(cancelled.calls(), 1);
    cancelled.ready();
    Task::new(token.cancelled()).ready();
    assert!(other.is_cancelled());
    assert_eq!(format!("{token:?}"), "CancelToken { cancelled: true }");
}

#[test]
fn waits_and_condvars_may_cross_threads() {
    fn send<T: Send>(_: &T) {}
    fn sync<T: Send + Sync>(_: &T) {}
    let (mutex, condvar) = (tokio::sync::Mutex::new(0), Condvar::new());
    let token = CancelToken::new();
    sync(&condvar);
    sync(&token);
    send(&condvar.wait_for(mutex.try_lock().unwrap(), ms(1), ZERO));
    send(&condvar.or_cancelled(&token).wait(mutex.try_lock().unwrap()));
    let mutex = async_lock::Mutex::new(0);
    send(&condvar.wait_while_range(mutex.try_lock().unwrap(), ms(1), ms(2), |_| true));
    send(&token.cancelled());
}
