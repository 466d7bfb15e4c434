//! What a request asks about: entries and hits.

/// The most hits that one charge can take, give or force.
pub type Hits = u32;

/// One key and value of a descriptor, borrowed from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key, never empty in a policy; a caller may send anything.
    pub key: &'a str,
    /// The value; empty where the caller sent none.
    pub value: &'a str,
}
