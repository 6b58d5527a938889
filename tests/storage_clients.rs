//! The example storage server with real clients: fio, libnbd, qemu. They do not know about us.
//!
//! All of them need programs that are not Rust's, and the server built beforehand, so they are
//! ignored by default; `.ci/storage` installs what they need and runs them.

#![cfg(not(loom))]

#[path = "storage/commands.rs"]
mod commands;
#[path = "storage/comparison.rs"]
mod comparison;
#[path = "storage/fio.rs"]
mod fio;
#[path = "storage/libnbd.rs"]
mod libnbd;
#[path = "storage/probe.rs"]
mod probe;
#[path = "storage/qemu.rs"]
mod qemu;
#[path = "storage/tunables.rs"]
mod tunables;
