//! The second half of a connection: requests and replies, until the client disconnects.
//!
//! One task serves a connection. What needs no waiting is carried out as it is read; what waits (a
//! read, a flush, a forced write) becomes a future that the same task drives beside all else, so
//! replies may overtake each other, as the protocol allows, and no request costs a task of its own:
//! a small synchronous write is over before another thread had woken up to take it. The bytes of a
//! request are taken out of a budget before its payload is read, and go back when the reply is
//! written. A client that does not read its replies is thus bounded twice: in memory by the
//! budget, in time by the write timeout.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::errno::Errno;
use crate::export::Export;
use crate::server::Shutdown;
use crate::timers;

use super::handshake::Agreed;
use super::inbox::Inbox;
use super::request::{Command, Limits, RequestHeader, check, plain_reply, read_reply_header};

/// What a request costs beside its payload: no flood of small ones is free.
const REQUEST_COST: u64 = 4096;
/// The budget counts in units of this many bytes.
const UNIT: u64 = 512;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Payload bytes that may be under way, requests and replies together.
    pub(crate) in_flight: u32,
    /// How long one reply may take to leave.
    pub(crate) write_timeout: Duration,
}

/// Requests whose replies are still to come. An error ends the connection.
type Waiting = FuturesUnordered<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>;

/// Runs a future of the connection to its end, and what waits beside it.
async fn beside<F: Future>(waiting: &mut Waiting, future: F) -> io::Result<F::Output> {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            output = &mut future => return Ok(output),
            Some(done) = waiting.next() => done?,
        }
    }
}

/// What the requests of a connection share.
struct Peer<W> {
    export: Arc<Export>,
    structured: bool,
    socket: Mutex<W>,
    write_timeout: Duration,
}

impl<W: AsyncWrite + Unpin> Peer<W> {
    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let write = async { self.socket.lock().await.write_all(bytes).await };
        match timers::timeout(self.write_timeout, write).await {
            Some(outcome) => outcome,
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    async fn reply(&self, r: &RequestHeader, outcome: Result<(), Errno>) -> io::Result<()> {
        self.send(&plain_reply(r, outcome, self.structured)).await
    }
}

/// Serves requests until the client disconnects or the server stops.
pub(crate) async fn serve<R, W>(
    inbox: &mut Inbox<R>,
    socket: W,
    agreed: Agreed,
    bounds: Bounds,
    shutdown: &Shutdown,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let export = agreed.export;
    let limits = Limits {
        size: export.info.size,
        read_only: export.read_only(),
        max_payload: export.info.max_payload,
        zeroes_fast: export.volume.zeroes_fast(),
        structured: agreed.structured,
    };
    let peer = Arc::new(Peer {
        export,
        structured: agreed.structured,
        socket: Mutex::new(socket),
        write_timeout: bounds.write_timeout,
    });
    let units = (u64::from(bounds.in_flight) / UNIT).max(1) as u32;
    let budget = Arc::new(Semaphore::new(units as usize));
    // Dropped with this function, whatever ends it: nothing outlives its connection.
    let mut waiting = Waiting::new();

    loop {
        let header = tokio::select! {
            biased;
            Some(done) = waiting.next() => { done?; continue }
            header = inbox.piece::<{ RequestHeader::SIZE }>() => header?,
            () = shutdown.begun(), if waiting.is_empty() => break,
        };
        let Some(header) = header else { break };
        let Some(r) = RequestHeader::decode(&header) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no request magic"));
        };
        peer.export.volume.stats().request();
        let command = if shutdown.has_begun() {
            // Writes after the call to stop are refused, those before it are finished.
            Err(Errno::Shutdown)
        } else {
            check(&r, &limits)
        };
        let command = match command {
            Ok(command) => command,
            Err(errno) => {
                // Whatever is wrong with it, a payload is part of the stream.
                let skipped = beside(&mut waiting, inbox.skip(u64::from(r.payload()))).await?;
                skipped?;
                beside(&mut waiting, peer.reply(&r, Err(errno))).await??;
                continue;
            }
        };
        let carried = if matches!(command, Command::Read | Command::Write { .. }) {
            u64::from(r.length)
        } else {
            0
        };
        let cost = ((carried + REQUEST_COST) / UNIT).min(u64::from(units)) as u32;
        let permit = beside(&mut waiting, budget.clone().acquire_many_owned(cost)).await?;
        let permit = permit.map_err(io::Error::other)?;
        match command {
            Command::Disconnect => break,
            Command::Nothing => beside(&mut waiting, peer.reply(&r, Ok(()))).await??,
            Command::Read => {
                let peer = peer.clone();
                waiting.push(Box::pin(async move { read(&peer, &r, permit).await }));
            }
            Command::Cache => {
                peer.export.volume.prefetch(r.offset, u64::from(r.length));
                beside(&mut waiting, peer.reply(&r, Ok(()))).await??;
            }
            Command::Flush => {
                let peer = peer.clone();
                waiting.push(Box::pin(async move {
                    let outcome = peer.export.volume.flush().await;
                    let sent = peer.reply(&r, outcome).await;
                    drop(permit);
                    sent
                }));
            }
            Command::Write { fua } => {
                let payload = beside(&mut waiting, inbox.payload(r.length as usize)).await??;
                // The order in which changes are taken is the order in which they came.
                let taken = peer.export.volume.write(r.offset, payload);
                let taken = beside(&mut waiting, taken).await?;
                finish_change(&peer, &mut waiting, r, taken, fua, permit).await?;
            }
            Command::Zero { how, fua } => {
                let taken = peer.export.volume.zero(r.offset, r.length, how);
                let taken = beside(&mut waiting, taken).await?;
                finish_change(&peer, &mut waiting, r, taken, fua, permit).await?;
            }
        }
    }
    while let Some(done) = waiting.next().await {
        done?;
    }
    peer.socket.lock().await.shutdown().await
}

/// Replies to a change that was taken: at once, or when it is durable.
async fn finish_change<W>(
    peer: &Arc<Peer<W>>,
    waiting: &mut Waiting,
    r: RequestHeader,
    taken: Result<u64, Errno>,
    fua: bool,
    permit: OwnedSemaphorePermit,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    match taken {
        Ok(seq) if fua || peer.export.sync_always => {
            let peer = peer.clone();
            waiting.push(Box::pin(async move {
                let outcome = peer.export.volume.durable(seq).await;
                let sent = peer.reply(&r, outcome).await;
                drop(permit);
                sent
            }));
            Ok(())
        }
        taken => beside(waiting, peer.reply(&r, taken.map(|_| ()))).await?,
    }
}

async fn read<W>(
    peer: &Arc<Peer<W>>,
    r: &RequestHeader,
    permit: OwnedSemaphorePermit,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut out = read_reply_header(r, peer.structured);
    let (start, offset) = (out.len(), r.offset);
    out.resize(start + r.length as usize, 0);
    let export = peer.export.clone();
    // A read may wait for the device; the threads that serve sockets must not.
    let work = move || {
        let outcome = export.volume.read(offset, &mut out[start..]);
        outcome.map(|()| out)
    };
    let outcome = tokio::task::spawn_blocking(work).await.unwrap_or(Err(Errno::Io));
    let sent = match outcome {
        Ok(out) => peer.send(&out).await,
        Err(errno) => peer.reply(r, Err(errno)).await,
    };
    drop(permit);
    sent
}
