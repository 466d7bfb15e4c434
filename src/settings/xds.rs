//! Which control plane policies come from, how it is reached, and contradictions between these settings.
//!
//! Not in here: what xDS is (src/xds/lib.rs).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use weir_text::duration;

use super::contradictions::ProblemList;
use super::value::{self};
use super::xds_rows::{SERVER, TLS_FILES, TRUST};
use super::{HIDDEN, Merged, PolicySource, Problem};

/// The server of policies.
#[derive(Clone, PartialEq, Eq)]
pub struct Xds {
    /// Its name or IP, and its port. Given if the source is xDS.
    pub server: Option<(String, u16)>,
    /// The name of this replica there.
    pub node_id: String,
    /// Keys and values by which it may choose policies.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream, names in lower case. May hold secrets.
    pub headers: Vec<(String, String)>,
    /// Whether listeners open before there are policies.
    pub start_without_config: bool,
    /// TLS, where the connection has it.
    pub tls: XdsTls,
    /// The bound for opening a connection.
    pub connect_timeout: Duration,
    /// The longest pause after a connection that could not be made.
    pub connect_retry: Duration,
    /// The pause after a stream that ended.
    pub backoff_initial: Duration,
    /// The longest pause after streams without a response.
    pub backoff_max: Duration,
    /// By how much pauses differ at random, in percent.
    pub random_percent: u32,
    /// The largest response in bytes.
    pub max_message_bytes: usize,
    /// How long a connection is idle before it is tested.
    pub keepalive_interval: Duration,
    /// How long the answer to the test may take.
    pub keepalive_timeout: Duration,
}

/// TLS to the server of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdsTls {
    /// Whether there is any.
    pub enabled: bool,
    /// The authorities to trust, in place of those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether the system's authorities are trusted beside those of `ca_file`. They always are without one.
    pub system_store_always: bool,
    /// The client's certificate. Not without the key.
    pub cert_file: Option<PathBuf>,
    /// Its key. Not without the certificate.
    pub key_file: Option<PathBuf>,
    /// The name to find in the server's certificate, in place of the host.
    pub server_name: Option<String>,
}

impl Xds {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        let [ca_file, cert_file, key_file, server_name] = TLS_FILES;
        Ok(Self {
            server: from.given(SERVER, value::host_port)?,
            node_id: from.value("policies.xds.node_id", |text| Ok(text.to_owned()))?,
            node_metadata: from
                .given("policies.xds.node_metadata", |text| value::pairs(text, '='))?
                .unwrap_or_default(),
            headers: from.given("policies.xds.headers", value::headers)?.unwrap_or_default(),
            start_without_config: from.value("policies.xds.start_without_config", value::switch)?,
            tls: XdsTls {
                enabled: from.value("policies.xds.tls.enabled", value::switch)?,
                ca_file: from.path(ca_file),
                system_store_always: from.value(TRUST, |text| Ok(text == "always"))?,
                cert_file: from.path(cert_file),
                key_file: from.path(key_file),
                server_name: from.optional(server_name),
            },
            connect_timeout: from.value("policies.xds.connect_timeout", duration)?,
            connect_retry: from.value("policies.xds.connect_retry", duration)?,
            backoff_initial: from.value("policies.xds.backoff.initial", duration)?,
            backoff_max: from.value("policies.xds.backoff.max", duration)?,
            random_percent: from.value("policies.xds.backoff.random_percent", value::integer)?,
            max_message_bytes: from.value("policies.xds.max_message_bytes", value::integer)?,
            keepalive_interval: from.value("policies.xds.keepalive.interval", duration)?,
            keepalive_timeout: from.value("policies.xds.keepalive.timeout", duration)?,
        })
    }

    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, source: PolicySource, problems: &mut ProblemList<'_>) {
        if source == PolicySource::Xds && self.server.is_none() {
            problems.add("policies.source", format!("xds needs a server: set {SERVER} too"));
        }
        let [_, cert_file, key_file, _] = TLS_FILES;
        problems.certificate(cert_file, key_file);
        if !self.tls.enabled {
            let names = TLS_FILES.into_iter().chain([TRUST]);
            problems.add_given(names, "means nothing without policies.xds.tls.enabled = on");
        }
        if self.backoff_max < self.backoff_initial {
            problems.add("policies.xds.backoff.max", "less than policies.xds.backoff.initial".to_owned());
        }
    }
}

/// Without the values of headers.
impl fmt::Debug for Xds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, _)| (name.as_str(), HIDDEN)).collect();
        f.debug_struct("Xds")
            .field("server", &self.server)
            .field("node_id", &self.node_id)
            .field("node_metadata", &self.node_metadata)
            .field("headers", &headers)
            .field("start_without_config", &self.start_without_config)
            .field("tls", &self.tls)
            .field("connect_timeout", &self.connect_timeout)
            .field("connect_retry", &self.connect_retry)
            .field("backoff_initial", &self.backoff_initial)
            .field("backoff_max", &self.backoff_max)
            .field("random_percent", &self.random_percent)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("keepalive_interval", &self.keepalive_interval)
            .field("keepalive_timeout", &self.keepalive_timeout)
            .finish()
    }
}
