//! Random programs on the test clock: tasks that sleep, time out, reset, cancel, use queues, panic in wakers,
//! re-enter the driver from wakers, move time themselves and shut the driver down.
//!
//! Checked for every seed:
//! - never early: nothing completes before its `earliest`, to the nanosecond;
//! - never late: nothing completes after its `latest`, unless a waker itself made time jump;
//! - never lost: at the end nothing that has a `latest` is left pending (after a shutdown: all of it was woken
//!   once and says that it is orphaned);
//! - never twice: a waker is called at most once for each registration or reset, a completion comes once;
//! - wakeups at the optimum: their number equals that of an independent recomputation from the log of what was
//!   registered, moved and cancelled when; for programs without cancels also that of offline greedy piercing
//!   of all windows; and none is spurious.
//!
//! `RANDOM_SEED=7` in the environment replays one seed, `RANDOM_SEEDS=100000` runs more of them.
#![cfg(not(loom))]

#[path = "../cases_util/mod.rs"]
mod cases_util;
mod world;

use cases_util::{Rng, piercing};
use futures::StreamExt;
use slackwheel::sim::{Sim, Task};
use slackwheel::*;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once};
use std::task::Poll;
use std::time::{Duration, Instant};
use world::{Event, IN_TURN, NEVER, Planned, Record, Tracked, World};

/// Polls once and keeps it, whatever comes out.
async fn poll_once(t: &mut Tracked) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *t).poll(cx).is_ready())).await
}

async fn task(world: Arc<World>) {
    let ops = 2 + world.below(6);
    for _ in 0..ops {
        let kind = if world.tame { world.below(3) } else { world.below(16) };
        match kind {
            0 | 1 => Tracked::new(&world, world.window()).await,
            // Several at once, all awaited.
            2 => {
                let n = 1 + world.below(if world.crowded { 400 } else { 5 });
                let (earliest, latest) = world.window();
                let near = |t: u64| if n < 6 || t == NEVER { t } else { t + world.below(300_000) };
                let all: Vec<Tracked> = (0..n)
                    .map(|_| {
                        let earliest = near(earliest);
                        let window = (earliest, near(latest).max(earliest));
                        Tracked::new(&world, if n < 6 { world.window() } else { window })
                    })
                    .collect();
                if world.tame || world.below(2) == 0 {
                    futures::future::join_all(all).await;
                } else {
                    // Most of them are cancelled.
                    futures::future::select_all(all).await.2.truncate(3);
                }
            }
            // A timeout: the loser is cancelled.
            3..=5 => {
                let a = Tracked::new(&world, world.window());
                let b = Tracked::new(&world, world.window());
                futures::future::select(a, b).await;
            }
            // Registered and dropped, now or later.
            6 | 7 => {
                let mut t = Tracked::new(&world, world.window());
                poll_once(&mut t).await;
                if world.below(2) == 0 {
                    Tracked::new(&world, world.window()).await;
                }
            }
            // Moved, before or after it has fired.
            8..=10 => {
                let mut t = Tracked::new(&world, world.window());
                let done = poll_once(&mut t).await;
                if world.below(2) == 0 {
                    Tracked::new(&world, world.window()).await;
                }
                t.reset(match world.below(4) {
                    // Into the past.
                    0 => {
                        let now = world.now();
                        (now.saturating_sub(world.below(5_000)), now + world.below(1_000_000))
                    }
                    _ => world.window(),
                });
                let _ = done;
                t.await;
            }
            // Left for wakers to meddle with.
            11 | 12 => {
                let mut t = Tracked::new(&world, world.window());
                if !poll_once(&mut t).await {
                    world.victims.lock().unwrap().push(t);
                }
            }
            13 => queue(&world).await,
            14 if world.below(3) == 0 => {
                world.sim.advance(Duration::from_nanos(world.distance()));
                world.log(Event::Moved);
            }
            15 if world.below(20) == 0 => {
                let mut shut_down = world.shut_down.lock().unwrap();
                if shut_down.is_none() {
                    let m = world.sim.handle().metrics().unwrap();
                    *shut_down = Some((m.wakeups, m.spurious, world.log.lock().unwrap().len()));
                    drop(shut_down);
                    world.sim.shut_down();
                }
            }
            _ => {}
        }
    }
}

/// A queue whose every entry counts as a sleep of its own.
async fn queue(world: &Arc<World>) {
    let mut q = DelayQueue::with_handle(world.sim.handle());
    let window = |(earliest, latest): (u64, u64)| {
        let at = |t: u64| world.start + Duration::from_nanos(t);
        Window::new(at(earliest), at(latest)).unwrap()
    };
    let finite = || {
        let (earliest, latest) = world.window();
        (earliest, if latest == NEVER { earliest } else { latest })
    };
    let add = |id: u64, (earliest, latest): (u64, u64)| {
        if earliest > world.now() {
            world.log(Event::Registered { id, earliest, latest });
        }
    };
    let mut live = BTreeMap::new();
    for _ in 0..1 + world.below(6) {
        let (id, w) = (world.ids.fetch_add(1, SeqCst), finite());
        live.insert(id, (q.insert_window(id, window(w)), w));
        add(id, w);
    }
    let mut last = 0;
    while let Some(expired) = q.next().await {
        let now = world.now();
        let id = *expired.get_ref();
        let (_, (earliest, latest)) = live.remove(&id).expect("it came out twice");
        world.log(Event::Gone { id });
        assert!(now >= earliest, "early out of a queue");
        let jumped = world.jumped.load(SeqCst);
        assert!(now <= latest.max(last) || jumped, "late out of a queue: {now} of {latest}");
        // Meddle with another one, due or not; it is polled again right away.
        let other = live.keys().nth(world.below(1 + live.len() as u64) as usize).copied();
        if let Some(id) = other {
            let key = live[&id].0;
            world.log(Event::Gone { id });
            if world.below(3) == 0 {
                assert_eq!(q.remove(&key), Some(id));
                live.remove(&id);
            } else {
                let w = finite();
                assert!(q.reset_window(&key, window(w)));
                live.insert(id, (key, w));
                add(id, w);
            }
        }
        last = now;
    }
    // After a shutdown `next` stays pending: this is reached with an empty queue only.
    assert!(live.is_empty(), "lost in a queue");
}

/// How many wakeups the logged program needs, as anybody would count them: at every instant at which a pending
/// window ends, one; which serves all windows that are open then.
fn recompute(log: &[Record]) -> u64 {
    let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let (mut wakes, mut present, mut turn) = (0, 0, None);
    let mut pass = |live: &mut BTreeMap<u64, (u64, u64)>, present: u64, until: u64| {
        // Whoever is awake serves what is open.
        live.retain(|_, w| w.0 > present);
        while let Some(end) =
            live.values().map(|w| w.1).min().filter(|l| *l <= until && *l != NEVER)
        {
            wakes += 1;
            live.retain(|_, w| w.0 > end);
        }
    };
    for record in log {
        assert!(record.at >= present, "time went back");
        if record.at > present {
            pass(&mut live, present, record.at);
            present = record.at;
        }
        if record.turn.is_some() && record.turn != turn {
            live.retain(|_, w| w.0 > present);
        }
        turn = record.turn.or(turn);
        match record.event {
            Event::Registered { id, earliest, latest } => drop(live.insert(id, (earliest, latest))),
            Event::Reset { id, earliest, latest } => {
                if let Some(w) = live.get_mut(&id) {
                    *w = (earliest, latest);
                }
            }
            Event::Gone { id } => drop(live.remove(&id)),
            Event::Moved => {}
            // What it passed is served, without a wakeup, before time moves again.
            Event::Jumped { to } => present = to,
        }
    }
    pass(&mut live, present, NEVER - 1);
    wakes
}

/// What one program did.
#[derive(Default)]
struct Sum {
    timers: u64,
    wakeups: u64,
    needed: u64,
    panics: u64,
    shutdowns: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.timers += other.timers;
        self.wakeups += other.wakeups;
        self.needed += other.needed;
        self.panics += other.panics;
        self.shutdowns += other.shutdowns;
    }
}

fn program(seed: u64, crowded: bool) -> Sum {
    let sim = Sim::seeded(seed);
    let tame = seed.is_multiple_of(4);
    let world = Arc::new(World {
        start: sim.now(),
        sim: sim.clone(),
        log: Mutex::default(),
        rng: Mutex::new(Rng(seed)),
        ids: AtomicU64::new(0),
        victims: Mutex::default(),
        jumped: AtomicBool::new(false),
        shut_down: Mutex::new(None),
        tame,
        crowded,
    });
    let tasks: Vec<Task<()>> =
        (0..1 + world.below(8)).map(|_| sim.spawn(task(world.clone()))).collect();
    let mut sum = Sum::default();
    while let Err(thrown) = catch_unwind(AssertUnwindSafe(|| sim.run_until_idle())) {
        if !thrown.is::<Planned>() {
            resume_unwind(thrown);
        }
        IN_TURN.set(false);
        sum.panics += 1;
    }

    let log = std::mem::take(&mut *world.log.lock().unwrap());
    let shut_down = *world.shut_down.lock().unwrap();
    let victims = std::mem::take(&mut *world.victims.lock().unwrap());
    let (wakeups, spurious, end) = shut_down.unwrap_or_else(|| {
        let m = sim.handle().metrics().unwrap();
        (m.wakeups, m.spurious, log.len())
    });
    let needed = match shut_down {
        None => recompute(&log),
        // What was pending at the shutdown forces nothing any more.
        Some(_) => {
            let mut log = log[..end].to_vec();
            let at = log.last().map_or(0, |r| r.at);
            let ids: Vec<u64> = (0..world.ids.load(SeqCst)).collect();
            log.extend(ids.into_iter().map(|id| Record {
                at,
                turn: None,
                event: Event::Gone { id },
            }));
            recompute(&log)
        }
    };
    sum.needed = needed;
    if tame || !crowded {
        assert_eq!(wakeups, needed, "wakeups");
        assert_eq!(spurious, 0, "spurious wakeups");
    }
    if shut_down.is_none() {
        // Nothing is lost: what is left has no end, and a driver without a wakeup ahead.
        assert_eq!(sim.advance_to_next(), None);
        let left: Vec<&Task<()>> = tasks.iter().filter(|t| !t.is_finished()).collect();
        let endless = log.iter().any(|r| {
            let (Event::Registered { latest, .. } | Event::Reset { latest, .. }) = r.event else {
                return false;
            };
            latest == NEVER
        });
        assert!(left.is_empty() || endless, "{} tasks wait for nothing", left.len());
        for v in victims.iter().filter(|v| v.registered && v.latest != NEVER) {
            assert!(v.calls.load(SeqCst) > 0, "a timer was lost");
        }
    } else {
        for v in victims.iter().filter(|v| v.registered) {
            assert!(v.calls.load(SeqCst) > 0, "not told of the shutdown");
            assert!(v.sleep.is_orphaned());
        }
    }
    if tame {
        let windows: Vec<(u64, u64)> = log
            .iter()
            .filter_map(|r| match r.event {
                Event::Registered { earliest, latest, .. } if latest != NEVER => {
                    Some((earliest, latest))
                }
                _ => None,
            })
            .collect();
        assert_eq!(wakeups, piercing(&windows) as u64, "the offline optimum");
    }
    for task in &tasks {
        task.cancel();
    }
    drop(victims);
    sum.timers = world.ids.load(SeqCst);
    sum.wakeups = wakeups;
    sum.shutdowns = shut_down.is_some() as u64;
    sum
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|s| s.parse().expect("a number"))
}

/// Runs the programs of some seeds, or the one that the environment names.
fn programs(seeds: std::ops::Range<u64>, crowded: bool) -> (Sum, u64, Duration) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Planned>() {
                default(info);
            }
        }));
    });
    let range = match number("RANDOM_SEED") {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    let n = range.end - range.start;
    let start = Instant::now();
    let mut all = Sum::default();
    for seed in range {
        match catch_unwind(|| program(seed, crowded)) {
            Ok(sum) => all.add(sum),
            Err(thrown) => {
                eprintln!("replay with RANDOM_SEED={seed}");
                resume_unwind(thrown);
            }
        }
    }
    (all, n, start.elapsed())
}

#[test]
fn ten_thousand_random_programs() {
    let (all, n, took) = programs(0..number("RANDOM_SEEDS").unwrap_or(10_000), false);
    println!(
        "{n} programs in {took:.1?}: {} timers, {} wakeups (each count the optimum), {} panics of wakers, {} shutdowns",
        all.timers, all.wakeups, all.panics, all.shutdowns
    );
    if n >= 10_000 {
        assert!(all.panics > 0 && all.shutdowns > 0, "the programs miss what they are for");
    }
}

#[test]
fn random_programs_with_crowded_slots() {
    // Where hundreds share a slot of the wheel a cancel leaves a bound that may be early: it may cost a wakeup,
    // but never a timer. Without cancels the number is still exact.
    // Among them 2165, in which a driver once turned for ever without waiting.
    let (all, n, took) = programs(2_000..2_200, true);
    println!(
        "{n} crowded programs in {took:.1?}: {} timers, {} wakeups, {} needed",
        all.timers, all.wakeups, all.needed
    );
    assert!(all.wakeups <= all.needed + all.needed / 20 + 5, "{} of {}", all.wakeups, all.needed);
}
