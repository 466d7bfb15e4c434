//! Where alerts are sent, and contradictions between these settings.

use std::path::PathBuf;
use std::time::Duration;

use super::contradictions::ProblemList;
use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, ms, secs};
use super::value::Secret;

const URL: &str = "alerts.webhook_url";
const SECRET_FILE: &str = "alerts.webhook_secret_file";
const CA_FILE: &str = "alerts.webhook_ca_file";
/// The settings that have no effect without a webhook.
const OTHERS: [&str; 4] =
    ["alerts.webhook_timeout", "alerts.webhook_attempts", "alerts.webhook_retry_for", "alerts.webhook_queue"];

settings! {
    /// Where alerts are sent.
    pub struct Alerts {
        /// where alerts of limits with alert_at are sent, by POST; none: they are logged and counted only
        webhook_url: Option<Secret> = "alerts.webhook_url", Kind::SecretUrl, Unset;
        /// the file of the secret that signs them, whsec_ and Base64 of 24 to 64 bytes; read for each attempt
        webhook_secret_file: Option<PathBuf> = "alerts.webhook_secret_file", Kind::File, Unset;
        /// the authorities that the webhook's certificate is checked against, in PEM; none: those of the system
        webhook_ca_file: Option<PathBuf> = "alerts.webhook_ca_file", Kind::File, Unset;
        /// how long one attempt to deliver an alert may take
        webhook_timeout: Duration = "alerts.webhook_timeout", Kind::duration(ms(100), secs(60)), Is("5s");
        /// how many times one alert is sent until the webhook accepts it
        webhook_attempts: u32 = "alerts.webhook_attempts", Kind::integer(1, 100, "attempts"), Is("20");
        /// for how long after the first attempt an alert is sent again
        webhook_retry_for: Duration = "alerts.webhook_retry_for",
            Kind::duration(Duration::ZERO, secs(86_400)), Is("15m");
        /// how many alerts can wait for the webhook; more are dropped and counted
        webhook_queue: usize = "alerts.webhook_queue", Kind::integer(1, 65_536, "alerts"), Is("1024");
    }
}

impl Alerts {
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
