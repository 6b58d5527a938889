//! Waiting on a few descriptors at once (epoll(7)).

use super::check;
use super::time::timespec;
use crate::primitive::plain::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// At most this many descriptors are ever registered with one [`Epoll`] here.
const EVENTS: usize = 8;

/// Found out once: the system has no epoll_pwait2(2).
static MISSING: AtomicBool = AtomicBool::new(false);

/// A close-on-exec epoll descriptor; what is registered is level-triggered.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

/// A bit per token (below 64) that is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready(u64);

impl Ready {
    pub(crate) fn has(self, token: u32) -> bool {
        self.0 >> token & 1 == 1
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call just returned this descriptor; nobody else owns it.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reports `token` (below 64) whenever `fd` is readable.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u32) -> io::Result<()> {
        debug_assert!(token < 64);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token as u64 };
        // SAFETY: `event` lives through the call; both descriptors are open.
        let rc = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event)
        };
        check(rc).map(drop)
    }

    /// Waits until something is ready or `max` has passed (`None`: for ever). An interruption by a
    /// signal is an empty answer. Where epoll_pwait2(2) is missing, `max` rounds up to milliseconds.
    pub(crate) fn wait(&self, max: Option<Duration>) -> io::Result<Ready> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let n = match max {
            // The plain call is older than epoll_pwait2 and has no need for it here.
            None => self.wait_ms(&mut events, -1),
            Some(Duration::ZERO) => self.wait_ms(&mut events, 0),
            Some(max) => self.wait_ns(&mut events, max),
        };
        match n {
            Ok(n) => {
                let ready = events[..n].iter().fold(0, |bits, e| bits | 1 << (e.u64 & 63));
                Ok(Ready(ready))
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Ready(0)),
            Err(e) => Err(e),
        }
    }

    /// Whether waits of this process count in nanoseconds: asks the system, without waiting.
    pub(crate) fn has_fine_timeouts(&self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let _ = self.wait_ns(&mut events, Duration::ZERO);
        !MISSING.load(Ordering::Relaxed)
    }

    fn wait_ms(&self, events: &mut [libc::epoll_event; EVENTS], ms: i32) -> io::Result<usize> {
        // SAFETY: `events` has room for EVENTS results.
        let n = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as libc::c_int, ms)
        };
        check(n).map(|n| n as usize)
    }

    fn wait_ns(
        &self,
        events: &mut [libc::epoll_event; EVENTS],
        max: Duration,
    ) -> io::Result<usize> {
        let ns = crate::tick::nanos(max);
        if !MISSING.load(Ordering::Relaxed) {
            let ts = timespec(ns);
            // The raw call: the libc symbol would keep the program from loading on older systems.
            // SAFETY: `events` has room for EVENTS results, `ts` lives through the call, and a null
            // signal mask is allowed.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.0.as_raw_fd(),
                    events.as_mut_ptr(),
                    EVENTS as libc::c_int,
                    &ts,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            };
            if n >= 0 {
                return Ok(n as usize);
            }
            let e = io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::ENOSYS) | Some(libc::EPERM) => {
                    MISSING.store(true, Ordering::Relaxed);
                }
                _ => return Err(e),
            }
        }
        let ms = ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32;
        self.wait_ms(events, ms)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
