//! Wakeups when most timers are cancelled, against re-arming exactly at every change. On the manual clock:
//! the counts depend on no machine.

use super::{Random, Values, counted_waker, poll_once};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::pin::Pin;
use std::time::Duration;

#[derive(Clone, Copy)]
struct Event {
    at: u64,
    timer: usize,
    cancel: bool,
}

struct Trace {
    /// `(earliest, latest)` of each timer.
    windows: Vec<(u64, u64)>,
    events: Vec<Event>,
}

fn exponential(random: &mut Random, mean: f64) -> f64 {
    let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    -mean * (1.0 - unit).ln()
}

/// A minute of arrivals of which so many fire that a hundred do a second; `timeouts`: of 30 s, cancelled
/// after 0.1 s in the mean; else of 50 ms to 2 s, cancelled at any point of their life.
fn trace(cancelled: f64, timeouts: bool) -> Trace {
    let mut random = Random::new();
    let mean = (1.0 - cancelled) / 100.0;
    let (mut t, mut trace) = (0.0, Trace { windows: Vec::new(), events: Vec::new() });
    while t < 60.0 {
        t += exponential(&mut random, mean);
        let unit = |r: &mut Random| (r.next() >> 11) as f64 / (1u64 << 53) as f64;
        let life = if timeouts { 30.0 } else { 0.05 + 1.95 * unit(&mut random) };
        let slack = 0.01 + 0.39 * unit(&mut random);
        let at = (t * 1e9) as u64;
        let earliest = at + (life * 1e9) as u64;
        let timer = trace.windows.len();
        trace.windows.push((earliest, earliest + (slack * 1e9) as u64));
        trace.events.push(Event { at, timer, cancel: false });
        if unit(&mut random) < cancelled {
            let after = match timeouts {
                true => exponential(&mut random, 0.1).min(life * 0.999),
                false => life * unit(&mut random),
            };
            trace.events.push(Event { at: at + (after * 1e9) as u64, timer, cancel: true });
        }
    }
    trace.events.sort_by_key(|e| e.at);
    trace
}

/// Wakeups of a driver that always stands exactly at the smallest `latest`.
fn exact(trace: &Trace) -> u64 {
    let mut by_latest = BTreeSet::new();
    let mut by_earliest = BinaryHeap::<Reverse<(u64, usize)>>::new();
    let mut wakeups = 0;
    let mut events = trace.events.iter().peekable();
    loop {
        let next = events.peek().map_or(u64::MAX, |e| e.at);
        let armed = by_latest.first().map_or(u64::MAX, |f: &(u64, usize)| f.0);
        if armed == u64::MAX && next == u64::MAX {
            return wakeups;
        }
        if armed <= next {
            wakeups += 1;
            while let Some(Reverse((earliest, timer))) = by_earliest.peek().copied() {
                if earliest > armed {
                    break;
                }
                by_earliest.pop();
                by_latest.remove(&(trace.windows[timer].1, timer));
            }
            continue;
        }
        let event = events.next().expect("peeked");
        let (earliest, latest) = trace.windows[event.timer];
        if event.cancel {
            by_latest.remove(&(latest, event.timer));
        } else {
            by_latest.insert((latest, event.timer));
            by_earliest.push(Reverse((earliest, event.timer)));
        }
    }
}

pub fn run(cancelled_percent: u64, timeouts: bool) -> Values {
    let trace = trace(cancelled_percent as f64 / 100.0, timeouts);
    let (mut driver, clock) = slackwheel::ExternalDriver::manual().expect("a driver");
    let handle = driver.handle();
    let waker = counted_waker();
    let start = clock.now();
    let at = |ns: u64| start + Duration::from_nanos(ns);
    let mut sleeps: Vec<Option<slackwheel::Sleep>> = Vec::new();
    sleeps.resize_with(trace.windows.len(), || None);
    let mut wakeups = 0u64;
    let mut until = |to: Option<std::time::Instant>| {
        while let Some(armed) = clock.armed()
            && to.is_none_or(|to| armed <= to)
        {
            clock.set(armed);
            wakeups += 1;
            let _ = driver.turn();
        }
    };
    for event in &trace.events {
        let now = at(event.at);
        until(Some(now));
        clock.set(now);
        if event.cancel {
            sleeps[event.timer] = None;
        } else {
            let (earliest, latest) = trace.windows[event.timer];
            let slack = Duration::from_nanos(latest - earliest);
            let mut sleep =
                handle.sleep_window(slackwheel::Window::with_slack(at(earliest), slack));
            poll_once(Pin::new(&mut sleep), &waker);
            sleeps[event.timer] = Some(sleep);
        }
    }
    until(None);
    let arms = handle.metrics().expect("the driver is there").arm_calls as f64;
    let exact = exact(&trace) as f64;
    vec![
        ("wakeups", wakeups as f64),
        ("exact", exact),
        ("of_exact", wakeups as f64 / exact),
        ("arms_per_wakeup", arms / wakeups as f64),
    ]
}
