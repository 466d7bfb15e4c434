//! The keys of files of overlays.

use weir_text::yaml::NodeId;

use super::{OVERLAYS_MAX, PATTERN_BYTES_MAX, PATTERNS_MAX};
use crate::form::{FLAG, form, list, mapping, node, only};
use crate::keys::Kind;
use crate::schema::fragments::{bounded_list, bounded_text, reference};
use crate::tables::{ALLOWED, METADATA, REQUEST_LIMIT, WEIGH, amount, hold, limit, numbers, replaced, rows, weigh};
use crate::{NAME_BYTES_MAX, Position};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 9] = [
    &file::KIND,
    &overlay::KIND,
    &limit::KIND,
    &hold::KIND,
    &replaced::KIND,
    &rows::KIND,
    &numbers::KIND,
    &weigh::KIND,
    &amount::KIND,
];
/// The keys that say what an overlay is for. The others are those of a descriptor.
pub(super) const OWN: [&str; 5] = [
    overlay::DOMAIN.name,
    overlay::DESCRIPTORS.name,
    overlay::NAME.name,
    overlay::REPLACE.name,
    overlay::RATE_LIMIT.name,
];

type Node = Option<(Position, NodeId)>;

mapping! {
    pub(crate) mod file = "a file of overlays" {
        /// list of overlays, at most 1,000
        OVERLAYS: Option<Vec<NodeId>> = "overlays", list(|| bounded_list(&reference("overlay"), 0, OVERLAYS_MAX)), "required",
            "overlays: [{domain: shop, descriptors: [user], rate_limit: {algorithm: gcra}}]";
    }
}

mapping! {
    pub(crate) mod overlay = "an overlay" {
        /// the domain of the policy; a `*` in it matches any text
        DOMAIN: Option<String> = "domain", form(|| bounded_text(1, PATTERN_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, PATTERN_BYTES_MAX)
        }), "required", "{domain: default/eg/*, descriptors: [\"**\"], rate_limit: {algorithm: gcra}}";
        /// list of [patterns](#overlays), one for each descriptor: the outermost first, the descriptor with the limits last
        DESCRIPTORS: Option<Vec<NodeId>> = "descriptors", list(|| bounded_list(&bounded_text(1, PATTERN_BYTES_MAX), 1, PATTERNS_MAX)), "required",
            "{domain: shop, descriptors: [plan=gold, path=*], on_error: local}";
        /// the name of a limit; the overlay then applies only to this limit
        NAME: Option<String> = "name", form(|| bounded_text(1, NAME_BYTES_MAX), |reader, fields, key| {
            reader.text(fields, key, NAME_BYTES_MAX)
        }), "all limits of the descriptor", "{domain: shop, descriptors: [user], name: burst, rate_limit: {shadow: true}}";
        /// true or false; if true, the overlay replaces what the policy gives
        REPLACE: bool = "replace", FLAG, "`false`", "{domain: shop, descriptors: [user], replace: true, rate_limit: 20/s}";
        /// mapping of [keys of a rate limit](#rate-limits), or a [short form](#short-forms)
        RATE_LIMIT: Node = "rate_limit", node(|| reference("limit")), "none",
            "{domain: shop, descriptors: [user], rate_limit: {algorithm: sliding_window, lease: 100ms}}";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        SHADOW_MODE = "shadow_mode", FLAG, "none", "{domain: shop, descriptors: [\"**\"], on_error: local}";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        QUOTA_MODE = "quota_mode", FLAG, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        ON_ERROR = "on_error", crate::form::ON_ERROR, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        SHARE_THRESHOLD = "share_threshold", FLAG, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        DETAILED_METRIC = "detailed_metric", FLAG, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        VALUE_TO_METRIC = "value_to_metric", FLAG, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        METADATA = "metadata", METADATA, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        ROWS = "rows", node(|| reference("rows")), "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        REQUEST_LIMIT = "request_limit", super::REQUEST_LIMIT, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        WEIGH = "weigh", super::WEIGH, "none", "";
        /// the same value as in [a descriptor](#descriptors); applies to all limits of the descriptor
        ALLOW_WARNINGS = "allow_warnings", ALLOWED, "none", "";
    }
}
