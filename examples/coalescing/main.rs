//! The same thousand timers, served with more and more slack: how many wakeups did they take, and how
//! many would have been enough?
//!
//! For each slack a [`Driver`](slackwheel::Driver) parks in a loop on a thread of its own. Three rounds
//! of timers are registered at once, their deadlines spread over a second; then comes a mix whose timers
//! arrive over time from two threads, while other events wake the driver now and then. The figures go to
//! a table (or to `--json`), the mix is drawn to `target/coalescing.svg`, and `--dump` writes all that is
//! needed to check them: `tests/recompute_optimum.py` does.
//!
//! | file | holds |
//! | --- | --- |
//! | `args` | the command line |
//! | `workload` | what is to be served, from the seed |
//! | `task` | a task that waits once and reads the clock when it completes |
//! | `serve` | the driver's thread and its loop |
//! | `real`, `manual` | a run on the machine's clock, and on one moved by hand |
//! | `run` | what a run leaves behind |
//! | `usage` | the kernel's counters |
//! | `optimum` | the fewest wakeups possible |
//! | `report`, `table`, `svg`, `dump` | what comes of it |

mod args;
mod dump;
mod manual;
mod optimum;
mod real;
mod report;
mod run;
mod serve;
mod svg;
mod table;
mod task;
mod usage;
mod workload;

use args::{Args, ClockKind};
use clap::Parser;
use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressStyle};
use report::Report;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use svg::{About, Panel};
use workload::{Plan, ROUNDS};

fn main() -> ExitCode {
    let args = Args::parse();
    // Before the first run: nobody wants to hear after twenty seconds that a path was wrong.
    if let Err(e) = writable("--out", &args.out) {
        e.exit();
    }
    let dump = args.dump.as_ref().map(|path| writable("--dump", path)).transpose();
    let dump = dump.unwrap_or_else(|e| e.exit());
    match serve(&args, dump) {
        Ok(broken) if broken.is_empty() => ExitCode::SUCCESS,
        Ok(broken) => {
            broken.iter().for_each(|what| eprintln!("broken promise: {what}"));
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn writable(option: &str, path: &Path) -> Result<File, clap::Error> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    parent.map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(path)).map_err(|e| {
        let text = format!(
            "invalid value '{}' for '{option} <FILE>': it must be a file that can be written: {e}\n",
            path.display()
        );
        clap::Error::raw(ErrorKind::ValueValidation, text)
    })
}

/// Runs all slacks. Returns what they broke of the contract.
fn serve(args: &Args, dump: Option<File>) -> Result<Vec<String>, Box<dyn Error>> {
    let mut dump = dump.map(BufWriter::new);
    let mut panels = Vec::new();
    let mut reports = Vec::new();
    let progress = progress(args);
    for &slack in &args.slack {
        let plan = Plan::new(args.timers as usize, args.seconds, slack, args.seed);
        let mut step = |round| {
            progress.set_message(format!("slack {slack}, round {} of {ROUNDS}", round + 1));
            progress.inc(u64::from(round > 0));
        };
        let run = match args.clock {
            ClockKind::Real => real::run(&plan, &mut step)?,
            ClockKind::Manual => manual::run(&plan, &mut step),
        };
        progress.inc(1);
        if let Some(dump) = &mut dump {
            dump::write(dump, slack, args.clock, args.seed, &run)?;
        }
        let report = Report::new(slack, &run);
        if args.json {
            let line = serde_json::to_string(&report)?;
            progress.suspend(|| println!("{line}"));
        }
        panels.push(Panel::new(slack, &plan, &run));
        reports.push(report);
    }
    progress.finish_and_clear();
    if let Some(mut dump) = dump {
        dump.flush()?;
    }
    svg::draw(&args.out, &About { clock: args.clock, seed: args.seed }, &panels)?;
    if !args.json {
        print!("{}", table::table(&reports));
        println!("\npicture   {}", args.out.display());
    }
    Ok(reports.iter().flat_map(|r| r.broken(args.clock)).collect())
}

/// A bar on a terminal, nothing elsewhere. It moves only between rounds: a thread that drew it meanwhile
/// would be in every count.
fn progress(args: &Args) -> ProgressBar {
    let steps = args.slack.len() * ROUNDS;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len}  {msg}");
    let bar = ProgressBar::new(steps as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
