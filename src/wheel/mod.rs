//! A hierarchical timing wheel of windows: pure data, no clock, no lock, no waker, no I/O.
//!
//! An entry is a window `[earliest, latest]` in nanoseconds and a value. Time comes in as a number:
//! [`Wheel::advance`] hands out every entry whose `earliest` has come, [`Wheel::next_wake`] says when
//! it must be called again at the latest.
//!
//! ```
//! use slackwheel::wheel::Wheel;
//!
//! let mut wheel = Wheel::new();
//! wheel.insert(10_000, 50_000, "a");
//! wheel.insert(20_000, 40_000, "b");
//! wheel.insert(30_000, 60_000, "c");
//! // One wakeup, at the smallest `latest`, serves all three.
//! assert_eq!(wheel.next_wake(), Some(40_000));
//! let mut fired = Vec::new();
//! wheel.advance(40_000, usize::MAX, |f| fired.push(f.value));
//! assert_eq!(fired, ["a", "b", "c"]);
//! assert_eq!(wheel.next_wake(), None);
//! ```
//!
//! # Ground rules
//!
//! - Nine levels of 64 slots index the whole of `u64` by `earliest`, in ticks of 1.024 us: there is no
//!   horizon, no overflow list and no wrap. An entry's level is the highest group of six bits in
//!   which its tick differs from the *cursor*'s, so everything on a level is earlier than everything
//!   on the level above, and the next slot is the lowest bit of the lowest level in use.
//! - The cursor is a tick that has been reached. It moves to a slot's start just before that slot is
//!   split onto lower levels, and to the present when nothing before the present is left.
//! - Placement rounds down to the tick; firing compares nanoseconds. An entry placed too early is
//!   merely looked at too early. That is why a reset to a later time may leave the entry where it is.
//! - A level boundary is no deadline: `next_wake` knows only `latest`.
//! - Work is bounded: `advance` takes a limit on entries fired or moved, and may be called again.

mod advance;
mod arena;
mod entry;
#[cfg(all(test, not(loom)))]
mod model;
mod pop;
mod slots;

pub use advance::{Advance, Fired};
pub(crate) use pop::Popped;

use crate::tick::{NEVER, tick_of, tick_start};
use arena::Arena;
use entry::Entry;
use slots::{BITS, Item, LEVELS, NIL, RESCAN, SLOTS, Slots};

/// Names an entry of one [`Wheel`]. A key is never used twice, so a stale one is harmless: every
/// operation on it says that the entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    sequence: u64,
    index: u32,
}

impl Key {
    /// Of [`Key::into_parts`].
    #[inline(always)]
    pub(crate) fn from_parts(sequence: u64, index: u32) -> Self {
        Key { sequence, index }
    }

    /// For owners that pack it closer than the compiler can.
    #[inline(always)]
    pub(crate) fn into_parts(self) -> (u64, u32) {
        (self.sequence, self.index)
    }
}

/// A hierarchical timing wheel of windows. See the [module's documentation](self).
///
/// Times are nanoseconds on a clock of the caller's choice. `u64::MAX` is past its end: it forces no
/// wake, and fires only when [`Wheel::advance`] is told that very time.
pub struct Wheel<T> {
    entries: Arena<Entry<T>>,
    slots: Slots,
    /// The present, as last told by `advance`.
    now: u64,
    /// See the ground rules.
    cursor: u64,
    /// The slot being split over several calls of `advance`, with its level and its first tick.
    splitting: Option<Splitting>,
    sequence: u64,
    /// Items taken from a slot and not yet placed: empty between calls.
    hand: Vec<Item>,
    /// Where they are sorted.
    sorted: Vec<Item>,
    /// A lower bound of the smallest `latest`.
    bound: u64,
    /// No entry has left since `bound` was found.
    bound_fresh: bool,
    /// `bound` is that of a stale slot too large to rescan.
    bound_rough: bool,
}

#[derive(Clone, Copy)]
struct Splitting {
    slot: usize,
    level: usize,
    start: u64,
}

impl<T> std::fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wheel").field("len", &self.len()).field("now", &self.now).finish()
    }
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Wheel::new()
    }
}

impl<T> Wheel<T> {
    /// An empty wheel at time zero. Its first entry allocates.
    pub fn new() -> Self {
        Wheel {
            entries: Arena::new(),
            slots: Slots::new(),
            now: 0,
            cursor: 0,
            splitting: None,
            sequence: 0,
            hand: Vec::new(),
            sorted: Vec::new(),
            bound: NEVER,
            bound_fresh: true,
            bound_rough: false,
        }
    }

    /// Number of pending entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries inserted so far.
    pub(crate) fn inserted(&self) -> u64 {
        self.sequence
    }

    /// The latest time [`Wheel::advance`] was told, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Adds an entry that may fire from `earliest` on and should by `latest` (nanoseconds). A
    /// `latest` before `earliest` acts as `earliest`. A window in the past is due at the next
    /// [`Wheel::advance`]. Constant time; allocates only when more entries than ever are pending.
    #[inline]
    pub fn insert(&mut self, earliest: u64, latest: u64, value: T) -> Key {
        let latest = latest.max(earliest);
        self.sequence += 1;
        let sequence = self.sequence;
        let slot = self.slot_for(earliest);
        let slots = &mut self.slots;
        let index = self.entries.insert_with(|index| {
            Entry::new(value, sequence, slot, slots.push(slot, earliest, latest, index))
        });
        self.bound = self.bound.min(latest);
        Key { sequence, index }
    }

    /// Takes the entry out, if it is still pending. Constant time.
    #[inline]
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.find_mut(key)?;
        let (slot, place) = (entry.slot as usize, entry.place);
        let value = entry.vacate();
        let latest = self.slots.remove(slot, place, &mut self.entries);
        self.entries.release(key.index);
        if latest == self.bound {
            self.bound_fresh = false;
        }
        value
    }

    /// Moves a pending entry to another window; false when it is no longer pending. Constant time.
    /// Among entries of the same tick the place of one that was reset is not promised.
    #[inline]
    pub fn reset(&mut self, key: Key, earliest: u64, latest: u64) -> bool {
        let Some(entry) = self.entries.find(key) else { return false };
        let (slot, place) = (entry.slot as usize, entry.place);
        let latest = latest.max(earliest);
        let before = match self.slots.postpone(slot, place, earliest, latest) {
            Some(before) => before,
            None => {
                let before = self.slots.remove(slot, place, &mut self.entries);
                self.place(earliest, latest, key.index);
                before
            }
        };
        if before == self.bound && latest != before {
            self.bound_fresh = false;
        }
        self.bound = self.bound.min(latest);
        true
    }

    /// True while the entry is pending.
    pub fn contains(&self, key: Key) -> bool {
        self.entries.find(key).is_some()
    }

    /// The entry's value, while it is pending.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.entries.find(key)?.value()
    }

    /// The entry's value, while it is pending.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries.find_mut(key)?.value_mut()
    }

    /// The entry's window `(earliest, latest)` in nanoseconds, while it is pending.
    pub fn window(&self, key: Key) -> Option<(u64, u64)> {
        let item = self.slots.item(self.entries.find(key)?.place);
        Some((item.earliest, item.latest))
    }

    /// When [`Wheel::advance`] must be called at the latest: never after the smallest pending
    /// `latest`, and at it unless entries were cancelled or postponed in a slot of more than 64.
    /// Such a slot is taken at a bound that may be too early; calling `advance` then repairs it.
    /// Looks at no more than 64 entries of any slot, whatever is pending.
    ///
    /// `None` when nothing forces a call: the wheel is empty, or every `latest` is `u64::MAX`.
    #[inline]
    pub fn next_wake(&mut self) -> Option<u64> {
        let (bound, _) = self.next_wake_bound(RESCAN);
        (bound != NEVER).then_some(bound)
    }

    /// As [`Wheel::next_wake`], with slots of up to `rescan` entries made exact; also says whether the
    /// answer is exact. `NEVER` for none.
    #[inline]
    pub(crate) fn next_wake_bound(&mut self, rescan: u32) -> (u64, bool) {
        if !self.bound_fresh || (self.bound_rough && rescan > RESCAN) {
            self.refresh_bound(rescan);
        }
        (self.bound, !self.bound_rough)
    }

    /// The smallest pending `latest`, exactly. Reads every entry of the slots in doubt, so it is for
    /// tests and tools; drivers use [`Wheel::next_wake`].
    pub fn next_wake_exact(&mut self) -> Option<u64> {
        self.refresh_bound(u32::MAX);
        (self.bound != NEVER).then_some(self.bound)
    }

    /// The smallest pending `earliest`, exactly. Reads every entry of a slot, so it is for tests and
    /// tools.
    pub fn next_deadline(&self) -> Option<u64> {
        let mut best = NEVER;
        self.scan(usize::MAX, |_, earliest, _| best = best.min(earliest));
        (!self.is_empty()).then_some(best)
    }

    /// The largest pending `earliest` that is at most `at`: from then on until `at`, a call of
    /// [`Wheel::advance`] fires the same entries. Looks at no slot of more than 64 entries, and may miss
    /// entries that were reset to a later time; so the answer may be too early, and is `None` where it
    /// would take too long.
    pub(crate) fn last_earliest(&self, at: u64) -> Option<u64> {
        for level in (0..LEVELS).rev() {
            let mut bits = self.slots.occupied(level);
            while bits != 0 {
                let position = 63 - bits.leading_zeros() as usize;
                bits &= !(1 << position);
                let slot = level * SLOTS + position;
                if tick_start(self.slot_start(level, position)) > at {
                    continue;
                }
                if self.slots.live(slot) > RESCAN {
                    return None;
                }
                let mut last = None;
                let mut chunk = self.slots.head(slot);
                while chunk != NIL {
                    for item in self.slots.items(chunk).iter().filter(|i| i.entry != NIL) {
                        if item.earliest <= at {
                            last = last.max(Some(item.earliest));
                        }
                    }
                    chunk = self.slots.next(chunk);
                }
                if last.is_some() {
                    return last;
                }
            }
        }
        None
    }

    /// A lower bound of the smallest pending `earliest`, found by looking at no more than 64 entries: before it,
    /// [`Wheel::advance`] fires nothing. `u64::MAX` when nothing is pending.
    #[inline]
    pub fn first_due(&self) -> u64 {
        if self.splitting.is_some() {
            return 0;
        }
        match self.first_slot() {
            // An entry inserted in the past is in the cursor's slot, before its own time: look.
            Some((0, at)) if self.slot_start(0, at) <= self.cursor => {
                if self.slots.live(at) > RESCAN {
                    return 0;
                }
                // Its entries may all have been postponed: then the next slot's come first.
                self.slots.min_earliest(at).min(tick_start(self.cursor + 1))
            }
            Some((level, at)) => tick_start(self.slot_start(level, at)),
            None => NEVER,
        }
    }

    /// Gives memory of empty pages back to the system, one call per run of pages. The wheel does so
    /// by itself as it empties, a little at a time and keeping some for the next burst; this takes
    /// all at once.
    pub fn reap(&mut self) {
        self.entries.reap();
        self.slots.reap();
        self.hand = Vec::new();
        self.sorted = Vec::new();
    }

    /// Bytes of pages that hold, or recently held, entries.
    pub fn resident_bytes(&self) -> usize {
        self.entries.resident_bytes() + self.slots.resident_bytes()
    }

    /// System calls made so far to give memory back.
    pub fn hand_backs(&self) -> u64 {
        self.entries.hand_backs() + self.slots.hand_backs()
    }

    /// Takes everything out, as a wheel of its own, and starts again at time zero: the clock was set
    /// back, or the driver ends. Keys stay unique, and what was inserted stays counted.
    pub(crate) fn restart(&mut self) -> Wheel<T> {
        std::mem::replace(self, Wheel { sequence: self.sequence, ..Wheel::new() })
    }

    /// Empties the wheel: hands every pending value to `f`, in no order. Work proportional to what is
    /// pending, however far ahead it lies. If `f` panics, the values not yet handed out are dropped.
    pub fn drain(&mut self, mut f: impl FnMut(T)) {
        let fresh =
            Wheel { now: self.now, cursor: self.cursor, sequence: self.sequence, ..Wheel::new() };
        let Wheel { entries, .. } = std::mem::replace(self, fresh);
        entries.into_each(|entry| {
            if let Some(value) = entry.into_value() {
                f(value);
            }
        });
    }

    /// Puts an item where its `earliest` belongs and tells its entry.
    #[inline]
    fn place(&mut self, earliest: u64, latest: u64, entry: u32) {
        let slot = self.slot_for(earliest);
        let place = self.slots.push(slot, earliest, latest, entry);
        let entry = self.entries.at_mut(entry);
        entry.place = place;
        entry.slot = slot as u16;
    }

    #[inline]
    fn slot_for(&self, earliest: u64) -> usize {
        let tick = tick_of(earliest).max(self.cursor);
        let differs = tick ^ self.cursor;
        let level = match differs {
            0 => 0,
            d => ((63 - d.leading_zeros()) / BITS) as usize,
        };
        if let Some(s) = self.splitting {
            // Its own slots are still being filled in order from the one above: queue up there.
            if level < s.level
                && tick >> (BITS * s.level as u32) == s.start >> (BITS * s.level as u32)
            {
                return s.slot;
            }
        }
        level * SLOTS + (tick >> (BITS * level as u32)) as usize % SLOTS
    }

    /// The first tick of a slot.
    #[inline]
    fn slot_start(&self, level: usize, at: usize) -> u64 {
        let low = BITS * level as u32;
        let above = match low + BITS {
            bits if bits >= u64::BITS => 0,
            bits => self.cursor >> bits << bits,
        };
        above | (at as u64) << low
    }

    /// The slot that comes first in time, as level and position.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        (0..LEVELS).find_map(|level| match self.slots.occupied(level) {
            0 => None,
            bits => Some((level, bits.trailing_zeros() as usize)),
        })
    }

    /// Recomputes `bound`, rescanning stale slots of at most `rescan` items where it matters.
    fn refresh_bound(&mut self, rescan: u32) {
        loop {
            let mut best = NEVER;
            let mut slot = 0;
            for level in 0..LEVELS {
                let mut bits = self.slots.occupied(level);
                while bits != 0 {
                    let s = level * SLOTS + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if self.slots.min_latest(s) < best {
                        best = self.slots.min_latest(s);
                        slot = s;
                    }
                }
            }
            if best != NEVER && self.slots.is_stale(slot) && self.slots.live(slot) <= rescan {
                self.slots.rescan(slot);
                continue;
            }
            self.bound = best;
            self.bound_fresh = true;
            self.bound_rough = best != NEVER && self.slots.is_stale(slot);
            return;
        }
    }
}
