//! Group commit: when the open log block goes out, decided without I/O, threads or a clock.
//!
//! The server's commit threads and the simulated bench drive the very same code; see
//! [`group::GroupCommit`].

pub(crate) mod adaptive;
pub(crate) mod group;
pub(crate) mod settings;
