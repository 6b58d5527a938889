//! The network block device protocol: fixed newstyle handshake, simple and structured replies.
//!
//! | file | lesson |
//! | --- | --- |
//! | [`proto`] | the numbers |
//! | [`option`] | haggling: options parsed and answered, as pure functions |
//! | [`request`] | requests checked and replies encoded, as pure functions |
//! | [`inbox`] | reading from a socket in whole pieces, however they arrive |
//! | [`handshake`] | the first half of a connection |
//! | [`transmission`] | the second half |

pub(crate) mod handshake;
pub(crate) mod inbox;
pub(crate) mod option;
pub(crate) mod proto;
pub(crate) mod request;
pub(crate) mod transmission;
