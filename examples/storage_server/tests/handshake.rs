//! Cases of the handshake.

use std::time::{Duration, Instant};

use crate::nbd::proto::*;
use crate::server::ServerLimits;

use super::client::{Client, info_data, option};
use super::rig::{MIB, Rig, limits};

#[test]
fn every_option_is_answered_and_the_export_is_as_it_says() {
    let rig = Rig::new();
    let mut c = Client::connect(&rig.path);
    let (kind, names) = c.ask(OPT_LIST, &[]);
    assert_eq!((kind, names.len()), (REP_ACK, 3));
    assert_eq!(names[0], [&1u32.to_be_bytes(), b"a".as_slice()].concat());
    assert_eq!(c.ask(OPT_LIST, b"x").0, REP_ERR_INVALID);
    assert_eq!(c.ask(OPT_STARTTLS, &[]).0, REP_ERR_POLICY);
    assert_eq!(c.ask(OPT_SET_META_CONTEXT, &[0; 8]).0, REP_ERR_INVALID, "not before structured");
    assert_eq!(c.ask(OPT_STRUCTURED_REPLY, b"x").0, REP_ERR_INVALID);
    assert_eq!(c.ask(OPT_STRUCTURED_REPLY, &[]).0, REP_ACK);
    assert_eq!(c.ask(OPT_SET_META_CONTEXT, &[0; 8]).0, REP_ERR_UNSUP);
    let wants = [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE];
    let (kind, items) = c.ask(OPT_INFO, &info_data(b"a", &wants));
    assert_eq!(kind, REP_ACK);
    let find = |t: u16| items.iter().find(|i| i[..2] == t.to_be_bytes()).unwrap()[2..].to_vec();
    assert_eq!(find(INFO_NAME), b"a");
    assert!(!find(INFO_DESCRIPTION).is_empty());
    assert_eq!(find(INFO_BLOCK_SIZE), [1u32, 4096, 2 << 20].map(u32::to_be_bytes).concat());
    let (size, flags) = c.go("a");
    assert_eq!(size, 2 * MIB);
    let honoured = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_DF;
    assert_eq!(flags, honoured | CAN_MULTI_CONN | SEND_CACHE | SEND_FAST_ZERO);
    let (_, flags) = Client::connect(&rig.path).go("ro");
    assert_eq!(flags & (READ_ONLY | SEND_TRIM | SEND_DF), READ_ONLY);

    let mut c = Client::connect(&rig.path);
    c.send(&option(OPT_ABORT, &[]));
    assert_eq!(c.option_replies(OPT_ABORT).0, REP_ACK);
    c.expect_end();
}

#[test]
fn export_name_answers_by_size_and_flags_or_by_closing() {
    let rig = Rig::new();
    for (flags, zeroes) in [(3u32, 0), (1, 124)] {
        let mut c = Client::silent(&rig.path);
        c.take(18);
        c.send(&flags.to_be_bytes());
        c.send(&option(OPT_EXPORT_NAME, b"a"));
        let reply = c.take(10 + zeroes);
        assert_eq!(reply[..8], (2 * MIB).to_be_bytes());
        assert!(reply[10..].iter().all(|b| *b == 0));
        assert_eq!(c.read(0, 512), [0; 512]);
    }
    let mut c = Client::silent(&rig.path);
    c.take(18);
    c.send(&4u32.to_be_bytes());
    c.expect_end();
}

#[test]
fn c178_names_of_any_length() {
    let rig = Rig::new();
    for length in [0, 1, 255, 256, 257, 3000, 4096, 4097] {
        let name = vec![b'n'; length];
        for number in [OPT_INFO, OPT_GO] {
            let mut c = Client::connect(&rig.path);
            let (kind, _) = c.ask(number, &info_data(&name, &[]));
            let right = if length > 4096 { REP_ERR_TOO_BIG } else { REP_ERR_UNKNOWN };
            assert_eq!(kind, right, "{length}");
            assert_eq!(c.ask(OPT_ABORT, &[]).0, REP_ACK);
        }
        let mut c = Client::connect(&rig.path);
        c.send(&option(OPT_EXPORT_NAME, &name));
        c.expect_end();
    }
    let mut c = Client::connect(&rig.path);
    let mut data = u32::MAX.to_be_bytes().to_vec();
    data.extend([0; 6]);
    assert_eq!(c.ask(OPT_GO, &data).0, REP_ERR_INVALID);
    for name in [b"a\xff\xfe".as_slice(), b"a\0", b"\0"] {
        assert_eq!(c.ask(OPT_INFO, &info_data(name, &[])).0, REP_ERR_INVALID);
    }
    c.go("a");
    assert_eq!(c.read(0, 8), [0; 8]);
}

#[test]
fn c192_unknown_options_leave_the_stream_in_step() {
    let rig = Rig::new();
    let mut c = Client::connect(&rig.path);
    for number in [0, 4, 9, 77, u32::MAX, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT]
    {
        for length in [0, 5, 64 << 10] {
            let (kind, _) = c.ask(number, &vec![0xa5; length]);
            let right = match number {
                OPT_STARTTLS => REP_ERR_POLICY,
                OPT_STRUCTURED_REPLY if length == 0 => REP_ACK,
                OPT_STRUCTURED_REPLY => REP_ERR_INVALID,
                // Structured replies are agreed on by now.
                _ => REP_ERR_UNSUP,
            };
            assert_eq!(kind, right, "option {number}, {length} bytes");
        }
    }
    assert_eq!(c.ask(77, &vec![0; (64 << 10) + 1]).0, REP_ERR_TOO_BIG);
    c.structured = true;
    c.go("a");
    assert_eq!(c.read(512, 16), [0; 16]);

    let mut c = Client::connect(&rig.path);
    let mut absurd = option(77, &[]);
    absurd[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    c.send(&absurd);
    c.expect_end();
}

#[test]
fn c197_inconsistent_lengths_are_drained() {
    let rig = Rig::new();
    let mut c = Client::connect(&rig.path);
    for number in [OPT_INFO, OPT_GO] {
        for length in 6..=10u32 {
            for inner in [u32::MAX, u32::MAX - 1, length - 5, length - 4, length] {
                let mut data = inner.to_be_bytes().to_vec();
                data.resize(length as usize, 0xff);
                assert_eq!(c.ask(number, &data).0, REP_ERR_INVALID, "{length} {inner}");
            }
        }
        let mut data = info_data(b"a", &[INFO_NAME]);
        data[5..7].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(c.ask(number, &data).0, REP_ERR_INVALID, "a count past the data");
        data[5..7].copy_from_slice(&[0, 0]);
        assert_eq!(c.ask(number, &data).0, REP_ERR_INVALID, "a count short of the data");
    }
    c.go("a");
    assert_eq!(c.read(0, 8), [0; 8]);
}

#[test]
fn c190_a_slot_comes_back_however_its_client_ends() {
    let rig = Rig::with(ServerLimits { connections: 1, ..limits() }, &[]);
    for round in 0..4 {
        let mut c = Client::ready(&rig.path, "a");
        assert_eq!(c.read(0, 4), [0; 4], "round {round}");
        c.disconnect();
        drop(Client::ready(&rig.path, "a"));
        drop(Client::connect(&rig.path));
        let mut c = Client::connect(&rig.path);
        c.send(b"this is no option at all");
        c.expect_end();
    }
    let mut first = Client::ready(&rig.path, "a");
    // The second waits in the queue: it is greeted only when the first has left.
    let path = rig.path.clone();
    let second = std::thread::spawn(move || {
        let mut c = Client::ready(&path, "a");
        (c.read(0, 4), Instant::now())
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(first.read(0, 4), [0; 4]);
    let left = Instant::now();
    first.disconnect();
    let (data, served) = second.join().unwrap();
    assert_eq!(data, [0; 4]);
    assert!(served > left);
}

#[test]
fn a_client_that_does_not_finish_its_handshake_is_cut_off() {
    let short = Duration::from_millis(100);
    let rig = Rig::with(ServerLimits { handshake_timeout: short, ..limits() }, &[]);
    let start = Instant::now();
    let mut c = Client::connect(&rig.path);
    c.send(&option(OPT_LIST, &[])[..10]);
    c.expect_end();
    assert!(start.elapsed() >= short, "too early");
    // One that is in transmission may be silent for as long as it likes.
    let mut c = Client::ready(&rig.path, "a");
    std::thread::sleep(short * 2);
    assert_eq!(c.read(0, 4), [0; 4]);
}
