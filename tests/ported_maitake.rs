//! The facts of maitake's timer wheel tests, written anew for this crate. Source: the mycelium repository,
//! `maitake/src/time/timer/tests/wheel_tests.rs`, `tests/concurrent.rs` and `wheel/tests.rs` (MIT licence).
//!
//! | suite | tests there | properties here | left out, and why |
//! | --- | --- | --- | --- |
//! | wheel_tests | 6 | 6; the random one also cancels, which is a wish there | |
//! | concurrent | 1 | 1, with two sleeps and a drop elsewhere besides | (under loom, the crate's own race models) |
//! | wheel/tests | 5 | 0 | indices of slots and bits of a private layout; here the model test checks every operation against a naive wheel |
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use proptest::prelude::*;
use slackwheel::sim::{Sim, Task};
use slackwheel::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Ticks are milliseconds.
const MAX_SLEEP: u64 = (1 << 36) - 1;

/// The tasks of a group, and how many of them are not done.
type Group = (Vec<Task<()>>, Arc<AtomicU64>);

/// Groups of tasks that sleep for the same time.
struct Groups {
    sim: Sim,
    /// By when they are due.
    groups: BTreeMap<(u64, usize), Group>,
    now: u64,
}

impl Groups {
    fn new() -> Self {
        let sim = Sim::new();
        sim.set_auto_advance(false);
        Groups { sim, groups: BTreeMap::new(), now: 0 }
    }

    fn spawn(&mut self, ticks: u64, tasks: u64) {
        let left = Arc::new(AtomicU64::new(tasks));
        let all = (0..tasks)
            .map(|_| {
                // Time starts when the sleep is made.
                let (s, left) = (self.sim.handle().sleep(ms(ticks)), left.clone());
                self.sim.spawn(async move {
                    s.await;
                    left.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        self.groups.insert((self.now + ticks, self.groups.len()), (all, left));
    }

    fn advance(&mut self, ticks: u64) {
        self.sim.advance(ms(ticks));
        self.now += ticks;
        self.check();
    }

    fn check(&self) {
        for ((due, _), (tasks, left)) in &self.groups {
            let expected = if *due <= self.now { 0 } else { tasks.len() as u64 };
            assert_eq!(left.load(Ordering::SeqCst), expected, "due {due}, now {}", self.now);
        }
    }

    fn all_complete(&self) {
        assert!(self.groups.values().all(|(_, left)| left.load(Ordering::SeqCst) == 0));
        assert_eq!(self.sim.handle().metrics().unwrap().pending, 0);
    }
}

#[test]
fn a_turn_wakes_exactly_what_is_due() {
    let mut b = Bench::new();
    let (count, waker) = counter();
    let mut all: Vec<Sleep> = (0..2).map(|_| b.h().sleep(ms(100))).collect();
    all.iter_mut().for_each(|s| assert!(poll(s, &waker).is_pending()));
    assert_eq!(b.at(ms(50)).fired, 0);
    // Time passes without a turn: nobody is woken by that.
    b.set(ms(100));
    assert_eq!(count.get(), 0);
    assert_eq!(b.driver.turn().fired, 2);
    assert_eq!(count.get(), 2);
}

#[test]
fn groups_complete_at_their_time_also_when_it_is_overshot() {
    let mut t = Groups::new();
    t.spawn(100, 2);
    t.spawn(65_535, 3);
    t.spawn(6_000_000, 4);
    t.sim.settle();
    for step in [50, 50, 60_000, 56_000, 50_000, 6_000_000] {
        t.advance(step);
    }
    t.all_complete();
}

#[test]
fn groups_made_later_count_from_then() {
    let mut t = Groups::new();
    t.spawn(100, 2);
    t.spawn(70_000, 3);
    t.advance(50);
    t.spawn(100, 3);
    t.advance(50);
    t.advance(10_000);
    t.spawn(70_100, 4);
    t.advance(60_000);
    t.advance(30_000);
    t.spawn(10_000, 2);
    t.advance(40_000);
    t.all_complete();
}

#[test]
fn the_next_deadline_is_right_after_a_sooner_group_came() {
    let mut t = Groups::new();
    t.spawn(150, 2);
    t.advance(50);
    t.spawn(60, 3);
    t.sim.settle();
    let mut b = Bench::new();
    let (mut first, mut second) = (b.h().sleep(ms(150)), b.h().sleep(ms(110)));
    assert!(peek(&mut first).is_pending() && peek(&mut second).is_pending());
    b.at(ms(100));
    assert_eq!(b.driver.next_deadline(), Some(b.t0 + ms(110)));
    for step in [50, 10, 40] {
        t.advance(step);
    }
    t.all_complete();
}

#[test]
fn the_longest_sleep_of_that_wheel_is_an_ordinary_one() {
    let mut t = Groups::new();
    t.spawn(MAX_SLEEP, 2);
    t.spawn(100, 3);
    t.advance(100);
    t.advance(MAX_SLEEP / 2);
    t.spawn(MAX_SLEEP, 1);
    t.advance(MAX_SLEEP / 2);
    t.advance(MAX_SLEEP);
    t.all_complete();
}

#[derive(Debug, Clone)]
enum Action {
    Spawn(u64),
    Advance(u64),
    Cancel(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1..MAX_SLEEP).prop_map(Action::Spawn),
        3 => (1..100_000u64).prop_map(Action::Spawn),
        2 => (0..1u64 << 37).prop_map(Action::Advance),
        3 => (0..50_000u64).prop_map(Action::Advance),
        2 => any::<usize>().prop_map(Action::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_groups_complete_at_their_time(actions in prop::collection::vec(action(), 0..100)) {
        let mut t = Groups::new();
        for action in actions {
            match action {
                Action::Spawn(ticks) => t.spawn(ticks, 1),
                Action::Advance(ticks) => t.advance(ticks),
                Action::Cancel(which) => {
                    let n = t.groups.len().max(1);
                    if let Some(key) = t.groups.keys().nth(which % n).copied() {
                        let (tasks, _) = t.groups.remove(&key).unwrap();
                        tasks.iter().for_each(Task::cancel);
                    }
                }
            }
        }
        t.check();
    }
}

#[test]
fn a_sleep_on_one_thread_is_fired_by_another() {
    // One sleep, two at once, and two equal ones.
    for durations in [&[1_000][..], &[1_000, 2_000], &[1_000, 1_000]] {
        let (mut driver, clock) = Driver::manual();
        let h = driver.handle();
        let threads: Vec<_> = durations
            .iter()
            .map(|d| {
                let s = h.sleep(ms(*d));
                std::thread::spawn(move || futures::executor::block_on(s))
            })
            .collect();
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !threads.iter().all(|t| t.is_finished()) {
            assert!(std::time::Instant::now() < end, "a sleep is lost");
            clock.advance(ms(10));
            driver.turn();
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn a_sleep_dropped_on_another_thread_than_it_was_polled_on() {
    let mut b = Bench::new();
    let (count, waker) = counter();
    let mut s = b.h().sleep(ms(5));
    assert!(poll(&mut s, &waker).is_pending());
    std::thread::spawn(move || drop(s)).join().unwrap();
    assert_eq!(b.at(ms(10)).fired, 0);
    assert_eq!((count.get(), b.pending()), (0, 0));
}
