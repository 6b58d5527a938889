//! Timers of a virtual machine: windows, and the kernel timer that serves them.
//!
//! The rule is the crate's: the kernel timer is armed for the smallest `latest`, and when it
//! expires everything whose `earliest` has come fires with it.

use std::collections::BTreeMap;

use crate::commit::settings::Nanos;

/// Pending windows with something attached.
#[derive(Debug)]
pub(crate) struct Windows<T> {
    /// By latest, then by insertion.
    pending: BTreeMap<(Nanos, u64), (Nanos, T)>,
    inserted: u64,
    expiries: u64,
}

impl<T> Windows<T> {
    pub(crate) fn new() -> Self {
        Self {
            pending: BTreeMap::new(),
            inserted: 0,
            expiries: 0,
        }
    }

    pub(crate) fn insert(&mut self, earliest: Nanos, latest: Nanos, item: T) {
        self.pending
            .insert((latest, self.inserted), (earliest, item));
        self.inserted += 1;
    }

    /// When the kernel timer is armed for.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        self.pending
            .first_key_value()
            .map(|((latest, _), _)| *latest)
    }

    /// The kernel timer expired: takes out all that is due.
    pub(crate) fn expire(&mut self, now: Nanos) -> Vec<T> {
        self.expiries += 1;
        let due = self
            .pending
            .iter()
            .filter(|(_, (earliest, _))| *earliest <= now);
        let due: Vec<_> = due.map(|(key, _)| *key).collect();
        due.iter()
            .filter_map(|key| self.pending.remove(key))
            .map(|(_, item)| item)
            .collect()
    }

    pub(crate) fn expiries(&self) -> u64 {
        self.expiries
    }
}
