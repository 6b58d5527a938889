//! Timers whose every wait is a window.
//!
//! A wait is nearly always written as a point in time, and almost none needs to be one. Here it is a
//! [`Window`] `[earliest, latest]`: it completes at or after `earliest`, it is due by `latest`, and in
//! between it is served at whatever instant costs the fewest wakeups. A hierarchical timing wheel on Linux
//! timerfd turns many windows into the fewest possible wakeups, and reports how late each timer was.
//!
//! ```
//! use slackwheel::{sleep_range, timeout};
//! use std::time::Duration;
//!
//! # let mut driver = slackwheel::Driver::new()?;
//! # driver.block_on(async {
//! // Some time between 2 and 10 ms from now, together with others.
//! sleep_range(Duration::from_millis(2), Duration::from_millis(10)).await;
//! // Exact, as everything that does not ask for slack.
//! assert_eq!(timeout(Duration::from_millis(5), async { 7 }).await, Ok(7));
//! # });
//! # Ok::<(), slackwheel::BuildError>(())
//! ```
//!
//! # Where to start
//!
//! - On any executor: the free functions [`sleep`], [`sleep_range`], [`timeout`], [`interval`]. Their timers
//!   belong to the driver the thread has entered, else to the process's default one, which has a thread of
//!   its own.
//! - On a thread of your own: [`Driver::block_on`], or [`Driver::park`] in a loop.
//! - In an event loop of your own: [`ExternalDriver`], a descriptor and a [`turn`](ExternalDriver::turn).
//! - For many values, each with its time: [`DelayQueue`].
//! - In tests: [`sim::Sim`], simulated time for tasks and threads; below it [`Driver::manual`], the same driver
//!   on a clock moved by hand.
//! - As a data structure: [`wheel::Wheel`].
//! - On plain threads: [`thread::sleep_range`], [`sync::blocking::Condvar`]; the slack is the kernel's there.
//! - For timed waits of tasks: [`sync::Condvar`]. For the dials of waits that name no window: [`tunables`].
//!
//! # The contract
//!
//! 1. **Never early.** A timer completes at or after `earliest`, on its own clock, to the nanosecond.
//! 2. **Late only by the window.** It is due by `latest`; past it only by scheduling delay. Each such
//!    overrun is counted, with its size ([`Lateness`]).
//! 3. **Exactly once, or cancelled.** Dropping a [`Sleep`] frees its entry at once; a waker that was already
//!    collected may still be called once. A reset keeps the waker. A poll after completion is ready again. A
//!    due sleep is ready at once, but after 128 in a row on one thread a poll wakes itself and returns
//!    pending, so that a loop of zero sleeps lets others run.
//! 4. **Fewest wakeups.** The kernel is armed for the smallest `latest` of all pending windows; at every
//!    wakeup, whatever its cause, everything with `earliest <= now` fires. Two windows that force two wakeups
//!    never overlap, so no schedule needs fewer. Without cancels and later resets the number equals the
//!    offline minimum.
//! 5. **A window is a contract, a resolution is a hint.** Nothing widens a window. Waits that gave a resolution,
//!    or nothing, take their slack from [`tunables`].
//! 6. **Total.** No input panics, hangs or wraps: zero, the past, `Duration::MAX`, inverted ranges, a clock
//!    that steps. A deadline past the clock's end (584 years) never fires.
//! 7. **Exact by default.** [`sleep`] has no slack unless a default was set ([`tunables::default_slack`]).
//! 8. **Order.** Within a shard and a batch of a turn (some 256 timers), those whose `latest` has come are woken before
//!    those that merely may fire; both by `earliest`, to the wheel's tick of 1.024 us, ties by insertion. No order
//!    across shards. (A thread's timers go to one shard.)
//! 9. **Life after the driver.** When its driver is gone a pending sleep is woken once and registers with the
//!    default driver at its next poll; on a manual clock it stays pending, and [`Sleep::is_orphaned`] says so.
//!    After a fork a child never locks, reads or arms the parent's driver: its timers register with its own.
//!
//! # Vocabulary
//!
//! *Window*, *earliest*, *latest*; *slack* = latest - earliest; *tick*: the wheel's unit of placement; *turn*:
//! one pass that fires what is due; *wakeup*: a return from the kernel; *park*, *unpark*; *arm*: set the kernel
//! timer; *lateness* = completion - earliest; *overrun* = completion - latest; *driver*: owns wheel and parker;
//! *handle*: refers to a driver; *coalesced*: fired on a wakeup that another window forced; *spurious*: a
//! wakeup that fires nothing.

mod clock;
pub mod compat;
pub mod docs;
mod driver;
mod error;
mod future;
mod metrics;
mod park;
mod primitive;
pub mod sim;
pub mod sync;
mod sys;
pub mod thread;
mod tick;
pub mod tunables;
pub mod wheel;
mod window;

pub use clock::{BootInstant, Clock};
pub use driver::{
    Driver, DriverBuilder, EnterGuard, ExternalDriver, Firing, Handle, LocalDriver, LocalHandle,
    ManualClock, Parker, Turn,
};
pub use error::{BuildError, Elapsed, InvalidTunable, InvertedWindow, Shutdown, ZeroPeriod};
pub use future::{
    BootSleep, ClockChanged, OrClockChange, SystemSleep, sleep_boottime, sleep_boottime_range,
    sleep_until_system,
};
pub use future::{
    DelayQueue, Expired, Interval, MissedTicks, QueueKey, Sleep, Timeout, interval, interval_at,
    sleep, sleep_range, sleep_until, sleep_window, timeout, timeout_at, timeout_range,
};
pub use future::{LocalSleep, LocalTimeout};
pub use metrics::{Lateness, Metrics};
pub use window::Window;

/// The README's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
