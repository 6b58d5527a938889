//! What can go wrong, one type per operation. Each says what was asked and what is allowed.

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A window was given a `latest` before its `earliest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvertedWindow {
    /// How far `latest` lies before `earliest`.
    pub inverted_by: Duration,
}

impl fmt::Display for InvertedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a window's latest must not be before its earliest, here it is {:?} before it",
            self.inverted_by
        )
    }
}

impl Error for InvertedWindow {}

/// A [`timeout`](crate::timeout) ran out before its future was ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elapsed {}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the timeout has elapsed")
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(e: Elapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, e)
    }
}

/// The driver behind a handle is gone (dropped, shut down, or left behind by a fork).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the timer driver behind this handle has been shut down")
    }
}

impl Error for Shutdown {}

/// An interval was asked for with a period of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZeroPeriod {}

impl fmt::Display for ZeroPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interval's period is 0ns, it must be at least 1ns")
    }
}

impl Error for ZeroPeriod {}

/// A tunable was given a value it does not take; it keeps the one it had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidTunable {
    /// The tunable's name; its unit is the name's ending.
    pub name: &'static str,
    /// What was given.
    pub value: String,
    /// What is allowed.
    pub allowed: RangeInclusive<u64>,
}

impl InvalidTunable {
    pub(crate) fn new(name: &'static str, value: String, allowed: RangeInclusive<u64>) -> Self {
        InvalidTunable { name, value, allowed }
    }
}

impl fmt::Display for InvalidTunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidTunable { name, value, allowed } = self;
        write!(f, "{name} cannot be {value:?}, allowed is a whole number in {allowed:?}")
    }
}

impl Error for InvalidTunable {}

impl From<InvalidTunable> for io::Error {
    fn from(e: InvalidTunable) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, e)
    }
}

/// A driver could not be built: what was being made, and why the system refused.
#[derive(Debug)]
#[non_exhaustive]
pub struct BuildError {
    /// What could not be made ("a timerfd", "the driver's thread").
    pub what: &'static str,
    /// The system's reason.
    pub source: io::Error,
}

impl BuildError {
    pub(crate) fn new(what: &'static str) -> impl FnOnce(io::Error) -> BuildError {
        move |source| BuildError { what, source }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot make {} for a timer driver: {}", self.what, self.source)
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}
