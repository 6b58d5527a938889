//! The first half of a connection: greeting and options, until an export is chosen.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::export::Export;
use crate::server::Shutdown;

use super::inbox::Inbox;
use super::option::{OptionRequest, parse, put_info, put_reply};
use super::proto::*;

/// What the two sides agreed on.
pub(crate) struct Agreed {
    pub(crate) export: Arc<Export>,
    pub(crate) structured: bool,
}

/// Runs the handshake. `None`: the client left, or may not go on. The time it may take is bounded
/// by the caller.
pub(crate) async fn negotiate<R, W>(
    inbox: &mut Inbox<R>,
    socket: &mut W,
    exports: &[Arc<Export>],
    shutdown: &Shutdown,
) -> io::Result<Option<Agreed>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut greeting = NBD_MAGIC.to_be_bytes().to_vec();
    greeting.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    let known = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    greeting.extend_from_slice(&known.to_be_bytes());
    socket.write_all(&greeting).await?;

    let Some(flags) = inbox.piece::<4>().await? else {
        return Ok(None);
    };
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(known) != 0 {
        // The client counts on something this server does not know.
        return Ok(None);
    }
    let no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
    let mut structured = false;

    for _ in 0..MAX_OPTIONS {
        let Some(magic) = inbox.piece::<8>().await? else {
            return Ok(None);
        };
        if u64::from_be_bytes(magic) != OPTION_MAGIC {
            return Ok(None);
        }
        let option = u32::from_be_bytes(inbox.exactly().await?);
        let length = u32::from_be_bytes(inbox.exactly().await?);
        if length > MAX_OPTION_SKIP {
            return Ok(None);
        }
        let request = if length > MAX_OPTION {
            inbox.skip(u64::from(length)).await?;
            OptionRequest::Refuse(REP_ERR_TOO_BIG)
        } else {
            let data = inbox.payload(length as usize).await?;
            parse(option, &data, structured)
        };
        let mut out = Vec::new();
        let find = |name: &str| exports.iter().find(|e| e.info.name == name);
        let mut agreed = None;
        match request {
            _ if shutdown.has_begun() && option != OPT_EXPORT_NAME && option != OPT_ABORT => {
                put_reply(&mut out, option, REP_ERR_SHUTDOWN, &[]);
            }
            OptionRequest::ExportName(name) => {
                let Some(export) = find(&name) else {
                    return Ok(None);
                };
                out.extend_from_slice(&export.info.size.to_be_bytes());
                out.extend_from_slice(&export.info.flags_for(structured).to_be_bytes());
                if !no_zeroes {
                    out.extend_from_slice(&[0; 124]);
                }
                agreed = Some(export.clone());
            }
            // This option has no error reply: the specification asks for a close.
            OptionRequest::Refuse(_) if option == OPT_EXPORT_NAME => return Ok(None),
            OptionRequest::Abort => {
                put_reply(&mut out, option, REP_ACK, &[]);
                // The client may be gone already, and that is fine.
                let _ = socket.write_all(&out).await;
                return Ok(None);
            }
            OptionRequest::List => {
                for export in exports {
                    let name = export.info.name.as_bytes();
                    let mut data = (name.len() as u32).to_be_bytes().to_vec();
                    data.extend_from_slice(name);
                    put_reply(&mut out, option, REP_SERVER, &data);
                }
                put_reply(&mut out, option, REP_ACK, &[]);
            }
            OptionRequest::StructuredReply => {
                structured = true;
                put_reply(&mut out, option, REP_ACK, &[]);
            }
            OptionRequest::Info { go, name, wants } => match find(&name) {
                None => put_reply(&mut out, option, REP_ERR_UNKNOWN, &[]),
                Some(export) => {
                    put_info(&mut out, option, &export.info, &wants, structured);
                    agreed = go.then(|| export.clone());
                }
            },
            OptionRequest::Refuse(error) => put_reply(&mut out, option, error, &[]),
        }
        socket.write_all(&out).await?;
        if let Some(export) = agreed {
            return Ok(Some(Agreed { export, structured }));
        }
    }
    Ok(None)
}
