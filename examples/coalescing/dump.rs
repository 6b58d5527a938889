//! The run, for whoever wants to check the figures: one JSON object a line.
//!
//! | `kind` | what | fields beside `slack_ns` |
//! | --- | --- | --- |
//! | `run` | a slack's run begins | `clock`, `seed` |
//! | `window` | a timer | `round`, `earliest_ns`, `latest_ns`, `registered_ns`, `fired_ns` (null: never) |
//! | `wakeup` | a return from the kernel | `round`, `at_ns`, `cause`: `timer`, `outside` or `none` |
//!
//! Times are nanoseconds since the run's start.

use crate::args::{ClockKind, Slack};
use crate::run::{Cause, Run};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Run {
        slack_ns: Slack,
        clock: ClockKind,
        seed: u64,
    },
    Window {
        slack_ns: Slack,
        round: usize,
        earliest_ns: u64,
        latest_ns: u64,
        registered_ns: u64,
        fired_ns: Option<u64>,
    },
    Wakeup {
        slack_ns: Slack,
        round: usize,
        at_ns: u64,
        cause: Cause,
    },
}

pub(crate) fn write(
    out: &mut impl Write,
    slack_ns: Slack,
    clock: ClockKind,
    seed: u64,
    run: &Run,
) -> io::Result<()> {
    let mut line = |line: Line| {
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    };
    line(Line::Run { slack_ns, clock, seed })?;
    for w in &run.windows {
        line(Line::Window {
            slack_ns,
            round: w.round,
            earliest_ns: w.earliest,
            latest_ns: w.latest,
            registered_ns: w.registered,
            fired_ns: w.fired,
        })?;
    }
    for w in &run.wakeups {
        line(Line::Wakeup { slack_ns, round: w.round, at_ns: w.at, cause: w.cause })?;
    }
    Ok(())
}
