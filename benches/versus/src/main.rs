//! slackwheel and its rivals, side by side in one run: `cargo versus`.
//!
//! Every sample is a process of its own (this program, called again), and the peers take turns, so that
//! neither a neighbour on the machine nor what an earlier sample left behind favours anybody. The ratio of
//! medians is the figure that counts.

mod herd;
mod peers;
mod plan;
mod report;
mod run;
mod scenarios;
mod svg;
mod sys;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: sys::Counted = sys::Counted;

#[derive(Parser)]
#[command(name = "cargo versus", about = "slackwheel and its rivals, side by side in one run")]
struct Args {
    /// Print JSON objects, one a line, instead of a table.
    #[arg(long)]
    json: bool,
    /// Three shorter rounds, cancels and idleness on the manual clock: within four minutes.
    #[arg(long)]
    quick: bool,
    /// Draw each figure into a file of this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Only the groups whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Rounds; nine, or three with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// One scenario of one peer, in this process; what the program calls itself with.
    #[command(hide = true)]
    Sample { scenario: String, peer: String, args: Vec<String> },
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Sample { scenario, peer, args }) = args.command {
        let values = scenarios::sample(&scenario, &peer, &args);
        let map: serde_json::Map<String, serde_json::Value> =
            values.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
        println!("{}", serde_json::Value::Object(map));
        // No destructors: a million timers that nobody needs any more.
        std::process::exit(0);
    }
    let mut groups = plan::groups(args.quick);
    if let Some(only) = &args.only {
        groups.retain(|g| g.name.contains(only.as_str()));
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 9 });
    let measured = run::all(&groups, rounds);
    let rows = report::rows(&groups, &measured);
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row).expect("a row is plain data"));
        }
    } else {
        report::table(&rows);
    }
    if let Some(dir) = &args.svg
        && let Err(e) = svg::draw(dir, &rows)
    {
        eprintln!("cannot draw into {}: {e}", dir.display());
        return ExitCode::FAILURE;
    }
    let missed = report::summary(&rows, !args.json);
    if measured.failures > 0 {
        eprintln!("{} samples failed", measured.failures);
        return ExitCode::FAILURE;
    }
    // A target that is missed is for people to judge, not an error of the run.
    let _ = missed;
    ExitCode::SUCCESS
}
