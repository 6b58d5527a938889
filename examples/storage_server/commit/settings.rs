//! The tunables of group commit: names, ranges, and what they mean for the next window.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slackwheel::tunables::{self, SlackFloor};

/// Nanoseconds since some start, or a span of them. One unit for the real and the virtual clock.
pub(crate) type Nanos = u64;

/// The resolution every commit wait asks for when nothing widens it.
pub(crate) const RESOLUTION: Nanos = 5_000;

/// No hold of the adaptive policy is longer than the widest slack.
pub(crate) const MAX_HOLD: Nanos = tunables::MAX_EFFECTIVE_SLACK.as_nanos() as Nanos;

/// How the slack of a commit wait is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The slack is `commit.slack_us`, when that is wider than the resolution.
    Fixed,
    /// The slack is the resolution: the tunable is ignored.
    Resolution,
    /// The length of the wait follows what the last waits were worth.
    Adaptive,
}

impl Policy {
    const ALL: [Self; 3] = [Self::Fixed, Self::Resolution, Self::Adaptive];

    /// The name used on the command line, on the control socket and in bench rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Resolution => "resolution",
            Self::Adaptive => "adaptive",
        }
    }
}

/// One window's rules, read once when the window opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    /// The window is this many percent of the mean log-write latency.
    pub(crate) pct: u32,
    /// The window is at least this long, whatever the latency is.
    pub(crate) min_window: Nanos,
    /// The floor under the slack of the wait (policy `fixed`).
    pub(crate) slack: Nanos,
    /// A block with this many bytes of payload is full.
    pub(crate) max_block: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { policy: Policy::Adaptive, pct: 5, min_window: 0, slack: 0, max_block: 128 << 10 }
    }
}

/// The effective slack of a wait, by the crate's rule: the resolution, raised to the floor, and
/// never more than one millisecond.
pub(crate) fn effective_slack(resolution: Nanos, floor: Nanos) -> Nanos {
    let [resolution, floor] = [resolution, floor].map(Duration::from_nanos);
    tunables::effective_slack(resolution, floor).as_nanos() as Nanos
}

/// The tunables as they are shared by all exports: read at each window, set while running.
#[derive(Debug)]
pub(crate) struct Tunables {
    /// The crate's own kind of tunable, with its range and its way to read numbers.
    slack: SlackFloor,
    pct: AtomicU32,
    window_us: AtomicU32,
    max_block: AtomicU32,
    policy: AtomicU32,
}

/// A numeric tunable: its name and the values it takes, both ends included.
struct Range {
    name: &'static str,
    min: u32,
    max: u32,
}

const SLACK: &str = "commit.slack_us";
const PCT: Range = Range { name: "commit.pct", min: 0, max: 100 };
const WINDOW: Range = Range { name: "commit.window_us", min: 0, max: 1_000_000 };
const MAX_BLOCK: Range = Range { name: "commit.max_block", min: 4_096, max: 1 << 20 };
const POLICY: &str = "commit.policy";

impl Default for Tunables {
    fn default() -> Self {
        let s = Settings::default();
        Self {
            slack: SlackFloor::new(),
            pct: AtomicU32::new(s.pct),
            window_us: AtomicU32::new(0),
            max_block: AtomicU32::new(128 << 10),
            policy: AtomicU32::new(s.policy as u32),
        }
    }
}

impl Tunables {
    /// The names that `get` and `set` take.
    pub(crate) const NAMES: [&'static str; 5] =
        [SLACK, PCT.name, WINDOW.name, MAX_BLOCK.name, POLICY];

    /// The rules for the next window. A change acts from here on; a wait already begun keeps
    /// the slack it was given.
    pub(crate) fn settings(&self) -> Settings {
        let micros = |a: &AtomicU32| Nanos::from(a.load(Ordering::Relaxed)) * 1_000;
        Settings {
            policy: Policy::ALL[self.policy.load(Ordering::Relaxed) as usize],
            pct: self.pct.load(Ordering::Relaxed),
            min_window: micros(&self.window_us),
            slack: self.slack.get().as_nanos() as Nanos,
            max_block: self.max_block.load(Ordering::Relaxed) as usize,
        }
    }

    /// The value of a tunable as text.
    pub(crate) fn get(&self, name: &str) -> Result<String, String> {
        match self.number(name) {
            Some((value, _)) => Ok(value.load(Ordering::Relaxed).to_string()),
            None if name == SLACK => Ok(self.slack.get().as_micros().to_string()),
            None if name == POLICY => Ok(self.settings().policy.name().to_string()),
            None => Err(unknown(name)),
        }
    }

    /// Sets a tunable. On error the old value stays.
    pub(crate) fn set(&self, name: &str, text: &str) -> Result<(), String> {
        if let Some((value, range)) = self.number(name) {
            value.store(range.parse(text)?, Ordering::Relaxed);
            return Ok(());
        }
        if name == SLACK {
            // Its error names the value and the range, but not the name it has here.
            let set = self.slack.parse_and_set(text);
            return set.map_err(|error| format!("EINVAL: {SLACK}: {error}"));
        }
        if name != POLICY {
            return Err(unknown(name));
        }
        let policy = Policy::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| {
            format!("EINVAL: {POLICY} = {text:?}: allowed are fixed, resolution, adaptive")
        })?;
        self.policy.store(policy as u32, Ordering::Relaxed);
        Ok(())
    }

    fn number(&self, name: &str) -> Option<(&AtomicU32, Range)> {
        let all = [(&self.pct, PCT), (&self.window_us, WINDOW), (&self.max_block, MAX_BLOCK)];
        all.into_iter().find(|(_, range)| range.name == name)
    }
}

fn unknown(name: &str) -> String {
    format!("EINVAL: no tunable {name:?}: there are {}", Tunables::NAMES.join(", "))
}

impl Range {
    /// Reads a number as a kernel module parameter is read: decimal, `0x` hexadecimal, or octal
    /// after a leading zero, with one trailing newline allowed.
    fn parse(&self, text: &str) -> Result<u32, String> {
        let digits = text.strip_suffix('\n').unwrap_or(text);
        let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => (hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
            None => (digits, 10),
        };
        // `from_str_radix` would let a sign through, which no module parameter of this kind has.
        let signed = digits.starts_with(['+', '-']);
        let value = u32::from_str_radix(digits, radix).ok().filter(|_| !signed);
        value.filter(|v| (self.min..=self.max).contains(v)).ok_or_else(|| {
            let (name, min, max) = (self.name, self.min, self.max);
            format!("EINVAL: {name} = {text:?}: a whole number in {min}..={max} is needed")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_names_the_range_and_keeps_the_old_one() {
        let t = Tunables::default();
        t.set("commit.slack_us", "250").unwrap();
        for bad in ["-1", "1001", "abc", "", " 5", "5 ", "0x3e9", "08", "5\n\n", "1e2"] {
            let error = t.set("commit.slack_us", bad).unwrap_err();
            assert!(error.contains("0..=1000") && error.contains(&format!("{bad:?}")), "{error}");
            assert_eq!(t.get("commit.slack_us").unwrap(), "250", "after {bad:?}");
        }
        assert!(t.set("commit.nap", "1").unwrap_err().contains("commit.slack_us"));
        assert!(t.get("commit.nap").is_err());
        assert!(t.set("commit.policy", "greedy").unwrap_err().contains("resolution"));
    }

    #[test]
    fn numbers_are_read_like_module_parameters() {
        let t = Tunables::default();
        for (text, value) in [("0", 0), ("1000", 1000), ("0x10", 16), ("010", 8), ("7\n", 7)] {
            t.set("commit.slack_us", text).unwrap();
            assert_eq!(t.settings().slack, value * 1_000, "{text:?}");
        }
    }

    #[test]
    fn the_floor_raises_a_resolution_up_to_one_millisecond() {
        assert_eq!(effective_slack(5_000, 0), 5_000);
        assert_eq!(effective_slack(5_000, 500_000), 500_000);
        assert_eq!(effective_slack(3_000_000, 0), 1_000_000);
    }
}
