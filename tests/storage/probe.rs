//! A raw-socket prober: where nbdkit and qemu-nbd agree on every byte of a reply, so do we.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::commands::{Place, Server};

const SIZE: u64 = 2 << 20;
/// A server that has said nothing for so long has said all.
const QUIET: Duration = Duration::from_millis(80);

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn go(name: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name, &[0, 0]].concat()
}

fn request(flags: u16, command: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(*b"cookie!!");
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
    out
}

/// Everything the server says until it is quiet or closes; a close is marked.
fn listen(socket: &mut UnixStream) -> (Vec<u8>, bool) {
    socket.set_read_timeout(Some(QUIET)).unwrap();
    let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return (all, true),
            Ok(n) => all.extend(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return (all, false),
            Err(_) => return (all, true),
        }
    }
}

/// What a probe does before its bytes.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Options,
    Simple,
    Structured,
}

/// Sends the pieces one after another, each when the answer to the one before is complete: servers
/// may answer requests in any order.
fn probe(path: &Path, stage: Stage, pieces: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
    let mut socket = UnixStream::connect(path).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    match stage {
        Stage::Options => {}
        Stage::Simple => socket.write_all(&option(7, &go(b"data"))).unwrap(),
        Stage::Structured => {
            socket.write_all(&option(8, &[])).unwrap();
            socket.write_all(&option(7, &go(b"data"))).unwrap();
        }
    }
    if !matches!(stage, Stage::Options) {
        // The replies to GO say what each server can do, and there they may differ.
        listen(&mut socket);
    }
    let mut replies = Vec::new();
    for piece in pieces {
        // A server may have closed on what it was sent.
        let _ = socket.write_all(piece);
        replies.push(listen(&mut socket));
    }
    replies
}

fn probes() -> Vec<(&'static str, Stage, Vec<Vec<u8>>)> {
    let alone = |bytes: Vec<u8>| vec![bytes];
    let mut all = vec![
        ("unknown option", Stage::Options, alone(option(77, b"data"))),
        ("option 0", Stage::Options, alone(option(0, &[]))),
        ("option 9", Stage::Options, alone(option(9, &[]))),
        ("PEEK_EXPORT", Stage::Options, alone(option(4, &[]))),
        ("ABORT", Stage::Options, alone(option(2, &[]))),
        ("LIST with data", Stage::Options, alone(option(3, b"x"))),
        ("STRUCTURED_REPLY", Stage::Options, alone(option(8, &[]))),
        ("STRUCTURED_REPLY with data", Stage::Options, alone(option(8, b"x"))),
        ("STARTTLS", Stage::Options, alone(option(5, &[]))),
        ("INFO, short", Stage::Options, alone(option(6, &[0, 0]))),
        ("INFO, name past the end", Stage::Options, alone(option(6, &[0xff; 10]))),
        ("GO, count past the end", Stage::Options, alone(option(7, &[0, 0, 0, 1, b'd', 0, 9]))),
        ("SET_META_CONTEXT too early", Stage::Options, alone(option(10, &[0; 8]))),
        ("no option magic", Stage::Options, alone(vec![b'x'; 16])),
    ];
    for stage in [Stage::Simple, Stage::Structured] {
        let mut write = request(0, 1, 4096, 512);
        write.extend([5; 512]);
        let mut write_fua = request(1, 1, 4096, 512);
        write_fua.extend([0; 512]);
        let mut write_past = request(0, 1, SIZE - 512, 1024);
        write_past.extend([0; 1024]);
        let read = request(0, 0, 0, 512);
        let then_read = |first: Vec<u8>| vec![first, read.clone()];
        all.extend([
            ("READ", stage, alone(read.clone())),
            ("READ + FUA", stage, alone(request(1, 0, 0, 512))),
            ("READ + DF", stage, alone(request(4, 0, 0, 512))),
            ("READ past the end", stage, alone(request(0, 0, SIZE - 512, 1024))),
            ("READ far past the end", stage, alone(request(0, 0, u64::MAX - 5, 512))),
            ("READ of nothing", stage, alone(request(0, 0, 0, 0))),
            ("READ with an unknown flag", stage, alone(request(0x200, 0, 0, 512))),
            ("WRITE", stage, then_read(write)),
            ("WRITE + FUA", stage, then_read(write_fua)),
            ("WRITE past the end", stage, then_read(write_past)),
            ("WRITE of nothing", stage, alone(request(0, 1, 0, 0))),
            ("FLUSH", stage, alone(request(0, 3, 0, 0))),
            ("FLUSH + FUA", stage, alone(request(1, 3, 0, 0))),
            ("FLUSH with a range", stage, alone(request(0, 3, 512, 512))),
            ("TRIM", stage, alone(request(0, 4, 8192, 4096))),
            ("TRIM past the end", stage, alone(request(0, 4, SIZE - 512, 4096))),
            ("WRITE_ZEROES", stage, alone(request(0, 6, 8192, 4096))),
            ("WRITE_ZEROES + NO_HOLE", stage, alone(request(2, 6, 8192, 4096))),
            ("WRITE_ZEROES past the end", stage, alone(request(0, 6, SIZE - 512, 4096))),
            ("CACHE", stage, alone(request(0, 5, 0, 4096))),
            ("unknown command", stage, then_read(request(0, 99, 0, 0))),
            ("TRIM with NO_HOLE", stage, alone(request(2, 4, 0, 512))),
            ("DISC", stage, alone(request(0, 2, 0, 0))),
            ("no request magic", stage, alone(vec![0; 28])),
        ]);
    }
    all
}

#[test]
#[ignore = "needs nbdkit and qemu-nbd; run by .ci/storage"]
fn replies_are_those_that_nbdkit_and_qemu_nbd_agree_on() {
    let place = Place::new();
    let image = place.file("qemu.img");
    std::fs::write(&image, vec![0; SIZE as usize]).unwrap();
    let ours = Server::ours(&place, "2m", "");
    let qemu = Server::qemu(&place, &image);
    let nbdkit = Server::nbdkit(&place, "2m");
    let (mut agreed, mut wrong) = (0, Vec::new());
    for (name, stage, bytes) in probes() {
        let [a, b, c] = [&nbdkit, &qemu, &ours].map(|s| probe(&s.socket, stage, &bytes));
        if a != b {
            println!("they differ: {stage:?} {name}");
            continue;
        }
        agreed += 1;
        if c != a {
            wrong.push(format!("{stage:?} {name}: they say {a:x?}, we say {c:x?}"));
        }
    }
    println!("{agreed} of {} replies are agreed on", probes().len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(agreed >= 30, "the other servers agree on too little to compare with: {agreed}");
}
