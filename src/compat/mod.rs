//! Other crates' traits and types: one file and one feature for each.

#[cfg(feature = "lock_api")]
pub mod lock_api;
