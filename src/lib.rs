//! Timers whose every wait is a window.
