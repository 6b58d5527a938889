//! Longer texts: no code, only pages.

#[doc = include_str!("../docs/how-it-works.md")]
pub mod how_it_works {}

#[doc = include_str!("../docs/performance.md")]
pub mod performance {}
