//! The scripts of lua/ as calls: charges to arguments, replies to states.
//!
//! Not here: how calls travel (transport), and which server they go to (routing).

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod library;
pub(super) mod overrides;
pub(super) mod rows;
pub(super) mod scan;
