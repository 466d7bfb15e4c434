//! The JSON of the admin listener. The server writes its answers with these types, and commands read them; for what the
//! server takes, it is the other way.
//!
//! A newer server may send fields that a command does not know: the command ignores them. A field that a later version
//! adds to an answer has `#[serde(default)]`, because older servers do not send it. The server refuses unknown fields of
//! a request. Not here: sending, and what the values mean.

pub mod numbers;
pub mod overrides;
pub mod policies;
pub mod ready;
pub mod rows;
pub mod states;
pub mod tap;
pub mod top;

use serde::{Deserialize, Serialize};

/// An answer with another status than 200.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorAnswer {
    pub error: String,
}

/// The part of an answer that is the object `T`. Ignores fields that `T` does not have, even if `T` refuses them in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered<T> {
    #[serde(flatten)]
    pub content: T,
}

/// The states of a descriptor that were reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetStates {
    pub keys: Vec<String>,
    /// The keys of limits that the descriptor's row makes unlimited at present.
    pub unlimited: Vec<String>,
    /// How many of the keys the store had.
    pub stored: u64,
}

/// Where a change is kept.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub store: String,
    /// Whether other servers can have the same store.
    pub is_shared: bool,
}

/// `/policies/source`. `P` is the files.
#[derive(Debug, Serialize, Deserialize)]
pub struct PolicySource<P> {
    /// The server's setting `on_error`.
    pub on_error: String,
    /// The problems of newer policies that the server refuses.
    pub problems: Vec<String>,
    /// The problems of other files that the server refuses: rows, callers and tokens.
    #[serde(default)]
    pub other_problems: Vec<String>,
    /// The domains of the token, as in its line. The files of other domains are left out. None: all domains.
    #[serde(default)]
    pub domains: Option<Vec<String>>,
    pub policies: P,
}
