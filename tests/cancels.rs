//! What cancels cost in wakeups, on the manual clock: counts against a driver that re-arms exactly after
//! every operation. The loads are those of the design's reference simulation.
#![cfg(not(loom))]

use slackwheel::{ExternalDriver, Sleep};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
    fn between(&mut self, a: f64, b: f64) -> f64 {
        a + (b - a) * self.next()
    }
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next()).ln()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Life {
    /// Timers of 50 ms to 2 s, cancelled at a random point of their life.
    Uniform,
    /// Timeouts of 30 s, cancelled soon after they are made.
    Timeout,
}

/// `(time, made or cancelled, timer)`, and each timer's window, in nanoseconds.
type Load = (Vec<(u64, bool, usize)>, Vec<(u64, u64)>);

fn load(seconds: f64, cancelled: f64, life: Life, fires: f64) -> Load {
    let mut r = Random(0x9E37_79B9_7F4A_7C15);
    let rate = fires / (1.0 - cancelled);
    let (mut events, mut windows) = (Vec::new(), Vec::new());
    let ns = |s: f64| (s * 1e9) as u64;
    let mut t = 0.0;
    while t < seconds {
        t += r.exponential(1.0 / rate);
        let d = if life == Life::Timeout { 30.0 } else { r.between(0.05, 2.0) };
        let slack = r.between(0.01, 0.4);
        events.push((ns(t), true, windows.len()));
        if r.next() < cancelled {
            let c = match life {
                Life::Uniform => r.between(0.0, d),
                Life::Timeout => r.exponential(0.1).min(d * 0.999),
            };
            events.push((ns(t + c), false, windows.len()));
        }
        windows.push((ns(t + d), ns(t + d + slack)));
    }
    events.sort_unstable();
    (events, windows)
}

/// Wakeups of a driver that is armed for the smallest pending `latest` at every moment.
fn exact((events, windows): &Load) -> u64 {
    let mut latest = BTreeSet::new();
    let mut earliest = BTreeMap::new();
    let mut wakes = 0;
    let mut next = events.iter().peekable();
    loop {
        let armed = latest.first().map(|(l, _)| *l);
        let event = next.peek().map(|(t, _, _)| *t);
        match (armed, event) {
            (None, None) => return wakes,
            (Some(at), e) if e.is_none_or(|e| at <= e) => {
                wakes += 1;
                while let Some(first) = earliest.first_entry() {
                    let (e, id): (u64, usize) = *first.key();
                    if e > at {
                        break;
                    }
                    latest.remove(&(windows[id].1, id));
                    first.remove();
                }
            }
            _ => {
                let (_, made, id) = *next.next().expect("peeked");
                let (e, l) = windows[id];
                if made {
                    latest.insert((l, id));
                    earliest.insert((e, id), ());
                } else {
                    latest.remove(&(l, id));
                    earliest.remove(&(e, id));
                }
            }
        }
    }
}

/// Wakeups and arm calls of ours.
fn ours((events, windows): &Load) -> (u64, u64) {
    let (mut driver, clock) = ExternalDriver::manual().unwrap();
    let h = driver.handle();
    let start = clock.now();
    let at = |ns: u64| start + Duration::from_nanos(ns);
    let mut pending: BTreeMap<usize, Sleep> = BTreeMap::new();
    let mut cx = Context::from_waker(Waker::noop());
    let mut next = events.iter().peekable();
    loop {
        let armed = clock.armed();
        match (armed, next.peek()) {
            (None, None) => break,
            (Some(armed), e) if e.is_none_or(|e| armed <= at(e.0)) => {
                clock.set(armed);
                driver.turn();
            }
            _ => {
                let (t, made, id) = *next.next().expect("peeked");
                clock.set(at(t));
                if made {
                    let (e, l) = windows[id];
                    let window = slackwheel::Window::new(at(e), at(l)).unwrap();
                    let mut sleep = h.sleep_window(window);
                    assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
                    pending.insert(id, sleep);
                } else {
                    pending.remove(&id);
                }
            }
        }
    }
    let m = h.metrics().unwrap();
    assert_eq!(m.pending, 0);
    assert_eq!(m.lateness.overruns(), 0, "due by latest");
    (m.wakeups, m.arm_calls)
}

#[test]
fn timers_cancelled_at_a_random_point_of_their_life() {
    for (cancelled, seconds) in [(0.5, 60.0), (0.9, 30.0), (0.99, 10.0)] {
        let load = load(seconds, cancelled, Life::Uniform, 100.0);
        let exact = exact(&load);
        let (wakes, arms) = ours(&load);
        let ratio = wakes as f64 / exact as f64;
        let arms = arms as f64 / wakes as f64;
        println!(
            "{cancelled}: {wakes} wakeups / {exact} exact = {ratio:.3}, {arms:.2} arms a wakeup"
        );
        assert!(ratio <= 1.05, "{cancelled}: {ratio:.3} times the wakeups");
        assert!(arms <= 2.5, "{cancelled}: {arms:.2} arms a wakeup");
    }
}

#[test]
fn timeouts_of_thirty_seconds_of_which_nearly_all_are_cancelled_at_once() {
    let load = load(40.0, 0.99, Life::Timeout, 10.0);
    let exact = exact(&load);
    let (wakes, _) = ours(&load);
    let ratio = wakes as f64 / exact as f64;
    println!("{wakes} wakeups / {exact} exact = {ratio:.3}");
    assert!(ratio <= 1.01, "{ratio:.3} times the wakeups");
}
