//! Cases of the transmission phase.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::nbd::proto::*;
use crate::nbd::transmission::Bounds;
use crate::server::{Address, ServerLimits};
use crate::storage::crashdisk::Faults;

use super::client::{Client, Request, info_data, option, request};
use super::rig::{MIB, Rig, limits};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const END: u64 = 2 * MIB;

#[test]
fn c176_the_payload_of_a_failed_write_is_consumed() {
    let rig = Rig::new();
    // Taken for requests, this would be a stream of reads.
    let poison: Vec<u8> = request(CMD_READ, 0, 512).encode(99).repeat(65_536 / 28 + 1);
    let poison = &poison[..65_536];
    for structured in [false, true] {
        let ready = |name| match structured {
            true => Client::ready_structured(&rig.path, name),
            false => Client::ready(&rig.path, name),
        };
        let mut c = ready("a");
        for (faults, errno) in [
            (Faults { write_errors: 1, ..Faults::default() }, EIO),
            (Faults { write_full: 1, ..Faults::default() }, ENOSPC),
        ] {
            c.write(0, &[9; 512]);
            rig.a.log.set_faults(faults);
            assert_eq!(c.write_fua(4096, poison), Err(errno));
            assert_eq!(c.read(0, 512), [9; 512]);
            c.write_fua(0, &[8; 16]).unwrap();
        }
        let past = c.call(request(CMD_WRITE, END - 512, 4096), &poison[..4096]);
        assert_eq!(past, Err(ENOSPC));
        assert_eq!(c.read(END - 512, 512), [0; 512], "nothing of it was written");
        let mut c = ready("ro");
        assert_eq!(c.call(request(CMD_WRITE, 0, 65_536), poison), Err(EPERM));
        assert_eq!(c.read(0, 512), [0; 512]);
    }
}

#[test]
fn c182_a_burst_of_all_commands_gets_all_replies() {
    let rig = Rig::new();
    let mut c = Client::ready(&rig.path, "a");
    let mut burst = Vec::new();
    let write = request(CMD_WRITE, 0, 4096);
    for (cookie, r) in (1..).zip([
        write,
        request(CMD_READ, 0, 4096),
        request(CMD_FLUSH, 0, 0),
        request(CMD_TRIM, 8192, 4096),
        request(CMD_WRITE_ZEROES, 4096, 4096),
        request(99, 0, 0),
        request(CMD_CACHE, 0, 4096),
        request(CMD_READ, 4096, 4096),
        request(CMD_DISC, 0, 0),
    ]) {
        burst.extend(r.encode(cookie));
        if r.command == CMD_WRITE {
            burst.extend([7; 4096]);
        }
    }
    c.send(&burst);
    let mut all = Vec::new();
    c.stream.read_to_end(&mut all).unwrap();
    let (mut seen, mut at) = (Vec::new(), 0);
    while at < all.len() {
        assert_eq!(all[at..at + 4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes(all[at + 4..at + 8].try_into().unwrap());
        let cookie = u64::from_be_bytes(all[at + 8..at + 16].try_into().unwrap());
        assert_eq!(error, if cookie == 6 { EINVAL } else { 0 }, "request {cookie}");
        at += 16 + if cookie == 2 || cookie == 8 { 4096 } else { 0 };
        seen.push(cookie);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=8).collect::<Vec<_>>());
}

#[test]
fn c184_fua_is_durable_when_it_is_answered() {
    let rig = Rig::new();
    let mut c = Client::connect(&rig.path);
    let (_, flags) = c.go("a");
    let promised = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    assert_eq!(flags & promised, promised);
    let fua = |command, offset, length| Request {
        flags: CMD_FLAG_FUA,
        ..request(command, offset, length)
    };
    for i in 0..20u8 {
        let offset = u64::from(i) * 8192;
        c.write_fua(offset, &[i + 1; 8192]).unwrap();
        let left = rig.a.survivors();
        assert_eq!(left[offset as usize..][..8192], [i + 1; 8192], "write {i}");
    }
    c.call(fua(CMD_WRITE_ZEROES, 0, 8192), &[]).unwrap();
    assert_eq!(rig.a.survivors()[..8192], [0; 8192]);
    c.call(fua(CMD_TRIM, 8192, 8192), &[]).unwrap();
    assert_eq!(rig.a.survivors()[8192..16_384], [0; 8192]);
    assert_eq!(c.call(fua(CMD_READ, 16_384, 4), &[]), Ok(vec![3; 4]));
    c.call(fua(CMD_FLUSH, 0, 0), &[]).unwrap();
    // An export that syncs always needs no flag.
    let mut c = Client::ready(&rig.path, "always");
    c.write(0, &[5; 512]);
    assert_eq!(rig.always.survivors()[..512], [5; 512]);
    // Without a flag or a flush nothing is promised, and nothing is synced for it.
    let mut c = Client::ready(&rig.path, "a");
    let before = rig.a.log.syncs();
    c.write(0, &[5; 512]);
    assert_eq!(rig.a.log.syncs(), before);
}

#[test]
fn c186_empty_requests_are_answered() {
    let rig = Rig::new();
    for structured in [false, true] {
        let mut c = match structured {
            true => Client::ready_structured(&rig.path, "a"),
            false => Client::ready(&rig.path, "a"),
        };
        for command in [CMD_READ, CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
            for (offset, right) in [(0, Ok(vec![])), (END, Ok(vec![]))] {
                assert_eq!(c.call(request(command, offset, 0), &[]), right);
            }
            for offset in [END + 1, u64::MAX] {
                assert_eq!(c.call(request(command, offset, 0), &[]), Err(EINVAL));
            }
        }
        assert_eq!(c.read(0, 512), [0; 512]);
    }
}

/// A whole session as bytes: handshake, GO, WRITE, READ, DISC.
fn session(payload: &[u8], offset: u64) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option(OPT_GO, &info_data(b"a", &[])));
    bytes.extend(request(CMD_WRITE, offset, payload.len() as u32).encode(1));
    bytes.extend(payload);
    bytes.extend(request(CMD_READ, offset, payload.len() as u32).encode(2));
    bytes.extend(request(CMD_DISC, 0, 0).encode(3));
    bytes
}

#[test]
fn c188_bytes_may_come_in_any_pieces() {
    let address = Address::Tcp(([127, 0, 0, 1], 0).into());
    let rig = Rig::with(limits(), &[address]);
    let payload: Vec<u8> = (0..8192u32).map(|i| (i * 7) as u8).collect();
    let bytes = session(&payload, 0);
    let whole = {
        let mut c = Client::silent(&rig.path);
        c.send(&bytes);
        let mut all = Vec::new();
        c.stream.read_to_end(&mut all).unwrap();
        all
    };
    assert_eq!(whole[whole.len() - 8192..], payload);
    let mut rng = 1u64;
    for round in 0..6 {
        // Single bytes with TCP_NODELAY, then random pieces; replies read byte by byte.
        let mut socket = std::net::TcpStream::connect(rig.server().tcp[0]).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = socket.try_clone().unwrap();
        let expected = whole.clone();
        let replies = std::thread::spawn(move || {
            for (i, byte) in expected.iter().enumerate() {
                let mut one = [0];
                reader.read_exact(&mut one).unwrap();
                assert_eq!(one[0], *byte, "byte {i}");
            }
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        });
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let piece = if round == 0 { 1 } else { 1 + (rng >> 40) as usize % 700 };
            let (head, tail) = rest.split_at(piece.min(rest.len()));
            socket.write_all(head).unwrap();
            rest = tail;
        }
        replies.join().unwrap();
    }
}

#[test]
fn c188_every_truncated_session_ends_cleanly() {
    let rig = Rig::new();
    let mut watcher = Client::ready(&rig.path, "a");
    let (size, zeros) = (600, vec![0; 600]);
    // The write is complete behind greeting flags, GO, its header and its payload.
    let complete = session(&[], 0).len() - 2 * 28 + size;
    let length = session(&vec![0; size], 0).len();
    for cut in 0..=length {
        let offset = 1024 * (cut as u64 % 512);
        watcher.write(offset, &zeros);
        let mut socket = UnixStream::connect(&rig.path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(&session(&vec![6; size], offset)[..cut]).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        socket.read_to_end(&mut replies).unwrap();
        let applied = watcher.read(offset, size as u32);
        assert_eq!(applied, vec![if cut >= complete { 6 } else { 0 }; size], "cut at {cut}");
    }
}

#[test]
fn c196_a_client_that_does_not_read_is_bounded() {
    let write_timeout = Duration::from_millis(300);
    let bounds = Bounds { in_flight: 4 << 20, write_timeout };
    let address = Address::Tcp(([127, 0, 0, 1], 0).into());
    let rig = Rig::with(ServerLimits { connections: 3, bounds, ..limits() }, &[address]);
    let mut other = Client::ready(&rig.path, "a");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for round in 0..3 {
        let mut c = Client::silent_tcp(rig.server().tcp[0]).greet();
        c.go("a");
        for _ in 0..64 {
            c.post(request(CMD_READ, 0, MIB as u32), &[]);
        }
        let mut worst = Duration::ZERO;
        for i in 0..50 {
            let start = Instant::now();
            other.write_fua(0, &[i; 512]).unwrap();
            worst = worst.max(start.elapsed());
        }
        // A generous bound on a busy machine: what must not happen is waiting for the timeout.
        println!("round {round}: the other client waited {worst:?} at worst");
        match round {
            // Closed with replies unread, TCP sends a reset.
            0 => drop(c),
            // Silent until the server has enough: then its slot is free for one more client.
            _ => {
                let _more = Client::ready(&rig.path, "a");
                let mut last = Client::ready(&rig.path, "a");
                assert_eq!(last.read(512, 1), [0]);
                drop(c);
            }
        }
    }
    // Tasks and sockets go soon, not at once.
    let deadline = Instant::now() + Duration::from_secs(5);
    while descriptors() > before + 20 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(descriptors() <= before + 20, "{before} descriptors became {}", descriptors());
}

#[test]
fn the_error_matrix() {
    let rig = Rig::new();
    let mut c = Client::ready_structured(&rig.path, "a");
    let past = END - 512;
    for (r, errno) in [
        (request(CMD_READ, past, 1024), EINVAL),
        (request(CMD_TRIM, past, 1024), EINVAL),
        (request(CMD_WRITE_ZEROES, past, 1024), ENOSPC),
        (request(CMD_CACHE, past, 1024), EINVAL),
        (request(CMD_FLUSH, 1, 0), EINVAL),
        (request(CMD_FLUSH, 0, 1), EINVAL),
        (request(42, 0, 0), EINVAL),
        (Request { flags: 0x8000, ..request(CMD_READ, 0, 512) }, EINVAL),
        (Request { flags: CMD_FLAG_NO_HOLE, ..request(CMD_TRIM, 0, 512) }, EINVAL),
        (request(CMD_READ, 0, u32::MAX), EINVAL),
        (request(CMD_READ, u64::MAX - 1, 512), EINVAL),
    ] {
        assert_eq!(c.call(r, &[]), Err(errno), "command {} flags {}", r.command, r.flags);
    }
    // Larger than the limit: the payload is skipped, whatever its size.
    let big = vec![0x25; 3 << 20];
    assert_eq!(c.call(request(CMD_WRITE, 0, big.len() as u32), &big), Err(ENOSPC));
    assert_eq!(c.read(0, 512), [0; 512]);
    let df = Request { flags: CMD_FLAG_DF, ..request(CMD_READ, 0, 64 << 10) };
    assert_eq!(c.call(df, &[]).unwrap().len(), 64 << 10);
    let fast = CMD_FLAG_FAST_ZERO | CMD_FLAG_NO_HOLE | CMD_FLAG_FUA;
    c.write(0, &[1; 8192]);
    c.call(Request { flags: fast, ..request(CMD_WRITE_ZEROES, 4096, 4096) }, &[]).unwrap();
    assert_eq!(c.read(4095, 2), [1, 0]);
    let mut c = Client::ready(&rig.path, "ro");
    for command in [CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(c.call(request(command, 0, 512), &[]), Err(EPERM));
    }
    c.flush().unwrap();
}
