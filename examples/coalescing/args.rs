//! The command line. Whatever is wrong with it is said in one message that names the value and what
//! would be right, with exit status 2.

use clap::{Parser, ValueEnum};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Serves the same timers with several slacks, and counts the wakeups against the fewest possible.
#[derive(Parser, Debug)]
#[command(name = "coalescing")]
pub(crate) struct Args {
    /// Timers in each of the four rounds
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(allow_hyphen_values = true, value_parser = timers)]
    pub(crate) timers: u32,

    /// Length of a round: the deadlines are spread over it
    #[arg(long, value_name = "S", default_value = "1")]
    #[arg(allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// Slacks to run, in milliseconds; `mixed` is 1 % exact timers and 99 % with 50 ms
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,10,100,mixed")]
    #[arg(allow_hyphen_values = true, value_parser = slack)]
    pub(crate) slack: Vec<Slack>,

    /// Where the workload's random numbers start
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(allow_hyphen_values = true, value_parser = seed)]
    pub(crate) seed: u64,

    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "target/coalescing.svg")]
    pub(crate) out: PathBuf,

    /// Print one JSON object per slack instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write every window and every wakeup to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,

    /// The machine's clock, or one moved by hand: the same at once, without waiting, and the same
    /// again for the same seed
    #[arg(long, value_enum, default_value = "real")]
    pub(crate) clock: ClockKind,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClockKind {
    Real,
    Manual,
}

/// How much slack a run's timers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slack {
    Nanos(u64),
    /// 1 % exact, 99 % with 50 ms.
    Mixed,
}

impl Slack {
    /// The slack of a round's `i`-th timer.
    pub(crate) fn of(self, i: usize) -> u64 {
        match self {
            Slack::Nanos(ns) => ns,
            Slack::Mixed if i.is_multiple_of(100) => 0,
            Slack::Mixed => 50_000_000,
        }
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slack::Nanos(ns) => write!(f, "{} ms", *ns as f64 / 1e6),
            Slack::Mixed => f.write_str("mixed"),
        }
    }
}

impl Serialize for Slack {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Slack::Nanos(ns) => to.serialize_u64(*ns),
            Slack::Mixed => to.serialize_str("mixed"),
        }
    }
}

fn timers(text: &str) -> Result<u32, String> {
    whole(text, 1, 1_000_000).map(|n| n as u32)
}

fn seed(text: &str) -> Result<u64, String> {
    whole(text, 0, u64::MAX)
}

fn whole(text: &str, low: u64, high: u64) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(format!("it must be a whole number from {low} to {high}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    in_range(text, 0.01, 3600.0, "a number of seconds")
}

fn slack(text: &str) -> Result<Slack, String> {
    if text.trim() == "mixed" {
        return Ok(Slack::Mixed);
    }
    let ms = in_range(text, 0.0, 10_000.0, "`mixed` or a number of milliseconds")?;
    Ok(Slack::Nanos((ms * 1e6).round() as u64))
}

fn in_range(text: &str, low: f64, high: f64, what: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(format!("it must be {what} from {low} to {high}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_five_slacks() {
        let args = Args::try_parse_from(["coalescing"]).unwrap();
        let shown: Vec<_> = args.slack.iter().map(Slack::to_string).collect();
        assert_eq!(shown, ["0 ms", "1 ms", "10 ms", "100 ms", "mixed"]);
    }

    #[test]
    fn a_bad_value_is_named_together_with_what_is_allowed() {
        for (args, value, allowed) in [
            (["--timers", "0"], "'0'", "from 1 to 1000000"),
            (["--timers", "-1"], "'-1'", "from 1 to 1000000"),
            (["--timers", "many"], "'many'", "from 1 to 1000000"),
            (["--seconds", "nan"], "'nan'", "from 0.01 to 3600"),
            (["--seconds", "-1"], "'-1'", "from 0.01 to 3600"),
            (["--slack", "1,-3"], "'-3'", "from 0 to 10000"),
            (["--slack", "-3,1"], "'-3'", "from 0 to 10000"),
            (["--slack", "wide"], "'wide'", "`mixed`"),
            (["--clock", "sundial"], "'sundial'", "real, manual"),
            (["--seed", "-1"], "'-1'", "from 0 to 18446744073709551615"),
        ] {
            let args = [&["coalescing"], &args[..]].concat();
            let err = Args::try_parse_from(&args).unwrap_err();
            assert_eq!(err.exit_code(), 2);
            let text = err.to_string();
            assert!(text.contains(value) && text.contains(allowed), "{args:?}: {text}");
        }
    }
}
