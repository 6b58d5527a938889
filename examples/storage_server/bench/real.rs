//! The server's own storage, threads and waits on a real file, or on a device model in real time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slackwheel::Handle;

use crate::commit::settings::Tunables;
use crate::config::ExportSpec;
use crate::errno::Errno;
use crate::export::{Export, log_path};
use crate::storage::disk::{Disk, FileDisk};

use super::plan::{NamedDevice, Row, SlackArgs, Variant, Workload};

/// Size of the export that is written to.
const SIZE: u64 = 256 << 20;

/// A run of writers, and what they saw.
struct Run {
    acknowledged: u64,
    seconds: f64,
    commits: u64,
    records: u64,
    wait_p50_ns: u64,
    /// Commit waits that ended by their timer.
    windows: u64,
    /// Wakeups that the background timers forced.
    wakeups: u64,
}

/// One row on the real clock.
pub(crate) fn run(
    args: &SlackArgs,
    device: &NamedDevice,
    workload: Workload,
    writers: usize,
    variant: Variant,
) -> Result<Row, String> {
    let span = Duration::from_secs_f64(args.span());
    let alone = measure(args, device, workload, writers, variant, span, false)?;
    let crowd = measure(args, device, workload, writers, variant, span / 4, true)?;
    let per_commit = |count: u64| count as f64 / crowd.commits.max(1) as f64;
    Ok(Row {
        workload: workload.name(),
        writers,
        variant,
        device: device.name.clone(),
        ops_per_s: alone.acknowledged as f64 / alone.seconds,
        commits: alone.commits,
        batch_mean: alone.records as f64 / alone.commits.max(1) as f64,
        wait_p50_ns: alone.wait_p50_ns,
        expiries_per_commit: per_commit(crowd.windows + crowd.wakeups),
        // What the kernel merged with another timer cannot be seen from here: an upper bound.
        own_expiries_per_commit: per_commit(crowd.windows),
    })
}

fn measure(
    args: &SlackArgs,
    device: &NamedDevice,
    workload: Workload,
    writers: usize,
    variant: Variant,
    span: Duration,
    with_background: bool,
) -> Result<Run, String> {
    let path = args.directory.join("bench-slack.img");
    let export = Arc::new(open(args, device, variant, &path)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("runtime: {e}"))?;
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (background, period) = args.background();
    let wakeups = || Handle::current().metrics().map_or(0, |m| m.timer_wakeups);
    let wakeups_before = wakeups();
    let started = Instant::now();
    let outcome = runtime.block_on(async {
        for i in 0..if with_background { background as u64 } else { 0 } {
            let stop = stop.clone();
            tokio::spawn(async move {
                // Spread over the period, as timers that nobody planned are.
                slackwheel::sleep(Duration::from_nanos(period / background as u64 * i)).await;
                while !stop.load(Ordering::Relaxed) {
                    slackwheel::sleep(Duration::from_nanos(period)).await;
                }
            });
        }
        let tasks: Vec<_> = (0..writers)
            .map(|i| {
                let (export, stop) = (export.clone(), stop.clone());
                let acknowledged = acknowledged.clone();
                let writer = write_until(export, workload, i as u64, stop, acknowledged);
                tokio::spawn(writer)
            })
            .collect();
        slackwheel::sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        }
        Ok::<_, String>(())
    });
    let seconds = started.elapsed().as_secs_f64();
    let stats = export.volume.stats().clone();
    let run = Run {
        acknowledged: acknowledged.load(Ordering::Relaxed),
        seconds,
        commits: stats.commits(),
        records: stats.records(),
        wait_p50_ns: stats.wait_p50(),
        windows: stats.windows(),
        wakeups: wakeups() - wakeups_before,
    };
    drop(runtime);
    if let Some(export) = Arc::into_inner(export) {
        export.close(Duration::from_secs(10));
    }
    outcome.map(|()| run)
}

/// One writer: a write, a wait for its durability, and again.
async fn write_until(
    export: Arc<Export>,
    workload: Workload,
    number: u64,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Result<(), Errno> {
    let bytes = workload.bytes() as u64;
    let places = SIZE / bytes;
    // Far apart, so that sequential writers do not write over each other soon.
    let mut place = number.wrapping_mul(0x9e37_79b9) % places;
    let mut rng = number + 1;
    while !stop.load(Ordering::Relaxed) {
        place = match workload {
            Workload::Rand8k => {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (rng >> 33) % places
            }
            Workload::Seq8k | Workload::Seq128k => (place + 1) % places,
        };
        let seq = export.volume.write(place * bytes, vec![number as u8; bytes as usize]).await?;
        export.volume.durable(seq).await?;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn open(
    args: &SlackArgs,
    device: &NamedDevice,
    variant: Variant,
    path: &Path,
) -> Result<Export, String> {
    let spec = ExportSpec {
        name: "bench".into(),
        path: path.to_path_buf(),
        size: SIZE,
        log_size: 64 << 20,
        sync_always: true,
        read_only: false,
    };
    if !log_path(path).exists() {
        // Written once, so that no run pays for the allocation of blocks.
        let disk = FileDisk::open(path, SIZE).map_err(|e| format!("data: {e}"))?;
        disk.preallocate(SIZE).map_err(|e| format!("data: {e}"))?;
    }
    let tunables = Tunables::default();
    let settings = args.settings(variant);
    for (name, value) in [
        ("commit.policy", settings.policy.name().to_string()),
        ("commit.slack_us", variant.slack_us.to_string()),
        ("commit.pct", settings.pct.to_string()),
        ("commit.max_block", settings.max_block.to_string()),
    ] {
        tunables.set(name, &value)?;
    }
    Export::open(&spec, device.model, args.depth(device), 1 << 20, Arc::new(tunables))
}

/// The time a plain write and `fdatasync` of 8 KiB take on the bench's file: the median of 200.
pub(crate) fn sync_p50(args: &SlackArgs) -> Result<Duration, String> {
    let path = args.directory.join("bench-sync.img");
    let size = 8 << 20;
    let probe = || {
        let disk = FileDisk::open(&path, size)?;
        disk.preallocate(size)?;
        let mut times = Vec::new();
        for i in 0..200u64 {
            let start = Instant::now();
            disk.write_at(&[i as u8; 8_192], i * 37 % (size / 8_192) * 8_192)?;
            disk.sync()?;
            times.push(start.elapsed());
        }
        std::fs::remove_file(&path)?;
        times.sort_unstable();
        Ok::<_, std::io::Error>(times[times.len() / 2])
    };
    probe().map_err(|e| format!("{}: {e}", path.display()))
}

/// Removes what the runs left.
pub(crate) fn clean_up(args: &SlackArgs) {
    let path = args.directory.join("bench-slack.img");
    for file in [log_path(&path), path] {
        // It is not there if nothing was run.
        let _ = std::fs::remove_file(file);
    }
}
