//! The settings of the export of metrics: rows of the table of settings.
//!
//! Not here: the typed fields (metrics_export.rs), and the settings of the collector (traces_rows.rs).

use std::time::Duration;

use super::row::{Kind, Preset, Setting};

/// The values of `metrics.exporter`.
const EXPORTERS: &[&str] = &["none", "otlp"];

pub(super) const ENDPOINT: &str = "metrics.otlp.endpoint";

/// The rows of the table for the export of metrics.
pub(super) const ROWS: &[Setting] = &[
    Setting {
        name: "metrics.exporter",
        kind: Kind::Choice(EXPORTERS),
        default: Preset::Is("none"),
        about: "where metrics go beside /metrics: nowhere, or to the collector of tracing.otlp by OTLP",
    },
    Setting {
        name: "metrics.otlp.endpoint",
        kind: Kind::Url,
        default: Preset::Unset,
        about: "the collector of metrics; none: that of tracing.otlp.endpoint, with the path /v1/metrics",
    },
    Setting {
        name: "metrics.export_interval",
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3_600) },
        default: Preset::Is("60s"),
        about: "how often metrics are sent to the collector",
    },
];
