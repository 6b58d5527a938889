//! The driver's races, on the code that runs: `Lane` with its shards and its arming protocol, over a
//! kernel timer and a clock that are loom's atomics.
//!
//! Under `cargo loom` every interleaving is explored (two preemptions); in `cargo test` the same bodies
//! run many times on threads. loom has no clock: time is a number that a thread moves, a timeout is a
//! thread that turns the wheel. Each family has a planted bug that loom must find.
//!
//! What is checked at rest: the kernel timer stands at or before the smallest pending `latest`; every
//! entry was fired, cancelled or orphaned, exactly once.

use super::arming::Host;
use super::batch::WakeBatch;
use super::firing::Firing;
use super::lane::Lane;
use crate::clock::Clock;
use crate::park::{Alarm, Armed, Bell, Expiry, KernelTimer};
use crate::primitive::plant::{Bug, planted};
#[cfg(loom)]
use crate::primitive::test::finds;
use crate::primitive::test::model;
use crate::primitive::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
    thread,
};
use crate::tick::NEVER;
use crate::window::Span;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// Any life will do.
const LIFE: u64 = 7;
/// One shard: all threads meet there.
const SHARD: usize = 0;
/// Times below are in this unit, so that ticks do not matter and "near" is near.
const UNIT: u64 = 10_000;

struct Timer {
    at: AtomicU64,
    clock: AtomicU64,
}

struct Kernel(Arc<Timer>);

impl KernelTimer for Kernel {
    fn arm(&self, at: u64, _remote: bool) -> Armed {
        self.0.at.store(at, SeqCst);
        Armed::Timer
    }

    fn take_expiry(&self) -> Expiry {
        if self.0.at.load(SeqCst) > self.0.clock.load(SeqCst) {
            return Expiry::NotYet;
        }
        self.0.at.store(NEVER, SeqCst);
        Expiry::Expired
    }

    fn has_come(&self, at: u64) -> bool {
        at <= self.0.clock.load(SeqCst)
    }
}

struct World {
    lane: Lane<Kernel>,
    timer: Arc<Timer>,
}

impl World {
    fn new(host: Host) -> Arc<World> {
        let timer = Arc::new(Timer { at: AtomicU64::new(NEVER), clock: AtomicU64::new(0) });
        let lane = Lane::new(1, false);
        lane.open(LIFE, Firing::Latest);
        lane.arming.open(Kernel(timer.clone()), host);
        Arc::new(World { lane, timer })
    }

    fn park(&self, now: u64) -> bool {
        self.lane.arming.park(now, &self.lane)
    }

    /// The thread waits, or somebody else polls: nobody looks at the shards again by himself.
    fn check_armed(&self) {
        let armed = self.timer.at.load(SeqCst);
        // An arm whose time has come ends the wait now, whatever else is pending.
        let wanted = self.lane.next_wake_exact().max(self.timer.clock.load(SeqCst));
        assert!(armed <= wanted, "armed for {armed}, but {wanted} is pending");
    }

    fn turn(&self) -> usize {
        let mut batch = WakeBatch::default();
        self.lane.turn(self.timer.clock.load(SeqCst), &mut batch).fired
    }
}

fn at(units: u64) -> Span {
    Span::with_slack(units * UNIT, 0)
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Calls {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn noop() -> Waker {
    Waker::noop().clone()
}

fn two_inserts() {
    let world = World::new(Host::Parks);
    assert!(world.park(0));
    let insert = |units| {
        let world = world.clone();
        move || drop(world.lane.register(SHARD, LIFE, at(units), noop()))
    };
    let other = thread::spawn(insert(5));
    insert(10)();
    other.join().unwrap();
    world.check_armed();
}

#[test]
fn two_inserts_race_to_arm() {
    model(two_inserts);
}

#[cfg(loom)]
#[test]
fn arming_and_publishing_apart_is_found() {
    finds(Bug::ArmThenPublish, two_inserts);
}

fn insert_and_park() {
    let world = World::new(Host::Parks);
    world.lane.register(SHARD, LIFE, at(10), noop()).unwrap();
    let other = {
        let world = world.clone();
        thread::spawn(move || drop(world.lane.register(SHARD, LIFE, at(5), noop())))
    };
    let parked = world.park(0);
    other.join().unwrap();
    assert!(parked);
    world.check_armed();
}

#[test]
fn an_insert_races_with_a_park() {
    model(insert_and_park);
}

#[cfg(loom)]
#[test]
fn a_park_that_does_not_rescan_is_found() {
    finds(Bug::NoRescan, insert_and_park);
}

fn raise_and_insert() {
    let world = World::new(Host::Parks);
    let first = world.lane.register(SHARD, LIFE, at(10), noop()).unwrap();
    world.lane.register(SHARD, LIFE, at(50), noop()).unwrap();
    assert!(world.park(0));
    drop(world.lane.cancel(SHARD, LIFE, first, at(10)));
    assert!(world.lane.arming.stale_arm().is_some());
    let other = {
        let world = world.clone();
        // Sees the stale arm and needs no call, or the raised one and must arm.
        thread::spawn(move || drop(world.lane.register(SHARD, LIFE, at(20), noop())))
    };
    world.lane.raise(9 * UNIT);
    other.join().unwrap();
    world.check_armed();
}

#[test]
fn a_raise_races_with_an_insert_that_skipped_its_call() {
    model(raise_and_insert);
}

#[cfg(loom)]
#[test]
fn a_raise_without_the_lock_is_found() {
    finds(Bug::RaiseUnlocked, raise_and_insert);
}

#[cfg(loom)]
#[test]
fn a_raise_that_does_not_rescan_is_found() {
    finds(Bug::NoRescan, raise_and_insert);
}

fn expiry_and_clock() {
    let world = World::new(Host::Parks);
    world.lane.register(SHARD, LIFE, at(5), noop()).unwrap();
    assert!(world.park(0));
    let time = {
        let world = world.clone();
        thread::spawn(move || world.timer.clock.store(5 * UNIT, SeqCst))
    };
    // The wait returns at some moment: at the expiry, or for another reason.
    let early = world.timer.clock.load(SeqCst);
    let expiry = world.lane.arming.awake(true);
    let now = if planted(Bug::ClockFirst) { early } else { world.timer.clock.load(SeqCst) };
    let fired = world.lane.turn(now, &mut WakeBatch::default()).fired;
    assert!(expiry == Expiry::NotYet || fired == 1, "an expiry was taken and nothing fired");
    time.join().unwrap();
    assert_eq!(fired + world.turn(), 1);
}

#[test]
fn an_expiry_races_with_the_clock() {
    model(expiry_and_clock);
}

#[cfg(loom)]
#[test]
fn reading_the_clock_before_the_descriptor_is_found() {
    finds(Bug::ClockFirst, expiry_and_clock);
}

/// With a polled descriptor every turn ends armed, whatever other threads insert meanwhile; here it
/// moves a stale arm to a later time, while an insert relies on the early one.
fn polled_turn_and_insert() {
    let world = World::new(Host::Polls);
    let first = world.lane.register(SHARD, LIFE, at(5), noop()).unwrap();
    world.lane.register(SHARD, LIFE, at(50), noop()).unwrap();
    drop(world.lane.cancel(SHARD, LIFE, first, at(5)));
    let other = {
        let world = world.clone();
        thread::spawn(move || drop(world.lane.register(SHARD, LIFE, at(20), noop())))
    };
    world.lane.arming.polled();
    world.turn();
    world.lane.arming.rearm(&world.lane);
    other.join().unwrap();
    world.check_armed();
}

#[test]
fn a_polled_turn_races_with_an_insert() {
    model(polled_turn_and_insert);
}

#[cfg(loom)]
#[test]
fn a_polled_turn_that_does_not_rescan_is_found() {
    finds(Bug::NoRescan, polled_turn_and_insert);
}

fn cancel_and_fire() {
    let world = World::new(Host::Parks);
    let calls = Arc::new(Calls::default());
    let key = world.lane.register(SHARD, LIFE, at(5), calls.clone().into()).unwrap();
    world.timer.clock.store(5 * UNIT, SeqCst);
    let driver = {
        let world = world.clone();
        thread::spawn(move || world.turn())
    };
    let cancelled = world.lane.cancel(SHARD, LIFE, key, at(5)).is_some();
    let fired = driver.join().unwrap();
    assert_eq!(fired + cancelled as usize, 1, "exactly once, or cancelled");
    assert_eq!(calls.count(), fired);
    assert!(world.lane.cancel(SHARD, LIFE, key, at(5)).is_none());
}

#[test]
fn a_cancel_races_with_the_fire() {
    model(cancel_and_fire);
}

#[cfg(loom)]
#[test]
fn a_cancel_in_two_steps_is_found() {
    finds(Bug::CancelTwice, cancel_and_fire);
}

fn reset_and_fire() {
    let world = World::new(Host::Parks);
    let calls = Arc::new(Calls::default());
    let key = world.lane.register(SHARD, LIFE, at(5), calls.clone().into()).unwrap();
    assert!(world.park(0));
    world.timer.clock.store(5 * UNIT, SeqCst);
    let driver = {
        let world = world.clone();
        thread::spawn(move || {
            world.lane.arming.awake(true);
            let fired = world.turn();
            assert!(world.park(5 * UNIT));
            fired
        })
    };
    let moved = world.lane.reset(SHARD, LIFE, key, at(5), at(20));
    let fired = driver.join().unwrap();
    assert_eq!(fired, !moved as usize);
    world.check_armed();
    world.timer.clock.store(20 * UNIT, SeqCst);
    assert_eq!(world.turn(), moved as usize);
    assert_eq!(calls.count(), 1, "once, at one time or the other");
}

#[test]
fn a_reset_races_with_the_fire() {
    model(reset_and_fire);
}

/// A waker that was already collected may be called once more; the entry is gone all the same, and its
/// place may belong to another by then.
fn drop_and_wake() {
    let world = World::new(Host::Parks);
    let first = Arc::new(Calls::default());
    let second = Arc::new(Calls::default());
    let key = world.lane.register(SHARD, LIFE, at(5), first.clone().into()).unwrap();
    world.timer.clock.store(5 * UNIT, SeqCst);
    let driver = {
        let world = world.clone();
        thread::spawn(move || world.turn())
    };
    drop(world.lane.cancel(SHARD, LIFE, key, at(5)));
    let next = world.lane.register(SHARD, LIFE, at(9), second.clone().into()).unwrap();
    assert!(world.lane.cancel(SHARD, LIFE, key, at(5)).is_none(), "a stale key is harmless");
    driver.join().unwrap();
    assert!(first.count() <= 1);
    assert_eq!(second.count(), 0);
    assert!(world.lane.cancel(SHARD, LIFE, next, at(9)).is_some());
    assert_eq!(world.lane.next_wake_exact(), NEVER, "nothing is left behind");
}

#[test]
fn a_drop_races_with_the_wake() {
    model(drop_and_wake);
}

fn shutdown_and_all() {
    let world = World::new(Host::Parks);
    let old = Arc::new(Calls::default());
    let new = Arc::new(Calls::default());
    let key = world.lane.register(SHARD, LIFE, at(5), old.clone().into()).unwrap();
    let owner = {
        let world = world.clone();
        thread::spawn(move || {
            let mut batch = WakeBatch::default();
            world.lane.close(|waker| batch.push(waker));
            drop(world.lane.arming.close());
            batch.wake();
        })
    };
    let user = {
        let (world, new) = (world.clone(), new.clone());
        thread::spawn(move || world.lane.register(SHARD, LIFE, at(3), new.into()).is_ok())
    };
    let cancelled = world.lane.cancel(SHARD, LIFE, key, at(5)).is_some();
    let registered = user.join().unwrap();
    owner.join().unwrap();
    assert_eq!(old.count() + cancelled as usize, 1, "woken once, or cancelled");
    assert_eq!(new.count(), registered as usize, "woken once, or refused");
    assert_eq!(world.lane.next_wake_exact(), NEVER);
    assert!(world.lane.register(SHARD, LIFE, at(1), noop()).is_err());
}

#[test]
fn a_shutdown_races_with_everything() {
    model(shutdown_and_all);
}

#[cfg(loom)]
#[test]
fn a_shutdown_that_drains_before_it_closes_is_found() {
    finds(Bug::DrainThenClose, shutdown_and_all);
}

/// A poll that looks without the lock, as a sleep's does, while a turn fires its timer or the driver ends.
fn look_and(ends: bool) {
    let world = World::new(Host::Parks);
    let life = Arc::new(AtomicU64::new(LIFE));
    world.lane.register(SHARD, LIFE, at(5), noop()).unwrap();
    // The owner goes first: loom takes its own look at the bound, just before it writes, for the last one.
    let task = {
        let (world, life) = (world.clone(), life.clone());
        thread::spawn(move || {
            if let Some(turned) = world.lane.passed_at(SHARD, at(5).earliest)
                && life.load(Relaxed) == LIFE
            {
                assert!(!ends, "the driver ended and fired nothing");
                assert_eq!(turned, 6 * UNIT);
            }
        })
    };
    if ends {
        life.store(0, Relaxed);
        world.lane.close(drop);
    } else {
        let mut batch = WakeBatch::default();
        assert_eq!(world.lane.turn(6 * UNIT, &mut batch).fired, 1);
        batch.wake();
    }
    task.join().unwrap();
}

#[test]
fn a_look_without_the_lock_races_with_the_fire() {
    model(|| look_and(false));
}

#[test]
fn a_look_without_the_lock_races_with_a_shutdown() {
    model(|| look_and(true));
}

#[cfg(loom)]
#[test]
fn a_turn_that_hides_its_time_is_found() {
    finds(Bug::PublishRelaxed, || look_and(false));
}

#[cfg(loom)]
#[test]
fn a_shutdown_that_hides_the_end_is_found() {
    finds(Bug::CloseRelaxed, || look_and(true));
}

/// Stands in for the descriptor that ends a wait.
struct Ring(AtomicBool);

impl Alarm for Ring {
    fn arm(&self, _at: u64, _remote: bool) -> Armed {
        Armed::Quiet
    }

    fn take_expiry(&self) -> Expiry {
        Expiry::NotYet
    }

    fn has_come(&self, _at: u64) -> bool {
        false
    }

    fn ring(&self) {
        self.0.store(true, SeqCst);
    }

    fn open(&self, _clock: Clock) -> std::io::Result<Arc<dyn Alarm>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

fn notify_and_park() {
    let ring = Arc::new(Ring(AtomicBool::new(false)));
    let bell = Arc::new(Bell::new(ring.clone()));
    let notifier = {
        let bell = bell.clone();
        thread::spawn(move || bell.notify())
    };
    let waits = bell.prepare();
    notifier.join().unwrap();
    // A wait that nothing ends would last for ever.
    assert!(!waits || ring.0.load(SeqCst), "a notification is lost");
    assert_eq!(bell.finish(), waits);
    assert!(!bell.take());
}

#[test]
fn a_notification_races_with_the_park() {
    model(notify_and_park);
}
