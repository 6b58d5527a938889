//! The slots of the wheel: each a list of fixed-size chunks of `(earliest, latest, entry)`.
//!
//! Ground rules:
//! - A slot is first in, first out: items are appended at its tail and never change order, so timers
//!   of one tick come out in the order of their insertion without being sorted.
//! - An item's place is chunk * 64 + position; its entry knows it, so a cancel is constant work: the
//!   item becomes a hole. Two neighbouring chunks that fit into one are merged, which keeps every
//!   list at least half full.
//! - `min_latest` of a slot is a lower bound of the `latest` of its items, exact unless the slot is
//!   marked stale. Removing or postponing the item that set it marks it stale; only a rescan makes it
//!   exact again. It is never before the slot starts.

use super::arena::{Arena, Inert};
use super::entry::Entry;
use crate::tick::NEVER;
use std::mem::MaybeUninit;

pub(super) const LEVELS: usize = 9;
pub(super) const SLOTS: usize = 64;
pub(super) const BITS: u32 = 6;
const COUNT: usize = LEVELS * SLOTS;
/// Items in a chunk: with the header it is 1 KiB.
const ITEMS: usize = 42;
pub(super) const NIL: u32 = u32::MAX;
/// A stale slot with more items than this is taken at its bound instead of being rescanned.
pub(super) const RESCAN: u32 = 64;

/// What a slot holds of an entry: enough to place, fire and bound it without touching the entry.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) earliest: u64,
    pub(super) latest: u64,
    /// Index of the entry; `NIL` in a hole.
    pub(super) entry: u32,
}

const HOLE: Item = Item { earliest: 0, latest: 0, entry: NIL };

/// In this order: the header shares a cache line with the first items.
#[repr(C)]
pub(super) struct Chunk {
    prev: u32,
    next: u32,
    slot: u16,
    /// Positions in use, holes included.
    used: u8,
    /// Items that are no holes.
    live: u8,
    /// The first `used` of them are initialised. A fresh chunk costs its header, not a kilobyte:
    /// a lone timer has a chunk to itself at every level it passes.
    items: [MaybeUninit<Item>; ITEMS],
}

impl Inert for Chunk {
    const INERT: Self = Chunk {
        prev: NIL,
        next: NIL,
        slot: 0,
        used: 0,
        live: 0,
        items: [const { MaybeUninit::uninit() }; ITEMS],
    };
}

impl Chunk {
    /// With one item.
    #[inline(always)]
    fn new(prev: u32, slot: u16, first: Item) -> Self {
        let mut items = [const { MaybeUninit::uninit() }; ITEMS];
        items[0].write(first);
        Chunk { prev, next: NIL, slot, used: 1, live: 1, items }
    }

    #[inline(always)]
    fn items(&self) -> &[Item] {
        debug_assert!(self.used as usize <= ITEMS);
        // SAFETY: the first `used` items are initialised (`push` writes an item before it counts it,
        // `fill` likewise), and `Item` and `MaybeUninit<Item>` have one layout.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr().cast(), self.used as usize) }
    }

    #[inline(always)]
    fn items_mut(&mut self) -> &mut [Item] {
        debug_assert!(self.used as usize <= ITEMS);
        // SAFETY: as in `items`, and `&mut self` makes the access exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.items.as_mut_ptr().cast(), self.used as usize)
        }
    }

    #[inline(always)]
    fn push(&mut self, item: Item) -> u32 {
        let at = self.used as usize;
        self.items[at].write(item);
        self.used += 1;
        self.live += 1;
        at as u32
    }

    /// Forgets holes at the end.
    fn trim(&mut self) {
        let kept = self.items().iter().rposition(|i| i.entry != NIL);
        self.used = kept.map_or(0, |k| k as u8 + 1);
    }

    fn fill(&mut self, items: &[Item]) {
        for (place, item) in self.items.iter_mut().zip(items) {
            place.write(*item);
        }
        self.used = items.len() as u8;
        self.live = items.len() as u8;
    }
}

#[derive(Clone, Copy)]
struct List {
    min_latest: u64,
    head: u32,
    tail: u32,
    /// Items that are no holes.
    live: u32,
}

const EMPTY: List = List { min_latest: NEVER, head: NIL, tail: NIL, live: 0 };

pub(super) struct Slots {
    chunks: Arena<Chunk>,
    lists: Box<[List; COUNT]>,
    occupied: [u64; LEVELS],
    stale: [u64; LEVELS],
}

impl Slots {
    pub(super) fn new() -> Self {
        Slots {
            chunks: Arena::new(),
            lists: Box::new([EMPTY; COUNT]),
            occupied: [0; LEVELS],
            stale: [0; LEVELS],
        }
    }

    /// Occupied slots of `level`, a bit each.
    #[inline]
    pub(super) fn occupied(&self, level: usize) -> u64 {
        self.occupied[level]
    }

    #[inline]
    pub(super) fn live(&self, slot: usize) -> u32 {
        self.lists[slot].live
    }

    #[inline]
    pub(super) fn min_latest(&self, slot: usize) -> u64 {
        self.lists[slot].min_latest
    }

    #[inline]
    pub(super) fn is_stale(&self, slot: usize) -> bool {
        self.stale[slot / SLOTS] >> (slot % SLOTS) & 1 == 1
    }

    #[inline]
    fn mark_stale(&mut self, slot: usize) {
        self.stale[slot / SLOTS] |= 1 << (slot % SLOTS);
    }

    #[inline]
    pub(super) fn item(&self, place: u32) -> Item {
        self.chunks.at(place >> 6).items()[(place & 63) as usize]
    }

    /// Appends an item and returns its place. The parts come one by one: put together and read as a whole
    /// right after, they would wait for their stores.
    #[inline(always)]
    pub(super) fn push(&mut self, slot: usize, earliest: u64, latest: u64, entry: u32) -> u32 {
        let list = &mut self.lists[slot];
        if list.tail != NIL {
            let chunk = self.chunks.at_mut(list.tail);
            if (chunk.used as usize) < ITEMS {
                list.live += 1;
                list.min_latest = list.min_latest.min(latest);
                return list.tail << 6 | chunk.push(Item { earliest, latest, entry });
            }
        }
        self.push_chunk(slot, earliest, latest, entry)
    }

    /// Appends a chunk with this item in it.
    fn push_chunk(&mut self, slot: usize, earliest: u64, latest: u64, entry: u32) -> u32 {
        let list = &mut self.lists[slot];
        let prev = list.tail;
        let item = Item { earliest, latest, entry };
        let new = self.chunks.insert_with(|_| Chunk::new(prev, slot as u16, item));
        assert!(new < NIL >> 6, "more than 2^32 places in one wheel");
        list.tail = new;
        list.live += 1;
        list.min_latest = list.min_latest.min(latest);
        match prev {
            NIL => {
                list.head = new;
                self.occupied[slot / SLOTS] |= 1 << (slot % SLOTS);
            }
            p => self.chunks.at_mut(p).next = new,
        }
        new << 6
    }

    /// Moves an item in place when it moves later: the slot is looked at in time, and then places it anew.
    /// Returns what its `latest` was, or `None` when it moves earlier: then nothing has changed.
    #[inline(always)]
    pub(super) fn postpone(
        &mut self,
        slot: usize,
        place: u32,
        earliest: u64,
        latest: u64,
    ) -> Option<u64> {
        let chunk = self.chunks.at_mut(place >> 6);
        let item = &mut chunk.items_mut()[(place & 63) as usize];
        if earliest < item.earliest {
            return None;
        }
        let before = item.latest;
        item.earliest = earliest;
        item.latest = latest;
        let list = &mut self.lists[slot];
        if latest < list.min_latest {
            list.min_latest = latest;
        } else if before == list.min_latest && latest != before {
            self.mark_stale(slot);
        }
        Some(before)
    }

    /// Takes the item at `place` out and keeps its list dense. Returns its `latest`, or the bound of a slot
    /// that it leaves empty.
    #[inline(always)]
    pub(super) fn remove<T>(
        &mut self,
        slot: usize,
        place: u32,
        entries: &mut Arena<Entry<T>>,
    ) -> u64 {
        let (latest, live) = self.take(slot, place);
        // Now and then, so that a chunk which cannot be merged is not tried at every removal.
        if live <= ITEMS / 2 && live % 4 == 1 {
            self.merge(place >> 6, entries);
        }
        latest
    }

    /// Takes the item at `place` out of a list that is being emptied.
    #[inline(always)]
    pub(super) fn remove_unmerged(&mut self, slot: usize, place: u32) {
        self.take(slot, place);
    }

    /// Makes the item a hole; returns its `latest` (as `remove` does) and how many items its chunk has left.
    #[inline(always)]
    fn take(&mut self, slot: usize, place: u32) -> (u64, usize) {
        let id = place >> 6;
        let at = (place & 63) as usize;
        let list = &mut self.lists[slot];
        if list.live == 1 {
            // The chunk goes with it, unread.
            let bound = list.min_latest;
            self.chunks.release(id);
            self.clear(slot);
            return (bound, 0);
        }
        list.live -= 1;
        let min_latest = list.min_latest;
        let chunk = self.chunks.at_mut(id);
        debug_assert_eq!(chunk.slot as usize, slot);
        chunk.live -= 1;
        let live = chunk.live as usize;
        let used = chunk.used as usize;
        let hole = &mut chunk.items_mut()[at];
        let latest = hole.latest;
        debug_assert_ne!(hole.entry, NIL);
        hole.entry = NIL;
        if at + 1 == used {
            // Holes at the end are room again.
            chunk.used = at as u8;
            if live < at {
                chunk.trim();
            }
        }
        if live == 0 {
            self.unlink(id);
        }
        if latest == min_latest {
            self.mark_stale(slot);
        }
        (latest, live)
    }

    /// Nothing is left in the slot.
    fn clear(&mut self, slot: usize) {
        self.lists[slot] = EMPTY;
        let bit = 1 << (slot % SLOTS);
        self.occupied[slot / SLOTS] &= !bit;
        self.stale[slot / SLOTS] &= !bit;
    }

    fn unlink(&mut self, id: u32) {
        let chunk = self.chunks.at(id);
        let (prev, next, slot) = (chunk.prev, chunk.next, chunk.slot as usize);
        match prev {
            NIL => self.lists[slot].head = next,
            p => self.chunks.at_mut(p).next = next,
        }
        match next {
            NIL => self.lists[slot].tail = prev,
            n => self.chunks.at_mut(n).prev = prev,
        }
        self.chunks.release(id);
    }

    /// Merges chunk `id` with a neighbour when both fit into one.
    fn merge<T>(&mut self, id: u32, entries: &mut Arena<Entry<T>>) {
        let chunk = self.chunks.at(id);
        let (prev, next, live) = (chunk.prev, chunk.next, chunk.live as usize);
        if prev != NIL && self.chunks.at(prev).live as usize + live <= ITEMS {
            self.pour(prev, id, entries);
        } else if next != NIL && self.chunks.at(next).live as usize + live <= ITEMS {
            self.pour(id, next, entries);
        }
    }

    /// Closes the holes of chunk `first` and moves the items of its successor behind them.
    fn pour<T>(&mut self, first: u32, second: u32, entries: &mut Arena<Entry<T>>) {
        let mut packed = [HOLE; ITEMS];
        let mut n = 0;
        for id in [first, second] {
            for item in self.items(id) {
                if item.entry != NIL {
                    packed[n] = *item;
                    n += 1;
                }
            }
        }
        for (at, item) in packed[..n].iter().enumerate() {
            entries.at_mut(item.entry).place = first << 6 | at as u32;
        }
        self.chunks.at_mut(first).fill(&packed[..n]);
        self.unlink(second);
    }

    /// The first chunk of a slot's list, and with [`Slots::next`] all the others.
    #[inline]
    pub(super) fn head(&self, slot: usize) -> u32 {
        self.lists[slot].head
    }

    #[inline]
    pub(super) fn next(&self, chunk: u32) -> u32 {
        self.chunks.at(chunk).next
    }

    /// The items of a chunk, holes included.
    #[inline]
    pub(super) fn items(&self, chunk: u32) -> &[Item] {
        self.chunks.at(chunk).items()
    }

    /// Takes the slot's first chunk out of its list, items and all; the caller must place or fire
    /// every one of them.
    pub(super) fn pop_chunk(&mut self, slot: usize, into: &mut Vec<Item>) {
        let id = self.lists[slot].head;
        let chunk = self.chunks.at(id);
        if chunk.live == chunk.used {
            into.extend_from_slice(chunk.items());
        } else {
            into.extend(chunk.items().iter().filter(|i| i.entry != NIL));
        }
        self.lists[slot].live -= chunk.live as u32;
        self.unlink(id);
        if self.lists[slot].live == 0 {
            self.clear(slot);
        } else {
            self.mark_stale(slot);
        }
    }

    /// Makes the slot's bound exact: O(items of the slot).
    pub(super) fn rescan(&mut self, slot: usize) {
        let mut min = NEVER;
        let mut chunk = self.lists[slot].head;
        while chunk != NIL {
            for item in self.items(chunk) {
                if item.entry != NIL {
                    min = min.min(item.latest);
                }
            }
            chunk = self.next(chunk);
        }
        self.lists[slot].min_latest = min;
        self.stale[slot / SLOTS] &= !(1 << (slot % SLOTS));
    }

    /// The smallest `earliest` of the slot: O(items of the slot).
    pub(super) fn min_earliest(&self, slot: usize) -> u64 {
        let mut min = NEVER;
        let mut chunk = self.lists[slot].head;
        while chunk != NIL {
            let items = self.items(chunk).iter().filter(|i| i.entry != NIL);
            min = items.fold(min, |min, item| min.min(item.earliest));
            chunk = self.next(chunk);
        }
        min
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.chunks.resident_bytes()
    }

    pub(super) fn hand_backs(&self) -> u64 {
        self.chunks.hand_backs()
    }

    pub(super) fn reap(&mut self) {
        self.chunks.reap();
    }
}
