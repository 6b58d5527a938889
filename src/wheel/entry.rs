//! What the wheel knows of a timer besides its window, and how a stale key finds nothing.

use super::Key;
use super::arena::{Arena, Inert};

pub(super) struct Entry<T> {
    /// `None` once the entry has left the wheel: then it is inert.
    value: Option<T>,
    /// Zero once the entry has left.
    pub(super) sequence: u64,
    /// Where the entry's item is (see `slots`).
    pub(super) place: u32,
    pub(super) slot: u16,
}

impl<T> Inert for Entry<T> {
    const INERT: Self = Entry { value: None, sequence: 0, place: 0, slot: 0 };
}

impl<T> Entry<T> {
    #[inline(always)]
    pub(super) fn new(value: T, sequence: u64, slot: usize, place: u32) -> Self {
        debug_assert_ne!(sequence, 0);
        Entry { value: Some(value), sequence, place, slot: slot as u16 }
    }

    pub(super) fn into_value(self) -> Option<T> {
        self.value
    }

    #[inline]
    pub(super) fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }

    #[inline]
    pub(super) fn value_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut()
    }

    /// Takes the value out and makes the entry inert; its place is the caller's to release.
    #[inline(always)]
    pub(super) fn vacate(&mut self) -> Option<T> {
        self.sequence = 0;
        self.value.take()
    }
}

impl<T> Arena<Entry<T>> {
    /// The entry that the key was made for, while it is in the wheel.
    #[inline(always)]
    pub(super) fn find(&self, key: Key) -> Option<&Entry<T>> {
        let entry = self.found(key)?;
        // SAFETY: see `found`; `&self` keeps it so.
        Some(unsafe { &*entry })
    }

    /// The entry that the key was made for, while it is in the wheel.
    #[inline(always)]
    pub(super) fn find_mut(&mut self, key: Key) -> Option<&mut Entry<T>> {
        let entry = self.found(key)?;
        // SAFETY: see `found`; `&mut self` makes the access exclusive.
        Some(unsafe { &mut *entry })
    }

    /// Points to an initialised entry.
    #[inline(always)]
    fn found(&self, key: Key) -> Option<*mut Entry<T>> {
        let entry = self.written(key.index)?;
        // SAFETY: a place that has been written holds the bytes of an entry or zeros, and any bytes are a
        // number. (`written` gives no place beyond the arena.)
        let sequence = unsafe { (&raw const (*entry).sequence).read() };
        // A key's sequence is never zero, and only its own entry has the same: inserted, not vacated, so
        // its place is still its own and initialised.
        (sequence == key.sequence).then_some(entry)
    }

    /// Takes the entry's value out of the arena. The caller knows it to be in the wheel.
    #[inline(always)]
    pub(super) fn take(&mut self, index: u32) -> Option<T> {
        let value = self.at_mut(index).vacate();
        self.release(index);
        value
    }
}
