//! What is run, which figures come of it, and what they should reach.

use crate::report::{Row, row};
use crate::run::Measured;

#[derive(Clone, Copy, PartialEq)]
pub enum Better {
    Lower,
    Higher,
}

use Better::{Higher, Lower};

#[derive(Clone, Copy)]
pub enum Target {
    /// So many times better than the peer.
    Times(f64),
    /// Ours, whatever the peers do.
    AtMost(f64),
    AtLeast(f64),
}

use Target::{AtLeast, AtMost, Times};

/// One value of a group's samples.
pub struct Figure {
    /// Behind the group's name; may be empty.
    pub name: &'static str,
    pub key: &'static str,
    pub unit: &'static str,
    pub better: Better,
    /// What the machine itself costs: measured beside ours, under this key.
    pub floor: Option<&'static str>,
    /// Of ours alone.
    pub limit: Option<Target>,
    /// Another key of our own samples to stand beside.
    pub against: Option<&'static str>,
    pub targets: Vec<(&'static str, Target)>,
}

impl Figure {
    fn new(name: &'static str, key: &'static str, unit: &'static str, better: Better) -> Figure {
        let (floor, limit, against, targets) = (None, None, None, Vec::new());
        Figure { name, key, unit, better, floor, limit, against, targets }
    }
    fn limit(mut self, limit: Target) -> Figure {
        self.limit = Some(limit);
        self
    }
    fn floor(mut self, floor: &'static str) -> Figure {
        self.floor = Some(floor);
        self
    }
    fn against(mut self, key: &'static str) -> Figure {
        self.against = Some(key);
        self
    }
    fn target(mut self, peer: &'static str, target: Target) -> Figure {
        self.targets.push((peer, target));
        self
    }

    /// Whom it is set beside, targets first.
    pub fn peers(&self, group: &Group) -> Vec<(&'static str, Option<Target>)> {
        let mut peers: Vec<_> = self.targets.iter().map(|(p, t)| (*p, Some(*t))).collect();
        for peer in &group.peers {
            if !self.targets.iter().any(|(p, _)| p == peer) {
                peers.push((peer, None));
            }
        }
        peers
    }
}

/// Samples of one scenario with the same arguments.
pub struct Group {
    pub name: String,
    pub scenario: &'static str,
    pub args: Vec<String>,
    pub ours: &'static str,
    pub peers: Vec<&'static str>,
    pub figures: Vec<Figure>,
    /// Fewer than the run's.
    pub rounds: Option<usize>,
}

fn group(
    name: &str,
    (scenario, args): (&'static str, &str),
    ours: &'static str,
    peers: &[&'static str],
    figures: Vec<Figure>,
) -> Group {
    let args = args.split_whitespace().map(str::to_owned).collect();
    let (name, peers) = (name.to_owned(), peers.to_vec());
    Group { name, scenario, args, ours, peers, figures, rounds: None }
}

const TOKIO: &str = "tokio-ct|tokio-mt";
/// A reading of the clock, and the reference count of a waker.
const CHURN_FLOOR: &str = "floor_ns";

fn ns(name: &'static str) -> Figure {
    Figure::new(name, "ns", "ns", Lower)
}

fn kernel_calls() -> Figure {
    Figure::new("kernel calls each", "kernel_calls", "calls", Lower).limit(AtMost(0.0))
}

pub fn groups(quick: bool) -> Vec<Group> {
    let ms = if quick { 80 } else { 200 };
    let mut all = Vec::new();
    churn(&mut all, ms);
    threads(&mut all, if quick { 200 } else { 400 });
    resets(&mut all, ms);
    bursts(&mut all, quick);
    precise(&mut all, quick);
    wakeups(&mut all, quick);
    all
}

fn churn(all: &mut Vec<Group>, ms: u64) {
    const RIVALS: &[&str] = &[
        "tokio-ct",
        "tokio-mt",
        "tokio-alt",
        "monoio",
        "async-io",
        "futures-timer",
        "pingora",
        "delay-queue",
        "map-by-hand",
        "heap-by-hand",
        "slackwheel-default",
    ];
    for (others, label) in [(0, "0"), (10_000, "10 k"), (1_000_000, "1 M")] {
        let args = format!("{others} random {ms}");
        let cost = ns("")
            .floor(CHURN_FLOOR)
            .target(TOKIO, Times(if others == 0 { 6.0 } else { 1.5 }))
            .target("async-io", Times(if others == 1_000_000 { 15.0 } else { 1.8 }))
            .target("pingora", Times(3.0))
            .target("futures-timer", Times(6.0));
        let allocations =
            Figure::new("allocations each", "allocations", "", Lower).limit(AtMost(0.001));
        let mut own = group(
            &format!("create + poll + drop, {label} others"),
            ("churn", &args),
            "slackwheel",
            RIVALS,
            vec![cost],
        );
        own.figures.push(Figure { targets: Vec::new(), ..allocations });
        own.figures.push(kernel_calls());
        all.push(own);
        all.push(group(
            &format!("create + poll + drop, local driver, {label} others"),
            ("churn", &args),
            "slackwheel-local",
            &["monoio", "heap-by-hand"],
            vec![ns("").floor(CHURN_FLOOR).target("monoio", Times(1.4))],
        ));
    }
    let rivals = &["tokio-ct", "tokio-mt", "tokio-alt", "monoio", "async-io", "map-by-hand"];
    for (order, label) in
        [("earliest", "each the earliest"), ("earliest-slack", "each the earliest, with slack")]
    {
        for (ours, whose) in
            [("slackwheel", "driving thread"), ("slackwheel-default", "default driver")]
        {
            let mut figures = vec![ns("")];
            if ours == "slackwheel" || order == "earliest-slack" {
                figures.push(Figure::new("kernel calls each", "kernel_calls", "calls", Lower));
                if ours == "slackwheel" {
                    figures[1].limit = Some(AtMost(0.0));
                }
            }
            all.push(group(
                &format!("create + poll + drop, {label}, {whose}"),
                ("churn", &format!("10000 {order} {ms}")),
                ours,
                rivals,
                figures,
            ));
        }
    }
    for (polls, label) in [(0, "ready at once"), (1, "ready at its second poll")] {
        all.push(group(
            &format!("timeout, {label}"),
            ("timeout", &format!("{polls} {ms}")),
            "slackwheel",
            &["tokio-ct", "tokio-mt", "monoio", "slackwheel-default", "slackwheel-local"],
            vec![ns("")],
        ));
    }
}

fn threads(all: &mut Vec<Group>, ms: u64) {
    let args = format!("10000 {ms}");
    all.push(group(
        "two threads churning, one driver",
        ("threads", &args),
        "slackwheel-default",
        &["tokio-mt", "tokio-alt", "monoio", "slackwheel", "slackwheel-local"],
        vec![
            Figure::new("rate", "mops_two", "M op/s", Higher)
                .target("tokio-mt", Times(15.0))
                .target("tokio-alt", Times(4.0)),
            Figure::new("over one thread", "scaling", "x", Higher).limit(AtLeast(1.9)),
        ],
    ));
    all.push(group(
        "created on one thread, dropped on the other",
        ("crossed", "10000 20"),
        "slackwheel-default",
        &["tokio-mt"],
        vec![
            ns(""),
            Figure::new("created", "create_ns", "ns", Lower),
            Figure::new("dropped", "drop_ns", "ns", Lower),
            kernel_calls(),
        ],
    ));
}

fn resets(all: &mut Vec<Group>, ms: u64) {
    let rivals = &[
        "tokio-ct",
        "tokio-mt",
        "monoio",
        "delay-queue",
        "map-by-hand",
        "heap-by-hand",
        "slackwheel-local",
    ];
    all.push(group(
        "reset to later, 10 k others",
        ("reset", &format!("10000 later {ms}")),
        "slackwheel",
        rivals,
        vec![ns("").target(TOKIO, Times(1.0)), kernel_calls()],
    ));
    all.push(group(
        "reset to earlier, 10 k others",
        ("reset", &format!("10000 earlier {ms}")),
        "slackwheel",
        rivals,
        vec![ns(""), kernel_calls()],
    ));
    all.push(group(
        "1 M timeouts of 30 s: reset the oldest, ask for the next wake",
        ("oldest", &format!("1000000 {ms}")),
        "slackwheel",
        &["map-by-hand", "heap-by-hand", "slackwheel-local"],
        vec![ns("").limit(AtMost(150.0))],
    ));
}

fn bursts(all: &mut Vec<Group>, quick: bool) {
    let rivals: &[&'static str] = &[
        "tokio-ct",
        "tokio-mt",
        "tokio-alt",
        "delay-queue",
        "monoio",
        "async-io",
        "pingora",
        "map-by-hand",
        "heap-by-hand",
        "slackwheel-default",
        "slackwheel-local",
    ];
    let figures = || {
        vec![
            Figure::new("CPU", "cpu_ns", "ns each", Lower),
            Figure::new("insert", "insert_ns", "ns each", Lower),
            Figure::new("drive", "drive_ns", "ns each", Lower),
            Figure::new("drop", "drop_ns", "ns each", Lower),
            Figure::new("allocations", "allocations", "each", Lower),
            Figure::new("heap", "heap_bytes", "B each", Lower).limit(AtMost(80.0)),
            Figure::new("resident", "resident_bytes", "B each", Lower),
        ]
    };
    let mut tenth = figures();
    tenth[0].floor = Some("floor_ns");
    tenth[0].targets = vec![(TOKIO, Times(1.0 / 0.35)), ("delay-queue", Times(1.0 / 0.6))];
    let mut first =
        group("1 M sleeps in 0.1 s", ("burst", "1000000 100"), "slackwheel", rivals, tenth);
    first.rounds = quick.then_some(2);
    all.push(first);
    if !quick {
        let args = ("burst", "1000000 1000");
        let mut second = group("1 M sleeps in 1 s", args, "slackwheel", rivals, figures());
        second.rounds = Some(5);
        all.push(second);
    }
    all.push(group(
        "1 M entries cascade",
        ("stall", "1000000"),
        "slackwheel",
        &[],
        vec![
            Figure::new("longest stall of an insert", "longest_stall_ms", "ms", Lower)
                .limit(AtMost(1.0)),
            Figure::new("longest turn", "longest_turn_ms", "ms", Lower),
        ],
    ));
    for (keep, label, least) in [(0, "none left", 95.0), (1000, "0.1 % left at random", 85.0)] {
        all.push(group(
            &format!("memory back after 1 M, {label}"),
            ("returned", &format!("1000000 {keep}")),
            "slackwheel",
            &["map-by-hand", "heap-by-hand"],
            vec![
                Figure::new("", "returned_percent", "%", Higher).limit(AtLeast(least)),
                Figure::new("at the peak", "peak_bytes", "B each", Lower),
            ],
        ));
    }
}

fn precise(all: &mut Vec<Group>, quick: bool) {
    for (us, n) in [(100, 400), (500, 300), (1000, 200), (5000, 60)] {
        let n = if quick { n / 2 } else { n };
        let args = format!("{us} {n}");
        all.push(group(
            &format!("sleeps of {us} us beside a bare loop"),
            ("precise", &args),
            "slackwheel",
            &[],
            vec![
                Figure::new("waiting thread, over the loop", "own_over_bare_us", "us", Lower)
                    .limit(AtMost(3.0)),
                Figure::new(
                    "default driver, over loop + hand-off",
                    "default_over_hand_off_us",
                    "us",
                    Lower,
                )
                .limit(AtMost(6.0)),
                Figure::new("CPU over the loop's", "own_cpu_ratio", "x", Lower).limit(AtMost(1.3)),
                Figure::new("late with a spin tail", "spun_late_us", "us", Lower)
                    .against("late_us"),
                Figure::new("CPU with a spin tail", "spun_cpu_us", "us", Lower).against("cpu_us"),
            ],
        ));
        all.push(group(
            &format!("sleeps of {us} us"),
            ("precise", &args),
            "slackwheel-default",
            &["tokio-ct", "monoio", "async-io", "futures-timer", "map-by-hand"],
            vec![
                Figure::new("late", "late_us", "us", Lower),
                Figure::new("CPU", "cpu_us", "us", Lower),
            ],
        ));
    }
}

fn wakeups(all: &mut Vec<Group>, quick: bool) {
    let kinds = [
        ("0", "slack 0"),
        ("1", "slack 1 ms"),
        ("10", "slack 10 ms"),
        ("50", "slack 50 ms"),
        ("mixed1", "1 % exact, 99 % 50 ms"),
        ("mixed10", "10 % exact, 90 % 50 ms"),
    ];
    for (kind, label) in kinds {
        all.push(group(
            &format!("10 k periodic timers, {label}, manual clock"),
            ("periodic-manual", &format!("10000 {kind} 5000")),
            "slackwheel",
            &[],
            vec![
                Figure::new("wakeups", "wakeups", "", Lower).against("optimum"),
                Figure::new("wakeups over the optimum", "of_optimum", "x", Lower)
                    .limit(AtMost(1.0)),
            ],
        ));
        let last = all.len() - 1;
        all[last].rounds = Some(1);
        if quick && kind != "mixed1" {
            continue;
        }
        let mixed = kind.starts_with("mixed");
        let mut ratio = Figure::new("wakeups over the optimum", "of_optimum", "x", Lower);
        let mut late = Figure::new("late (of the exact ones)", "late_us", "us", Lower);
        if kind == "mixed1" {
            ratio.limit = Some(AtMost(1.05));
            late.limit = Some(AtMost(60.0));
        }
        let mut figures = vec![
            Figure::new("wakeups", "wakeups", "", Lower).floor("optimum"),
            ratio,
            Figure::new("CPU", "cpu_ms", "ms", Lower),
        ];
        if mixed || kind == "0" {
            figures.push(late);
        }
        let rivals: &[&'static str] = match quick {
            true => &["tokio-ct", "tokio-ct+prctl"],
            false => &[
                "tokio-ct",
                "tokio-ct+prctl",
                "tokio-mt",
                "monoio",
                "async-io",
                "map-by-hand",
                "slackwheel-default",
                "slackwheel-local",
            ],
        };
        let mut real = group(
            &format!("10 k periodic timers, {label}"),
            ("periodic", &format!("10000 {kind} 5000")),
            "slackwheel",
            rivals,
            figures,
        );
        real.rounds = Some(if quick { 1 } else { 3 });
        all.push(real);
    }
    let cancels = [
        ("99 timeouts", "30 s timeouts, 99 % cancelled within 1 s", 1.01),
        ("50 uniform", "50 % cancelled at a random point", 1.05),
        ("90 uniform", "90 % cancelled at a random point", 1.05),
        ("99 uniform", "99 % cancelled at a random point", 1.05),
    ];
    for (args, label, most) in cancels {
        let mut arms = Figure::new("arms", "arms_per_wakeup", "a wakeup", Lower);
        if args.ends_with("uniform") {
            arms.limit = Some(AtMost(2.5));
        }
        let mut cancelled = group(
            &format!("{label}, manual clock"),
            ("cancels", args),
            "slackwheel",
            &[],
            vec![
                Figure::new("wakeups over exact re-arming", "of_exact", "x", Lower)
                    .limit(AtMost(most)),
                arms,
            ],
        );
        cancelled.rounds = Some(1);
        all.push(cancelled);
    }
    let mut idle = group(
        "100 k timers hours away and one 10 s away, manual clock",
        ("idle-manual", "100000"),
        "slackwheel",
        &[],
        vec![Figure::new("wakeups", "wakeups", "", Lower).limit(AtMost(1.0))],
    );
    idle.rounds = Some(1);
    all.push(idle);
    if !quick {
        let mut idle = group(
            "100 k timers hours away and one 10 s away",
            ("idle", "100000"),
            "slackwheel",
            &["tokio-ct", "monoio", "async-io", "pingora", "map-by-hand", "slackwheel-default"],
            vec![
                Figure::new("wakeups", "wakeups", "", Lower).limit(AtMost(1.0)),
                Figure::new("CPU", "cpu_ms", "ms", Lower),
            ],
        );
        idle.rounds = Some(1);
        all.push(idle);
    }
}

/// Figures that compare two groups.
pub fn derived(groups: &[Group], measured: &Measured) -> Vec<Row> {
    let find = |name: &str| groups.iter().position(|g| g.name == name);
    let mut rows = Vec::new();
    for (driver, ours) in [("", "slackwheel"), ("local driver, ", "slackwheel-local")] {
        let name = |others: &str| format!("create + poll + drop, {driver}{others} others");
        if let (Some(none), Some(million)) = (find(&name("0")), find(&name("1 M")))
            && let (Some(none), Some(million)) =
                (measured.stats(none, ours, "ns"), measured.stats(million, ours, "ns"))
        {
            let figure = format!("create + poll + drop, {driver}1 M others beside 0");
            let beside = ("ours with 0", none);
            let target = Some(Times(1.0 / 1.2));
            rows.push(row(&figure, ("ns", Lower), million, beside, None, target));
        }
    }
    rows
}
