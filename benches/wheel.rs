//! The wheel alone, without clock, lock or waker: Criterion benches, and a growth curve.
//!
//! `cargo bench --bench wheel` runs the benches, then measures the cost of each operation at 1 k to 10 M
//! pending entries and draws it into `target/growth.svg` (`--growth` alone does only that).

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use plotters::prelude::*;
use slackwheel::wheel::{Key, Wheel};
use std::hint::black_box;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn new() -> Self {
        Random(88_172_645_463_325_252)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Nanoseconds, 1 to 60 s.
    fn ahead(&mut self) -> u64 {
        1_000_000_000 + self.next() % 59_000_000_000
    }
}

/// A wheel with so many entries 1 to 60 s ahead.
fn filled(pending: usize) -> (Wheel<u64>, Vec<Key>, Random) {
    let mut random = Random::new();
    let mut wheel = Wheel::new();
    let keys = (0..pending)
        .map(|_| {
            let at = random.ahead();
            wheel.insert(at, at + 1_000_000, at)
        })
        .collect();
    (wheel, keys, random)
}

fn insert_and_cancel(wheel: &mut Wheel<u64>, random: &mut Random) {
    let at = random.ahead();
    let key = wheel.insert(at, at + 1_000_000, at);
    black_box(wheel.cancel(key));
}

fn put_off(wheel: &mut Wheel<u64>, key: Key) {
    let (earliest, latest) = wheel.window(key).expect("it is pending");
    wheel.reset(key, earliest + 1_000, latest + 1_000);
}

/// Drives the wheel to its end at the fewest wakeups.
fn drive(wheel: &mut Wheel<u64>) -> usize {
    let mut fired = 0;
    while let Some(at) = wheel.next_wake() {
        let fire = |f| {
            black_box(f);
        };
        fired += wheel.advance(at, usize::MAX, fire).fired;
    }
    fired
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel");
    for pending in [0, 10_000, 1_000_000] {
        let (mut wheel, keys, mut random) = filled(pending);
        group.bench_function(BenchmarkId::new("insert + cancel", pending), |b| {
            b.iter(|| insert_and_cancel(&mut wheel, &mut random));
        });
        if pending > 0 {
            let mut at = 0;
            group.bench_function(BenchmarkId::new("reset to later", pending), |b| {
                b.iter(|| {
                    put_off(&mut wheel, keys[at % keys.len()]);
                    at += 1;
                });
            });
        }
        group.bench_function(BenchmarkId::new("next wake", pending), |b| {
            b.iter(|| {
                insert_and_cancel(&mut wheel, &mut random);
                black_box(wheel.next_wake())
            });
        });
    }
    group.bench_function("idle advance", |b| {
        let (mut wheel, _, _) = filled(10_000);
        b.iter(|| black_box(wheel.advance(1, 256, |_| {})));
    });
    for pending in [1_000, 100_000] {
        group.throughput(Throughput::Elements(pending as u64));
        group.bench_function(BenchmarkId::new("drive to the end", pending), |b| {
            b.iter_batched_ref(
                || filled(pending).0,
                |wheel| assert_eq!(drive(wheel), pending),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// Nanoseconds of one of `n` operations; the best of three, since only the wheel is to be seen.
fn each(n: usize, mut op: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        for _ in 0..n {
            op();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / n as f64);
    }
    best
}

/// `(pending, [insert + cancel, reset to a random entry, next wake, drive])`, in nanoseconds.
fn growth() -> Vec<(usize, [f64; 4])> {
    const OPS: usize = 200_000;
    [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
        .into_iter()
        .map(|pending| {
            let (mut wheel, keys, mut random) = filled(pending);
            let churn = each(OPS, || insert_and_cancel(&mut wheel, &mut random));
            let reset = each(OPS, || {
                let key = keys[random.next() as usize % keys.len()];
                put_off(&mut wheel, key);
            });
            let next = each(OPS, || {
                black_box(wheel.next_wake());
            });
            let start = Instant::now();
            let fired = drive(&mut wheel);
            assert_eq!(fired, pending);
            let drive = start.elapsed().as_nanos() as f64 / fired as f64;
            println!(
                "growth: {pending:>9} pending: insert + cancel {churn:.1} ns, reset {reset:.1} ns, \
                 next wake {next:.1} ns, drive {drive:.1} ns"
            );
            (pending, [churn, reset, next, drive])
        })
        .collect()
}

fn draw(points: &[(usize, [f64; 4])]) -> Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/target/growth.svg");
    let names = ["insert + cancel", "reset a random entry", "next wake", "drive, each"];
    let top = points.iter().flat_map(|p| p.1).fold(0.0, f64::max) * 1.1;
    let root = SVGBackend::new(path, (800, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("cost of one operation of the wheel, by entries pending", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d((1_000f64..10_000_000f64).log_scale(), 0f64..top)?;
    chart.configure_mesh().x_desc("pending").y_desc("ns").draw()?;
    for (series, name) in names.into_iter().enumerate() {
        let color = Palette99::pick(series).stroke_width(2);
        let line = points.iter().map(|(n, v)| (*n as f64, v[series]));
        chart
            .draw_series(LineSeries::new(line, color))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    root.present()?;
    println!("growth: drawn into target/growth.svg");
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|a| a == name);
    if !has("--growth") {
        let mut criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1))
            .configure_from_args();
        benches(&mut criterion);
        criterion.final_summary();
    }
    // `cargo test --benches` and `--list` want to be quick; a name filters the benches only.
    if has("--growth") || (has("--bench") && !has("--test") && !has("--list")) {
        draw(&growth()).expect("the target directory can be written to");
    }
}
