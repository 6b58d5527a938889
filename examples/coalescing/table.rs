//! The figures for people.

use crate::report::Report;

const HEAD: [&str; 15] = [
    "slack",
    "timers",
    "wakeups",
    "outside",
    "optimum",
    "ratio",
    "kernel",
    "process",
    "early",
    "missed",
    "by at most",
    "late p50",
    "late p99",
    "arms",
    "CPU",
];

const LEGEND: &str = "\
wakeups   returns from the kernel on the driver's thread, as the driver counts them
outside   of these, the ones that something else than a timer caused
optimum   the fewest wakeups that could serve these windows, outside ones being free
ratio     (wakeups - outside) / optimum; below 1 when the kernel woke so late that the next windows
          were open already
kernel    wakeups of the driver's thread as the kernel counts them (voluntary context switches)
process   the same for all threads, those that bring the timers included
missed    completed after the window closed; the kernel wakes at its very end, and takes a moment
late      completion - earliest, read from the clock where the task completes
";

pub(crate) fn table(reports: &[Report]) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    rows.extend(reports.iter().map(row));
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|c| rows.iter().map(|r| r[c].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(&widths) {
            text.push_str(&format!("{cell:>width$}  "));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text + "\n" + LEGEND
}

fn row(r: &Report) -> [String; HEAD.len()] {
    let kernel = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    // Equal but for the timers that were lost.
    let timers = if r.fired == r.timers {
        r.timers.to_string()
    } else {
        format!("{}/{}", r.fired, r.timers)
    };
    [
        r.slack.to_string(),
        timers,
        r.wakeups.to_string(),
        r.outside_wakeups.to_string(),
        r.optimum.to_string(),
        format!("{:.2}", r.ratio),
        kernel(r.driver_kernel_wakeups),
        kernel(r.kernel_wakeups),
        r.early.to_string(),
        r.missed.to_string(),
        nanos(r.overrun_max_ns),
        nanos(r.lateness_p50_ns),
        nanos(r.lateness_p99_ns),
        r.arm_calls.to_string(),
        nanos(r.cpu_ns),
    ]
}

/// Three digits or so, and a unit.
pub(crate) fn nanos(ns: u64) -> String {
    match ns {
        0 => "0".into(),
        1..1_000 => format!("{ns} ns"),
        1_000..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..10_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let shown = [0, 7, 1_500, 52_000, 9_810_000, 51_200_000, 1_234_000_000].map(nanos);
        assert_eq!(shown, ["0", "7 ns", "1.5 us", "52 us", "9.8 ms", "51 ms", "1.23 s"]);
    }
}
