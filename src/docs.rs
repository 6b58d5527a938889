//! Longer texts: no code, only pages.

#[doc = include_str!("../docs/how-it-works.md")]
pub mod how_it_works {}
