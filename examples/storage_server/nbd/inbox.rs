//! Reading from a socket in whole pieces, however they arrive.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Payloads grow in steps of this size: memory follows what a client sent, not what it announced.
const STEP: usize = 256 << 10;
/// The buffer takes in a burst of small requests with one system call.
const BUFFER: usize = 32 << 10;

/// A buffered reader whose waits may be dropped at any time without losing bytes.
#[derive(Debug)]
pub(crate) struct Inbox<R> {
    socket: R,
    buffer: Vec<u8>,
    /// What is before this was taken already.
    start: usize,
}

impl<R: AsyncRead + Unpin> Inbox<R> {
    pub(crate) fn new(socket: R) -> Self {
        Self { socket, buffer: Vec::with_capacity(BUFFER), start: 0 }
    }

    fn held(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Waits until `size` bytes are held. `false`: the peer closed between two pieces; an error
    /// is a close in the middle of one.
    async fn hold(&mut self, size: usize) -> io::Result<bool> {
        while self.held().len() < size {
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                let empty = self.held().is_empty();
                return if empty { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
        Ok(true)
    }

    /// The next `N` bytes, or `None` if the peer closed before the first of them.
    pub(crate) async fn piece<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        if !self.hold(N).await? {
            return Ok(None);
        }
        let mut piece = [0; N];
        piece.copy_from_slice(&self.held()[..N]);
        self.start += N;
        Ok(Some(piece))
    }

    /// The next `N` bytes; a close is an error.
    pub(crate) async fn exactly<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.piece().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The next `size` bytes. Not to be dropped half way.
    pub(crate) async fn payload(&mut self, size: usize) -> io::Result<Vec<u8>> {
        let held = self.held().len().min(size);
        let mut payload = Vec::with_capacity(size.min(STEP.max(held)));
        payload.extend_from_slice(&self.held()[..held]);
        self.start += held;
        while payload.len() < size {
            let start = payload.len();
            let step = STEP.max(start).min(size - start);
            payload.resize(start + step, 0);
            self.socket.read_exact(&mut payload[start..]).await?;
        }
        Ok(payload)
    }

    /// Skips `size` bytes in constant memory. Not to be dropped half way.
    pub(crate) async fn skip(&mut self, size: u64) -> io::Result<()> {
        let held = (self.held().len() as u64).min(size);
        self.start += held as usize;
        let mut rest = (&mut self.socket).take(size - held);
        let skipped = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        if skipped == size - held { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
