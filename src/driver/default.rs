//! The default driver: one per process, with a thread of its own, made when it is first needed.
//!
//! No lock is involved: in the child of a fork it might be held by a thread that does not exist there.

use super::core::Core;
use super::{Driver, Firing, Handle};
use crate::error::BuildError;
use crate::park::Clocks;
use crate::primitive::plain::{AtomicPtr, Ordering};
use crate::sys::process;
use std::thread;

/// The present one; leaked, since anybody may be reading it. One per process and one more per fork.
static DEFAULT: AtomicPtr<Handle> = AtomicPtr::new(std::ptr::null_mut());

/// The default driver. It is always there; whether a thread drives it is another matter.
#[inline]
pub(crate) fn handle() -> Handle {
    // SAFETY: the pointer is null or comes from a leaked box.
    match unsafe { DEFAULT.load(Ordering::Acquire).as_ref() } {
        Some(handle) if handle.core.is_alive(handle.life) => *handle,
        _ => make(),
    }
}

/// Also needed after a fork: in the child the parent's driver is dead.
#[cold]
fn make() -> Handle {
    let before = DEFAULT.load(Ordering::Acquire);
    let (core, life) = Core::claim(None, Clocks::ALL, Firing::Latest);
    let fresh = Box::into_raw(Box::new(Handle::new(core, life)));
    match DEFAULT.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Handle::new(core, life),
        Err(_) => {
            // Another thread was faster. Nobody has seen this one.
            // SAFETY: the box was never published.
            drop(unsafe { Box::from_raw(fresh) });
            core.release(life, drop);
            handle()
        }
    }
}

/// Makes sure that a thread drives the default driver.
#[cold]
pub(crate) fn ensure_driven(handle: Handle) -> Result<(), BuildError> {
    let core = handle.core;
    if handle.is_shut_down() || !core.start_driving() {
        return Ok(());
    }
    let started = Driver::adopt(handle).and_then(|driver| {
        process::with_signals_blocked(|| {
            thread::Builder::new().name("slackwheel".into()).spawn(move || serve(driver))
        })
        .map_err(BuildError::new("the driver's thread"))
    });
    match started {
        Ok(_) => Ok(()),
        Err(e) => {
            core.counters.spawn_failures.fetch_add(1, crate::primitive::Ordering::Relaxed);
            core.stop_driving();
            Err(e)
        }
    }
}

fn serve(mut driver: Driver) {
    process::shed_inheritance();
    while !driver.handle().is_shut_down() {
        driver.park_and_swallow();
    }
}
