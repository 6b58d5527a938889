//! The firing policies: where within the windows a driver wakes.
#![cfg(not(loom))]

use slackwheel::*;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn poll<F: Future + Unpin>(f: &mut F) -> Poll<F::Output> {
    Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
}

/// Where a driver of this policy wakes for `[10, 50] [20, 40] [30, 60]`, and how many it fires there.
fn first_wake(firing: Firing) -> (Duration, usize) {
    let (mut driver, clock) = Driver::builder().firing(firing).manual();
    let start = clock.now();
    let h = driver.handle();
    let mut sleeps = [(10, 50), (20, 40), (30, 60)].map(|(a, b)| h.sleep_range(a * MS, b * MS));
    assert!(sleeps.iter_mut().all(|s| poll(s).is_pending()));
    assert!(driver.next_wake().is_some());
    clock.set_auto_advance(true);
    let fired = driver.park(None).fired;
    assert!(sleeps.iter_mut().all(|s| poll(s).is_ready()));
    (clock.now() - start, fired)
}

#[test]
fn each_policy_picks_its_instant_and_all_fire_the_same() {
    assert_eq!(first_wake(Firing::Latest), (40 * MS, 3));
    assert_eq!(first_wake(Firing::EarliestCommon), (30 * MS, 3));
    let (at, fired) = first_wake(Firing::Aligned);
    assert_eq!(fired, 3);
    assert!((30 * MS..=40 * MS).contains(&at), "{at:?}");
}

#[test]
fn no_policy_leaves_a_window() {
    for firing in [Firing::Latest, Firing::EarliestCommon, Firing::Aligned] {
        let (mut driver, clock) = Driver::builder().firing(firing).manual();
        clock.set_auto_advance(true);
        let h = driver.handle();
        let mut pending: Vec<Sleep> = (0..2000u32)
            .map(|i| {
                let min = MS / 100 * (i * 7919 % 100_000);
                h.sleep_range(min, min + MS / 10 * (i * 31 % 500))
            })
            .collect();
        pending.retain_mut(|s| poll(s).is_pending());
        while !pending.is_empty() {
            driver.park(None);
            let now = clock.now();
            pending.retain_mut(|s| {
                assert!(now <= s.latest(), "{firing:?}: late");
                match poll(s) {
                    Poll::Ready(()) => {
                        assert!(now >= s.deadline(), "{firing:?}: early");
                        false
                    }
                    Poll::Pending => true,
                }
            });
        }
        assert_eq!(h.metrics().unwrap().lateness.overruns(), 0);
    }
}

#[test]
fn earliest_common_is_the_least_late_and_latest_the_least_often_awake() {
    let run = |firing| {
        let (mut driver, clock) = Driver::builder().firing(firing).manual();
        clock.set_auto_advance(true);
        let h = driver.handle();
        let mut sleeps: Vec<Sleep> = (0..500u32)
            .map(|i| {
                let min = MS / 10 * (1 + i * 7919 % 10_000);
                h.sleep_range(min, min + 20 * MS)
            })
            .collect();
        sleeps.retain_mut(|s| poll(s).is_pending());
        while h.metrics().unwrap().pending > 0 {
            driver.park(None);
        }
        let m = h.metrics().unwrap();
        (m.wakeups, m.lateness.mean())
    };
    let (latest, common) = (run(Firing::Latest), run(Firing::EarliestCommon));
    assert!(common.1 < latest.1, "{common:?} {latest:?}");
    // All were there from the start: the same groups either way.
    assert_eq!(common.0, latest.0);
}

#[test]
fn a_timer_may_have_a_policy_of_its_own() {
    let (mut driver, clock) = Driver::manual();
    let h = driver.handle();
    let start = clock.now();
    let mut other = h.sleep_range(20 * MS, 90 * MS);
    assert!(poll(&mut other).is_pending());
    let mut common = h.sleep_range(10 * MS, 80 * MS).firing(Firing::EarliestCommon);
    assert_eq!(common.latest(), start + 20 * MS, "it joins the other as early as can be");
    assert!(poll(&mut common).is_pending());
    let alone = h.sleep_range(10 * MS, 15 * MS).firing(Firing::EarliestCommon);
    assert_eq!(alone.latest(), start + 10 * MS);
    let aligned = h.sleep_range(10 * MS, 500 * MS).firing(Firing::Aligned);
    assert!(aligned.latest() >= start + 10 * MS && aligned.latest() <= start + 500 * MS);
    let again = h.sleep_range(11 * MS, 499 * MS).firing(Firing::Aligned);
    assert_eq!(aligned.latest(), again.latest(), "the grid is the same for all");
    let same = h.sleep_range(10 * MS, 80 * MS).firing(Firing::Latest);
    assert_eq!(same.latest(), start + 80 * MS);
    clock.set_auto_advance(true);
    assert_eq!(driver.park(None).fired, 2);
    assert_eq!(clock.now(), start + 20 * MS);
}

/// Two processes, each with windows of its own making, told apart only by a seed: with `Aligned` most of
/// their wakeups fall together, with `Latest` few do.
#[cfg(target_os = "linux")]
#[test]
fn aligned_processes_wake_together() {
    use std::process::{Command, Stdio};
    const ROLE: &str = "SLACKWHEEL_TEST_ALIGNED";
    const NAME: &str = "aligned_processes_wake_together";
    const RUN: Duration = Duration::from_secs(5);
    if let Ok(role) = std::env::var(ROLE) {
        let (firing, seed) = role.split_once(' ').unwrap();
        let firing = if firing == "aligned" { Firing::Aligned } else { Firing::Latest };
        let mut random: u64 = seed.parse().unwrap();
        let mut driver = Driver::builder().firing(firing).build().unwrap();
        let h = driver.handle();
        let end = Instant::now() + RUN;
        let mut sleeps: Vec<Sleep> = Vec::new();
        while Instant::now() < end {
            sleeps.retain_mut(|s| poll(s).is_pending());
            while sleeps.len() < 3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let min = Duration::from_micros(20_000 + (random >> 40) % 180_000);
                let mut s = h.sleep_range(min, min + 600 * MS);
                assert!(poll(&mut s).is_pending());
                sleeps.push(s);
            }
            if driver.park(None).fired > 0 {
                let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: `ts` is a valid place for the result.
                unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
                println!("woke {}", ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64);
            }
        }
        return;
    }
    let run = |firing: &str| -> f64 {
        let child = |seed: u32| {
            Command::new(std::env::current_exe().unwrap())
                .args([NAME, "--exact", "--nocapture"])
                .env(ROLE, format!("{firing} {seed}"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let instants: Vec<Vec<u64>> = [child(1), child(2)]
            .into_iter()
            .map(|c| {
                let out = c.wait_with_output().unwrap();
                let text = String::from_utf8(out.stdout).unwrap();
                text.lines()
                    .filter_map(|l| l.split("woke ").nth(1))
                    .map(|n| n.trim().parse().unwrap())
                    .collect()
            })
            .collect();
        assert!(instants.iter().all(|i| i.len() >= 5), "{firing}: {instants:?}");
        let near = |a: &u64| instants[1].iter().any(|b| a.abs_diff(*b) < 4_000_000);
        let both = instants[0].iter().filter(|a| near(a)).count();
        println!("{firing}: {both} of {} wakeups are shared", instants[0].len());
        both as f64 / instants[0].len() as f64
    };
    let (aligned, latest) = (run("aligned"), run("latest"));
    assert!(aligned >= 0.6, "{aligned:.2} of the wakeups are shared");
    assert!(aligned > latest + 0.2, "{aligned:.2} against {latest:.2}");
}
