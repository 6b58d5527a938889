//! Timers whose every wait is a window.
mod clock;
mod driver;
mod error;
mod future;
mod metrics;
mod park;
mod primitive;
pub mod sim;
mod sys;
mod tick;
pub mod wheel;
mod window;

pub use driver::{
    Driver, DriverBuilder, EnterGuard, ExternalDriver, Handle, ManualClock, Parker, Turn,
};
pub use error::{BuildError, Elapsed, InvertedWindow, Shutdown, ZeroPeriod};
pub use future::{
    DelayQueue, Expired, Interval, MissedTicks, QueueKey, Sleep, Timeout, interval, interval_at,
    sleep, sleep_range, sleep_until, sleep_window, timeout, timeout_at, timeout_range,
};
pub use metrics::{Lateness, Metrics};
pub use window::Window;
