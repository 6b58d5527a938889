//! Timers whose every wait is a window.
mod clock;
mod error;
mod primitive;
mod sys;
mod tick;
pub mod wheel;
mod window;
pub use error::*;
pub use window::Window;
