//! The part of a driver that everybody shares: a control block that is never freed.
//!
//! Ground rules:
//! - Blocks are leaked and pooled, so a handle or a sleep refers to one by a plain reference and touches
//!   no reference count. A block's *life* is a number that no two drivers share; whoever comes with
//!   another life finds the driver gone. The check that counts is made under a shard's lock.
//! - After a fork every block of the child is dead for good, and none of its locks is taken again: the
//!   thread that held one at the fork does not exist there. Hence `is_alive` before any lock.
//! - Counters are written by the thread that drives, and read by anybody.

use super::arming::Host;
use super::firing::Firing;
use super::lane::Lane;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::park::{Alarm, Bell, Clocks, scripted::ManualClocks};
use crate::primitive::plain::{self, AtomicPtr, OnceLock};
use crate::primitive::{AtomicBool, AtomicU64, CachePadded, Ordering::*};
use crate::sys::process::on_fork_in_child;
use crate::tick::NEVER;
use crate::tunables::SlackFloor;
use std::io;
use std::sync::{Arc, Once};

pub(crate) type ClockLane = Lane<Arc<dyn Alarm>>;

/// No driver owns the block.
const FREE: u64 = 0;
/// A driver is being built or torn down.
const CLAIMED: u64 = u64::MAX - 1;
/// Left behind by a fork.
const DEAD: u64 = u64::MAX;

/// All blocks, newest first; a block never leaves the list.
static BLOCKS: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
static LIVES: plain::AtomicU64 = plain::AtomicU64::new(1);

pub(crate) struct Core {
    life: AtomicU64,
    /// The clock is `manual`'s.
    is_manual: AtomicBool,
    /// A thread turns this driver, or its owner promised to.
    driven: AtomicBool,
    /// The monotonic clock's.
    pub(crate) lane: ClockLane,
    /// Those of the boottime and the realtime clock, made when first used.
    others: [OnceLock<Box<ClockLane>>; Clock::COUNT - 1],
    config: plain::Mutex<Config>,
    /// Times the realtime clock was seen to be set.
    pub(crate) clock_changes: AtomicU64,
    /// Of the async condvars' waits.
    pub(crate) slack_floor: SlackFloor,
    pub(crate) counters: CachePadded<Counters>,
    next: *const Core,
}

// SAFETY: `next` is written once, before the block is published, and points to a block that is never
// freed; all other fields are `Send` and `Sync` themselves.
unsafe impl Send for Core {}
// SAFETY: as for `Send`.
unsafe impl Sync for Core {}

/// What a driver brings along; everything is gone with its life.
#[derive(Default)]
struct Config {
    manual: Option<Arc<ManualClocks>>,
    bell: Option<Arc<Bell>>,
    /// The monotonic clock's alarm, which opens the others.
    alarm: Option<Arc<dyn Alarm>>,
    clocks: Clocks,
    firing: Firing,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) turns: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) timer_wakeups: AtomicU64,
    pub(crate) spurious: AtomicU64,
    pub(crate) coalesced: AtomicU64,
    pub(crate) waker_panics: AtomicU64,
    pub(crate) spawn_failures: AtomicU64,
}

impl Counters {
    fn all(&self) -> [&AtomicU64; 7] {
        [
            &self.turns,
            &self.wakeups,
            &self.timer_wakeups,
            &self.spurious,
            &self.coalesced,
            &self.waker_panics,
            &self.spawn_failures,
        ]
    }
}

/// Shards of every driver: a power of two, at least the CPUs.
fn shard_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two().clamp(2, 256)
}

impl Core {
    /// A block for a new driver, and the driver's life. It has no timer yet and nobody drives it.
    pub(crate) fn claim(
        manual: Option<Arc<ManualClocks>>,
        clocks: Clocks,
        firing: Firing,
    ) -> (&'static Core, u64) {
        static FORKS: Once = Once::new();
        FORKS.call_once(|| on_fork_in_child(all_dead));
        let core = Self::blocks()
            .find(|b| b.life.compare_exchange(FREE, CLAIMED, AcqRel, Relaxed).is_ok())
            .unwrap_or_else(Self::allocate);
        let life = LIVES.fetch_add(1, plain::Ordering::Relaxed);
        for counter in core.counters.all() {
            counter.store(0, Relaxed);
        }
        core.slack_floor.clear();
        core.is_manual.store(manual.is_some(), Relaxed);
        core.driven.store(false, Relaxed);
        core.clock_changes.store(0, Relaxed);
        *plain::lock(&core.config) = Config { manual, clocks, firing, ..Config::default() };
        core.lane.open(life, firing);
        core.life.store(life, Release);
        (core, life)
    }

    fn allocate() -> &'static Core {
        let block = Box::leak(Box::new(Core {
            life: AtomicU64::new(CLAIMED),
            is_manual: AtomicBool::new(false),
            driven: AtomicBool::new(false),
            lane: Lane::new(shard_count(), false),
            others: [const { OnceLock::new() }; Clock::COUNT - 1],
            config: plain::Mutex::new(Config::default()),
            clock_changes: AtomicU64::new(0),
            slack_floor: SlackFloor::new(),
            counters: CachePadded::default(),
            next: std::ptr::null(),
        }));
        let raw: *mut Core = block;
        let mut head = BLOCKS.load(plain::Ordering::Acquire);
        loop {
            // SAFETY: the block is ours alone until the exchange publishes it.
            unsafe { (*raw).next = head };
            match BLOCKS.compare_exchange(
                head,
                raw,
                plain::Ordering::AcqRel,
                plain::Ordering::Acquire,
            ) {
                // SAFETY: the block was leaked: it lives for ever, and is only shared from now on.
                Ok(_) => return unsafe { &*raw },
                Err(now) => head = now,
            }
        }
    }

    fn blocks() -> impl Iterator<Item = &'static Core> {
        let mut at: *const Core = BLOCKS.load(plain::Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: the list links only blocks that were published and are never freed.
            let block = unsafe { at.as_ref() }?;
            at = block.next;
            Some(block)
        })
    }

    #[inline]
    pub(crate) fn is_alive(&self, life: u64) -> bool {
        self.life.load(Relaxed) == life
    }

    /// Gives the driver of this life its alarm and its bell: from now on inserts arm it.
    pub(crate) fn equip(&self, bell: &Arc<Bell>, alarm: &Arc<dyn Alarm>, host: Host) {
        let mut config = plain::lock(&self.config);
        config.bell = Some(bell.clone());
        config.alarm = Some(alarm.clone());
        self.lane.arming.open(alarm.clone(), host);
        // Clocks that were used before there was an alarm.
        for (clock, lane) in self.lanes().skip(1) {
            if lane.is_open(self.life.load(Relaxed))
                && let Ok(alarm) = alarm.open(clock)
            {
                lane.arming.open(alarm, host);
            }
        }
    }

    /// The lane of a clock, when the driver has used it.
    #[inline]
    pub(crate) fn lane_of(&self, clock: Clock) -> Option<&ClockLane> {
        match clock {
            Clock::Monotonic => Some(&self.lane),
            other => self.others[other as usize - 1].get().map(|lane| &**lane),
        }
    }

    /// The lanes in which something may be pending or armed, the monotonic clock's first.
    #[inline]
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Clock, &ClockLane)> {
        Clock::ALL.iter().filter_map(|clock| Some((*clock, self.lane_of(*clock)?)))
    }

    /// Makes the lane of a clock ready for the driver of this life.
    ///
    /// # Errors
    /// When the driver was built without that clock, or has gone, or there is no descriptor left.
    #[cold]
    pub(crate) fn open_clock(&self, life: u64, clock: Clock) -> io::Result<()> {
        if !self.is_alive(life) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let config = plain::lock(&self.config);
        if !config.clocks.has(clock) || !self.is_alive(life) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let lane = self.others[clock as usize - 1]
            .get_or_init(|| Box::new(Lane::new(shard_count(), clock == Clock::Realtime)));
        if lane.is_open(life) {
            return Ok(());
        }
        if let Some(alarm) = &config.alarm {
            // Whatever the driver does now, it has not looked at this lane: armed like one that is
            // polled by somebody else, until its next park.
            lane.arming.open(alarm.open(clock)?, Host::Polls);
        }
        lane.open(life, config.firing);
        Ok(())
    }

    /// Ends a driver's life: every pending waker goes to `orphans`, and the block becomes free. False
    /// when it had ended before.
    pub(crate) fn release(&self, life: u64, mut orphans: impl FnMut(std::task::Waker)) -> bool {
        if self.life.compare_exchange(life, CLAIMED, AcqRel, Relaxed).is_err() {
            return false;
        }
        let config = std::mem::take(&mut *plain::lock(&self.config));
        for (_, lane) in self.lanes() {
            lane.close(&mut orphans);
            drop(lane.arming.close());
        }
        drop(config);
        // A fork in between has left the block dead in the child: it stays so there.
        let _ = self.life.compare_exchange(CLAIMED, FREE, AcqRel, Relaxed);
        true
    }

    /// Wakes the driver's thread.
    pub(crate) fn unpark(&self) {
        let bell = plain::lock(&self.config).bell.clone();
        if let Some(bell) = bell {
            bell.notify();
        }
    }

    #[inline]
    pub(crate) fn is_manual(&self) -> bool {
        self.is_manual.load(Relaxed)
    }

    /// A clock's reading. A driver that has gone no longer has manual clocks: the end of time then.
    #[inline]
    pub(crate) fn now(&self, clock: Clock, manual: bool) -> u64 {
        if manual { self.manual_now(clock) } else { clock.reading() }
    }

    #[cold]
    fn manual_now(&self, clock: Clock) -> u64 {
        plain::lock(&self.config).manual.as_ref().map_or(NEVER, |m| m.now(clock))
    }

    #[inline]
    pub(crate) fn is_driven(&self) -> bool {
        self.driven.load(Relaxed)
    }

    /// True for the one caller that is to make a thread drive this driver.
    pub(crate) fn start_driving(&self) -> bool {
        !self.driven.swap(true, AcqRel)
    }

    /// The attempt failed: somebody else may try.
    pub(crate) fn stop_driving(&self) {
        self.driven.store(false, Release);
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let c = &self.counters;
        let mut m = Metrics {
            turns: c.turns.load(Relaxed),
            wakeups: c.wakeups.load(Relaxed),
            timer_wakeups: c.timer_wakeups.load(Relaxed),
            spurious: c.spurious.load(Relaxed),
            coalesced: c.coalesced.load(Relaxed),
            waker_panics: c.waker_panics.load(Relaxed),
            spawn_failures: c.spawn_failures.load(Relaxed),
            ..Metrics::default()
        };
        for (_, lane) in self.lanes() {
            lane.measure(&mut m);
        }
        m
    }
}

/// Runs in the child of a fork: nothing but atomic stores.
extern "C" fn all_dead() {
    for block in Core::blocks() {
        block.life.store(DEAD, SeqCst);
    }
}
