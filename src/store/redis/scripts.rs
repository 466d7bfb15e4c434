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
