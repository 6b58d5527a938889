//! A 500 us sleep, ours against a bare timerfd loop, 5,000 alternated pairs: the median of the paired
//! differences in lateness, and CPU time per sleep. Run it with `cargo bench --bench precision`.
//!
//! The machine may be noisy: both sides of a pair share its weather, and the median of differences is
//! what counts. `--pairs N` changes the number.

mod bare;

use bare::{HandOff, Loop, now};
use slackwheel::Driver;
use std::time::Duration;

const SLEEP: Duration = Duration::from_micros(500);

fn cpu() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// Lateness and CPU time of one sleep, in nanoseconds.
#[derive(Clone, Copy)]
struct Sample {
    late: i64,
    cpu: i64,
}

fn measure(sleep: &mut dyn FnMut(u64)) -> Sample {
    let cpu_before = cpu();
    let deadline = now() + SLEEP.as_nanos() as u64;
    sleep(deadline);
    let late = now() as i64 - deadline as i64;
    assert!(late >= 0, "early by {} ns", -late);
    Sample { late, cpu: (cpu() - cpu_before) as i64 }
}

fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

fn compare(name: &str, pairs: usize, ours: &mut dyn FnMut(u64), theirs: &mut dyn FnMut(u64)) {
    let mut rows = Vec::with_capacity(pairs);
    for i in 0..pairs + 100 {
        // The first of a pair finds other caches than the second: take turns.
        let (a, b) = if i % 2 == 0 {
            let a = measure(ours);
            (a, measure(theirs))
        } else {
            let b = measure(theirs);
            (measure(ours), b)
        };
        if i >= 100 {
            rows.push((a, b));
        }
    }
    let of = |f: fn(&(Sample, Sample)) -> i64| median(&mut rows.iter().map(f).collect::<Vec<_>>());
    let difference = of(|(a, b)| a.late - b.late);
    let (ours, theirs) = (of(|(a, _)| a.late), of(|(_, b)| b.late));
    let (our_cpu, their_cpu) = (of(|(a, _)| a.cpu), of(|(_, b)| b.cpu));
    println!(
        "{name}: {pairs} pairs, median paired difference {:.2} us (lateness p50 {:.1} / {:.1} us), \
         CPU per sleep {:.1} / {:.1} us = {:.2}x",
        difference as f64 / 1e3,
        ours as f64 / 1e3,
        theirs as f64 / 1e3,
        our_cpu as f64 / 1e3,
        their_cpu as f64 / 1e3,
        our_cpu as f64 / their_cpu as f64,
    );
}

fn main() {
    let mut pairs = 5_000;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // Passed by cargo.
            "--bench" => {}
            "--pairs" => {
                let n = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                pairs = n.unwrap_or_else(|| {
                    eprintln!("--pairs wants a number of at least 1");
                    std::process::exit(2);
                });
            }
            other => {
                eprintln!("unknown argument {other:?}; known are --pairs N and --bench");
                std::process::exit(2);
            }
        }
    }

    let mut driver = Driver::new().expect("descriptors for a driver");
    let bare = Loop::new();
    compare(
        "Driver::block_on against the bare loop",
        pairs,
        &mut |_| driver.block_on(async { slackwheel::sleep(SLEEP).await }),
        &mut |at| {
            bare.arm(at);
            bare.wait();
        },
    );
    drop(driver);

    let hand_off = HandOff::new();
    compare(
        "default driver against loop + thread hand-off",
        pairs,
        &mut |_| futures::executor::block_on(slackwheel::sleep(SLEEP)),
        &mut |at| hand_off.sleep(at),
    );
}
