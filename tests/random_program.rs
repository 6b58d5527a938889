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

mod cases_util;

use cases_util::{Rng, piercing};
use futures::StreamExt;
use slackwheel::sim::{Sim, Task};
use slackwheel::*;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const NEVER: u64 = u64::MAX;

/// What wakers throw on purpose; anything else that panics is a failed check.
struct Planned;

#[derive(Clone, Copy, Debug)]
enum Event {
    Registered {
        id: u64,
        earliest: u64,
        latest: u64,
    },
    /// Moved while nobody looks: if it is pending.
    Reset {
        id: u64,
        earliest: u64,
        latest: u64,
    },
    /// Completed, cancelled, or about to be registered anew.
    Gone {
        id: u64,
    },
    /// Somebody moved time, past no wakeup.
    Moved,
    /// A waker moved the clock in the middle of a turn.
    Jumped {
        to: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Record {
    at: u64,
    /// Written by a waker, in this turn: what was due when the turn began had been collected before.
    turn: Option<u64>,
    event: Event,
}

struct World {
    sim: Sim,
    start: Instant,
    log: Mutex<Vec<Record>>,
    rng: Mutex<Rng>,
    ids: AtomicU64,
    /// Sleeps that nobody polls any more, for wakers to drop and to move.
    victims: Mutex<Vec<Tracked>>,
    jumped: AtomicBool,
    /// Wakeups, and the length of the log, when the driver was shut down.
    shut_down: Mutex<Option<(u64, u64, usize)>>,
    /// No cancels, resets, jumps or moves.
    tame: bool,
}

thread_local! {
    static IN_TURN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl World {
    fn now(&self) -> u64 {
        self.sim.elapsed().as_nanos() as u64
    }

    fn log(&self, event: Event) {
        let at = match event {
            Event::Jumped { .. } => unreachable!("logged with its own time"),
            _ => self.now(),
        };
        self.log.lock().unwrap().push(Record { at, turn: self.turn(), event });
    }

    /// Number of the turn that is under way.
    fn turn(&self) -> Option<u64> {
        IN_TURN.get().then(|| self.sim.handle().metrics().map_or(0, |m| m.turns))
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.lock().unwrap().below(n)
    }

    /// A distance in nanoseconds, of any order of magnitude.
    fn distance(&self) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => 1 + self.below(5_000),
            2..=4 => self.below(1_000_000),
            5..=7 => self.below(100_000_000),
            8 | 9 => self.below(10_000_000_000),
            10 => (1 << (10 + self.below(35))) + self.below(3) - 1,
            _ => self.below(1 << 50),
        }
    }

    /// A window ahead of now.
    fn window(&self) -> (u64, u64) {
        let earliest = self.now() + self.distance();
        let latest = match self.below(5) {
            0 | 1 => earliest,
            2 => earliest + self.below(2_000_000),
            3 => earliest + self.distance(),
            _ if self.below(20) == 0 => NEVER,
            _ => earliest + self.below(50_000_000),
        };
        (earliest, latest)
    }
}

/// A sleep that knows what it was promised.
struct Tracked {
    world: Arc<World>,
    id: u64,
    sleep: Sleep,
    earliest: u64,
    latest: u64,
    registered: bool,
    done: bool,
    /// When it was last registered or moved.
    since: u64,
    calls: Arc<AtomicU32>,
    allowed: u32,
}

impl Tracked {
    fn new(world: &Arc<World>, (earliest, latest): (u64, u64)) -> Self {
        let h = world.sim.handle();
        let at = |t: u64| world.start + Duration::from_nanos(t);
        let window = match latest {
            NEVER => Window::with_slack(at(earliest), Duration::MAX),
            _ => Window::new(at(earliest), at(latest)).unwrap(),
        };
        Tracked {
            world: world.clone(),
            id: world.ids.fetch_add(1, SeqCst),
            sleep: h.sleep_window(window),
            earliest,
            latest,
            registered: false,
            done: false,
            since: world.now(),
            calls: Arc::default(),
            allowed: 0,
        }
    }

    fn reset(&mut self, (earliest, latest): (u64, u64)) {
        let at = |t: u64| self.world.start + Duration::from_nanos(t);
        let window = match latest {
            NEVER => Window::with_slack(at(earliest), Duration::MAX),
            _ => Window::new(at(earliest), at(latest)).unwrap(),
        };
        if self.registered {
            self.world.log(Event::Reset { id: self.id, earliest, latest });
            self.allowed += 1;
        }
        self.sleep.reset_window(window);
        (self.earliest, self.latest) = (earliest, latest);
        self.since = self.world.now();
        self.done = false;
    }

    fn gone(&mut self) {
        if std::mem::take(&mut self.registered) {
            self.world.log(Event::Gone { id: self.id });
        }
    }
}

impl Future for Tracked {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        assert!(!self.done, "polled after it was done");
        let now = self.world.now();
        let plan = Plan::new(&self.world);
        let wrapped = Wrapped {
            inner: cx.waker().clone(),
            calls: self.calls.clone(),
            plan: Mutex::new(plan),
            world: Arc::downgrade(&self.world),
        };
        let waker = Waker::from(Arc::new(wrapped));
        let polled = Pin::new(&mut self.sleep).poll(&mut Context::from_waker(&waker));
        assert!(self.calls.load(SeqCst) <= self.allowed, "woken twice");
        if polled.is_ready() {
            assert!(now >= self.earliest, "early: {now} of {}", self.earliest);
            let in_time = now <= self.latest.max(self.since) || self.world.jumped.load(SeqCst);
            assert!(in_time, "late: {now}, latest {}, since {}", self.latest, self.since);
            self.gone();
            self.done = true;
            return Poll::Ready(());
        }
        if self.sleep.is_orphaned() {
            self.registered = false;
            return Poll::Pending;
        }
        // Eligible and yet pending: it let others run, and is not registered.
        if self.earliest > now {
            let window = (self.earliest, self.latest);
            // Whether it was still pending, or had fired and is registered anew, is the same from now on.
            let (id, (earliest, latest)) = (self.id, window);
            self.world.log(Event::Registered { id, earliest, latest });
            if !self.registered || self.calls.load(SeqCst) == self.allowed {
                self.allowed += 1;
                self.since = now;
            }
            self.registered = true;
        }
        Poll::Pending
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.gone();
    }
}

/// What a waker does besides waking.
enum Plan {
    Nothing,
    Panic,
    CreateAndDrop,
    DropVictim,
    MoveVictim,
    Jump,
}

impl Plan {
    fn new(world: &World) -> Plan {
        if world.tame {
            return Plan::Nothing;
        }
        match world.below(60) {
            0 => Plan::Panic,
            1 => Plan::CreateAndDrop,
            2 | 3 => Plan::DropVictim,
            4 | 5 => Plan::MoveVictim,
            6 if world.below(6) == 0 => Plan::Jump,
            _ => Plan::Nothing,
        }
    }
}

struct Wrapped {
    inner: Waker,
    calls: Arc<AtomicU32>,
    plan: Mutex<Plan>,
    world: std::sync::Weak<World>,
}

impl Wake for Wrapped {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, SeqCst);
        self.inner.wake_by_ref();
        let Some(world) = self.world.upgrade() else { return };
        let plan = std::mem::replace(&mut *self.plan.lock().unwrap(), Plan::Nothing);
        IN_TURN.set(true);
        match plan {
            Plan::Nothing => {}
            Plan::Panic => {
                IN_TURN.set(false);
                panic_any(Planned);
            }
            Plan::CreateAndDrop => {
                let mut t = Tracked::new(&world, world.window());
                let _ = Pin::new(&mut t).poll(&mut Context::from_waker(&self.inner));
            }
            Plan::DropVictim => {
                let victim = world.victims.lock().unwrap().pop();
                drop(victim);
            }
            Plan::MoveVictim => {
                let victim = world.victims.lock().unwrap().pop();
                if let Some(mut victim) = victim {
                    victim.reset(world.window());
                    world.victims.lock().unwrap().push(victim);
                }
            }
            Plan::Jump => {
                let at = world.now();
                world.jumped.store(true, SeqCst);
                world.sim.advance(Duration::from_nanos(world.distance()));
                let event = Event::Jumped { to: world.now() };
                world.log.lock().unwrap().push(Record { at, turn: world.turn(), event });
            }
        }
        IN_TURN.set(false);
    }
}

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
                let n = 1 + world.below(5);
                let all = (0..n).map(|_| Tracked::new(&world, world.window()));
                futures::future::join_all(all).await;
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
    panics: u64,
    shutdowns: u64,
}

fn program(seed: u64) -> Sum {
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
    assert_eq!(wakeups, needed, "wakeups");
    assert_eq!(spurious, 0, "spurious wakeups");
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

fn seeds(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|s| s.parse().expect("a number"))
}

#[test]
fn ten_thousand_random_programs() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Planned>() {
            default(info);
        }
    }));
    let one = seeds("RANDOM_SEED");
    let range = match one {
        Some(seed) => seed..seed + 1,
        None => 0..seeds("RANDOM_SEEDS").unwrap_or(10_000),
    };
    let n = range.end - range.start;
    let start = Instant::now();
    let mut all = Sum::default();
    for seed in range {
        match catch_unwind(|| program(seed)) {
            Ok(sum) => {
                all.timers += sum.timers;
                all.wakeups += sum.wakeups;
                all.panics += sum.panics;
                all.shutdowns += sum.shutdowns;
            }
            Err(thrown) => {
                eprintln!("replay with RANDOM_SEED={seed}");
                resume_unwind(thrown);
            }
        }
    }
    let took = start.elapsed();
    println!(
        "{n} programs in {took:.1?}: {} timers, {} wakeups (each count the optimum), {} panics of wakers, {} shutdowns",
        all.timers, all.wakeups, all.panics, all.shutdowns
    );
    if one.is_none() && n >= 10_000 {
        assert!(all.panics > 0 && all.shutdowns > 0, "the programs miss what they are for");
    }
}
