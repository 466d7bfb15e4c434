//! The scripts of lua/ as calls: charges to arguments, replies to states, and decisions that share one call.
//!
//! Not here: how calls travel (transport), and which server they go to (routing).

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod library;
mod merge;
pub(super) mod overrides;
pub(super) mod scan;

/// The letter of a charge that is a decision of its own, where the others have their role.
const ALONE: u8 = b'-';
/// The letter in the place of an algorithm's that says when the limit of the next charge applies.
const TERM: u8 = b'0';
/// The numbers of a term: from, until, and how long the next charge is in the list and in the reply.
const TERM_NUMBERS: usize = 4;
