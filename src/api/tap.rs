//! `/tap`: a header, records and notes, one JSON line each. docs/testing.md describes the format.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The version of the format.
pub const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TapLine<'a> {
    Header(Header<'a>),
    Note(Note),
    Record(Record<'a>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Header<'a> {
    #[serde(rename = "weir_record")]
    pub version: u32,
    pub started: Option<String>,
    pub sample: Option<u32>,
    /// How values are shown.
    pub values: Option<Cow<'a, str>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// No policy has the domain. `nearest` is the domain that is probably meant.
    NoDomain {
        nearest: Option<String>,
    },
    /// The tap is still open, without a record for some time.
    Open(End),
    End(End),
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct End {
    pub reason: Option<String>,
    /// How many requests were lost since the last record.
    #[serde(default)]
    pub lost: u64,
}

/// A request with its answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record<'a> {
    /// An instant in RFC 3339.
    pub time: String,
    pub domain: Cow<'a, str>,
    /// The name of its caller, if callers have rights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<Cow<'a, str>>,
    pub hits: u32,
    pub descriptors: Vec<Descriptor<'a>>,
    pub verdict: Cow<'a, str>,
    /// How many requests were lost before it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Descriptor<'a> {
    pub entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The hits, if they are not those of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit<'a>>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub refund: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub look: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub settle: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_back: Option<u64>,
    /// The factor of the hits, if the rule weighs them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
}

/// The limit of a descriptor in the request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Limit<'a> {
    pub requests: u32,
    pub unit: Cow<'a, str>,
    /// How many units the window has. Absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit_multiplier: Option<u32>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
