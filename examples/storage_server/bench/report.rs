//! Table, JSON and picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use serde_json::json;

use crate::commit::settings::Policy;

use super::plan::{Row, SlackArgs};

pub(crate) fn emit(rows: &[Row], args: &SlackArgs) -> Result<(), String> {
    if let Some(path) = &args.svg {
        draw(rows, path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    print!("{}", if args.json { to_json(rows) } else { to_table(rows) });
    Ok(())
}

/// An array with one row a line, so that both `jq` and `grep` can read it.
fn to_json(rows: &[Row]) -> String {
    let line = |row: &Row| {
        json!({
            "workload": row.workload,
            "writers": row.writers,
            "slack_us": row.variant.slack_us,
            "policy": row.variant.policy.name(),
            "device": row.device,
            "ops_per_s": (row.ops_per_s * 10.0).round() / 10.0,
            "commits": row.commits,
            "batch_mean": (row.batch_mean * 1000.0).round() / 1000.0,
            "wait_p50_ns": row.wait_p50_ns,
            "expiries_per_commit": (row.expiries_per_commit * 1000.0).round() / 1000.0,
            "own_expiries_per_commit": (row.own_expiries_per_commit * 1000.0).round() / 1000.0,
        })
        .to_string()
    };
    let lines: Vec<_> = rows.iter().map(line).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

/// The rows of one device, workload and width.
struct Group<'a> {
    rows: Vec<&'a Row>,
}

impl Group<'_> {
    fn ops(&self, policy: Policy, slack_us: Option<u32>) -> Option<f64> {
        let fits = |r: &&&Row| {
            r.variant.policy == policy && slack_us.is_none_or(|s| r.variant.slack_us == s)
        };
        self.rows.iter().find(fits).map(|r| r.ops_per_s)
    }

    /// From the widest fixed slack to slack = resolution, in percent.
    fn gain(&self) -> Option<f64> {
        let widest = self.rows.iter().filter(|r| r.variant.policy == Policy::Fixed);
        let widest = widest.map(|r| r.variant.slack_us).max()?;
        let fixed = self.ops(Policy::Fixed, Some(widest))?;
        Some((self.ops(Policy::Resolution, None)? / fixed - 1.0) * 100.0)
    }

    /// Adaptive against the best of the others.
    fn adaptive(&self) -> Option<f64> {
        let others = self.rows.iter().filter(|r| r.variant.policy != Policy::Adaptive);
        let best = others.map(|r| r.ops_per_s).fold(0.0, f64::max);
        Some(self.ops(Policy::Adaptive, None)? / best)
    }
}

fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let same =
        |a: &Row, b: &Row| (&a.device, a.workload, a.writers) == (&b.device, b.workload, b.writers);
    rows.chunk_by(|a, b| same(a, b)).map(|rows| Group { rows: rows.iter().collect() }).collect()
}

fn to_table(rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        out,
        "{:<10} {:<8} {:>7} {:<15} {:>9} {:>8} {:>6} {:>11} {:>10} {:>6}",
        "device",
        "workload",
        "writers",
        "policy",
        "ops/s",
        "commits",
        "batch",
        "late p50 us",
        "expiries/c",
        "own/c"
    );
    for group in groups(rows) {
        for row in &group.rows {
            let policy = match row.variant.policy {
                Policy::Fixed => format!("fixed {} us", row.variant.slack_us),
                policy => policy.name().to_string(),
            };
            let _ = writeln!(
                out,
                "{:<10} {:<8} {:>7} {policy:<15} {:>9.0} {:>8} {:>6.2} {:>11.1} {:>10.2} {:>6.2}",
                row.device,
                row.workload,
                row.writers,
                row.ops_per_s,
                row.commits,
                row.batch_mean,
                row.wait_p50_ns as f64 / 1e3,
                row.expiries_per_commit,
                row.own_expiries_per_commit,
            );
        }
        if let (Some(gain), Some(share)) = (group.gain(), group.adaptive()) {
            let _ = writeln!(
                out,
                "{:>27} gain of slack = resolution {gain:+.1} %, adaptive {share:.3} x the best",
                ""
            );
        }
    }
    out
}

/// One panel for each device: throughput of the first workload by width.
fn draw(rows: &[Row], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut devices: Vec<&str> = Vec::new();
    for row in rows {
        if !devices.contains(&row.device.as_str()) {
            devices.push(&row.device);
        }
    }
    let workload = rows.first().ok_or("there is nothing to draw")?.workload;
    let root = SVGBackend::new(path, (900, 340 * devices.len() as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((devices.len(), 1));
    for (device, panel) in devices.iter().zip(&panels) {
        let shown = |r: &&Row| r.device == *device && r.workload == workload;
        let shown: Vec<&Row> = rows.iter().filter(shown).collect();
        let top = shown.iter().map(|r| r.ops_per_s).fold(1.0, f64::max);
        let widths: BTreeSet<usize> = shown.iter().map(|r| r.writers).collect();
        let (first, last) = (widths.first().copied(), widths.last().copied());
        let x = first.unwrap_or(1) as f64..last.unwrap_or(1) as f64 * 1.01;
        let bottom = shown.iter().map(|r| r.ops_per_s).fold(top, f64::min);
        let y = (bottom * 0.8).max(1.0)..top * 1.2;
        let mut chart = ChartBuilder::on(panel)
            .caption(format!("{workload} on {device}"), ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(34)
            .y_label_area_size(70)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart.configure_mesh().x_desc("writers").y_desc("writes/s").draw()?;
        let mut variants: Vec<_> = Vec::new();
        for row in &shown {
            if !variants.contains(&row.variant) {
                variants.push(row.variant);
            }
        }
        for (i, variant) in variants.into_iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let line = shown.iter().filter(|r| r.variant == variant);
            let points: Vec<_> = line.map(|r| (r.writers as f64, r.ops_per_s)).collect();
            let name = match variant.policy {
                Policy::Fixed => format!("slack {} us", variant.slack_us),
                policy => policy.name().to_string(),
            };
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
