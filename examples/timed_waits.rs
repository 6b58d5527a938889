//! What the slack of one timed wait is worth: ZFS's group commit, without the storage.
//!
//! Writers append to an open log block and wait for company: until a deadline of 5 % of the last write's
//! time, with a resolution of 1 us. Whoever's deadline comes first closes the block and writes it (here: spins
//! for 150 us), unless two writes are under way already; everybody in it is then done. ZFS on Linux used to
//! give that wait a constant slack of 100 us; giving it its own resolution instead was worth up to 60 % on
//! small synchronous writes. The dial between the two is `slack_floor_us`.
//!
//! ```text
//! cargo run --release --example timed_waits                  # tables, and target/timed_waits.svg
//! cargo run --release --example timed_waits -- --json        # one object a line
//! cargo run --release --example timed_waits -- --threads 1 --seconds 2
//! ```
//!
//! With one thread the whole slack is paid by every commit. With many, blocks fill up meanwhile and
//! the slack fades, as it did in ZFS. Here a write occupies a processor, which a disk does not: with more writers
//! than processors the longer wait even wins, because it makes larger blocks and thus fewer writes. Group
//! commit wants its wait as a dial for just that reason.

use clap::Parser;
use plotters::prelude::*;
use serde::Serialize;
use slackwheel::Driver;
use slackwheel::sync::{Condvar, Relock, blocking};
use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// The log's write.
const WRITE: Duration = Duration::from_micros(150);
/// Writes under way at once.
const PARALLEL: usize = 2;
/// The wait for company, in hundredths of the last write.
const WINDOW_PERCENT: u32 = 5;
/// How precise that wait needs to be: ZFS's value.
const RESOLUTION: Duration = Duration::from_micros(1);

#[derive(Parser)]
#[command(about = "Group commit with the slack of its timed wait as a dial")]
struct Options {
    /// One JSON object a line, and no drawing unless --svg says where.
    #[arg(long)]
    json: bool,
    /// Numbers of writing threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    threads: Vec<usize>,
    /// Seconds for each figure (a tenth of it at a time, the two slacks in turn).
    #[arg(long, default_value_t = 0.9)]
    seconds: f64,
    /// Where to draw.
    #[arg(long)]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Blocking,
    Async,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Figure {
    kind: Kind,
    threads: usize,
    slack_ns: u64,
    ops_per_s: f64,
    wait_p50_ns: u64,
    wait_p99_ns: u64,
    wakeups: u64,
    #[serde(skip)]
    commits_per_s: f64,
    #[serde(skip)]
    late_p50_ns: u64,
    #[serde(skip)]
    late_p99_ns: u64,
}

/// The log, behind the writers' mutex.
struct Log {
    /// The block that is open, and whether anything is in it.
    open: u64,
    /// Which of the closed blocks from `first` on are written.
    written: VecDeque<bool>,
    first: u64,
    writing: usize,
    last_write: Duration,
    commits: u64,
}

/// What a writer does next.
enum Step {
    Done,
    Write,
    WaitUntil(Instant),
    WaitForOthers,
}

impl Log {
    fn new() -> Log {
        Log {
            open: 0,
            written: VecDeque::new(),
            first: 0,
            writing: 0,
            last_write: WRITE,
            commits: 0,
        }
    }

    /// A writer enters the open block: its number, and until when to wait for company.
    fn append(&self) -> (u64, Instant) {
        (self.open, Instant::now() + self.last_write * WINDOW_PERCENT / 100)
    }

    fn step(&self, block: u64, deadline: Instant) -> Step {
        if block < self.open {
            let written = block < self.first || self.written[(block - self.first) as usize];
            return if written { Step::Done } else { Step::WaitForOthers };
        }
        if Instant::now() < deadline {
            Step::WaitUntil(deadline)
        } else if self.writing < PARALLEL {
            Step::Write
        } else {
            Step::WaitForOthers
        }
    }

    fn close(&mut self) -> u64 {
        self.writing += 1;
        self.written.push_back(false);
        self.open += 1;
        self.open - 1
    }

    fn finish(&mut self, block: u64, took: Duration) {
        self.writing -= 1;
        self.commits += 1;
        self.last_write = (self.last_write * 7 + took) / 8;
        self.written[(block - self.first) as usize] = true;
        while self.written.front() == Some(&true) {
            self.written.pop_front();
            self.first += 1;
        }
    }
}

fn write_block() -> Duration {
    let start = Instant::now();
    while start.elapsed() < WRITE {
        std::hint::spin_loop();
    }
    start.elapsed()
}

/// What one writer saw.
#[derive(Default)]
struct Seen {
    ops: u64,
    /// Length and lateness of each wait that ran out, in nanoseconds.
    waits: Vec<(u64, u64)>,
}

impl Seen {
    fn waited(&mut self, start: Instant, deadline: Instant) {
        let now = Instant::now();
        let late = now.checked_duration_since(deadline).expect("a wait ended early");
        self.waits.push(((now - start).as_nanos() as u64, late.as_nanos() as u64));
    }
}

/// The experiment's shared part: `n` writers for a while.
struct Run {
    stop: AtomicBool,
    start: Barrier,
}

fn blocking_writer(run: &Run, log: &Mutex<Log>, changed: &blocking::Condvar) -> Seen {
    let mut seen = Seen::default();
    run.start.wait();
    while !run.stop.load(Relaxed) {
        let mut guard = log.lock().unwrap();
        let (block, deadline) = guard.append();
        loop {
            match guard.step(block, deadline) {
                Step::Done => break,
                Step::WaitForOthers => guard = changed.wait(log, guard).unwrap(),
                Step::WaitUntil(deadline) => {
                    let start = Instant::now();
                    let outcome;
                    (guard, outcome) =
                        changed.wait_until(log, guard, deadline, RESOLUTION).unwrap();
                    if outcome.is_timed_out() {
                        seen.waited(start, deadline);
                    }
                }
                Step::Write => {
                    let block = guard.close();
                    drop(guard);
                    let took = write_block();
                    guard = log.lock().unwrap();
                    guard.finish(block, took);
                    drop(guard);
                    changed.notify_all();
                    break;
                }
            }
        }
        seen.ops += 1;
    }
    seen
}

/// async-lock's guard, so that this example needs no feature of the crate (`async-lock` has it).
struct Guard<'a, T>(async_lock::MutexGuard<'a, T>);

impl<'a, T> Relock for Guard<'a, T> {
    type Value = T;
    type Mutex = &'a async_lock::Mutex<T>;

    fn release(self) -> Self::Mutex {
        async_lock::MutexGuard::source(&self.0)
    }

    async fn relock(mutex: Self::Mutex) -> Self {
        Guard(mutex.lock().await)
    }

    fn value(&mut self) -> &mut T {
        &mut self.0
    }
}

async fn async_writer(run: &Run, log: &async_lock::Mutex<Log>, changed: &Condvar) -> Seen {
    let mut seen = Seen::default();
    run.start.wait();
    while !run.stop.load(Relaxed) {
        let mut guard = Guard(log.lock().await);
        let (block, deadline) = guard.0.append();
        loop {
            match guard.0.step(block, deadline) {
                Step::Done => break,
                Step::WaitForOthers => guard = changed.wait(guard).await,
                Step::WaitUntil(deadline) => {
                    let start = Instant::now();
                    let outcome;
                    (guard, outcome) = changed.wait_until(guard, deadline, RESOLUTION).await;
                    if outcome.is_timed_out() {
                        seen.waited(start, deadline);
                    }
                }
                Step::Write => {
                    let block = guard.0.close();
                    drop(guard);
                    let took = write_block();
                    guard = Guard(log.lock().await);
                    guard.0.finish(block, took);
                    drop(guard);
                    changed.notify_all();
                    break;
                }
            }
        }
        seen.ops += 1;
    }
    seen
}

/// Times the process's threads gave up their processor, each of which ends in a wakeup. A wait of a few
/// microseconds often ends before its thread has left the processor: that is none.
fn switches() -> u64 {
    // SAFETY: all zeroes is a valid value, and `usage` lives through the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_nvcsw as u64
    }
}

/// The sums of several runs.
#[derive(Default)]
struct Total {
    ops: u64,
    commits: u64,
    wakeups: u64,
    seconds: f64,
    waits: Vec<(u64, u64)>,
}

fn run(kind: Kind, threads: usize, floor_us: u64, length: Duration, total: &mut Total) {
    let run = Run { stop: AtomicBool::new(false), start: Barrier::new(threads + 1) };
    let (log, changed) = (Mutex::new(Log::new()), blocking::Condvar::new());
    let (async_log, async_changed) = (async_lock::Mutex::new(Log::new()), Condvar::new());
    for floor in [changed.slack_floor(), async_changed.slack_floor()] {
        floor.set(floor_us).expect("within 0..=1000");
    }
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..threads)
            .map(|_| {
                s.spawn(|| match kind {
                    Kind::Blocking => blocking_writer(&run, &log, &changed),
                    Kind::Async => {
                        let mut driver = Driver::new().expect("descriptors for a driver");
                        driver.block_on(async_writer(&run, &async_log, &async_changed))
                    }
                })
            })
            .collect();
        run.start.wait();
        let (start, before) = (Instant::now(), switches());
        std::thread::sleep(length);
        run.stop.store(true, Relaxed);
        total.seconds += start.elapsed().as_secs_f64();
        total.wakeups += switches() - before;
        for writer in writers {
            let seen = writer.join().expect("a writer ends well");
            total.ops += seen.ops;
            total.waits.extend(seen.waits);
        }
    });
    total.commits += log.into_inner().unwrap().commits + async_log.into_inner().commits;
}

fn figure(kind: Kind, threads: usize, floor_us: u64, mut total: Total) -> Figure {
    let at = |values: &[u64], q: f64| match values.len() {
        0 => 0,
        n => values[((n - 1) as f64 * q) as usize],
    };
    total.waits.sort_unstable();
    let waits: Vec<u64> = total.waits.iter().map(|w| w.0).collect();
    let mut late: Vec<u64> = total.waits.iter().map(|w| w.1).collect();
    late.sort_unstable();
    Figure {
        kind,
        threads,
        slack_ns: (floor_us * 1000).max(RESOLUTION.as_nanos() as u64),
        ops_per_s: total.ops as f64 / total.seconds,
        wait_p50_ns: at(&waits, 0.5),
        wait_p99_ns: at(&waits, 0.99),
        wakeups: (total.wakeups as f64 / total.seconds) as u64,
        commits_per_s: total.commits as f64 / total.seconds,
        late_p50_ns: at(&late, 0.5),
        late_p99_ns: at(&late, 0.99),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    const TURNS: u32 = 10;
    let length = Duration::try_from_secs_f64(options.seconds)? / TURNS;
    let mut figures = Vec::new();
    if !options.json {
        println!(
            "kind      threads  slack us     ops/s  commits/s  wait us p50/p99  late us p50/p99  wakeups/s"
        );
    }
    for kind in [Kind::Blocking, Kind::Async] {
        for &threads in &options.threads {
            // The old constant, and the wait's own resolution; in turn, so that the machine's
            // moods reach both.
            let floors = [100, 0];
            let mut totals = [Total::default(), Total::default()];
            for _ in 0..TURNS {
                for (floor, total) in floors.iter().zip(&mut totals) {
                    run(kind, threads, *floor, length, total);
                }
            }
            for (floor, total) in floors.into_iter().zip(totals) {
                let f = figure(kind, threads, floor, total);
                if options.json {
                    println!("{}", serde_json::to_string(&f)?);
                } else {
                    print_row(&f);
                }
                figures.push(f);
            }
            if let ([.., wide, narrow], false) = (&figures[..], options.json) {
                let gain = (narrow.ops_per_s / wide.ops_per_s - 1.0) * 100.0;
                let wait = wide.wait_p50_ns as f64 - narrow.wait_p50_ns as f64;
                println!(
                    "{:>62}",
                    format!("{gain:+.0} % ops, wait {:.0} us shorter", wait / 1000.0)
                );
            }
        }
    }
    let default = (!options.json).then(|| PathBuf::from("target/timed_waits.svg"));
    if let Some(path) = options.svg.or(default) {
        draw(&path, &figures)?;
        if !options.json {
            println!("drawn: {}", path.display());
        }
    }
    Ok(())
}

fn print_row(f: &Figure) {
    let us = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{:<9} {:>7} {:>9} {:>9.0} {:>10.0} {:>8.0} /{:>6.0} {:>8.1} /{:>6.0} {:>10}",
        format!("{:?}", f.kind).to_lowercase(),
        f.threads,
        us(f.slack_ns),
        f.ops_per_s,
        f.commits_per_s,
        us(f.wait_p50_ns),
        us(f.wait_p99_ns),
        us(f.late_p50_ns),
        us(f.late_p99_ns),
        f.wakeups,
    );
}

/// Throughput above, the waits' lateness below; one line for each kind and slack.
fn draw(path: &Path, figures: &[Figure]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (900, 800)).into_drawing_area();
    root.fill(&WHITE)?;
    let halves = root.split_evenly((2, 1));
    type Value = fn(&Figure) -> f64;
    let panels: [(&str, Value); 2] = [
        ("commits acknowledged per second", |f| f.ops_per_s),
        ("lateness of the wait, us (p50)", |f| f.late_p50_ns as f64 / 1000.0),
    ];
    let most = figures.iter().map(|f| f.threads).max().unwrap_or(1) as f64;
    for ((caption, value), area) in panels.into_iter().zip(&halves) {
        let top = figures.iter().map(value).fold(1.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(32)
            .y_label_area_size(70)
            .build_cartesian_2d((1.0..most.max(1.5)).log_scale(), 0.0..top)?;
        chart.configure_mesh().disable_mesh().x_desc("threads").y_desc(caption).draw()?;
        let lines = [
            ("blocking, slack 100 us", Kind::Blocking, true),
            ("blocking, slack = resolution", Kind::Blocking, false),
            ("async, slack 100 us", Kind::Async, true),
            ("async, slack = resolution", Kind::Async, false),
        ];
        for (color, (name, kind, wide)) in lines.into_iter().enumerate() {
            let style = Palette99::pick(color).stroke_width(2);
            let points: Vec<(f64, f64)> = figures
                .iter()
                .filter(|f| f.kind == kind && (f.slack_ns > 1_000) == wide)
                .map(|f| (f.threads as f64, value(f)))
                .collect();
            chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, style)))?;
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .draw()?;
    }
    root.present()?;
    Ok(())
}
