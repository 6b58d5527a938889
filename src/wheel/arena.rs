//! Storage for wheel entries and chunks: stable indices, no copying when it grows, and empty pages
//! that go back to the system.
//!
//! Ground rules:
//! - Elements live in *blocks*: page-aligned pieces of whole pages, at most 128 elements each. Blocks
//!   sit in segments that are allocated once and never move, so growing copies nothing (a vector
//!   that doubled would stall an insert for milliseconds at a million entries).
//! - Segments are all of one size, so that finding an element is a shift and one load. They are small
//!   enough to allocate one for a single timer: its pages cost nothing before they are written.
//! - `Meta::live` has a bit per place that is taken. A place is taken by an element, or kept free for the
//!   next one: the last few that were released are, so that what comes and goes touches no `Meta`.
//! - Whoever releases a place leaves an *inert* element there, one that need not be dropped. So every
//!   place with its bit set may be dropped, and behind a clear bit nothing is owed: the system may zero an
//!   empty block at any time.
//! - Places are first taken in the order of their indices. One below `high` has been written: its bytes
//!   are those of an element, inert or not, or zero where the page went back.
//! - A block whose last element went is *empty*. When empty resident blocks outweigh the rest,
//!   runs of neighbouring ones go back, one system call per run, a few runs at a time.

use crate::primitive::prefetch;
use crate::sys;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const NIL: u32 = u32::MAX;
/// Blocks of a segment (256 KiB with one page a block), as a shift.
const SEGMENT_SHIFT: u32 = 6;
const SEGMENT: u32 = 1 << SEGMENT_SHIFT;
/// Places kept for what comes next.
const KEPT_PLACES: usize = 16;
/// Empty blocks kept for the next burst, whatever the load.
const KEPT_BLOCKS: usize = 16;
/// Runs handed back by one removal, so that no removal stalls for long.
const RUNS_PER_STEP: usize = 16;
/// Shorter runs are left for later: blocks that empty in random order would go back one call each, and
/// every call interrupts all processors that run this program.
const SHORTEST_RUN: usize = 4;

struct Meta {
    /// A bit per place that is taken.
    live: [u64; 2],
    /// Links of the list of blocks with a free place.
    next: u32,
    prev: u32,
    /// False until first written, and again after its pages went back.
    resident: bool,
    listed: bool,
}

impl Meta {
    #[inline(always)]
    fn is_live(&self, at: u32) -> bool {
        self.live[(at >> 6) as usize] >> (at & 63) & 1 == 1
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.live[0] | self.live[1] == 0
    }

    /// Clears the bit of some place that is taken and says which.
    fn take_any(&mut self) -> Option<u32> {
        let word = if self.live[0] != 0 { 0 } else { 1 };
        let bits = self.live[word];
        self.live[word] &= bits.wrapping_sub(1);
        (bits != 0).then(|| word as u32 * 64 + bits.trailing_zeros())
    }
}

/// What takes a place where no element is.
pub(super) trait Inert {
    /// Dropping it does nothing.
    const INERT: Self;
}

/// See the module's header.
pub(super) struct Arena<E: Inert> {
    segments: Vec<NonNull<u8>>,
    /// The first of them, once there is one.
    first: NonNull<u8>,
    meta: Vec<Meta>,
    /// Places that were released last and are kept for the next elements, and how many.
    kept: [u32; KEPT_PLACES],
    kept_len: usize,
    /// Places from here on have never been written.
    high: u32,
    /// First block with a free place.
    partial: u32,
    len: usize,
    resident: usize,
    empty: usize,
    /// Where the next incremental hand-back looks.
    sweep: usize,
    /// Not before so many blocks are empty: the last hand-back left the others.
    next_step: usize,
    /// System calls made to give memory back.
    calls: u64,
    owns: PhantomData<E>,
}

// SAFETY: the arena owns its elements and its raw segments; it is a container like `Vec<E>`.
unsafe impl<E: Inert + Send> Send for Arena<E> {}
// SAFETY: shared access hands out only `&E`.
unsafe impl<E: Inert + Sync> Sync for Arena<E> {}

impl<E: Inert> Arena<E> {
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
    const FULL: [u64; 2] = match Self::PER_BLOCK {
        n if n >= 128 => [!0, !0],
        n if n >= 64 => [!0, (1 << (n - 64)) - 1],
        n => [(1 << n) - 1, 0],
    };
    const SHIFT: u32 = Self::PER_BLOCK.next_power_of_two().trailing_zeros();
    const MASK: u32 = (1 << Self::SHIFT) - 1;
    const BLOCK_BYTES: usize =
        (Self::PER_BLOCK * std::mem::size_of::<E>()).div_ceil(PAGE).saturating_mul(PAGE);

    /// Of one segment.
    const LAYOUT: Layout = match Layout::from_size_align(SEGMENT as usize * Self::BLOCK_BYTES, PAGE)
    {
        Ok(layout) if layout.size() > 0 => layout,
        _ => panic!("elements of no size have no segments"),
    };

    pub(super) const fn new() -> Self {
        Arena {
            segments: Vec::new(),
            first: NonNull::dangling(),
            meta: Vec::new(),
            kept: [0; KEPT_PLACES],
            kept_len: 0,
            high: 0,
            partial: NIL,
            len: 0,
            resident: 0,
            empty: 0,
            sweep: 0,
            next_step: 0,
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

    #[inline(always)]
    fn ptr(&self, index: u32) -> *mut E {
        let segment = (index >> (Self::SHIFT + SEGMENT_SHIFT)) as usize;
        let block = (index >> Self::SHIFT & (SEGMENT - 1)) as usize;
        let at = (index & Self::MASK) as usize;
        debug_assert!(segment < self.segments.len());
        // SAFETY: callers pass an index whose block exists, so its segment is allocated and the block
        // lies inside it; the element offset is below PER_BLOCK.
        unsafe {
            let base = match segment {
                // Most wheels have one: a branch that is foreseen instead of a load that is waited for.
                0 => self.first.as_ptr(),
                _ => self.segments.get_unchecked(segment).as_ptr(),
            };
            if Self::PER_BLOCK * std::mem::size_of::<E>() == Self::BLOCK_BYTES {
                // No gap between blocks: one multiplication.
                base.cast::<E>().add(block << Self::SHIFT | at)
            } else {
                base.add(block * Self::BLOCK_BYTES).cast::<E>().add(at)
            }
        }
    }

    #[inline(always)]
    fn is_live(&self, index: u32) -> bool {
        self.meta
            .get((index >> Self::SHIFT) as usize)
            .is_some_and(|m| m.is_live(index & Self::MASK))
    }

    /// Stores what `make` makes, which is told the element's index: its own until it is released.
    #[inline(always)]
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> E) -> u32 {
        let index = match self.kept_len {
            0 => self.claim(),
            n => {
                self.kept_len = n - 1;
                self.kept[(n - 1) % KEPT_PLACES]
            }
        };
        // Were this to panic, the place would stay taken by an inert element.
        let element = make(index);
        self.len += 1;
        // SAFETY: the place exists: its block has a `meta`. It holds an inert element, which needs no drop.
        unsafe { self.ptr(index).write(element) };
        index
    }

    /// Takes a free place, for an inert element.
    #[inline(never)]
    fn claim(&mut self) -> u32 {
        if self.partial == NIL {
            self.grow();
        }
        let block = self.partial;
        let meta = &mut self.meta[block as usize];
        let half = usize::from(meta.live[0] == Self::FULL[0]);
        let at = (!meta.live[half]).trailing_zeros() + half as u32 * 64;
        debug_assert!((at as usize) < Self::PER_BLOCK);
        if !meta.resident {
            meta.resident = true;
            self.resident += 1;
        } else if meta.is_empty() {
            self.empty -= 1;
        }
        let word = meta.live[half] | 1 << (at & 63);
        meta.live[half] = word;
        // Word by word: read as a pair right after one was written, they would wait for the store.
        if word == Self::FULL[half] && meta.live[1 - half] == Self::FULL[1 - half] {
            self.unlist(block);
        }
        let index = block << Self::SHIFT | at;
        self.high = self.high.max(index + 1);
        // SAFETY: the block is listed, so it has a free place, and this is one: nothing there needs a drop.
        unsafe { self.ptr(index).write(E::INERT) };
        index
    }

    /// Where the element with this index is, or was: `None` when the place has never been written. Its
    /// bytes are those of an element, inert or not, or zero.
    #[inline(always)]
    pub(super) fn written(&self, index: u32) -> Option<*mut E> {
        // Where a block has a gap at its end, no element is there.
        let exists = Self::PER_BLOCK == 1 << Self::SHIFT
            || ((index & Self::MASK) as usize) < Self::PER_BLOCK;
        (exists && index < self.high).then(|| self.ptr(index))
    }

    /// The element at an index the caller knows to be live.
    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> &E {
        debug_assert!(self.is_live(index));
        // SAFETY: only indices that `insert_with` returned and `release` has not taken back reach this
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

    /// Gives the place of an element up. The caller has made the element inert: it is not dropped, or
    /// dropping it does nothing.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u32) {
        debug_assert!(self.is_live(index));
        self.len -= 1;
        if self.kept_len < KEPT_PLACES {
            self.kept[self.kept_len] = index;
            self.kept_len += 1;
        } else {
            self.free(index);
        }
    }

    /// Frees a place that is taken.
    #[inline(never)]
    fn free(&mut self, index: u32) {
        let block = index >> Self::SHIFT;
        let at = index & Self::MASK;
        let meta = &mut self.meta[block as usize];
        assert!(meta.is_live(at), "arena index is not taken");
        meta.live[(at >> 6) as usize] &= !(1 << (at & 63));
        let (emptied, listed) = (meta.is_empty(), meta.listed);
        if !listed {
            self.list(block);
        }
        if emptied {
            self.emptied();
        }
    }

    fn emptied(&mut self) {
        self.empty += 1;
        // Empty pages may weigh as much as half of the used ones before any go back; then they do in steps,
        // since looking for runs is a walk.
        let used = self.resident - self.empty;
        if self.empty > KEPT_BLOCKS + used / 2 && self.empty >= self.next_step {
            self.hand_back(RUNS_PER_STEP, SHORTEST_RUN, KEPT_BLOCKS / 2 + used / 4);
            self.next_step = self.empty + KEPT_BLOCKS + self.resident / 16;
        }
    }

    /// Gives every empty page back to the system, one call per run of neighbours.
    pub(super) fn reap(&mut self) {
        while self.kept_len > 0 {
            self.kept_len -= 1;
            self.free(self.kept[self.kept_len]);
        }
        self.sweep = 0;
        self.hand_back(usize::MAX, 1, 0);
        self.next_step = 0;
    }

    /// Hands every element out, in no order, and inert ones among them.
    pub(super) fn into_each(mut self, mut f: impl FnMut(E)) {
        for block in 0..self.meta.len() as u32 {
            while let Some(at) = self.meta[block as usize].take_any() {
                // SAFETY: the bit was set, so the place is initialised; it is clear now, so neither
                // this loop nor the arena's drop looks at it again.
                f(unsafe { self.ptr(block << Self::SHIFT | at).read() });
            }
        }
    }

    fn grow(&mut self) {
        let first = self.meta.len() as u32;
        let end = (first as u64 + SEGMENT as u64) << Self::SHIFT;
        assert!(end < NIL as u64, "more than 2^32 timers in one wheel");
        let layout = Self::LAYOUT;
        // SAFETY: the layout's size is not zero: a block is at least one page.
        let raw = unsafe { alloc(layout) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(layout) };
        self.segments.push(raw);
        self.first = self.segments[0];
        self.meta.extend((0..SEGMENT).map(|_| Meta {
            live: [0; 2],
            next: NIL,
            prev: NIL,
            resident: false,
            listed: false,
        }));
        // Listed from the back, so that the first block is used first.
        for block in (first..first + SEGMENT).rev() {
            self.list(block);
        }
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

    /// Hands up to `runs` runs of at least `shortest` empty blocks back, while more than `keep` are left.
    fn hand_back(&mut self, mut runs: usize, shortest: usize, keep: usize) {
        let blocks = self.meta.len();
        let mut looked = 0;
        while runs > 0 && self.empty > keep && looked < blocks {
            if self.sweep >= blocks {
                self.sweep = 0;
            }
            let first = self.sweep;
            let gone = |m: &Meta| m.is_empty() && m.resident;
            // A run ends with its segment: the next one lies elsewhere in memory.
            let end = (first | (SEGMENT as usize - 1)) + 1;
            let n = self.meta[first..end].iter().take_while(|m| gone(m)).count();
            if n < shortest {
                self.sweep += n.max(1);
                looked += n.max(1);
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

impl<E: Inert> Drop for Arena<E> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<E>() {
            for block in 0..self.meta.len() as u32 {
                // The bit goes first: were a drop to panic, nothing would be dropped twice.
                while let Some(at) = self.meta[block as usize].take_any() {
                    // SAFETY: the bit was set, so the place is initialised and not yet dropped.
                    unsafe { self.ptr(block << Self::SHIFT | at).drop_in_place() };
                }
            }
        }
        for raw in &self.segments {
            // SAFETY: `raw` came from `alloc` with this very layout.
            unsafe { dealloc(raw.as_ptr(), Self::LAYOUT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T> Inert for Option<T> {
        const INERT: Self = None;
    }

    impl<const N: usize> Inert for [u64; N] {
        const INERT: Self = [0; N];
    }

    fn put<E: Inert>(arena: &mut Arena<E>, value: E) -> u32 {
        arena.insert_with(|_| value)
    }

    /// Leaves nothing to drop behind.
    fn take<T>(arena: &mut Arena<Option<T>>, index: u32) -> T {
        let value = arena.at_mut(index).take().expect("a value is there");
        arena.release(index);
        value
    }

    #[test]
    fn indices_stay_while_others_come_and_go() {
        let mut arena = Arena::new();
        let kept: Vec<(u32, String)> = (0..5000)
            .map(|i| {
                let value = format!("value {i}");
                (put(&mut arena, Some(value.clone())), value)
            })
            .collect();
        for (i, _) in kept.iter().filter(|(i, _)| i % 3 == 0) {
            take(&mut arena, *i);
        }
        let more: Vec<u32> =
            (0..3000).map(|i| put(&mut arena, Some(format!("more {i}")))).collect();
        for (i, value) in kept.iter().filter(|(i, _)| i % 3 != 0) {
            assert_eq!(arena.at(*i).as_ref(), Some(value));
        }
        for i in more {
            assert!(take(&mut arena, i).starts_with("more"));
        }
        let high = arena.high;
        assert!(arena.written(high - 1).is_some());
        assert!(arena.written(high).is_none());
        assert!(arena.written(u32::MAX).is_none());
    }

    #[test]
    fn the_gap_at_the_end_of_a_block_holds_nothing() {
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..500u64).map(|i| put(&mut arena, [i; 6])).collect();
        assert_eq!(Arena::<[u64; 6]>::PER_BLOCK, 85);
        assert_eq!(all[85], 128);
        for index in 0..arena.high {
            assert_eq!(arena.written(index).is_some(), index % 128 < 85, "{index}");
        }
    }

    #[test]
    fn empty_pages_go_back_in_runs() {
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..200_000u64).map(|i| put(&mut arena, [i; 4])).collect();
        let full = arena.resident_bytes();
        for i in &all {
            arena.release(*i);
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
        let i = put(&mut arena, [7; 4]);
        assert_eq!(arena.at(i), &[7; 4]);
    }

    #[test]
    fn memory_follows_load_without_being_asked() {
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..200_000u64).map(|i| put(&mut arena, [i; 4])).collect();
        let full = arena.resident_bytes();
        for i in all.iter().filter(|i| **i % 1000 != 0) {
            arena.release(*i);
        }
        assert!(arena.resident_bytes() < full / 4, "{} of {full}", arena.resident_bytes());
    }

    #[test]
    fn every_element_is_dropped_once() {
        let one = std::sync::Arc::new(());
        let mut arena = Arena::new();
        let all: Vec<u32> = (0..1000).map(|_| put(&mut arena, Some(one.clone()))).collect();
        for i in all.iter().step_by(2) {
            take(&mut arena, *i);
        }
        assert_eq!(std::sync::Arc::strong_count(&one), 501);
        drop(arena);
        assert_eq!(std::sync::Arc::strong_count(&one), 1);
    }
}
