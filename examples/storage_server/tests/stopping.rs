//! Stopping with clients in every state.

use std::time::{Duration, Instant};

use crate::nbd::proto::*;
use crate::server::Address;
use crate::storage::crashdisk::Faults;

use super::client::{Client, Request, info_data, option, request};
use super::rig::{Rig, limits};

/// One stop, with a client in every state. `flush` is how long a sync takes.
fn round(grace: Duration, flush: Duration, address: Address) -> Address {
    let mut rig = Rig::with(limits(), &[address]);
    let bound = rig.server().tcp[0];
    let connected = Client::silent_tcp(bound);
    let mut half_flags = Client::silent_tcp(bound);
    half_flags.take(18);
    half_flags.send(&[0, 0]);
    let mut mid_option = Client::connect(&rig.path);
    mid_option.send(&option(OPT_GO, &info_data(b"a", &[]))[..11]);
    let mut mid_header = Client::ready(&rig.path, "a");
    mid_header.send(&request(CMD_READ, 0, 512).encode(1)[..13]);
    let mut mid_payload = Client::ready(&rig.path, "a");
    mid_payload.post(request(CMD_WRITE, 4096, 4096), &[9; 1000]);
    let mut waiting = Client::ready(&rig.path, "a");
    rig.a.log.set_faults(Faults { sync_time: flush, ..Faults::default() });
    let fua = Request { flags: CMD_FLAG_FUA, ..request(CMD_WRITE, 8192, 512) };
    waiting.post(fua, &[7; 512]);
    let idle = Client::ready(&rig.path, "a");
    std::thread::sleep(Duration::from_millis(5));

    let senders = std::thread::spawn(move || {
        // Each sends what comes next; the server may be gone by then.
        std::thread::sleep(Duration::from_millis(3));
        let _ = half_flags.stream.write_all(&[0, 3]);
        let _ = mid_header.stream.write_all(&request(CMD_READ, 0, 512).encode(1)[13..]);
        let _ = mid_payload.stream.write_all(&[9; 500]);
        (connected, half_flags, mid_option, mid_header, mid_payload, idle)
    });
    let start = Instant::now();
    rig.stop(grace);
    let took = start.elapsed();
    assert!(took < grace + Duration::from_secs(1), "stopping took {took:?}");
    drop(senders.join().unwrap());

    // A write that was answered is durable; one whose payload was not whole left no trace.
    let mut header = [0; 16];
    let answered = waiting.stream.read_exact(&mut header).is_ok() && header[4..8] == [0; 4];
    let left = rig.a.survivors();
    assert!(!answered || left[8192..8704] == [7; 512], "acknowledged and lost");
    assert_eq!(left[4096..8192], [0; 4096], "half a payload was written");

    // The port is free again.
    let again = Rig::with(limits(), &[Address::Tcp(bound)]);
    let mut c = Client::silent_tcp(bound).greet();
    c.go("a");
    assert_eq!(c.read(0, 512), [0; 512]);
    drop(again);
    Address::Tcp(bound)
}

#[test]
fn c180_stopping_with_clients_in_every_state() {
    let ms = Duration::from_millis;
    let mut address = Address::Tcp(([127, 0, 0, 1], 0).into());
    for i in 0..100 {
        let (grace, flush) = if i % 10 == 0 { (ms(100), ms(300)) } else { (ms(10), ms(30)) };
        address = round(grace, flush, address);
    }
}

#[test]
fn what_was_begun_is_finished_within_the_grace() {
    let mut rig = Rig::new();
    let mut c = Client::ready(&rig.path, "a");
    rig.a.log.set_faults(Faults { sync_time: Duration::from_millis(50), ..Faults::default() });
    let fua = Request { flags: CMD_FLAG_FUA, ..request(CMD_WRITE, 0, 512) };
    c.post(fua, &[1; 512]);
    std::thread::sleep(Duration::from_millis(10));
    rig.stop(Duration::from_secs(5));
    let (_, error, _) = c.reply();
    assert_eq!(error, 0);
    c.expect_end();
    assert_eq!(rig.a.survivors()[..512], [1; 512]);
    assert!(!rig.path.exists(), "the socket's name is removed");
}
