//! The server as a child process, and programs that talk to it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of its own for each test, removed afterwards.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        // Beside the build, not in the directory for temporary files: that may be in memory, and
        // these tests are about disks.
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = base.join(format!("storage-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is found by whoever looks for space.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The program under test, built before the tests run.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples/storage_server");
    assert!(
        built.exists(),
        "build it first: cargo build --features tokio --example storage_server (same profile)"
    );
    built
}

/// A server of any make on a unix socket. Killed when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Server {
    /// Starts a command that listens on `socket` and waits until it does.
    pub(crate) fn start(command: &mut Command, socket: PathBuf) -> Self {
        let _ = std::fs::remove_file(&socket);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, socket };
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(&server.socket).is_err() {
            assert!(Instant::now() < deadline, "{command:?} does not listen");
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Our server with one export called `data` in `data.img`; `options` go to the export.
    pub(crate) fn ours(place: &Place, size: &str, options: &str) -> Self {
        Self::ours_with(place, size, options, &[])
    }

    pub(crate) fn ours_with(place: &Place, size: &str, options: &str, more: &[&str]) -> Self {
        let export = format!("data,path={},size={size}{options}", place.name("data.img"));
        let socket = place.file("ours.sock");
        let mut command = Command::new(program());
        command.args(["serve", "--export", &export, "--unix"]).arg(&socket);
        command.arg("--control").arg(place.file("control.sock")).args(more);
        Self::start(&mut command, socket)
    }

    pub(crate) fn qemu(place: &Place, image: &Path) -> Self {
        let socket = place.file("qemu.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["-f", "raw", "-x", "data", "-e", "64", "-t", "-k"]).arg(&socket).arg(image);
        Self::start(&mut command, socket)
    }

    pub(crate) fn nbdkit(place: &Place, size: &str) -> Self {
        let socket = place.file("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-U"]).arg(&socket).args(["memory", size]);
        Self::start(&mut command, socket)
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///data?socket={}", self.socket.display())
    }

    /// As the power does it, as far as a process is concerned.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(mut self) {
        run(Command::new("kill").arg(self.child.id().to_string()));
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already where a test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must succeed; returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `ctl` against the server of this place: what it printed, or its complaint.
pub(crate) fn ctl(place: &Place, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program());
    command.args(["ctl", "--control"]).arg(place.file("control.sock")).args(words);
    let output = command.output().unwrap();
    let trimmed = |bytes: &[u8]| text(bytes).trim_end().to_string();
    if output.status.success() { Ok(trimmed(&output.stdout)) } else { Err(trimmed(&output.stderr)) }
}

/// The counters of export `data`.
pub(crate) fn stats(place: &Place) -> serde_json::Value {
    let text = ctl(place, &["stats"]).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["data"].clone()
}
