//! What `.ci/instructions` counts under callgrind: one operation, many times.
//!
//! `instructions OPERATION COUNT` runs it that often, after the same preparation whatever the count; so
//! the difference between two counts is the operation alone, and no clock or neighbour can move it.
//! Without arguments, or with cargo's `--bench`, it prints the names of the operations.

use slackwheel::wheel::{Key, Wheel};
use slackwheel::{Driver, Handle, Sleep};
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// Entries already there: enough that no slot is a special case.
const OTHERS: u64 = 10_000;
/// Entries inserted, then cancelled, reset or fired, at a time: the slab is warm after the first round.
const ROUND: usize = 1_000;

struct Nop;

impl Wake for Nop {
    fn wake(self: Arc<Self>) {}
}

struct Random(u64);

impl Random {
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

/// The wheel alone, with [`OTHERS`] entries.
struct Alone {
    wheel: Wheel<u64>,
    random: Random,
    now: u64,
    keys: Vec<Key>,
}

impl Alone {
    fn new() -> Self {
        let mut alone = Alone {
            wheel: Wheel::new(),
            random: Random(88_172_645_463_325_252),
            now: 0,
            keys: Vec::with_capacity(ROUND),
        };
        for _ in 0..OTHERS {
            let at = 100_000_000_000_000 + alone.random.ahead();
            alone.wheel.insert(at, at + 1_000_000, at);
        }
        alone.fill();
        alone.cancel();
        alone
    }

    /// A round of entries 1 to 60 s ahead.
    fn fill(&mut self) {
        for _ in 0..ROUND {
            let at = self.now + self.random.ahead();
            self.keys.push(self.wheel.insert(at, at + 1_000_000, at));
        }
    }

    fn cancel(&mut self) {
        for key in self.keys.drain(..) {
            black_box(self.wheel.cancel(key));
        }
    }

    fn reset(&mut self, later: bool) {
        for key in &self.keys {
            let (earliest, latest) = self.wheel.window(*key).expect("it is pending");
            let shift = if later { 1_000_000_000 } else { 0u64.wrapping_sub(500_000_000) };
            self.wheel.reset(*key, earliest.wrapping_add(shift), latest.wrapping_add(shift));
        }
    }

    /// Drives the wheel in steps of a millisecond until the round has fired.
    fn fire(&mut self) {
        let end = self.now + 61_000_000_000;
        while self.now < end {
            self.now = self.wheel.next_wake().map_or(end, |w| w.min(end));
            let step = self.wheel.advance(self.now, usize::MAX, |f| {
                black_box(f.value);
            });
            assert!(!step.more);
        }
        self.keys.clear();
    }
}

/// A sleep through a driver's handle, with a waker.
struct Driven {
    driver: Driver,
    handle: Handle,
    random: Random,
    waker: Waker,
    others: Vec<Sleep>,
}

impl Driven {
    fn new() -> Self {
        let driver = Driver::new().expect("a driver");
        let mut driven = Driven {
            handle: driver.handle(),
            driver,
            random: Random(88_172_645_463_325_252),
            waker: Waker::from(Arc::new(Nop)),
            others: Vec::new(),
        };
        for _ in 0..OTHERS {
            let sleep = driven.sleep();
            driven.others.push(sleep);
        }
        driven
    }

    fn sleep(&mut self) -> Sleep {
        let d = Duration::from_nanos(self.random.ahead());
        let mut sleep = self.handle.sleep(d);
        let polled = Pin::new(&mut sleep).poll(&mut Context::from_waker(&self.waker));
        assert!(polled.is_pending());
        sleep
    }
}

/// A name, and what runs the operation so many times.
type Operation = (&'static str, fn(usize));

const OPERATIONS: [Operation; 8] = [
    ("insert", |n| {
        let mut alone = Alone::new();
        for _ in 0..n / ROUND {
            alone.fill();
            // Forgotten, not cancelled: the wheel grows by the count.
            alone.keys.clear();
        }
    }),
    ("insert+cancel", |n| {
        let mut alone = Alone::new();
        for _ in 0..n / ROUND {
            alone.fill();
            alone.cancel();
        }
    }),
    ("reset later", |n| {
        let mut alone = Alone::new();
        alone.fill();
        for _ in 0..n / ROUND {
            alone.reset(true);
        }
    }),
    ("reset earlier", |n| {
        let mut alone = Alone::new();
        alone.fill();
        // Far enough ahead to come half a second earlier as often as asked.
        for _ in 0..1000 {
            alone.reset(true);
        }
        for _ in 0..n / ROUND {
            alone.reset(false);
        }
    }),
    ("insert+fire", |n| {
        let mut alone = Alone::new();
        for _ in 0..n / ROUND {
            alone.fill();
            alone.fire();
        }
    }),
    ("create+poll+drop", |n| {
        let mut driven = Driven::new();
        for _ in 0..n {
            drop(black_box(driven.sleep()));
        }
    }),
    ("idle turn", |n| {
        let mut driven = Driven::new();
        for _ in 0..n {
            black_box(driven.driver.turn());
        }
    }),
    ("next wake", |n| {
        let driven = Driven::new();
        for _ in 0..n {
            black_box(driven.driver.next_wake());
        }
    }),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.as_slice() {
        [name, count] => {
            let operation = OPERATIONS.iter().find(|(n, _)| n == name);
            let Some((_, run)) = operation else { panic!("no operation {name}") };
            run(count.parse().expect("a count"));
        }
        _ => {
            for (name, _) in OPERATIONS {
                println!("{name}");
            }
        }
    }
}
