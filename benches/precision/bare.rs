//! The rival: what one writes by hand for a single precise sleep. A timerfd in an epoll descriptor, three
//! system calls a sleep; and the same loop on a thread of its own, which hands the wakeup over.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

pub(crate) fn now() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn check(rc: i32) -> i32 {
    assert!(rc >= 0, "{}", io::Error::last_os_error());
    rc
}

pub(crate) struct Loop {
    epoll: RawFd,
    timer: RawFd,
}

impl Loop {
    pub(crate) fn new() -> Self {
        // SAFETY: no pointers are passed but `event`, which lives through its call.
        unsafe {
            let epoll = check(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let timer = check(libc::timerfd_create(
                libc::CLOCK_MONOTONIC,
                libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
            ));
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            check(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer, &mut event));
            Loop { epoll, timer }
        }
    }

    pub(crate) fn arm(&self, at: u64) {
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: (at / 1_000_000_000) as libc::time_t,
                tv_nsec: (at % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: `spec` lives through the call.
        check(unsafe {
            libc::timerfd_settime(self.timer, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut())
        });
    }

    pub(crate) fn wait(&self) {
        // SAFETY: the event and the buffer of eight bytes are valid places.
        unsafe {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            while libc::epoll_wait(self.epoll, &mut event, 1, -1) != 1 {}
            let mut count = 0u64;
            libc::read(self.timer, (&raw mut count).cast(), 8);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: both descriptors are this loop's own.
        unsafe {
            libc::close(self.timer);
            libc::close(self.epoll);
        }
    }
}

/// The loop on a thread of its own, for one sleeper.
pub(crate) struct HandOff {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Shared {
    timer: Loop,
    fired: AtomicBool,
    stop: AtomicBool,
    sleeper: Thread,
}

impl HandOff {
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared {
            timer: Loop::new(),
            fired: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleeper: thread::current(),
        });
        let mine = shared.clone();
        let thread = thread::spawn(move || {
            loop {
                mine.timer.wait();
                if mine.stop.load(Ordering::Acquire) {
                    return;
                }
                mine.fired.store(true, Ordering::Release);
                mine.sleeper.unpark();
            }
        });
        HandOff { shared, thread: Some(thread) }
    }

    pub(crate) fn sleep(&self, at: u64) {
        self.shared.timer.arm(at);
        while !self.shared.fired.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Drop for HandOff {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.timer.arm(1);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the loop's thread does not panic");
        }
    }
}
