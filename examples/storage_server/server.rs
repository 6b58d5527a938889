//! Listening, connections, and stopping.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::export::Export;
use crate::nbd::handshake::negotiate;
use crate::nbd::inbox::Inbox;
use crate::nbd::transmission::{Bounds, serve};
use crate::timers;

/// Bounds on what clients may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Further clients wait in the socket's queue until one leaves.
    pub(crate) connections: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) bounds: Bounds,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// No new work; what was begun is finished.
    Draining,
    /// Connections are dropped where they stand.
    Cut,
}

/// What a connection sees of a stop.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    phase: watch::Receiver<Phase>,
}

impl Shutdown {
    pub(crate) fn has_begun(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    pub(crate) async fn begun(&self) {
        self.reached(Phase::Draining).await;
    }

    async fn reached(&self, phase: Phase) {
        // A server that is gone has stopped.
        let _ = self.phase.clone().wait_for(|p| *p >= phase).await;
    }
}

/// Where the server listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A running server.
pub(crate) struct Server {
    exports: Vec<Arc<Export>>,
    phase: watch::Sender<Phase>,
    listeners: JoinSet<()>,
    /// TCP addresses in use, with the port the system chose where none was given.
    pub(crate) tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
}

/// What a listener task needs for its connections.
#[derive(Clone)]
struct Shared {
    exports: Vec<Arc<Export>>,
    limits: ServerLimits,
    slots: Arc<Semaphore>,
    shutdown: Shutdown,
}

impl Server {
    /// Binds all addresses and begins to serve.
    pub(crate) fn start(
        exports: Vec<Export>,
        addresses: &[Address],
        limits: ServerLimits,
    ) -> io::Result<Self> {
        let exports: Vec<_> = exports.into_iter().map(Arc::new).collect();
        let (phase, receiver) = watch::channel(Phase::Running);
        let shared = Shared {
            exports: exports.clone(),
            limits,
            slots: Arc::new(Semaphore::new(limits.connections)),
            shutdown: Shutdown { phase: receiver },
        };
        let mut server =
            Self { exports, phase, listeners: JoinSet::new(), tcp: Vec::new(), unix: Vec::new() };
        for address in addresses {
            match address {
                Address::Tcp(address) => {
                    let listener = listen_tcp(*address)?;
                    server.tcp.push(listener.local_addr()?);
                    server.listeners.spawn(accept_tcp(listener, shared.clone()));
                }
                Address::Unix(path) => {
                    let listener = listen_unix(path)?;
                    server.unix.push(path.clone());
                    server.listeners.spawn(accept_unix(listener, shared.clone()));
                }
            }
        }
        Ok(server)
    }

    pub(crate) fn exports(&self) -> &[Arc<Export>] {
        &self.exports
    }

    /// Stops: no new connections, no new requests; what was begun has `grace` to finish. Then
    /// the exports are closed, for which they have half a second more.
    pub(crate) async fn shutdown(mut self, grace: Duration) {
        self.phase.send_replace(Phase::Draining);
        let drained = async { while self.listeners.join_next().await.is_some() {} };
        if timers::timeout(grace, drained).await.is_none() {
            self.phase.send_replace(Phase::Cut);
            while self.listeners.join_next().await.is_some() {}
        }
        for path in &self.unix {
            // Somebody else may have removed it, which is what is wanted.
            let _ = std::fs::remove_file(path);
        }
        let deadline = Instant::now() + Duration::from_millis(500);
        for export in self.exports.drain(..) {
            // Tasks that were cut let go of the export when the runtime drops them, a read on a
            // blocking thread when the disk answers. If that takes too long, nothing is lost:
            // the log has all that matters.
            while Arc::strong_count(&export) > 1 && Instant::now() < deadline {
                timers::sleep(Duration::from_millis(1)).await;
            }
            if let Some(export) = Arc::into_inner(export) {
                let left = deadline.saturating_duration_since(Instant::now());
                let close = tokio::task::spawn_blocking(move || export.close(left));
                let _ = close.await;
            }
        }
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that was restarted must get its port back although old connections linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Binds a unix socket; a socket that nobody listens on any more is replaced.
pub(crate) fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

async fn accept_tcp(listener: TcpListener, shared: Shared) {
    let accept = || async {
        let (socket, _) = listener.accept().await?;
        // A reply is one write; waiting for more to send would only delay it.
        socket.set_nodelay(true)?;
        Ok(socket.into_split())
    };
    accept_loop(accept, shared).await;
}

async fn accept_unix(listener: UnixListener, shared: Shared) {
    let accept = || async {
        let (socket, _) = listener.accept().await?;
        Ok(socket.into_split())
    };
    accept_loop(accept, shared).await;
}

async fn accept_loop<R, W, F>(accept: impl Fn() -> F, shared: Shared)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<(R, W)>>,
{
    let mut connections = JoinSet::new();
    // A client that was accepted and has no slot yet; it survives the other branches below.
    let mut accepted = None;
    loop {
        let next = async {
            if accepted.is_none() {
                accepted = Some(accept().await?);
            }
            // Only now: a listener that waits for a client must not keep a slot from another.
            shared.slots.clone().acquire_owned().await.map_err(io::Error::other)
        };
        tokio::select! {
            slot = next => match slot {
                Ok(slot) => {
                    if let Some((reader, writer)) = accepted.take() {
                        connections.spawn(connection(reader, writer, shared.clone(), slot));
                    }
                }
                Err(error) => {
                    // Out of descriptors, most likely: the others go on, this one tries later.
                    eprintln!("storage_server: accept: {error}");
                    timers::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = shared.shutdown.begun() => break,
        }
    }
    while connections.join_next().await.is_some() {}
}

/// One client. Its slot is free again when this ends, however it ends.
async fn connection<R, W>(reader: R, writer: W, shared: Shared, _slot: OwnedSemaphorePermit)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let session = session(reader, writer, &shared);
    tokio::select! {
        // A client's broken stream is the client's affair.
        _ = session => {}
        () = shared.shutdown.reached(Phase::Cut) => {}
    }
}

async fn session<R, W>(reader: R, mut writer: W, shared: &Shared) -> io::Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut inbox = Inbox::new(reader);
    let limits = &shared.limits;
    let handshake = negotiate(&mut inbox, &mut writer, &shared.exports, &shared.shutdown);
    let agreed = match timers::timeout(limits.handshake_timeout, handshake).await {
        Some(agreed) => agreed?,
        None => return Err(io::ErrorKind::TimedOut.into()),
    };
    match agreed {
        Some(agreed) => serve(&mut inbox, writer, agreed, limits.bounds, &shared.shutdown).await,
        None => Ok(()),
    }
}
