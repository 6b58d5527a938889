//! Cases of durability, by the server's own clients or on a volume alone.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::commit::settings::Tunables;
use crate::errno::Errno;
use crate::nbd::proto::*;
use crate::storage::crashdisk::Faults;
use crate::storage::volume::Volume;

use super::client::{Client, Request, request};
use super::rig::{Disks, MIB, Rig};

const EIO: u32 = 5;

fn volume(disks: &Disks) -> Volume {
    disks.volume(2, Arc::new(Tunables::default()))
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, future).await.expect("a waiter was left behind")
    })
}

async fn commit(v: &Volume, page: u64, fill: u8) -> Result<(), Errno> {
    let seq = v.write(page * 4096, vec![fill; 4096]).await?;
    v.durable(seq).await
}

/// Three commits of three tasks at once; all must end.
fn three_commits(v: &Volume) -> Vec<Result<(), Errno>> {
    run(async {
        let (a, b, c) = tokio::join!(commit(v, 10, 1), commit(v, 11, 2), commit(v, 12, 3));
        vec![a, b, c]
    })
}

#[test]
fn c200_a_failed_log_write_leaves_nobody_waiting() {
    let disks = Disks::new(MIB, MIB);
    let v = volume(&disks);
    disks.log.set_faults(Faults { write_errors: 1, ..Faults::default() });
    assert_eq!(run(commit(&v, 0, 9)), Err(Errno::Io));
    assert_eq!(three_commits(&v), [Ok(()); 3]);
    // The failed batch was written again before them: what reads saw is durable now.
    assert_eq!(disks.survivors()[..4096], [9; 4096]);
}

#[test]
fn c200_a_dropped_waiter_leaves_no_ticket() {
    let disks = Disks::new(MIB, MIB);
    let v = volume(&disks);
    // Before the append: nothing happened.
    drop(commit(&v, 0, 9));
    assert_eq!(three_commits(&v), [Ok(()); 3]);
    // Between append and sync.
    disks.log.hold_syncs(true);
    {
        let mut waiter = pin!(commit(&v, 1, 8));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(waiter.as_mut().poll(&mut context), Poll::Pending));
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(waiter.as_mut().poll(&mut context), Poll::Pending));
    }
    disks.log.hold_syncs(false);
    assert_eq!(three_commits(&v), [Ok(()); 3]);
    let left = disks.survivors();
    assert_eq!((left[0], left[4096]), (0, 8), "what was appended is durable all the same");
}

#[test]
fn c200_a_panic_of_the_leader_is_an_error_for_its_followers() {
    let disks = Disks::new(MIB, MIB);
    let v = volume(&disks);
    disks.log.set_faults(Faults { write_panics: 1, ..Faults::default() });
    assert_eq!(run(commit(&v, 0, 9)), Err(Errno::Io));
    assert_eq!(three_commits(&v), [Ok(()); 3]);
    // In a sync nobody knows what is on the disk: all later commits end, with an error.
    disks.log.set_faults(Faults { sync_panics: 1, ..Faults::default() });
    assert_eq!(run(commit(&v, 0, 9)), Err(Errno::Io));
    assert_eq!(three_commits(&v), [Err(Errno::Io); 3]);
}

#[test]
fn c202_a_failed_sync_poisons_the_export() {
    let rig = Rig::new();
    let mut c = Client::ready(&rig.path, "a");
    c.write_fua(0, &[1; 4096]).unwrap();
    c.write(4096, &[2; 4096]);
    rig.a.log.set_faults(Faults { sync_errors: 1, ..Faults::default() });
    assert_eq!(c.flush(), Err(EIO));
    // The disk calls its pages clean now and would say yes.
    assert_eq!(c.flush(), Err(EIO));
    assert_eq!(c.read(4096, 4096), [2; 4096], "reads still see it");
    assert_eq!(c.call(request(CMD_WRITE, 8192, 4096), &[3; 4096]), Err(EIO));
    assert_eq!(c.write_fua(8192, &[3; 4096]), Err(EIO));
    // Nor does another connection get a false success, nor another export an error.
    assert_eq!(Client::ready(&rig.path, "a").flush(), Err(EIO));
    Client::ready(&rig.path, "always").write(0, &[1; 512]);
    // After the crash all that was acknowledged as durable is there, and the export serves again.
    let disks = rig.a.crashed();
    let v = volume(&disks);
    let mut page = [0; 4096];
    v.read(0, &mut page).unwrap();
    assert_eq!(page, [1; 4096]);
    assert_eq!(run(commit(&v, 1, 5)), Ok(()));
}

#[test]
fn c204_what_a_reader_acted_upon_is_durable_with_its_act() {
    let rig = Rig::new();
    let (mut c1, mut c2) = (Client::ready(&rig.path, "a"), Client::ready(&rig.path, "a"));
    rig.a.log.hold_syncs(true);
    let fua = |offset| Request { flags: CMD_FLAG_FUA, ..request(CMD_WRITE, offset, 512) };
    c1.post(fua(0), &[1; 512]);
    // Until c1's write is taken c2 sees zeros; then it sees X and acts upon it.
    let x = loop {
        let x = c2.read(0, 1)[0];
        if x != 0 {
            break x;
        }
    };
    c2.post(fua(512 * 20), &[x + 1; 512]);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.a.survivors()[..512], [0; 512], "nothing is durable yet");
    rig.a.log.hold_syncs(false);
    assert_eq!(c2.reply().1, 0);
    let left = rig.a.survivors();
    assert_eq!((left[512 * 20], left[0]), (2, 1));
    assert_eq!(c1.reply().1, 0);
}

#[test]
fn c194_a_flush_covers_the_writes_of_all_connections() {
    let rig = Rig::new();
    let (mut c1, mut c2) = (Client::ready(&rig.path, "a"), Client::ready(&rig.path, "a"));
    for i in 0..20u8 {
        let offset = u64::from(i) * 4096;
        c1.write(offset, &[i + 1; 4096]);
        // One more is under way, not acknowledged; it may or may not be covered.
        c1.post(request(CMD_WRITE, MIB + offset, 4096), &[i + 1; 4096]);
        c2.flush().unwrap();
        let left = rig.a.survivors();
        assert_eq!(left[offset as usize..][..4096], [i + 1; 4096], "write {i}");
        let other = &left[(MIB + offset) as usize..][..4096];
        assert!(other == [i + 1; 4096] || other == [0; 4096], "torn");
        assert_eq!(c1.reply().1, 0);
    }
}

#[test]
fn c210_a_tenant_waits_and_fails_for_itself_alone() {
    let rig = Rig::new();
    let (mut a, mut b) = (Client::ready(&rig.path, "a"), Client::ready(&rig.path, "always"));
    // A's sync takes for ever; B pays only for B.
    rig.a.log.hold_syncs(true);
    let before = rig.a.log.syncs();
    a.write(0, &vec![1; 1 << 20]);
    a.post(request(CMD_FLUSH, 0, 0), &[]);
    let start = Instant::now();
    for i in 0..10 {
        b.write(i * 4096, &[1; 4096]);
    }
    println!("ten commits of B beside A's sync: {:?}", start.elapsed());
    assert_eq!(rig.a.log.syncs(), before, "A's sync still runs");
    rig.a.log.hold_syncs(false);
    assert_eq!(a.reply().1, 0);
    // A write-back error on A's data file, at the checkpoint that fills of the log bring about.
    rig.a.data.set_faults(Faults { sync_errors: 1, ..Faults::default() });
    let mut errors = 0;
    for i in 0..200u64 {
        let data = vec![2; 64 << 10];
        errors += u32::from(a.call(request(CMD_WRITE, i % 16 * 65_536, 65_536), &data).is_err());
        if errors > 0 {
            break;
        }
    }
    assert_eq!(a.flush(), Err(EIO), "A is told");
    b.write(0, &[3; 4096]);
    b.flush().unwrap();
}

#[test]
fn the_log_never_outgrows_its_bound_and_checkpoints_give_room_back() {
    let rig = Rig::new();
    let mut c = Client::ready(&rig.path, "a");
    // Twelve times the log's capacity, with a check that the last write wins.
    for i in 0..768u64 {
        c.write(i % 32 * 65_536, &vec![(i / 32) as u8 + 1; 65_536]);
    }
    c.flush().unwrap();
    for page in 0..32u64 {
        assert_eq!(c.read(page * 65_536, 4), [24; 4]);
    }
    assert_eq!(rig.a.survivors(), vec![24; 2 << 20]);
}

#[test]
fn a_data_file_that_is_full_costs_room_and_no_promise() {
    let disks = Disks::new(MIB, 256 << 10);
    let v = volume(&disks);
    disks.data.set_faults(Faults { write_full: u32::MAX, ..Faults::default() });
    let outcome = run(async {
        for i in 0..100 {
            if let Err(errno) = commit(&v, i % 200, 7).await {
                return (i, errno);
            }
        }
        panic!("the log cannot hold a hundred pages")
    });
    assert_eq!(outcome.1, Errno::NoSpace);
    // What was durable is, and when there is room again all goes on.
    let left = disks.survivors();
    (0..outcome.0).for_each(|i| assert_eq!(left[i as usize * 4096], 7));
    disks.data.set_faults(Faults::default());
    assert_eq!(three_commits(&v), [Ok(()); 3]);
}
