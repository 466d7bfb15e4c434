//! The keys of files of callers.

use weir_engine::callers::{NAME_BYTES_MAX, Right};
use weir_text::yaml::NodeId;

use super::{CALLER_NAME_BYTES_MAX, CALLERS_MAX, DOMAINS_OF_CALLER_MAX, NAMES_OF_CALLER_MAX};
use crate::DOMAIN_BYTES_MAX;
use crate::form::{POSITIVE, list, mapping, only, short_text};
use crate::keys::Kind;
use crate::schema::fragments::{bounded_list, bounded_text, reference, words};

/// Every kind of mapping, from the outermost to the innermost.
pub const KINDS: [&Kind; 2] = [&file::KIND, &caller::KIND];

mapping! {
    pub(crate) mod file = "a file of callers" {
        /// list of callers, at most 10,000; `[]` if nobody may do anything
        CALLERS: Option<Vec<NodeId>> = "callers", list(|| bounded_list(&reference("caller"), 0, CALLERS_MAX)), "required",
            "callers: [{name: edge, listeners: [grpc], domains: [\"*\"], may: [charge, peek]}]";
    }
}

mapping! {
    pub(crate) mod caller = "a caller" {
        /// the name in answers, logs and metrics: at most 64 characters. Each is a letter, a digit or one of `- _ . @ /`
        NAME: Option<String> = "name", short_text(|| bounded_text(1, CALLER_NAME_BYTES_MAX)), "required", "name: team-a";
        /// list of at most 64 names of client certificates: DNS names and URIs; a URI with `/*` at its end stands for all URIs below it
        CERTIFICATES: Option<Vec<NodeId>> = "certificates",
            list(|| bounded_list(&bounded_text(1, NAME_BYTES_MAX), 0, NAMES_OF_CALLER_MAX)), "none",
            "certificates: [envoy.team-a.example, \"spiffe://mesh.example/ns/team-a/*\"]";
        /// list of listeners: names in `listen.grpc` (`grpc` for a listener without a name), and `http` for `/json`
        LISTENERS: Option<Vec<NodeId>> = "listeners",
            list(|| bounded_list(&bounded_text(1, CALLER_NAME_BYTES_MAX), 0, NAMES_OF_CALLER_MAX)), "none", "listeners: [sidecar, http]";
        /// list of at most 256 domains; `team-a/*` means all domains whose names begin with `team-a/`
        DOMAINS: Option<Vec<NodeId>> = "domains",
            list(|| bounded_list(&bounded_text(1, DOMAIN_BYTES_MAX), 1, DOMAINS_OF_CALLER_MAX)), "required",
            "domains: [shared, \"team-a/*\"]";
        /// list of rights: `charge`, `peek`, `refund`, `settle`, and `limits` for limits in the request
        MAY: Option<Vec<NodeId>> = "may", list(|| bounded_list(&words(&Right::NAMES), 1, Right::ALL.len())), "required",
            "may: [charge, peek]";
        /// 1 or more: the most hits for one descriptor in a request, after [weighing](policies.md#weighed-hits). It is also the most hits that a settle gives back for one descriptor
        HITS_MAX: Option<u32> = "hits_max", POSITIVE, "no bound", "hits_max: 100";
    }
}
