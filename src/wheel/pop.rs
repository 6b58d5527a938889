//! Taking one due entry at a time: for owners that keep due entries pending until somebody asks, such as
//! a delay queue.
//!
//! Ground rules:
//! - A due entry that was not taken stays an ordinary entry: it can be cancelled and reset, and the cursor
//!   waits at its slot.
//! - Slots above level 0 are always split, never fired whole, so that taking one entry disturbs no other.

use super::slots::{LEVELS, NIL, SLOTS};
use super::{Fired, Key, Splitting, Wheel};
use crate::tick::{NEVER, tick_of, tick_start};

/// What [`Wheel::pop`] found.
#[derive(Debug)]
pub(crate) enum Popped<T> {
    /// A due entry, taken out.
    Entry(Fired<T>),
    /// Nothing is due.
    Nothing,
    /// The limit was reached before the first due entry was found: call again.
    Unfinished,
}

impl<T> Wheel<T> {
    /// Moves to `now` and takes out the first entry with `earliest <= now`, in the order of
    /// [`Wheel::advance`]. Moves about `limit` entries at most.
    pub(crate) fn pop(&mut self, now: u64, limit: usize) -> Popped<T> {
        let now = now.max(self.now);
        self.now = now;
        let present = tick_of(now);
        let mut left = limit.max(1);
        loop {
            if let Some(splitting) = self.splitting {
                if left == 0 {
                    return Popped::Unfinished;
                }
                self.split(splitting, &mut left);
                self.bound_fresh = false;
                continue;
            }
            let Some((level, at)) = self.first_slot() else { break };
            let start = self.slot_start(level, at);
            if start > present {
                break;
            }
            let slot = level * SLOTS + at;
            if level > 0 {
                self.cursor = start;
                self.splitting = Some(Splitting { slot, level, start });
                continue;
            }
            self.cursor = self.cursor.max(start);
            let mut one = None;
            self.fire_tick(slot, start, now, &mut 1, &mut 0, &mut |fired| one = Some(fired));
            self.bound_fresh = false;
            if let Some(fired) = one {
                return Popped::Entry(fired);
            }
            if start == present {
                break;
            }
        }
        self.cursor = self.cursor.max(present);
        if self.bound <= now {
            // As in `advance`: a rough bound that has been reached.
            self.bound_fresh = false;
        }
        Popped::Nothing
    }

    /// The entry that comes first: by `earliest` to the tick, then by insertion. Reads the entries of a
    /// slot.
    pub(crate) fn first(&self) -> Option<Key> {
        let mut best: Option<(u64, Key)> = None;
        self.scan(usize::MAX, |wheel, earliest, index| {
            let sequence = wheel.entries.at(index).sequence;
            let tick = tick_of(earliest);
            if best.is_none_or(|(t, key)| (tick, sequence) < (t, key.sequence)) {
                best = Some((tick, Key { sequence, index }));
            }
        });
        best.map(|(_, key)| key)
    }

    /// A lower bound of the smallest pending `earliest` that is exact when finding it takes no more than
    /// `looks` entries.
    pub(crate) fn first_due_within(&self, looks: usize) -> u64 {
        if self.splitting.is_some() {
            return 0;
        }
        let mut best = NEVER;
        let cut = self.scan(looks, |_, earliest, _| best = best.min(earliest));
        cut.map_or(best, |bound| bound.min(best))
    }

    /// Shows the entries of the slots that may hold the smallest `earliest`, slot by slot in the order of
    /// time. Stops before a slot that would take it past `looks` entries, and says when that slot
    /// starts.
    pub(super) fn scan(&self, looks: usize, mut see: impl FnMut(&Self, u64, u32)) -> Option<u64> {
        let mut seen = 0;
        let mut best = NEVER;
        for level in 0..LEVELS {
            let mut bits = self.slots.occupied(level);
            while bits != 0 {
                let at = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let start = tick_start(self.slot_start(level, at));
                // A slot in the middle of its split lies above later ones, so then all are looked at.
                if best < start && self.splitting.is_none() {
                    return None;
                }
                seen += self.slots.live(level * SLOTS + at) as usize;
                if seen > looks {
                    // The cursor's own slot may hold what was due when it was inserted.
                    return Some(if tick_of(start) <= self.cursor { 0 } else { start });
                }
                let mut chunk = self.slots.head(level * SLOTS + at);
                while chunk != NIL {
                    for item in self.slots.items(chunk).iter().filter(|i| i.entry != NIL) {
                        best = best.min(item.earliest);
                        see(self, item.earliest, item.entry);
                    }
                    chunk = self.slots.next(chunk);
                }
            }
        }
        None
    }
}
