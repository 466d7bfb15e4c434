//! The rows of the settings' table that begin with `alerts`.
//!
//! Not here: what they become (alerts.rs).

use std::time::Duration;

use super::row::{Kind, Preset, Setting};

pub(super) const URL: &str = "alerts.webhook_url";
pub(super) const SECRET_FILE: &str = "alerts.webhook_secret_file";
pub(super) const CA_FILE: &str = "alerts.webhook_ca_file";
/// Those that mean nothing without a webhook.
pub(super) const OTHERS: [&str; 4] =
    ["alerts.webhook_timeout", "alerts.webhook_attempts", "alerts.webhook_retry_for", "alerts.webhook_queue"];

/// The rows of the table that begin with `alerts`.
pub(super) const ROWS: &[Setting] = &[
    Setting {
        name: URL,
        kind: Kind::SecretUrl,
        default: Preset::Unset,
        about: "where alerts of limits with alert_at are sent, by POST; none: they are logged and counted only",
    },
    Setting {
        name: SECRET_FILE,
        kind: Kind::File,
        default: Preset::Unset,
        about: "the file of the secret that signs them, whsec_ and Base64 of 24 to 64 bytes; read for each attempt",
    },
    Setting {
        name: CA_FILE,
        kind: Kind::File,
        default: Preset::Unset,
        about: "the authorities that the webhook's certificate is checked against, in PEM; none: those of the system",
    },
    Setting {
        name: OTHERS[0],
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(60) },
        default: Preset::Is("5s"),
        about: "how long one attempt to deliver an alert may take",
    },
    Setting {
        name: OTHERS[1],
        kind: Kind::Integer { min: 1, max: 100, unit: "attempts" },
        default: Preset::Is("20"),
        about: "how often one alert is sent until the webhook takes it",
    },
    Setting {
        name: OTHERS[2],
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) },
        default: Preset::Is("15m"),
        about: "how long after its first attempt an alert is sent again",
    },
    Setting {
        name: OTHERS[3],
        kind: Kind::Integer { min: 1, max: 65_536, unit: "alerts" },
        default: Preset::Is("1024"),
        about: "how many alerts can wait for the webhook; more are dropped and counted",
    },
];
