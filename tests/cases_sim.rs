//! Cases of test clocks that lied elsewhere.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

type Log = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// A task that sleeps so long and logs when it resumed.
fn logging(sim: &Sim, log: &Log, id: &'static str, at: u64) -> sim::Task<()> {
    let (me, log) = (sim.clone(), log.clone());
    sim.spawn(async move {
        me.handle().sleep(ms(at)).await;
        log.lock().unwrap().push((id, me.elapsed().as_millis() as u64));
    })
}

#[test]
fn c142_advance_stops_exactly_at_its_target() {
    let sim = Sim::new();
    let mut s = sim.handle().sleep(ms(300));
    assert!(peek(&mut s).is_pending());
    // Auto-advance is on, and there is nothing to do: still exactly 100.
    sim.advance(ms(100));
    assert_eq!(sim.elapsed(), ms(100));
    sim.advance(ms(0));
    sim.advance(ms(199));
    assert!(peek(&mut s).is_pending());
    sim.advance(ms(1));
    assert!(peek(&mut s).is_ready());
    assert_eq!(sim.elapsed(), ms(300));
}

#[test]
fn c144_a_guard_holds_time_back_but_not_explicit_advances() {
    let sim = Sim::new();
    let (tx, rx) = futures::channel::oneshot::channel();
    let hold = sim.hold();
    let worker = std::thread::spawn(move || {
        std::thread::sleep(ms(50));
        tx.send(7).unwrap();
        drop(hold);
    });
    let start = Instant::now();
    let answer = sim.block_on(sim.handle().timeout(secs(100), rx));
    assert_eq!(answer, Ok(Ok(7)));
    assert_eq!(sim.elapsed(), ms(0), "time moved while work was being done");
    assert!(start.elapsed() >= ms(50));
    worker.join().unwrap();

    // The holder never lets go; time can still be moved by hand.
    let (_tx, rx) = futures::channel::oneshot::channel::<u32>();
    let _hold = sim.hold();
    let task = sim.spawn(sim.handle().timeout(secs(100), rx));
    sim.run_until_idle();
    assert!(!task.is_finished());
    sim.advance(secs(100));
    assert!(task.take().unwrap().is_err());
    assert_eq!(sim.elapsed(), secs(100));
}

#[test]
fn c146_whoever_is_woken_sees_its_own_time() {
    let sim = Sim::new();
    let log = Log::default();
    for (id, at) in [("a", 10), ("b", 25), ("c", 25), ("d", 99)] {
        logging(&sim, &log, id, at);
    }
    sim.settle();
    sim.advance(ms(100));
    assert_eq!(*log.lock().unwrap(), [("a", 10), ("b", 25), ("c", 25), ("d", 99)]);
    assert_eq!(sim.elapsed(), ms(100));
}

#[test]
fn c148_a_nested_advance_never_moves_time_back() {
    // In a task: it is a whole advance, and the outer one has nothing left to do.
    let sim = Sim::new();
    let log = Log::default();
    let (me, log2) = (sim.clone(), log.clone());
    sim.spawn(async move {
        me.handle().sleep(ms(1)).await;
        me.advance(ms(104));
        log2.lock().unwrap().push(("nested", me.elapsed().as_millis() as u64));
    });
    for (id, at) in [("b", 2), ("c", 3), ("d", 50)] {
        logging(&sim, &log, id, at);
    }
    sim.settle();
    sim.advance(ms(10));
    assert_eq!(*log.lock().unwrap(), [("b", 2), ("c", 3), ("d", 50), ("nested", 105)]);
    assert_eq!(sim.elapsed(), ms(105));

    // In a waker, in the middle of a turn: the clock moves, and what it passed fires after.
    let sim = Sim::new();
    let me = sim.clone();
    let waker = on_wake(move || me.advance(ms(104)));
    let mut first = sim.handle().sleep(ms(1));
    assert!(poll(&mut first, &waker).is_pending());
    let log = Log::default();
    for (id, at) in [("b", 2), ("c", 3), ("d", 50)] {
        logging(&sim, &log, id, at);
    }
    sim.settle();
    sim.advance(ms(10));
    assert_eq!(*log.lock().unwrap(), [("b", 105), ("c", 105), ("d", 105)]);
    assert_eq!(sim.elapsed(), ms(105));
}

#[test]
fn c150_step_to_the_next_deadline_and_switch_auto_advance() {
    let sim = Sim::new();
    let mut sleeps = [10, 25, 25, 70].map(|t| sim.handle().sleep(ms(t)));
    sleeps.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    let t0 = sim.now();
    let steps: Vec<_> = std::iter::from_fn(|| sim.advance_to_next()).map(|t| t - t0).collect();
    assert_eq!(steps, [ms(10), ms(25), ms(70)]);

    let sim = Sim::new();
    let log = Log::default();
    logging(&sim, &log, "a", 10);
    sim.set_auto_advance(false);
    let end = Instant::now() + ms(50);
    while Instant::now() < end {
        sim.run_until_idle();
    }
    assert_eq!((sim.elapsed(), log.lock().unwrap().len()), (ms(0), 0));
    sim.set_auto_advance(true);
    sim.run_until_idle();
    assert_eq!(*log.lock().unwrap(), [("a", 10)]);
}

#[test]
fn wakeups_are_counted_and_asserted() {
    let sim = Sim::new();
    for i in 0..40 {
        let h = sim.handle();
        sim.spawn(async move { h.sleep_range(ms(100 + i), ms(150 + i)).await });
    }
    sim.settle();
    let (_, cost) = sim.cost(|| sim.advance(secs(1)));
    assert_eq!((cost.wakeups, cost.spurious, cost.fired), (1, 0, 40));
    let h = sim.handle();
    sim.assert_wakeups(2, || {
        sim.block_on(async {
            h.sleep(ms(1)).await;
            h.sleep_range(ms(1), ms(2)).await;
        });
    });
    let failed = std::panic::catch_unwind(|| sim.assert_wakeups(1, || ()));
    assert!(failed.is_err());
}

#[test]
fn the_end_of_an_advance_is_no_wakeup() {
    let sim = Sim::new();
    let task = sim.spawn(sim.handle().sleep_range(ms(90), ms(200)));
    sim.assert_wakeups(0, || sim.advance(ms(100)));
    assert!(!task.is_finished(), "a driver would not have woken by then");
    // From there on it is awake: what is open then needs no wakeup of its own.
    sim.assert_wakeups(0, || sim.run_until_idle());
    assert_eq!(sim.elapsed(), ms(100));
    assert!(task.is_finished());
}

#[test]
fn a_seed_replays_its_order() {
    let order = |seed: u64| {
        let sim = Sim::seeded(seed);
        let log = Log::default();
        for id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            logging(&sim, &log, id, 5);
            logging(&sim, &log, id, 7);
        }
        sim.run_until_idle();
        assert_eq!(sim.seed(), Some(seed));
        let ids: String = log.lock().unwrap().iter().map(|l| l.0).collect();
        (ids, sim.random())
    };
    assert_eq!(order(1), order(1));
    assert!((2..20).any(|seed| order(seed).0 != order(1).0));
}

#[test]
fn time_waits_for_every_registered_thread() {
    let sim = Sim::new();
    let (ready, go) = mpsc::channel::<()>();
    let worked = Arc::new(AtomicBool::new(false));
    let hold = sim.hold();
    let other = {
        let (sim, worked) = (sim.clone(), worked.clone());
        std::thread::spawn(move || {
            let thread = sim.thread();
            drop(hold);
            go.recv().unwrap();
            // Busy, without a word to the simulation: time must not move.
            std::thread::sleep(ms(30));
            worked.store(true, Ordering::SeqCst);
            assert_eq!(sim.elapsed(), ms(0));
            thread.block_on(sim.handle().sleep(ms(20)));
            sim.elapsed()
        })
    };
    ready.send(()).unwrap();
    sim.block_on(sim.handle().sleep(ms(10)));
    assert!(worked.load(Ordering::SeqCst), "time moved while a thread was busy");
    assert_eq!(sim.elapsed(), ms(10));
    sim.block_on(sim.handle().sleep(ms(40)));
    assert_eq!(other.join().unwrap(), ms(20));
    assert_eq!(sim.elapsed(), ms(50));
}

#[test]
fn many_threads_share_one_time() {
    let sim = Sim::new();
    let hold = sim.hold();
    let barrier = Arc::new(std::sync::Barrier::new(9));
    let threads: Vec<_> = (1..=8u64)
        .map(|i| {
            let (sim, barrier) = (sim.clone(), barrier.clone());
            std::thread::spawn(move || {
                let thread = sim.thread();
                barrier.wait();
                for k in 1..=50 {
                    thread.block_on(sim.handle().sleep_until(sim.now() + ms(i)));
                    // Nobody else moved time past what this thread asked for.
                    assert_eq!(sim.elapsed(), ms(i * k));
                }
            })
        })
        .collect();
    barrier.wait();
    drop(hold);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(sim.elapsed(), ms(400));
}

#[test]
fn a_foreign_executor_says_when_it_is_idle() {
    let sim = Sim::new();
    let thread = sim.thread();
    let h = sim.handle();
    // Its own executor, with its own way to wait.
    let (signal, woken) = mpsc::channel();
    let waker = {
        struct Send(mpsc::Sender<()>);
        impl std::task::Wake for Send {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(());
            }
        }
        std::task::Waker::from(Arc::new(Send(signal)))
    };
    let mut task = Box::pin(async move {
        for _ in 0..10 {
            h.sleep(secs(60)).await;
        }
    });
    while poll(&mut task, &waker).is_pending() {
        let idle = thread.idle();
        woken.recv_timeout(secs(10)).expect("woken by the time that its own wait let pass");
        drop(idle);
    }
    assert_eq!(sim.elapsed(), secs(600));
}

#[test]
fn a_panicking_waker_or_task_leaves_a_usable_simulation() {
    let sim = Sim::new();
    let mut s = sim.handle().sleep(ms(1));
    assert!(poll(&mut s, &on_wake(|| panic!("a waker fails"))).is_pending());
    let good = sim.spawn(sim.handle().sleep(ms(1)));
    let bad = sim.spawn(async { panic!("a task fails") });
    let mut panics = 0;
    for _ in 0..5 {
        let run = std::panic::AssertUnwindSafe(|| sim.run_until_idle());
        panics += std::panic::catch_unwind(run).is_err() as u32;
    }
    assert_eq!(panics, 2);
    assert!(good.is_finished() && bad.is_finished() && bad.take().is_none());
    assert_eq!(sim.elapsed(), ms(1));
}

#[test]
fn tasks_can_be_cancelled_also_by_themselves_and_shut_down() {
    let sim = Sim::new();
    let count = Arc::new(());
    let held = count.clone();
    let h = sim.handle();
    let task = sim.spawn(async move {
        let _held = held;
        h.sleep(secs(1)).await;
    });
    sim.settle();
    task.cancel();
    assert!(task.is_finished() && Arc::strong_count(&count) == 1);
    sim.assert_wakeups(0, || sim.run_until_idle());

    let own: Arc<Mutex<Option<sim::Task<()>>>> = Arc::default();
    let me = own.clone();
    let task = sim.spawn(async move {
        me.lock().unwrap().take().unwrap().cancel();
        std::future::pending::<()>().await;
    });
    *own.lock().unwrap() = Some(task);
    sim.settle();

    let (woken, waker) = counter();
    let mut s = sim.handle().sleep(secs(1));
    assert!(poll(&mut s, &waker).is_pending());
    sim.shut_down();
    sim.shut_down();
    assert_eq!(woken.get(), 1);
    assert!(poll(&mut s, &waker).is_pending() && s.is_orphaned());
    assert_eq!(sim.advance_to_next(), None);
    sim.advance(ms(5));
}
