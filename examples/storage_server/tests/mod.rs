//! The server as a whole, tested by clients on real sockets and over disks that fail.

mod client;
mod durability;
mod handshake;
mod malformed;
mod opening;
mod rig;
mod stopping;
mod transmission;
