//! The condvar of tasks.

use super::queue::{Entry, Queue};
use super::task::TaskSignal;
use super::{CancelToken, Relock, WaitOutcome};
use crate::clock::reading_of;
use crate::driver::Handle;
use crate::future::Sleep;
use crate::tick::{NEVER, nanos};
use crate::tunables::{SlackFloor, effective_slack_ns};
use crate::window::{Span, Window};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

/// A condition variable for async code: waits that carry their slack, on any executor.
///
/// Takes the guards of async mutexes that implement [`Relock`]: async-lock's (feature `async-lock`)
/// and tokio's (feature `tokio`), borrowed and owned ones. (The mutex of `futures::lock` is not
/// among them: its guard has no way back to its mutex.) The rules are those of
/// [`sync`](crate::sync); the timers belong to the driver that the calling thread has
/// [entered](crate::Handle::enter), else to the default one, and share wakeups with all its others.
///
/// # Cancel safety
///
/// A wait enters the queue before it releases the guard. Dropping it at any later point leaves the queue and
/// frees its timer at once. If it had been told by `notify_one`, the next waiter is told instead, also when
/// it is dropped while it takes the mutex again. What is lost with a dropped wait is the guard: the mutex
/// stays released.
///
/// A wait does nothing before its first poll but note when it was called; a duration counts from the call.
#[cfg_attr(feature = "async-lock", doc = "```")]
#[cfg_attr(not(feature = "async-lock"), doc = "```ignore")]
/// use slackwheel::sync::{Condvar, WaitOutcome};
/// use std::time::Duration;
///
/// # let mut driver = slackwheel::Driver::new()?;
/// # driver.block_on(async {
/// let mutex = async_lock::Mutex::new(0);
/// let condvar = Condvar::new();
/// // A linger of 1 to 3 ms: any moment in between is as good.
/// let ms = Duration::from_millis;
/// let guard = mutex.lock().await;
/// let (guard, outcome) =
///     condvar.wait_while_range(guard, ms(1), ms(3), |batch| *batch < 8).await;
/// assert_eq!((*guard, outcome), (0, WaitOutcome::TimedOut));
/// # });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
pub struct Condvar {
    queue: Queue<TaskSignal>,
    floor: SlackFloor,
}

impl Condvar {
    /// A condvar nobody waits on. Allocates nothing, now or later.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Condvar { queue: Queue::new(), floor: SlackFloor::new() }
    }

    /// A condvar nobody waits on.
    #[cfg(loom)]
    pub fn new() -> Self {
        Condvar { queue: Queue::new(), floor: SlackFloor::new() }
    }

    /// Wakes the task that has waited longest; false when none waited. That costs one load.
    ///
    /// The mutex need not be held, but the condition must have been changed under it.
    #[inline]
    pub fn notify_one(&self) -> bool {
        self.queue.notify_one()
    }

    /// Wakes all tasks that wait at this moment, in the order in which they came; their number.
    #[inline]
    pub fn notify_all(&self) -> usize {
        self.queue.notify_all()
    }

    /// How many tasks wait: a glimpse, out of date at once.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// This condvar's own floor for the slack of waits that give a resolution. It follows the driver's
    /// ([`Handle::slack_floor`]), and that the process-wide [`slack_floor`](crate::tunables::slack_floor),
    /// until it is set; a change acts on the next wait.
    pub fn slack_floor(&self) -> &SlackFloor {
        &self.floor
    }

    /// The same condvar with waits that end as [`Cancelled`](WaitOutcome::Cancelled) when the token
    /// is cancelled.
    pub fn or_cancelled<'a>(&'a self, token: &'a CancelToken) -> CancellableWaits<'a> {
        CancellableWaits(Waits { condvar: self, token: Some(token) })
    }

    /// Waits for a notify, however long it takes.
    pub fn wait<G: Relock>(&self, guard: G) -> impl Future<Output = G> {
        let wait = self.waits().span(guard, Handle::current(), Span::NEVER);
        async { wait.await.0 }
    }

    /// Waits for a notify until `deadline`, and later by at most the effective slack: `resolution`
    /// or the [slack floor](Self::slack_floor), whichever is larger, at most 1 ms
    /// ([`effective_slack`](crate::tunables::effective_slack)).
    pub fn wait_until<G: Relock>(
        &self,
        guard: G,
        deadline: Instant,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        self.waits().until(guard, deadline, resolution)
    }

    /// Waits for a notify for `duration` from this call, and longer by at most the effective slack,
    /// as [`wait_until`](Self::wait_until) does. A duration past the clock's end waits for ever.
    pub fn wait_for<G: Relock>(
        &self,
        guard: G,
        duration: Duration,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        self.waits().after(guard, duration, resolution)
    }

    /// Waits for a notify for at least `min` and at most `max` from this call (and for `min` when
    /// `max` is less). No tunable widens this.
    pub fn wait_range<G: Relock>(
        &self,
        guard: G,
        min: Duration,
        max: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        self.waits().range(guard, min, max)
    }

    /// Waits for a notify until some instant of `window`. No tunable widens it.
    pub fn wait_window<G: Relock>(
        &self,
        guard: G,
        window: Window,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        self.waits().window(guard, window)
    }

    /// Waits while `condition` holds, however long it takes.
    pub async fn wait_while<G: Relock>(
        &self,
        guard: G,
        condition: impl FnMut(&mut G::Value) -> bool,
    ) -> G {
        let span = (Handle::current(), Span::NEVER);
        self.waits().while_span(guard, span, condition).await.0
    }

    /// Waits while `condition` holds, until `deadline` and later by at most the effective slack, as
    /// [`wait_until`](Self::wait_until) does. All wakeups share the one deadline.
    ///
    /// [`TimedOut`](WaitOutcome::TimedOut) means that the condition still held when it was last
    /// asked, which is after the deadline.
    pub fn wait_while_until<G: Relock>(
        &self,
        guard: G,
        deadline: Instant,
        resolution: Duration,
        condition: impl FnMut(&mut G::Value) -> bool,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        let handle = Handle::current();
        let span = Span::with_slack(reading_of(deadline), self.slack(handle, resolution));
        self.waits().while_span(guard, (handle, span), condition)
    }

    /// [`wait_while_until`](Self::wait_while_until) with a deadline `duration` from this call.
    pub fn wait_while_for<G: Relock>(
        &self,
        guard: G,
        duration: Duration,
        resolution: Duration,
        condition: impl FnMut(&mut G::Value) -> bool,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        let span = self.waits().span_after(duration, resolution);
        self.waits().while_span(guard, span, condition)
    }

    /// Waits while `condition` holds, for at least `min` and at most `max` from this call (and for
    /// `min` when `max` is less). No tunable widens this.
    pub fn wait_while_range<G: Relock>(
        &self,
        guard: G,
        min: Duration,
        max: Duration,
        condition: impl FnMut(&mut G::Value) -> bool,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        let handle = Handle::current();
        let span = Span::range(handle.reading(), min, max);
        self.waits().while_span(guard, (handle, span), condition)
    }

    /// Waits while `condition` holds, until some instant of `window`.
    pub fn wait_while_window<G: Relock>(
        &self,
        guard: G,
        window: Window,
        condition: impl FnMut(&mut G::Value) -> bool,
    ) -> impl Future<Output = (G, WaitOutcome)> {
        self.waits().while_span(guard, (Handle::current(), span_of(window)), condition)
    }

    fn waits(&self) -> Waits<'_> {
        Waits { condvar: self, token: None }
    }

    fn slack(&self, handle: Handle, resolution: Duration) -> u64 {
        effective_slack_ns(nanos(resolution), self.floor.ns_or(handle.slack_floor()))
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Condvar").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// The waits of a [`Condvar`] that listen to a [`CancelToken`]. Made by [`Condvar::or_cancelled`].
///
/// A notify beats the token, as it beats a timeout. A token that is cancelled already ends a wait at
/// once, without releasing the mutex; so does a deadline that has passed, and that comes first.
#[derive(Clone, Copy, Debug)]
pub struct CancellableWaits<'a>(Waits<'a>);

impl<'a> CancellableWaits<'a> {
    /// [`Condvar::wait`], or until the token is cancelled.
    pub fn wait<G: Relock>(self, guard: G) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.0.span(guard, Handle::current(), Span::NEVER)
    }

    /// [`Condvar::wait_until`], or until the token is cancelled.
    pub fn wait_until<G: Relock>(
        self,
        guard: G,
        deadline: Instant,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.0.until(guard, deadline, resolution)
    }

    /// [`Condvar::wait_for`], or until the token is cancelled.
    pub fn wait_for<G: Relock>(
        self,
        guard: G,
        duration: Duration,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.0.after(guard, duration, resolution)
    }

    /// [`Condvar::wait_range`], or until the token is cancelled.
    pub fn wait_range<G: Relock>(
        self,
        guard: G,
        min: Duration,
        max: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.0.range(guard, min, max)
    }

    /// [`Condvar::wait_window`], or until the token is cancelled.
    pub fn wait_window<G: Relock>(
        self,
        guard: G,
        window: Window,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.0.window(guard, window)
    }

    /// [`Condvar::wait_while`], or until the token is cancelled.
    pub fn wait_while<G: Relock, F: FnMut(&mut G::Value) -> bool>(
        self,
        guard: G,
        condition: F,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G, F> {
        self.0.while_span(guard, (Handle::current(), Span::NEVER), condition)
    }

    /// [`Condvar::wait_while_window`], or until the token is cancelled.
    pub fn wait_while_window<G: Relock, F: FnMut(&mut G::Value) -> bool>(
        self,
        guard: G,
        window: Window,
        condition: F,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G, F> {
        self.0.while_span(guard, (Handle::current(), span_of(window)), condition)
    }
}

#[derive(Clone, Copy, Debug)]
struct Waits<'a> {
    condvar: &'a Condvar,
    token: Option<&'a CancelToken>,
}

impl<'a> Waits<'a> {
    fn until<G: Relock>(
        self,
        guard: G,
        deadline: Instant,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        let handle = Handle::current();
        let slack = self.condvar.slack(handle, resolution);
        self.span(guard, handle, Span::with_slack(reading_of(deadline), slack))
    }

    fn after<G: Relock>(
        self,
        guard: G,
        duration: Duration,
        resolution: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        let (handle, span) = self.span_after(duration, resolution);
        self.span(guard, handle, span)
    }

    fn range<G: Relock>(
        self,
        guard: G,
        min: Duration,
        max: Duration,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        let handle = Handle::current();
        self.span(guard, handle, Span::range(handle.reading(), min, max))
    }

    fn window<G: Relock>(
        self,
        guard: G,
        window: Window,
    ) -> impl Future<Output = (G, WaitOutcome)> + use<'a, G> {
        self.span(guard, Handle::current(), span_of(window))
    }

    fn span_after(self, duration: Duration, resolution: Duration) -> (Handle, Span) {
        let handle = Handle::current();
        let at = crate::tick::after(handle.reading(), duration);
        (handle, Span::with_slack(at, self.condvar.slack(handle, resolution)))
    }

    async fn while_span<G: Relock>(
        self,
        mut guard: G,
        (handle, span): (Handle, Span),
        mut condition: impl FnMut(&mut G::Value) -> bool,
    ) -> (G, WaitOutcome) {
        loop {
            if !condition(guard.value()) {
                return (guard, WaitOutcome::Notified);
            }
            let (again, outcome) = self.span(guard, handle, span).await;
            guard = again;
            if outcome != WaitOutcome::Notified {
                let holds = condition(guard.value());
                return (guard, if holds { outcome } else { WaitOutcome::Notified });
            }
        }
    }

    async fn span<G: Relock>(self, guard: G, handle: Handle, span: Span) -> (G, WaitOutcome) {
        if has_begun(handle, span) {
            return (guard, WaitOutcome::TimedOut);
        }
        if self.token.is_some_and(CancelToken::is_cancelled) {
            return (guard, WaitOutcome::Cancelled);
        }
        let entry = pin!(Entry::new(&self.condvar.queue));
        entry.as_ref().enter();
        let mutex = guard.release();
        let outcome = self.told(&entry, handle, span).await;
        let guard = G::relock(mutex).await;
        // Not before: a wait dropped while it takes the mutex has not used its notify.
        entry.used();
        (guard, outcome)
    }

    async fn told(self, entry: &Entry<'_, TaskSignal>, handle: Handle, span: Span) -> WaitOutcome {
        let mut sleep = Sleep::spanning(handle, span);
        let listener = pin!(self.token.map(|token| Entry::new(token.listeners())));
        if let (Some(token), Some(listener)) = (self.token, listener.as_ref().as_pin_ref()) {
            token.listen(listener);
        }
        poll_fn(|cx| {
            if entry.poll_told(cx).is_ready() {
                return Poll::Ready(WaitOutcome::Notified);
            }
            let end = if Pin::new(&mut sleep).poll(cx).is_ready() {
                WaitOutcome::TimedOut
            } else if let (Some(token), Some(listener)) = (self.token, &*listener)
                && (token.is_cancelled() || listener.poll_told(cx).is_ready())
            {
                WaitOutcome::Cancelled
            } else {
                return Poll::Pending;
            };
            Poll::Ready(if entry.leave() { WaitOutcome::Notified } else { end })
        })
        .await
    }
}

/// Whether there is nothing to wait for any more.
fn has_begun(handle: Handle, span: Span) -> bool {
    if span.earliest == NEVER {
        return false;
    }
    // A manual clock that has gone reads as the end of time; its waits stay pending.
    let now = handle.reading();
    now != NEVER && span.earliest <= now
}

fn span_of(window: Window) -> Span {
    Span { earliest: reading_of(window.earliest()), latest: reading_of(window.latest()) }
}
