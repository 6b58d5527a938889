//! The dials: how much slack a wait gets that did not name a window.
//!
//! Three kinds of wait, three rules, after the timed waits of ZFS on Linux
//! (`spl_schedule_hrtimeout_slack_us`):
//!
//! | the wait gave | its slack |
//! | --- | --- |
//! | a window | the window, whatever the dials say |
//! | a resolution | [`effective_slack`]: the resolution or the [`slack_floor`], whichever is larger, at most 1 ms |
//! | neither | the [`default_slack`], which is none unless it was set |
//!
//! All of them are plain atomics that may be turned while the program runs; a change acts on the
//! next wait and leaves those that wait alone. Nothing here takes a lock.
//!
//! ```
//! use slackwheel::tunables::{SlackRule, default_slack, effective_slack, slack_floor};
//! use std::time::Duration;
//!
//! // As an administrator would write it to a module parameter: microseconds.
//! slack_floor().parse_and_set("100\n")?;
//! assert!(slack_floor().parse_and_set("1001").is_err());
//! assert_eq!(slack_floor().get(), Duration::from_micros(100));
//! let slack = effective_slack(Duration::from_micros(1), slack_floor().get());
//! assert_eq!(slack, Duration::from_micros(100));
//!
//! // Let plain sleeps be late by 2 % of their length, though never by more than 50 ms.
//! default_slack().set(SlackRule::relative(20, Duration::from_millis(50)));
//! assert_eq!(default_slack().get().of(Duration::from_secs(1)), Duration::from_millis(20));
//! # default_slack().set(SlackRule::EXACT);
//! # slack_floor().clear();
//! # Ok::<(), slackwheel::InvalidTunable>(())
//! ```

use crate::error::InvalidTunable;
use crate::primitive::plain::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::tick::nanos;
use std::str::FromStr;
use std::time::Duration;

/// The largest slack a resolution can lead to, and the largest floor.
pub const MAX_EFFECTIVE_SLACK: Duration = Duration::from_millis(1);

/// The slack of a wait that gave a resolution: `min(max(resolution, floor), 1 ms)`.
///
/// The floor is a floor, not a cap: it widens waits whose resolution is finer. The one millisecond
/// limits both.
pub const fn effective_slack(resolution: Duration, floor: Duration) -> Duration {
    let slack = effective_slack_ns(nanos(resolution), nanos(floor));
    Duration::from_nanos(slack)
}

pub(crate) const fn effective_slack_ns(resolution: u64, floor: u64) -> u64 {
    const MAX: u64 = nanos(MAX_EFFECTIVE_SLACK);
    let wide = if resolution > floor { resolution } else { floor };
    if wide < MAX { wide } else { MAX }
}

/// `slack_floor_us`: the least slack, in microseconds, of waits that give a resolution.
///
/// There is one for the process ([`slack_floor`]), each condvar has its own, and so has each driver
/// ([`Handle::slack_floor`](crate::Handle::slack_floor), for the async condvars whose timers are with it).
/// The first that was set counts: condvar, driver, process. From 0 to 1000; 0 means "the resolution
/// alone".
#[derive(Debug)]
pub struct SlackFloor {
    /// Microseconds, or `UNSET`.
    us: AtomicU32,
}

const UNSET: u32 = u32::MAX;

static SLACK_FLOOR: SlackFloor = SlackFloor::new();

/// The floor of every wait whose condvar or driver has none of its own.
pub fn slack_floor() -> &'static SlackFloor {
    &SLACK_FLOOR
}

impl SlackFloor {
    /// The largest value, in microseconds.
    pub const MAX_US: u64 = 1000;

    /// What errors call it.
    const NAME: &'static str = "slack_floor_us";

    /// A floor that follows the process-wide one.
    pub const fn new() -> Self {
        SlackFloor { us: AtomicU32::new(UNSET) }
    }

    /// The floor in force: its own value, else the process-wide one, else zero.
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.ns())
    }

    #[inline]
    pub(crate) fn ns(&self) -> u64 {
        let us = match self.us.load(Relaxed) {
            UNSET => match SLACK_FLOOR.us.load(Relaxed) {
                UNSET => 0,
                us => us,
            },
            us => us,
        };
        us as u64 * 1000
    }

    /// The floor in force where `next` is asked before the process-wide one.
    #[inline]
    pub(crate) fn ns_or(&self, next: &SlackFloor) -> u64 {
        if self.is_set() { self.ns() } else { next.ns() }
    }

    /// Whether it has a value of its own.
    pub fn is_set(&self) -> bool {
        self.us.load(Relaxed) != UNSET
    }

    /// Sets it, in microseconds. The next wait sees the new value.
    ///
    /// # Errors
    /// [`InvalidTunable`] above [`MAX_US`](Self::MAX_US); the old value stays.
    pub fn set(&self, us: u64) -> Result<(), InvalidTunable> {
        if us > Self::MAX_US {
            return Err(InvalidTunable::new(Self::NAME, us.to_string(), 0..=Self::MAX_US));
        }
        self.us.store(us as u32, Relaxed);
        Ok(())
    }

    /// Sets it from text, in microseconds, as Linux reads an unsigned module parameter: decimal,
    /// hexadecimal after `0x`, octal after `0`; a leading `+` and one trailing newline are
    /// allowed, blanks and signs are not.
    ///
    /// # Errors
    /// [`InvalidTunable`] for text that is no such number, for a negative one, and above
    /// [`MAX_US`](Self::MAX_US); the old value stays.
    pub fn parse_and_set(&self, text: &str) -> Result<(), InvalidTunable> {
        match parse_kernel_uint(text) {
            Some(us) if us <= Self::MAX_US => self.set(us),
            _ => Err(InvalidTunable::new(Self::NAME, text.to_owned(), 0..=Self::MAX_US)),
        }
    }

    /// Takes the value back: a condvar's or driver's floor follows the process-wide one again, and
    /// the process-wide one becomes zero.
    pub fn clear(&self) {
        self.us.store(UNSET, Relaxed);
    }
}

impl Default for SlackFloor {
    fn default() -> Self {
        SlackFloor::new()
    }
}

impl FromStr for SlackFloor {
    type Err = InvalidTunable;

    /// A floor with a value of its own, read as by [`parse_and_set`](SlackFloor::parse_and_set).
    fn from_str(text: &str) -> Result<Self, InvalidTunable> {
        let floor = SlackFloor::new();
        floor.parse_and_set(text)?;
        Ok(floor)
    }
}

/// An unsigned number as Linux's `kstrtouint(text, 0, ..)` reads it, without its limit of 32 bits.
/// `None` for everything it refuses; a number that overflows is none, too.
fn parse_kernel_uint(text: &str) -> Option<u64> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_prefix('+').unwrap_or(text);
    // "0x" without a digit behind it is the octal number 0 followed by rubbish.
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // `from_str_radix` would take a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// A rule for the slack of a wait that gave none: as a fixed time or as a part of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlackRule {
    /// Thousandths of the delay; zero for a fixed slack.
    per_mille: u16,
    /// The slack, or the most of it; microseconds, to fit one atomic word with the above.
    limit_us: u64,
}

impl SlackRule {
    /// No slack.
    pub const EXACT: SlackRule = SlackRule { per_mille: 0, limit_us: 0 };

    /// The largest slack a rule can give (about 139 years).
    const MAX_LIMIT_US: u64 = (1 << 52) - 1;

    /// The same slack for every wait, in whole microseconds (rounded down).
    pub const fn fixed(slack: Duration) -> Self {
        SlackRule { per_mille: 0, limit_us: limit_us(slack) }
    }

    /// `per_mille` thousandths of each wait (at most 1000: as long again), and at most `limit`, which is
    /// in whole microseconds (rounded down).
    pub const fn relative(per_mille: u16, limit: Duration) -> Self {
        let per_mille = if per_mille < 1000 { per_mille } else { 1000 };
        if per_mille == 0 {
            return SlackRule::EXACT;
        }
        SlackRule { per_mille, limit_us: limit_us(limit) }
    }

    /// The slack of a wait of this length.
    pub const fn of(self, delay: Duration) -> Duration {
        Duration::from_nanos(self.of_ns(nanos(delay)))
    }

    #[inline]
    const fn of_ns(self, delay: u64) -> u64 {
        let limit = self.limit_us.saturating_mul(1000);
        if self.per_mille == 0 {
            return limit;
        }
        // Division first: the product could overflow, and a microsecond of slack is no loss.
        let part =
            delay / 1000 * self.per_mille as u64 + delay % 1000 * self.per_mille as u64 / 1000;
        if part < limit { part } else { limit }
    }

    const fn pack(self) -> u64 {
        self.limit_us << 12 | self.per_mille as u64
    }

    const fn unpack(word: u64) -> Self {
        SlackRule { per_mille: (word & 0xfff) as u16, limit_us: word >> 12 }
    }
}

const fn limit_us(d: Duration) -> u64 {
    let us = nanos(d) / 1000;
    if us < SlackRule::MAX_LIMIT_US { us } else { SlackRule::MAX_LIMIT_US }
}

/// The slack of plain sleeps, those that give neither a window nor a resolution: `sleep(d)`,
/// `sleep_until(t)`, a timeout without more. [`SlackRule::EXACT`] until it is set.
#[derive(Debug)]
pub struct DefaultSlack {
    rule: AtomicU64,
}

static DEFAULT_SLACK: DefaultSlack = DefaultSlack { rule: AtomicU64::new(SlackRule::EXACT.pack()) };

/// The rule for plain sleeps of the whole process.
pub fn default_slack() -> &'static DefaultSlack {
    &DEFAULT_SLACK
}

impl DefaultSlack {
    /// The rule in force.
    pub fn get(&self) -> SlackRule {
        SlackRule::unpack(self.rule.load(Relaxed))
    }

    /// Sets the rule. Sleeps created from now on follow it.
    pub fn set(&self, rule: SlackRule) {
        self.rule.store(rule.pack(), Relaxed);
    }
}

/// The slack, in nanoseconds, of a plain sleep of `delay` nanoseconds: one relaxed load while no
/// default slack is set.
#[inline]
pub(crate) fn plain_slack(delay: u64) -> u64 {
    match DEFAULT_SLACK.rule.load(Relaxed) {
        0 => 0,
        word => SlackRule::unpack(word).of_ns(delay),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_floor_widens_and_one_millisecond_caps_both() {
        let us = Duration::from_micros;
        for (resolution, floor, slack) in [
            (0, 0, 0),
            (1, 0, 1),
            (1, 100, 100),
            (250, 100, 250),
            (1000, 0, 1000),
            (10_000, 0, 1000),
            (10_000, 1000, 1000),
            (0, 1000, 1000),
        ] {
            assert_eq!(effective_slack(us(resolution), us(floor)), us(slack));
        }
        assert_eq!(effective_slack(Duration::MAX, Duration::ZERO), us(1000));
        assert_eq!(effective_slack(Duration::from_nanos(1), Duration::ZERO).as_nanos(), 1);
    }

    #[test]
    fn text_is_read_like_a_module_parameter() {
        for (text, us) in [
            ("0", 0),
            ("1000", 1000),
            ("1000\n", 1000),
            ("0x3e8", 1000),
            ("0X3E8\n", 1000),
            ("010", 8),
            ("01750", 1000),
            ("+7", 7),
            ("00", 0),
            ("0x0", 0),
        ] {
            let floor: SlackFloor = text.parse().unwrap();
            assert_eq!(floor.get(), Duration::from_micros(us), "{text:?}");
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_refused_and_changes_nothing() {
        let floor = SlackFloor::new();
        floor.set(77).unwrap();
        for text in [
            "",
            "\n",
            "-1",
            "+-1",
            "++1",
            "0x",
            "0x\n",
            "0x-1",
            "0x+1",
            "08",
            "1001",
            "1000\n\n",
            " 1",
            "1 ",
            "1us",
            "abc",
            "0xg",
            "1.5",
            "99999999999999999999",
            "4294967296",
            "4294967297",
            "\u{661}",
        ] {
            let e = floor.parse_and_set(text).unwrap_err();
            assert_eq!(e.value, text);
            assert!(e.to_string().contains(&format!("{text:?}")), "{e}");
            assert!(e.to_string().contains("0..=1000"), "{e}");
            assert_eq!(floor.get(), Duration::from_micros(77), "{text:?}");
        }
        assert_eq!(floor.set(1001).unwrap_err().value, "1001");
        assert_eq!(floor.set(u64::MAX).unwrap_err().allowed, 0..=1000);
        assert_eq!(floor.get(), Duration::from_micros(77));
    }

    #[test]
    fn a_floor_of_ones_own_wins_over_the_process() {
        // The only test of this binary that sets the process-wide floor.
        let own = SlackFloor::new();
        assert_eq!(own.get(), Duration::ZERO);
        slack_floor().set(300).unwrap();
        assert_eq!(own.get(), Duration::from_micros(300));
        let between: SlackFloor = "40".parse().unwrap();
        assert_eq!(own.ns_or(&between), 40_000);
        assert_eq!(between.ns_or(&own), 40_000);
        own.set(0).unwrap();
        assert_eq!(own.ns_or(&between), 0);
        assert!(own.is_set());
        assert_eq!(own.get(), Duration::ZERO);
        own.clear();
        assert_eq!(own.get(), Duration::from_micros(300));
        slack_floor().clear();
        assert_eq!(own.get(), Duration::ZERO);
    }

    #[test]
    fn rules_for_plain_sleeps() {
        let ms = Duration::from_millis;
        assert_eq!(SlackRule::EXACT.of(Duration::MAX), Duration::ZERO);
        assert_eq!(SlackRule::fixed(ms(4)).of(Duration::ZERO), ms(4));
        let rule = SlackRule::relative(100, ms(50));
        assert_eq!(rule.of(ms(100)), ms(10));
        assert_eq!(rule.of(Duration::from_nanos(15)), Duration::from_nanos(1));
        assert_eq!(rule.of(Duration::MAX), ms(50));
        assert_eq!(SlackRule::relative(0, ms(50)), SlackRule::EXACT);
        assert_eq!(SlackRule::relative(u16::MAX, Duration::MAX).of(ms(7)), ms(7));
    }

    proptest! {
        #[test]
        fn effective_slack_is_the_formula(res in any::<u64>(), floor in 0u64..=1_000_000) {
            let slack = effective_slack_ns(res, floor);
            prop_assert_eq!(slack, res.max(floor).min(1_000_000));
        }

        #[test]
        fn a_rule_survives_its_word(per_mille in any::<u16>(), limit in any::<u64>()) {
            let limit = Duration::from_nanos(limit);
            for rule in [SlackRule::relative(per_mille, limit), SlackRule::fixed(limit)] {
                prop_assert_eq!(SlackRule::unpack(rule.pack()), rule);
            }
        }

        #[test]
        fn a_relative_slack_is_never_more_than_its_part(
            delay in any::<u64>(), per_mille in any::<u16>(), limit in any::<u64>(),
        ) {
            let slack = SlackRule::relative(per_mille, Duration::from_nanos(limit)).of_ns(delay);
            let part = delay as u128 * per_mille.min(1000) as u128 / 1000;
            prop_assert!(slack as u128 <= part);
            prop_assert!(slack <= limit);
        }
    }
}
