//! Where alerts are sent, and contradictions between these settings.
//!
//! Not here: sending them (telemetry/alerts.rs), and which limits have alerts (policies).

use std::path::PathBuf;
use std::time::Duration;

use weir_text::duration;

use super::alerts_rows::{CA_FILE, OTHERS, SECRET_FILE, URL};
use super::contradictions::ProblemList;
use super::value::{Secret, integer};
use super::{Merged, Problem};

/// Where alerts are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alerts {
    /// The URL of the webhook. It may hold a secret.
    pub webhook_url: Option<Secret>,
    /// The file of the secret that signs messages.
    pub webhook_secret_file: Option<PathBuf>,
    /// The authorities to trust, in place of those of the system.
    pub webhook_ca_file: Option<PathBuf>,
    /// How long one attempt may take.
    pub webhook_timeout: Duration,
    /// How often one alert is sent at most.
    pub webhook_attempts: u32,
    /// How long after its first attempt an alert is sent again.
    pub webhook_retry_for: Duration,
    /// How many alerts can wait.
    pub webhook_queue: usize,
}

impl Alerts {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        let [timeout, attempts, retry_for, queue] = OTHERS;
        Ok(Self {
            webhook_url: from.optional(URL).as_deref().map(Secret::from),
            webhook_secret_file: from.path(SECRET_FILE),
            webhook_ca_file: from.path(CA_FILE),
            webhook_timeout: from.value(timeout, duration)?,
            webhook_attempts: from.value(attempts, integer)?,
            webhook_retry_for: from.value(retry_for, duration)?,
            webhook_queue: from.value(queue, integer)?,
        })
    }

    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, problems: &mut ProblemList<'_>) {
        let Some(url) = &self.webhook_url else {
            let names = [SECRET_FILE, CA_FILE].into_iter().chain(OTHERS);
            problems.add_given(names, &format!("has no effect without {URL}"));
            return;
        };
        if self.webhook_secret_file.is_none() {
            let reason = format!("every message is signed: set {SECRET_FILE} too, to a file with whsec_ and Base64");
            problems.add(URL, reason);
        }
        if url.expose().starts_with("http:") {
            problems.add_given([CA_FILE], &format!("has no effect: {URL} is http"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    #[test]
    fn a_webhook_needs_its_secret() {
        let url = "alerts.webhook_url=https://hooks.example/in/T0KEN?x=1";
        let reason = "--set: alerts.webhook_url: every message is signed: set alerts.webhook_secret_file too, to a file \
                      with whsec_ and Base64";
        assert_eq!(Settings::of_test(&[url]).unwrap_err(), reason);
        let settings = Settings::of_test(&[url, "alerts.webhook_secret_file=secret"]).unwrap();
        assert!(!format!("{settings:?}").contains("T0KEN"), "the path of a webhook can be a secret");
        assert_eq!(settings.alerts.webhook_url.unwrap().expose(), "https://hooks.example/in/T0KEN?x=1");
    }

    #[test]
    fn settings_without_effect_and_urls_that_are_none_are_refused() {
        let none = "--set: alerts.webhook_queue: has no effect without alerts.webhook_url";
        assert_eq!(Settings::of_test(&["alerts.webhook_queue=5"]).unwrap_err(), none);
        let plain = ["alerts.webhook_url=http://h/", "alerts.webhook_secret_file=s", "alerts.webhook_ca_file=ca.pem"];
        let unused = "--set: alerts.webhook_ca_file: has no effect: alerts.webhook_url is http";
        assert_eq!(Settings::of_test(&plain).unwrap_err(), unused);
        for (url, reason) in [
            ("ftp://h/T0KEN", "not a URL such as https://alerts.example/weir"),
            ("https://me:T0KEN@h/", "has a login, which weir does not send"),
            ("/T0KEN", "not a URL such as https://alerts.example/weir"),
        ] {
            let problem = Settings::of_test(&[&format!("alerts.webhook_url={url}")]).unwrap_err();
            assert_eq!(problem, format!("--set: alerts.webhook_url: {reason}"), "{url}");
        }
    }
}
