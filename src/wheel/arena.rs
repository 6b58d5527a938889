//! Storage for wheel entries and chunks: stable indices, no copying when it grows, and empty pages
//! that go back to the system.
//!
//! Ground rules:
//! - Elements live in *blocks*: page-aligned pieces of whole pages, at most 128 elements each. Blocks
//!   sit in segments that are allocated once and never move, so growing copies nothing (a vector
//!   that doubled would stall an insert for milliseconds at a million entries).
//! - `Meta::live` has one bit per element and is the only truth about what is initialised: memory
//!   behind a clear bit is never read. That is what makes giving pages back sound: the system may
//!   zero an empty block at any time.
//! - A block whose last element went is *empty*. When empty resident blocks outweigh the rest,
//!   runs of neighbouring ones go back, one system call per run, a few runs at a time.

use crate::primitive::prefetch;
use crate::sys;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const NIL: u32 = u32::MAX;
/// The largest segment: 1024 blocks (4 MiB with one page a block).
const MAX_SEGMENT: u32 = 1024;
const FIRST_SEGMENT: u32 = 16;
/// Empty blocks kept for the next burst, whatever the load.
const KEEP: usize = 16;
/// Runs handed back by one removal, so that no removal stalls for long.
const RUNS_PER_STEP: usize = 4;

struct Meta {
    live: u128,
    /// Links of the list of blocks with a free place.
    next: u32,
    prev: u32,
    /// False until first written, and again after its pages went back.
    resident: bool,
    listed: bool,
}

/// See the module's header.
pub(super) struct Arena<E> {
    segments: Vec<NonNull<u8>>,
    meta: Vec<Meta>,
    /// First block with a free place.
    partial: u32,
    len: usize,
    resident: usize,
    empty: usize,
    /// Where the next incremental hand-back looks.
    sweep: usize,
    /// System calls made to give memory back.
    calls: u64,
    owns: PhantomData<E>,
}

// SAFETY: the arena owns its elements and its raw segments; it is a container like `Vec<E>`.
unsafe impl<E: Send> Send for Arena<E> {}
// SAFETY: shared access hands out only `&E`.
unsafe impl<E: Sync> Sync for Arena<E> {}

impl<E> Arena<E> {
    const PER_BLOCK: usize = {
        assert!(std::mem::align_of::<E>() <= PAGE);
        let size = if std::mem::size_of::<E>() == 0 { 1 } else { std::mem::size_of::<E>() };
        let n = PAGE / size;
        if n == 0 {
            1
        } else if n > 128 {
            128
        } else {
            n
        }
    };
    const FULL: u128 = if Self::PER_BLOCK == 128 { !0 } else { (1 << Self::PER_BLOCK) - 1 };
    const SHIFT: u32 = Self::PER_BLOCK.next_power_of_two().trailing_zeros();
    const MASK: u32 = (1 << Self::SHIFT) - 1;
    const BLOCK_BYTES: usize =
        (Self::PER_BLOCK * std::mem::size_of::<E>()).div_ceil(PAGE).saturating_mul(PAGE);

    pub(super) const fn new() -> Self {
        Arena {
            segments: Vec::new(),
            meta: Vec::new(),
            partial: NIL,
            len: 0,
            resident: 0,
            empty: 0,
            sweep: 0,
            calls: 0,
            owns: PhantomData,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of blocks that hold, or recently held, elements.
    pub(super) fn resident_bytes(&self) -> usize {
        self.resident * Self::BLOCK_BYTES
    }

    /// System calls made so far to give memory back.
    pub(super) fn hand_backs(&self) -> u64 {
        self.calls
    }

    /// Number of blocks in segment `s`: 16, 16, 32, 64 .. 1024, then 1024 each.
    const fn segment_blocks(s: usize) -> u32 {
        if s == 0 {
            FIRST_SEGMENT
        } else if s < 7 {
            FIRST_SEGMENT << (s - 1)
        } else {
            MAX_SEGMENT
        }
    }

    #[inline(always)]
    fn locate(block: u32) -> (usize, usize) {
        if block < MAX_SEGMENT {
            // Segment s >= 1 holds the blocks [16 << (s-1), 16 << s).
            let s = (28 - (block | 15).leading_zeros()) as usize;
            let first = if s == 0 { 0 } else { FIRST_SEGMENT << (s - 1) };
            (s, (block - first) as usize)
        } else {
            (6 + (block / MAX_SEGMENT) as usize, (block % MAX_SEGMENT) as usize)
        }
    }

    #[inline(always)]
    fn ptr(&self, index: u32) -> *mut E {
        let (segment, at) = Self::locate(index >> Self::SHIFT);
        debug_assert!(segment < self.segments.len());
        // SAFETY: callers pass an index whose block exists, so `locate` names an allocated segment
        // and an offset inside it; the element offset is below PER_BLOCK.
        unsafe {
            let base = self.segments.get_unchecked(segment).as_ptr();
            base.add(at * Self::BLOCK_BYTES).cast::<E>().add((index & Self::MASK) as usize)
        }
    }

    #[inline]
    fn is_live(&self, index: u32) -> bool {
        self.meta
            .get((index >> Self::SHIFT) as usize)
            .is_some_and(|m| m.live >> (index & Self::MASK) & 1 == 1)
    }

    /// Stores `value` and returns its index, which stays its own until it is removed.
    #[inline]
    pub(super) fn insert(&mut self, value: E) -> u32 {
        if self.partial == NIL {
            self.grow();
        }
        let block = self.partial;
        let meta = &mut self.meta[block as usize];
        let at = (!meta.live).trailing_zeros();
        if meta.live == 0 {
            if meta.resident {
                self.empty -= 1;
            } else {
                meta.resident = true;
                self.resident += 1;
            }
        }
        meta.live |= 1 << at;
        let full = meta.live == Self::FULL;
        if full {
            self.unlist(block);
        }
        self.len += 1;
        let index = block << Self::SHIFT | at;
        // SAFETY: the place exists (its block does) and its bit was clear, so nothing is
        // overwritten that would need a drop.
        unsafe { self.ptr(index).write(value) };
        index
    }

    /// The element at `index`, when there is one.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&E> {
        if !self.is_live(index) {
            return None;
        }
        // SAFETY: the live bit says the place is initialised, and `&self` keeps it so.
        Some(unsafe { &*self.ptr(index) })
    }

    /// The element at `index`, when there is one.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        if !self.is_live(index) {
            return None;
        }
        // SAFETY: as in `get`, and `&mut self` makes the access exclusive.
        Some(unsafe { &mut *self.ptr(index) })
    }

    /// The element at an index the caller knows to be live.
    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> &E {
        debug_assert!(self.is_live(index));
        // SAFETY: only indices that `insert` returned and `remove` has not taken back reach this
        // function (checked in debug builds); such a place is initialised.
        unsafe { &*self.ptr(index) }
    }

    /// The element at an index the caller knows to be live.
    #[inline(always)]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut E {
        debug_assert!(self.is_live(index));
        // SAFETY: as in `at`, and `&mut self` makes the access exclusive.
        unsafe { &mut *self.ptr(index) }
    }

    /// Asks the processor to fetch a live element that is needed soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: u32) {
        debug_assert!(self.is_live(index));
        prefetch(self.ptr(index));
    }

    /// Takes the element at `index` out. Panics when there is none.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> E {
        let block = index >> Self::SHIFT;
        let bit = 1u128 << (index & Self::MASK);
        let meta = &mut self.meta[block as usize];
        assert!(meta.live & bit != 0, "arena index is not live");
        meta.live &= !bit;
        let (emptied, unlisted) = (meta.live == 0, !meta.listed);
        self.len -= 1;
        // SAFETY: the bit was set, so the place is initialised; it is clear now, so the value is
        // read out exactly once.
        let value = unsafe { self.ptr(index).read() };
        if unlisted {
            self.list(block);
        }
        if emptied {
            self.empty += 1;
            // Empty pages may weigh as much as half of the used ones before any go back.
            if self.empty > KEEP + (self.resident - self.empty) / 2 {
                self.hand_back(RUNS_PER_STEP, KEEP / 2 + (self.resident - self.empty) / 4);
            }
        }
        value
    }

    /// Gives every empty page back to the system, one call per run of neighbours.
    pub(super) fn reap(&mut self) {
        self.sweep = 0;
        self.hand_back(usize::MAX, 0);
    }

    /// Hands every element out, in no order.
    pub(super) fn into_each(mut self, mut f: impl FnMut(E)) {
        for block in 0..self.meta.len() as u32 {
            while self.meta[block as usize].live != 0 {
                let at = self.meta[block as usize].live.trailing_zeros();
                self.meta[block as usize].live &= !(1 << at);
                // SAFETY: the bit was set, so the place is initialised; it is clear now, so neither
                // this loop nor the arena's drop looks at it again.
                f(unsafe { self.ptr(block << Self::SHIFT | at).read() });
            }
        }
    }

    fn grow(&mut self) {
        let s = self.segments.len();
        let blocks = Self::segment_blocks(s);
        let first = self.meta.len() as u32;
        let end = (first as u64 + blocks as u64) << Self::SHIFT;
        assert!(end < NIL as u64, "more than 2^32 timers in one wheel");
        let layout = Self::layout(blocks);
        // SAFETY: the layout's size is not zero: a block is at least one page.
        let raw = unsafe { alloc(layout) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(layout) };
        self.segments.push(raw);
        self.meta.extend((0..blocks).map(|_| Meta {
            live: 0,
            next: NIL,
            prev: NIL,
            resident: false,
            listed: false,
        }));
        // Listed from the back, so that the first block is used first.
        for block in (first..first + blocks).rev() {
            self.list(block);
        }
    }

    fn layout(blocks: u32) -> Layout {
        let bytes = blocks as usize * Self::BLOCK_BYTES;
        Layout::from_size_align(bytes.max(PAGE), PAGE).expect("a segment's size is a few megabytes")
    }

    fn list(&mut self, block: u32) {
        let head = self.partial;
        let meta = &mut self.meta[block as usize];
        meta.listed = true;
        meta.prev = NIL;
        meta.next = head;
        if head != NIL {
            self.meta[head as usize].prev = block;
        }
        self.partial = block;
    }

    fn unlist(&mut self, block: u32) {
        let meta = &mut self.meta[block as usize];
        meta.listed = false;
        let (prev, next) = (meta.prev, meta.next);
        match prev {
            NIL => self.partial = next,
            p => self.meta[p as usize].next = next,
        }
        if next != NIL {
            self.meta[next as usize].prev = prev;
        }
    }

    /// Hands up to `runs` runs of empty blocks back, while more than `keep` of them are left.
    fn hand_back(&mut self, mut runs: usize, keep: usize) {
        let blocks = self.meta.len();
        let mut looked = 0;
        while runs > 0 && self.empty > keep && looked < blocks {
            if self.sweep >= blocks {
                self.sweep = 0;
            }
            let first = self.sweep;
            let gone = |m: &Meta| m.live == 0 && m.resident;
            // A run ends with its segment: the next one lies elsewhere in memory.
            let (segment, at) = Self::locate(first as u32);
            let end = (first + Self::segment_blocks(segment) as usize - at).min(blocks);
            let n = self.meta[first..end].iter().take_while(|m| gone(m)).count();
            if n == 0 {
                self.sweep += 1;
                looked += 1;
                continue;
            }
            let n = n.min(self.empty - keep);
            let start = self.ptr((first as u32) << Self::SHIFT);
            sys::mem::give_back(start.cast(), n * Self::BLOCK_BYTES);
            for m in &mut self.meta[first..first + n] {
                m.resident = false;
            }
            self.calls += 1;
            self.empty -= n;
            self.resident -= n;
            self.sweep += n;
            looked += n;
            runs -= 1;
        }
    }
}

impl<E> Drop for Arena<E> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<E>() {
            for block in 0..self.meta.len() as u32 {
                // The bit goes first: were a drop to panic, nothing would be dropped twice.
                while self.meta[block as usize].live != 0 {
                    let at = self.meta[block as usize].live.trailing_zeros();
                    self.meta[block as usize].live &= !(1 << at);
                    // SAFETY: the bit was set, so the place is initialised and not yet dropped.
                    unsafe { self.ptr(block << Self::SHIFT | at).drop_in_place() };
                }
            }
        }
        for (s, raw) in self.segments.iter().enumerate() {
            // SAFETY: `raw` came from `alloc` with this very layout.
            unsafe { dealloc(raw.as_ptr(), Self::layout(Self::segment_blocks(s))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_located_in_their_segment() {
        let mut block = 0;
        for s in 0..20 {
            for at in 0..Arena::<u64>::segment_blocks(s) {
                assert_eq!(Arena::<u64>::locate(block), (s, at as usize));
                block += 1;
            }
        }
    }

    #[test]
    fn indices_stay_while_others_come_and_go() {
        let mut arena = Arena::new();
        let kept: Vec<(u32, String)> = (0..5000)
            .map(|i| {
                let value = format!("value {i}");
                (arena.insert(value.clone()), value)
            })
            .collect();
        for (i, _) in kept.iter().filter(|(i, _)| i % 3 == 0) {
            arena.remove(*i);
        }
        let more: Vec<u32> = (0..3000).map(|i| arena.insert(format!("more {i}"))).collect();
        for (i, value) in kept.iter().filter(|(i, _)| i % 3 != 0) {
            assert_eq!(arena.get(*i), Some(value));
        }
        for i in more {
            assert!(arena.remove(i).starts_with("more"));
            assert!(arena.get(i).is_none());
        }
        assert!(arena.get(u32::MAX).is_none());
    }

    #[test]
    fn empty_pages_go_back_in_runs() {
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..200_000u64).map(|i| arena.insert([i, i, i, i])).collect();
        let full = arena.resident_bytes();
        for i in &all {
            arena.remove(*i);
        }
        arena.reap();
        assert_eq!(arena.len(), 0);
        assert_eq!(arena.resident_bytes(), 0);
        let pages = full / PAGE;
        assert!(
            (arena.hand_backs() as usize) < pages / 16,
            "{} calls for {pages} pages",
            arena.hand_backs()
        );
        // What went back is usable again.
        let i = arena.insert([7; 4]);
        assert_eq!(arena.get(i), Some(&[7; 4]));
    }

    #[test]
    fn memory_follows_load_without_being_asked() {
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..200_000u64).map(|i| arena.insert([i; 4])).collect();
        let full = arena.resident_bytes();
        for i in all.iter().filter(|i| **i % 1000 != 0) {
            arena.remove(*i);
        }
        assert!(arena.resident_bytes() < full / 4, "{} of {full}", arena.resident_bytes());
    }

    #[test]
    fn every_element_is_dropped_once() {
        let one = std::sync::Arc::new(());
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..1000).map(|_| arena.insert(one.clone())).collect();
        for i in all.iter().step_by(2) {
            arena.remove(*i);
        }
        assert_eq!(std::sync::Arc::strong_count(&one), 501);
        drop(arena);
        assert_eq!(std::sync::Arc::strong_count(&one), 1);
    }
}
