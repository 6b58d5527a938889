//! The firing point: where within the windows the driver wakes.
//!
//! With H the smallest `latest` pending and L the largest `earliest` that is at most H, any instant in
//! `[L, H]` fires the same timers of those pending. A policy picks one.

use crate::sys::process::boot_id;
use std::sync::OnceLock;

/// Where within the windows a driver wakes, or where within its own a timer wants to be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Firing {
    /// As late as the windows allow: timers that arrive meanwhile join, and a wakeup from outside may make
    /// it unnecessary. The fewest wakeups, and the only policy that promises their number.
    #[default]
    Latest,
    /// As early as serves the same timers: the least lateness for what is pending when the driver parks.
    EarliestCommon,
    /// At a point of a grid that all processes of this boot share (60 s, 10 s, 1 s, 250 ms, 50 ms, 10 ms,
    /// 1 ms, the coarsest that has a point in the window; its phase comes from the boot's id, so that
    /// machines differ). Independent processes wake together, at the price of some wakeups of each.
    Aligned,
}

impl Firing {
    pub(crate) const ALL: [Firing; 3] = [Firing::Latest, Firing::EarliestCommon, Firing::Aligned];
}

/// Spacings of the grid in nanoseconds, coarsest first; after the sd-event library's, which ends at 250 ms.
const GRID: [u64; 7] =
    [60_000_000_000, 10_000_000_000, 1_000_000_000, 250_000_000, 50_000_000, 10_000_000, 1_000_000];

/// The latest point of the coarsest grid in `[from, to]`; `to` when there is none.
pub(crate) fn aligned(from: u64, to: u64) -> u64 {
    static PHASE: OnceLock<u64> = OnceLock::new();
    let phase = *PHASE.get_or_init(|| boot_id() % GRID[0]);
    on_grid(from, to, phase)
}

fn on_grid(from: u64, to: u64, phase: u64) -> u64 {
    for spacing in GRID {
        let offset = phase % spacing;
        let Some(past_first) = to.checked_sub(offset) else { continue };
        let point = offset + past_first / spacing * spacing;
        if point >= from {
            return point;
        }
    }
    to
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_grid_point_is_in_the_window_and_the_same_for_all(
            from in 0u64..1 << 50, slack in 0u64..1 << 36, phase in 0u64..60_000_000_000,
            other in 0u64..1 << 30,
        ) {
            let to = from + slack;
            let point = on_grid(from, to, phase);
            prop_assert!((from..=to).contains(&point));
            // Another process, whose window is a little different but holds the same coarse point.
            let spacing = GRID.into_iter().find(|g| point % g == phase % g);
            if let Some(spacing) = spacing {
                let to = point + other % spacing;
                prop_assert_eq!(on_grid(point.saturating_sub(other % spacing), to, phase), point);
            }
        }
    }

    #[test]
    fn the_edges_of_time_have_points_too() {
        assert_eq!(on_grid(0, 0, 7), 0);
        assert_eq!(on_grid(5, 5, 5), 5);
        let point = on_grid(u64::MAX - 1, u64::MAX, 3);
        assert!(point >= u64::MAX - 1);
        assert!(on_grid(0, u64::MAX, 59_999_999_999) > u64::MAX - 60_000_000_000);
    }
}
