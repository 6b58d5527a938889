//! Loom models of the driver's races.
