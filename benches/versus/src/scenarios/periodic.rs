//! Ten thousand periodic timers: wakeups against the fewest possible.

use super::{Random, Values};
use crate::herd::{Herd, Next};
use crate::peers::Peer;
use crate::sys;
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// How much slack each timer has.
#[derive(Clone, Copy)]
pub struct Slack {
    pub ns: u64,
    /// One timer in so many has none.
    exact_every: usize,
}

impl Slack {
    /// `0`, `1`, `10`, `50` (ms), `mixed1` or `mixed10` (per cent exact, the rest 50 ms).
    pub fn named(name: &str) -> Slack {
        match name {
            "mixed1" => Slack { ns: 50_000_000, exact_every: 100 },
            "mixed10" => Slack { ns: 50_000_000, exact_every: 10 },
            ms => Slack { ns: ms.parse::<u64>().expect("ms") * 1_000_000, exact_every: usize::MAX },
        }
    }

    fn of(self, i: usize) -> u64 {
        match i.is_multiple_of(self.exact_every) && self.exact_every != usize::MAX {
            true => 0,
            false => self.ns,
        }
    }

    /// Timers whose lateness counts: those without slack, or all when none is without.
    fn counts(self, i: usize) -> bool {
        self.exact_every == usize::MAX || self.of(i) == 0
    }
}

/// Periods of 100 ms to 1 s and where in its period each starts.
fn schedule(n: usize) -> Vec<(u64, u64)> {
    let mut random = Random::new();
    (0..n)
        .map(|_| {
            let period = random.between(100_000_000, 1_000_000_000);
            (period, random.between(1_000_000, period))
        })
        .collect()
}

/// The fewest wakeups that serve every window of these timers within `span`.
pub fn optimum(n: usize, slack: Slack, span: u64) -> f64 {
    let mut windows: Vec<(u64, u64)> = schedule(n)
        .into_iter()
        .enumerate()
        .flat_map(|(i, (period, first))| {
            (0..)
                .map(move |k| first + k * period)
                .take_while(move |at| *at < span)
                .map(move |at| (at, at + slack.of(i)))
        })
        .collect();
    windows.sort_unstable_by_key(|w| w.1);
    let (mut wakeups, mut last) = (0u64, None);
    for (earliest, latest) in windows {
        if last.is_none_or(|last| earliest > last) {
            last = Some(latest);
            wakeups += 1;
        }
    }
    wakeups as f64
}

/// Runs the timers for `span` on the real clock.
pub fn run<P: Peer>(n: usize, slack: Slack, span: Duration) -> Values {
    P::block_on(async move {
        let timers = schedule(n);
        let span = span.as_nanos() as u64;
        let mut herd = Herd::new(n);
        let start = sys::monotonic() + 50_000_000;
        let mut next: Vec<u64> = timers.iter().map(|t| start + t.1).collect();
        let ahead = |at: u64| Duration::from_nanos(at.saturating_sub(sys::monotonic()));
        for (i, at) in next.iter().enumerate() {
            herd.add(P::sleep(ahead(*at), Duration::from_nanos(slack.of(i))));
        }
        let (sleeps, cpu) = (sys::sleeps(), sys::process_cpu());
        let mut late = Vec::with_capacity(200_000);
        let mut fires = 0u64;
        poll_fn(|cx| {
            let done = |i: usize| {
                let now = sys::monotonic();
                fires += 1;
                if slack.counts(i) && late.len() < late.capacity() {
                    late.push((now as f64 - next[i] as f64) / 1000.0);
                }
                next[i] += timers[i].0;
                // Beyond the end nothing is asked for: an optimum has an end, too.
                if next[i] >= start + span {
                    return Next::Done;
                }
                let d = Duration::from_nanos(next[i].saturating_sub(now));
                Next::Sleep(d, Duration::from_nanos(slack.of(i)))
            };
            match herd.poll(cx, done, |d, s| P::sleep(d, s)) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        let wakeups = (sys::sleeps() - sleeps) as f64;
        let cpu = sys::process_cpu() - cpu;
        late.sort_by(f64::total_cmp);
        let optimum = optimum(n, slack, span);
        vec![
            ("wakeups", wakeups),
            ("optimum", optimum),
            ("of_optimum", wakeups / optimum),
            ("cpu_ms", cpu / 1e6),
            ("fires", fires as f64),
            ("late_us", late[late.len() / 2]),
            ("late_p99_us", late[late.len() * 99 / 100]),
            ("early", late.iter().filter(|l| **l < 0.0).count() as f64),
        ]
    })
}

/// The same on the manual clock, where only the wheel decides when to wake.
pub fn manual(n: usize, slack: Slack, span: Duration) -> Values {
    let (mut driver, clock) = slackwheel::Driver::manual();
    let handle = driver.handle();
    let timers = schedule(n);
    let span = span.as_nanos() as u64;
    let start = clock.now();
    let sleep = |at: u64, i: usize| {
        let earliest = start + Duration::from_nanos(at);
        let slack = Duration::from_nanos(slack.of(i));
        handle.sleep_window(slackwheel::Window::with_slack(earliest, slack))
    };
    let next: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(timers.iter().map(|t| t.1).collect()));
    let mut herd = Herd::new(n);
    for i in 0..n {
        let at = next.borrow()[i];
        herd.add(sleep(at, i));
    }
    clock.set_auto_advance(true);
    driver.block_on(poll_fn(|cx| {
        let which = std::cell::Cell::new(0);
        let done = |i: usize| {
            which.set(i);
            let mut next = next.borrow_mut();
            next[i] += timers[i].0;
            match next[i] < span {
                true => Next::Sleep(Duration::ZERO, Duration::ZERO),
                false => Next::Done,
            }
        };
        let make = |_, _| sleep(next.borrow()[which.get()], which.get());
        match herd.poll(cx, done, make) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }));
    let m = handle.metrics().expect("the driver is there");
    let optimum = optimum(n, slack, span);
    vec![
        ("wakeups", m.wakeups as f64),
        ("optimum", optimum),
        ("of_optimum", m.wakeups as f64 / optimum),
    ]
}
