//! The delay queue against a naive one, and what its documentation promises.
//!
//! Properties (after every operation): the same entries with the same windows; keys of what has gone stay gone;
//! `peek` shows an entry of the smallest tick; what comes out is due, and in the order of deadlines to the
//! tick. A poller that waits is woken when something is due and the driver has turned, or when the queue has been
//! emptied; and while it waits, the driver's next wake is never after the smallest `latest`.
#![cfg(not(loom))]

mod cases_util;

use cases_util::*;
use futures::StreamExt;
use proptest::prelude::*;
use slackwheel::sim::Sim;
use slackwheel::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        ahead: u64,
        slack: u64,
    },
    InsertMany {
        n: u8,
        ahead: u64,
        spread: u64,
    },
    InsertPast(u64),
    Remove(usize),
    Reset {
        which: usize,
        ahead: u64,
        slack: u64,
    },
    Clear,
    Poll(u8),
    /// Moves the clock, without a turn.
    Move(u64),
    Turn(u64),
    TurnAtNext,
    Shrink,
}

fn ahead() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..5_000,
        4 => 0u64..200_000_000,
        2 => (10u32..60, -3i64..4).prop_map(|(bits, off)| (1u64 << bits).saturating_add_signed(off)),
        1 => Just(u64::MAX),
    ]
}

fn slack() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 2 => 0u64..2_000_000, 1 => ahead()]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (ahead(), slack()).prop_map(|(ahead, slack)| Op::Insert { ahead, slack }),
        1 => (1u8..200, ahead(), 1u64..5_000_000)
            .prop_map(|(n, ahead, spread)| Op::InsertMany { n, ahead, spread }),
        1 => (0u64..10_000).prop_map(Op::InsertPast),
        4 => any::<usize>().prop_map(Op::Remove),
        4 => (any::<usize>(), ahead(), slack())
            .prop_map(|(which, ahead, slack)| Op::Reset { which, ahead, slack }),
        1 => Just(Op::Clear),
        6 => (1u8..8).prop_map(Op::Poll),
        2 => ahead().prop_map(Op::Move),
        4 => ahead().prop_map(Op::Turn),
        5 => Just(Op::TurnAtNext),
        1 => Just(Op::Shrink),
    ]
}

struct Model {
    b: Bench,
    q: DelayQueue<u64>,
    /// Key, window in nanoseconds after the start (`u64::MAX`: never), and whether its place is promised.
    live: BTreeMap<u64, (QueueKey, u64, u64, bool)>,
    gone: Vec<QueueKey>,
    next: u64,
    /// The last poll was pending: it was told so many times since.
    waiting: Option<(Arc<Count>, Waker)>,
}

/// Past the clock's end, seen from its start.
const END: u64 = u64::MAX - (1 << 41);

impl Model {
    fn now(&self) -> u64 {
        (self.b.clock.now() - self.b.t0).as_nanos() as u64
    }

    fn window(&self, earliest: u64, slack: u64) -> (Window, u64, u64) {
        let at = |t: u64| self.b.t0 + Duration::from_nanos(t);
        let latest = earliest.saturating_add(slack);
        let window = Window::new(at(earliest), at(latest)).unwrap();
        let cap = |t| if t >= END { u64::MAX } else { t };
        (window, cap(earliest), cap(latest))
    }

    fn insert(&mut self, earliest: u64, slack: u64) {
        let (window, earliest, latest) = self.window(earliest, slack);
        let key = self.q.insert_window(self.next, window);
        assert!(!self.gone.contains(&key), "a key came again");
        let promised = earliest > self.now();
        self.live.insert(self.next, (key, earliest, latest, promised));
        self.next += 1;
    }

    fn pick(&self, which: usize) -> Option<u64> {
        self.live.keys().nth(which % self.live.len().max(1)).copied()
    }

    fn drop_key(&mut self, id: u64) {
        let (key, ..) = self.live.remove(&id).unwrap();
        self.gone.push(key);
    }

    fn poll(&mut self) {
        let now = self.now();
        let (count, waker) = counter();
        let mut polled = pop(&mut self.q, &waker);
        if polled.is_pending() && count.get() > 0 {
            // It let others run: once is enough.
            polled = pop(&mut self.q, &waker);
        }
        let due = || self.live.iter().filter(|(_, w)| w.1 <= now);
        match polled {
            Poll::Ready(Some(id)) => {
                let (_, earliest, _, promised) = self.live[&id];
                assert!(earliest <= now, "early");
                let first =
                    due().filter(|(_, w)| w.3).map(|(id, w)| ((w.1 + START) >> 10, *id)).min();
                if promised {
                    assert_eq!(Some(((earliest + START) >> 10, id)), first, "out of order");
                }
                self.drop_key(id);
                self.waiting = None;
            }
            Poll::Ready(None) => {
                assert!(self.live.is_empty(), "the end too soon");
                self.waiting = None;
            }
            Poll::Pending => {
                assert!(!self.live.is_empty(), "the end too late");
                assert_eq!(due().count(), 0, "something is due");
                self.waiting = Some((count, waker));
            }
        }
    }

    /// The driver has turned: whoever waits knows what it must.
    fn check_woken(&mut self) {
        if let Some((count, _)) = &self.waiting {
            let now = self.now();
            let due = self.live.values().any(|w| w.1 <= now);
            assert!(!due || count.get() > 0, "due, and its poller asleep");
        }
    }

    fn check(&mut self) {
        assert_eq!((self.q.len(), self.q.is_empty()), (self.live.len(), self.live.is_empty()));
        for (id, (key, earliest, latest, _)) in &self.live {
            assert_eq!(self.q.get(key), Some(id));
            if *earliest != u64::MAX {
                assert_eq!(self.q.deadline(key), Some(self.b.t0 + ns(*earliest)));
            }
            if *latest != u64::MAX {
                assert_eq!(self.q.latest(key), Some(self.b.t0 + ns(*latest)));
            }
        }
        for key in &self.gone {
            assert!(self.q.get(key).is_none() && self.q.deadline(key).is_none());
        }
        let peeked = self.q.peek().and_then(|k| self.q.get(&k)).copied();
        let tick = |id: u64| (self.live[&id].1.saturating_add(START)) >> 10;
        assert_eq!(peeked.map(tick), self.live.keys().map(|id| tick(*id)).min());
        if let Some((count, _)) = &self.waiting
            && count.get() == 0
        {
            assert!(!self.live.is_empty(), "emptied, and its poller asleep");
            let latest = self.live.values().map(|w| w.2).min().unwrap();
            let wake = self.b.driver.next_wake_exact().map(|at| (at - self.b.t0).as_nanos() as u64);
            assert!(latest == u64::MAX || wake.is_some_and(|at| at <= latest), "{wake:?} {latest}");
        }
    }
}

/// The reading of a manual clock at its start: ticks are counted from zero, not from there.
const START: u64 = 1 << 40;

fn run(ops: &[Op]) {
    let b = Bench::new();
    let mut m =
        Model { q: b.queue(), b, live: BTreeMap::new(), gone: Vec::new(), next: 0, waiting: None };
    for op in ops {
        let now = m.now();
        match *op {
            Op::Insert { ahead, slack } => m.insert(now.saturating_add(ahead), slack),
            Op::InsertMany { n, ahead, spread } => {
                for i in 0..n as u64 {
                    m.insert(now.saturating_add(ahead).saturating_add(i * 7919 % spread), 0);
                }
            }
            Op::InsertPast(back) => m.insert(now.saturating_sub(back), 0),
            Op::Remove(which) => {
                if let Some(id) = m.pick(which) {
                    let key = m.live[&id].0;
                    assert_eq!(m.q.remove(&key), Some(id));
                    assert_eq!(m.q.remove(&key), None);
                    m.drop_key(id);
                }
            }
            Op::Reset { which, ahead, slack } => {
                if let Some(id) = m.pick(which) {
                    let key = m.live[&id].0;
                    let (window, earliest, latest) = m.window(now.saturating_add(ahead), slack);
                    assert!(m.q.reset_window(&key, window));
                    m.live.insert(id, (key, earliest, latest, false));
                }
                if let Some(key) = m.gone.last() {
                    assert!(!m.q.reset(key, ms(1)));
                }
            }
            Op::Clear => {
                m.q.clear();
                for id in m.live.keys().copied().collect::<Vec<_>>() {
                    m.drop_key(id);
                }
            }
            Op::Poll(n) => (0..n).for_each(|_| m.poll()),
            Op::Move(by) => {
                if now < END / 4 {
                    m.b.clock.advance(ns(by.min(END / 4)));
                }
            }
            Op::Turn(by) => {
                if now < END / 4 {
                    m.b.clock.advance(ns(by.min(END / 4)));
                }
                m.b.driver.turn();
                m.check_woken();
            }
            Op::TurnAtNext => {
                if let Some(at) = m.b.driver.next_wake()
                    && at > m.b.clock.now()
                {
                    m.b.clock.set(at);
                }
                m.b.driver.turn();
                m.check_woken();
            }
            Op::Shrink => m.q.shrink_to_fit(),
        }
        m.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn does_what_the_naive_queue_does(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops);
    }
}

#[test]
fn windows_of_a_queue_share_wakeups_with_each_other_and_with_sleeps() {
    let sim = Sim::new();
    let h = sim.handle();
    let mut q = DelayQueue::with_handle(h);
    for i in 0..40 {
        q.insert_range(i, ms(100 + i), ms(150 + i));
    }
    let task = sim.spawn(async move {
        let mut out = Vec::new();
        while let Some(e) = q.next().await {
            assert!(e.overrun().is_zero());
            out.push(e.into_inner());
        }
        out
    });
    sim.spawn(h.sleep_range(ms(120), ms(400)));
    sim.assert_wakeups(1, || sim.run_until_idle());
    assert_eq!(task.take().unwrap(), (0..40).collect::<Vec<_>>());
    assert_eq!(sim.elapsed(), ms(150));
}

#[test]
fn a_queue_that_refills_itself_lets_others_run() {
    let sim = Sim::new();
    let h = sim.handle();
    let seen = Arc::new(Mutex::new((0u32, None)));
    let counts = seen.clone();
    sim.spawn(async move {
        let mut q = DelayQueue::with_handle(h);
        q.insert((), ms(0));
        while q.next().await.is_some() {
            let mut counts = counts.lock().unwrap();
            counts.0 += 1;
            if counts.0 < 1_000 {
                q.insert((), ms(0));
            }
        }
    });
    let counts = seen.clone();
    sim.spawn(async move {
        let mut counts = counts.lock().unwrap();
        counts.1 = Some(counts.0);
    });
    sim.settle();
    let (all, then) = *seen.lock().unwrap();
    assert_eq!(all, 1_000);
    assert!((100..=128).contains(&then.unwrap()), "{then:?}");
}

#[test]
fn draining_a_crowded_queue_takes_many_short_polls() {
    // All due at once, all in one wide slot of the wheel: no poll may move them all.
    let mut b = Bench::new();
    let mut q = b.queue();
    for i in 0..20_000u64 {
        q.insert(i, secs(60) + us(i));
    }
    b.at(secs(120));
    let (mut out, mut rests) = (Vec::new(), 0);
    let (count, waker) = counter();
    let mut cx = Context::from_waker(&waker);
    loop {
        match q.poll_expired(&mut cx) {
            Poll::Ready(Some(e)) => out.push(e.into_inner()),
            Poll::Ready(None) => break,
            Poll::Pending => {
                rests += 1;
                assert_eq!(count.get(), rests, "pending without a wake, though entries are due");
            }
        }
    }
    assert_eq!(out, (0..20_000).collect::<Vec<_>>());
    assert!(rests >= 20_000 / 128);
}

#[test]
fn a_queue_moves_between_threads_on_a_real_driver() {
    let mut driver = Driver::new().unwrap();
    let mut q = DelayQueue::with_handle(driver.handle());
    let mut rng = Rng(7);
    let keys: Vec<QueueKey> = (0..500).map(|i| q.insert(i, us(rng.below(20_000)))).collect();
    for k in keys.iter().step_by(5) {
        assert!(q.reset_range(k, ms(5), ms(25)));
    }
    let consumer = std::thread::spawn(move || {
        futures::executor::block_on(async {
            let mut n = 0;
            while let Some(e) = q.next().await {
                assert!(std::time::Instant::now() >= e.deadline(), "early");
                n += 1;
            }
            n
        })
    });
    while !consumer.is_finished() {
        driver.park(Some(ms(2)));
    }
    assert_eq!(consumer.join().unwrap(), 500);
}
