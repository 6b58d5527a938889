//! Ticks on a schedule.

use super::Sleep;
use crate::clock;
use crate::driver::Handle;
use crate::tick::{NEVER, TICK_SHIFT, nanos};
use crate::window::Span;
use futures::Stream;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A tick later than this is missed, unless its window is wider.
const MISSED: u64 = 1_000_000;

/// What an [`Interval`] does after ticks that were missed.
///
/// A tick is *missed* when it is handed out later than its window, and later than 1 ms after its scheduled
/// time. (With `Skip` also when the next tick's time has come, for periods below that.) Lateness below the
/// threshold never moves a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTicks {
    /// Hands out every missed tick, one a poll, until the schedule is caught up.
    #[default]
    Burst,
    /// Moves the schedule: the next tick is one period after the late one was handed out.
    Delay,
    /// Skips the missed ticks: the next one is the first on the schedule that still lies ahead.
    Skip,
}

/// Ticks every period, anchored to its schedule; a future per tick, or a `Stream` of scheduled instants.
/// Made by [`interval`](crate::interval).
///
/// With [leeway](Interval::set_leeway) each tick is a window, and shares wakeups; the schedule does not
/// drift by it.
///
/// ```
/// use std::time::Duration;
/// # let mut driver = slackwheel::Driver::new()?;
/// # driver.block_on(async {
/// let mut every = slackwheel::interval(Duration::from_millis(2)).leeway(Duration::from_millis(1));
/// let first = every.tick().await;
/// assert_eq!(every.tick().await - first, Duration::from_millis(2));
/// # });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "an interval does nothing unless its ticks are awaited"]
pub struct Interval {
    sleep: Sleep,
    /// Scheduled time of the next tick; `NEVER` when stopped.
    next: u64,
    period: u64,
    leeway: u64,
    missed: MissedTicks,
}

impl Interval {
    pub(crate) fn new(handle: Handle, start: u64, period: Duration) -> Self {
        let period = match nanos(period) {
            0 => 1 << TICK_SHIFT,
            ns => ns,
        };
        let sleep = Sleep::spanning(handle, Span::with_slack(start, 0));
        Interval { sleep, next: start, period, leeway: 0, missed: MissedTicks::default() }
    }

    /// Gives every tick a window of this width, at most half a period.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.set_leeway(leeway);
        self
    }

    /// Gives every tick from the next on a window of this width, at most half a period.
    pub fn set_leeway(&mut self, leeway: Duration) {
        self.leeway = nanos(leeway).min(self.period / 2);
        self.schedule(self.next);
    }

    /// What happens after a stall.
    pub fn missed_ticks(mut self, missed: MissedTicks) -> Self {
        self.missed = missed;
        self
    }

    /// What happens after a stall, from the next tick on.
    pub fn set_missed_ticks(&mut self, missed: MissedTicks) {
        self.missed = missed;
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// When the next tick is scheduled.
    pub fn next_tick(&self) -> Instant {
        clock::instant_of(self.next)
    }

    /// The next tick: its scheduled instant, handed out at or after it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no tick.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        if self.next == NEVER {
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let scheduled = self.next;
        let late = self.sleep.lateness().map_or(0, nanos);
        self.schedule(self.following(scheduled, late));
        Poll::Ready(clock::instant_of(scheduled))
    }

    /// The tick after one that was handed out `late` nanoseconds after its scheduled time.
    fn following(&self, scheduled: u64, late: u64) -> u64 {
        let threshold = self.leeway.max(MISSED);
        let steady = scheduled.saturating_add(self.period);
        match self.missed {
            MissedTicks::Delay if late > threshold => {
                scheduled.saturating_add(late).saturating_add(self.period)
            }
            MissedTicks::Skip if late > threshold || late >= self.period => {
                // By division: a stall of years costs no more than one of a millisecond.
                let whole = late - late % self.period;
                steady.saturating_add(whole)
            }
            _ => steady,
        }
    }

    fn schedule(&mut self, at: u64) {
        self.next = at;
        self.sleep.reset_span(Span::with_slack(at, self.leeway));
    }

    /// The next tick comes one period from now.
    pub fn reset(&mut self) {
        let now = self.sleep.handle().reading();
        self.schedule(now.saturating_add(self.period));
    }

    /// The next tick comes now, the one after it a period later.
    pub fn reset_immediately(&mut self) {
        let now = self.sleep.handle().reading();
        self.schedule(now);
    }

    /// The next tick comes `d` from now.
    pub fn reset_after(&mut self, d: Duration) {
        let now = self.sleep.handle().reading();
        self.schedule(crate::tick::after(now, d));
    }

    /// The next tick comes at `instant`.
    pub fn reset_at(&mut self, instant: Instant) {
        self.schedule(clock::reading_of(instant));
    }

    /// No more ticks, until one of the resets. A stopped interval holds no timer.
    pub fn stop(&mut self) {
        self.schedule(NEVER);
    }
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.poll_tick(cx).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}
