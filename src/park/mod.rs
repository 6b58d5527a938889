//! How a thread waits. One way a file, each behind [`Park`] (for the thread that waits) and [`Alarm`]
//! (for all others).
//!
//! The call order, which `driver::turn` keeps:
//! One `Park` waits for the alarms of all its clocks; `Alarm::open` makes another clock's.
//!
//! 1. `Alarm::arm` sets what the next wait must end at; it may be called at any time, by any thread.
//! 2. `Park::wait` blocks until that time, until a `ring`, or until `max`, whichever is first. It may
//!    return early for no reason; it never returns late by its own doing.
//! 3. `Alarm::take_expiry` is asked once after each wait, before the clock is read.
//! 4. `Alarm::ring` ends the present or, when there is none, the next wait.

#[cfg(target_os = "linux")]
pub(crate) mod futex;
#[cfg(target_os = "linux")]
pub(crate) mod pwait2;
#[cfg(target_os = "linux")]
pub(crate) mod timerfd;
// Last resort of every system, so it is built everywhere.
pub(crate) mod mio;
pub(crate) mod scripted;

use crate::clock::Clock;
use crate::primitive::{AtomicU8, Ordering};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// One absolute, one-shot timer of the kernel, or what stands in for it.
pub(crate) trait KernelTimer {
    /// Sets the timer to `at` ([`NEVER`]: off). `remote` when the caller is not the thread that is
    /// about to wait: where no kernel timer can be moved for a waiting thread, it is woken instead.
    fn arm(&self, at: u64, remote: bool) -> Armed;
    /// Takes the expiry, when there is one.
    fn take_expiry(&self) -> Expiry;
    /// True when the timer's clock surely reads `at` or more. Asked only where the answer may save an
    /// [`arm`](KernelTimer::arm), so `false` is always right.
    fn has_come(&self, _at: u64) -> bool {
        false
    }
}

/// What has become of a kernel timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Its time has not come.
    NotYet,
    /// Its time has come; it is off now.
    Expired,
    /// Its clock was set by somebody; it is off now.
    ClockSet,
}

/// How [`KernelTimer::arm`] got its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// A kernel timer was set.
    Timer,
    /// The waiting thread was woken.
    Kick,
    /// Nothing had to be told to the kernel.
    Quiet,
}

/// The half of a parker that belongs to the thread that waits.
pub(crate) trait Park: Send {
    /// Waits; see the module's call order. Tells whose time may have come; nobody's when the wait was
    /// rung, or interrupted.
    ///
    /// `from(at)` is the first instant of the monotonic clock at which a turn serves the same pending
    /// timers as at `at`, the armed time: a parker may let the kernel choose between the two. It takes
    /// locks; a parker that has no use for it does not call it.
    fn wait(&mut self, max: Option<Duration>, from: &dyn Fn(u64) -> u64) -> io::Result<Clocks>;
}

/// The half of a parker that any thread may use.
pub(crate) trait Alarm: Send + Sync {
    /// Makes the wait end at `at` (`u64::MAX`: not by itself); `remote` when the caller is not about
    /// to wait itself.
    fn arm(&self, at: u64, remote: bool) -> Armed;
    /// Tells once that the armed time has come. Never blocks.
    fn take_expiry(&self) -> Expiry;
    /// True when the alarm's clock reads `at` or more.
    fn has_come(&self, at: u64) -> bool;
    /// Ends the present or next wait.
    fn ring(&self);
    /// The alarm of another clock that ends the same waits.
    fn open(&self, clock: Clock) -> io::Result<Arc<dyn Alarm>>;
}

impl KernelTimer for Arc<dyn Alarm> {
    fn arm(&self, at: u64, remote: bool) -> Armed {
        Alarm::arm(&**self, at, remote)
    }

    fn take_expiry(&self) -> Expiry {
        Alarm::take_expiry(&**self)
    }

    fn has_come(&self, at: u64) -> bool {
        Alarm::has_come(&**self, at)
    }
}

/// A set of clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks(pub(crate) u8);

impl Clocks {
    pub(crate) const ALL: Clocks = Clocks(!0);

    pub(crate) fn with(self, clock: Clock) -> Self {
        Clocks(self.0 | 1 << clock as u8)
    }

    pub(crate) fn has(self, clock: Clock) -> bool {
        self.0 >> clock as u8 & 1 == 1
    }
}

/// A parker, as its two halves.
pub(crate) type Halves = (Box<dyn Park>, Arc<dyn Alarm>);

/// An [`Alarm`] with the memory of whether its thread waits, so that only a waiting thread costs a
/// system call to wake.
pub(crate) struct Bell {
    state: AtomicU8,
    alarm: Arc<dyn Alarm>,
}

const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

impl Bell {
    pub(crate) fn new(alarm: Arc<dyn Alarm>) -> Self {
        Bell { state: AtomicU8::new(AWAKE), alarm }
    }

    /// Announces a wait; false when a notification is there already, and is taken.
    pub(crate) fn prepare(&self) -> bool {
        match self.state.compare_exchange(AWAKE, PARKED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(_) => {
                self.state.store(AWAKE, Ordering::SeqCst);
                false
            }
        }
    }

    /// Ends a wait; true when it had been notified.
    pub(crate) fn finish(&self) -> bool {
        self.state.swap(AWAKE, Ordering::SeqCst) == NOTIFIED
    }

    /// True when there is a notification that nobody has taken.
    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::SeqCst) == NOTIFIED
    }

    /// Takes a notification, when there is one.
    pub(crate) fn take(&self) -> bool {
        self.state.compare_exchange(NOTIFIED, AWAKE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes the present or the next wait return.
    pub(crate) fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::SeqCst) == PARKED {
            self.alarm.ring();
        }
    }
}
