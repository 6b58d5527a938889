//! Moving the wheel through time: firing what is due, splitting slots on the way.
//!
//! Ground rules:
//! - Slots are handled in the order of time, a slot's items in the order of insertion; so entries
//!   come out by tick, then by insertion.
//! - A slot of few items ([`FEW`], or [`FEW_TICKS`] where it spans but 64 ticks) is settled in one go: what
//!   is due fires, sorted by tick, the rest is placed below. A larger one is split level by level, at
//!   most `limit` items a call, and remembers in `splitting` where it is. While it is, entries of its
//!   range queue up at its end, so that none overtakes an older one.

use super::slots::{BITS, Item, LEVELS, NIL, SLOTS};
use super::{Splitting, Wheel};
use crate::tick::tick_of;

/// Items of a slot that are settled at once. This many fit the sort's buffer on the stack.
const FEW: usize = 160;
/// The same for a slot of level 1, whose items are sorted by counting: splitting it would write every
/// entry once more, in random order. Some 50 us of work at most.
const FEW_TICKS: usize = 1024;
/// How far ahead entries are fetched: about a memory access's worth of work.
const AHEAD: usize = 8;

/// An entry that [`Wheel::advance`] hands out.
#[derive(Debug)]
pub struct Fired<T> {
    /// From when on it could fire, in nanoseconds.
    pub earliest: u64,
    /// By when it should have fired, in nanoseconds.
    pub latest: u64,
    /// What was inserted.
    pub value: T,
}

/// What one call of [`Wheel::advance`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "with `more`, due entries are left"]
pub struct Advance {
    /// Entries handed out.
    pub fired: usize,
    /// True when the limit was reached first: call again with the same time.
    pub more: bool,
}

impl<T> Wheel<T> {
    /// Moves to `now` (nanoseconds) and hands every entry with `earliest <= now` to `fire`, by
    /// `earliest` to the tick, ties in the order of insertion. A `now` before an earlier one acts as
    /// that earlier one: the wheel never moves back.
    ///
    /// Fires or moves about `limit` entries (at most 1,024 more), then returns with `more` set; entries
    /// inserted in between may be handed out by the following calls.
    ///
    /// If `fire` panics, that entry is gone and the others stay.
    pub fn advance(&mut self, now: u64, limit: usize, mut fire: impl FnMut(Fired<T>)) -> Advance {
        let now = now.max(self.now);
        self.now = now;
        let present = tick_of(now);
        let mut left = limit.max(1);
        let mut fired = 0;
        let mut moved = false;
        let more = loop {
            if let Some(splitting) = self.splitting {
                if left == 0 {
                    break true;
                }
                self.split(splitting, &mut left);
                moved = true;
                continue;
            }
            let Some((level, at)) = self.first_slot() else { break false };
            let start = self.slot_start(level, at);
            if start > present {
                break false;
            }
            if left == 0 {
                break true;
            }
            let slot = level * SLOTS + at;
            let few = if level == 1 { FEW_TICKS } else { FEW };
            moved = true;
            if level == 0 {
                self.cursor = self.cursor.max(start);
                let done = self.fire_tick(slot, start, now, &mut left, &mut fired, &mut fire);
                if !done {
                    break true;
                }
                if start == present {
                    // What is left in this slot comes later within the tick.
                    break false;
                }
            } else if self.slots.live(slot) as usize <= few {
                let last = start | ((1u64 << (BITS * level as u32)) - 1);
                self.cursor = if last >= present { present } else { start };
                self.settle_slot(slot, last, now, &mut left, &mut fired, &mut fire);
            } else {
                self.cursor = start;
                self.splitting = Some(Splitting { slot, level, start });
            }
        };
        if !more {
            self.cursor = self.cursor.max(present);
        }
        // A rough bound that has been reached was repaired, also when its slot has emptied since it was found.
        if moved || self.bound <= now {
            self.bound_fresh = false;
        }
        Advance { fired, more }
    }

    /// Fires what is due of a level-0 slot; true when all of it was looked at.
    pub(super) fn fire_tick(
        &mut self,
        slot: usize,
        start: u64,
        now: u64,
        left: &mut usize,
        fired: &mut usize,
        fire: &mut impl FnMut(Fired<T>),
    ) -> bool {
        // A tick that has passed is emptied from the front. The present one may hold items that come
        // later within it: those are looked at and left where they are.
        let mut chunk = self.slots.head(slot);
        while chunk != NIL {
            let next = self.slots.next(chunk);
            let mut hand = std::mem::take(&mut self.hand);
            let place = chunk << 6;
            hand.clear();
            hand.extend_from_slice(self.slots.items(chunk));
            for (at, item) in hand.iter().enumerate() {
                if item.entry == NIL {
                    continue;
                }
                if item.earliest <= now {
                    if *left == 0 {
                        self.hand = hand;
                        return false;
                    }
                    *left -= 1;
                    *fired += 1;
                    self.slots.remove_unmerged(slot, place | at as u32);
                    if let Some(value) = self.entries.take(item.entry) {
                        fire(Fired { earliest: item.earliest, latest: item.latest, value });
                    }
                } else if tick_of(item.earliest) > start {
                    // Postponed in place: now it moves to where it belongs.
                    self.slots.remove_unmerged(slot, place | at as u32);
                    self.place(item.earliest, item.latest, item.entry);
                }
            }
            self.hand = hand;
            chunk = next;
        }
        if self.slots.is_stale(slot) {
            self.slots.rescan(slot);
        }
        true
    }

    /// Empties a slot above level 0 of few items: fires what is due, places the rest.
    fn settle_slot(
        &mut self,
        slot: usize,
        last: u64,
        now: u64,
        left: &mut usize,
        fired: &mut usize,
        fire: &mut impl FnMut(Fired<T>),
    ) {
        let mut due = std::mem::take(&mut self.hand);
        due.clear();
        while self.slots.head(slot) != NIL {
            self.slots.pop_chunk(slot, &mut due);
        }
        *left = left.saturating_sub(due.len());
        due.retain(|item| {
            // One that was postponed past the slot has its turn after those of the slots in between.
            let stays = item.earliest <= now && tick_of(item.earliest) <= last;
            if !stays {
                self.place(item.earliest, item.latest, item.entry);
            }
            stays
        });
        self.sort_by_tick(&mut due, slot < 2 * SLOTS);
        for item in due.iter().take(AHEAD) {
            self.entries.prefetch(item.entry);
        }
        let mut hand = Hand { wheel: self, due, done: 0 };
        while let Some(&item) = hand.due.get(hand.done) {
            if let Some(ahead) = hand.due.get(hand.done + AHEAD) {
                hand.wheel.entries.prefetch(ahead.entry);
            }
            hand.done += 1;
            *fired += 1;
            if let Some(value) = hand.wheel.entries.take(item.entry) {
                fire(Fired { earliest: item.earliest, latest: item.latest, value });
            }
        }
    }

    /// Stable: equal ticks keep the order of insertion. `close`: all are of one run of 64 ticks.
    fn sort_by_tick(&mut self, items: &mut Vec<Item>, close: bool) {
        if !close || items.len() < SLOTS {
            return items.sort_by_key(|item| tick_of(item.earliest));
        }
        let tick = |item: &Item| tick_of(item.earliest) as usize % SLOTS;
        let mut next = [0usize; SLOTS + 1];
        for item in items.iter() {
            next[tick(item) + 1] += 1;
        }
        for at in 1..SLOTS {
            next[at] += next[at - 1];
        }
        let sorted = &mut self.sorted;
        sorted.clear();
        sorted.extend_from_slice(items);
        for item in items.iter() {
            let place = &mut next[tick(item)];
            sorted[*place] = *item;
            *place += 1;
        }
        std::mem::swap(items, sorted);
    }

    /// Places up to `left` items of the slot being split on lower levels.
    pub(super) fn split(&mut self, s: Splitting, left: &mut usize) {
        debug_assert!(s.level > 0 && s.level < LEVELS);
        let mut items = std::mem::take(&mut self.hand);
        // Its items must not queue up where they come from.
        self.splitting = None;
        while *left > 0 && self.slots.head(s.slot) != NIL {
            items.clear();
            self.slots.pop_chunk(s.slot, &mut items);
            for item in items.iter() {
                self.entries.prefetch(item.entry);
            }
            for item in items.iter() {
                self.place(item.earliest, item.latest, item.entry);
            }
            *left = left.saturating_sub(items.len());
        }
        items.clear();
        self.hand = items;
        if self.slots.head(s.slot) != NIL {
            self.splitting = Some(s);
        }
    }
}

/// Due items that have left their slot. Whatever has not fired goes back: a panic in the caller's
/// code loses no entry but its own.
struct Hand<'a, T> {
    wheel: &'a mut Wheel<T>,
    due: Vec<Item>,
    done: usize,
}

impl<T> Drop for Hand<'_, T> {
    fn drop(&mut self) {
        for item in &self.due[self.done..] {
            self.wheel.place(item.earliest, item.latest, item.entry);
        }
        self.wheel.hand = std::mem::take(&mut self.due);
    }
}
