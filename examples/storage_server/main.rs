//! A network block device server with a write-ahead log, whose group commit waits in windows.
//!
//! `README.md` beside this file says what to run and what to look at.

mod bench;
mod commit;
mod config;
mod control;
mod errno;
mod export;
mod nbd;
mod server;
mod stats;
mod storage;
mod timers;
mod wait;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use config::ServeArgs;
use control::Control;
use export::Export;
use server::{Address, Server, listen_unix};

#[derive(Parser)]
#[command(about = "A network block device server whose group commit waits in windows")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve exports until SIGINT, SIGTERM or `ctl shutdown`
    Serve(Box<ServeArgs>),
    /// Read or change a running server
    Ctl {
        /// The server's --control socket
        #[arg(long)]
        control: PathBuf,
        #[command(subcommand)]
        verb: Verb,
    },
    /// Measure
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

#[derive(Subcommand)]
enum Verb {
    /// Print a tunable
    Get { name: String },
    /// Change a tunable; it acts on the next window
    Set {
        name: String,
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Print the counters as JSON
    Stats,
    /// Stop the server
    Shutdown,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve(&args),
        Command::Ctl { control, verb } => {
            let command = match verb {
                Verb::Get { name } => format!("get {name}"),
                Verb::Set { name, value } => format!("set {name} {value}"),
                Verb::Stats => "stats".to_string(),
                Verb::Shutdown => "shutdown".to_string(),
            };
            control::ask(&control, &command).map(|answer| {
                if !answer.is_empty() {
                    println!("{answer}");
                }
            })
        }
        Command::Bench { what } => what.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storage_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ServeArgs) -> Result<(), String> {
    args.check()?;
    let tunables = Arc::new(args.tunables()?);
    let mut exports = Vec::new();
    for spec in &args.exports {
        let max_payload = args.max_payload as u32;
        let export = Export::open(spec, args.device, args.depth(), max_payload, tunables.clone())?;
        let found = &export.recovered;
        eprintln!("storage_server: export {:?}: {} records replayed", spec.name, found.replayed);
        if let Some(offset) = found.cut_at {
            eprintln!("storage_server: export {:?}: torn log cut at offset {offset}", spec.name);
        }
        exports.push(export);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Reads wait for the disk on these threads; more of them than this help no disk.
        .max_blocking_threads(16)
        .build()
        .map_err(|e| format!("runtime: {e}"))?;
    let outcome = runtime.block_on(run(args, exports, tunables));
    // A blocking read of a dead disk must not keep a stopped server.
    runtime.shutdown_background();
    outcome
}

async fn run(
    args: &ServeArgs,
    exports: Vec<Export>,
    tunables: Arc<commit::settings::Tunables>,
) -> Result<(), String> {
    let stop = Arc::new(Notify::new());
    let signals = async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = stop.notified() => {}
        }
        Ok::<_, std::io::Error>(())
    };
    let server = Server::start(exports, &args.addresses(), args.limits())
        .map_err(|e| format!("cannot listen: {e}"))?;
    let control = match &args.control {
        None => None,
        Some(path) => {
            let listener = listen_unix(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let exports = server.exports().iter().map(Arc::downgrade).collect();
            let control = Control { tunables, exports, stop: stop.clone() };
            Some(tokio::spawn(control.run(listener)))
        }
    };
    for address in args.addresses() {
        if let Address::Unix(path) = address {
            eprintln!("storage_server: listening on {}", path.display());
        }
    }
    for address in &server.tcp {
        eprintln!("storage_server: listening on {address}");
    }
    let stopped = signals.await.map_err(|e| format!("signals: {e}"));
    server.shutdown(args.grace()).await;
    if let (Some(task), Some(path)) = (control, &args.control) {
        task.abort();
        // Somebody else may have removed it, which is what is wanted.
        let _ = std::fs::remove_file(path);
    }
    stopped
}
