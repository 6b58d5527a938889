//! What is run: devices, workloads, widths, policies; the constants are those of the reference
//! curve.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::commit::settings::{Nanos, Policy, Settings};
use crate::config::parse_device;
use crate::storage::device::DeviceModel;

use super::real;
use super::simulate::{self, Costs, Scenario};

/// Which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Clock {
    /// Simulated: deterministic, and faster than real.
    Virtual,
    /// The server's own storage and threads on a file.
    Real,
}

/// A named write pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    Rand8k,
    Seq8k,
    Seq128k,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rand8k => "rand8k",
            Self::Seq8k => "seq8k",
            Self::Seq128k => "seq128k",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Rand8k | Self::Seq8k => 8 << 10,
            Self::Seq128k => 128 << 10,
        }
    }
}

/// A named device.
#[derive(Clone, Debug)]
pub(crate) struct NamedDevice {
    pub(crate) name: String,
    /// `None` is the real file as it is.
    pub(crate) model: Option<DeviceModel>,
}

/// The device that the adaptive policy was tuned on, and three that it was not.
const DEVICES: [(&str, DeviceModel); 4] = [
    (
        "reference",
        DeviceModel { latency: 750_000, per_byte: 20_000.0 / 8_192.0, parallel: 4, seek: 0 },
    ),
    ("nvme", DeviceModel { latency: 80_000, per_byte: 0.5, parallel: 16, seek: 0 }),
    ("sata", DeviceModel { latency: 350_000, per_byte: 2.0, parallel: 1, seek: 0 }),
    ("cloud", DeviceModel { latency: 2_000_000, per_byte: 4.0, parallel: 8, seek: 0 }),
];

/// Options of `bench slack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SlackArgs {
    #[arg(long, value_enum, default_value = "virtual")]
    pub(crate) clock: Clock,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Also draw a picture
    #[arg(long)]
    pub(crate) svg: Option<PathBuf>,
    /// Device models, as NAME or sim(lat=,perbyte=,par=,seek=); NAME is reference, nvme, sata or
    /// cloud. Default: all four (virtual), none (real)
    #[arg(long)]
    device: Vec<String>,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Workload::Rand8k, Workload::Seq8k, Workload::Seq128k])]
    workload: Vec<Workload>,
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    writers: Vec<usize>,
    /// Slacks of policy fixed, in us
    #[arg(long, value_delimiter = ',', default_values_t = [500, 100])]
    slack_us: Vec<u32>,
    /// Length of each run, in seconds of its clock. Default: 20 (virtual), 1 (real)
    #[arg(long)]
    seconds: Option<f64>,
    /// Window in percent of the mean log-write latency
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pct: u32,
    /// A block with so many bytes is full
    #[arg(long, default_value_t = 128 << 10, value_parser = clap::value_parser!(u32).range(4096..=1 << 20))]
    max_block: u32,
    /// Log writes in flight. Default: what the device works on at a time; 1 on a real file
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    log_depth: Option<u16>,
    /// CPU time of a request, us (virtual)
    #[arg(long, default_value_t = 5)]
    request_us: u32,
    /// CPU time of a commit, us (virtual)
    #[arg(long, default_value_t = 10)]
    commit_us: u32,
    /// From a timer's expiry to the waiting thread, us (virtual)
    #[arg(long, default_value_t = 15)]
    wakeup_us: u32,
    /// Mean time from a writer's acknowledgement to its next write, us (virtual)
    #[arg(long, default_value_t = 40)]
    turnaround_us: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Background timers in the runs that count expiries
    #[arg(long, default_value_t = 64)]
    background: usize,
    /// Their period, ms
    #[arg(long, default_value_t = 10)]
    background_ms: u32,
    /// Directory for the files of the real clock
    #[arg(long, default_value = ".")]
    pub(crate) directory: PathBuf,
}

/// A policy with its slack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) policy: Policy,
    pub(crate) slack_us: u32,
}

/// One line of the result.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) writers: usize,
    pub(crate) variant: Variant,
    pub(crate) device: String,
    pub(crate) ops_per_s: f64,
    pub(crate) commits: u64,
    pub(crate) batch_mean: f64,
    pub(crate) wait_p50_ns: Nanos,
    /// Kernel timer expiries for each commit, with background timers; a run of its own.
    pub(crate) expiries_per_commit: f64,
    /// Of these, the ones that no background timer would have needed.
    pub(crate) own_expiries_per_commit: f64,
}

impl SlackArgs {
    pub(crate) fn run(&self) -> Result<Vec<Row>, String> {
        let devices = self.devices()?;
        match self.clock {
            Clock::Real => {
                let p50 = real::sync_p50(self)?;
                let place = self.directory.display();
                eprintln!("write + fdatasync of 8 KiB in {place}: p50 {p50:?}");
                let rows: Result<Vec<_>, _> = devices.iter().map(|d| self.run_device(d)).collect();
                real::clean_up(self);
                rows
            }
            // Simulations do not disturb each other, so each device has a thread.
            Clock::Virtual => std::thread::scope(|scope| {
                let runs: Vec<_> =
                    devices.iter().map(|d| scope.spawn(|| self.run_device(d))).collect();
                let join = |run: std::thread::ScopedJoinHandle<'_, _>| {
                    run.join().unwrap_or_else(|_| Err("a simulation panicked".to_string()))
                };
                runs.into_iter().map(join).collect()
            }),
        }
        .map(|rows: Vec<_>| rows.concat())
    }

    fn run_device(&self, device: &NamedDevice) -> Result<Vec<Row>, String> {
        let mut rows = Vec::new();
        for &workload in &self.workload {
            for &writers in &self.writers {
                for variant in self.variants() {
                    rows.push(match self.clock {
                        Clock::Virtual => self.simulate(device, workload, writers, variant)?,
                        Clock::Real => real::run(self, device, workload, writers, variant)?,
                    });
                }
            }
        }
        Ok(rows)
    }

    fn devices(&self) -> Result<Vec<NamedDevice>, String> {
        let named = |&(name, model): &(&str, DeviceModel)| NamedDevice {
            name: name.to_string(),
            model: Some(model),
        };
        if self.device.is_empty() {
            return Ok(match self.clock {
                Clock::Virtual => DEVICES.iter().map(named).collect(),
                Clock::Real => vec![NamedDevice { name: "file".into(), model: None }],
            });
        }
        let one = |text: &String| match DEVICES.iter().find(|(name, _)| name == text) {
            Some(device) => Ok(named(device)),
            None => {
                let model = Some(parse_device(text)?);
                Ok(NamedDevice { name: text.clone(), model })
            }
        };
        self.device.iter().map(one).collect()
    }

    fn variants(&self) -> Vec<Variant> {
        let resolution = 5;
        let fixed = self.slack_us.iter().map(|&s| Variant { policy: Policy::Fixed, slack_us: s });
        let others = [Policy::Resolution, Policy::Adaptive];
        fixed.chain(others.map(|policy| Variant { policy, slack_us: resolution })).collect()
    }

    /// The rules of group commit under a variant.
    pub(crate) fn settings(&self, variant: Variant) -> Settings {
        Settings {
            policy: variant.policy,
            pct: self.pct,
            min_window: 0,
            slack: Nanos::from(variant.slack_us) * 1_000,
            max_block: self.max_block as usize,
        }
    }

    pub(crate) fn depth(&self, device: &NamedDevice) -> usize {
        let default = device.model.map_or(1, |m| m.parallel);
        self.log_depth.map_or(default, usize::from)
    }

    pub(crate) fn span(&self) -> f64 {
        let default = if self.clock == Clock::Virtual { 20.0 } else { 1.0 };
        self.seconds.unwrap_or(default)
    }

    pub(crate) fn background(&self) -> (usize, Nanos) {
        (self.background, Nanos::from(self.background_ms) * 1_000_000)
    }

    fn simulate(
        &self,
        device: &NamedDevice,
        workload: Workload,
        writers: usize,
        variant: Variant,
    ) -> Result<Row, String> {
        let model = device.model.ok_or("the virtual clock needs a device model")?;
        let micros = |us: u32| Nanos::from(us) * 1_000;
        let span = (self.span() * 1e9) as Nanos;
        let scenario = Scenario {
            device: model,
            depth: self.depth(device),
            writers,
            bytes: workload.bytes(),
            settings: self.settings(variant),
            costs: Costs {
                request: micros(self.request_us),
                commit: micros(self.commit_us),
                wakeup: micros(self.wakeup_us),
                turnaround: micros(self.turnaround_us),
            },
            span,
            // The log makes one write like another wherever it goes: all that tells a random
            // from a sequential one here is another run of the dice.
            seed: self.seed + workload as u64,
            background: None,
        };
        let outcome = simulate::run(&scenario);
        let crowd = simulate::run(&Scenario {
            background: Some(self.background()),
            span: span / 5,
            ..scenario
        });
        let commits = outcome.stats.commits();
        let per_commit = |count: u64| count as f64 / crowd.stats.commits().max(1) as f64;
        Ok(Row {
            workload: workload.name(),
            writers,
            variant,
            device: device.name.clone(),
            ops_per_s: outcome.acknowledged as f64 / self.span(),
            commits,
            batch_mean: outcome.stats.records() as f64 / commits.max(1) as f64,
            wait_p50_ns: outcome.stats.wait_p50(),
            expiries_per_commit: per_commit(crowd.expiries),
            own_expiries_per_commit: per_commit(crowd.own_expiries),
        })
    }
}
