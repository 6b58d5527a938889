//! How a waiting thread is told: a word of its own that is set once.
//!
//! A trait, so that the concurrency model runs the very queue of [`queue`](super::queue) over a
//! signal that a model checker can follow and whose deadline it can let pass at any moment.

/// Why [`Signal::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Perhaps the signal was set: look.
    Look,
    /// The deadline has passed, on the clock's own reading.
    TimedOut,
}

/// A flag that one thread waits for and another sets, once.
pub(crate) trait Signal: Sized {
    /// Where to send a wake to. It may outlive the signal.
    type Address;

    fn new() -> Self;

    fn address(&self) -> Self::Address;

    /// Sets the flag; everything before is visible to whoever sees it. From here on the waiter
    /// may leave and the signal may be gone.
    fn set(&self);

    fn is_set(&self) -> bool;

    /// Blocks while the flag is not set, until a wake or until `deadline` (nanoseconds on the
    /// monotonic clock). May return early with [`Wake::Look`], never with [`Wake::TimedOut`].
    fn wait(&self, deadline: Option<u64>) -> Wake;

    /// Lets the waiter look, if it still waits. Sent after [`set`](Self::set), without any lock.
    fn wake(address: Self::Address);
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Word as OsSignal;

#[cfg(target_os = "linux")]
mod linux {
    use super::{Signal, Wake};
    use crate::primitive::plain::{AtomicU32, Ordering};
    use crate::{clock, sys::futex};

    const WAITING: u32 = 0;
    const SET: u32 = 1;

    /// A futex word on the waiter's stack.
    #[derive(Debug)]
    pub(crate) struct Word(AtomicU32);

    impl Signal for Word {
        type Address = *const AtomicU32;

        #[inline]
        fn new() -> Self {
            Word(AtomicU32::new(WAITING))
        }

        #[inline]
        fn address(&self) -> Self::Address {
            &self.0
        }

        #[inline]
        fn set(&self) {
            self.0.store(SET, Ordering::Release);
        }

        #[inline]
        fn is_set(&self) -> bool {
            self.0.load(Ordering::Acquire) == SET
        }

        #[inline]
        fn wait(&self, deadline: Option<u64>) -> Wake {
            match (futex::wait(&self.0, WAITING, deadline), deadline) {
                // Asked again, so that "never early" rests on this clock and on nothing else.
                (futex::Wake::TimedOut, Some(at)) if clock::monotonic() >= at => Wake::TimedOut,
                _ => Wake::Look,
            }
        }

        #[inline]
        fn wake(address: Self::Address) {
            futex::wake(address);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use portable::Flag as OsSignal;

#[cfg(not(target_os = "linux"))]
mod portable {
    use super::{Signal, Wake};
    use crate::clock;
    use crate::primitive::plain::{Condvar, Mutex, lock};
    use std::sync::Arc;
    use std::time::Duration;

    /// Std's own condvar, where there is no futex. Shared, since a wake may come after the waiter
    /// has gone.
    #[derive(Debug)]
    pub(crate) struct Flag(Arc<(Mutex<bool>, Condvar)>);

    impl Signal for Flag {
        type Address = Arc<(Mutex<bool>, Condvar)>;

        fn new() -> Self {
            Flag(Arc::default())
        }

        fn address(&self) -> Self::Address {
            self.0.clone()
        }

        fn set(&self) {
            *lock(&self.0.0) = true;
        }

        fn is_set(&self) -> bool {
            *lock(&self.0.0)
        }

        fn wait(&self, deadline: Option<u64>) -> Wake {
            let (flag, condvar) = &*self.0;
            let flag = lock(flag);
            if *flag {
                return Wake::Look;
            }
            let Some(at) = deadline else {
                drop(condvar.wait(flag));
                return Wake::Look;
            };
            let now = clock::monotonic();
            if now >= at {
                return Wake::TimedOut;
            }
            // Its end is judged by the clock at the next call.
            drop(condvar.wait_timeout(flag, Duration::from_nanos(at - now)));
            Wake::Look
        }

        fn wake(address: Self::Address) {
            address.1.notify_one();
        }
    }
}
