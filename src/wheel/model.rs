//! The wheel against a naive model, and its wakeups against the offline optimum.
//!
//! Properties (each is checked after every operation):
//! - the same entries are pending, with the same windows; a key is never valid again;
//! - `advance` hands out exactly what is due, by tick, then by insertion (entries that were reset
//!   have no promised place among equals); `pop` hands out the same, one at a time, and what it left is
//!   pending like anything else: it can be cancelled and reset, and `first` shows it;
//! - `next_wake_exact` is the smallest pending `latest`, `next_deadline` the smallest `earliest`;
//!   `next_wake` is never after the first, `first_due` never after the second;
//! - driven at `next_wake`, a wheel wakes as often as greedy interval piercing of the windows, also
//!   with arrivals over time and with wakeups from outside (free points).

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The wheel as one would write it in ten lines.
#[derive(Default)]
struct Naive {
    /// By insertion; a reset entry gets `u64::MAX` as order, since its place is not promised.
    pending: BTreeMap<u64, (u64, u64, bool)>,
}

impl Naive {
    fn due(&mut self, now: u64) -> Vec<(u64, u64)> {
        let mut due: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, w)| w.0 <= now)
            .map(|(id, w)| (tick_of(w.0), *id))
            .collect();
        due.sort_unstable();
        for (_, id) in &due {
            self.pending.remove(id);
        }
        due
    }
    fn wake(&self) -> Option<u64> {
        self.pending.values().map(|w| w.1).min().filter(|l| *l != NEVER)
    }
    fn deadline(&self) -> Option<u64> {
        self.pending.values().map(|w| w.0).min()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert { ahead: u64, slack: u64 },
    InsertPast { back: u64 },
    InsertMany { n: u16, ahead: u64, spread: u64, slack: u64 },
    Cancel(usize),
    Reset { which: usize, ahead: u64, slack: u64 },
    Advance { by: u64, limit: usize },
    AdvanceToWake,
    Pop { by: u64, n: usize, limit: usize },
    NextWake,
}

/// Distances that matter: around every level's width, tiny ones, years, and the clock's end.
fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..5_000,
        4 => 0u64..100_000_000,
        3 => (10u32..64, -3i64..4).prop_map(|(bits, off)| (1u64 << bits).saturating_add_signed(off)),
        2 => (0u64..20, 0u64..1000).prop_map(|(y, ns)| y * 31_557_600_000_000_000 + ns),
        1 => Just(u64::MAX),
        1 => (0u64..3).prop_map(|x| u64::MAX - x),
        1 => (0u64..64).prop_map(|slot| slot << 58),
    ]
}

fn slack() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0u64..2_000_000, 2 => distance()]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (distance(), slack()).prop_map(|(ahead, slack)| Op::Insert { ahead, slack }),
        1 => (0u64..10_000).prop_map(|back| Op::InsertPast { back }),
        1 => (1u16..400, distance(), prop_oneof![Just(1u64), 1u64..5_000_000], slack())
            .prop_map(|(n, ahead, spread, slack)| Op::InsertMany { n, ahead, spread, slack }),
        4 => any::<usize>().prop_map(Op::Cancel),
        4 => (any::<usize>(), distance(), slack())
            .prop_map(|(which, ahead, slack)| Op::Reset { which, ahead, slack }),
        5 => (distance(), prop_oneof![Just(usize::MAX), 1usize..64])
            .prop_map(|(by, limit)| Op::Advance { by, limit }),
        3 => Just(Op::AdvanceToWake),
        4 => (distance(), 0usize..8, prop_oneof![Just(usize::MAX), 1usize..64])
            .prop_map(|(by, n, limit)| Op::Pop { by, n, limit }),
        2 => Just(Op::NextWake),
    ]
}

struct Pair {
    wheel: Wheel<u64>,
    naive: Naive,
    /// Due when they were inserted: they come after what was due then.
    past: BTreeSet<u64>,
    keys: Vec<(u64, Key)>,
    gone: Vec<Key>,
    now: u64,
}

impl Pair {
    fn insert(&mut self, earliest: u64, slack: u64) {
        let latest = earliest.saturating_add(slack);
        let id = self.wheel.sequence + 1;
        let key = self.wheel.insert(earliest, latest, id);
        assert_eq!(key.sequence, id);
        self.naive.pending.insert(id, (earliest, latest, false));
        if earliest <= self.now {
            self.past.insert(id);
        }
        self.keys.push((id, key));
    }

    /// Takes one due entry; false when there is none.
    fn pop(&mut self, now: u64, limit: usize) -> bool {
        self.now = self.now.max(now);
        let popped = loop {
            match self.wheel.pop(now, limit) {
                Popped::Entry(fired) => break Some(fired),
                Popped::Nothing => break None,
                Popped::Unfinished => {}
            }
        };
        let due = || self.naive.pending.iter().filter(|(_, w)| w.0 <= self.now);
        let Some(fired) = popped else {
            assert_eq!(due().count(), 0, "lost");
            return false;
        };
        let loose = |id: &u64, w: &(u64, u64, bool)| w.2 || self.past.contains(id);
        let first = due().filter(|(id, w)| !loose(id, w)).map(|(id, w)| (tick_of(w.0), *id)).min();
        let w = self.naive.pending[&fired.value];
        assert_eq!((w.0, w.1), (fired.earliest, fired.latest));
        assert!(w.0 <= self.now, "early");
        if !loose(&fired.value, &w) {
            assert_eq!(Some((tick_of(w.0), fired.value)), first, "out of order");
        }
        self.naive.pending.remove(&fired.value);
        self.forget();
        true
    }

    /// Keys of what has come out are gone.
    fn forget(&mut self) {
        self.keys.retain(|(id, key)| {
            let kept = self.naive.pending.contains_key(id);
            if !kept {
                self.gone.push(*key);
            }
            kept
        });
    }

    fn advance(&mut self, now: u64, limit: usize) {
        self.now = self.now.max(now);
        let mut out = Vec::new();
        loop {
            let step = self.wheel.advance(now, limit, |f| {
                assert!(f.earliest <= self.now, "early");
                out.push((tick_of(f.earliest), f.value));
            });
            if !step.more {
                break;
            }
        }
        let reset: Vec<u64> =
            self.naive.pending.iter().filter(|(_, w)| w.2).map(|(id, _)| *id).collect();
        let due = self.naive.due(self.now);
        let promised = |v: &[(u64, u64)]| -> Vec<(u64, u64)> {
            v.iter().filter(|(_, id)| !reset.contains(id)).copied().collect()
        };
        // A wheel that was given entries of its past hands them out with its present tick.
        let ticks_ordered = out.windows(2).all(|w| w[0].0 <= w[1].0);
        if ticks_ordered {
            assert_eq!(promised(&out), promised(&due));
        }
        let mut a: Vec<u64> = out.iter().map(|x| x.1).collect();
        let mut b: Vec<u64> = due.iter().map(|x| x.1).collect();
        a.sort_unstable();
        b.sort_unstable();
        assert_eq!(a, b);
        self.forget();
    }

    fn check(&mut self) {
        assert_eq!(self.wheel.len(), self.naive.pending.len());
        assert_eq!(self.wheel.next_deadline(), self.naive.deadline());
        let first = self.naive.deadline().unwrap_or(NEVER);
        assert!(self.wheel.first_due() <= first);
        for looks in [0, 3, 64] {
            assert!(self.wheel.first_due_within(looks) <= first);
        }
        if self.wheel.splitting.is_none() {
            assert_eq!(self.wheel.first_due_within(usize::MAX), first);
        }
        let peeked = self.wheel.first().map(|key| *self.wheel.get(key).unwrap());
        let shown = peeked.map(|id| tick_of(self.naive.pending[&id].0));
        assert_eq!(shown, self.naive.deadline().map(tick_of));
        for (id, key) in &self.keys {
            let w = self.naive.pending[id];
            assert_eq!(self.wheel.window(*key), Some((w.0, w.1)));
            assert_eq!(self.wheel.get(*key), Some(id));
        }
        for key in &self.gone {
            assert!(!self.wheel.contains(*key));
        }
    }
}

fn run(ops: &[Op]) {
    let mut p = Pair {
        wheel: Wheel::new(),
        naive: Naive::default(),
        past: BTreeSet::new(),
        keys: Vec::new(),
        gone: Vec::new(),
        now: 0,
    };
    for op in ops {
        match *op {
            Op::Insert { ahead, slack } => p.insert(p.now.saturating_add(ahead), slack),
            Op::InsertPast { back } => p.insert(p.now.saturating_sub(back), 0),
            Op::InsertMany { n, ahead, spread, slack } => {
                for i in 0..n as u64 {
                    let e = p.now.saturating_add(ahead).saturating_add(i * 7919 % spread);
                    p.insert(e, slack);
                }
            }
            Op::Cancel(which) => {
                if !p.keys.is_empty() {
                    let (id, key) = p.keys.swap_remove(which % p.keys.len());
                    assert_eq!(p.wheel.cancel(key), Some(id));
                    assert_eq!(p.wheel.cancel(key), None);
                    p.naive.pending.remove(&id);
                    p.gone.push(key);
                }
            }
            Op::Reset { which, ahead, slack } => {
                if !p.keys.is_empty() {
                    let (id, key) = p.keys[which % p.keys.len()];
                    let earliest = p.now.saturating_add(ahead);
                    let latest = earliest.saturating_add(slack);
                    assert!(p.wheel.reset(key, earliest, latest));
                    p.naive.pending.insert(id, (earliest, latest, true));
                }
            }
            Op::Advance { by, limit } => p.advance(p.now.saturating_add(by), limit),
            Op::AdvanceToWake => {
                if let Some(at) = p.wheel.next_wake() {
                    p.advance(at, usize::MAX);
                }
            }
            Op::Pop { by, n, limit } => {
                let now = p.now.saturating_add(by);
                for _ in 0..n {
                    if !p.pop(now, limit) {
                        break;
                    }
                }
            }
            Op::NextWake => {
                let exact = p.naive.wake();
                let bound = p.wheel.next_wake();
                assert!(bound.unwrap_or(NEVER) <= exact.unwrap_or(NEVER), "{bound:?} {exact:?}");
                assert_eq!(p.wheel.next_wake_exact(), exact);
            }
        }
        p.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn does_what_the_naive_model_does(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops);
    }

    #[test]
    fn wakes_as_often_as_the_offline_optimum(
        windows in prop::collection::vec((0u64..3_000_000, 0u64..1_000_000, slack()), 1..200),
        outside in prop::collection::vec(0u64..4_000_000, 0..20),
    ) {
        // (arrival, earliest, latest); `outside` are instants at which something else wakes.
        let windows: Vec<(u64, u64, u64)> = windows
            .into_iter()
            .map(|(at, ahead, slack)| (at, at + ahead, (at + ahead).saturating_add(slack)))
            .collect();
        prop_assert_eq!(drive(&windows, &outside), optimum(&windows, &outside));
    }
}

/// Forced wakeups of a wheel that is driven at `next_wake`, told of arrivals as they come.
fn drive(windows: &[(u64, u64, u64)], outside: &[u64]) -> usize {
    let mut arrivals = windows.to_vec();
    arrivals.sort_unstable();
    let mut outside = outside.to_vec();
    outside.sort_unstable();
    let mut wheel = Wheel::new();
    let (mut a, mut o, mut wakes) = (0, 0, 0);
    loop {
        let next = wheel.next_wake_exact().unwrap_or(NEVER);
        let arrival = arrivals.get(a).map_or(NEVER, |w| w.0);
        let free = outside.get(o).copied().unwrap_or(NEVER);
        let fire = |wheel: &mut Wheel<()>, now: u64| {
            let done = wheel.advance(now, usize::MAX, |f| {
                assert!(f.earliest <= now && now <= f.latest, "outside its window");
            });
            assert!(!done.more);
        };
        if arrival <= next && arrival <= free && arrival != NEVER {
            let (at, earliest, latest) = arrivals[a];
            a += 1;
            // Eligible when it registers: it completes at once and needs no wakeup.
            if earliest > at {
                wheel.insert(earliest, latest, ());
            }
        } else if free <= next && free != NEVER {
            o += 1;
            fire(&mut wheel, free);
        } else if next != NEVER {
            wakes += 1;
            fire(&mut wheel, next);
        } else {
            return wakes;
        }
    }
}

/// Greedy interval piercing of the windows clipped to their arrival, free points given.
fn optimum(windows: &[(u64, u64, u64)], outside: &[u64]) -> usize {
    let mut left: Vec<(u64, u64, u64)> = windows
        .iter()
        .filter(|w| w.1 > w.0 && w.2 != NEVER)
        // A free point at the very instant of an arrival comes after it here.
        .filter(|w| !outside.iter().any(|o| (w.1..=w.2).contains(o)))
        .copied()
        .collect();
    left.sort_unstable_by_key(|w| w.2);
    let mut points: Vec<u64> = Vec::new();
    for (_, earliest, latest) in left {
        if points.last().is_none_or(|p| *p < earliest) {
            points.push(latest);
        }
    }
    points.len()
}

#[test]
fn far_timers_in_every_slot_never_hide_near_ones() {
    // tokio #8334: a far timer in the top level's slot of `now` hid a near one for 796 days.
    for level in 0..LEVELS as u32 {
        for at in 0..64u64 {
            let mut wheel = Wheel::new();
            let width = 1u64.checked_shl(10 + BITS * level).unwrap_or(NEVER);
            let mut far = Vec::new();
            for slot in 0..64u64 {
                let e = width.saturating_mul(slot).saturating_add(12345);
                far.push(wheel.insert(e, e, e));
            }
            let now = width.saturating_mul(at).saturating_sub(200_000_000);
            let _ = wheel.advance(now, usize::MAX, |_| ());
            let near = now.saturating_add(333_000_000);
            wheel.insert(near, near, 0);
            let next = wheel.next_wake_exact().unwrap_or(NEVER);
            assert!(next <= near, "level {level} slot {at}: {next} hides {near}");
            let mut seen = false;
            let _ = wheel.advance(near, usize::MAX, |f| seen |= f.value == 0);
            assert!(seen || near == NEVER);
        }
    }
}

#[test]
fn a_big_slot_splits_in_bounded_steps_and_in_order() {
    let mut wheel = Wheel::new();
    let at = 40_000_000_000;
    let n = 20_000u64;
    for i in 0..n {
        wheel.insert(at + (i % 50) * 5_000, NEVER, i);
    }
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut steps = 0;
    let mut late = 0;
    loop {
        let before = out.len();
        let step = wheel.advance(at + 1_000_000, 256, |f| out.push((tick_of(f.earliest), f.value)));
        assert!(out.len() - before <= 256 + 1024);
        steps += 1;
        if late < 100 && step.more {
            // Arrives in the middle of the split: it must not overtake.
            wheel.insert(at + 5_000, NEVER, n + late);
            late += 1;
        }
        if !step.more {
            break;
        }
    }
    assert!(steps > 50);
    assert_eq!(out.len() as u64, n + late);
    let mut of_tick: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (tick, id) in out {
        of_tick.entry(tick).or_default().push(id);
    }
    for ids in of_tick.values() {
        assert!(ids.is_sorted(), "out of insertion order");
    }
}

#[test]
fn the_first_deadline_is_exact_in_the_middle_of_a_split() {
    let mut wheel = Wheel::new();
    // One slot of level 1, filled from its end: what is split first is what comes last.
    for i in (0..2_000u64).rev() {
        let at = 70_000 + i * 30;
        wheel.insert(at, NEVER, i);
    }
    let mut left = 2_000;
    let mut cut = 0;
    while left > 0 {
        let step = wheel.advance(140_000, 1, |_| left -= 1);
        let mut all = Vec::new();
        wheel.scan(usize::MAX, |_, earliest, _| all.push(earliest));
        assert_eq!(wheel.next_deadline(), all.iter().min().copied());
        assert_eq!(wheel.len(), left);
        cut += (wheel.splitting.is_some() && left > 0) as usize;
        assert!(step.more || left == 0);
    }
    assert!(cut > 10, "only {cut} looks fell into the split");
}

#[test]
fn a_stale_bound_of_a_big_slot_is_repaired_by_one_wakeup() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..10_000u64)
        .map(|i| {
            let e = 30_000_000_000 + i * 1_000;
            wheel.insert(e, e, i)
        })
        .collect();
    for key in &keys[..9_000] {
        wheel.cancel(*key);
    }
    let bound = wheel.next_wake().unwrap();
    assert!(bound <= 30_009_000_000);
    let mut wakes = 0;
    let mut fired = 0;
    while let Some(at) = wheel.next_wake() {
        wakes += 1;
        fired += wheel.advance(at, usize::MAX, |_| ()).fired;
    }
    assert_eq!(fired, 1_000);
    assert!(wakes <= 1_002, "{wakes} wakeups for 1000 exact timers");
}

#[test]
fn a_rough_bound_goes_when_its_slot_empties() {
    for pops in [None, Some(false), Some(true)] {
        let mut wheel = Wheel::new();
        let keys: Vec<Key> = (0..200u64)
            .map(|i| {
                let e = 30_000_000_000 + i * 1_000;
                wheel.insert(e, e, i)
            })
            .collect();
        wheel.insert(90_000_000_000, 90_000_000_000, 200);
        // The bound of a crowded slot is that of an entry that has gone ..
        wheel.cancel(keys[0]);
        let rough = wheel.next_wake().unwrap();
        assert_eq!(rough, 30_000_000_000);
        for key in &keys[1..] {
            wheel.cancel(*key);
        }
        // Whoever was told of it may come at that time, for nothing.
        match pops {
            None => {}
            Some(true) => assert!(matches!(wheel.pop(rough, 1000), Popped::Nothing)),
            Some(false) => assert_eq!(wheel.advance(rough, usize::MAX, |_| ()).fired, 0),
        }
        assert_eq!(wheel.next_wake(), Some(90_000_000_000));
    }
}

#[test]
fn a_slot_of_64_ticks_fires_in_order_however_crowded() {
    for n in [63u64, 64, 500, 1024, 1025] {
        let mut wheel = Wheel::new();
        let mut wanted: Vec<(u64, u64)> = (0..n)
            .map(|i| {
                let at = tick_start(64) + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % tick_start(64);
                wheel.insert(at, NEVER, i);
                (tick_of(at), i)
            })
            .collect();
        wanted.sort_unstable();
        let mut fired = Vec::new();
        while wheel
            .advance(tick_start(128), 256, |f| fired.push((tick_of(f.earliest), f.value)))
            .more
        {}
        assert_eq!(fired, wanted, "{n}");
    }
}

#[test]
fn one_that_was_postponed_fires_in_the_order_of_its_new_time() {
    // Few and many in the first slot: settled by either sort.
    for crowd in [0, 100] {
        let mut wheel = Wheel::new();
        let slot = tick_start(64);
        for i in 0..crowd {
            wheel.insert(slot + 1, NEVER, 100 + i);
        }
        let moved = wheel.insert(slot + 1, NEVER, 2);
        wheel.insert(2 * slot + 1, NEVER, 1);
        wheel.reset(moved, 3 * slot + 1, NEVER);
        let mut order = Vec::new();
        let step = wheel.advance(4 * slot, usize::MAX, |f| order.push(f.value));
        assert!(!step.more);
        assert_eq!(order.len() as u64, crowd + 2);
        assert_eq!(order[crowd as usize..], [1, 2]);
    }
}

#[test]
fn a_panicking_consumer_loses_only_its_entry() {
    let mut wheel = Wheel::new();
    for i in 0..100u64 {
        wheel.insert(1_000_000 + i * 10_000, NEVER, i);
    }
    let mut seen = Vec::new();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = wheel.advance(10_000_000, usize::MAX, |f| {
            seen.push(f.value);
            assert!(f.value != 40, "consumer fails");
        });
    }));
    assert!(caught.is_err());
    let _ = wheel.advance(10_000_000, usize::MAX, |f| seen.push(f.value));
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert!(wheel.is_empty());
}

#[test]
fn memory_comes_back_after_a_burst() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..300_000u64)
        .map(|i| {
            let e = 1_000_000_000 + i * 7919 % 59_000_000_000;
            wheel.insert(e, e, i)
        })
        .collect();
    let full = wheel.resident_bytes();
    assert!(full / keys.len() <= 80, "{} bytes a timer", full / keys.len());
    for (i, key) in keys.iter().enumerate() {
        if i * 7919 % 1000 != 0 {
            wheel.cancel(*key);
        }
    }
    wheel.reap();
    let kept = wheel.resident_bytes();
    assert!(kept * 100 <= full * 15, "{kept} of {full} kept by 0.1 % of the timers");
}

#[test]
fn an_advance_visits_each_entry_a_bounded_number_of_times() {
    // tokio #6584: a slot was processed again while it was being refilled.
    let n = 3_000u64;
    let mut wheel = Wheel::new();
    for i in 0..n {
        let at = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 50);
        wheel.insert(at.min(NEVER - 1), NEVER, i);
    }
    let mut calls = 0;
    let mut fired = 0;
    while wheel.advance(NEVER - 1, 1, |_| fired += 1).more {
        calls += 1;
        // Each call fires or moves at least one.
        assert!(calls <= n * (LEVELS as u64 + 1), "it goes in circles");
    }
    assert_eq!((fired, wheel.len()), (n, 0));
}

#[test]
fn a_drain_costs_what_is_pending_not_how_far_ahead_it_lies() {
    // tokio #2789, #8570: a shutdown turned the wheel to the end of time.
    let mut wheel = Wheel::new();
    let ids: Vec<u64> = (0..64).collect();
    for i in &ids {
        let at = 1u64 << i;
        wheel.insert(at, at, *i);
    }
    let key = wheel.insert(5, 5, 64);
    let mut out = Vec::new();
    wheel.drain(|v| out.push(v));
    out.sort_unstable();
    assert_eq!(out.len(), 65);
    assert!(wheel.is_empty() && !wheel.contains(key) && wheel.next_wake().is_none());
    // It goes on at the time it had.
    let again = wheel.insert(7, 7, 1);
    assert!(again != key && wheel.cancel(key).is_none());
    assert_eq!(wheel.advance(7, usize::MAX, |_| ()).fired, 1);
}
