//! The command line: what a server is made of, and the checks on it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::commit::settings::{Nanos, Tunables};
use crate::nbd::transmission::Bounds;
use crate::server::{Address, ServerLimits};
use crate::storage::device::DeviceModel;

/// The longest span a setting may name: a day, far from where any clock ends.
const MAX_MILLIS: u64 = 86_400_000;

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// NAME,path=FILE,size=N[,log=N][,sync=standard|always][,ro]; sizes take k, m, g, t
    #[arg(long = "export", required = true, value_parser = ExportSpec::parse)]
    pub(crate) exports: Vec<ExportSpec>,
    /// Listen on a unix socket (may be repeated)
    #[arg(long)]
    unix: Vec<PathBuf>,
    /// Listen on TCP (may be repeated; loopback unless --allow-remote). Default: 127.0.0.1:10809
    #[arg(long)]
    tcp: Vec<SocketAddr>,
    /// Allow TCP addresses that other machines can reach: there is no authentication
    #[arg(long)]
    allow_remote: bool,
    /// Answer `ctl` on this unix socket
    #[arg(long)]
    pub(crate) control: Option<PathBuf>,
    /// Replace the cost of syncs by a model: sim or sim(lat=750us,perbyte=2.44ns,par=4,seek=0us)
    #[arg(long, value_parser = parse_device)]
    pub(crate) device: Option<DeviceModel>,
    /// Log writes in flight at a time. Default: the model's par, or 1 on a real file
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    log_depth: Option<u16>,
    /// Set a tunable at the start, as NAME=VALUE (may be repeated)
    #[arg(long = "set")]
    set: Vec<String>,
    /// Clients served at a time; further ones wait
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_connections: u32,
    /// Largest payload of one request
    #[arg(long, default_value = "32m", value_parser = parse_size)]
    pub(crate) max_payload: u64,
    /// Payload bytes under way for one connection
    #[arg(long, default_value = "64m", value_parser = parse_size)]
    max_in_flight: u64,
    /// Time for the handshake, in ms; 0 is no limit
    #[arg(long, default_value = "10000", value_parser = parse_millis, allow_hyphen_values = true)]
    handshake_timeout_ms: Duration,
    /// Time for one reply to leave, in ms; 0 is no limit
    #[arg(long, default_value = "30000", value_parser = parse_millis, allow_hyphen_values = true)]
    write_timeout_ms: Duration,
    /// Time that a stop leaves to what was begun, in ms; 0 is none
    #[arg(long, default_value = "1000", value_parser = parse_millis, allow_hyphen_values = true)]
    grace_ms: Duration,
    /// Group-commit window at least this long, in ms; 0 leaves it to commit.pct
    #[arg(long, default_value = "0", value_parser = parse_window, allow_hyphen_values = true)]
    commit_window_ms: u32,
}

/// One `--export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportSpec {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) log_size: u64,
    pub(crate) sync_always: bool,
    pub(crate) read_only: bool,
}

impl ServeArgs {
    /// Checks that need more than one option.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (i, export) in self.exports.iter().enumerate() {
            let others = &self.exports[..i];
            if others.iter().any(|o| o.name == export.name || o.path == export.path) {
                return Err(format!("--export {:?}: name or path is used twice", export.name));
            }
            if export.log_size < 2 * self.max_payload {
                return Err(format!(
                    "--export {:?}: log={} is less than twice --max-payload {}",
                    export.name, export.log_size, self.max_payload
                ));
            }
        }
        if !(4_096..=32 << 20).contains(&self.max_payload) {
            return Err(format!("--max-payload {}: allowed are 4k..=32m", self.max_payload));
        }
        if !(self.max_payload..=1 << 31).contains(&self.max_in_flight) {
            return Err(format!(
                "--max-in-flight {}: allowed are --max-payload {}..=2g",
                self.max_in_flight, self.max_payload
            ));
        }
        match self.tcp.iter().find(|a| !a.ip().is_loopback()) {
            Some(address) if !self.allow_remote => {
                Err(format!("--tcp {address}: other machines can reach it; see --allow-remote"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        let unix = self.unix.iter().cloned().map(Address::Unix);
        let all: Vec<_> = unix.chain(self.tcp.iter().copied().map(Address::Tcp)).collect();
        if all.is_empty() { vec![Address::Tcp(([127, 0, 0, 1], 10_809).into())] } else { all }
    }

    pub(crate) fn limits(&self) -> ServerLimits {
        let or_none = |d: Duration| if d.is_zero() { Duration::MAX } else { d };
        ServerLimits {
            connections: self.max_connections as usize,
            handshake_timeout: or_none(self.handshake_timeout_ms),
            bounds: Bounds {
                in_flight: self.max_in_flight as u32,
                write_timeout: or_none(self.write_timeout_ms),
            },
        }
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace_ms
    }

    pub(crate) fn depth(&self) -> usize {
        let default = self.device.map_or(1, |d| d.parallel);
        self.log_depth.map_or(default, usize::from)
    }

    pub(crate) fn tunables(&self) -> Result<Tunables, String> {
        let tunables = Tunables::default();
        tunables.set("commit.window_us", &(self.commit_window_ms * 1_000).to_string())?;
        for setting in &self.set {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("--set {setting:?}: NAME=VALUE is needed"))?;
            tunables.set(name, value)?;
        }
        Ok(tunables)
    }
}

impl ExportSpec {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().to_string();
        if name.len() > crate::nbd::proto::MAX_NAME || name.contains('\0') {
            return Err("the name is longer than 4096 bytes or has a zero in it".into());
        }
        let (mut path, mut size, mut log_size) = (None, None, 64 << 20);
        let (mut sync_always, mut read_only) = (false, false);
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("path", value) if !value.is_empty() => path = Some(PathBuf::from(value)),
                ("size", value) => size = Some(parse_size(value)?),
                ("log", value) => log_size = parse_size(value)?,
                ("sync", "standard") => sync_always = false,
                ("sync", "always") => sync_always = true,
                ("sync", value) => {
                    return Err(format!("sync={value:?}: allowed are standard, always"));
                }
                ("ro", "") => read_only = true,
                _ => return Err(format!("{part:?}: allowed are path, size, log, sync, ro")),
            }
        }
        let path = path.ok_or("path=FILE is missing")?;
        let size = size.ok_or("size=N is missing")?;
        if !(512..=1 << 50).contains(&size) || size % 512 != 0 {
            return Err(format!("size={size}: a multiple of 512 in 512..=2^50 is needed"));
        }
        if !(1 << 16..=1 << 36).contains(&log_size) {
            return Err(format!("log={log_size}: allowed are 64k..=64g"));
        }
        Ok(Self { name, path, size, log_size, sync_always, read_only })
    }
}

/// A number of bytes, with an optional k, m, g or t.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.char_indices().next_back() {
        Some((i, 'k')) => (&lower[..i], 10),
        Some((i, 'm')) => (&lower[..i], 20),
        Some((i, 'g')) => (&lower[..i], 30),
        Some((i, 't')) => (&lower[..i], 40),
        _ => (&lower[..], 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    number.ok_or_else(|| format!("{text:?}: a number of bytes below 2^64 is needed, as 8k or 1g"))
}

fn parse_millis(text: &str) -> Result<Duration, String> {
    let millis = text.parse::<u64>().ok().filter(|m| *m <= MAX_MILLIS);
    let millis = millis.ok_or_else(|| format!("{text:?}: allowed are 0..={MAX_MILLIS}"))?;
    Ok(Duration::from_millis(millis))
}

fn parse_window(text: &str) -> Result<u32, String> {
    let millis = text.parse::<u32>().ok().filter(|m| *m <= 1_000);
    millis.ok_or_else(|| format!("{text:?}: allowed are 0..=1000"))
}

/// `sim` or `sim(key=value,...)`.
pub(crate) fn parse_device(text: &str) -> Result<DeviceModel, String> {
    let mut model = DeviceModel::default();
    let inner = match text.strip_prefix("sim") {
        Some("") => "",
        Some(rest) => rest
            .strip_prefix('(')
            .and_then(|r| r.strip_suffix(')'))
            .ok_or_else(|| format!("{text:?}: sim(lat=,perbyte=,par=,seek=) is needed"))?,
        None => {
            return Err(format!("{text:?}: sim or sim(lat=,perbyte=,par=,seek=) is needed"));
        }
    };
    for part in inner.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key.trim() {
            "lat" => model.latency = parse_span(value)? as Nanos,
            "seek" => model.seek = parse_span(value)? as Nanos,
            "perbyte" => model.per_byte = parse_span(value)?,
            "par" => {
                let lanes = value.parse().ok().filter(|p| (1..=64).contains(p));
                model.parallel = lanes.ok_or_else(|| format!("par={value:?}: allowed 1..=64"))?;
            }
            _ => return Err(format!("{part:?}: allowed are lat, perbyte, par, seek")),
        }
    }
    Ok(model)
}

/// A span in nanoseconds, written with ns, us, ms or s; at most ten seconds.
fn parse_span(text: &str) -> Result<f64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let span = units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    });
    let span = span.or_else(|| (text.trim() == "0").then_some(0.0));
    span.filter(|s| (0.0..=1e10).contains(s))
        .ok_or_else(|| format!("{text:?}: a span of 0..=10s is needed, with ns, us, ms or s"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn parse(args: &[&str]) -> Result<ServeArgs, String> {
        let all = ["x", "--export", "a,path=a.img,size=1m"].iter().chain(args);
        let cli = Cli::try_parse_from(all).map_err(|e| e.to_string())?;
        cli.serve.check()?;
        cli.serve.tunables()?;
        Ok(cli.serve)
    }

    #[test]
    fn c044_spans_past_the_range_are_errors_that_name_the_key() {
        let keys = ["handshake-timeout-ms", "write-timeout-ms", "grace-ms", "commit-window-ms"];
        for key in keys {
            let huge = ["9223372036855", "18446744073710", "18446744073709551615"];
            for bad in huge.into_iter().chain(["-1", "1e3", "", "86400001"]) {
                let error = parse(&[&format!("--{key}={bad}")]).unwrap_err();
                assert!(error.contains(key) && error.contains("0..="), "{key} {bad}: {error}");
            }
        }
        let zero = parse(&keys.map(|k| format!("--{k}=0")).each_ref().map(String::as_str)).unwrap();
        assert_eq!(zero.limits().handshake_timeout, Duration::MAX);
        assert_eq!(zero.limits().bounds.write_timeout, Duration::MAX);
        assert_eq!(zero.grace(), Duration::ZERO);
        assert_eq!(zero.tunables().unwrap().settings().min_window, 0);
        let top = parse(&["--handshake-timeout-ms=86400000", "--commit-window-ms=1000"]).unwrap();
        assert_eq!(top.limits().handshake_timeout, Duration::from_secs(86_400));
        assert_eq!(top.tunables().unwrap().settings().min_window, 1_000_000_000);
    }

    #[test]
    fn only_loopback_unless_asked() {
        assert!(parse(&["--tcp", "0.0.0.0:1"]).unwrap_err().contains("--allow-remote"));
        assert!(parse(&["--tcp", "0.0.0.0:1", "--allow-remote"]).is_ok());
        assert!(parse(&["--tcp", "127.0.0.1:1", "--tcp", "[::1]:1"]).is_ok());
        let Address::Tcp(default) = parse(&[]).unwrap().addresses()[0] else { panic!() };
        assert!(default.ip().is_loopback());
    }

    #[test]
    fn exports_and_devices_are_parsed_whole() {
        let spec = ExportSpec::parse("e,path=x/y,size=8m,log=1m,sync=always,ro").unwrap();
        assert!(spec.sync_always && spec.read_only);
        assert_eq!((spec.size, spec.log_size), (8 << 20, 1 << 20));
        for bad in ["e", "e,path=x", "e,size=1m", "e,path=x,size=100", "e,path=x,size=1m,syn=a"] {
            assert!(ExportSpec::parse(bad).is_err(), "{bad}");
        }
        assert!(ExportSpec::parse("e,path=x,size=1m,sync=never").unwrap_err().contains("always"));
        assert_eq!(parse_device("sim").unwrap(), DeviceModel::default());
        let model = parse_device("sim(lat=90us,perbyte=0.5ns,par=16,seek=8ms)").unwrap();
        assert_eq!((model.latency, model.parallel, model.seek), (90_000, 16, 8_000_000));
        for bad in ["sim(", "sim(lat=1)", "sim(par=0)", "sim(lat=-1us)", "sim(x=1us)", "disk"] {
            assert!(parse_device(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_size("16777216t"), Err(parse_size("16777216t").unwrap_err()));
    }
}
