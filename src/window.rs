//! The window: from when on a timer may complete, and by when it should.

use crate::error::InvertedWindow;
use crate::tick::{NEVER, after};
use std::time::{Duration, Instant};

/// A wait as a window of time: it completes at or after [`earliest`](Window::earliest) and is due by
/// [`latest`](Window::latest).
///
/// The wider a window, the more other timers it can share a wakeup with. A window is a contract: it is
/// never completed early, nothing widens it, and a completion after `latest` is a scheduling delay
/// that is counted (see [`Metrics`](crate::Metrics)).
///
/// ```
/// use slackwheel::Window;
/// use std::time::{Duration, Instant};
///
/// let start = Instant::now() + Duration::from_secs(1);
/// let window = Window::with_slack(start, Duration::from_millis(50));
/// assert_eq!(window.slack(), Duration::from_millis(50));
/// assert!(Window::new(window.latest(), window.earliest()).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    earliest: Instant,
    latest: Instant,
}

impl Window {
    /// The window `[earliest, latest]`.
    ///
    /// # Errors
    /// [`InvertedWindow`] when `latest` is before `earliest`.
    pub fn new(earliest: Instant, latest: Instant) -> Result<Self, InvertedWindow> {
        if latest < earliest {
            return Err(InvertedWindow { inverted_by: earliest - latest });
        }
        Ok(Window { earliest, latest })
    }

    /// The window of one instant: no slack.
    pub fn at(instant: Instant) -> Self {
        Window { earliest: instant, latest: instant }
    }

    /// The window `[earliest, earliest + slack]`. A `latest` past what an `Instant` can hold is a
    /// point so far ahead that it never forces a wakeup.
    pub fn with_slack(earliest: Instant, slack: Duration) -> Self {
        Window { earliest, latest: add(earliest, slack) }
    }

    /// From when on the wait may complete.
    pub fn earliest(&self) -> Instant {
        self.earliest
    }

    /// By when the wait should complete.
    pub fn latest(&self) -> Instant {
        self.latest
    }

    /// `latest - earliest`.
    pub fn slack(&self) -> Duration {
        self.latest - self.earliest
    }
}

/// `instant + d`, or a point beyond the end of every clock of this crate.
pub(crate) fn add(instant: Instant, d: Duration) -> Instant {
    instant.checked_add(d).unwrap_or_else(|| {
        // The largest power of two of seconds that fits: centuries past the clock's end.
        (30..63)
            .rev()
            .find_map(|bits| instant.checked_add(Duration::from_secs(1 << bits)))
            .unwrap_or(instant)
    })
}

/// A window in nanoseconds of a driver's clock: what the layers below the futures work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) earliest: u64,
    pub(crate) latest: u64,
}

impl Span {
    /// A wait that never completes.
    pub(crate) const NEVER: Span = Span { earliest: NEVER, latest: NEVER };

    /// The window `[now + min, now + max]`; a `max` below `min` acts as `min`.
    #[inline]
    pub(crate) const fn range(now: u64, min: Duration, max: Duration) -> Self {
        let earliest = after(now, min);
        let latest = after(now, max);
        Span { earliest, latest: if latest < earliest { earliest } else { latest } }
    }

    /// The window `[at, at + slack]`.
    #[inline]
    pub(crate) const fn with_slack(at: u64, slack: u64) -> Self {
        Span { earliest: at, latest: at.saturating_add(slack) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverted_window_is_an_error_that_says_by_how_much() {
        let now = Instant::now();
        let err = Window::new(now + Duration::from_millis(5), now).unwrap_err();
        assert_eq!(err.inverted_by, Duration::from_millis(5));
        assert!(err.to_string().contains("5ms"), "{err}");
        assert_eq!(Window::new(now, now).unwrap().slack(), Duration::ZERO);
    }

    #[test]
    fn slack_without_end_is_far_ahead_and_does_not_panic() {
        let now = Instant::now();
        let window = Window::with_slack(now, Duration::MAX);
        assert!(window.slack() > Duration::from_secs(600 * 31_557_600));
    }

    #[test]
    fn a_range_with_max_below_min_acts_as_min() {
        let ms = Duration::from_millis;
        assert_eq!(Span::range(7, ms(3), ms(1)), Span { earliest: 3_000_007, latest: 3_000_007 });
        assert_eq!(Span::range(7, Duration::MAX, ms(1)), Span::NEVER);
        assert_eq!(Span::range(0, ms(1), Duration::MAX).latest, NEVER);
    }
}
