//! The blocking condvar against std's and parking_lot's, in turn within each round.
//!
//! `cargo bench --bench condvar [--features lock_api] [-- --quick]` prints medians over the rounds,
//! ratios of paired rounds, and the limits that issue and design set. Wall-clock figures: run it on a
//! machine that is otherwise idle.

use slackwheel::sync::blocking::Condvar as Ours;
use std::hint::black_box;
use std::sync::atomic::AtomicU32;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const US100: Duration = Duration::from_micros(100);

fn main() {
    let quick = std::env::args().any(|a| a == "--quick");
    let scale = if quick { 1 } else { 5 };
    precise_waits(200 * scale);
    pairs_with_a_bare_wait(1_000 * scale);
    ping_pong(6 * scale);
    notify_without_a_waiter(5 * scale);
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn verdict(name: &str, value: f64, limit: f64, unit: &str) {
    let word = if value <= limit { "met" } else { "MISSED" };
    println!("  => {name}: {value:.2} {unit}, limit {limit:.2} {unit}: {word}");
}

fn pin(cpu: usize) {
    // SAFETY: all zeroes is a valid, empty set, and `set` lives through the calls.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn monotonic() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn prctl(option: i32, value: u64) -> u64 {
    // SAFETY: neither option used here takes a pointer.
    unsafe { libc::syscall(libc::SYS_prctl, option, value, 0, 0, 0) as u64 }
}

/// How late a wait of 100 us ends, at the thread's default slack.
fn precise_waits(rounds: usize) {
    println!("timed wait of 100 us, lateness in us (p50), {rounds} rounds in turn:");
    let (std_mutex, std_condvar) = (Mutex::new(()), Condvar::new());
    let (pl_mutex, pl_condvar) = (parking_lot::Mutex::new(()), parking_lot::Condvar::new());
    let (our_mutex, our_condvar) = (Mutex::new(()), Ours::new());
    let late = |start: Instant| {
        let took = start.elapsed();
        assert!(took >= US100, "a wait of 100 us took {took:?}");
        (took - US100).as_nanos() as f64 / 1000.0
    };
    let mut late_by: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        let start = Instant::now();
        drop(std_condvar.wait_timeout(std_mutex.lock().unwrap(), US100));
        late_by[0].push(late(start));
        let start = Instant::now();
        pl_condvar.wait_for(&mut pl_mutex.lock(), US100);
        late_by[1].push(late(start));
        let start = Instant::now();
        drop(our_condvar.wait_for(&our_mutex, our_mutex.lock().unwrap(), US100, Duration::ZERO));
        late_by[2].push(late(start));
    }
    let [std, parking_lot, ours] = late_by.map(|mut v| median(&mut v));
    println!("  std {std:.1}  parking_lot {parking_lot:.1}  slackwheel {ours:.1}");
    verdict("slackwheel / std", ours / std, 0.4, "x");
}

/// Our wait and a bare futex wait with the same slack, alternated: the median difference.
fn pairs_with_a_bare_wait(pairs: usize) {
    let (mutex, condvar) = (Mutex::new(()), Ours::new());
    let mut differences = Vec::new();
    for _ in 0..pairs {
        let start = monotonic();
        drop(condvar.wait_for(&mutex, mutex.lock().unwrap(), US100, Duration::from_micros(1)));
        let ours = monotonic() - start;
        let old = prctl(libc::PR_GET_TIMERSLACK, 0);
        prctl(libc::PR_SET_TIMERSLACK, 1_000);
        let start = monotonic();
        bare_wait(start + 100_000);
        let bare = monotonic() - start;
        prctl(libc::PR_SET_TIMERSLACK, old);
        differences.push((ours as f64 - bare as f64) / 1000.0);
    }
    println!("{pairs} pairs of a blocking wait of 100 us and a bare futex wait, slack 1 us:");
    verdict("median difference", median(&mut differences), 3.0, "us");
}

fn bare_wait(deadline: u64) {
    let word = AtomicU32::new(0);
    let ts = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as i64,
        tv_nsec: (deadline % 1_000_000_000) as i64,
    };
    // SAFETY: `word` and `ts` live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
            0,
            &ts,
            std::ptr::null::<u32>(),
            !0u32,
        );
    }
}

/// A round trip between two threads on one processor, in nanoseconds. `under_lock`: whether the
/// mutex is still held when the other side is notified.
fn round_trip<G>(
    under_lock: bool,
    lock: impl Fn() -> G + Sync,
    wait: impl Fn(G) -> G + Sync,
    notify: impl Fn() + Sync,
) -> f64
where
    G: std::ops::DerefMut<Target = bool>,
{
    const TRIPS: u32 = 2_000;
    let play = |side: bool| {
        pin(0);
        for _ in 0..TRIPS {
            let mut turn = lock();
            while *turn != side {
                turn = wait(turn);
            }
            *turn = !side;
            if under_lock {
                notify();
                drop(turn);
            } else {
                drop(turn);
                notify();
            }
        }
    };
    let start = Instant::now();
    std::thread::scope(|s| {
        s.spawn(|| play(true));
        s.spawn(|| play(false));
    });
    start.elapsed().as_nanos() as f64 / f64::from(TRIPS)
}

fn ping_pong(rounds: usize) {
    let mutex = Mutex::new(false);
    let pl_mutex = parking_lot::Mutex::new(false);
    let (std, pl, ours) = (Condvar::new(), parking_lot::Condvar::new(), Ours::new());
    let lock = || mutex.lock().unwrap();
    let zero = Duration::ZERO;
    for under_lock in [false, true] {
        let mut ns: [Vec<f64>; 7] = Default::default();
        // A warm-up round, then all of them in turn.
        for round in 0..=rounds {
            let six_prctls = {
                let start = Instant::now();
                for _ in 0..1_000 {
                    for _ in 0..2 {
                        let old = prctl(libc::PR_GET_TIMERSLACK, 0);
                        prctl(libc::PR_SET_TIMERSLACK, black_box(1));
                        prctl(libc::PR_SET_TIMERSLACK, old);
                    }
                }
                start.elapsed().as_nanos() as f64 / 1_000.0
            };
            let measured = [
                round_trip(under_lock, lock, |g| std.wait(g).unwrap(), || std.notify_one()),
                round_trip(
                    under_lock,
                    || pl_mutex.lock(),
                    |mut g| {
                        pl.wait(&mut g);
                        g
                    },
                    || _ = pl.notify_one(),
                ),
                round_trip(
                    under_lock,
                    lock,
                    |g| ours.wait(&mutex, g).unwrap(),
                    || {
                        ours.notify_one();
                    },
                ),
                round_trip(
                    under_lock,
                    lock,
                    |g| std.wait_timeout(g, LONG).unwrap().0,
                    || std.notify_one(),
                ),
                round_trip(
                    under_lock,
                    || pl_mutex.lock(),
                    |mut g| {
                        pl.wait_for(&mut g, LONG);
                        g
                    },
                    || _ = pl.notify_one(),
                ),
                round_trip(
                    under_lock,
                    lock,
                    |g| ours.wait_for(&mutex, g, LONG, zero).unwrap().0,
                    || _ = ours.notify_one(),
                ),
                six_prctls,
            ];
            if round > 0 {
                ns.iter_mut().zip(measured).for_each(|(v, m)| v.push(m));
            }
        }
        let mut ratio: Vec<f64> = ns[2].iter().zip(&ns[1]).map(|(ours, pl)| ours / pl).collect();
        let mut over: Vec<f64> =
            ns[5].iter().zip(&ns[4]).zip(&ns[6]).map(|((o, p), six)| o - p - 1.1 * six).collect();
        let [std, pl, ours, std_timed, pl_timed, ours_timed, six] = ns.map(|mut v| median(&mut v));
        let when = if under_lock { "under the lock" } else { "after the lock" };
        println!(
            "ping-pong on one processor, notified {when}, ns a round trip (median of {rounds}):"
        );
        println!("  untimed: std {std:.0}  parking_lot {pl:.0}  slackwheel {ours:.0}");
        println!(
            "  timed:   std {std_timed:.0}  parking_lot {pl_timed:.0}  slackwheel {ours_timed:.0}"
        );
        println!("  six prctl calls: {six:.0}");
        if under_lock {
            // parking_lot moves the waiter to its mutex's queue instead of waking it into a held
            // mutex. Nobody outside can do that to a std mutex: release it first, then notify.
            println!(
                "  (parking_lot hands the waiter to its mutex; a std mutex offers no such way)"
            );
            println!("  slackwheel / std: {:.2}", ours / std);
        } else {
            verdict("untimed, slackwheel / parking_lot", median(&mut ratio), 1.05, "x");
            verdict(
                "timed, slackwheel - parking_lot - 1.1 x six prctl",
                median(&mut over),
                0.0,
                "ns",
            );
        }
    }
}

fn notify_without_a_waiter(rounds: usize) {
    const CALLS: u32 = 1_000_000;
    let (std, pl, ours) = (Condvar::new(), parking_lot::Condvar::new(), Ours::new());
    let time = |notify: &dyn Fn()| {
        let start = Instant::now();
        notify();
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut ns: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        ns[0].push(time(&|| (0..CALLS).for_each(|_| black_box(&std).notify_one())));
        ns[1].push(time(&|| {
            (0..CALLS).for_each(|_| {
                black_box(&pl).notify_one();
            })
        }));
        ns[2].push(time(&|| {
            (0..CALLS).for_each(|_| {
                black_box(&ours).notify_one();
            })
        }));
    }
    let [std, pl, ours] = ns.map(|mut v| median(&mut v));
    println!("notify_one with nobody waiting, ns:");
    println!("  std {std:.2}  parking_lot {pl:.2}  slackwheel {ours:.2}");
    verdict("slackwheel", ours, 2.0, "ns");
}
