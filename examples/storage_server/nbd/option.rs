//! Option haggling as pure functions: bytes in, an answer out.

use super::proto::*;

/// What the server tells about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportInfo {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) size: u64,
    /// Transmission flags, without the one that depends on structured replies.
    pub(crate) flags: u16,
    pub(crate) max_payload: u32,
}

impl ExportInfo {
    /// The flags for a connection. "Do not fragment" only means something in structured replies.
    pub(crate) fn flags_for(&self, structured: bool) -> u16 {
        self.flags | if structured { SEND_DF } else { 0 }
    }
}

/// A request of the client in the option phase, well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OptionRequest {
    /// Enter transmission, without a way to say no.
    ExportName(String),
    Abort,
    List,
    StructuredReply,
    /// INFO, or GO if `go`, with the information types asked for.
    Info {
        go: bool,
        name: String,
        wants: Vec<u16>,
    },
    /// Refused with this reply type.
    Refuse(u32),
}

/// Reads one option and its data.
pub(crate) fn parse(option: u32, data: &[u8], structured: bool) -> OptionRequest {
    let only_if_empty = |request| match data {
        [] => request,
        _ => OptionRequest::Refuse(REP_ERR_INVALID),
    };
    match option {
        OPT_EXPORT_NAME => match name(data) {
            Ok(name) => OptionRequest::ExportName(name),
            Err(refusal) => OptionRequest::Refuse(refusal),
        },
        OPT_ABORT => OptionRequest::Abort,
        OPT_LIST => only_if_empty(OptionRequest::List),
        OPT_STRUCTURED_REPLY => only_if_empty(OptionRequest::StructuredReply),
        OPT_INFO | OPT_GO => match info(data) {
            Ok((name, wants)) => OptionRequest::Info { go: option == OPT_GO, name, wants },
            Err(refusal) => OptionRequest::Refuse(refusal),
        },
        // The option presupposes structured replies; saying so helps a confused client more
        // than "unsupported" does.
        OPT_SET_META_CONTEXT if !structured => OptionRequest::Refuse(REP_ERR_INVALID),
        OPT_STARTTLS => OptionRequest::Refuse(REP_ERR_POLICY),
        _ => OptionRequest::Refuse(REP_ERR_UNSUP),
    }
}

fn name(bytes: &[u8]) -> Result<String, u32> {
    if bytes.len() > MAX_NAME {
        return Err(REP_ERR_TOO_BIG);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| REP_ERR_INVALID)?;
    if text.contains('\0') { Err(REP_ERR_INVALID) } else { Ok(text.to_string()) }
}

/// Name length, name, number of information types, the types: and not a byte more or less.
fn info(data: &[u8]) -> Result<(String, Vec<u16>), u32> {
    let (length, rest) = data.split_first_chunk::<4>().ok_or(REP_ERR_INVALID)?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > rest.len() {
        return Err(REP_ERR_INVALID);
    }
    let (text, rest) = rest.split_at(length);
    let (count, types) = rest.split_first_chunk::<2>().ok_or(REP_ERR_INVALID)?;
    if types.len() != usize::from(u16::from_be_bytes(*count)) * 2 {
        return Err(REP_ERR_INVALID);
    }
    let wants = types.chunks_exact(2).map(|t| u16::from_be_bytes([t[0], t[1]])).collect();
    Ok((name(text)?, wants))
}

/// Appends one option reply.
pub(crate) fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends the replies to INFO or GO of a known export: what was asked for, then the
/// acknowledgement. The export's size and flags always come, and so do its block sizes, since a
/// client that learns them unasked is told nothing it may not know.
pub(crate) fn put_info(
    out: &mut Vec<u8>,
    option: u32,
    info: &ExportInfo,
    wants: &[u16],
    structured: bool,
) {
    let mut item = |kind: u16, body: &[u8]| {
        let mut data = kind.to_be_bytes().to_vec();
        data.extend_from_slice(body);
        put_reply(out, option, REP_INFO, &data);
    };
    let mut export = info.size.to_be_bytes().to_vec();
    export.extend_from_slice(&info.flags_for(structured).to_be_bytes());
    item(INFO_EXPORT, &export);
    if wants.contains(&INFO_NAME) {
        item(INFO_NAME, info.name.as_bytes());
    }
    if wants.contains(&INFO_DESCRIPTION) && !info.description.is_empty() {
        item(INFO_DESCRIPTION, info.description.as_bytes());
    }
    if wants.contains(&INFO_BLOCK_SIZE) {
        let sizes = [1, 4096, info.max_payload].map(u32::to_be_bytes).concat();
        item(INFO_BLOCK_SIZE, &sizes);
    }
    put_reply(out, option, REP_ACK, &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info_data(length: u32, name: &[u8], count: u16, types: &[u8]) -> Vec<u8> {
        let mut data = length.to_be_bytes().to_vec();
        data.extend_from_slice(name);
        data.extend_from_slice(&count.to_be_bytes());
        data.extend_from_slice(types);
        data
    }

    #[test]
    fn c197_lengths_that_do_not_add_up_are_invalid() {
        let invalid = OptionRequest::Refuse(REP_ERR_INVALID);
        for option in [OPT_INFO, OPT_GO] {
            for length in 6..=10u32 {
                for inner in [u32::MAX, u32::MAX - 1, length - 5, length - 3, length] {
                    let mut data = inner.to_be_bytes().to_vec();
                    data.resize(length as usize, b'x');
                    assert_eq!(parse(option, &data, false), invalid, "{length} {inner}");
                }
                // The one inner length that leaves room for the count, which then must be zero.
                let mut data = (length - 6).to_be_bytes().to_vec();
                data.resize(length as usize - 2, b'x');
                data.extend([0, 0]);
                assert!(matches!(parse(option, &data, false), OptionRequest::Info { .. }));
            }
            assert_eq!(parse(option, &info_data(1, b"a", 0xffff, &[0, 3]), false), invalid);
            assert_eq!(parse(option, &info_data(1, b"a", 1, &[0, 3, 0, 1]), false), invalid);
            for short in 0..6 {
                assert_eq!(parse(option, &vec![0; short], false), invalid, "{short} bytes");
            }
        }
    }

    #[test]
    fn names_are_checked() {
        let ask = |name: &[u8]| parse(OPT_GO, &info_data(name.len() as u32, name, 0, &[]), false);
        assert!(matches!(ask(&[b'a'; 4096]), OptionRequest::Info { .. }));
        assert_eq!(ask(&[b'a'; 4097]), OptionRequest::Refuse(REP_ERR_TOO_BIG));
        assert_eq!(ask(b"a\0b"), OptionRequest::Refuse(REP_ERR_INVALID));
        assert_eq!(ask(b"a\xff"), OptionRequest::Refuse(REP_ERR_INVALID));
    }
}
