//! The public bug reports about condition variables, each as a test named after its case, and what
//! the blocking condvar promises beyond them.
#![cfg(target_os = "linux")]

mod linux;

use linux::*;
use slackwheel::Window;
use slackwheel::sync::{WaitOutcome, blocking::Condvar};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{LockResult, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const ZERO: Duration = Duration::ZERO;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// The outcome of a wait, its guard released.
fn outcome_of<G>(wait: LockResult<(G, WaitOutcome)>) -> WaitOutcome {
    wait.unwrap().1
}

/// Runs `wait` in a thread and `act` once that thread sleeps in its futex.
fn while_waiting<R: Send>(wait: impl FnOnce() -> R + Send, act: impl FnOnce(i32)) -> R {
    thread::scope(|s| {
        let (send, receive) = mpsc::channel();
        let waiter = s.spawn(move || {
            send.send(tid()).unwrap();
            wait()
        });
        let tid = receive.recv().unwrap();
        await_syscall(tid, libc::SYS_futex);
        act(tid);
        waiter.join().unwrap()
    })
}

#[test]
fn c151_a_huge_timeout_waits_for_its_notify() {
    for huge in [
        Duration::from_millis(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::from_secs(1000 * 365 * 86400),
        Duration::from_secs(i64::MAX as u64),
        Duration::MAX,
    ] {
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        let start = Instant::now();
        let outcome = while_waiting(
            || condvar.wait_for(&mutex, mutex.lock().unwrap(), huge, ZERO).unwrap().1,
            |_| {
                thread::sleep(ms(30));
                assert_eq!(condvar.waiting(), 1, "still the same wait after 30 ms");
                assert!(condvar.notify_one());
            },
        );
        assert_eq!(outcome, WaitOutcome::Notified, "{huge:?}");
        assert!(start.elapsed() >= ms(30));
    }
}

#[test]
fn c151_huge_ranges_and_windows_too() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let outcome = while_waiting(
        || condvar.wait_range(&mutex, mutex.lock().unwrap(), Duration::MAX, ZERO).unwrap().1,
        |_| assert!(condvar.notify_one()),
    );
    assert_eq!(outcome, WaitOutcome::Notified);
    // A window that has begun has passed for a wait, however far its end.
    let window = Window::with_slack(Instant::now(), Duration::MAX);
    let outcome = outcome_of(condvar.wait_window(&mutex, mutex.lock().unwrap(), window));
    assert_eq!(outcome, WaitOutcome::TimedOut);
}

#[test]
fn c153_the_kernel_waits_on_the_monotonic_clock() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let mut call = Vec::new();
    let before = monotonic();
    let outcome = while_waiting(
        || condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(500), ZERO).unwrap().1,
        |tid| {
            // The mutex is free while it waits, or it would be this futex that was seen.
            drop(mutex.lock().unwrap());
            call = await_syscall(tid, libc::SYS_futex);
            let deadline = read_timespec(call[4]);
            let after = monotonic();
            assert!((before + 500_000_000..=after + 500_000_000).contains(&deadline));
        },
    );
    assert_eq!(outcome, WaitOutcome::TimedOut);
    let took = monotonic() - before;
    assert!(took >= 500_000_000, "{took}");
    // Without FUTEX_CLOCK_REALTIME an absolute wait is on CLOCK_MONOTONIC (futex(2)).
    assert_eq!(call[2], (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG) as u64);
    assert_eq!(call[2] & libc::FUTEX_CLOCK_REALTIME as u64, 0);
}

/// A timespec at an address of this process, which may have become something else meanwhile.
fn read_timespec(address: u64) -> u64 {
    let mut bytes = [0; 16];
    std::fs::File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, address).unwrap();
    let half = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    half(0) * 1_000_000_000 + half(8)
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn c155_fifty_signals_leave_one_absolute_deadline() {
    // SAFETY: the handler touches an atomic only. No SA_RESTART: each signal ends the call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let (mutex, condvar) = (Mutex::new(0), Condvar::new());
    let mut deadlines = Vec::new();
    let asked = AtomicUsize::new(0);
    let start = Instant::now();
    let until = start + ms(400);
    let (_, outcome) = while_waiting(
        || {
            let guard = mutex.lock().unwrap();
            let (guard, outcome) = condvar
                .wait_while_until(&mutex, guard, until, ZERO, |_| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    true
                })
                .unwrap();
            (*guard, outcome)
        },
        |tid| {
            for i in 0..50 {
                let call = await_syscall(tid, libc::SYS_futex);
                deadlines.push(read_timespec(call[4]));
                // SAFETY: the thread lives: it is blocked in its wait.
                let rc =
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
                assert_eq!(rc, 0);
                while SIGNALS.load(Ordering::Relaxed) <= i {
                    thread::yield_now();
                }
            }
        },
    );
    assert_eq!(outcome, WaitOutcome::TimedOut);
    assert!(Instant::now() >= until);
    assert_eq!(deadlines.len(), 50);
    deadlines.dedup();
    assert_eq!(deadlines.len(), 1, "one absolute deadline: {deadlines:?}");
    assert_eq!(asked.into_inner(), 2, "a spurious wakeup is not seen by the caller");
}

#[test]
fn c157_sub_tick_waits_are_neither_zero_nor_days() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    for wait in [us(10), us(250), us(999)] {
        let start = Instant::now();
        let outcome = outcome_of(condvar.wait_for(&mutex, mutex.lock().unwrap(), wait, ZERO));
        let relative = start.elapsed();
        let start = Instant::now();
        let absolute_outcome =
            outcome_of(condvar.wait_until(&mutex, mutex.lock().unwrap(), start + wait, ZERO));
        let absolute = start.elapsed();
        assert_eq!((outcome, absolute_outcome), (WaitOutcome::TimedOut, WaitOutcome::TimedOut));
        for took in [relative, absolute] {
            assert!(took >= wait && took < wait + ms(500), "{wait:?} took {took:?}");
        }
    }
}

#[test]
fn c157_a_commit_window_gathers_its_writers() {
    // A log whose first writer opens a window of 20 ms (the case's 250 us, wide enough for a busy
    // machine) and whose later ones join it.
    struct Log {
        batch: Vec<usize>,
        commits: Vec<Vec<usize>>,
    }
    let log = Mutex::new(Log { batch: Vec::new(), commits: Vec::new() });
    let full = Condvar::new();
    let gather = Instant::now() + ms(20);
    thread::scope(|s| {
        let (log, full) = (&log, &full);
        for writer in 0..4 {
            s.spawn(move || {
                let mut guard = log.lock().unwrap();
                guard.batch.push(writer);
                if guard.batch.len() > 1 {
                    return;
                }
                let (mut guard, outcome) = full.wait_until(log, guard, gather, us(1)).unwrap();
                assert_eq!(outcome, WaitOutcome::TimedOut);
                assert!(Instant::now() >= gather);
                let batch = std::mem::take(&mut guard.batch);
                guard.commits.push(batch);
            });
            thread::sleep(us(40));
        }
    });
    let log = log.into_inner().unwrap();
    assert_eq!(log.commits.len(), 1, "{:?}", log.commits);
    assert_eq!(log.commits[0].len(), 4);
}

#[test]
fn never_early_by_either_clock() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    for i in 0..300 {
        let deadline = Instant::now() + us(i * 3);
        let outcome = outcome_of(condvar.wait_until(&mutex, mutex.lock().unwrap(), deadline, ZERO));
        assert!(Instant::now() >= deadline);
        assert_eq!(outcome, WaitOutcome::TimedOut);
        let before = monotonic();
        let outcome =
            outcome_of(condvar.wait_range(&mutex, mutex.lock().unwrap(), us(i), us(i + 5)));
        assert!(monotonic() >= before + i * 1000);
        assert_eq!(outcome, WaitOutcome::TimedOut);
    }
}

#[test]
fn an_expired_deadline_is_a_timeout_without_unlocking() {
    let (mutex, condvar) = (Mutex::new(1), Condvar::new());
    let past = Instant::now();
    let mut guard = mutex.lock().unwrap();
    *guard = 2;
    thread::scope(|s| {
        // Blocks on the mutex: it would be let in if the guard were released for a moment.
        let rival = s.spawn(|| *mutex.lock().unwrap());
        thread::sleep(ms(20));
        for _ in 0..100 {
            let outcome;
            (guard, outcome) = condvar.wait_until(&mutex, guard, past, us(100)).unwrap();
            assert_eq!(outcome, WaitOutcome::TimedOut);
            (guard, _) = condvar.wait_for(&mutex, guard, ZERO, us(100)).unwrap();
            (guard, _) = condvar.wait_range(&mutex, guard, ZERO, ms(100)).unwrap();
            (guard, _) = condvar.wait_window(&mutex, guard, Window::at(past)).unwrap();
            assert!(mutex.try_lock().is_err());
        }
        *guard = 3;
        drop(guard);
        assert_eq!(rival.join().unwrap(), 3);
    });
}

#[test]
fn a_poisoned_mutex_stays_poisoned_and_gives_its_guard_back() {
    let (mutex, condvar) = (Mutex::new(5), Condvar::new());
    let poisoner = thread::scope(|s| {
        s.spawn(|| {
            let _guard = mutex.lock().unwrap();
            panic!("leaves poison");
        })
        .join()
    });
    assert!(poisoner.is_err());
    let guard = mutex.lock().unwrap_err().into_inner();
    let (guard, outcome) = condvar.wait_for(&mutex, guard, ms(1), ZERO).unwrap_err().into_inner();
    assert_eq!((*guard, outcome), (5, WaitOutcome::TimedOut));
    // Without unlocking, too.
    let (guard, outcome) = condvar.wait_for(&mutex, guard, ZERO, ZERO).unwrap_err().into_inner();
    assert_eq!((*guard, outcome), (5, WaitOutcome::TimedOut));
    let (guard, outcome) =
        condvar.wait_while_for(&mutex, guard, ms(1), ZERO, |_| false).unwrap_err().into_inner();
    assert_eq!((*guard, outcome), (5, WaitOutcome::Notified));
    drop(guard);
    mutex.clear_poison();
    let guard = mutex.lock().unwrap();
    assert!(condvar.wait_for(&mutex, guard, ms(1), ZERO).is_ok());
}

#[test]
fn a_panicking_condition_poisons_the_mutex_and_leaves_the_condvar_whole() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let asked = AtomicI32::new(0);
    let panicked = thread::scope(|s| {
        s.spawn(|| {
            let guard = mutex.lock().unwrap();
            let _ = condvar.wait_while_for(&mutex, guard, ms(1), ZERO, |_| {
                assert!(asked.fetch_add(1, Ordering::Relaxed) < 1, "the second time it panics");
                true
            });
        })
        .join()
    });
    assert!(panicked.is_err());
    assert!(mutex.is_poisoned());
    assert_eq!(condvar.waiting(), 0);
}

#[test]
fn notify_without_a_waiter_is_not_kept() {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    assert!(!condvar.notify_one());
    assert_eq!(condvar.notify_all(), 0);
    let outcome = outcome_of(condvar.wait_for(&mutex, mutex.lock().unwrap(), ms(2), ZERO));
    assert_eq!(outcome, WaitOutcome::TimedOut);
}

#[test]
fn waiters_wake_in_the_order_in_which_they_came() {
    static MUTEX: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static CONDVAR: Condvar = Condvar::new();
    let mut threads = Vec::new();
    for i in 0..8 {
        threads.push(thread::spawn(move || {
            let guard = MUTEX.lock().unwrap();
            // Timed and untimed waits share the one queue.
            let mut guard = if i % 2 == 0 {
                CONDVAR.wait(&MUTEX, guard).unwrap()
            } else {
                CONDVAR.wait_for(&MUTEX, guard, Duration::from_secs(60), us(50)).unwrap().0
            };
            guard.push(i);
        }));
        while CONDVAR.waiting() <= i {
            thread::yield_now();
        }
    }
    for i in 0..8 {
        assert!(CONDVAR.notify_one());
        while MUTEX.lock().unwrap().len() <= i {
            thread::yield_now();
        }
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*MUTEX.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_notify_beats_a_timeout_that_passed_before_the_waiter_could_run() {
    // The waiter's deadline passes while it still waits for the processor or the mutex; the notify
    // came before. Many rounds, so that both orders happen; what was told must be what was seen.
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let (mut notified, mut timed_out) = (0, 0);
    for round in 0..400 {
        let told = thread::scope(|s| {
            let waiter = s.spawn(|| {
                let guard = mutex.lock().unwrap();
                condvar.wait_for(&mutex, guard, us(60 + round % 60), ZERO).unwrap().1
            });
            while condvar.waiting() == 0 && !waiter.is_finished() {
                std::hint::spin_loop();
            }
            let spin = Instant::now();
            while spin.elapsed() < us(round % 130) {}
            let told = condvar.notify_one();
            assert_eq!(told, waiter.join().unwrap().is_notified());
            told
        });
        if told { notified += 1 } else { timed_out += 1 }
    }
    assert!(notified > 0 && timed_out > 0, "{notified} notified, {timed_out} timed out");
}

#[test]
fn wait_while_ends_when_the_condition_does() {
    let (mutex, condvar) = (Mutex::new(0), Condvar::new());
    let outcome = while_waiting(
        || {
            let guard = mutex.lock().unwrap();
            let (guard, outcome) = condvar
                .wait_while_for(&mutex, guard, Duration::from_secs(60), us(1), |n| *n < 3)
                .unwrap();
            assert_eq!(*guard, 3);
            outcome
        },
        |_| {
            for _ in 0..3 {
                *mutex.lock().unwrap() += 1;
                condvar.notify_all();
            }
        },
    );
    assert_eq!(outcome, WaitOutcome::Notified);
    // A condition that ended without a notify is not a timeout.
    let guard = mutex.lock().unwrap();
    let until = Instant::now() + ms(5);
    let outcome = outcome_of(
        condvar.wait_while_until(&mutex, guard, until, ZERO, |_| Instant::now() < until),
    );
    assert_eq!(outcome, WaitOutcome::Notified);
    assert!(Instant::now() >= until);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "of another mutex")]
fn a_guard_of_another_mutex_is_noticed() {
    let (mutex, other, condvar) = (Mutex::new(()), Mutex::new(()), Condvar::new());
    let _ = condvar.wait_for(&mutex, other.lock().unwrap(), ms(1), ZERO);
}

#[test]
fn unsized_values_and_values_without_size_have_their_guards_recognised() {
    let condvar = Condvar::new();
    let slice: &Mutex<[u8]> = &Mutex::new([1, 2, 3]);
    let (guard, _) = condvar.wait_for(slice, slice.lock().unwrap(), us(1), ZERO).unwrap();
    assert_eq!(guard.len(), 3);
    let dynamic: &Mutex<dyn Read + Send> = &Mutex::new(std::io::empty());
    assert!(condvar.wait_for(dynamic, dynamic.lock().unwrap(), us(1), ZERO).is_ok());
    let nothing = Mutex::new(());
    assert!(condvar.wait_for(&nothing, nothing.lock().unwrap(), us(1), ZERO).is_ok());
}

#[test]
fn a_condvar_is_send_and_sync_and_small() {
    fn check<T: Send + Sync + std::panic::UnwindSafe>(_: &T) {}
    let condvar = Condvar::default();
    check(&condvar);
    assert!(size_of::<Condvar>() <= 64, "{}", size_of::<Condvar>());
    assert_eq!(format!("{condvar:?}"), "Condvar { waiting: 0, .. }");
}

#[cfg(feature = "lock_api")]
mod lock_api {
    use super::*;
    use slackwheel::compat::lock_api::Condvar;

    #[test]
    fn parking_lot_guards_keep_every_rule() {
        let (mutex, condvar) = (parking_lot::Mutex::new(0), Condvar::new());
        let mut guard = mutex.lock();
        let start = Instant::now();
        assert!(condvar.wait_for(&mut guard, ms(2), ZERO).is_timed_out());
        assert!(start.elapsed() >= ms(2));
        assert!(condvar.wait_until(&mut guard, start, ZERO).is_timed_out());
        assert!(condvar.wait_range(&mut guard, us(100), us(200)).is_timed_out());
        assert!(condvar.wait_window(&mut guard, Window::at(start)).is_timed_out());
        assert!(condvar.wait_while_for(&mut guard, us(100), ZERO, |n| *n == 0).is_timed_out());
        assert!(condvar.wait_while_until(&mut guard, start, ZERO, |n| *n == 1).is_notified());
        assert!(mutex.is_locked());
        drop(guard);
        let outcome = while_waiting(
            || {
                let mut guard = mutex.lock();
                condvar.wait_while(&mut guard, |n| *n == 0);
                condvar.wait_while_range(&mut guard, Duration::MAX, ZERO, |n| *n == 1)
            },
            |_| {
                for value in [1, 2] {
                    // The condition holds, so the waiter waits again before the next change.
                    while condvar.waiting() == 0 {
                        thread::yield_now();
                    }
                    *mutex.lock() = value;
                    condvar.notify_one();
                }
            },
        );
        assert!(outcome.is_notified());
    }

    /// A lock whose unlocking panics on demand.
    struct Fragile(parking_lot::RawMutex, AtomicUsize);

    // SAFETY: the inner lock does the work; a panic comes before it is touched.
    unsafe impl ::lock_api::RawMutex for Fragile {
        #[allow(clippy::declare_interior_mutable_const)]
        const INIT: Self =
            Fragile(<parking_lot::RawMutex as ::lock_api::RawMutex>::INIT, AtomicUsize::new(0));
        type GuardMarker = ::lock_api::GuardSend;
        fn lock(&self) {
            if self.1.load(Ordering::Relaxed) == 0 {
                self.0.lock();
            }
        }
        fn try_lock(&self) -> bool {
            self.0.try_lock()
        }
        unsafe fn unlock(&self) {
            assert!(self.1.load(Ordering::Relaxed) == 0, "this lock does not open");
            // SAFETY: passed on.
            unsafe { self.0.unlock() }
        }
    }

    #[test]
    fn a_lock_that_panics_leaves_no_waiter_behind() {
        let condvar = Condvar::new();
        let mutex: ::lock_api::Mutex<Fragile, ()> = ::lock_api::Mutex::new(());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut guard = std::mem::ManuallyDrop::new(mutex.lock());
            // SAFETY: the lock is only marked as fragile, not touched.
            unsafe { mutex.raw() }.1.store(1, Ordering::Relaxed);
            condvar.wait_for(&mut guard, ms(1), ZERO)
        }));
        assert!(result.is_err());
        assert_eq!(condvar.waiting(), 0);
        assert!(!condvar.notify_one());
    }
}
