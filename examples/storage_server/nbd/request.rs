//! Requests and replies of the transmission phase as pure functions.

use crate::errno::Errno;
use crate::storage::disk::Zeroing;

use super::proto::*;

/// A request's header as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl RequestHeader {
    pub(crate) const SIZE: usize = 28;

    /// `None`: the stream is out of step, nothing after this can be understood.
    pub(crate) fn decode(raw: &[u8; Self::SIZE]) -> Option<Self> {
        let (magic, rest) = raw.split_first_chunk::<4>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (command, rest) = rest.split_first_chunk::<2>()?;
        let (cookie, rest) = rest.split_first_chunk::<8>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        (u32::from_be_bytes(*magic) == REQUEST_MAGIC).then(|| Self {
            flags: u16::from_be_bytes(*flags),
            command: u16::from_be_bytes(*command),
            cookie: u64::from_be_bytes(*cookie),
            offset: u64::from_be_bytes(*offset),
            length: u32::from_be_bytes(*length),
        })
    }

    /// Bytes that follow the header in the stream, whether the request is good or not.
    pub(crate) fn payload(&self) -> u32 {
        if self.command == CMD_WRITE { self.length } else { 0 }
    }
}

/// What the checks need to know about the export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) max_payload: u32,
    pub(crate) zeroes_fast: bool,
    pub(crate) structured: bool,
}

/// A request that passed the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write {
        fua: bool,
    },
    Zero {
        how: Zeroing,
        fua: bool,
    },
    Flush,
    Cache,
    /// Nothing to do: an empty request.
    Nothing,
    Disconnect,
}

/// Checks a request. The order of the checks decides which error a request with several faults
/// gets; it follows what other servers do where they agree.
pub(crate) fn check(r: &RequestHeader, limits: &Limits) -> Result<Command, Errno> {
    // FUA is legal on every command and says nothing where there is nothing to write.
    let own_flags = match r.command {
        CMD_READ if limits.structured => CMD_FLAG_DF,
        CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
        _ => 0,
    };
    if r.command == CMD_DISC {
        return Ok(Command::Disconnect);
    }
    if r.command > CMD_WRITE_ZEROES || r.flags & !(own_flags | CMD_FLAG_FUA) != 0 {
        return Err(Errno::Invalid);
    }
    if r.command == CMD_FLUSH {
        // Reserved fields: a client that fills them means something this server cannot do.
        let plain = r.offset == 0 && r.length == 0;
        return if plain { Ok(Command::Flush) } else { Err(Errno::Invalid) };
    }
    let changes = matches!(r.command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
    if changes && limits.read_only {
        return Err(Errno::NotPermitted);
    }
    if r.length == 0 {
        return if r.offset <= limits.size { Ok(Command::Nothing) } else { Err(Errno::Invalid) };
    }
    let end = r.offset.checked_add(u64::from(r.length));
    if end.is_none_or(|end| end > limits.size) {
        let past_end_of_device = matches!(r.command, CMD_WRITE | CMD_WRITE_ZEROES);
        return Err(if past_end_of_device { Errno::NoSpace } else { Errno::Invalid });
    }
    if matches!(r.command, CMD_READ | CMD_WRITE) && r.length > limits.max_payload {
        return Err(Errno::Invalid);
    }
    if r.flags & CMD_FLAG_FAST_ZERO != 0 && !limits.zeroes_fast {
        return Err(Errno::NotSupported);
    }
    let fua = r.flags & CMD_FLAG_FUA != 0;
    Ok(match r.command {
        CMD_READ => Command::Read,
        CMD_WRITE => Command::Write { fua },
        CMD_TRIM => Command::Zero { how: Zeroing::Discard, fua },
        CMD_CACHE => Command::Cache,
        _ if r.flags & CMD_FLAG_NO_HOLE != 0 => Command::Zero { how: Zeroing::KeepAllocated, fua },
        _ => Command::Zero { how: Zeroing::Discard, fua },
    })
}

/// A reply's header, to stand before the data.
pub(crate) fn read_reply_header(r: &RequestHeader, structured: bool) -> Vec<u8> {
    if !structured {
        return simple_reply(r.cookie, 0);
    }
    // One chunk for the whole range: then "do not fragment" is always honoured.
    let mut out = chunk_header(CHUNK_OFFSET_DATA, r.cookie, 8 + r.length);
    out.extend_from_slice(&r.offset.to_be_bytes());
    out
}

/// The reply without data: success, or an error.
pub(crate) fn plain_reply(
    r: &RequestHeader,
    outcome: Result<(), Errno>,
    structured: bool,
) -> Vec<u8> {
    // Once structured replies are agreed on a READ gets nothing else, not even for an error.
    match outcome {
        Ok(()) if structured && r.command == CMD_READ => chunk_header(CHUNK_NONE, r.cookie, 0),
        Ok(()) => simple_reply(r.cookie, 0),
        Err(errno) if structured && r.command == CMD_READ => {
            let mut out = chunk_header(CHUNK_ERROR, r.cookie, 6);
            out.extend_from_slice(&errno.code().to_be_bytes());
            out.extend_from_slice(&0u16.to_be_bytes());
            out
        }
        Err(errno) => simple_reply(r.cookie, errno.code()),
    }
}

fn simple_reply(cookie: u64, error: u32) -> Vec<u8> {
    let mut out = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out
}

fn chunk_header(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    let mut out = CHUNK_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&CHUNK_DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        size: 1 << 20,
        read_only: false,
        max_payload: 32 << 20,
        zeroes_fast: true,
        structured: true,
    };

    fn request(command: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags: 0, command, cookie: 7, offset, length }
    }

    #[test]
    fn every_error_has_its_code() {
        let past = (1 << 20) - 512;
        let read_only = Limits { read_only: true, ..LIMITS };
        let big = Limits { size: 1 << 40, ..LIMITS };
        let slow = Limits { zeroes_fast: false, ..LIMITS };
        for (r, limits, errno) in [
            (request(CMD_READ, past, 1024), LIMITS, Errno::Invalid),
            (request(CMD_TRIM, past, 1024), LIMITS, Errno::Invalid),
            (request(CMD_CACHE, past, 1024), LIMITS, Errno::Invalid),
            (request(CMD_WRITE, past, 1024), LIMITS, Errno::NoSpace),
            (request(CMD_WRITE_ZEROES, past, 1024), LIMITS, Errno::NoSpace),
            (request(CMD_WRITE, u64::MAX, u32::MAX), LIMITS, Errno::NoSpace),
            (request(CMD_WRITE, 0, 512), read_only, Errno::NotPermitted),
            (request(CMD_TRIM, 0, 512), read_only, Errno::NotPermitted),
            (request(CMD_WRITE_ZEROES, 0, 512), read_only, Errno::NotPermitted),
            (request(99, 0, 512), LIMITS, Errno::Invalid),
            (request(7, 0, 512), LIMITS, Errno::Invalid),
            (request(CMD_FLUSH, 512, 512), LIMITS, Errno::Invalid),
            (request(CMD_READ, 0, (32 << 20) + 1), big, Errno::Invalid),
            (request(CMD_WRITE, 0, (32 << 20) + 1), big, Errno::Invalid),
            (RequestHeader { flags: 1 << 9, ..request(CMD_READ, 0, 1) }, LIMITS, Errno::Invalid),
            (RequestHeader { flags: 2, ..request(CMD_TRIM, 0, 1) }, LIMITS, Errno::Invalid),
            (
                RequestHeader { flags: CMD_FLAG_FAST_ZERO, ..request(CMD_WRITE_ZEROES, 0, 1) },
                slow,
                Errno::NotSupported,
            ),
            (
                RequestHeader { flags: CMD_FLAG_DF, ..request(CMD_READ, 0, 1) },
                Limits { structured: false, ..LIMITS },
                Errno::Invalid,
            ),
        ] {
            assert_eq!(check(&r, &limits), Err(errno), "{r:?}");
        }
        let huge = request(CMD_TRIM, 0, u32::MAX);
        assert!(check(&huge, &big).is_ok(), "trimming is not bound to the payload limit");
        let fua = RequestHeader { flags: CMD_FLAG_FUA, ..request(CMD_READ, 0, 512) };
        assert_eq!(check(&fua, &LIMITS), Ok(Command::Read));
        let fua = RequestHeader { flags: CMD_FLAG_FUA, ..request(CMD_FLUSH, 0, 0) };
        assert_eq!(check(&fua, &LIMITS), Ok(Command::Flush));
    }
}
