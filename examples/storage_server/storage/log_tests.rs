//! What recovery does with a log that is torn, damaged, or somebody else's.

use std::sync::Arc;

use super::core::{Core, LogWrite};
use super::crashdisk::{CrashDisk, Power};
use super::disk::Disk;
use super::log::{Change, HEADER, PAGE, RING_START, Ring, Superblock};
use super::recovery::{OpenError, Recovered, format, recover};
use crate::commit::group::Step;
use crate::commit::settings::Settings;

const EXPORT: u64 = 64 << 10;
const CAPACITY: u64 = 64 << 10;

struct Pair {
    log: Arc<CrashDisk>,
    data: Arc<CrashDisk>,
}

impl Pair {
    fn new() -> Self {
        let pair = Self::from_images(vec![0; (RING_START + CAPACITY) as usize], None);
        format(&*pair.log, pair.log.size(), EXPORT).unwrap();
        pair
    }

    fn from_images(log: Vec<u8>, data: Option<Vec<u8>>) -> Self {
        let data = data.unwrap_or_else(|| vec![0; EXPORT as usize]);
        Self { log: CrashDisk::new(log, Power::new()), data: CrashDisk::new(data, Power::new()) }
    }

    fn recover(&self) -> Result<Recovered, OpenError> {
        recover(&*self.log, self.log.size(), &*self.data, EXPORT)
    }
}

/// Appends one write of a page, as a block of its own, and makes it durable.
fn commit(core: &mut Core, log: &dyn Disk, page: u64, fill: u8) {
    let change = Change::Write(vec![fill; PAGE as usize].into());
    core.append(page * PAGE, change, &Settings::default()).unwrap();
    core.group.seal();
    let Step::Issue { id, first, last } = core.next(0) else { panic!("nothing to write") };
    let write = core.prepare(id, first, last);
    write.write(log).unwrap();
    LogWrite::sync(log).unwrap();
    core.complete(0, id, Ok(()));
}

fn pages(data: &CrashDisk, count: u64) -> Vec<u8> {
    let image = data.synced_image();
    (0..count).map(|page| image[(page * PAGE) as usize]).collect()
}

#[test]
fn whole_records_are_replayed_and_a_second_start_has_nothing_to_do() {
    let pair = Pair::new();
    let mut core = Core::new(pair.recover().unwrap().superblock, 1);
    (0..4).for_each(|i| commit(&mut core, &*pair.log, i, 10 + i as u8));
    let again = Pair::from_images(pair.log.synced_image(), None);
    let found = again.recover().unwrap();
    assert_eq!((found.replayed, found.cut_at), (4, None));
    assert_eq!(pages(&again.data, 5), [10, 11, 12, 13, 0]);
    assert_eq!(again.recover().unwrap().replayed, 0);
}

#[test]
fn a_torn_tail_is_cut() {
    let pair = Pair::new();
    let mut core = Core::new(pair.recover().unwrap().superblock, 1);
    (0..3).for_each(|i| commit(&mut core, &*pair.log, i, 10 + i as u8));
    // The third block is 8 KiB at 16 KiB; its payload loses a byte.
    pair.log.flip((RING_START + 2 * 8_192) as usize + HEADER + 700);
    let found = pair.recover().unwrap();
    assert_eq!((found.replayed, found.cut_at), (2, Some(RING_START + 2 * 8_192)));
    assert_eq!(pages(&pair.data, 4), [10, 11, 0, 0]);
}

#[test]
fn damage_in_the_middle_is_refused_with_its_offset() {
    // Every byte of the first two records that is not padding: header, payload, checksum.
    for block in 0..2u64 {
        for byte in [0, 9, 12, 13, 16, 24, 33, 41, 49, 57, HEADER, HEADER + 4_000] {
            let pair = Pair::new();
            let mut core = Core::new(pair.recover().unwrap().superblock, 1);
            (0..4).for_each(|i| commit(&mut core, &*pair.log, i, 10 + i as u8));
            let offset = RING_START + block * 8_192;
            pair.log.flip(offset as usize + byte);
            match pair.recover() {
                Err(OpenError::Damaged { seq, offset: found, .. }) => {
                    assert_eq!((seq, found), (block + 1, offset));
                    let text = pair.recover().unwrap_err().to_string();
                    assert!(text.contains(&offset.to_string()), "{text}");
                }
                other => panic!("block {block}, byte {byte}: {other:?}"),
            }
        }
    }
}

#[test]
fn records_of_an_earlier_run_are_not_replayed_again() {
    let pair = Pair::new();
    let mut core = Core::new(pair.recover().unwrap().superblock, 1);
    (0..6).for_each(|i| commit(&mut core, &*pair.log, i, 1));
    // The tail is torn off, another run writes over it, and dies.
    pair.log.flip((RING_START + 3 * 8_192) as usize + HEADER);
    pair.log.flip((RING_START + 4 * 8_192) as usize + HEADER);
    pair.log.flip((RING_START + 5 * 8_192) as usize + HEADER);
    let found = pair.recover().unwrap();
    assert_eq!(found.replayed, 3);
    let mut core = Core::new(found.superblock, 1);
    commit(&mut core, &*pair.log, 3, 2);
    let found = pair.recover().unwrap();
    assert_eq!(found.replayed, 1);
    assert_eq!(pages(&pair.data, 6), [1, 1, 1, 2, 0, 0]);
}

#[test]
fn a_payload_that_looks_like_a_record_is_only_a_payload() {
    let pair = Pair::new();
    let mut core = Core::new(pair.recover().unwrap().superblock, 1);
    commit(&mut core, &*pair.log, 0, 7);
    // A client sends back a log it has seen: as a payload, at the place where the next record
    // would be searched after a cut.
    let log = pair.log.synced_image();
    let old = log[RING_START as usize..][..3 * 4_096].to_vec();
    let seen = Change::Write(old.into());
    core.append(4 * PAGE, seen, &Settings::default()).unwrap();
    core.group.seal();
    let Step::Issue { id, first, last } = core.next(0) else { panic!() };
    core.prepare(id, first, last).write(&*pair.log).unwrap();
    LogWrite::sync(&*pair.log).unwrap();
    pair.log.flip((RING_START + 8_192) as usize + HEADER + 3 * 4_096 - 1);
    let found = pair.recover().unwrap();
    assert_eq!((found.replayed, found.cut_at), (1, Some(RING_START + 8_192)));
}

#[test]
fn a_torn_superblock_leaves_the_other_and_two_are_refused() {
    let pair = Pair::new();
    let first = pair.recover().unwrap().superblock;
    pair.log.flip((first.generation % 2 * PAGE) as usize + 20);
    let older = Superblock::load(&*pair.log).unwrap().unwrap();
    assert_eq!(older.generation, first.generation - 1);
    pair.log.flip((older.generation % 2 * PAGE) as usize + 20);
    assert!(matches!(pair.recover(), Err(OpenError::NoSuperblock)));
}

#[test]
fn a_log_of_another_export_is_refused() {
    let pair = Pair::new();
    let error = recover(&*pair.log, pair.log.size(), &*pair.data, EXPORT * 2).unwrap_err();
    assert!(matches!(error, OpenError::WrongSize { .. }), "{error}");
    let error = recover(&*pair.log, RING_START + 4_096, &*pair.data, EXPORT).unwrap_err();
    assert!(matches!(error, OpenError::TooShort { .. }), "{error}");
}

#[test]
fn the_ring_wraps_inside_a_record() {
    let disk = CrashDisk::new(vec![0; (RING_START + CAPACITY) as usize], Power::new());
    let ring = Ring { capacity: CAPACITY };
    let bytes: Vec<u8> = (0..9_000u32).map(|i| i as u8).collect();
    for position in [0, CAPACITY - 1, CAPACITY - 4_096, 7 * CAPACITY - 8_999] {
        ring.write(&*disk, position, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        ring.read(&*disk, position, &mut back).unwrap();
        assert_eq!(back, bytes);
    }
}
