//! Sleeps of a thread, each with a window, and the thread's own timer slack.
//!
//! A thread's *timer slack* is the kernel's licence to end its sleeps later than asked, so as to
//! end several at once. It is 50 us unless someone changed it, belongs to the thread, and acts on
//! sleeps, on futexes (so on every lock's timed wait) and on `poll`, `select` and `epoll_wait`. It
//! does not act on timerfd, `timer_settime`, `futex_waitv` or io_uring.
//!
//! The functions here set it for the length of one sleep to the width of that sleep's window:
//!
//! ```
//! use slackwheel::thread;
//! use std::time::{Duration, Instant};
//!
//! let start = Instant::now();
//! thread::sleep_range(Duration::from_millis(2), Duration::from_millis(5));
//! assert!(start.elapsed() >= Duration::from_millis(2));
//! ```
//!
//! # The traps of timer slack
//!
//! - **It is inherited.** A new thread starts with its creator's *present* slack, as its present and as its
//!   default one. So spawn threads outside of a [`SlackGuard`]'s life unless that is what you want.
//! - **Zero means "back to the default"**, not "none". The functions here make it one nanosecond.
//! - **Huge values are dangerous**: at the largest one a sleep of a millisecond never ends. Values
//!   above [`MAX_TIMER_SLACK`] are cut to it.
//! - **Real-time threads have none.** What one sets is ignored, and a thread that leaves its real-time
//!   policy gets its default back, not what it had. A child of a real-time thread may have a
//!   default of zero.
//! - **glibc's `prctl` reads it as an `int`**: five seconds become 0.7. [`timer_slack`] does not.
//!
//! # Threads and tasks
//!
//! These functions block the calling thread. In async code use [`sleep_range`](crate::sleep_range)
//! and its companions at the crate's root, which share one kernel timer among all tasks.

use crate::clock::{monotonic, reading_of};
use crate::sys::{sched, slack};
use crate::tick::{NEVER, after, nanos};
use crate::tunables::plain_slack;
use crate::window::{Span, Window};
use std::io;
use std::time::{Duration, Instant};

/// The widest slack that this crate hands to the kernel: one second. The kernel's share of a wider window
/// is its first second.
pub const MAX_TIMER_SLACK: Duration = Duration::from_nanos(slack::WIDEST);

/// Sleeps for at least `min` and at most `max`, at whichever moment in between costs the least:
/// this is not jitter, and nothing is random about it.
///
/// A `max` below `min` acts as `min`. A `min` past the clock's end sleeps for ever. The clock is the
/// monotonic one, which stands still in suspend. Signals do not end the sleep.
pub fn sleep_range(min: Duration, max: Duration) {
    sleep_span(Span::range(monotonic(), min, max));
}

/// Sleeps for `duration`: without slack, or with the
/// [`default_slack`](crate::tunables::default_slack) that was set. Otherwise as [`sleep_range`].
pub fn sleep(duration: Duration) {
    let delay = nanos(duration);
    sleep_span(Span::with_slack(after(monotonic(), duration), plain_slack(delay)));
}

/// Sleeps until `deadline`: without slack, or with the
/// [`default_slack`](crate::tunables::default_slack) that was set. Returns at once when it is past.
pub fn sleep_until(deadline: Instant) {
    let earliest = reading_of(deadline);
    let delay = earliest.saturating_sub(monotonic());
    sleep_span(Span::with_slack(earliest, plain_slack(delay)));
}

/// Sleeps until some moment of `window`. Returns at once when it has begun.
pub fn sleep_window(window: Window) {
    sleep_span(Span {
        earliest: reading_of(window.earliest()),
        latest: reading_of(window.latest()),
    });
}

fn sleep_span(span: Span) {
    if monotonic() >= span.earliest && span.earliest != NEVER {
        return;
    }
    let _slack = slack::Scoped::new(span.latest - span.earliest);
    // Again after a signal, and after a deadline that was too far for one call.
    while monotonic() < span.earliest {
        block_until(span.earliest);
    }
}

#[cfg(target_os = "linux")]
fn block_until(reading: u64) {
    crate::sys::sleep::until(reading);
}

#[cfg(not(target_os = "linux"))]
fn block_until(reading: u64) {
    std::thread::sleep(Duration::from_nanos(reading.saturating_sub(monotonic())));
}

/// The calling thread's timer slack; zero for a real-time thread.
///
/// # Errors
/// [`Unsupported`](io::ErrorKind::Unsupported) where the system has no timer slack (other than Linux,
/// and some sandboxes).
pub fn timer_slack() -> io::Result<Duration> {
    // Before Linux 6.12 a real-time thread reads a value that does not act.
    if sched::is_realtime() {
        return Ok(Duration::ZERO);
    }
    slack::get().map(Duration::from_nanos).ok_or_else(no_slack)
}

/// Sets the calling thread's timer slack: how late its sleeps and timed waits may end.
///
/// Zero sets one nanosecond, which is as good as none; more than [`MAX_TIMER_SLACK`] sets that. Waits
/// of this crate that have a window use the window's width instead.
///
/// # Errors
/// [`Unsupported`](io::ErrorKind::Unsupported) for a real-time thread, where the kernel would
/// ignore it without a word, and where the system has no timer slack.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    if sched::is_realtime() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a real-time thread has no timer slack",
        ));
    }
    if slack::set(nanos(slack).clamp(1, slack::WIDEST)) { Ok(()) } else { Err(no_slack()) }
}

/// Sets the calling thread's timer slack back to its default: the slack that its creator had when
/// it was made.
///
/// # Errors
/// [`Unsupported`](io::ErrorKind::Unsupported) where the system has no timer slack.
pub fn reset_timer_slack() -> io::Result<()> {
    if slack::set(0) { Ok(()) } else { Err(no_slack()) }
}

fn no_slack() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the system has no timer slack")
}

/// Sets the calling thread's timer slack and sets back what it was when dropped, also by a panic.
///
/// Guards nest; drop them in the reverse order of their making, as scopes do. A guard stays on its
/// thread. Threads spawned in its life inherit its slack (see the [module](self)).
///
/// Never fails: for a real-time thread, and where the system has no timer slack, it changes nothing.
///
/// ```
/// use slackwheel::thread::{SlackGuard, timer_slack};
/// use std::time::Duration;
///
/// # if timer_slack().is_err() { return }
/// let before = timer_slack().unwrap();
/// {
///     let _lax = SlackGuard::new(Duration::from_millis(5));
///     assert_eq!(timer_slack().unwrap(), Duration::from_millis(5));
///     // Timed waits of any library in here may share wakeups.
/// }
/// assert_eq!(timer_slack().unwrap(), before);
/// ```
#[derive(Debug)]
#[must_use = "the slack is set back when the guard is dropped"]
pub struct SlackGuard {
    _scoped: slack::Scoped,
}

impl SlackGuard {
    /// Sets the slack: zero sets one nanosecond, more than [`MAX_TIMER_SLACK`] sets that.
    pub fn new(slack: Duration) -> Self {
        SlackGuard { _scoped: slack::Scoped::new(nanos(slack)) }
    }

    /// Runs `f` with this slack.
    pub fn with<R>(slack: Duration, f: impl FnOnce() -> R) -> R {
        let _guard = SlackGuard::new(slack);
        f()
    }
}
