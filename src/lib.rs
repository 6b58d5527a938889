//! Timers whose every wait is a window.
mod clock;
pub mod compat;
mod error;
mod primitive;
pub mod sync;
mod sys;
pub mod thread;
mod tick;
pub mod tunables;
pub mod wheel;
mod window;
pub use error::*;
pub use window::Window;
