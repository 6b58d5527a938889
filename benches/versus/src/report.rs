//! What was measured, as rows: one figure beside one peer.

use crate::plan::{Better, Group, Target, derived};
use crate::run::{Measured, Stats};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub figure: String,
    pub unit: &'static str,
    /// Medians; the spread beside them.
    pub ours: f64,
    pub ours_min: f64,
    pub ours_max: f64,
    pub peer: String,
    pub peer_value: f64,
    pub peer_min: f64,
    pub peer_max: f64,
    /// How many times better ours is; below one it is worse.
    pub ratio: f64,
    /// What the machine itself costs, where that is known: nobody can be below.
    pub floor: Option<f64>,
    pub target: Option<String>,
    pub met: Option<bool>,
}

pub fn row(
    figure: &str,
    (unit, better): (&'static str, Better),
    ours: Stats,
    (peer, theirs): (&str, Stats),
    floor: Option<f64>,
    target: Option<Target>,
) -> Row {
    let ratio = match better {
        Better::Lower => theirs.median / ours.median,
        Better::Higher => ours.median / theirs.median,
    };
    let met = target.map(|t| match t {
        Target::Times(x) => ratio >= x,
        Target::AtMost(x) => ours.median <= x,
        Target::AtLeast(x) => ours.median >= x,
    });
    let target = target.map(|t| match t {
        Target::Times(x) => format!("ratio >= {x:.2}"),
        Target::AtMost(x) => format!("ours <= {x}"),
        Target::AtLeast(x) => format!("ours >= {x}"),
    });
    Row {
        figure: figure.to_owned(),
        unit,
        ours: ours.median,
        ours_min: ours.min,
        ours_max: ours.max,
        peer: peer.to_owned(),
        peer_value: theirs.median,
        peer_min: theirs.min,
        peer_max: theirs.max,
        ratio,
        floor,
        target,
        met,
    }
}

pub fn rows(groups: &[Group], measured: &Measured) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        for spec in &group.figures {
            let figure = match spec.name {
                "" => group.name.clone(),
                name => format!("{}: {name}", group.name),
            };
            let kind = (spec.unit, spec.better);
            let Some(ours) = measured.stats(at, group.ours, spec.key) else { continue };
            let floor = spec.floor.and_then(|key| measured.stats(at, group.ours, key));
            let floor = floor.map(|s| s.median);
            if let Some(limit) = spec.limit {
                let (name, value) = match limit {
                    Target::AtMost(x) | Target::AtLeast(x) => ("limit", x),
                    Target::Times(_) => unreachable!("a limit is absolute"),
                };
                let theirs = (name, Stats::exactly(value));
                rows.push(row(&figure, kind, ours, theirs, floor, Some(limit)));
            }
            if let Some(key) = spec.against
                && let Some(theirs) = measured.stats(at, group.ours, key)
            {
                rows.push(row(&figure, kind, ours, (key, theirs), floor, None));
            }
            if spec.limit.is_none() && spec.against.is_none() && group.peers.is_empty() {
                // Reported for its own sake.
                rows.push(row(&figure, kind, ours, ("-", ours), floor, None));
            }
            for (peer, target) in spec.peers(group) {
                // "a|b" stands for the better of the two.
                let candidates = peer.split('|').filter_map(|p| measured.stats(at, p, spec.key));
                let best = candidates.min_by(|a, b| match spec.better {
                    Better::Lower => a.median.total_cmp(&b.median),
                    Better::Higher => b.median.total_cmp(&a.median),
                });
                if let Some(theirs) = best {
                    let name = if peer.contains('|') { "tokio, the better" } else { peer };
                    rows.push(row(&figure, kind, ours, (name, theirs), floor, target));
                }
            }
        }
    }
    rows.extend(derived(groups, measured));
    rows
}

fn short(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 && value.abs() < 1e9 => format!("{value:.0}"),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn spread(median: f64, min: f64, max: f64) -> String {
    match min == max {
        true => short(median),
        false => format!("{} [{}..{}]", short(median), short(min), short(max)),
    }
}

/// A table that is Markdown, too.
pub fn table(rows: &[Row]) {
    let head = ["figure", "unit", "ours", "peer", "theirs", "ratio", "floor", "target", "met"];
    let mut cells: Vec<[String; 9]> = vec![head.map(str::to_owned)];
    let mut last = "";
    for r in rows {
        let figure = if r.figure == last { "" } else { &r.figure };
        last = &r.figure;
        cells.push([
            figure.to_owned(),
            r.unit.to_owned(),
            spread(r.ours, r.ours_min, r.ours_max),
            r.peer.clone(),
            spread(r.peer_value, r.peer_min, r.peer_max),
            if r.peer == "-" { String::new() } else { format!("{:.2}", r.ratio) },
            r.floor.map(short).unwrap_or_default(),
            r.target.clone().unwrap_or_default(),
            match r.met {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => String::new(),
            },
        ]);
    }
    let widths: Vec<usize> =
        (0..9).map(|c| cells.iter().map(|row| row[c].chars().count()).max().unwrap_or(0)).collect();
    for (n, row) in cells.iter().enumerate() {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}", w = *w)).collect();
        println!("| {} |", line.join(" | "));
        if n == 0 {
            let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
            println!("| {} |", rule.join(" | "));
        }
    }
}

/// Says which targets are missed; how many there are.
pub fn summary(rows: &[Row], aloud: bool) -> usize {
    let with_target = rows.iter().filter(|r| r.met.is_some()).count();
    let missed: Vec<&Row> = rows.iter().filter(|r| r.met == Some(false)).collect();
    if aloud {
        println!("\n{} of {with_target} targets met", with_target - missed.len());
        for r in &missed {
            println!(
                "missed: {} beside {}: {} {} to {}, ratio {:.2}, target {}",
                r.figure,
                r.peer,
                short(r.ours),
                r.unit,
                short(r.peer_value),
                r.ratio,
                r.target.as_deref().unwrap_or("")
            );
        }
    }
    missed.len()
}
