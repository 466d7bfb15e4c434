//! An HTTP/2 server of one runtime that keeps hostile peers within bounds. The service behind it sees whole requests.
//!
//! A peer that sends much and reads little must not take the memory and the time of others. h2 and hyper bound the
//! requests in flight, the headers of a request, cancelled requests that wait, and what they buffer of a response
//! (server.rs sets these). Every other bound is here, because no setting of theirs has it:
//!
//! | file | bound | why no setting of h2 or hyper does |
//! | --- | --- | --- |
//! | frames.rs | frames and cancelled requests in a second, beyond those of answered requests | h2 counts neither over time: PING, SETTINGS, empty DATA and reset requests have no rate |
//! | turns.rs | bytes that a connection reads, and wide requests that are decided, before others have their turn | h2 reads as long as there are bytes, and decodes all requests in them |
//! | memory.rs | bytes of requests and responses, of one connection and of all | windows bound one stream or one connection, and nothing bounds all connections |
//! | tables.rs | buffers and tables of open connections | h2 keeps room for the most requests that were ever open, and does not report how much that is |
//! | handshakes.rs | TLS handshakes that have begun | h2 begins after them |
//! | peers.rs | how many connections; how long a handshake, headers, reading a response, and a stay without progress last | hyper has only timers of pings |
//! | lifetime.rs | the age of a connection, and the expiry of its client's certificate | hyper ends a connection only when weir calls it |
//!
//! connection.rs reads and writes the bytes of a connection, written.rs finds in them the responses and resets that h2
//! does not report, and ended.rs counts them. authority.rs bounds nothing: it changes authorities that Envoy sends and h2
//! would refuse. Not here: accepting connections, the service, and when to drain (grpc).

mod authority;
mod connection;
mod counts;
mod ended;
mod frames;
pub mod fuzz;
mod handshakes;
mod lifetime;
mod memory;
mod peers;
mod server;
mod tables;
mod turns;
mod written;

pub use self::ended::{CODES, CloseReason, Ended};
pub use self::lifetime::MaxAge;
pub use self::memory::{Bounds, Memory, NoRoom, Peer, Piece, Reservation, STREAM_BYTES};
pub use self::server::{Connections, Options, Transport};
