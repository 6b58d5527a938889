//! A device model: what a sync costs, on the real clock or on a virtual one.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::commit::settings::Nanos;
use crate::timers;
use crate::wait::lock;

use super::disk::{Disk, FileDisk, Zeroing};

/// The constants of a device. A sync takes `latency`, plus `per_byte` for each byte written
/// since the last one, plus `seek` when those bytes do not follow the ones before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceModel {
    pub(crate) latency: Nanos,
    /// Nanoseconds per byte.
    pub(crate) per_byte: f64,
    /// How many syncs the device works on at a time.
    pub(crate) parallel: usize,
    pub(crate) seek: Nanos,
}

impl Default for DeviceModel {
    fn default() -> Self {
        // 20 us for a record of 8 KiB.
        Self { latency: 750_000, per_byte: 20_000.0 / 8_192.0, parallel: 4, seek: 0 }
    }
}

impl DeviceModel {
    /// The time one log write takes.
    pub(crate) fn service(&self, bytes: u64, seeks: bool) -> Nanos {
        let transfer = (bytes as f64 * self.per_byte) as Nanos;
        self.latency + transfer + if seeks { self.seek } else { 0 }
    }

    /// The device on the real clock.
    pub(crate) fn start(self) -> Device {
        let now = Instant::now();
        Device { model: self, state: Mutex::new(State { free_at: vec![now; self.parallel] }) }
    }
}

/// A device that several disks may share.
#[derive(Debug)]
pub(crate) struct Device {
    model: DeviceModel,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When each of the device's lanes is free again.
    free_at: Vec<Instant>,
}

impl Device {
    /// Takes the first free lane for one sync and blocks until it is done.
    fn work(&self, bytes: u64, seeks: bool) {
        let service = Duration::from_nanos(self.model.service(bytes, seeks));
        let done = book(&mut lock(&self.state).free_at, Instant::now(), service);
        timers::sleep_blocking_until(done);
    }
}

/// Gives a piece of work the lane that is free first; says when it is done.
fn book(lanes: &mut [Instant], now: Instant, service: Duration) -> Instant {
    let first = (0..lanes.len()).min_by_key(|&i| lanes[i]).unwrap_or_default();
    lanes[first] = lanes[first].max(now) + service;
    lanes[first]
}

/// A file whose syncs cost what the model says, instead of what the machine's disk costs.
#[derive(Debug)]
pub(crate) struct SimDisk {
    file: FileDisk,
    device: Arc<Device>,
    unsynced: Mutex<Unsynced>,
}

#[derive(Debug, Default)]
struct Unsynced {
    bytes: u64,
    next: u64,
    seeks: bool,
}

impl SimDisk {
    pub(crate) fn new(file: FileDisk, device: Arc<Device>) -> Self {
        Self { file, device, unsynced: Mutex::default() }
    }

    fn note(&self, offset: u64, bytes: u64) {
        let mut unsynced = lock(&self.unsynced);
        unsynced.seeks |= unsynced.next != offset;
        unsynced.next = offset + bytes;
        unsynced.bytes += bytes;
    }
}

impl Disk for SimDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.note(offset, buf.len() as u64);
        self.file.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, length: u64, how: Zeroing) -> io::Result<()> {
        self.note(offset, 0);
        self.file.zero_at(offset, length, how)
    }

    fn sync(&self) -> io::Result<()> {
        let (bytes, seeks) = {
            let mut unsynced = lock(&self.unsynced);
            (std::mem::take(&mut unsynced.bytes), std::mem::take(&mut unsynced.seeks))
        };
        self.device.work(bytes, seeks);
        Ok(())
    }

    fn zeroes_fast(&self) -> bool {
        self.file.zeroes_fast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_costs_are_those_of_the_reference_curve() {
        let device = DeviceModel::default();
        assert_eq!(device.service(8_192, false), 770_000);
        assert_eq!(device.service(16 * 8_192, false), 1_070_000);
        let disk = DeviceModel { seek: 8_000_000, ..device };
        assert_eq!(disk.service(8_192, true), 8_770_000);
    }

    #[test]
    fn lanes_work_side_by_side() {
        let start = Instant::now();
        let mut lanes = vec![start; 2];
        let ms = Duration::from_millis;
        let done: Vec<_> = (0..4).map(|_| book(&mut lanes, start, ms(20)) - start).collect();
        assert_eq!(done, [ms(20), ms(20), ms(40), ms(40)]);
        assert_eq!(book(&mut lanes, start + ms(100), ms(20)) - start, ms(120), "idle time is lost");
    }
}
