//! The sleep: a window, and the entry that stands for it in a driver's wheel.

use crate::clock::{self, Clock};
use crate::driver::{self, ClockLane, Firing, Handle, NEAR, Polled};
use crate::tick::{NEVER, nanos};
use crate::tunables::{SlackRule, default_slack, plain_slack};
use crate::wheel::Key;
use crate::window::{Span, Window};
use futures::future::FusedFuture;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A future that completes within its window. Made by [`sleep`](crate::sleep),
/// [`sleep_range`](crate::sleep_range) and their kin.
///
/// It registers nothing until it is first polled pending, may move between tasks and threads, and can be
/// [reset](Sleep::reset) in place. A poll after completion is ready again.
#[must_use = "futures do nothing unless polled"]
// Plain fields and no enum with data: made by stores of their own sizes and never copied in pieces of others,
// it costs its first poll no wait for a store.
pub struct Sleep {
    handle: Handle,
    span: Span,
    /// Its entry's key while `Pending`; once `Done`, how long after `earliest` it completed.
    word: u64,
    index: u32,
    /// Its entry's shard while `Pending`.
    shard: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not registered; the first poll reads the clock.
    Idle,
    /// Not registered, and so far ahead when it was made that the first poll need not read the clock.
    Ahead,
    /// In a wheel of the handle's driver.
    Pending,
    /// Completed.
    Done,
    /// The manual clock it was waiting for has gone.
    Orphaned,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep")
            .field("earliest", &self.deadline())
            .field("slack_ns", &(self.span.latest - self.span.earliest))
            .field("elapsed", &self.is_elapsed())
            .finish()
    }
}

impl Sleep {
    #[inline(always)]
    pub(crate) fn range(handle: Handle, min: Duration, max: Duration) -> Self {
        let (span, look) = handle.span(min, max);
        Sleep::new(handle, span, if look { State::Idle } else { State::Ahead })
    }

    #[inline]
    pub(crate) fn window(handle: Handle, window: Window) -> Self {
        Sleep::new(handle, span_of(window), State::Idle)
    }

    #[inline]
    pub(crate) fn spanning(handle: Handle, span: Span) -> Self {
        Sleep::new(handle, span, State::Idle)
    }

    #[inline(always)]
    fn new(handle: Handle, span: Span, state: State) -> Self {
        Sleep { handle, span, word: 0, index: 0, shard: 0, state }
    }

    /// While `Pending`.
    #[inline(always)]
    fn key(&self) -> Key {
        Key::from_parts(self.word, self.index)
    }

    /// A sleep that gave no slack: the default one, which is one relaxed load while none is set.
    #[inline]
    pub(crate) fn plain(handle: Handle, d: Duration) -> Self {
        match plain_slack(nanos(d)) {
            0 => Self::range(handle, d, d),
            slack => Self::range(handle, d, d.saturating_add(Duration::from_nanos(slack))),
        }
    }

    pub(crate) fn plain_until(handle: Handle, deadline: Instant) -> Self {
        let at = clock::reading_of(deadline);
        let slack = match default_slack().get() {
            SlackRule::EXACT => 0,
            _ => plain_slack(at.saturating_sub(handle.reading())),
        };
        Self::spanning(handle, Span::with_slack(at, slack))
    }

    pub(crate) fn never(handle: Handle) -> Self {
        Self::spanning(handle, Span::NEVER)
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// True while an entry stands for it in a wheel, fired or not.
    pub(super) fn is_registered(&self) -> bool {
        self.state == State::Pending
    }

    /// Narrows its window to the part that a firing policy would choose, for this timer alone: with
    /// [`Firing::EarliestCommon`] it ends where it can share a wakeup with what is pending now, with
    /// [`Firing::Aligned`] at the shared grid. The window is never widened; `Latest` leaves it as it is.
    ///
    /// ```
    /// use slackwheel::{Firing, sleep_range};
    /// use std::time::Duration;
    ///
    /// # let mut driver = slackwheel::Driver::new()?;
    /// # driver.block_on(async {
    /// let ms = Duration::from_millis;
    /// sleep_range(ms(2), ms(15)).firing(Firing::Aligned).await;
    /// # });
    /// # Ok::<(), slackwheel::BuildError>(())
    /// ```
    pub fn firing(mut self, firing: Firing) -> Self {
        if let Some(lane) = self.lane() {
            self.reset_span(lane.narrow(self.span, firing));
        }
        self
    }

    /// From when on it may complete.
    pub fn deadline(&self) -> Instant {
        clock::instant_of(self.span.earliest)
    }

    /// By when it should complete.
    pub fn latest(&self) -> Instant {
        clock::instant_of(self.span.latest)
    }

    /// True once a poll has returned `Ready`, until the next reset.
    pub fn is_elapsed(&self) -> bool {
        self.state == State::Done
    }

    /// How long after its `earliest` it completed; `None` before. It completes with the turn that fires it, or
    /// with the poll that finds it due: what passes between that turn and its task's next poll does not
    /// count.
    pub fn lateness(&self) -> Option<Duration> {
        (self.state == State::Done).then(|| Duration::from_nanos(self.word))
    }

    /// How long after its `latest` it completed; zero when in time, `None` before.
    pub fn overrun(&self) -> Option<Duration> {
        let slack = Duration::from_nanos(self.span.latest - self.span.earliest);
        self.lateness().map(|late| late.saturating_sub(slack))
    }

    /// True when it can never complete, because the driver whose manual clock it was waiting for has gone.
    /// (A sleep on any other clock moves to the default driver instead.)
    pub fn is_orphaned(&self) -> bool {
        match self.state {
            State::Orphaned => true,
            State::Done => false,
            _ => self.handle.manual && self.handle.is_shut_down(),
        }
    }

    /// Moves it to complete at `deadline`, with no slack. A pending sleep keeps its waker and its place in
    /// memory; a completed one starts anew.
    pub fn reset(&mut self, deadline: Instant) {
        self.reset_span(span_of(Window::at(deadline)));
    }

    /// Moves it to another window. See [`reset`](Sleep::reset).
    pub fn reset_window(&mut self, window: Window) {
        self.reset_span(span_of(window));
    }

    /// Moves it to complete between `min` and `max` from now. See [`reset`](Sleep::reset).
    pub fn reset_range(&mut self, min: Duration, max: Duration) {
        self.reset_span(self.handle.span(min, max).0);
    }

    /// Makes it never complete, until it is reset again. It holds no timer then.
    pub fn reset_never(&mut self) {
        self.reset_span(Span::NEVER);
    }

    pub(crate) fn reset_span(&mut self, span: Span) {
        if self.state == State::Pending {
            if span.earliest != NEVER {
                let life = self.handle.life;
                if let Some(lane) = self.lane()
                    && lane.reset(self.shard as usize, life, self.key(), self.span, span)
                {
                    self.span = span;
                    self.raise_stale_arm();
                    return;
                }
            }
            self.unregister();
        }
        self.span = span;
        if self.state != State::Orphaned {
            self.state = State::Idle;
        }
    }

    /// Where its entry is; `None` when its driver has gone.
    #[inline]
    fn lane(&self) -> Option<&'static ClockLane> {
        let Handle { core, life, .. } = self.handle;
        if core.is_alive(life) { self.handle.lane() } else { None }
    }

    /// Takes the entry out of the wheel, when there is one.
    #[inline]
    fn unregister(&mut self) {
        if self.state == State::Pending {
            self.state = State::Idle;
            // The waker is dropped here, with no lock held.
            drop(self.take_out());
        }
    }

    /// Takes its entry out of the wheel and returns the waker, if it is still there.
    fn take_out(&mut self) -> Option<Waker> {
        let lane = self.lane()?;
        let waker = lane.cancel(self.shard as usize, self.handle.life, self.key(), self.span);
        self.raise_stale_arm();
        waker
    }

    /// Whoever operates on a driver whose arm is stale helps; else this is one load. As long as the arm
    /// is far away a coarse clock is enough to see so, now and then.
    #[inline]
    fn raise_stale_arm(&self) {
        if let Some(lane) = self.handle.lane()
            && let Some(armed) = lane.arming.stale_arm()
            && !driver::is_known_far(armed)
        {
            self.raise(lane, armed);
        }
    }

    #[cold]
    fn raise(&self, lane: &ClockLane, armed: u64) {
        let Handle { manual, clock, .. } = self.handle;
        if !manual && clock == Clock::Monotonic {
            let ahead = clock::surely_ahead(armed);
            if ahead > NEAR {
                return driver::seen_far(armed, ahead);
            }
        }
        lane.raise(self.handle.reading());
    }

    #[inline]
    fn complete(&mut self, now: u64) -> Poll<()> {
        self.word = now.saturating_sub(self.span.earliest);
        self.state = State::Done;
        Poll::Ready(())
    }

    /// The driver has gone: move to the default driver, if that has the same clock.
    #[cold]
    fn rehome(&mut self) -> bool {
        if self.handle.manual {
            self.state = State::Orphaned;
            return false;
        }
        self.handle = driver::default_handle().on(self.handle.clock);
        true
    }

    fn register(&mut self, waker: &Waker) -> Poll<()> {
        let mut waker = waker.clone();
        let shard = driver::shard();
        loop {
            let Handle { core, life, clock, .. } = self.handle;
            if let Some(lane) = self.lane() {
                match lane.register(shard, life, self.span, waker) {
                    Ok(key) => {
                        (self.word, self.index) = key.into_parts();
                        self.shard = shard as u16;
                        self.state = State::Pending;
                        if !core.is_driven() {
                            self.drive_default();
                        }
                        self.raise_stale_arm();
                        return Poll::Pending;
                    }
                    Err(back) => waker = back,
                }
            }
            if clock != Clock::Monotonic && core.is_alive(life) {
                if core.open_clock(life, clock).is_ok() {
                    continue;
                }
                if self.handle == driver::default_handle() {
                    // No descriptor left: look at the clock again before long.
                    std::thread::sleep(Duration::from_millis(1));
                    waker.wake();
                    return Poll::Pending;
                }
            }
            if !self.rehome() {
                return Poll::Pending;
            }
        }
    }

    /// Starts the default driver's thread. Where that fails, the waker is called, so that the next poll
    /// tries again and looks at the clock; the pause keeps this from spinning.
    #[cold]
    fn drive_default(&mut self) {
        if driver::ensure_driven(self.handle).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            self.state = State::Idle;
            if let Some(waker) = self.take_out() {
                waker.wake();
            }
        }
    }

    #[inline]
    fn poll_first(&mut self, cx: &mut Context<'_>, look: bool) -> Poll<()> {
        if self.span.earliest == NEVER {
            return Poll::Pending;
        }
        if look {
            let Handle { core, life, manual, .. } = self.handle;
            if manual && !core.is_alive(life) {
                self.state = State::Orphaned;
                return Poll::Pending;
            }
            let now = self.handle.reading();
            if now >= self.span.earliest {
                if driver::may_be_ready() {
                    return self.complete(now);
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        driver::was_pending();
        self.register(cx.waker())
    }

    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shard = self.shard as usize;
        if let Some(lane) = self.lane() {
            // Mostly a turn has fired it. (On the wall clock the turn may have been before it was set back.)
            if let Some(at) = lane.passed_at(shard, self.span.earliest)
                && self.handle.clock != Clock::Realtime
                && self.handle.core.is_alive(self.handle.life)
            {
                return self.complete(at);
            }
            let now = self.handle.reading();
            if now >= self.span.earliest && now != NEVER {
                self.unregister();
                return self.complete(now);
            }
            match lane.poll(shard, self.handle.life, self.key(), cx.waker()) {
                Polled::Pending => {
                    driver::was_pending();
                    return Poll::Pending;
                }
                // The wall clock was set: look at it again.
                Polled::Fired if self.handle.clock == Clock::Realtime => {
                    self.state = State::Idle;
                    return self.poll_first(cx, true);
                }
                // Only a clock that runs backwards fires a timer that is not due by now.
                Polled::Fired => return self.complete(self.span.earliest),
                Polled::Gone => {}
            }
        }
        self.state = State::Idle;
        if !self.rehome() {
            return Poll::Pending;
        }
        self.poll_first(cx, true)
    }
}

/// A window as a span of readings.
pub(super) fn span_of(window: Window) -> Span {
    let earliest = clock::reading_of(window.earliest());
    let slack = crate::tick::nanos(window.slack());
    Span::with_slack(earliest, slack)
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.state {
            State::Ahead => self.poll_first(cx, false),
            State::Idle => self.poll_first(cx, true),
            State::Pending => self.poll_again(cx),
            State::Done => Poll::Ready(()),
            State::Orphaned => Poll::Pending,
        }
    }
}

impl FusedFuture for Sleep {
    fn is_terminated(&self) -> bool {
        self.is_elapsed()
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        self.unregister();
    }
}

const _: () = assert!(std::mem::size_of::<Sleep>() <= 64);
