//! A queue whose entries come out when their windows open.
//!
//! Ground rules:
//! - Entries live in a wheel of the queue's own, due ones too, until they are popped; so an entry that is
//!   due but not popped can still be removed and moved.
//! - One [`Sleep`] stands for all of them in the driver. It is aimed at `[first earliest, smallest latest]`
//!   of what is pending, so the queue takes part in coalescing as if its entries were sleeps.
//! - `waker` is there while a poller waits; whoever changes the aim then moves the sleep at once, so that
//!   the poller need not be woken for it.

use super::Sleep;
use super::sleep::span_of;
use crate::clock;
use crate::driver::{self, Handle};
use crate::tick::NEVER;
use crate::wheel::{self, Popped, Wheel};
use crate::window::{Span, Window};
use futures::Stream;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Entries looked at to aim exactly; with more than this in the first slot, the aim may be early and
/// costs a look when another timer wakes the driver.
const LOOKS: usize = 64;
/// Entries moved in one poll before it lets others run.
const WORK: usize = 1 << 12;

/// A queue of values, each with a window: [`poll_expired`](DelayQueue::poll_expired) (or the `Stream`)
/// hands out those whose `earliest` has come. The wider the windows, the fewer wakeups it costs.
///
/// Durations count from the call, on the clock of the queue's driver (by default the monotonic one, which
/// stands still while the machine is suspended). Nothing comes out before its `earliest`, to the nanosecond;
/// after its `latest` only by scheduling delay, or because nobody polled. Order: by `earliest` to the
/// wheel's tick of 1.024 us, then by insertion; what was due when it was inserted comes after what the queue
/// had due then. After 128 values in a row on one thread a poll wakes itself and returns `Pending`, so that
/// a queue that refills itself lets others run.
///
/// Insert, remove and reset are constant time and never panic, for any deadline: one past the clock's end
/// (584 years) never comes out. The poller is woken when the queue is emptied by a remove or a
/// [`clear`](DelayQueue::clear).
///
/// When the driver goes, the queue moves to the default driver; on a manual clock it stays pending and
/// [`is_orphaned`](DelayQueue::is_orphaned).
///
/// # Cancel safety
/// Polling takes out only what it returns; dropping the future of a `next()` loses nothing. Dropping the
/// queue drops all values and frees its timer.
///
/// ```
/// use futures::StreamExt;
/// use slackwheel::{DelayQueue, Driver};
/// use std::time::Duration;
///
/// let mut driver = Driver::new()?;
/// let mut queue = DelayQueue::with_handle(driver.handle());
/// let ms = Duration::from_millis;
/// let c = queue.insert_range("c", ms(3), ms(20));
/// queue.insert("a", ms(1));
/// let b = queue.insert("b", Duration::from_secs(3600));
/// queue.reset(&b, ms(2));
/// assert_eq!(queue.remove(&c), Some("c"));
/// assert_eq!(queue.remove(&c), None);
/// driver.block_on(async {
///     assert_eq!(queue.next().await.unwrap().into_inner(), "a");
///     assert_eq!(queue.next().await.unwrap().into_inner(), "b");
///     assert!(queue.next().await.is_none());
/// });
/// # Ok::<(), slackwheel::BuildError>(())
/// ```
#[must_use = "a queue does nothing unless it is polled"]
pub struct DelayQueue<V> {
    wheel: Wheel<V>,
    sleep: Sleep,
    waker: Option<Waker>,
}

/// Names an entry of one [`DelayQueue`]. Never used twice in that queue, so one whose entry has gone is
/// harmless: every operation on it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueKey(wheel::Key);

/// A value that came out of a [`DelayQueue`], with its window.
#[derive(Clone, Debug)]
pub struct Expired<V> {
    value: V,
    span: Span,
    at: u64,
}

impl<V> Expired<V> {
    /// The value.
    pub fn into_inner(self) -> V {
        self.value
    }

    /// The value.
    pub fn get_ref(&self) -> &V {
        &self.value
    }

    /// The value.
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.value
    }

    /// From when on it could come out.
    pub fn deadline(&self) -> Instant {
        clock::instant_of(self.span.earliest)
    }

    /// By when it should have come out.
    pub fn latest(&self) -> Instant {
        clock::instant_of(self.span.latest)
    }

    /// How long after its `earliest` it came out.
    pub fn lateness(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(self.span.earliest))
    }

    /// How long after its `latest` it came out; zero when in time.
    pub fn overrun(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(self.span.latest))
    }
}

impl<V> fmt::Debug for DelayQueue<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<V> Default for DelayQueue<V> {
    fn default() -> Self {
        DelayQueue::new()
    }
}

// No value is ever pinned.
impl<V> Unpin for DelayQueue<V> {}

impl<V> DelayQueue<V> {
    /// An empty queue on the driver this thread has entered, else on the default driver. Its first entry
    /// allocates.
    pub fn new() -> Self {
        DelayQueue::with_handle(Handle::current())
    }

    /// An empty queue on this driver.
    pub fn with_handle(handle: Handle) -> Self {
        DelayQueue { wheel: Wheel::new(), sleep: Sleep::never(handle), waker: None }
    }

    /// Adds a value that comes out `d` from now, with no slack.
    pub fn insert(&mut self, value: V, d: Duration) -> QueueKey {
        self.insert_range(value, d, d)
    }

    /// Adds a value that comes out at `deadline`, with no slack. One in the past is due at once.
    pub fn insert_at(&mut self, value: V, deadline: Instant) -> QueueKey {
        self.insert_window(value, Window::at(deadline))
    }

    /// Adds a value that comes out between `min` and `max` from now: at the instant that costs the fewest
    /// wakeups. A `max` below `min` acts as `min`.
    pub fn insert_range(&mut self, value: V, min: Duration, max: Duration) -> QueueKey {
        let span = self.sleep.handle().span(min, max).0;
        self.insert_span(value, span)
    }

    /// Adds a value that comes out within `window`.
    pub fn insert_window(&mut self, value: V, window: Window) -> QueueKey {
        self.insert_span(value, span_of(window))
    }

    fn insert_span(&mut self, value: V, span: Span) -> QueueKey {
        let key = self.wheel.insert(span.earliest, span.latest, value);
        self.moved(None, Some(span));
        QueueKey(key)
    }

    /// Takes the value out; `None` when it has come out, or was removed, before. Works also on one that is
    /// due but was not polled for yet: then it does not come out any more. Removing the last value wakes
    /// the poller.
    pub fn remove(&mut self, key: &QueueKey) -> Option<V> {
        let (earliest, latest) = self.wheel.window(key.0)?;
        let value = self.wheel.cancel(key.0);
        self.moved(Some(Span { earliest, latest }), None);
        value
    }

    /// Moves the entry to come out `d` from now, with no slack; false when it has gone. One that is due but
    /// was not polled for yet is moved like any other.
    pub fn reset(&mut self, key: &QueueKey, d: Duration) -> bool {
        self.reset_range(key, d, d)
    }

    /// Moves the entry to come out at `deadline`, with no slack. See [`reset`](DelayQueue::reset).
    pub fn reset_at(&mut self, key: &QueueKey, deadline: Instant) -> bool {
        self.reset_window(key, Window::at(deadline))
    }

    /// Moves the entry to come out between `min` and `max` from now. See [`reset`](DelayQueue::reset).
    pub fn reset_range(&mut self, key: &QueueKey, min: Duration, max: Duration) -> bool {
        let span = self.sleep.handle().span(min, max).0;
        self.reset_span(key, span)
    }

    /// Moves the entry to another window. See [`reset`](DelayQueue::reset).
    pub fn reset_window(&mut self, key: &QueueKey, window: Window) -> bool {
        self.reset_span(key, span_of(window))
    }

    fn reset_span(&mut self, key: &QueueKey, span: Span) -> bool {
        let Some((earliest, latest)) = self.wheel.window(key.0) else { return false };
        self.wheel.reset(key.0, span.earliest, span.latest);
        self.moved(Some(Span { earliest, latest }), Some(span));
        true
    }

    /// The entry that comes out next, due or not; to the tick, as the order is. Reads the entries of a slot
    /// of the wheel.
    pub fn peek(&self) -> Option<QueueKey> {
        self.wheel.first().map(QueueKey)
    }

    /// The entry's value, while it is in the queue.
    pub fn get(&self, key: &QueueKey) -> Option<&V> {
        self.wheel.get(key.0)
    }

    /// The entry's value, while it is in the queue.
    pub fn get_mut(&mut self, key: &QueueKey) -> Option<&mut V> {
        self.wheel.get_mut(key.0)
    }

    /// From when on the entry may come out, while it is in the queue.
    pub fn deadline(&self, key: &QueueKey) -> Option<Instant> {
        self.wheel.window(key.0).map(|w| clock::instant_of(w.0))
    }

    /// By when the entry should come out, while it is in the queue.
    pub fn latest(&self, key: &QueueKey) -> Option<Instant> {
        self.wheel.window(key.0).map(|w| clock::instant_of(w.1))
    }

    /// Number of values, due ones included.
    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    /// True when there is no value.
    pub fn is_empty(&self) -> bool {
        self.wheel.is_empty()
    }

    /// Drops all values, and wakes the poller when there were any. Their keys stay gone.
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.wheel.drain(drop);
            self.emptied();
        }
    }

    /// Gives the memory that a burst has left behind back to the system. The queue does so by itself as it
    /// empties, keeping some for the next burst; this takes all at once. Keys stay valid.
    pub fn shrink_to_fit(&mut self) {
        self.wheel.reap();
    }

    /// Bytes of pages that hold, or recently held, entries.
    pub fn resident_bytes(&self) -> usize {
        self.wheel.resident_bytes()
    }

    /// True when nothing can come out any more, because the driver whose manual clock the queue was waiting
    /// for has gone.
    pub fn is_orphaned(&self) -> bool {
        self.sleep.is_orphaned()
    }

    /// Polls for a value whose `earliest` has come. `Ready(None)` when the queue is empty; it may be filled
    /// and polled again.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        loop {
            if self.wheel.is_empty() {
                self.rest();
                return Poll::Ready(None);
            }
            let Some(now) = self.reading() else {
                self.wait(cx);
                return Poll::Pending;
            };
            if !driver::may_be_ready() {
                cx.waker().wake_by_ref();
                self.wait(cx);
                return Poll::Pending;
            }
            match self.wheel.pop(now, WORK) {
                Popped::Entry(fired) => {
                    self.waker = None;
                    let span = Span { earliest: fired.earliest, latest: fired.latest };
                    return Poll::Ready(Some(Expired { value: fired.value, span, at: now }));
                }
                Popped::Unfinished => {
                    cx.waker().wake_by_ref();
                    self.wait(cx);
                    return Poll::Pending;
                }
                Popped::Nothing => {}
            }
            driver::was_pending();
            let aim = self.aim(now.saturating_add(1));
            if self.sleep.span() != aim || self.sleep.is_elapsed() {
                self.sleep.reset_span(aim);
            }
            if Pin::new(&mut self.sleep).poll(cx).is_pending() {
                self.wait(cx);
                return Poll::Pending;
            }
        }
    }

    /// The present; `None` when it is a manual clock that has gone.
    fn reading(&self) -> Option<u64> {
        let handle = self.sleep.handle();
        match handle.reading() {
            // Also what a clock that has gone reads. What never comes is not due at the clock's end.
            NEVER if handle.is_shut_down() => None,
            NEVER => Some(NEVER - 1),
            now => Some(now),
        }
    }

    /// The window in which the driver is to wake the poller, when nothing is due before `soonest`. (The
    /// wheel's own bounds may be too early when many entries share a slot.)
    fn aim(&mut self, soonest: u64) -> Span {
        let latest = self.wheel.next_wake().unwrap_or(NEVER).max(soonest);
        let earliest = self.wheel.first_due_within(LOOKS).max(soonest);
        Span { earliest: earliest.min(latest), latest }
    }

    /// The poller waits: it is woken by the sleep, or by what changes the queue.
    fn wait(&mut self, cx: &mut Context<'_>) {
        if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// An entry came, went or changed its window. While a poller waits, the sleep follows.
    fn moved(&mut self, old: Option<Span>, new: Option<Span>) {
        if self.wheel.is_empty() {
            return self.emptied();
        }
        if self.waker.is_none() {
            return;
        }
        let aimed = self.sleep.span();
        // What neither held the aim nor lies before it leaves it alone.
        let held = old.is_some_and(|o| o.latest == aimed.latest || o.earliest <= aimed.earliest);
        let leads = new.is_some_and(|n| n.latest < aimed.latest || n.earliest < aimed.earliest);
        if !held && !leads {
            return;
        }
        if new.is_some_and(|n| self.reading().is_some_and(|now| n.earliest <= now)) {
            return self.wake();
        }
        let aim = self.aim(0);
        if aim != aimed {
            self.sleep.reset_span(aim);
        }
        if !self.sleep.is_registered()
            && let Some(waker) = &self.waker
        {
            // It had fired, or there was nothing to wait for.
            let polled = Pin::new(&mut self.sleep).poll(&mut Context::from_waker(waker));
            if polled.is_ready() {
                self.wake();
            }
        }
    }

    /// The last entry has gone: the poller learns that the queue is empty.
    fn emptied(&mut self) {
        self.rest();
        self.wake();
    }

    /// Holds no timer.
    fn rest(&mut self) {
        self.sleep.reset_never();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<V> Stream for DelayQueue<V> {
    type Item = Expired<V>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<V>>> {
        self.poll_expired(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), None)
    }
}
