//! How a waiter is told: a signal of its own that is set once.
//!
//! A trait, so that the concurrency model runs the very queue of [`queue`](super::queue) over a
//! signal that a model checker can follow and whose deadline it can let pass at any moment.

/// Why [`Sleepable::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Perhaps the signal was set: look.
    Look,
    /// The deadline has passed, on the clock's own reading.
    TimedOut,
}

/// Which notify it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// `notify_one`: if this waiter cannot use it, the next one must have it.
    Alone,
    /// `notify_all`: whoever else waited then was told, too.
    WithAll,
}

/// A flag that is set once, and whoever waits for that.
pub(crate) trait Signal: Sized {
    /// Where to send a wake to. It may outlive the signal.
    type Address;

    fn new() -> Self;

    /// Sets the flag and says where to send the wake; everything before is visible to whoever sees
    /// the flag. From here on the waiter may leave and the signal may be gone.
    fn set(&self, told: Told) -> Self::Address;

    fn told(&self) -> Option<Told>;

    /// Lets the waiter look, if it still waits. Sent after [`set`](Self::set), without any lock.
    fn wake(address: Self::Address);
}

/// A signal that a thread can sleep for.
pub(crate) trait Sleepable: Signal {
    /// Blocks while the flag is not set, until a wake or until `deadline` (nanoseconds on the
    /// monotonic clock). May return early with [`Wake::Look`], never with [`Wake::TimedOut`].
    fn wait(&self, deadline: Option<u64>) -> Wake;
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Word as OsSignal;

#[cfg(target_os = "linux")]
mod linux {
    use super::{Signal, Sleepable, Told, Wake};
    use crate::primitive::plain::{AtomicU32, Ordering};
    use crate::{clock, sys::futex};

    const WAITING: u32 = 0;
    const ALONE: u32 = 1;
    const WITH_ALL: u32 = 2;

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
        fn set(&self, told: Told) -> Self::Address {
            let address = &raw const self.0;
            let value = if told == Told::Alone { ALONE } else { WITH_ALL };
            self.0.store(value, Ordering::Release);
            address
        }

        #[inline]
        fn told(&self) -> Option<Told> {
            match self.0.load(Ordering::Acquire) {
                WAITING => None,
                ALONE => Some(Told::Alone),
                _ => Some(Told::WithAll),
            }
        }

        #[inline]
        fn wake(address: Self::Address) {
            futex::wake(address);
        }
    }

    impl Sleepable for Word {
        #[inline]
        fn wait(&self, deadline: Option<u64>) -> Wake {
            match (futex::wait(&self.0, WAITING, deadline), deadline) {
                // Asked again, so that "never early" rests on this clock and on nothing else.
                (futex::Wake::TimedOut, Some(at)) if clock::monotonic() >= at => Wake::TimedOut,
                _ => Wake::Look,
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use portable::Flag as OsSignal;

// Also in tests, so that it is compiled and run here.
#[cfg(any(not(target_os = "linux"), all(test, not(loom))))]
pub(crate) mod portable {
    use super::{Signal, Sleepable, Told, Wake};
    use crate::clock;
    use crate::primitive::plain::{Condvar, Mutex, lock};
    use std::sync::Arc;
    use std::time::Duration;

    /// Std's own condvar, where there is no futex. Shared, since a wake may come after the waiter
    /// has gone.
    #[derive(Debug)]
    pub(crate) struct Flag(Arc<(Mutex<Option<Told>>, Condvar)>);

    impl Signal for Flag {
        type Address = Arc<(Mutex<Option<Told>>, Condvar)>;

        fn new() -> Self {
            Flag(Arc::default())
        }

        fn set(&self, told: Told) -> Self::Address {
            let address = self.0.clone();
            *lock(&self.0.0) = Some(told);
            address
        }

        fn told(&self) -> Option<Told> {
            *lock(&self.0.0)
        }

        fn wake(address: Self::Address) {
            address.1.notify_one();
        }
    }

    impl Sleepable for Flag {
        fn wait(&self, deadline: Option<u64>) -> Wake {
            let (told, condvar) = &*self.0;
            let told = lock(told);
            if told.is_some() {
                return Wake::Look;
            }
            let Some(at) = deadline else {
                drop(condvar.wait(told));
                return Wake::Look;
            };
            let now = clock::monotonic();
            if now >= at {
                return Wake::TimedOut;
            }
            // Its end is judged by the clock at the next call.
            drop(condvar.wait_timeout(told, Duration::from_nanos(at - now)));
            Wake::Look
        }
    }
}
