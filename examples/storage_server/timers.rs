//! The server's timeouts, in one place.

use std::future::Future;
use std::time::Duration;

/// Runs a future for at most `limit`; `None` if it took longer.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Waits.
pub(crate) async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Blocks the thread until a moment, never shorter.
pub(crate) fn sleep_blocking_until(moment: std::time::Instant) {
    loop {
        let left = moment.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left);
    }
}
