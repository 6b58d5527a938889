//! The server's timeouts, in one place.

use std::future::Future;
use std::time::{Duration, Instant};

/// Runs a future for at least `limit` and about an eighth more; `None` if it took longer.
///
/// Nobody minds when exactly a dead client is given up, so these timeouts are windows: they wake
/// the server when something else does, and force a wakeup only at their end.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    slackwheel::timeout_range(limit, limit.saturating_add(limit / 8), future).await.ok()
}

/// Waits.
pub(crate) async fn sleep(span: Duration) {
    slackwheel::sleep(span).await;
}

/// Blocks the thread until a moment, never shorter.
pub(crate) fn sleep_blocking_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left);
    }
}
