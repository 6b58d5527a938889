//! The bug classes that timers of this field have paid for, each with the property that excludes it here. Most
//! are checked where the property lives; what is checked nowhere else is in this file.
//!
//! | class (where it was) | property | checked by |
//! | --- | --- | --- |
//! | a far timer hides near ones (tokio 8334) | `next_wake` is never after the smallest `latest` | the wheel's model; `far_timers_of_every_level_hide_no_near_one`, `the_reproduction_of_tokio_8334` |
//! | an entry due by now moved or removed (tokio 2473, 3270, 849, 2587) | any operation in any state | the wheel's model (pop); `c064`, `c075` |
//! | drop or reset while being fired (tokio 3229, 3675, 5989) | fire, drop and reset in any order | the race models; `c073`, `c119`; the random programs |
//! | an earlier timer does not interrupt the park (tokio 3190) | a window before the armed wake is armed | the race models; `c025` |
//! | a stale next wake after sharding (tokio 6682) | a park looks at all shards after it published | the race models; `c137` |
//! | a slot processed again while refilled (tokio 6584) | an advance ends, each entry is visited at most once a level | the wheel's model |
//! | a cancelled entry stays until its time (tokio 8252) | the live count returns to zero | `c117`; `a_storm_of_cancels_leaves_nothing` |
//! | wakers dropped or woken under the lock (tokio 8552) | a waker may use the driver when called and when dropped | `c109`; the random programs |
//! | shutdown twice, or by turning to the end of time (tokio 2789, 8570) | a shutdown costs what is pending | the wheel's model; `c113` |
//! | overflows (tokio 3551, 4495, 6487, 8385; crossbeam 798, 953; mio 1948) | no duration panics or wraps | `c035` to `c049`; `distances_that_broke_others` |
//! | a timer for exactly now (async-io 73) | due means `earliest <= now` | `c014`, `c053` |
//! | a clock that runs backwards (tokio 3619) | the wheel never moves back | `c094`; `a_clock_that_jitters_backwards_loses_nothing` |
//! | an advance past its target (tokio 3710) | a test clock stops where it is told | `c142`; the ported pause tests |
//! | drifting ticks (crossbeam 456) | tick k is due at start + k periods | `c082`; `a_million_periods_do_not_drift` |
//! | unbounded `Send` and `Sync` (RUSTSEC-2026-0221, 2025-0023, 2020-0070) | a table, both ways | `send_and_sync_are_what_the_table_says` |
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use slackwheel::sim::{self, Sim};
use slackwheel::wheel::{Key, Wheel};
use slackwheel::*;
use std::cell::Cell;
use std::future::Pending;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

#[test]
fn the_reproduction_of_tokio_8334() {
    let sim = Sim::new();
    let mut far = sim.handle().sleep(ms((1 << 36) + (1 << 29)));
    assert!(peek(&mut far).is_pending());
    sim.advance(ms((1 << 30) - 200));
    let start = sim.now();
    sim.block_on(sim.handle().sleep(ms(333)));
    assert_eq!(sim.now() - start, ms(333));
}

#[test]
fn far_timers_of_every_level_hide_no_near_one() {
    // A timer in every slot of every level; time is aged through all of their boundaries.
    let mut b = Bench::new();
    let h = b.h();
    let mut far: Vec<Sleep> = (10..62)
        .step_by(6)
        .flat_map(|bits| (1..64u64).map(move |slot| ns((slot << bits).saturating_add(12_345))))
        .map(|d| h.sleep(d))
        .collect();
    far.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
    let mut rng = Rng(8334);
    for bits in 10..58 {
        for slot in [1u64, 2, 31, 62, 63] {
            let boundary = ns(slot << bits);
            if boundary <= b.clock.now() - b.t0 {
                continue;
            }
            b.at(boundary - ns(1 + rng.below(1000)));
            let d = ns(1 + rng.below(500_000_000));
            let mut near = h.sleep(d);
            assert!(peek(&mut near).is_pending());
            assert!(
                b.driver.next_wake().unwrap() <= near.deadline(),
                "hidden at 2^{bits} * {slot}"
            );
            let deadline = near.deadline();
            b.clock.set(deadline);
            b.driver.turn();
            assert!(peek(&mut near).is_ready());
            let due = far.iter().filter(|s| s.deadline() <= deadline).count();
            assert_eq!(b.pending(), far.len() - due, "a far timer was lost or early");
        }
    }
}

#[test]
fn a_storm_of_cancels_leaves_nothing() {
    let mut b = Bench::new();
    let h = b.h();
    let mut rng = Rng(8252);
    for _ in 0..20 {
        let mut all: Vec<Sleep> = (0..2_000).map(|_| h.sleep(ns(1 + rng.below(1 << 45)))).collect();
        all.iter_mut().for_each(|s| assert!(peek(s).is_pending()));
        while !all.is_empty() {
            drop(all.swap_remove(rng.below(all.len() as u64) as usize));
        }
        assert_eq!((b.pending(), b.driver.next_wake()), (0, None));
        b.clock.advance(ms(rng.below(1000)));
        assert_eq!(b.driver.turn().fired, 0);
    }
    h.reap().unwrap();
    assert_eq!(h.metrics().unwrap().resident_bytes, 0);
}

#[test]
fn distances_that_broke_others() {
    let epoch_like = ms(1_700_000_000_000);
    let all = [
        Duration::MAX,
        ms(1 << 31),
        ms((1 << 31) - 1),
        ms(1 << 32),
        secs(1 << 31),
        secs(1 << 32),
        ms(2_147_483_648 * 1000),
        epoch_like,
        Duration::MAX - ns(1),
        ns(u64::MAX - 1),
    ];
    for d in all {
        let mut b = Bench::new();
        let h = b.h();
        let (mut s, mut r) = (h.sleep(d), h.sleep_range(d, Duration::MAX));
        let mut iv = h.interval_at(b.t0.checked_add(d).unwrap_or(b.t0 + YEAR), d);
        assert!(peek(&mut s).is_pending() && peek(&mut r).is_pending());
        assert!(tick(&mut iv).is_pending());
        s.reset_range(d, d);
        iv.reset_after(d);
        iv.set_leeway(d);
        assert!(peek(&mut s).is_pending() && tick(&mut iv).is_pending());
        let fires = d < 500 * YEAR;
        b.clock.advance(d);
        b.driver.turn();
        assert_eq!(peek(&mut s).is_ready(), fires, "{d:?}");
        let mut w: Wheel<()> = Wheel::new();
        let at = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let k = w.insert(at, 0, ());
        assert_eq!(w.window(k), Some((at, at)), "an inverted window acts as its earliest");
        assert!(w.reset(k, at, u64::MAX));
        let _ = w.advance(u64::MAX, usize::MAX, |_| ());
    }
}

#[test]
fn a_clock_that_jitters_backwards_loses_nothing() {
    let mut b = Bench::new();
    let h = b.h();
    let mut rng = Rng(3619);
    let mut sleeps: Vec<(Sleep, bool)> =
        (0..500).map(|_| (h.sleep(us(1 + rng.below(1_000_000))), false)).collect();
    sleeps.iter_mut().for_each(|(s, _)| assert!(peek(s).is_pending()));
    let mut best = Duration::ZERO;
    let mut now = Duration::ZERO;
    while best < ms(1_001) {
        now = (now + us(rng.below(4_000))).saturating_sub(us(rng.below(1_500)));
        best = best.max(now);
        b.at(now);
        for (s, done) in sleeps.iter_mut().filter(|(_, done)| !done) {
            let deadline = s.deadline() - b.t0;
            *done = peek(s).is_ready();
            assert!(!*done || deadline <= best, "early");
        }
    }
    assert!(sleeps.iter().all(|(_, done)| *done), "lost");
    assert_eq!(b.pending(), 0);
}

#[test]
fn a_million_periods_do_not_drift() {
    let sim = Sim::new();
    let h = sim.handle();
    let mut iv = h.interval(ns(1_000_003)).leeway(ns(400_000));
    let mut rng = Rng(456);
    let start = sim.now();
    sim.block_on(async {
        for k in 0..50_000u32 {
            assert_eq!(iv.tick().await, start + ns(1_000_003) * k);
            if rng.below(100) == 0 {
                // The consumer is late now and then.
                h.sleep(ns(rng.below(2_000_000))).await;
            }
        }
    });
    // And by arithmetic for the rest: a stall of a million periods.
    let mut b = Bench::new();
    let mut iv = b.h().interval(ns(1_000_003)).missed_ticks(MissedTicks::Skip);
    assert!(tick(&mut iv).is_ready());
    b.at(ns(1_000_003) * 1_000_000 + ns(17));
    assert_eq!(tick(&mut iv), Poll::Ready(b.t0 + ns(1_000_003)));
    assert_eq!(iv.next_tick(), b.t0 + ns(1_000_003) * 1_000_001);
}

/// Whether a type has a trait, without naming the answer: the method of the inherent impl wins where its
/// bound holds.
macro_rules! has {
    ($trait:ident, $t:ty) => {{
        // Which of the two is used depends on the type.
        #[allow(dead_code)]
        trait No {
            fn has(&self) -> bool {
                false
            }
        }
        impl<T> No for std::marker::PhantomData<T> {}
        struct Probe<T>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: $trait> Probe<T> {
            fn has(&self) -> bool {
                true
            }
        }
        impl<T> std::ops::Deref for Probe<T> {
            type Target = std::marker::PhantomData<T>;
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
        Probe::<$t>(std::marker::PhantomData).has()
    }};
}

#[test]
fn send_and_sync_are_what_the_table_says() {
    macro_rules! table {
        ($($t:ty: $send:literal $sync:literal,)*) => {
            $(assert_eq!((has!(Send, $t), has!(Sync, $t)), ($send, $sync), stringify!($t));)*
        };
    }
    table! {
        Driver: true false,
        ExternalDriver: true false,
        Handle: true true,
        EnterGuard: false false,
        ManualClock: true true,
        Metrics: true true,
        Window: true true,
        Sleep: true true,
        Interval: true true,
        Timeout<Pending<()>>: true true,
        Timeout<Pending<Rc<()>>>: true true,
        Timeout<std::future::Ready<Rc<()>>>: false false,
        Timeout<std::future::Ready<Cell<()>>>: true false,
        DelayQueue<()>: true true,
        DelayQueue<Rc<()>>: false false,
        DelayQueue<Cell<()>>: true false,
        DelayQueue<std::sync::MutexGuard<'static, ()>>: false true,
        Expired<()>: true true,
        Expired<Rc<()>>: false false,
        QueueKey: true true,
        Wheel<()>: true true,
        Wheel<Rc<()>>: false false,
        Wheel<Cell<()>>: true false,
        Key: true true,
        Sim: true true,
        sim::Hold: true true,
        sim::Task<()>: true true,
        sim::SimThread: false false,
        sim::Idle: false false,
    }
    fn unpin<T: Unpin>() {}
    unpin::<Sleep>();
    unpin::<Interval>();
    unpin::<DelayQueue<std::marker::PhantomPinned>>();
}
