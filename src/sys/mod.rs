//! Every call into the system: the only module that names `libc`, and the only FFI `unsafe`.
//!
//! One file per family of calls. A function here does one call, retries what the manual says to
//! retry, and turns the result into `io::Result`; policy lives above.

#[cfg(target_os = "linux")]
pub(crate) mod epoll;
#[cfg(target_os = "linux")]
pub(crate) mod eventfd;
#[cfg(target_os = "linux")]
pub(crate) mod futex;
pub(crate) mod mem;
pub(crate) mod process;
pub(crate) mod sched;
pub(crate) mod slack;
#[cfg(target_os = "linux")]
pub(crate) mod sleep;
pub(crate) mod time;
#[cfg(target_os = "linux")]
pub(crate) mod timerfd;

use std::io;

/// The result of a call that returns -1 and sets `errno`.
#[cfg(target_os = "linux")]
pub(crate) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
