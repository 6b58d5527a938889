//! Runs the plan: rounds of samples, peers in turn, each sample in a process of its own.

use crate::plan::Group;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No sample takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// By group, peer and key: the values of all rounds.
#[derive(Default)]
pub struct Measured {
    values: BTreeMap<(usize, String, String), Vec<f64>>,
    pub failures: usize,
}

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Stats {
    pub fn of(values: &[f64]) -> Option<Stats> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Stats { median, min: sorted[0], max: sorted[sorted.len() - 1] })
    }

    pub fn exactly(value: f64) -> Stats {
        Stats { median: value, min: value, max: value }
    }
}

impl Measured {
    pub fn stats(&self, group: usize, peer: &str, key: &str) -> Option<Stats> {
        Stats::of(self.values.get(&(group, peer.to_owned(), key.to_owned()))?)
    }
}

pub fn all(groups: &[Group], rounds: usize) -> Measured {
    let rounds_of = |g: &Group| g.rounds.unwrap_or(rounds);
    let total: usize = groups.iter().map(|g| rounds_of(g) * (1 + g.peers.len())).sum();
    let bar = ProgressBar::new(total as u64);
    bar.set_style(
        ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} {msg}")
            .expect("the template is valid"),
    );
    let mut measured = Measured::default();
    let most = groups.iter().map(rounds_of).max().unwrap_or(0);
    for round in 0..most {
        for (at, group) in groups.iter().enumerate().filter(|(_, g)| round < rounds_of(g)) {
            for peer in std::iter::once(&group.ours).chain(&group.peers) {
                bar.set_message(format!("{} {}: {peer}", round + 1, group.name));
                match sample(group.scenario, peer, &group.args) {
                    Ok(values) => {
                        for (key, value) in values {
                            let key = (at, (*peer).to_owned(), key);
                            measured.values.entry(key).or_default().push(value);
                        }
                    }
                    Err(e) => {
                        measured.failures += 1;
                        bar.println(format!("{} of {peer} failed: {e}", group.name));
                    }
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    measured
}

fn sample(scenario: &str, peer: &str, args: &[String]) -> Result<Vec<(String, f64)>, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(["sample", scenario, peer])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    // What it prints fits into the pipes, so it can be waited for without reading.
    let start = Instant::now();
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no end after {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", output.status, said.lines().next().unwrap_or("")));
    }
    let object: BTreeMap<String, f64> =
        serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    Ok(object.into_iter().collect())
}
