//! Other crates' traits and types: one file and one feature for each.

#[cfg(feature = "async-lock")]
mod async_lock;
#[cfg(feature = "lock_api")]
pub mod lock_api;
#[cfg(feature = "tokio")]
mod tokio;
