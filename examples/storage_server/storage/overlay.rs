//! Changes that are in the log and not yet in the data file, as an interval map.
//!
//! Extents never overlap: a new change cuts what it covers out of the old ones. Payloads are
//! shared with the log's queue and with readers, never copied here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::Zeroing;

/// What an extent holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes `start..` of a payload.
    Data(Arc<[u8]>, usize),
    Zeros(Zeroing),
}

/// A stretch of the export that the log knows better than the data file.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// The record that wrote it.
    pub(crate) seq: u64,
    pub(crate) content: Content,
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The part from `from` to `to`, both inside.
    fn part(&self, from: u64, to: u64) -> Self {
        let content = match &self.content {
            Content::Data(bytes, start) => {
                Content::Data(bytes.clone(), start + (from - self.offset) as usize)
            }
            zeros => zeros.clone(),
        };
        Self { offset: from, length: to - from, seq: self.seq, content }
    }

    /// The bytes, or `None` for zeros.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Data(bytes, start) => Some(&bytes[*start..*start + self.length as usize]),
            Content::Zeros(_) => None,
        }
    }
}

/// The interval map.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    extents: BTreeMap<u64, Extent>,
}

impl Overlay {
    /// Puts a change on top of all older ones.
    pub(crate) fn insert(&mut self, new: Extent) {
        if new.length == 0 {
            return;
        }
        let (from, to) = (new.offset, new.end());
        let covered: Vec<u64> = self.overlapping(from, to).map(|e| e.offset).collect();
        for start in covered {
            let Some(old) = self.extents.remove(&start) else {
                continue;
            };
            if old.offset < from {
                self.extents.insert(old.offset, old.part(old.offset, from));
            }
            if old.end() > to {
                self.extents.insert(to, old.part(to, old.end()));
            }
        }
        self.extents.insert(from, new);
    }

    /// The extents that touch `from..to`, in order of their offsets.
    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = &Extent> {
        // At most one extent that starts before `from` can reach into the range.
        let first = self.extents.range(..=from).next_back().map_or(from, |(start, _)| *start);
        self.extents.range(first..to).map(|(_, e)| e).filter(move |e| e.end() > from)
    }

    /// What the overlay knows of `from..to`, cut to the range.
    pub(crate) fn slice(&self, from: u64, to: u64) -> Vec<Extent> {
        let cut = |e: &Extent| e.part(e.offset.max(from), e.end().min(to));
        self.overlapping(from, to).map(cut).collect()
    }

    /// Everything, oldest contents included.
    pub(crate) fn snapshot(&self) -> Vec<Extent> {
        self.extents.values().cloned().collect()
    }

    /// Drops what records up to `seq` wrote: it is in the data file now.
    pub(crate) fn remove_up_to(&mut self, seq: u64) {
        self.extents.retain(|_, e| e.seq > seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_array_of_bytes() {
        let mut rng = 7u64;
        let mut random = move |below: u64| {
            rng =
                rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (rng >> 33) % below
        };
        let mut overlay = Overlay::default();
        let mut model: Vec<Option<(u8, u64)>> = vec![None; 256];
        for seq in 1..3_000u64 {
            let from = random(256);
            let length = random(40).min(256 - from);
            let byte = random(4) as u8;
            let content = match byte {
                0 => Content::Zeros(Zeroing::Discard),
                b => Content::Data(vec![b; length as usize].into(), 0),
            };
            overlay.insert(Extent { offset: from, length, seq, content });
            model[from as usize..(from + length) as usize].fill(Some((byte, seq)));
            if random(50) == 0 {
                let upto = seq - random(20).min(seq);
                overlay.remove_up_to(upto);
                model
                    .iter_mut()
                    .filter(|m| m.is_some_and(|(_, s)| s <= upto))
                    .for_each(|m| *m = None);
            }
            let (a, b) = (random(256), random(257));
            let mut seen = vec![None; 256];
            for e in overlay.slice(a.min(b), a.max(b)) {
                for i in 0..e.length as usize {
                    let byte = e.bytes().map_or(0, |bytes| bytes[i]);
                    assert!(seen[e.offset as usize + i].replace((byte, e.seq)).is_none());
                }
            }
            let range = a.min(b) as usize..a.max(b) as usize;
            assert_eq!(seen[range.clone()], model[range]);
        }
    }
}
