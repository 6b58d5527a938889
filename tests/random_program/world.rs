//! What the programs are made of: the log, sleeps that know what they were promised, and wakers with plans.

use crate::cases_util::Rng;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::future::Future;
use std::panic::panic_any;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

pub(crate) const NEVER: u64 = u64::MAX;

/// What wakers throw on purpose; anything else that panics is a failed check.
pub(crate) struct Planned;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
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
pub(crate) struct Record {
    pub(crate) at: u64,
    /// Written by a waker, in this turn: what was due when the turn began had been collected before.
    pub(crate) turn: Option<u64>,
    pub(crate) event: Event,
}

pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) start: Instant,
    pub(crate) log: Mutex<Vec<Record>>,
    pub(crate) rng: Mutex<Rng>,
    pub(crate) ids: AtomicU64,
    /// Sleeps that nobody polls any more, for wakers to drop and to move.
    pub(crate) victims: Mutex<Vec<Tracked>>,
    pub(crate) jumped: AtomicBool,
    /// Wakeups, and the length of the log, when the driver was shut down.
    pub(crate) shut_down: Mutex<Option<(u64, u64, usize)>>,
    /// No cancels, resets, jumps or moves.
    pub(crate) tame: bool,
    /// Hundreds of timers at a time, close together: slots of the wheel that are too full to rescan.
    pub(crate) crowded: bool,
}

thread_local! {
    pub(crate) static IN_TURN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl World {
    pub(crate) fn now(&self) -> u64 {
        self.sim.elapsed().as_nanos() as u64
    }

    pub(crate) fn log(&self, event: Event) {
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

    pub(crate) fn below(&self, n: u64) -> u64 {
        self.rng.lock().unwrap().below(n)
    }

    /// A distance in nanoseconds, of any order of magnitude.
    pub(crate) fn distance(&self) -> u64 {
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
    pub(crate) fn window(&self) -> (u64, u64) {
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
pub(crate) struct Tracked {
    pub(crate) world: Arc<World>,
    pub(crate) id: u64,
    pub(crate) sleep: Sleep,
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
    pub(crate) registered: bool,
    pub(crate) done: bool,
    /// When it was last registered or moved.
    pub(crate) since: u64,
    pub(crate) calls: Arc<AtomicU32>,
    pub(crate) allowed: u32,
}

impl Tracked {
    pub(crate) fn new(world: &Arc<World>, (earliest, latest): (u64, u64)) -> Self {
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

    pub(crate) fn reset(&mut self, (earliest, latest): (u64, u64)) {
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
    pub(crate) fn new(world: &World) -> Plan {
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
