//! The arming protocol: when the kernel timer is set, by whom, and why no wakeup is ever lost.
//!
//! Ground rules:
//! - `armed` is what other threads believe: [`AWAKE`] while the driver will look at the shards before
//!   it waits, else the time the kernel timer stands at. An insert whose `latest` is not before it
//!   needs no kernel call; that is nearly every insert.
//! - Every change of the kernel timer, earlier or later, happens under `kernel`, together with
//!   `armed`. `armed` is read without it.
//! - Lost wakeups are excluded by one pairing. An insert publishes its bound, fences, reads `armed`. A
//!   park or a raise publishes `armed`, fences, reads the bounds. With both fences sequentially
//!   consistent, at least one of the two sees the other's write.
//! - After a wait: the descriptor is read, then the clock. The other way round an expiry between the
//!   two would be taken without firing what had forced it.
//! - A cancel makes no kernel call; it leaves the arm *stale* (too early, never too late). Whoever
//!   next operates on the driver raises a stale arm that is less than [`NEAR`] ahead.
//! - Lock order: `kernel`, then a shard. Nobody takes `kernel` while holding a shard.

use crate::park::{Armed, Expiry, KernelTimer};
use crate::primitive::plant::{Bug, planted};
use crate::primitive::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::tick::NEVER;
use Ordering::{Relaxed, SeqCst};

/// Published as `armed` while the driver is awake: before every `latest`, so no insert arms.
pub(crate) const AWAKE: u64 = 0;

/// A stale arm this close is moved. Further away it may become moot by itself: in a simulation with
/// 50 to 99 % of all timers cancelled, 1 ms costs 1.02x the wakeups of exact re-arming.
const NEAR: u64 = 1_000_000;

/// Who looks after the timer between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// The driver parks: it looks at the shards before each wait, so it may be `AWAKE`.
    Parks,
    /// Somebody else polls the descriptor: it must always be armed.
    Polls,
}

/// A time by which the driver must wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) at: u64,
    /// Some window really ends then; else the nearest may end later.
    pub(crate) exact: bool,
}

impl Bound {
    /// When to wake for what is pending.
    fn to_wake(windows: &impl Windows, closely: bool) -> Bound {
        let bound = windows.bound(closely);
        Bound { at: windows.point(bound.at), ..bound }
    }
}

/// What is pending, as the protocol asks for it. Implemented by the shards; they may be locked meanwhile.
pub(crate) trait Windows {
    /// The smallest `latest`, or a bound before it; `closely` may take longer.
    fn bound(&self, closely: bool) -> Bound;
    /// Where to wake for windows that must be served by `latest`: there or before, as the firing policy
    /// has it.
    fn point(&self, latest: u64) -> u64;
}

#[derive(Debug)]
pub(crate) struct Arming<K> {
    armed: AtomicU64,
    /// The window that forced the arm has gone.
    stale: AtomicBool,
    kernel: Mutex<Kernel<K>>,
}

#[derive(Debug)]
pub(crate) struct Kernel<K> {
    pub(crate) timer: Option<K>,
    /// What the kernel timer is set to; `NEVER` when off.
    set: u64,
    pub(crate) arm_calls: u64,
    pub(crate) kick_calls: u64,
}

impl<K: KernelTimer> Kernel<K> {
    fn arm(&mut self, at: u64, remote: bool) {
        let Some(timer) = &self.timer else { return };
        self.set = at;
        match timer.arm(at, remote) {
            Armed::Timer => self.arm_calls += 1,
            Armed::Kick => self.kick_calls += 1,
            Armed::Quiet => {}
        }
    }
}

impl<K: KernelTimer> Arming<K> {
    pub(crate) fn new() -> Self {
        Arming {
            armed: AtomicU64::new(AWAKE),
            stale: AtomicBool::new(false),
            kernel: Mutex::new(Kernel { timer: None, set: NEVER, arm_calls: 0, kick_calls: 0 }),
        }
    }

    /// Starts with a timer that is off.
    pub(crate) fn open(&self, timer: K, host: Host) {
        let mut kernel = self.kernel.lock();
        *kernel = Kernel { timer: Some(timer), set: NEVER, arm_calls: 0, kick_calls: 0 };
        self.stale.store(false, Relaxed);
        self.armed.store(if host == Host::Parks { AWAKE } else { NEVER }, Relaxed);
    }

    /// Takes the timer away: from now on nothing is armed.
    pub(crate) fn close(&self) -> Option<K> {
        let mut kernel = self.kernel.lock();
        self.armed.store(AWAKE, Relaxed);
        kernel.timer.take()
    }

    pub(crate) fn kernel(&self) -> MutexGuard<'_, Kernel<K>> {
        self.kernel.lock()
    }

    /// After an insert has published its bound: makes sure the driver wakes by `latest`.
    #[inline]
    pub(crate) fn cover(&self, latest: u64, windows: &impl Windows) {
        fence(SeqCst);
        if latest < self.armed.load(Relaxed) {
            self.lower(latest, windows);
        }
    }

    #[cold]
    fn lower(&self, latest: u64, windows: &impl Windows) {
        let latest = windows.point(latest);
        let mut kernel = self.kernel.lock();
        if planted(Bug::ArmThenPublish) {
            kernel.arm(latest, true);
            drop(kernel);
            self.armed.store(latest, Relaxed);
            return;
        }
        // Read again under the lock: the driver may have woken, or another insert been faster.
        let armed = self.armed.load(Relaxed);
        if latest < armed {
            if armed != NEVER && kernel.timer.as_ref().is_some_and(|timer| timer.has_come(armed)) {
                // The driver is being woken already, and will look at the shards.
                return;
            }
            kernel.arm(latest, true);
            self.armed.store(latest, Relaxed);
            self.stale.store(false, Relaxed);
        }
    }

    /// After a cancel or a later reset of a window that ended at `latest`: notes a stale arm.
    #[inline]
    pub(crate) fn released(&self, latest: u64) {
        if latest == self.armed.load(Relaxed) {
            self.stale.store(true, Relaxed);
        }
    }

    /// True while the arm is known to be too early: whoever operates on the driver then calls
    /// [`Arming::raise`].
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Relaxed)
    }

    /// Moves a stale arm that is near to the smallest bound, as `bounds` reads it.
    #[cold]
    pub(crate) fn raise(&self, now: u64, windows: &impl Windows) {
        let armed = self.armed.load(Relaxed);
        if armed == AWAKE || armed == NEVER || armed.saturating_sub(now) >= NEAR || armed <= now {
            return;
        }
        let mut kernel = self.kernel.lock();
        let armed = self.armed.load(Relaxed);
        if armed == AWAKE || !self.stale.swap(false, Relaxed) {
            return;
        }
        let bound = Bound::to_wake(windows, true);
        if bound.at > armed {
            if planted(Bug::RaiseUnlocked) {
                self.armed.store(bound.at, Relaxed);
                drop(kernel);
                self.kernel.lock().arm(bound.at, true);
                return;
            }
            kernel.arm(bound.at, true);
            self.publish(&mut kernel, bound, windows, true);
        }
    }

    /// Before a wait: publishes what the kernel timer stands at, after setting it to the smallest
    /// bound. True when the driver may wait; false when something is due by `now`.
    pub(crate) fn park(&self, now: u64, windows: &impl Windows) -> bool {
        let mut kernel = self.kernel.lock();
        let bound = Bound::to_wake(windows, false);
        if bound.at <= now {
            return false;
        }
        if bound.at != kernel.set {
            kernel.arm(bound.at, false);
        }
        self.publish(&mut kernel, bound, windows, false);
        let due = self.armed.load(Relaxed) <= now;
        if due {
            self.armed.store(AWAKE, Relaxed);
        }
        !due
    }

    /// Publishes what the kernel timer was set to, then looks for inserts that read the old value.
    fn publish(
        &self,
        kernel: &mut Kernel<K>,
        mut bound: Bound,
        windows: &impl Windows,
        remote: bool,
    ) {
        loop {
            self.armed.store(bound.at, Relaxed);
            // A bound that may be too early is looked at again when it is near.
            self.stale.store(!bound.exact, Relaxed);
            fence(SeqCst);
            if planted(Bug::NoRescan) {
                return;
            }
            let again = windows.bound(false);
            if again.at >= bound.at {
                return;
            }
            bound = again;
            kernel.arm(bound.at, remote);
        }
    }

    /// After a wait: the driver is awake. Tells what has become of the timer, which is looked up only
    /// when `maybe_expired`. The clock is read after this.
    pub(crate) fn awake(&self, maybe_expired: bool) -> Expiry {
        let mut kernel = self.kernel.lock();
        self.armed.store(AWAKE, Relaxed);
        if maybe_expired { Self::take(&mut kernel) } else { Expiry::NotYet }
    }

    /// Before a turn of a driver whose descriptor somebody else polls: takes the expiry.
    pub(crate) fn polled(&self) -> Expiry {
        let mut kernel = self.kernel.lock();
        let expiry = Self::take(&mut kernel);
        if expiry != Expiry::NotYet {
            // Nothing is armed now; an insert may arm again before the turn ends.
            self.armed.store(NEVER, Relaxed);
        }
        expiry
    }

    /// After such a turn: ends armed.
    pub(crate) fn rearm(&self, windows: &impl Windows) {
        let mut kernel = self.kernel.lock();
        let bound = Bound::to_wake(windows, false);
        if bound.at != kernel.set {
            kernel.arm(bound.at, true);
        }
        self.publish(&mut kernel, bound, windows, true);
    }

    fn take(kernel: &mut Kernel<K>) -> Expiry {
        let expiry = kernel.timer.as_ref().map_or(Expiry::NotYet, KernelTimer::take_expiry);
        if expiry != Expiry::NotYet {
            kernel.set = NEVER;
        }
        expiry
    }
}
