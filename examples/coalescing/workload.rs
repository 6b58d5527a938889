//! What is to be served, drawn from the seed alone: the same timers for every slack and on both clocks.

use crate::args::Slack;

/// Rounds of a run: those whose timers are all registered at the start, and the mix.
pub(crate) const ROUNDS: usize = AT_ONCE + 1;
const AT_ONCE: usize = 3;
/// Threads that bring the mix's timers.
pub(crate) const SOURCES: usize = 2;
/// Groups that each of them brings in a second. A request rarely brings one timer alone, and a source
/// that slept before each of them would drown the process's count of wakeups in its own.
const GROUPS_PER_SECOND: f64 = 40.0;
/// Wakeups from outside in a second of the mix.
const OUTSIDE_PER_SECOND: f64 = 20.0;
/// One in so many of the mix's timers comes when its window is open already.
const OPEN_ONE_IN: usize = 20;

/// Times are nanoseconds since the round's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) earliest: u64,
    pub(crate) slack: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Register these of the round's timers.
    Register(Vec<usize>),
    /// Wake the driver for something that is no timer.
    Wake,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) at: u64,
    /// Who does it, below [`SOURCES`].
    pub(crate) source: usize,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) timers: Vec<Timer>,
    /// In order of time. Empty when all timers are registered at the start.
    pub(crate) actions: Vec<Action>,
}

pub(crate) struct Plan {
    /// The rounds at once, then the mix.
    pub(crate) rounds: Vec<Round>,
    pub(crate) round_ns: u64,
}

impl Plan {
    pub(crate) fn new(timers: usize, seconds: f64, slack: Slack, seed: u64) -> Plan {
        let mut random = Random(seed);
        let ns = (seconds * 1e9) as u64;
        let mut rounds: Vec<_> =
            (0..AT_ONCE).map(|_| at_once(timers, ns, slack, &mut random)).collect();
        rounds.push(mix(timers, seconds, slack, &mut random));
        Plan { rounds, round_ns: ns }
    }
}

fn at_once(n: usize, ns: u64, slack: Slack, random: &mut Random) -> Round {
    // Time to register them all before the first is due.
    let lead = 5_000_000 + 1_000 * n as u64;
    let timer = |i| Timer { earliest: lead + random.below(ns), slack: slack.of(i) };
    Round { timers: (0..n).map(timer).collect(), actions: Vec::new() }
}

/// Arrivals take the first three quarters of the round; each timer is due within a quarter of it.
fn mix(n: usize, seconds: f64, slack: Slack, random: &mut Random) -> Round {
    let ns = (seconds * 1e9) as u64;
    let groups = ((GROUPS_PER_SECOND * seconds) as usize).clamp(1, n.div_ceil(SOURCES));
    let mut actions: Vec<Action> = (0..groups * SOURCES)
        .map(|g| Action {
            at: random.below(ns * 3 / 4),
            source: g % SOURCES,
            what: What::Register(Vec::new()),
        })
        .collect();
    let timers = (0..n)
        .map(|i| {
            let arrival = &mut actions[random.below((groups * SOURCES) as u64) as usize];
            let (wait, open) = (random.below(ns / 4), random.below(1000));
            if let What::Register(group) = &mut arrival.what {
                group.push(i);
            }
            let slack = slack.of(i);
            let earliest = match i % OPEN_ONE_IN {
                // Up to half of the window has gone.
                1 => arrival.at.saturating_sub(slack / 2 * open / 1000),
                _ => arrival.at + wait,
            };
            Timer { earliest, slack }
        })
        .collect();
    actions.retain(|a| a.what != What::Register(Vec::new()));
    for _ in 0..((OUTSIDE_PER_SECOND * seconds) as usize).max(1) {
        let (at, source) = (random.below(ns), random.below(SOURCES as u64) as usize);
        actions.push(Action { at, source, what: What::Wake });
    }
    actions.sort_by_key(|a| a.at);
    Round { timers, actions }
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`, but for a bias that is no matter here.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_decides_and_the_slack_moves_no_deadline() {
        let plan = |slack, seed| Plan::new(500, 0.5, slack, seed);
        let (none, some) = (plan(Slack::Nanos(0), 7), plan(Slack::Nanos(1_000_000), 7));
        assert_eq!(none.rounds, plan(Slack::Nanos(0), 7).rounds);
        assert_ne!(none.rounds, plan(Slack::Nanos(0), 8).rounds);
        for (a, b) in none.rounds[..AT_ONCE].iter().zip(&some.rounds) {
            let due = |r: &Round| r.timers.iter().map(|t| t.earliest).collect::<Vec<_>>();
            assert_eq!(due(a), due(b));
        }
    }

    #[test]
    fn the_mix_brings_each_timer_once_and_in_time() {
        for n in [1, 2, 3, 1000] {
            let plan = Plan::new(n, 0.25, Slack::Mixed, 1);
            let mix = &plan.rounds[AT_ONCE];
            let mut brought = vec![0; n];
            for action in &mix.actions {
                assert!(action.source < SOURCES);
                if let What::Register(group) = &action.what {
                    assert!(!group.is_empty());
                    group.iter().for_each(|i| brought[*i] += 1);
                    // A window that has closed before its timer arrives would be a miss by design.
                    assert!(group.iter().all(|i| {
                        let t = mix.timers[*i];
                        t.earliest + t.slack >= action.at
                    }));
                }
            }
            assert_eq!(brought, vec![1; n]);
            assert!(mix.actions.is_sorted_by_key(|a| a.at));
            assert!(mix.actions.iter().any(|a| a.what == What::Wake));
        }
    }
}
