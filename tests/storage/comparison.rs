//! Against qemu-nbd on the same file: small writes, each made durable.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

use super::commands::{Place, Server};
use super::fio::{fio, measure};

const ROUNDS: usize = 7;

/// Writes per second of so many jobs, each 8 KiB and flushed.
fn throughput(place: &Place, server: &Server, jobs: u32) -> f64 {
    let mut command = fio(place, &server.uri());
    command.args(["--rw=randwrite", "--bs=8k", "--fsync=1", "--size=8m", "--offset_increment=8m"]);
    command.args(["--time_based=1", "--runtime=2", &format!("--numjobs={jobs}")]);
    measure(&mut command)["write"]["iops"].as_f64().unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median time of a write of 8 KiB and its `fdatasync`, in the file that will be served.
fn sync_p50(place: &Place) -> f64 {
    let mut file = File::options().write(true).open(place.file("data.img")).unwrap();
    let times = (0..200u64).map(|i| {
        let start = Instant::now();
        file.seek(SeekFrom::Start(i * 37 % 16_384 * 8_192)).unwrap();
        file.write_all(&[i as u8; 8_192]).unwrap();
        file.sync_data().unwrap();
        start.elapsed().as_secs_f64() * 1e6
    });
    median(times.collect())
}

#[test]
#[ignore = "needs fio and qemu-nbd; run by .ci/storage"]
fn the_real_file_keeps_up_with_qemu_nbd() {
    let place = Place::new();
    // Every block written once: neither side pays for their allocation.
    let mut file = File::create(place.file("data.img")).unwrap();
    (0..128).for_each(|_| file.write_all(&[0; 1 << 20]).unwrap());
    file.sync_all().unwrap();
    println!("fdatasync p50 on this file: {:.0} us", sync_p50(&place));
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 1..=ROUNDS {
        for (jobs, ratios) in [1, 16].into_iter().zip(&mut ratios) {
            // Who goes first changes from round to round, so that a drift favours nobody.
            let ours = || {
                let server = Server::ours(&place, "128m", "");
                let iops = throughput(&place, &server, jobs);
                server.stop();
                iops
            };
            let qemu = || {
                let server = Server::qemu(&place, &place.file("data.img"));
                let iops = throughput(&place, &server, jobs);
                server.stop();
                iops
            };
            let (ours, qemu) = if round % 2 == 0 {
                let first = ours();
                (first, qemu())
            } else {
                let first = qemu();
                (ours(), first)
            };
            println!(
                "round {round}, {jobs:2} jobs: ours {ours:.0}/s, qemu-nbd {qemu:.0}/s, ratio {:.2}",
                ours / qemu
            );
            ratios.push(ours / qemu);
        }
    }
    for (jobs, ratios) in [1, 16].into_iter().zip(ratios) {
        let median = median(ratios);
        let verdict = if median >= 1.0 { "met" } else { "MISSED" };
        println!("{jobs} jobs: median ratio {median:.2}, target 1.00: {verdict}");
        // Wall-clock figures of a shared machine are reported, not asserted: with one job both
        // sides do little but wait for the disk. What must not happen is that batching is lost.
        assert!(jobs == 1 || median >= 1.0, "slower than qemu-nbd with {jobs} jobs: {median:.2}");
    }
}
