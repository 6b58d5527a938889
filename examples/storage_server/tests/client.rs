//! A plain client, strict about what it gets and free in what it sends.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::nbd::proto::*;

/// A server that does not answer in this time hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

pub(super) struct Client {
    pub(super) stream: Box<dyn Stream>,
    pub(super) structured: bool,
    /// Lengths of the reads under way: a simple reply does not say.
    reads: HashMap<u64, u32>,
    cookies: u64,
}

/// A request, spelled out.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
}

pub(super) fn request(command: u16, offset: u64, length: u32) -> Request {
    Request { flags: 0, command, offset, length }
}

impl Request {
    pub(super) fn encode(self, cookie: u64) -> Vec<u8> {
        let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
        out.extend(self.flags.to_be_bytes());
        out.extend(self.command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out
    }
}

pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

pub(super) fn info_data(name: &[u8], wants: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((wants.len() as u16).to_be_bytes());
    data.extend(wants.iter().flat_map(|w| w.to_be_bytes()));
    data
}

impl Client {
    pub(super) fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), structured: false, reads: HashMap::new(), cookies: 0 }
    }

    /// Connects and says nothing.
    pub(super) fn silent(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self::over(stream)
    }

    pub(super) fn silent_tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Takes the greeting and sends the client's flags.
    pub(super) fn greet(mut self) -> Self {
        let greeting = self.take(18);
        assert_eq!(greeting, [b"NBDMAGICIHAVEOPT".as_slice(), &[0, 3]].concat());
        self.send(&3u32.to_be_bytes());
        self
    }

    pub(super) fn connect(path: &Path) -> Self {
        Self::silent(path).greet()
    }

    /// A connection in transmission, with simple replies.
    pub(super) fn ready(path: &Path, export: &str) -> Self {
        let mut client = Self::connect(path);
        client.go(export);
        client
    }

    pub(super) fn ready_structured(path: &Path, export: &str) -> Self {
        let mut client = Self::connect(path);
        assert_eq!(client.ask(OPT_STRUCTURED_REPLY, &[]).0, REP_ACK);
        client.structured = true;
        client.go(export);
        client
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn take_u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn take_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn take_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    /// Asserts that the server closes without another byte.
    pub(super) fn expect_end(&mut self) {
        let mut rest = Vec::new();
        // A reset is a close as well: the server had bytes of ours that it did not read.
        let outcome = self.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }

    /// Sends an option; returns the last reply's type and the replies before it.
    pub(super) fn ask(&mut self, number: u32, data: &[u8]) -> (u32, Vec<Vec<u8>>) {
        self.send(&option(number, data));
        self.option_replies(number)
    }

    pub(super) fn option_replies(&mut self, number: u32) -> (u32, Vec<Vec<u8>>) {
        let mut items = Vec::new();
        loop {
            assert_eq!(self.take_u64(), OPTION_REPLY_MAGIC);
            assert_eq!(self.take_u32(), number, "the option is echoed");
            let (kind, length) = (self.take_u32(), self.take_u32());
            let data = self.take(length as usize);
            if kind != REP_INFO && kind != REP_SERVER {
                return (kind, items);
            }
            items.push(data);
        }
    }

    /// GO; returns the export's size and flags.
    pub(super) fn go(&mut self, export: &str) -> (u64, u16) {
        let (kind, items) = self.ask(OPT_GO, &info_data(export.as_bytes(), &[INFO_BLOCK_SIZE]));
        assert_eq!(kind, REP_ACK);
        let export = items.iter().find(|i| i[..2] == [0, 0]).unwrap();
        let size = u64::from_be_bytes(export[2..10].try_into().unwrap());
        (size, u16::from_be_bytes(export[10..12].try_into().unwrap()))
    }

    /// Sends a request and returns its cookie.
    pub(super) fn post(&mut self, r: Request, payload: &[u8]) -> u64 {
        self.cookies += 1;
        let mut out = r.encode(self.cookies);
        if r.command == CMD_READ {
            self.reads.insert(self.cookies, r.length);
        }
        out.extend(payload);
        self.send(&out);
        self.cookies
    }

    /// The next reply: cookie, error number, data.
    pub(super) fn reply(&mut self) -> (u64, u32, Vec<u8>) {
        let magic = self.take_u32();
        if magic == SIMPLE_REPLY_MAGIC {
            let (error, cookie) = (self.take_u32(), self.take_u64());
            let length = self.reads.remove(&cookie);
            assert!(!self.structured || length.is_none(), "a simple reply to a READ");
            let data = if error == 0 { self.take(length.unwrap_or(0) as usize) } else { vec![] };
            return (cookie, error, data);
        }
        assert_eq!(magic, CHUNK_MAGIC, "the stream is out of step");
        assert!(self.structured);
        let (flags, kind) = (self.take_u16(), self.take_u16());
        let (cookie, length) = (self.take_u64(), self.take_u32() as usize);
        let body = self.take(length);
        assert_eq!(flags, CHUNK_DONE);
        let wanted = self.reads.remove(&cookie);
        match kind {
            CHUNK_NONE => (cookie, 0, vec![]),
            CHUNK_OFFSET_DATA => {
                assert_eq!(body.len() as u32 - 8, wanted.unwrap());
                (cookie, 0, body[8..].to_vec())
            }
            CHUNK_ERROR => (cookie, u32::from_be_bytes(body[..4].try_into().unwrap()), vec![]),
            other => panic!("chunk type {other}"),
        }
    }

    /// One request and its reply.
    pub(super) fn call(&mut self, r: Request, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let cookie = self.post(r, payload);
        let (got, error, data) = self.reply();
        assert_eq!(got, cookie);
        if error == 0 { Ok(data) } else { Err(error) }
    }

    pub(super) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.call(request(CMD_READ, offset, length), &[]).unwrap()
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.call(request(CMD_WRITE, offset, data.len() as u32), data).unwrap();
    }

    pub(super) fn write_fua(&mut self, offset: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        let r = request(CMD_WRITE, offset, data.len() as u32);
        self.call(Request { flags: CMD_FLAG_FUA, ..r }, data)
    }

    pub(super) fn flush(&mut self) -> Result<Vec<u8>, u32> {
        self.call(request(CMD_FLUSH, 0, 0), &[])
    }

    pub(super) fn disconnect(mut self) {
        self.post(request(CMD_DISC, 0, 0), &[]);
        self.expect_end();
    }
}
