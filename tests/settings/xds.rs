//! Settings of policies by xDS: what they need beside them, and what is never printed.

use weir_settings::Settings;

use crate::all::{flags, policies, problems};

#[test]
fn policies_by_xds_need_a_server_and_no_directory() {
    let xds = ["policies.source=xds", "policies.xds.server=xds.internal:18000"];
    let settings = Settings::load(&[flags(&xds)]).expect("no directory is needed");
    assert_eq!(settings.policies.xds.server, Some(("xds.internal".to_owned(), 18_000)));
    assert_eq!(
        problems(&[flags(&["policies.source=xds"])]),
        "--set: policies.source: xds needs a server: set policies.xds.server too"
    );
    assert_eq!(
        problems(&[flags(&["policies.source=directory"])]),
        "settings: policies.directory: required: give --policies or WEIR__POLICIES__DIRECTORY"
    );
    let with = |more: &str| problems(&[flags(&xds), flags(&[more])]);
    assert_eq!(
        with("policies.xds.tls.ca_file=ca.pem"),
        "--set: policies.xds.tls.ca_file: has no effect without policies.xds.tls.enabled = on"
    );
    assert_eq!(
        with("policies.xds.backoff.max=500ms"),
        "--set: policies.xds.backoff.max: less than policies.xds.backoff.initial"
    );
    assert_eq!(
        with("policies.isolate=on"),
        "--set: policies.isolate: has no effect with policies.source = xds: a control plane sends all policies as one version"
    );
    assert!(Settings::load(&[flags(&xds), flags(&["policies.isolate=off"])]).is_ok());
    let halves = flags(&["policies.xds.tls.enabled=on", "policies.xds.tls.key_file=key"]);
    assert_eq!(
        problems(&[flags(&xds), halves]),
        "--set: policies.xds.tls.key_file: a key without its certificate: set policies.xds.tls.cert_file too"
    );
}

#[test]
fn headers_for_a_control_plane_are_never_printed() {
    let token = flags(&[
        "policies.source=xds",
        "policies.xds.server=xds:1",
        "policies.xds.headers=Authorization: Bearer hunter2",
    ]);
    let settings = Settings::load(&[token]).expect("good settings");
    let header = ("authorization".to_owned(), "Bearer hunter2".to_owned());
    assert_eq!(settings.policies.xds.headers.0, [header]);
    let shown = format!("{settings:?}");
    assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
    let refused = problems(&[policies(), flags(&["policies.xds.headers=grpc-hunter2:hunter3"])]);
    assert!(refused.contains("policies.xds.headers: ") && !refused.contains("hunter3"), "{refused}");
    for (headers, is_good) in [
        ("x-a: b", true),
        ("x-a:,x-b:c:d", true),
        ("x a:b", false),
        ("x-a", false),
        ("x-a:b,x-a:c", false),
        (":path:/", false),
        ("x-a:\u{e4}", false),
    ] {
        let layer = flags(&[&format!("policies.xds.headers={headers}")]);
        assert_eq!(Settings::load(&[policies(), layer]).is_ok(), is_good, "{headers}");
    }
}
