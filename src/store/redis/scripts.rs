//! The scripts of lua/ as calls: encodes charges as arguments, and decodes replies to states.
//!
//! Not here: how calls are sent (transport), and to which server (routing).

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod library;
pub(super) mod overrides;
pub(super) mod rows;
pub(super) mod scan;
