//! The concurrency model of the blocking condvar's queue: the very code of [`queue`](super::queue),
//! over a signal whose deadline may pass at any moment. Loom has no timed waits, so a timeout is a thread.

use super::queue::{Entry, Queue};
use super::signal::{Signal, Sleepable, Told, Wake};
use crate::primitive::test::{Arc, Condvar, Mutex as RawMutex, model};
use crate::primitive::{AtomicBool, AtomicUsize, Ordering, thread};

/// The futex of the model: a word, and the kernel's lock and queue for it.
#[derive(Default)]
struct Futex {
    word: AtomicBool,
    with_all: AtomicBool,
    expired: RawMutex<bool>,
    sleepers: Condvar,
}

#[derive(Default)]
struct ModelSignal(Arc<Futex>);

impl Signal for ModelSignal {
    type Address = Arc<Futex>;

    fn new() -> Self {
        ModelSignal::default()
    }

    fn set(&self, told: Told) -> Arc<Futex> {
        let address = self.0.clone();
        self.0.with_all.store(told == Told::WithAll, Ordering::Relaxed);
        self.0.word.store(true, Ordering::Release);
        address
    }

    fn told(&self) -> Option<Told> {
        let all = || self.0.with_all.load(Ordering::Relaxed);
        let set = self.0.word.load(Ordering::Acquire);
        set.then(|| if all() { Told::WithAll } else { Told::Alone })
    }

    fn wake(futex: Arc<Futex>) {
        // The lock orders it after a waiter's comparison, as the kernel's does.
        drop(futex.expired.lock().unwrap());
        futex.sleepers.notify_one();
    }
}

impl Sleepable for ModelSignal {
    /// Compares the word under the kernel's lock and sleeps, once. With a deadline a thread lets it
    /// pass, sooner or later than anything else.
    fn wait(&self, deadline: Option<u64>) -> Wake {
        let timer = deadline.map(|_| {
            let futex = self.0.clone();
            thread::spawn(move || {
                *futex.expired.lock().unwrap() = true;
                futex.sleepers.notify_one();
            })
        });
        let mut expired = self.0.expired.lock().unwrap();
        if !self.0.word.load(Ordering::Relaxed) && !*expired {
            expired = self.0.sleepers.wait(expired).unwrap();
        }
        let expired_first = *expired;
        drop(expired);
        if let Some(timer) = timer {
            timer.join().unwrap();
        }
        // As the kernel does: once the time is up nobody looks at the word again.
        if expired_first { Wake::TimedOut } else { Wake::Look }
    }
}

/// A condvar's queue with the user's mutex and a count of permits as its condition.
struct Gate {
    permits: RawMutex<usize>,
    queue: Queue<ModelSignal>,
    notified: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::new(Gate {
            permits: RawMutex::new(0),
            queue: Queue::new(),
            notified: AtomicUsize::new(0),
        })
    }

    /// Waits for a permit, without a deadline, as a user does.
    fn take(&self) {
        let mut permits = self.permits.lock().unwrap();
        while *permits == 0 {
            self.queue.enter(|entry| {
                drop(permits);
                assert!(entry.sleep(None), "a wait without a deadline cannot time out");
            });
            self.notified.fetch_add(1, Ordering::Relaxed);
            permits = self.permits.lock().unwrap();
        }
        *permits -= 1;
    }

    fn give(&self, n: usize) {
        *self.permits.lock().unwrap() += n;
    }

    /// One wait with a deadline, by the given way to sleep; whether it was notified.
    fn wait_once(&self, sleep: impl FnOnce(&Entry<'_, ModelSignal>) -> bool) -> bool {
        let permits = self.permits.lock().unwrap();
        let notified = self.queue.enter(|entry| {
            drop(permits);
            sleep(entry)
        });
        if notified {
            self.notified.fetch_add(1, Ordering::Relaxed);
        }
        notified
    }
}

fn timed(entry: &Entry<'_, ModelSignal>) -> bool {
    entry.sleep(Some(0))
}

#[test]
fn a_notify_after_the_change_is_never_lost() {
    model(|| {
        let gate = Gate::new();
        let waiter = thread::spawn({
            let gate = gate.clone();
            move || gate.take()
        });
        gate.give(1);
        gate.queue.notify_one();
        waiter.join().unwrap();
        assert_eq!(gate.queue.len(), 0);
    });
}

#[test]
fn notify_all_reaches_every_waiter() {
    model(|| {
        let gate = Gate::new();
        let waiters = [0, 1].map(|_| {
            let gate = gate.clone();
            thread::spawn(move || gate.take())
        });
        gate.give(2);
        gate.queue.notify_all();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(gate.queue.len(), 0);
    });
}

/// A notify against a timeout of the only waiter: both sides agree on who was first.
fn notify_against_timeout() {
    let gate = Gate::new();
    let waiter = thread::spawn({
        let gate = gate.clone();
        move || gate.wait_once(timed)
    });
    let told = gate.queue.notify_one();
    let notified = waiter.join().unwrap();
    assert_eq!(told, notified, "a notify that found a waiter is that waiter's outcome");
    assert_eq!(gate.queue.len(), 0);
}

#[test]
fn a_notify_beats_a_timeout() {
    model(notify_against_timeout);
}

#[test]
#[cfg(loom)]
fn the_model_finds_a_waiter_that_trusts_its_clock() {
    use crate::primitive::plant::{self, Bug};
    let found = std::panic::catch_unwind(|| {
        plant::with(Bug::TrustTheClock, || model(notify_against_timeout));
    });
    assert!(found.is_err(), "a notify was lost and the model did not see it");
}

/// Two waiters, one of which may time out, and one notify: it is not lost with the one that left,
/// and every notify that found somebody is somebody's outcome.
#[test]
fn a_notify_is_not_lost_with_a_waiter_that_leaves() {
    model(|| {
        let gate = Gate::new();
        let hasty = thread::spawn({
            let gate = gate.clone();
            move || gate.wait_once(timed)
        });
        let patient = thread::spawn({
            let gate = gate.clone();
            move || gate.take()
        });
        gate.give(1);
        let mut told = usize::from(gate.queue.notify_one());
        // The first one may have gone to the hasty waiter, rightly.
        if hasty.join().unwrap() {
            told += usize::from(gate.queue.notify_one());
        }
        patient.join().unwrap();
        assert_eq!(told, gate.notified.load(Ordering::Relaxed));
        assert_eq!(gate.queue.len(), 0);
    });
}

/// A waiter whose lock code panics between entering and sleeping.
#[test]
fn a_waiter_that_ends_without_sleeping_passes_its_notify_on() {
    model(|| {
        let gate = Gate::new();
        let patient = thread::spawn({
            let gate = gate.clone();
            move || gate.take()
        });
        let notifier = thread::spawn({
            let gate = gate.clone();
            move || {
                gate.give(1);
                gate.queue.notify_one();
            }
        });
        // Takes the notify, perhaps, and ends: as an unwinding closure does.
        gate.queue.enter(|_| ());
        notifier.join().unwrap();
        patient.join().unwrap();
        assert_eq!(gate.queue.len(), 0);
    });
}

#[cfg(not(loom))]
mod order {
    use super::*;
    use crate::sync::signal::{OsSignal, portable::Flag};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Starts `n` threads that wait in this order, calls `act`, and tells in which order they woke.
    fn wake_order<S: Sleepable + Sync>(n: usize, act: impl Fn(&Queue<S>, usize)) -> Vec<usize> {
        let queue = Queue::<S>::new();
        let woken = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for i in 0..n {
                let (queue, woken) = (&queue, &woken);
                s.spawn(move || {
                    queue.enter(|entry| entry.sleep(None));
                    woken.lock().unwrap().push(i);
                });
                while queue.len() <= i {
                    std::thread::yield_now();
                }
            }
            for k in 0.. {
                let before = woken.lock().unwrap().len();
                if before == n {
                    break;
                }
                act(&queue, k);
                while woken.lock().unwrap().len() == before {
                    std::thread::yield_now();
                }
            }
        });
        woken.into_inner().unwrap()
    }

    #[test]
    fn the_first_to_wait_is_the_first_to_wake() {
        let order = wake_order::<OsSignal>(8, |queue, _| assert!(queue.notify_one()));
        assert_eq!(order, (0..8).collect::<Vec<_>>());
        let order = wake_order::<Flag>(8, |queue, _| assert!(queue.notify_one()));
        assert_eq!(order, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn notify_all_spans_batches_and_leaves_those_that_come_later() {
        let order = wake_order::<OsSignal>(50, |queue, k| {
            assert_eq!(queue.notify_all(), if k == 0 { 50 } else { 0 });
        });
        assert_eq!(order.len(), 50);
    }

    #[test]
    fn waiters_leave_from_the_middle_and_the_rest_keep_their_order() {
        leave_from_the_middle::<OsSignal>();
        leave_from_the_middle::<Flag>();
    }

    fn leave_from_the_middle<S: Sleepable>() {
        let queue = Queue::<S>::new();
        queue.enter(|a| {
            queue.enter(|b| {
                queue.enter(|c| {
                    assert_eq!(queue.len(), 3);
                    let soon = crate::clock::monotonic() + 1_000;
                    assert!(!b.sleep(Some(soon)));
                    assert_eq!(queue.len(), 2);
                    assert!(queue.notify_one());
                    assert!(a.is_told() && !c.is_told());
                    assert!(queue.notify_one());
                    assert!(c.sleep(Some(0)), "a notify beats a deadline long past");
                    assert!(!queue.notify_one());
                })
            })
        });
    }

    /// Never sleeps, returns for no reason fifty times, and writes down what it was asked.
    struct Restless(Mutex<Vec<Option<u64>>>);

    static LOG: Mutex<Vec<Option<u64>>> = Mutex::new(Vec::new());
    static CALLS: AtomicU32 = AtomicU32::new(0);

    impl Signal for Restless {
        type Address = ();
        fn new() -> Self {
            Restless(Mutex::new(Vec::new()))
        }
        fn set(&self, _: Told) {}
        fn told(&self) -> Option<Told> {
            None
        }
        fn wake((): ()) {}
    }

    impl Sleepable for Restless {
        fn wait(&self, deadline: Option<u64>) -> Wake {
            self.0.lock().unwrap().push(deadline);
            if CALLS.fetch_add(1, Ordering::Relaxed) < 50 {
                return Wake::Look;
            }
            LOG.lock().unwrap().append(&mut self.0.lock().unwrap());
            Wake::TimedOut
        }
    }

    #[test]
    fn c155_fifty_spurious_wakeups_leave_one_absolute_deadline() {
        let queue = Queue::<Restless>::new();
        let deadline = crate::clock::MANUAL_START + 100_000_000;
        assert!(!queue.enter(|entry| entry.sleep(Some(deadline))));
        let log = LOG.lock().unwrap();
        assert_eq!(log.len(), 51);
        assert!(log.iter().all(|&d| d == Some(deadline)), "{log:?}");
    }

    #[test]
    fn a_queue_under_load_loses_nobody() {
        under_load::<OsSignal>();
        under_load::<Flag>();
    }

    fn under_load<S: Sleepable + Sync>() {
        let queue = Queue::<S>::new();
        let (notified, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for i in 0..4u64 {
                let (queue, notified) = (&queue, &notified);
                s.spawn(move || {
                    for k in 0..2_000 {
                        let at = crate::clock::monotonic() + (i * 7 + k % 13) * 1_000;
                        if queue.enter(|entry| entry.sleep(Some(at))) {
                            notified.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for k in 0..20_000 {
                let n =
                    if k % 5 == 0 { queue.notify_all() } else { usize::from(queue.notify_one()) };
                told.fetch_add(n, Ordering::Relaxed);
                if k % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(1));
                }
            }
        });
        assert_eq!(notified.into_inner(), told.into_inner());
        assert_eq!(queue.len(), 0);
    }
}
