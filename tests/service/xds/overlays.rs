//! Overlays on the policies of a control plane: both change, each at its own time, and only pairs that fit are in force.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value as Json;
use tempfile::TempDir;

use super::{is_message, limit, metric, own_fields, policies, serving, start, wait_for_state};
use crate::support::ads::{self, Ads, limited, shop};
use crate::support::http;
use crate::support::process::{POLICIES_REFUSED, Weir, binary};
use crate::support::rls::Client;
use crate::support::wait::{PATIENCE, until};

/// A file of overlays, which is replaced as a whole.
struct File(TempDir);

impl File {
    fn with(keys: &str) -> Self {
        let file = Self(TempDir::new().expect("a directory"));
        file.write(keys);
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop.overlay.yaml")
    }

    fn write(&self, keys: &str) {
        let next = self.0.path().join("next");
        fs::write(&next, format!("overlays:\n- domain: shop\n  descriptors: [user]\n  {keys}\n")).expect("a file");
        fs::rename(next, self.path()).expect("a rename");
    }

    fn setting(&self) -> String {
        format!("policies.overlay={}", self.path().display())
    }
}

/// What `/policies` shows of the limits.
fn shown(weir: &Weir) -> String {
    http::get(weir.admin, "/policies").expect("an answer").body
}

fn wait_for_shown(weir: &Weir, what: &str) {
    until(what, PATIENCE, || shown(weir).contains(what).then_some(()));
}

/// The problems of the state that has some.
fn wait_for_problem(weir: &Weir, problem: &str) {
    wait_for_state(weir, problem, |state| {
        state["problems"]
            .as_array()
            .is_some_and(|all| all.iter().any(|text| text.as_str().is_some_and(|text| text.contains(problem))))
    });
}

const REFUSED: &str = "weir_input_refused{input=\"policies\"}";

#[test]
fn an_overlay_is_in_force_and_a_changed_one_without_a_response() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let file = File::with("rate_limit: {algorithm: gcra, burst: 2}");
    let weir = serving(&ads.server(), &[&file.setting()]);
    let mut client = Client::connect(weir.grpc);
    let admitted = [(); 3].map(|()| client.admits("shop", "user", "ann"));
    assert_eq!(admitted, [true, true, false], "a burst of two");
    let count = |state: &str| metric(&weir, &format!("weir_policy_overlays{{state=\"{state}\"}}"));
    assert_eq!((count("met"), count("unmet"), metric(&weir, REFUSED)), (1, 0, 0));

    file.write("rate_limit: {algorithm: token_bucket, burst: 7}");
    wait_for_shown(&weir, "token_bucket");
    assert_eq!(metric(&weir, "weir_xds_accepted_total"), 1, "no response was needed");

    // Readers of the server's policies have the overlays too.
    let told = Command::new(binary()).args(["check", "--server", &weir.admin.to_string()]).output().expect("weir runs");
    let told = String::from_utf8(told.stdout).expect("a text");
    assert!(told.contains("token_bucket") && told.contains("with 1 overlay"), "{told}");

    // Nothing has this key any more.
    ads.set("2", vec![ads::config("shop", vec![limited("other", 3)])]);
    ads.wait_for_ack("2");
    assert_eq!((count("met"), count("unmet")), (0, 1));
    let state = policies(&weir);
    assert_eq!(state["unmet_overlay_count"], 1);
    assert_eq!(state["unmet_overlays"], Json::from(vec![format!("{}:2:3", file.path().display())]));
    let public = http::get(weir.http, "/readyz").expect("an answer").body;
    assert!(public.contains("unmet_overlay_count") && !public.contains("unmet_overlays"), "{public}");
}

#[test]
fn what_contradicts_is_refused_and_the_last_pair_stays() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let file = File::with("rate_limit: {algorithm: gcra}");
    let weir = serving(&ads.server(), &[&file.setting()]);
    ads.wait_for_ack("1");
    let mut client = Client::connect(weir.grpc);

    // A response that gives the key of the overlay.
    let mut own = limited("user", 5);
    own.metadata = Some(own_fields(&[("algorithm", "sliding_window")]));
    let contradicting = vec![ads::config("shop", vec![own.clone()])];
    ads.set("2", contradicting.clone());
    let nack = ads.wait_for_nack("algorithm: the policy gives it already");
    let place = format!("{}:4:16: ", file.path().display());
    let reason = nack.error().unwrap_or_default();
    assert!(
        reason.starts_with(&place) && reason.contains("rules-of-shop: descriptors[0].rate_limit (user)"),
        "{reason}"
    );
    assert_eq!((limit(&mut client, "shop"), shown(&weir).contains("gcra")), (Some(10), true));

    // An overlay that fits the older response does not hide that the newer one is refused.
    file.write("rate_limit: {algorithm: gcra}\n- {domain: unknown, descriptors: [user], on_error: deny}");
    let unmet = || metric(&weir, "weir_policy_overlays{state=\"unmet\"}");
    until("the changed overlays", PATIENCE, || (unmet() == 1).then_some(()));
    wait_for_problem(&weir, "algorithm: the policy gives it already");

    // An overlay that the last good response contradicts, and a wrong one.
    for (keys, problem) in [
        ("rate_limit: {unit: day}", ":4:16: unit: the policy gives it already, at rules-of-shop: "),
        ("rate_limit: {brst: 5}", ":4:16: unknown key \"brst\" in a rate limit"),
    ] {
        file.write(keys);
        wait_for_problem(&weir, problem);
        until("the gauge to rise", PATIENCE, || (metric(&weir, REFUSED) == 1).then_some(()));
        assert_eq!((limit(&mut client, "shop"), shown(&weir).contains("gcra")), (Some(10), true));
    }
    assert!(weir.count_in_log(is_message(POLICIES_REFUSED)) >= 3);

    // A good response does not hide that the overlays in force are old ones.
    ads.set("3", vec![shop(11)]);
    ads.wait_for_ack("3");
    assert_eq!((limit(&mut client, "shop"), shown(&weir).contains("gcra")), (Some(11), true));
    wait_for_problem(&weir, "unknown key \"brst\"");

    // Overlays of the next response come first: they are refused alone, and in force with it.
    file.write("rate_limit: {burst: 3}");
    wait_for_problem(&weir, "burst on fixed_window");
    let mut bucket = own;
    bucket.metadata = Some(own_fields(&[("algorithm", "token_bucket")]));
    ads.set("4", vec![ads::config("shop", vec![bucket])]);
    ads.wait_for_ack("4");
    wait_for_shown(&weir, "token_bucket");
    assert_eq!(limit(&mut client, "shop"), Some(5));
    assert_eq!(policies(&weir)["problems"], Json::Array(Vec::new()));
    until("the gauge to fall", PATIENCE, || (metric(&weir, REFUSED) == 0).then_some(()));
}

#[test]
fn wrong_overlays_end_the_start() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    for (keys, problem) in
        [("on_eror: deny", "unknown key \"on_eror\" in an overlay"), ("", "an overlay that gives nothing")]
    {
        let file = File::with(keys);
        let (status, told) = start(&ads.server(), &[&file.setting()]).finish();
        assert_eq!(status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{}:", file.path().display())) && told.contains(problem), "{told}");
    }
}

/// A file of overlays that kept changing was a refused load each 5 s.
#[test]
fn overlays_that_keep_changing_are_shown_and_are_no_refused_load() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let file = File::with("rate_limit: {algorithm: gcra}");
    let weir = serving(&ads.server(), &[&file.setting()]);
    let mut burst = 0;
    until("the gauge to rise", PATIENCE, || {
        burst += 1;
        file.write(&format!("rate_limit: {{algorithm: gcra, burst: {burst}}}"));
        (metric(&weir, REFUSED) == 1).then_some(())
    });
    wait_for_problem(&weir, "keeps changing and is not loaded");
    assert_eq!(metric(&weir, "weir_config_load_errors_total"), 0);
    assert_eq!(weir.count_in_log(is_message(POLICIES_REFUSED)), 0);
    assert!(
        weir.wait_for_log(0, PATIENCE, is_message("a file keeps changing and is not loaded")),
        "{}",
        weir.written()
    );
    file.write("rate_limit: {algorithm: token_bucket, burst: 7}");
    wait_for_shown(&weir, "token_bucket");
    until("the gauge to fall", PATIENCE, || (metric(&weir, REFUSED) == 0).then_some(()));
    assert_eq!(policies(&weir)["problems"], Json::Array(Vec::new()));
}
