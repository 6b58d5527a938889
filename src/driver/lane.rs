//! The shards of one clock and the kernel timer they share.
//!
//! Ground rules:
//! - A shard's wheel is touched under its lock only; wakers are cloned before it is taken, called and
//!   dropped after it is released.
//! - Each shard publishes a lower bound of its smallest `earliest` and of its smallest `latest`, both
//!   written under its lock and read without. A park locks no shard, except one whose bound is known
//!   to be stale and would force the next wakeup.
//! - An insert that does not lower its shard's published `latest` needs no look at the armed time, and no
//!   fence: whoever published that bound is making sure of it, or has already. The bound goes up only
//!   under the lock, to that of all entries, and then the insert is one of them or comes after it.
//! - A shard that becomes empty by a cancel keeps its bounds, as stale ones: churn on an empty wheel
//!   then lowers nothing. A park, a raise or a turn puts them right.
//! - A shard belongs to the driver whose `life` it carries. An operation with another life finds the
//!   shard gone, also when the block has a new owner.

use super::arming::{Arming, Bound, Windows};
use super::batch::{BATCH, WakeBatch};
use super::firing::{Firing, aligned};
use crate::metrics::{Lateness, Metrics};
use crate::park::KernelTimer;
use crate::primitive::plant::{Bug, planted};
use crate::primitive::{AtomicBool, AtomicU8, AtomicU64, BriefLock, CachePadded, Ordering::*};
use crate::tick::NEVER;
use crate::wheel::{Key, Wheel};
use crate::window::Span;
use std::task::Waker;

/// Entries one turn fires or moves before it returns to its host; the rest is due at once.
pub(super) const TURN_BUDGET: usize = 1 << 17;

/// A raise is about to save a wakeup, so it may look at more entries than a park.
const RAISE_RESCAN: u32 = 4096;
/// What [`Wheel::next_wake`] may look at.
const PARK_RESCAN: u32 = 64;

/// The life of a shard that belongs to nobody.
const NOBODY: u64 = 0;

pub(crate) struct Lane<K> {
    shards: Box<[CachePadded<Shard>]>,
    /// The clock can be set back: the wall clock.
    can_go_back: bool,
    /// A [`Firing`].
    firing: AtomicU8,
    pub(crate) arming: Arming<K>,
}

struct Shard {
    /// Written with release: whoever sees that it has passed a timer also sees when (`turned`), or that
    /// the driver has gone.
    earliest: AtomicU64,
    latest: AtomicU64,
    /// The reading with which the last turn came here.
    turned: AtomicU64,
    /// `latest` is the bound of an entry that has gone.
    stale: AtomicBool,
    /// `latest` is of a crowded slot, and perhaps too early.
    rough: AtomicBool,
    state: BriefLock<ShardState>,
}

struct ShardState {
    life: u64,
    wheel: Wheel<Waker>,
    lateness: Lateness,
}

/// What a poll of a registered entry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    Fired,
    /// The driver has gone.
    Gone,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turned {
    pub(crate) fired: usize,
    /// The budget ran out: more is due.
    pub(crate) more: bool,
}

impl<K: KernelTimer> Lane<K> {
    /// `shards` is a power of two.
    pub(crate) fn new(shards: usize, can_go_back: bool) -> Self {
        assert!(shards.is_power_of_two());
        let shard = || {
            CachePadded(Shard {
                earliest: AtomicU64::new(NEVER),
                latest: AtomicU64::new(NEVER),
                turned: AtomicU64::new(0),
                stale: AtomicBool::new(false),
                rough: AtomicBool::new(false),
                state: BriefLock::new(ShardState {
                    life: NOBODY,
                    wheel: Wheel::new(),
                    lateness: Lateness::default(),
                }),
            })
        };
        let shards = (0..shards).map(|_| shard()).collect();
        let firing = AtomicU8::new(Firing::Latest as u8);
        Lane { shards, can_go_back, firing, arming: Arming::new() }
    }

    /// Hands the shards to the driver of this life. Nobody else may use the lane yet.
    pub(crate) fn open(&self, life: u64, firing: Firing) {
        self.firing.store(firing as u8, Relaxed);
        for shard in &self.shards {
            let mut state = shard.state.lock();
            state.life = life;
            state.lateness = Lateness::default();
        }
    }

    pub(crate) fn is_open(&self, life: u64) -> bool {
        self.shards[0].state.lock().life == life
    }

    /// Takes every shard from its driver; the wakers of what was pending go to `orphans`.
    pub(crate) fn close(&self, mut orphans: impl FnMut(Waker)) {
        for shard in &self.shards {
            let mut wheel = {
                let mut state = shard.state.lock();
                if planted(Bug::DrainThenClose) {
                    let mut wheel = std::mem::take(&mut state.wheel);
                    drop(state);
                    wheel.drain(&mut orphans);
                    state = shard.state.lock();
                }
                state.life = NOBODY;
                let order = if planted(Bug::CloseRelaxed) { Relaxed } else { Release };
                shard.earliest.store(NEVER, order);
                shard.latest.store(NEVER, Relaxed);
                std::mem::take(&mut state.wheel)
            };
            wheel.drain(&mut orphans);
        }
    }

    #[inline]
    fn shard(&self, shard: usize) -> &Shard {
        &self.shards[shard & (self.shards.len() - 1)]
    }

    /// Adds a window and makes sure the driver wakes for it. The waker comes back when the driver
    /// has gone.
    #[inline]
    pub(crate) fn register(
        &self,
        shard: usize,
        life: u64,
        span: Span,
        waker: Waker,
    ) -> Result<Key, Waker> {
        let shard = self.shard(shard);
        let (key, lowered) = {
            let mut state = shard.state.lock();
            if state.life != life {
                return Err(waker);
            }
            if self.can_go_back && state.wheel.is_empty() {
                // Whatever time it has seen, nothing ties it to that.
                state.wheel.restart();
            }
            let key = state.wheel.insert(span.earliest, span.latest, waker);
            (key, shard.lower(span))
        };
        if lowered {
            self.arming.cover(span.latest, self);
        }
        Ok(key)
    }

    /// Takes an entry out. The caller drops the waker.
    #[inline]
    pub(crate) fn cancel(&self, shard: usize, life: u64, key: Key, span: Span) -> Option<Waker> {
        let shard = self.shard(shard);
        let waker = {
            let mut state = shard.state.lock();
            if state.life != life {
                return None;
            }
            if planted(Bug::CancelTwice) {
                let found = state.wheel.get_mut(key)?.clone();
                drop(state);
                shard.state.lock().wheel.cancel(key);
                return Some(found);
            }
            let waker = state.wheel.cancel(key)?;
            shard.released(span.latest);
            waker
        };
        self.arming.released(span.latest);
        Some(waker)
    }

    /// Moves a pending entry; false when it is no longer pending here.
    #[inline]
    pub(crate) fn reset(&self, shard: usize, life: u64, key: Key, old: Span, new: Span) -> bool {
        let shard = self.shard(shard);
        let lowered = {
            let mut state = shard.state.lock();
            if state.life != life || !state.wheel.reset(key, new.earliest, new.latest) {
                return false;
            }
            if new.latest != old.latest {
                shard.released(old.latest);
            }
            shard.lower(new)
        };
        if new.latest != old.latest {
            self.arming.released(old.latest);
        }
        if lowered {
            self.arming.cover(new.latest, self);
        }
        true
    }

    /// When nothing with this `earliest` can be pending in the shard any more, the reading with which a turn
    /// has fired it, or that of a later turn. This is seen without the lock: the bound was at or below
    /// `earliest` since it was inserted, and passes it only when it has left.
    ///
    /// The end of the driver empties the shard, too: ask for its life after this, not before.
    #[inline]
    pub(crate) fn passed_at(&self, shard: usize, earliest: u64) -> Option<u64> {
        let shard = self.shard(shard);
        (shard.earliest.load(Acquire) > earliest).then(|| shard.turned.load(Relaxed))
    }

    /// Asks after an entry and leaves `waker` with it when it is pending.
    pub(crate) fn poll(&self, shard: usize, life: u64, key: Key, waker: &Waker) -> Polled {
        let shard = self.shard(shard);
        {
            let mut state = shard.state.lock();
            if state.life != life {
                return Polled::Gone;
            }
            match state.wheel.get_mut(key) {
                None => return Polled::Fired,
                Some(old) if old.will_wake(waker) => return Polled::Pending,
                Some(_) => {}
            }
        }
        // A clone is user code: outside of the lock, so look again.
        let mut fresh = waker.clone();
        let mut state = shard.state.lock();
        if state.life != life {
            return Polled::Gone;
        }
        let polled = match state.wheel.get_mut(key) {
            None => Polled::Fired,
            Some(old) => {
                std::mem::swap(old, &mut fresh);
                Polled::Pending
            }
        };
        drop(state);
        // `fresh` is the old waker now; dropping it is user code too.
        drop(fresh);
        polled
    }

    /// The clock was set: everything pending is woken, to be judged anew by its next poll.
    pub(crate) fn judge_again(&self, batch: &mut WakeBatch) {
        for shard in &self.shards {
            shard.restart().drain(|waker| batch.push(waker));
            batch.wake();
        }
    }

    /// Fires everything with `earliest <= now`, in every shard.
    pub(crate) fn turn(&self, now: u64, batch: &mut WakeBatch) -> Turned {
        let mut turned = Turned::default();
        if self.can_go_back {
            // Set back while no timer was armed that would have told.
            for shard in &self.shards {
                if now < shard.state.lock().wheel.now() {
                    shard.restart().drain(|waker| batch.push(waker));
                    batch.wake();
                }
            }
        }
        let mut left = TURN_BUDGET;
        for shard in &self.shards {
            // A `latest` that has come where nothing is due is a rough bound: the wheel finds a better one.
            if shard.earliest.load(Relaxed) > now && shard.latest.load(Relaxed) > now {
                continue;
            }
            loop {
                let more = {
                    let mut state = shard.state.lock();
                    let ShardState { wheel, lateness, .. } = &mut *state;
                    shard.turned.store(now, Relaxed);
                    let step = wheel.advance(now, BATCH, |fired| {
                        lateness.record(now, fired.earliest, fired.latest);
                        batch.push_fired(fired, now);
                    });
                    turned.fired += step.fired;
                    shard.publish(wheel, PARK_RESCAN);
                    if step.more {
                        // What is left is due at once.
                        shard.latest.store(0, Relaxed);
                    }
                    step.more
                };
                batch.wake();
                if !more {
                    break;
                }
                shard.state.let_others_in();
                left = left.saturating_sub(BATCH);
                if left == 0 {
                    turned.more = true;
                    return turned;
                }
            }
        }
        turned
    }

    /// When to wake, by the firing policy, for the smallest `latest` of all shards or a bound before it
    /// (see [`Wheel::next_wake`]).
    #[inline]
    pub(crate) fn next_wake(&self) -> u64 {
        self.point(self.first_latest().at)
    }

    #[inline]
    fn first_latest(&self) -> Bound {
        loop {
            let (shard, at) = self.first_shard();
            if at == NEVER || !shard.stale.load(Relaxed) {
                return Bound { at, exact: !shard.rough.load(Relaxed) };
            }
            shard.publish(&mut shard.state.lock().wheel, PARK_RESCAN);
        }
    }

    /// The same, looking at more entries.
    fn first_latest_closely(&self) -> Bound {
        let mut before = None;
        loop {
            let (shard, at) = self.first_shard();
            let here = Some((std::ptr::from_ref(shard), at));
            let doubtful = shard.stale.load(Relaxed) || shard.rough.load(Relaxed);
            if at == NEVER || !doubtful || before == here {
                return Bound { at, exact: !shard.rough.load(Relaxed) };
            }
            shard.publish(&mut shard.state.lock().wheel, RAISE_RESCAN);
            before = Some((std::ptr::from_ref(shard), shard.latest.load(Relaxed)));
        }
    }

    /// The shard with the smallest published `latest`.
    #[inline]
    fn first_shard(&self) -> (&Shard, u64) {
        self.shards
            .iter()
            .map(|shard| (&shard.0, shard.latest.load(Relaxed)))
            .min_by_key(|(_, latest)| *latest)
            .expect("a lane has a shard")
    }

    /// The smallest `latest` of all shards, exactly; reads whole slots under their locks.
    pub(crate) fn next_wake_exact(&self) -> u64 {
        let exact = |s: &CachePadded<Shard>| s.state.lock().wheel.next_wake_exact();
        self.shards.iter().filter_map(exact).min().unwrap_or(NEVER)
    }

    /// The smallest `earliest` of all shards, exactly; reads whole slots under their locks.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.shards.iter().filter_map(|s| s.state.lock().wheel.next_deadline()).min()
    }

    /// Called by whoever operates on the driver while the arm is stale.
    #[cold]
    pub(crate) fn raise(&self, now: u64) {
        self.arming.raise(now, self);
    }

    /// Gives empty pages back, shard by shard.
    pub(crate) fn reap(&self) {
        for shard in &self.shards {
            shard.state.lock().wheel.reap();
        }
    }

    /// False when nothing is pending, as far as the published bounds tell.
    pub(crate) fn is_used(&self) -> bool {
        self.shards.iter().any(|s| s.earliest.load(Relaxed) != NEVER)
    }

    pub(crate) fn measure(&self, m: &mut Metrics) {
        for shard in &self.shards {
            let state = shard.state.lock();
            m.pending += state.wheel.len();
            m.registered += state.wheel.inserted();
            m.fired += state.lateness.count();
            m.lateness.add(&state.lateness);
            m.resident_bytes += state.wheel.resident_bytes();
            m.memory_hand_backs += state.wheel.hand_backs();
        }
        let kernel = self.arming.kernel();
        m.arm_calls += kernel.arm_calls;
        m.kick_calls += kernel.kick_calls;
    }
}

impl<K: KernelTimer> Lane<K> {
    /// The window as a timer with this firing policy of its own wants it: narrowed, never widened.
    pub(crate) fn narrow(&self, span: Span, firing: Firing) -> Span {
        let latest = match firing {
            Firing::Latest => span.latest,
            Firing::EarliestCommon => {
                self.common(span.latest).map_or(span.earliest, |l| l.max(span.earliest))
            }
            Firing::Aligned => aligned(span.earliest, span.latest),
        };
        Span { latest, ..span }
    }

    /// The first instant at which a turn serves the same timers as at `at`, if the firing policy leaves a
    /// choice.
    pub(crate) fn serves_from(&self, at: u64) -> u64 {
        if self.firing.load(Relaxed) != Firing::Latest as u8 {
            return at;
        }
        self.common(at).map_or(at, |from| from.min(at))
    }

    /// The largest `earliest` of all shards that is at most `latest`, where it is easily found: from then
    /// on until `latest` a turn fires the same timers.
    pub(crate) fn common(&self, latest: u64) -> Option<u64> {
        let mut last = None;
        for shard in &self.shards {
            if shard.earliest.load(Relaxed) <= latest {
                let state = shard.state.lock();
                if !state.wheel.is_empty() {
                    match state.wheel.last_earliest(latest) {
                        // Too crowded to tell: no point before `latest` is safe.
                        None if state.wheel.first_due() <= latest => return Some(latest),
                        earliest => last = last.max(earliest),
                    }
                }
            }
        }
        last
    }
}

#[cfg(test)]
impl<K> Lane<K> {
    /// Locks every shard, so that a test sees who would wait for one.
    pub(super) fn hold_all(&self) -> impl Sized + '_ {
        self.shards.iter().map(|shard| shard.state.lock()).collect::<Vec<_>>()
    }
}

impl<K: KernelTimer> Windows for Lane<K> {
    fn bound(&self, closely: bool) -> Bound {
        if closely { self.first_latest_closely() } else { self.first_latest() }
    }

    fn point(&self, latest: u64) -> u64 {
        let firing = Firing::ALL[self.firing.load(Relaxed) as usize];
        if firing == Firing::Latest || latest == NEVER || latest == 0 {
            return latest;
        }
        match (firing, self.common(latest)) {
            (Firing::EarliestCommon, Some(from)) => from,
            (Firing::Aligned, Some(from)) => aligned(from, latest),
            _ => latest,
        }
    }
}

impl Shard {
    /// Takes everything out, and starts again at time zero.
    fn restart(&self) -> Wheel<Waker> {
        let mut state = self.state.lock();
        let all = state.wheel.restart();
        self.publish(&mut state.wheel, PARK_RESCAN);
        all
    }

    /// Publishes that a window was added; true when it is now the one that forces the next wakeup of
    /// this shard. Under the lock.
    #[inline(always)]
    fn lower(&self, span: Span) -> bool {
        if span.earliest < self.earliest.load(Relaxed) {
            self.earliest.store(span.earliest, Release);
        }
        let lowered = span.latest < self.latest.load(Relaxed);
        if lowered {
            self.latest.store(span.latest, Relaxed);
        }
        lowered
    }

    /// Publishes that a window has gone. Under the lock.
    #[inline(always)]
    fn released(&self, latest: u64) {
        if latest == self.latest.load(Relaxed) {
            self.stale.store(true, Relaxed);
        }
    }

    /// Publishes both bounds anew, looking at slots of up to `rescan` entries. Under the lock.
    #[inline(never)]
    fn publish(&self, wheel: &mut Wheel<Waker>, rescan: u32) {
        let (latest, exact) = wheel.next_wake_bound(rescan);
        self.stale.store(false, Relaxed);
        self.rough.store(!exact, Relaxed);
        self.latest.store(latest, Relaxed);
        let order = if planted(Bug::PublishRelaxed) { Relaxed } else { Release };
        self.earliest.store(wheel.first_due(), order);
    }
}
