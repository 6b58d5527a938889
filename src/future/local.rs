//! Sleeps and timeouts of a driver that belongs to one thread.

use super::Sleep;
use super::sleep::span_of;
use super::timeout::poll_limited;
use crate::clock;
use crate::driver::{self, Local, LocalHandle};
use crate::error::Elapsed;
use crate::tick::{NEVER, nanos};
use crate::wheel::Key;
use crate::window::{Span, Window};
use futures::future::FusedFuture;
use pin_project_lite::pin_project;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl LocalHandle {
    /// Completes `d` from now, with no slack. See [`sleep`](crate::sleep).
    #[inline]
    pub fn sleep(&self, d: Duration) -> LocalSleep {
        self.sleep_range(d, d)
    }

    /// Completes at `deadline`, with no slack. See [`sleep_until`](crate::sleep_until).
    pub fn sleep_until(&self, deadline: Instant) -> LocalSleep {
        self.sleep_window(Window::at(deadline))
    }

    /// Completes between `min` and `max` from now. See [`sleep_range`](crate::sleep_range).
    #[inline]
    pub fn sleep_range(&self, min: Duration, max: Duration) -> LocalSleep {
        let (span, look) = span(&self.local, min, max);
        LocalSleep::new(self, span, if look { State::Idle } else { State::Ahead })
    }

    /// Completes within `window`. See [`sleep_window`](crate::sleep_window).
    pub fn sleep_window(&self, window: Window) -> LocalSleep {
        LocalSleep::new(self, span_of(window), State::Idle)
    }

    /// Gives `future` at most `d`. See [`timeout`](crate::timeout).
    pub fn timeout<F: IntoFuture>(&self, d: Duration, future: F) -> LocalTimeout<F::IntoFuture> {
        self.timeout_range(d, d, future)
    }

    /// Gives `future` at least `min` and about at most `max`. See [`timeout_range`](crate::timeout_range).
    pub fn timeout_range<F: IntoFuture>(
        &self,
        min: Duration,
        max: Duration,
        future: F,
    ) -> LocalTimeout<F::IntoFuture> {
        LocalTimeout { future: future.into_future(), limit: self.sleep_range(min, max) }
    }
}

/// As [`Handle::span`](crate::Handle): the window, and whether the first poll must read the clock.
#[inline(always)]
fn span(local: &Local, min: Duration, max: Duration) -> (Span, bool) {
    let now = local.now();
    let span = Span::range(now, min, max);
    (span, local.is_manual() || span.earliest.saturating_sub(now) <= 1_000_000)
}

/// A sleep on a [`LocalDriver`](crate::LocalDriver): what [`Sleep`] is elsewhere, without locks and not
/// `Send`.
#[must_use = "futures do nothing unless polled"]
// Plain fields, as in `Sleep`.
pub struct LocalSleep {
    local: Rc<Local>,
    span: Span,
    /// Its entry's key while `Pending`; once `Done`, how long after `earliest` it completed.
    word: u64,
    index: u32,
    state: State,
    /// Its driver has gone; the default driver has it now.
    moved: Option<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not registered; the first poll reads the clock.
    Idle,
    /// Not registered, and so far ahead when it was made that the first poll need not read the clock.
    Ahead,
    /// In the driver's wheel.
    Pending,
    /// Completed.
    Done,
    /// It is `moved` that waits.
    Moved,
    /// The manual clock it was waiting for has gone.
    Orphaned,
}

impl std::fmt::Debug for LocalSleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSleep")
            .field("earliest", &self.deadline())
            .field("slack_ns", &(self.span.latest - self.span.earliest))
            .field("elapsed", &self.is_elapsed())
            .finish()
    }
}

impl LocalSleep {
    #[inline(always)]
    fn new(handle: &LocalHandle, span: Span, state: State) -> Self {
        LocalSleep { local: handle.local.clone(), span, word: 0, index: 0, state, moved: None }
    }

    /// While `Pending`.
    #[inline(always)]
    fn key(&self) -> Key {
        Key::from_parts(self.word, self.index)
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

    /// How long after its `earliest` it completed; `None` before. See [`Sleep::lateness`].
    pub fn lateness(&self) -> Option<Duration> {
        (self.state == State::Done).then(|| Duration::from_nanos(self.word))
    }

    /// True when it can never complete, because the driver whose manual clock it was waiting for has gone.
    pub fn is_orphaned(&self) -> bool {
        match self.state {
            State::Orphaned => true,
            State::Done | State::Moved => false,
            _ => self.local.is_manual() && self.local.is_closed(),
        }
    }

    /// Moves it to complete at `deadline`, with no slack. See [`Sleep::reset`].
    pub fn reset(&mut self, deadline: Instant) {
        self.reset_span(span_of(Window::at(deadline)));
    }

    /// Moves it to another window. See [`Sleep::reset`].
    pub fn reset_window(&mut self, window: Window) {
        self.reset_span(span_of(window));
    }

    /// Moves it to complete between `min` and `max` from now. See [`Sleep::reset`].
    pub fn reset_range(&mut self, min: Duration, max: Duration) {
        self.reset_span(span(&self.local, min, max).0);
    }

    fn reset_span(&mut self, new: Span) {
        self.span = new;
        match self.state {
            State::Orphaned => {}
            State::Moved => {
                if let Some(sleep) = &mut self.moved {
                    sleep.reset_span(new);
                }
            }
            State::Pending if new.earliest != NEVER && self.local.reset(self.key(), new) => {}
            _ => {
                self.unregister();
                self.state = State::Idle;
            }
        }
    }

    #[inline]
    fn unregister(&mut self) {
        if self.state == State::Pending {
            self.state = State::Idle;
            // The waker is dropped here, with nothing borrowed.
            drop(self.local.cancel(self.key()));
        }
    }

    #[inline]
    fn complete(&mut self, now: u64) -> Poll<()> {
        self.word = now.saturating_sub(self.span.earliest);
        self.state = State::Done;
        Poll::Ready(())
    }

    #[inline]
    fn poll_first(&mut self, cx: &mut Context<'_>, look: bool) -> Poll<()> {
        if self.local.is_closed() {
            return self.move_over(cx);
        }
        if self.span.earliest == NEVER {
            return Poll::Pending;
        }
        if look {
            let now = self.local.now();
            if now >= self.span.earliest {
                if driver::may_be_ready() {
                    return self.complete(now);
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        driver::was_pending();
        // Cloning is user code, which might even drop the driver: the entry then waits in a wheel that
        // nobody drives, so look once more.
        let waker = cx.waker().clone();
        if self.local.is_closed() {
            return self.move_over(cx);
        }
        (self.word, self.index) = self.local.register(self.span, waker).into_parts();
        self.state = State::Pending;
        Poll::Pending
    }

    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.local.is_closed() {
            return self.move_over(cx);
        }
        // Mostly a turn has fired it.
        if let Some(at) = self.local.passed_at(self.span.earliest) {
            return self.complete(at);
        }
        let now = self.local.now();
        if now >= self.span.earliest && now != NEVER {
            self.unregister();
            return self.complete(now);
        }
        if self.local.poll(self.key(), cx.waker()) {
            driver::was_pending();
            return Poll::Pending;
        }
        // Only a clock that was moved back fires a timer that is not due by now.
        self.complete(self.span.earliest)
    }

    /// The driver has gone: go on with the default driver, if that has the same clock.
    #[cold]
    fn move_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.local.is_manual() {
            self.state = State::Orphaned;
            return Poll::Pending;
        }
        self.moved = Some(Box::new(Sleep::spanning(driver::default_handle(), self.span)));
        self.state = State::Moved;
        self.poll_moved(cx)
    }

    #[cold]
    fn poll_moved(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleep) = &mut self.moved else { return Poll::Pending };
        if Pin::new(&mut **sleep).poll(cx).is_pending() {
            return Poll::Pending;
        }
        let late = sleep.lateness().map_or(0, nanos);
        self.moved = None;
        self.complete(self.span.earliest.saturating_add(late))
    }
}

impl Future for LocalSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.state {
            State::Ahead => self.poll_first(cx, false),
            State::Idle => self.poll_first(cx, true),
            State::Pending => self.poll_again(cx),
            State::Done => Poll::Ready(()),
            State::Moved => self.poll_moved(cx),
            State::Orphaned => Poll::Pending,
        }
    }
}

impl FusedFuture for LocalSleep {
    fn is_terminated(&self) -> bool {
        self.is_elapsed()
    }
}

impl Drop for LocalSleep {
    #[inline]
    fn drop(&mut self) {
        self.unregister();
    }
}

pin_project! {
    /// The future of [`LocalHandle::timeout`](crate::LocalHandle::timeout): what
    /// [`Timeout`](crate::Timeout) is elsewhere.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct LocalTimeout<F> {
        #[pin]
        future: F,
        limit: LocalSleep,
    }
}

impl<F> LocalTimeout<F> {
    /// The inner future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    /// The limit: reset it to give the future more or less time.
    pub fn limit_mut(self: Pin<&mut Self>) -> &mut LocalSleep {
        self.project().limit
    }
}

impl<F: Future> Future for LocalTimeout<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        poll_limited(this.future, this.limit, cx)
    }
}

const _: () = assert!(std::mem::size_of::<LocalSleep>() <= 64);
