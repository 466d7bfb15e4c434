//! The lines that a server sends: a header, records and notes.

use serde::Deserialize;

/// The version of the format that this program shows and writes.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TapLine {
    Header(Header),
    /// A note: the domain is unknown, the tap is still open, or the reason of its end.
    Note(Note),
    Record(Record),
}

impl TapLine {
    /// Reads a line; none if it is not a line of a tap.
    pub(super) fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(rename = "weir_record")]
    pub(super) version: u32,
}

#[derive(Debug, Deserialize)]
pub(super) struct Note {
    pub(super) note: String,
    /// The domain that is probably meant.
    pub(super) nearest: Option<String>,
    pub(super) reason: Option<String>,
    /// How many requests were lost since the last record.
    #[serde(default)]
    pub(super) lost: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) time: String,
    pub(super) domain: String,
    pub(super) hits: u32,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) verdict: String,
    #[serde(default)]
    pub(super) lost: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Descriptor {
    pub(super) entries: Vec<(String, String)>,
    pub(super) hits: Option<u32>,
    pub(super) limit: Option<Limit>,
    #[serde(default)]
    pub(super) refund: bool,
    #[serde(default)]
    pub(super) look: bool,
    #[serde(default)]
    pub(super) settle: bool,
    pub(super) held: Option<u32>,
    pub(super) given_back: Option<u32>,
    pub(super) rule: Option<String>,
    pub(super) verdict: Option<String>,
    pub(super) remaining: Option<u32>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Limit {
    pub(super) requests: u32,
    pub(super) unit: String,
    pub(super) unit_multiplier: Option<u32>,
}
