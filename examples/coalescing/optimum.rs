//! The fewest wakeups that any schedule needs, known only afterwards.
//!
//! A window counts from its registration on. One that is open when it registers needs no wakeup.
//! Wakeups from outside happen anyway: what they find open is served for nothing. The rest are
//! intervals, and the fewest points that meet them all are found greedily: go by closing time, and wake
//! at the last moment of the first window that no point so far has met.

use crate::run::Window;

/// The fewest forced wakeups for `windows`, with wakeups from outside at `free` (in order of time).
pub(crate) fn optimum(windows: &[Window], free: &[u64]) -> usize {
    let mut spans: Vec<(u64, u64)> = windows
        .iter()
        .filter(|w| w.earliest > w.registered)
        .map(|w| (w.earliest, w.latest))
        .filter(|&(earliest, latest)| {
            let next = free.partition_point(|&at| at < earliest);
            free.get(next).is_none_or(|&at| at > latest)
        })
        .collect();
    spans.sort_unstable_by_key(|&(_, latest)| latest);
    let mut points = 0;
    let mut last = None;
    for (earliest, latest) in spans {
        if last.is_none_or(|at| at < earliest) {
            points += 1;
            last = Some(latest);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(spans: &[(u64, u64, u64)]) -> Vec<Window> {
        spans
            .iter()
            .map(|&(registered, earliest, latest)| Window {
                round: 0,
                earliest,
                latest,
                registered,
                fired: None,
            })
            .collect()
    }

    #[test]
    fn overlapping_windows_need_one_point_and_touching_ones_overlap() {
        assert_eq!(optimum(&windows(&[(0, 1, 5), (0, 3, 9), (0, 5, 6)]), &[]), 1);
        assert_eq!(optimum(&windows(&[(0, 1, 5), (0, 6, 9)]), &[]), 2);
        assert_eq!(optimum(&[], &[]), 0);
    }

    #[test]
    fn outside_wakeups_and_open_windows_are_free() {
        let all = windows(&[(0, 1, 5), (0, 8, 9), (7, 7, 20), (7, 3, 20)]);
        assert_eq!(optimum(&all, &[]), 2);
        assert_eq!(optimum(&all, &[5]), 1);
        assert_eq!(optimum(&all, &[0, 6, 7, 10]), 2);
        assert_eq!(optimum(&all, &[1, 8]), 0);
    }
}
