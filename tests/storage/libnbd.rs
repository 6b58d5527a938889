//! libnbd's tools: nbdinfo, nbdcopy, and the Python shell for illegal requests.

use std::process::Command;

use super::commands::{Place, Server, ctl, run};

#[test]
#[ignore = "needs nbdinfo (libnbd); run by .ci/storage"]
fn nbdinfo_sees_every_export_and_its_flags() {
    let place = Place::new();
    // What is only read has to be there.
    std::fs::write(place.file("other.img"), vec![0; 1 << 20]).unwrap();
    let second = format!("other,path={},size=1m,ro", place.name("other.img"));
    let server = Server::ours_with(&place, "64m", "", &["--export", &second]);
    let list = run(Command::new("nbdinfo").args(["--json", "--list"]).arg(server.uri()));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let exports = list["exports"].as_array().unwrap();
    assert_eq!(list["structured"], true);
    assert_eq!(exports.len(), 2);
    let data = &exports[0];
    assert_eq!((&data["export-name"], &data["export-size"]), (&"data".into(), &(64 << 20).into()));
    let can = ["flush", "fua", "trim", "zero", "fast_zero", "df", "multi_conn", "cache"];
    for capability in can {
        assert_eq!(data[format!("can_{capability}")], true, "{capability}");
    }
    assert_eq!(data["is_read_only"], false);
    assert_eq!(data["block_size_minimum"], 1);
    assert_eq!(data["block_size_maximum"], 32 << 20);
    assert_eq!(exports[1]["is_read_only"], true);
    let size = run(Command::new("nbdinfo").arg("--size").arg(server.uri()));
    assert_eq!(size.trim(), (64 << 20).to_string());
}

#[test]
#[ignore = "needs nbdcopy (libnbd) and qemu-img; run by .ci/storage"]
fn nbdcopy_over_several_connections_copies_every_byte() {
    let place = Place::new();
    let image = place.file("source.img");
    let mut bytes = Vec::with_capacity(64 << 20);
    let mut rng = 1u64;
    while bytes.len() < 64 << 20 {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Every other MiB is a hole: nbdcopy sends those as zeroes.
        let noise = if bytes.len() >> 20 & 1 == 0 { rng } else { 0 };
        bytes.extend(noise.to_le_bytes());
    }
    std::fs::write(&image, &bytes).unwrap();
    let server = Server::ours(&place, "64m", "");
    let copy = ["--connections=4", "--requests=16", "--flush"];
    run(Command::new("nbdcopy").args(copy).arg(&image).arg(server.uri()));
    let compare = |server: &Server| {
        let compare = ["compare", "-f", "raw", "-F", "raw"];
        run(Command::new("qemu-img").args(compare).arg(&image).arg(server.uri()));
    };
    compare(&server);
    // And back, and once more after a kill: nbdcopy flushed.
    let back = place.file("back.img");
    run(Command::new("nbdcopy").args(copy).arg(server.uri()).arg(&back));
    assert!(std::fs::read(&back).unwrap() == bytes, "the copy back differs");
    server.kill();
    let server = Server::ours(&place, "64m", "");
    compare(&server);
    // After an orderly stop the data file alone is the image.
    server.stop();
    assert!(std::fs::read(place.file("data.img")).unwrap() == bytes, "the data file differs");
}

/// Illegal requests through libnbd with its own checks off.
const MATRIX: &str = r#"
import nbd, errno, sys
h.set_strict_mode(0)
h.connect_uri(uri)
size = h.get_size()
def fails(code, f):
    try:
        f()
    except nbd.Error as e:
        got = errno.errorcode.get(e.errnum, e.errnum)
        assert e.errnum == code, "%s instead of %s" % (got, errno.errorcode[code])
    else:
        assert False, "no error, wanted %s" % errno.errorcode[code]
    assert h.pread(512, 0) == zero, "the stream is out of step"
zero = h.pread(512, 0)
buf = bytearray(4096)
fails(errno.EINVAL, lambda: h.pread(1024, size - 512))
fails(errno.ENOSPC, lambda: h.pwrite(buf, size - 512))
fails(errno.ENOSPC, lambda: h.zero(4096, size - 512))
fails(errno.EINVAL, lambda: h.trim(4096, size - 512))
fails(errno.EINVAL, lambda: h.cache(4096, size - 512))
fails(errno.EINVAL, lambda: h.pread(512, 0, 0x40))
fails(errno.EINVAL, lambda: h.trim(512, 0, nbd.CMD_FLAG_NO_HOLE))
fails(errno.EINVAL, lambda: h.pread(33 * 1024 * 1024, 0))
fails(errno.EINVAL, lambda: h.pwrite(bytearray(33 * 1024 * 1024), 0))
h.pwrite(buf, 4096, nbd.CMD_FLAG_FUA)
h.zero(4096, 4096, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
h.trim(4096, 4096, nbd.CMD_FLAG_FUA)
h.cache(4096, 0)
h.flush()
assert len(h.pread(65536, 0, nbd.CMD_FLAG_DF)) == 65536
h.shutdown()
r = nbd.NBD()
r.set_strict_mode(0)
r.connect_uri(ro)
for f in (lambda: r.pwrite(buf, 0), lambda: r.zero(4096, 0), lambda: r.trim(4096, 0)):
    try:
        f()
    except nbd.Error as e:
        assert e.errnum == errno.EPERM, e
    else:
        assert False, "a read-only export was changed"
r.pread(512, 0)
r.shutdown()
for name in ("nobody", "x" * 4096):
    u = nbd.NBD()
    u.set_export_name(name)
    try:
        u.connect_unix(path)
    except nbd.Error:
        pass
    else:
        assert False, "an unknown export was opened"
print("matrix clean")
"#;

#[test]
#[ignore = "needs nbdsh (python3-libnbd); run by .ci/storage"]
fn nbdsh_error_matrix() {
    let place = Place::new();
    std::fs::write(place.file("ro.img"), vec![0; 1 << 20]).unwrap();
    let second = format!("ro,path={},size=1m,ro", place.name("ro.img"));
    let server = Server::ours_with(&place, "64m", "", &["--export", &second]);
    let path = server.socket.display().to_string();
    let ro = format!("nbd+unix:///ro?socket={path}");
    let names = format!("uri={:?}; ro={ro:?}; path={path:?}\n", server.uri());
    // The system's Python has the bindings; another one in front of it would not.
    let search = format!("/usr/bin:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("nbdsh");
    let out = run(shell.env("PATH", search).arg("-c").arg(names + MATRIX));
    assert!(out.contains("matrix clean"), "{out}");
    // The same connection served all that; the server is still there for ctl.
    assert!(ctl(&place, &["get", "commit.pct"]).is_ok());
}
