//! A disk for tests: it forgets unsynced writes, reorders and tears them, and fails on demand.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::wait::lock;

use super::disk::{Disk, Zeroing};

const SECTOR: usize = 512;

/// The power supply that several disks share: it fails at the n-th operation.
#[derive(Debug)]
pub(crate) struct Power {
    operations: AtomicU64,
    fails_at: AtomicU64,
}

impl Power {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { operations: AtomicU64::new(0), fails_at: AtomicU64::new(u64::MAX) })
    }

    /// Fails at the n-th operation from now.
    pub(crate) fn fail_in(&self, operations: u64) {
        let now = self.operations.load(Ordering::SeqCst);
        self.fails_at.store(now + operations, Ordering::SeqCst);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.operations.load(Ordering::SeqCst) > self.fails_at.load(Ordering::SeqCst)
    }

    /// Counts an operation. The one at which the power fails has still begun.
    fn draw(&self) -> io::Result<bool> {
        let n = self.operations.fetch_add(1, Ordering::SeqCst);
        let last = self.fails_at.load(Ordering::SeqCst);
        if n > last { Err(io::Error::other("no power")) } else { Ok(n < last) }
    }
}

/// What a disk does wrong, each for the next so many calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) write_errors: u32,
    pub(crate) write_full: u32,
    pub(crate) write_panics: u32,
    pub(crate) sync_errors: u32,
    pub(crate) sync_panics: u32,
    /// Each sync takes so long.
    pub(crate) sync_time: Duration,
}

#[derive(Debug)]
struct State {
    /// What survives a crash for certain.
    durable: Vec<u8>,
    /// What reads see.
    cached: Vec<u8>,
    /// Contents written since the last sync, by sector, in the order they were written.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    faults: Faults,
    syncs_held: bool,
    syncs: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct CrashDisk {
    state: Mutex<State>,
    released: Condvar,
    power: Arc<Power>,
}

impl CrashDisk {
    pub(crate) fn new(image: Vec<u8>, power: Arc<Power>) -> Arc<Self> {
        assert!(image.len().is_multiple_of(SECTOR));
        let state = State {
            cached: image.clone(),
            durable: image,
            unsynced: BTreeMap::new(),
            faults: Faults::default(),
            syncs_held: false,
            syncs: 0,
        };
        Arc::new(Self { state: Mutex::new(state), released: Condvar::new(), power })
    }

    pub(crate) fn size(&self) -> u64 {
        lock(&self.state).durable.len() as u64
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Makes syncs wait until they are released.
    pub(crate) fn hold_syncs(&self, held: bool) {
        lock(&self.state).syncs_held = held;
        self.released.notify_all();
    }

    /// Syncs that succeeded so far.
    pub(crate) fn syncs(&self) -> u64 {
        lock(&self.state).syncs
    }

    /// What is left if everything unsynced is lost.
    pub(crate) fn synced_image(&self) -> Vec<u8> {
        lock(&self.state).durable.clone()
    }

    /// What may be left after a crash: each unsynced sector has any of the contents it was given
    /// since the last sync, or its old one.
    pub(crate) fn crash_image(&self, random: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
        let state = lock(&self.state);
        let mut image = state.durable.clone();
        for (sector, contents) in &state.unsynced {
            let choice = random(contents.len() as u64 + 1) as usize;
            if let Some(content) = contents.get(choice) {
                image[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(content);
            }
        }
        image
    }

    /// What reads see now.
    pub(crate) fn cached_image(&self) -> Vec<u8> {
        lock(&self.state).cached.clone()
    }

    /// Damages a durable byte.
    pub(crate) fn flip(&self, offset: usize) {
        let mut state = lock(&self.state);
        state.durable[offset] ^= 0x40;
        state.cached[offset] ^= 0x40;
    }

    fn fault(&self, pick: impl Fn(&mut Faults) -> &mut u32) -> bool {
        let mut state = lock(&self.state);
        let left = pick(&mut state.faults);
        let hit = *left > 0;
        *left = left.saturating_sub(1);
        hit
    }
}

impl Disk for CrashDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = lock(&self.state);
        let start = offset as usize;
        let range = state.cached.get(start..start + buf.len());
        buf.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        assert!(!self.fault(|f| &mut f.write_panics), "a planted panic in a write");
        if self.fault(|f| &mut f.write_errors) {
            return Err(io::Error::other("a planted write error"));
        }
        if self.fault(|f| &mut f.write_full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let completes = self.power.draw()?;
        let mut state = lock(&self.state);
        let start = offset as usize;
        if start + buf.len() > state.cached.len() {
            return Err(io::Error::other("a write past the end of the disk"));
        }
        state.cached[start..start + buf.len()].copy_from_slice(buf);
        for sector in start / SECTOR..(start + buf.len()).div_ceil(SECTOR) {
            let mut content = [0; SECTOR];
            content.copy_from_slice(&state.cached[sector * SECTOR..(sector + 1) * SECTOR]);
            state.unsynced.entry(sector).or_default().push(content);
        }
        if completes { Ok(()) } else { Err(io::Error::other("the power failed in a write")) }
    }

    fn zero_at(&self, offset: u64, length: u64, _how: Zeroing) -> io::Result<()> {
        self.write_at(&vec![0; length as usize], offset)
    }

    fn sync(&self) -> io::Result<()> {
        let covered: Vec<_> = {
            let mut state = lock(&self.state);
            // Only what was written before the call is covered.
            let now = state.unsynced.iter().map(|(s, c)| (*s, c.len())).collect();
            while state.syncs_held {
                state = self.released.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            now
        };
        let time = lock(&self.state).faults.sync_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        assert!(!self.fault(|f| &mut f.sync_panics), "a planted panic in a sync");
        if self.fault(|f| &mut f.sync_errors) {
            // As kernels do: what was dirty is called clean and never written.
            lock(&self.state).unsynced.clear();
            return Err(io::Error::other("a planted sync error"));
        }
        if !self.power.draw()? {
            return Err(io::Error::other("the power failed in a sync"));
        }
        let mut state = lock(&self.state);
        state.syncs += 1;
        for (sector, count) in covered {
            let Some(contents) = state.unsynced.get_mut(&sector) else {
                continue;
            };
            let count = count.min(contents.len());
            let last = contents.drain(..count).next_back();
            if contents.is_empty() {
                state.unsynced.remove(&sector);
            }
            if let Some(content) = last {
                state.durable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(&content);
            }
        }
        Ok(())
    }

    fn zeroes_fast(&self) -> bool {
        true
    }
}
