//! The control socket: one line in, one line out.
//!
//! ```text
//! get NAME          set NAME VALUE          stats          shutdown
//! ok VALUE          ok                      ok {...}       ok
//! err EINVAL: ...
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncBufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

use crate::commit::settings::Tunables;
use crate::export::Export;
use crate::timers;

/// A line longer than this is not a command.
const MAX_LINE: u64 = 4096;
/// A client that does not finish its line in this time is let go.
const LINE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// What commands act on.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) tunables: Arc<Tunables>,
    pub(crate) exports: Vec<std::sync::Weak<Export>>,
    pub(crate) stop: Arc<Notify>,
}

impl Control {
    /// Answers commands until it is dropped.
    pub(crate) async fn run(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let this = self.clone();
                    tokio::spawn(async move {
                        // A client that leaves early needs no answer.
                        let _ = this.client(socket).await;
                    });
                }
                Err(error) => {
                    eprintln!("storage_server: control socket: {error}");
                    timers::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn client(&self, mut socket: UnixStream) -> io::Result<()> {
        let (reader, mut writer) = socket.split();
        let mut reader = AsyncBufReader::new(reader.take(MAX_LINE));
        loop {
            let mut line = String::new();
            let read = timers::timeout(LINE_TIMEOUT, reader.read_line(&mut line)).await;
            if read.ok_or(io::ErrorKind::TimedOut)?? == 0 {
                return Ok(());
            }
            let answer = match self.answer(line.strip_suffix('\n').unwrap_or(&line)) {
                Ok(text) if text.is_empty() => "ok\n".to_string(),
                Ok(text) => format!("ok {text}\n"),
                Err(error) => format!("err {error}\n"),
            };
            writer.write_all(answer.as_bytes()).await?;
            reader.get_mut().set_limit(MAX_LINE);
        }
    }

    fn answer(&self, line: &str) -> Result<String, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "get" => self.tunables.get(rest),
            "set" => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                self.tunables.set(name, value).map(|()| String::new())
            }
            "stats" => Ok(self.stats().to_string()),
            "shutdown" => {
                self.stop.notify_one();
                Ok(String::new())
            }
            _ => Err(format!("EINVAL: {verb:?}: there are get, set, stats, shutdown")),
        }
    }

    fn stats(&self) -> serde_json::Value {
        let exports = self.exports.iter().filter_map(std::sync::Weak::upgrade);
        let one = |e: Arc<Export>| {
            let mut stats = e.volume.stats().to_json();
            stats["mean_log_write_ns"] = json!(e.volume.mean_latency().as_nanos() as u64);
            stats["poisoned"] = json!(e.volume.poisoned().map(|errno| errno.to_string()));
            (e.info.name.clone(), stats)
        };
        serde_json::Value::Object(exports.map(one).collect())
    }
}

/// Sends one command and returns its answer: the client's side, for `ctl`.
pub(crate) fn ask(socket: &Path, command: &str) -> Result<String, String> {
    let talk = || -> io::Result<String> {
        let mut stream = BlockingStream::connect(socket)?;
        stream.write_all(command.as_bytes())?;
        stream.write_all(b"\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = talk().map_err(|e| format!("{}: {e}", socket.display()))?;
    let answer = answer.trim_end_matches('\n');
    match answer.split_once(' ').unwrap_or((answer, "")) {
        ("ok", value) => Ok(value.to_string()),
        ("err", error) => Err(error.to_string()),
        _ => Err(format!("{}: no answer", socket.display())),
    }
}
