//! The settings of the control plane that sends policies, and contradictions between them.

use std::path::PathBuf;
use std::time::Duration;

use super::contradictions::ProblemList;
use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, SYSTEM_STORE, ms, secs};
use super::value::{self, Headers, NAME_BYTES_MAX};
use super::{Policies, PolicySource};

const SERVER: &str = "policies.xds.server";
/// The setting of TLS that has a default.
const TRUST: &str = "policies.xds.tls.system_store";
const TLS_FILES: [&str; 4] = [
    "policies.xds.tls.ca_file",
    "policies.xds.tls.cert_file",
    "policies.xds.tls.key_file",
    "policies.xds.tls.server_name",
];

settings! {
    /// The server of policies.
    pub struct Xds {
        /// the control plane's discovery service; needed with policies.source = xds
        server: Option<(String, u16)> = "policies.xds.server", Kind::HostPort, Unset;
        /// the name of this replica for the control plane
        node_id: String = "policies.xds.node_id", Kind::Name { bytes_max: NAME_BYTES_MAX }, Is("weir");
        /// metadata by which the control plane can choose policies: key=value separated by commas
        node_metadata: Vec<(String, String)> = "policies.xds.node_metadata",
            Kind::Pairs { between: '=' }, Unset, |text| value::pairs(text, '=');
        /// headers of the stream, such as a token: name:value separated by commas
        headers: Headers = "policies.xds.headers", Kind::Headers, Unset;
        /// on: listeners open at once, and decisions are UNAVAILABLE until there are policies
        start_without_config: bool = "policies.xds.start_without_config", Kind::Switch, Is("off");
        /// TLS of the connection.
        tls: XdsTls;
        /// how long opening the connection may take, TLS included
        connect_timeout: Duration = "policies.xds.connect_timeout", Kind::duration(ms(10), secs(60)), Is("5s");
        /// the longest pause after a connection that could not be made; the first is 250ms
        connect_retry: Duration = "policies.xds.connect_retry", Kind::duration(ms(10), secs(3600)), Is("3s");
        /// the pause after a stream that ended
        backoff_initial: Duration = "policies.xds.backoff.initial", Kind::duration(ms(10), secs(3600)), Is("1s");
        /// the longest pause, if streams keep ending without a response
        backoff_max: Duration = "policies.xds.backoff.max", Kind::duration(ms(10), secs(3600)), Is("30s");
        /// the random part of a pause, so that replicas do not retry at the same time
        random_percent: u32 = "policies.xds.backoff.random_percent", Kind::integer(0, 100, "percent"), Is("50");
        /// the largest response of the control plane
        max_message_bytes: usize = "policies.xds.max_message_bytes",
            Kind::integer(1024, 268_435_456, "bytes"), Is("33554432");
        /// how long a connection is idle before an HTTP/2 PING; many servers end one that sends more often than every
        /// 5m
        keepalive_interval: Duration = "policies.xds.keepalive.interval",
            Kind::duration(secs(1), secs(86_400)), Is("6m");
        /// how long the answer to that PING may take
        keepalive_timeout: Duration = "policies.xds.keepalive.timeout", Kind::duration(ms(10), secs(300)), Is("20s");
    }
}

settings! {
    /// TLS to the server of policies. Without a `ca_file`, the system's authorities are trusted.
    #[derive(Default)]
    pub struct XdsTls {
        /// whether the connection has TLS
        enabled: bool = "policies.xds.tls.enabled", Kind::Switch, Is("off");
        /// the authorities to trust, in PEM, in place of those of the system
        ca_file: Option<PathBuf> = "policies.xds.tls.ca_file", Kind::File, Unset;
        /// when the system's authorities are trusted: without policies.xds.tls.ca_file, or always
        system_store_always: bool = "policies.xds.tls.system_store",
            Kind::Choice(SYSTEM_STORE), Is("fallback"), |text| Ok(text == "always");
        /// the certificate to show to the control plane, in PEM, with its intermediates; needs the key
        cert_file: Option<PathBuf> = "policies.xds.tls.cert_file", Kind::File, Unset;
        /// the key of that certificate, in PEM
        key_file: Option<PathBuf> = "policies.xds.tls.key_file", Kind::File, Unset;
        /// the name that the control plane's certificate must have, in place of the host
        server_name: Option<String> = "policies.xds.tls.server_name", Kind::ServerName, Unset;
    }
}

impl Xds {
    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, of: &Policies, problems: &mut ProblemList<'_>) {
        let is_source = of.source == PolicySource::Xds;
        if is_source && self.server.is_none() {
            problems.add("policies.source", format!("xds needs a server: set {SERVER} too"));
        }
        if is_source && of.isolate {
            let reason = "has no effect with policies.source = xds: a control plane sends all policies as one version";
            problems.add("policies.isolate", reason.to_owned());
        }
        let [_, cert_file, key_file, _] = TLS_FILES;
        problems.certificate(cert_file, key_file);
        if !self.tls.enabled {
            let names = TLS_FILES.into_iter().chain([TRUST]);
            problems.add_given(names, "has no effect without policies.xds.tls.enabled = on");
        }
        if self.backoff_max < self.backoff_initial {
            problems.add("policies.xds.backoff.max", "less than policies.xds.backoff.initial".to_owned());
        }
    }
}
