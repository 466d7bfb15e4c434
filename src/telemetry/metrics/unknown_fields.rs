//! Fields of limits that this version of weir does not know: their count, and a bounded number of log lines.

use std::time::Duration;

use parking_lot::Mutex;

use super::super::complaint::Complaint;
use super::registry::{Number, Registry};

/// The least time between two log lines about the fields of one source.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

weir_engine::named! {
    /// Where limits come from.
    pub enum LimitSource {
        /// Limits of requests.
        Grpc = "grpc",
        /// Policies of a control plane.
        Xds = "xds",
    }
}

pub(super) struct UnknownFields([(Number, Mutex<Complaint>); LimitSource::NAMES.len()]);

impl UnknownFields {
    pub(super) fn new(registry: &Registry) -> Self {
        let counts = registry.each("weir_unknown_limit_fields_total", LimitSource::NAMES);
        Self(counts.map(|count| (count, Mutex::new(Complaint::new(LOGGED_EVERY)))))
    }

    /// Counts messages with such fields. `message` and `field` name one of them for the log.
    pub(super) fn found(&self, source: LimitSource, messages: u64, message: &str, field: u32) {
        let (count, complaint) = &self.0[source as usize];
        count.add(messages);
        if let Some(count) = complaint.lock().failed(messages) {
            let source = source.name();
            tracing::warn!(
                source,
                message_type = message,
                field,
                count,
                "limits have a field that this version of weir does not know and ignores: they may mean something else"
            );
        }
    }
}
