//! LTP's timer sampling (`lib/tst_timer_test.c`): many samples of each of seven sleeps, none of which may be
//! early, and a truncated mean that may not exceed a threshold.
//!
//! LTP drops its upper bound on virtual machines. Here it is judged against a bare system call that
//! is sampled in turn with the subject, so that a noisy machine widens both alike.

use super::{monotonic, nanosleep_until};

/// Sleep in microseconds, samples; the table of LTP.
pub(crate) const SLEEPS: [(u64, usize); 7] = [
    (1_000, 500),
    (2_000, 500),
    (5_000, 300),
    (10_000, 100),
    (25_000, 50),
    (100_000, 10),
    (1_000_000, 2),
];

/// The samples left when the largest are dropped: at least one, and one in twenty.
fn kept(samples: usize) -> usize {
    samples - (samples / 20).max(1)
}

fn truncated_mean(late: &mut [u64]) -> u64 {
    late.sort_unstable();
    let kept = kept(late.len());
    late[..kept].iter().sum::<u64>() / kept as u64
}

/// What LTP allows the mean to be late by, in nanoseconds, with a clock of 1 ns.
///
/// LTP grants every call the thousandth of its length that the kernel adds to select, poll and
/// epoll; here only those get it (`poll_rule`).
fn allowed(sleep_us: u64, samples: usize, slack: u64, poll_rule: bool) -> u64 {
    let added = if poll_rule { sleep_us.min(100_000_000) } else { 0 };
    let kept = kept(samples) as u64;
    400_000 + 2 + slack.max(added) + 3_000_000 / (kept * kept)
}

/// Samples `subject`, a sleep of so many nanoseconds that may be late by `slack`, and prints the
/// row of the table that says what was asked and what was run.
pub(crate) fn sample(source: &str, slack: u64, subject: impl Fn(u64)) {
    sample_with(source, slack, false, subject);
}

pub(crate) fn sample_with(source: &str, slack: u64, poll_rule: bool, subject: impl Fn(u64)) {
    println!(
        "{:<44} {:>9} {:>6} {:>5} {:>10} {:>10} {:>10}",
        "source", "sleep us", "asked", "run", "late ns", "bare ns", "allowed ns"
    );
    for (sleep_us, asked) in SLEEPS {
        // A neighbour that takes the processor for a few milliseconds spoils a row of ten samples. A
        // subject that is late by its own doing is late three times.
        let rows = (0..3).map(|_| row(source, sleep_us, asked, slack, poll_rule, &subject));
        let mut failed = Vec::new();
        for outcome in rows {
            match outcome {
                Ok(()) => break,
                Err(e) => failed.push(e),
            }
        }
        assert!(failed.len() < 3, "{failed:#?}");
    }
}

/// One row of the table: nothing early, ever; the error says by how much the mean is too late.
fn row(
    source: &str,
    sleep_us: u64,
    asked: usize,
    slack: u64,
    poll_rule: bool,
    subject: &impl Fn(u64),
) -> Result<(), String> {
    let ns = sleep_us * 1000;
    let (mut late, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..asked {
        let start = monotonic();
        subject(ns);
        let took = monotonic() - start;
        assert!(took >= ns, "{source}: a sleep of {ns} ns took {took}");
        late.push(took - ns);
        let start = monotonic();
        nanosleep_until(start + ns);
        bare.push(monotonic() - start - ns);
    }
    let run = late.len();
    let allowed = allowed(sleep_us, asked, slack, poll_rule);
    let (mean, bare_mean) = (truncated_mean(&mut late), truncated_mean(&mut bare));
    println!(
        "{source:<44} {sleep_us:>9} {asked:>6} {run:>5} {mean:>10} {bare_mean:>10} {allowed:>10}"
    );
    let bound = allowed.max(2 * bare_mean + slack);
    if mean <= bound {
        return Ok(());
    }
    Err(format!("{source}, {sleep_us} us: mean {mean} ns late, at most {bound}"))
}
