//! Byte streams that are no protocol: they cost their own connection and nothing else.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::nbd::proto::*;

use super::client::{Client, info_data, option, request};
use super::rig::Rig;

#[test]
fn malformed_streams_never_stop_the_server_nor_another_client() {
    let rig = Rig::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A well-behaved client works all the while, and every answer is checked.
        let good = scope.spawn(|| {
            let mut c = Client::ready_structured(&rig.path, "a");
            let mut rounds = 0u32;
            while !stop.load(Ordering::Relaxed) || rounds < 20 {
                let fill = rounds as u8;
                c.write(4096, &[fill; 4096]);
                c.flush().unwrap();
                assert_eq!(c.read(4096, 4096), [fill; 4096]);
                rounds += 1;
            }
            rounds
        });
        let mut rng = 42u64;
        let mut random = move |below: u64| {
            rng =
                rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (rng >> 33) % below
        };
        let mut honest = 3u32.to_be_bytes().to_vec();
        honest.extend(option(OPT_STRUCTURED_REPLY, &[]));
        honest.extend(option(OPT_GO, &info_data(b"ro", &[INFO_BLOCK_SIZE])));
        honest.extend(request(CMD_WRITE, 0, 256).encode(1));
        honest.extend([3; 256]);
        honest.extend(request(CMD_READ, 0, 256).encode(2));
        honest.extend(request(CMD_FLUSH, 0, 0).encode(3));
        for round in 0..600 {
            let mut bytes = honest.clone();
            match round % 4 {
                // Noise from the start, after the flags, or after GO.
                0 => bytes = (0..random(400)).map(|_| random(256) as u8).collect(),
                1 => {
                    bytes.truncate([4, 20, bytes.len() - 28 * 2][random(3) as usize]);
                    bytes.extend((0..random(400)).map(|_| random(256) as u8));
                }
                // A few bits flipped.
                2 => {
                    for _ in 0..1 + random(4) {
                        let at = random(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << random(8);
                    }
                }
                // Pieces missing or doubled.
                _ => {
                    let (a, b) = (random(bytes.len() as u64), random(bytes.len() as u64));
                    let piece: Vec<u8> =
                        bytes.drain(a.min(b) as usize..a.max(b) as usize).collect();
                    if random(2) == 0 {
                        bytes.extend(piece.repeat(2));
                    }
                }
            }
            let mut socket = UnixStream::connect(&rig.path).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The server may have closed already; both ends of that are fine.
            let _ = socket.write_all(&bytes);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let mut replies = Vec::new();
            match socket.read_to_end(&mut replies) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(good.join().unwrap() >= 20);
    });
    let mut c = Client::ready(&rig.path, "ro");
    assert_eq!(c.read(0, 512), [0; 512], "nobody could write to a read-only export");
}

#[test]
fn announced_payloads_cost_no_memory_until_they_come() {
    let rig = Rig::new();
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let mut clients: Vec<_> = (0..40).map(|_| Client::ready(&rig.path, "a")).collect();
    let before = resident();
    for c in &mut clients {
        c.post(request(CMD_WRITE, 0, 2 << 20), &[]);
    }
    let mut other = Client::ready(&rig.path, "a");
    other.write_fua(0, &[1; 512]).unwrap();
    let grown = resident().saturating_sub(before);
    // Forty announced payloads are 80 MiB; other tests of this process may allocate meanwhile.
    assert!(grown < 64 << 20, "{grown} bytes");
}
