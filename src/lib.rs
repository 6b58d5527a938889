//! Timers whose every wait is a window.
mod primitive;
mod sys;
mod tick;
pub mod wheel;
