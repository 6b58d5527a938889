//! The server on a virtual clock: a discrete-event simulation around the real state machine.
//!
//! What decides is [`GroupCommit`], the same code the commit threads run. What is simulated is
//! everything around it: writers that think for a while between writes, one CPU that requests and
//! commits share, the device, and the wait of a commit thread, which ends when its window ends,
//! later by the slack and by the time a thread takes to wake up.
//!
//! The same seed gives the same run to the last digit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slackwheel::wheel::{Key, Wheel};

use crate::commit::group::{GroupCommit, Step};
use crate::commit::settings::{Nanos, Settings};
use crate::stats::Stats;
use crate::storage::device::DeviceModel;

/// Costs around the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// CPU time of a request.
    pub(crate) request: Nanos,
    /// CPU time of a commit.
    pub(crate) commit: Nanos,
    /// From the expiry of a timer to the thread that waited for it.
    pub(crate) wakeup: Nanos,
    /// A writer's mean time from an acknowledgement to its next write; exponential.
    pub(crate) turnaround: Nanos,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) device: DeviceModel,
    pub(crate) depth: usize,
    pub(crate) writers: usize,
    /// Bytes of each write.
    pub(crate) bytes: usize,
    pub(crate) settings: Settings,
    pub(crate) costs: Costs,
    pub(crate) span: Nanos,
    pub(crate) seed: u64,
    /// Other timers on the machine: how many, and their period. They are exact.
    pub(crate) background: Option<(usize, Nanos)>,
}

/// What came out of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) acknowledged: u64,
    /// Commits, batch sizes and the lateness of waits.
    pub(crate) stats: Stats,
    /// Expiries of the kernel timer, those of the background timers included.
    pub(crate) expiries: u64,
    /// Of these, the ones that served nothing but a commit wait.
    pub(crate) own_expiries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A writer has made up its mind.
    Arrive(usize),
    /// Its request reached the storage.
    Submit(usize),
    /// The kernel timer may be due.
    Timer,
    /// The commit thread that waited for a window runs.
    WaitOver {
        block: u64,
        deadline: Nanos,
    },
    LogDone(u64),
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    Window { block: u64, deadline: Nanos },
    Background,
}

struct Simulation {
    scenario: Scenario,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    ordered: u64,
    group: GroupCommit,
    /// The timers of the machine: the crate's own wheel, fed with the virtual time.
    timers: Wheel<Timer>,
    /// When the kernel timer expires next, as far as an event exists for it.
    armed: Option<Nanos>,
    /// The block whose window a commit thread waits for.
    waiting: Option<(u64, Key)>,
    cpu_free: Nanos,
    lanes: Vec<Nanos>,
    next_seq: u64,
    unacknowledged: VecDeque<(u64, usize)>,
    rng: u64,
    outcome: Outcome,
}

/// Runs a scenario to its end.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let mut sim = Simulation {
        scenario: *scenario,
        now: 0,
        events: BinaryHeap::new(),
        ordered: 0,
        group: GroupCommit::new(scenario.depth),
        timers: Wheel::new(),
        armed: None,
        waiting: None,
        cpu_free: 0,
        lanes: vec![0; scenario.device.parallel],
        next_seq: 0,
        unacknowledged: VecDeque::new(),
        rng: scenario.seed,
        outcome: Outcome { acknowledged: 0, stats: Stats::default(), expiries: 0, own_expiries: 0 },
    };
    for writer in 0..scenario.writers {
        let at = (sim.uniform() * scenario.costs.turnaround as f64) as Nanos;
        sim.push(at, Event::Arrive(writer));
    }
    if let Some((count, period)) = scenario.background {
        for i in 0..count as u64 {
            let at = period * i / count as u64;
            sim.timers.insert(at, at, Timer::Background);
        }
        sim.arm();
    }
    while let Some(Reverse((at, _, event))) = sim.events.pop() {
        if at > scenario.span {
            break;
        }
        sim.now = at;
        sim.handle(event);
    }
    sim.outcome
}

impl Simulation {
    fn push(&mut self, at: Nanos, event: Event) {
        self.events.push(Reverse((at, self.ordered, event)));
        self.ordered += 1;
    }

    /// SplitMix64, as a number in (0, 1].
    fn uniform(&mut self) -> f64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    /// Takes CPU time from the one CPU; says when the work is done.
    fn cpu(&mut self, time: Nanos) -> Nanos {
        self.cpu_free = self.cpu_free.max(self.now) + time;
        self.cpu_free
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(writer) => {
                let at = self.cpu(self.scenario.costs.request);
                self.push(at, Event::Submit(writer));
            }
            Event::Submit(writer) => self.submit(writer),
            Event::Timer => self.expire(),
            Event::WaitOver { block, deadline } => {
                // The wait of a thread that was woken earlier ended then.
                if self.waiting.is_some_and(|(waits, _)| waits == block) {
                    self.waiting = None;
                    self.outcome.stats.window_ended(self.now - deadline);
                    self.group.window_ended(block);
                    self.commit_thread();
                }
            }
            Event::LogDone(block) => {
                for acked in self.group.done(self.now, block) {
                    while let Some(&(seq, writer)) = self.unacknowledged.front()
                        && seq <= acked.last
                    {
                        self.unacknowledged.pop_front();
                        self.outcome.acknowledged += 1;
                        let think = -self.uniform().ln() * self.scenario.costs.turnaround as f64;
                        self.push(self.now + think as Nanos, Event::Arrive(writer));
                    }
                }
                self.commit_thread();
            }
        }
    }

    /// A write with everything that a connection does for it.
    fn submit(&mut self, writer: usize) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.unacknowledged.push_back((seq, writer));
        let settings = self.scenario.settings;
        let full = self.group.append(seq, self.scenario.bytes, settings.max_block);
        let ticket = self.group.want(self.now, seq, &settings);
        // As in the server: an arrival wakes the commit threads only if that changes something.
        if full || ticket.is_some_and(|t| t.wake) {
            self.commit_thread();
        }
    }

    /// What the free commit threads do when one of them wakes up; compare `Shared::commit_loop`.
    fn commit_thread(&mut self) {
        loop {
            match self.group.next(self.now) {
                Step::Issue { id, first, last } => {
                    self.end_wait(id);
                    let records = last - first + 1;
                    let started = self.cpu(self.scenario.costs.commit);
                    let bytes = records * self.scenario.bytes as u64;
                    let service = self.scenario.device.service(bytes, false);
                    let free = (0..self.lanes.len()).min_by_key(|&i| self.lanes[i]);
                    let lane = &mut self.lanes[free.unwrap_or_default()];
                    *lane = (*lane).max(started) + service;
                    let done = *lane;
                    self.outcome.stats.commit(records, done - self.now);
                    self.push(done, Event::LogDone(id));
                }
                Step::Wait { id, window } if self.now >= window.deadline => {
                    self.group.window_ended(id);
                }
                Step::Wait { id, window } => {
                    if self.waiting.is_none_or(|(waits, _)| waits != id) {
                        let latest = window.deadline + window.slack;
                        let timer = Timer::Window { block: id, deadline: window.deadline };
                        let key = self.timers.insert(window.deadline, latest, timer);
                        self.waiting = Some((id, key));
                        self.arm();
                    }
                    return;
                }
                Step::Idle => return,
            }
        }
    }

    /// The block goes out: a thread that waits for its window is woken, its timer cancelled.
    fn end_wait(&mut self, id: u64) {
        if let Some((waits, key)) = self.waiting
            && waits == id
        {
            self.timers.cancel(key);
            self.waiting = None;
        }
    }

    fn arm(&mut self) {
        if let Some(at) = self.timers.next_wake()
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.armed = Some(at);
            self.push(at, Event::Timer);
        }
    }

    fn expire(&mut self) {
        // An arm that was replaced by an earlier one is not an expiry.
        if self.armed != Some(self.now) {
            return;
        }
        self.armed = None;
        let mut due = Vec::new();
        let turn = self.timers.advance(self.now, usize::MAX, |fired| due.push(fired.value));
        debug_assert!(!turn.more, "there is no limit to what one turn fires");
        // The kernel is disarmed with the last cancelled wait, so this would not have happened.
        self.outcome.expiries += u64::from(!due.is_empty());
        let own = !due.is_empty() && due.iter().all(|t| matches!(t, Timer::Window { .. }));
        self.outcome.own_expiries += u64::from(own);
        for timer in due {
            match timer {
                Timer::Window { block, deadline } => {
                    let at = self.now + self.scenario.costs.wakeup;
                    self.push(at, Event::WaitOver { block, deadline });
                }
                Timer::Background => {
                    let period = self.scenario.background.map_or(Nanos::MAX, |(_, p)| p);
                    let next = self.now.saturating_add(period);
                    self.timers.insert(next, next, Timer::Background);
                }
            }
        }
        self.arm();
    }
}
