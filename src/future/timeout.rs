//! A future with a limit on its time.

use super::Sleep;
use crate::error::Elapsed;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// The future of [`timeout`](crate::timeout).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        limit: Sleep,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, limit: Sleep) -> Self {
        Timeout { future, limit }
    }

    /// The inner future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The inner future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The inner future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    /// The limit: reset it to give the future more or less time.
    pub fn limit_mut(self: Pin<&mut Self>) -> &mut Sleep {
        self.project().limit
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        poll_limited(this.future, this.limit, cx)
    }
}

/// Polls the future first: what is ready in time wins, and a limit that is never polled registers nothing.
#[inline]
pub(super) fn poll_limited<F: Future>(
    future: Pin<&mut F>,
    limit: &mut (impl Future<Output = ()> + Unpin),
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Elapsed>> {
    if let Poll::Ready(output) = future.poll(cx) {
        return Poll::Ready(Ok(output));
    }
    Pin::new(limit).poll(cx).map(|()| Err(Elapsed::default()))
}
