//! The portable parker: a mio poll with a timeout, and its waker.
//!
//! There is no kernel timer that another thread could move, so an insert before the armed time wakes
//! the waiting thread (a kick). mio rounds timeouts up to milliseconds on Linux: waits end up to a
//! millisecond late, and only the monotonic clock is to be had. It is there for systems without timerfd, which cannot be built or tested here.

use super::{Alarm, Armed, Clocks, Expiry, Halves, Park};
use crate::clock::{self, Clock};
use crate::error::BuildError;
use crate::primitive::{AtomicU64, Ordering};
use crate::tick::NEVER;
use mio::{Events, Poll, Token, Waker};
use std::io;
use std::sync::Arc;
use std::time::Duration;

struct Shared {
    armed: AtomicU64,
    waker: Waker,
}

impl Alarm for Shared {
    fn arm(&self, at: u64, remote: bool) -> Armed {
        self.armed.store(at, Ordering::SeqCst);
        if remote {
            self.ring();
            Armed::Kick
        } else {
            Armed::Quiet
        }
    }

    fn take_expiry(&self) -> Expiry {
        if self.armed.load(Ordering::SeqCst) > clock::monotonic() {
            return Expiry::NotYet;
        }
        self.armed.store(NEVER, Ordering::SeqCst);
        Expiry::Expired
    }

    fn has_come(&self, at: u64) -> bool {
        at <= clock::monotonic()
    }

    fn ring(&self) {
        // Fails only when the poll is gone, and then nobody waits.
        let _ = self.waker.wake();
    }

    fn open(&self, _clock: Clock) -> io::Result<Arc<dyn Alarm>> {
        // A timeout counts on the monotonic clock.
        Err(io::ErrorKind::Unsupported.into())
    }
}

struct MioPark {
    poll: Poll,
    events: Events,
    shared: Arc<Shared>,
}

impl Park for MioPark {
    fn wait(&mut self, max: Option<Duration>, _from: &dyn Fn(u64) -> u64) -> io::Result<Clocks> {
        let armed = self.shared.armed.load(Ordering::SeqCst);
        let until = match armed {
            NEVER => None,
            at => Some(Duration::from_nanos(at.saturating_sub(clock::monotonic()))),
        };
        let timeout = match (until, max) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(Clocks::ALL),
        }
    }
}

/// A parker.
pub(crate) fn build() -> Result<Halves, BuildError> {
    let poll = Poll::new().map_err(BuildError::new("a mio poll"))?;
    let waker = Waker::new(poll.registry(), Token(0)).map_err(BuildError::new("a mio waker"))?;
    let shared = Arc::new(Shared { armed: AtomicU64::new(NEVER), waker });
    Ok((
        Box::new(MioPark { poll, events: Events::with_capacity(8), shared: shared.clone() }),
        shared,
    ))
}
