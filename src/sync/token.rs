//! Cancelling waits from outside.

use super::queue::{Entry, Queue};
use super::task::TaskSignal;
use crate::primitive::{AtomicBool, Ordering};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

/// Ends waits that were told to listen to it, once and for good. Clones are the same token.
///
/// ```
/// use slackwheel::sync::CancelToken;
///
/// let token = CancelToken::new();
/// let other = token.clone();
/// other.cancel();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone)]
pub struct CancelToken(Arc<Inner>);

struct Inner {
    cancelled: AtomicBool,
    listeners: Queue<TaskSignal>,
}

impl CancelToken {
    /// A token that is not cancelled. Allocates.
    pub fn new() -> Self {
        CancelToken(Arc::new(Inner { cancelled: AtomicBool::new(false), listeners: Queue::new() }))
    }

    /// Cancels: every wait that listens ends, and every later one ends at once. A second call does
    /// nothing more.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        // Under the list's lock: whoever enters after this sees the flag.
        self.0.listeners.release_all();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Completes when the token is cancelled.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn cancelled(&self) {
        let entry = pin!(Entry::new(&self.0.listeners));
        self.listen(entry.as_ref());
        std::future::poll_fn(|cx| {
            if self.is_cancelled() { std::task::Poll::Ready(()) } else { entry.poll_told(cx) }
        })
        .await;
    }

    pub(super) fn listeners(&self) -> &Queue<TaskSignal> {
        &self.0.listeners
    }

    /// Enters a listener, unless the token is cancelled already.
    pub(super) fn listen(&self, entry: std::pin::Pin<&Entry<'_, TaskSignal>>) {
        if !self.is_cancelled() {
            entry.enter();
        }
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}
