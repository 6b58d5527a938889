//! qemu-io and qemu-img.

use std::process::Command;

use super::commands::{Place, Server, run};

#[test]
#[ignore = "needs qemu-io and qemu-img; run by .ci/storage"]
fn qemu_io_writes_zeroes_discards_and_reads_back() {
    let place = Place::new();
    let server = Server::ours(&place, "64m", "");
    let io = |commands: &[&str]| {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none"]);
        commands.iter().for_each(|c| _ = command.args(["-c", c]));
        let out = run(command.arg(server.uri()));
        assert!(!out.contains("Pattern verification failed"), "{out}");
    };
    io(&["write -P 0xa5 0 1m", "write -f -P 0x5a 3m 64k", "flush"]);
    io(&["read -P 0xa5 0 1m", "read -P 0x5a 3m 64k", "read -P 0 1m 2m"]);
    io(&["write -z 256k 256k", "write -z -f -u 512k 64k", "discard 0 64k"]);
    io(&["read -P 0xa5 64k 192k", "read -P 0 256k 320k", "read -P 0 0 64k"]);
    // Over the edges of sectors and pages.
    io(&["write -P 0x11 12345 777", "read -P 0x11 12345 777", "write -P 0x12 1048000 9000"]);
    io(&["aio_write -P 0x33 8m 1m", "aio_write -P 0x34 9m 1m", "aio_flush"]);
    io(&["read -P 0x33 8m 1m", "read -P 0x34 9m 1m", "read -P 0x12 1048000 9000"]);
    server.stop();
    let server = Server::ours(&place, "64m", "");
    let mut command = Command::new("qemu-io");
    command.args(["-r", "-f", "raw", "-c", "read -P 0x5a 3m 64k", "-c", "read -P 0x33 8m 1m"]);
    let out = run(command.arg(server.uri()));
    assert!(!out.contains("Pattern verification failed"), "{out}");
    let info = run(Command::new("qemu-img").args(["info", "-f", "raw"]).arg(server.uri()));
    assert!(info.contains("64 MiB"), "{info}");
    let bench =
        ["bench", "-f", "raw", "-w", "-s", "8192", "-c", "2000", "-d", "16", "--flush-interval=16"];
    run(Command::new("qemu-img").args(bench).arg(server.uri()));
}
