//! One absolute, one-shot kernel timer behind a descriptor (timerfd_create(2)).

use super::check;
use super::time::{ClockId, timespec};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a read of the descriptor told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The timer has expired since it was last armed or read.
    Expired,
    /// It has not (also: a read of zero bytes, or one interrupted by a signal).
    NotYet,
    /// The realtime clock was set (`TFD_TIMER_CANCEL_ON_SET`).
    ClockSet,
}

/// A close-on-exec, non-blocking timerfd. It ignores the thread's timer slack.
#[derive(Debug)]
pub(crate) struct TimerFd {
    fd: OwnedFd,
    clock: ClockId,
}

impl TimerFd {
    pub(crate) fn new(clock: ClockId) -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe {
            libc::timerfd_create(clock.raw(), libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        })?;
        // SAFETY: the call just returned this descriptor; nobody else owns it.
        Ok(TimerFd { fd: unsafe { OwnedFd::from_raw_fd(fd) }, clock })
    }

    /// Arms the timer for the absolute time `at`, or disarms it for `None`. Unread expiries go.
    pub(crate) fn set(&self, at: Option<u64>) -> io::Result<()> {
        let mut flags = libc::TFD_TIMER_ABSTIME;
        if self.clock == ClockId::Realtime {
            flags |= libc::TFD_TIMER_CANCEL_ON_SET;
        }
        let spec = libc::itimerspec {
            it_interval: timespec(0),
            // An absolute value of zero disarms: the past is one nanosecond instead.
            it_value: timespec(at.map_or(0, |ns| ns.max(1))),
        };
        // SAFETY: `spec` lives through the call; a null old value is allowed.
        let rc = unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), flags, &spec, std::ptr::null_mut())
        };
        match check(rc) {
            // The timer is armed all the same when the clock was set meanwhile (fs/timerfd.c).
            Err(e) if e.raw_os_error() == Some(libc::ECANCELED) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Takes the expiry, when there is one. Never blocks.
    pub(crate) fn take(&self) -> Expiry {
        let mut count = 0u64;
        // SAFETY: the buffer is eight bytes, as the descriptor demands.
        let n = unsafe {
            libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), std::mem::size_of::<u64>())
        };
        told(self.clock, n, io::Error::last_os_error().raw_os_error())
    }
}

/// What a read that returned `n` told; `errno` counts when that is negative. Only a timer that asked to be
/// told hears that its clock was set: on another one the same error is as good as nothing.
fn told(clock: ClockId, n: isize, errno: Option<i32>) -> Expiry {
    match n {
        1.. => Expiry::Expired,
        // Some kernels return zero bytes after the clock was handled oddly.
        0 => Expiry::NotYet,
        _ if errno == Some(libc::ECANCELED) && clock == ClockId::Realtime => Expiry::ClockSet,
        _ => Expiry::NotYet,
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn c098_every_result_of_a_read_is_understood() {
        let odd = [
            (-1, Some(libc::EINTR), Expiry::NotYet),
            (0, None, Expiry::NotYet),
            (-1, Some(libc::EAGAIN), Expiry::NotYet),
            (-1, Some(libc::ECANCELED), Expiry::ClockSet),
            (8, Some(libc::EINTR), Expiry::Expired),
        ];
        for (n, errno, expected) in odd {
            assert_eq!(told(ClockId::Realtime, n, errno), expected, "{n} {errno:?}");
        }
        // A steady clock cannot be set: were this believed, all its timers would start again.
        assert_eq!(told(ClockId::Monotonic, -1, Some(libc::ECANCELED)), Expiry::NotYet);
    }

    #[test]
    fn c053_a_deadline_of_zero_expires_instead_of_disarming() {
        let timer = TimerFd::new(ClockId::Monotonic).unwrap();
        for at in [0, 1] {
            timer.set(Some(at)).unwrap();
            let start = Instant::now();
            while timer.take() != Expiry::Expired {
                assert!(start.elapsed() < Duration::from_secs(5), "disarmed by {at}");
            }
        }
        timer.set(None).unwrap();
        assert_eq!(timer.take(), Expiry::NotYet);
    }

    #[test]
    fn c043_no_time_is_refused() {
        for at in [1u64 << 62, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX] {
            let timer = TimerFd::new(ClockId::Monotonic).unwrap();
            timer.set(Some(at)).unwrap();
            assert_eq!(timer.take(), Expiry::NotYet);
        }
    }
}
