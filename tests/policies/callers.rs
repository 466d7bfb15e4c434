//! Files of callers: what is read, and where each mistake has its place.

use std::fs;
use std::path::Path;

use weir_cli::check::{self, CheckFormat};
use weir_cli::explain;
use weir_lab::testing::Strictness;
use weir_policies::caller_file::{
    CALLER_FILE_BYTES_MAX, CALLER_NAME_BYTES_MAX, CALLERS_MAX, DOMAINS_OF_CALLER_MAX, NAMES_OF_CALLER_MAX,
};
use weir_policies::files::Source;
use weir_policies::{Dialect, Listening, PROBLEMS_MAX, parse_callers};
use weir_settings::{Layer, Settings};

use crate::support::authority::Authority;

const GOOD: &str = "\
callers:
- name: team-a
  certificates: ['spiffe://mesh/ns/team-a/*', envoy.team-a.example]
  domains: [shared, 'team-a/*']
  may: [charge, peek]
  hits_max: 100
- name: local
  listeners: [sidecar, http]
  domains: ['*']
  may: [charge, peek, refund, settle, limits]
";

/// A listener `grpc` by TLS with certificates of clients.
fn listening() -> Listening {
    Listening { listeners: vec!["grpc".to_owned(), "http".to_owned()], has_client_ca: true }
}

fn problems(text: &str) -> String {
    parse_callers("c.yaml", text, Some(&listening())).expect_err(text).to_string()
}

/// One caller with this key, in place of that of a good one.
fn caller(key: &str) -> String {
    let name = key.split(':').next().expect("a key");
    let good = ["name: a", "certificates: [envoy.mesh]", "domains: [shop]", "may: [charge]"];
    let others = good.iter().filter(|line| !line.starts_with(&format!("{name}:"))).copied();
    let lines: Vec<&str> =
        if name == "name" { [key].into_iter().chain(others).collect() } else { others.chain([key]).collect() };
    format!("callers:\n- {}\n", lines.join("\n  "))
}

#[test]
fn each_caller_has_what_its_file_gives_it() {
    let callers = parse_callers("c.yaml", GOOD, None).unwrap_or_else(|problems| panic!("{problems}"));
    let found = |names: &[&str], listener: &str| {
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        callers.find(&names, listener).cloned().expect("a caller")
    };
    let team = found(&["spiffe://mesh/ns/team-a/sa/web"], "grpc");
    assert_eq!((&*team.name, team.hits_max), ("team-a", 100));
    assert_eq!(team.may.names().collect::<Vec<_>>(), ["charge", "peek"]);
    assert_eq!(team.domains.to_string(), "shared, team-a/*");
    let local = found(&[], "sidecar");
    assert_eq!((&*local.name, local.hits_max), ("local", u32::MAX));
    assert!(local.domains.has("any") && parse_callers("c.yaml", "callers: []", None).unwrap().list().is_empty());
}

#[test]
fn each_mistake_has_its_place_and_what_was_probably_meant() {
    for (text, expected) in [
        ("", "c.yaml:1:1: empty: a file of callers has callers"),
        ("callers:", "c.yaml:1:1: no callers: write callers: [] if nobody may do anything"),
        ("s3cret: x", "c.yaml:1:1: a file of callers must be a mapping with the keys callers: it has none of them"),
        ("calers: []", "c.yaml:1:1: unknown key \"calers\" in a file of callers, did you mean \"callers\"?"),
        (&caller("domain: [shop]"), "unknown key \"domain\" in a caller, did you mean \"domains\"?"),
        (&caller("name: ~"), "a caller without a name"),
        (&caller("name: a b"), "a name has at most 64 letters, digits and any of - _ . @ /"),
        (&caller("name: (others)"), "a name has at most 64 letters"),
        (&caller("domains: []"), "a caller without domains: write domains: [\"*\"] for all of them"),
        (&caller("domains: [a*b]"), "a * may only be the last character of a domain"),
        (&caller("domains: shop"), "domains must be a list, not \"shop\""),
        (&caller("domains: [[a]]"), "an item of domains must be text, not a list"),
        (&caller("may: []"), "a caller without rights: write may with some of charge, peek, refund, settle, limits"),
        (&caller("may: [chrage]"), "no right \"chrage\", did you mean \"charge\"?"),
        (&caller("certificates: []"), "a caller without certificates and listeners: nobody is this caller"),
        (&caller("certificates: ['*.mesh']"), "certificate \"*.mesh\": a wildcard"),
        (&caller("certificates: [10.0.0.1]"), "certificate \"10.0.0.1\": neither a DNS name nor a URI"),
        (&caller("certificates: [a, A]"), "the caller a has the certificate a already"),
        (&caller("listeners: [gprc]"), "no listener \"gprc\", did you mean \"grpc\"?"),
        (&caller("listeners: [http, http]"), "the caller a has the listener http already"),
        (&caller("hits_max: 0"), "hits_max is 0: write 1 or more"),
        (&caller("hits_max: -1"), "hits_max must be a whole number from 1 to 4294967295, not \"-1\""),
        (
            &caller("certificates: [m\u{fc}nchen.example]"),
            "not in ASCII: write the form that the certificate has, with xn--",
        ),
        (&caller("certificates: [\"a\\0.b\"]"), "neither a DNS name nor a URI"),
    ] {
        let found = problems(text);
        assert!(found.contains(expected) && found.starts_with("c.yaml:"), "{text}\n{found}");
    }
    let twice = "callers:\n- {name: a, listeners: [grpc], domains: [s], may: [peek]}\n\
                 - {name: a, listeners: [grpc], domains: [s], may: [peek]}\n";
    assert_eq!(problems(twice), "c.yaml:3:10: two callers have the name a");
    let other = twice.replacen("name: a", "name: b", 1);
    assert_eq!(problems(&other), "c.yaml:3:25: the caller b has the listener grpc already");
}

#[test]
fn certificates_need_the_authority_of_clients() {
    let without = Listening { has_client_ca: false, ..listening() };
    let refused = parse_callers("c.yaml", &caller("hits_max: 1"), Some(&without)).unwrap_err().to_string();
    assert_eq!(refused, "c.yaml:3:18: certificates need listen.tls.client_ca_file: without it clients show none");
    let by_listener = caller("certificates: []").replace("certificates: []", "listeners: [grpc]");
    assert!(parse_callers("c.yaml", &by_listener, Some(&without)).is_ok());
}

#[test]
fn a_cut_file_is_refused_or_has_no_right_that_the_whole_one_has_not() {
    let whole = parse_callers("c.yaml", GOOD, None).unwrap();
    let mut refused = 0;
    for end in 0..GOOD.len() - 1 {
        let Ok(cut) = parse_callers("c.yaml", &GOOD[..end], None) else {
            refused += 1;
            continue;
        };
        for caller in cut.list() {
            let original =
                whole.list().iter().find(|original| original.name == caller.name).expect("a caller of the file");
            assert!(caller.may.names().all(|right| original.may.names().any(|other| other == right)), "{caller:?}");
            for domain in ["shared", "share", "team-a/x", "team-a", "other"] {
                assert!(original.domains.has(domain) || !caller.domains.has(domain), "{domain}: {caller:?}");
            }
        }
    }
    assert!(refused > GOOD.len() / 2, "{refused} of {}", GOOD.len());
}

#[test]
fn every_bound_of_a_file_is_named() {
    let many = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let one = |n: usize| format!("- {{name: c{n}, certificates: [c{n}.x], domains: [a], may: [peek]}}\n");
    let file = |count: usize| format!("callers:\n{}", (0..count).map(one).collect::<String>());
    assert_eq!(parse_callers("c.yaml", &file(CALLERS_MAX), None).unwrap().list().len(), CALLERS_MAX);
    assert_eq!(problems(&file(CALLERS_MAX + 1)), "c.yaml:2:3: 10001 callers: at most 10000");
    let short = format!("callers:\n{}", "- x\n".repeat(100_000));
    assert_eq!(problems(&short), "c.yaml:2:3: 100000 callers: at most 10000");
    assert!(file(100_000).len() > CALLER_FILE_BYTES_MAX);
    assert_eq!(problems(&file(100_000)), "c.yaml: larger than 4 MiB");

    let names = |count| caller(&format!("certificates: [{}]", many(count, &|n| format!("c{n}.x"))));
    assert!(parse_callers("c.yaml", &names(NAMES_OF_CALLER_MAX), None).is_ok());
    assert!(problems(&names(NAMES_OF_CALLER_MAX + 1)).contains("certificates has 65 items: at most 64"));
    let domains = |count| caller(&format!("domains: [{}]", many(count, &|n| format!("d{n}"))));
    assert!(parse_callers("c.yaml", &domains(DOMAINS_OF_CALLER_MAX), None).is_ok());
    assert!(problems(&domains(DOMAINS_OF_CALLER_MAX + 1)).contains("domains has 257 items: at most 256"));
    assert!(
        problems(&caller(&format!("domains: [{}]", "x".repeat(257)))).contains("a domain has 257 bytes: at most 256")
    );
    let name = |bytes| caller(&format!("name: {}", "x".repeat(bytes)));
    assert!(parse_callers("c.yaml", &name(CALLER_NAME_BYTES_MAX), None).is_ok());
    assert!(problems(&name(CALLER_NAME_BYTES_MAX + 1)).contains("a name has at most 64"));
    let wrong = format!("callers:\n{}", "- {nme: x}\n".repeat(5_000));
    let wrong = parse_callers("c.yaml", &wrong, None).unwrap_err();
    assert!(wrong.list().len() <= PROBLEMS_MAX);
    let bomb = "callers:\n- &a {name: a, certificates: [a.x], domains: [s], may: [peek]}\n- *a\n";
    assert_eq!(problems(bomb), "c.yaml:2:13: two callers have the name a");
}

fn checked(run: impl FnOnce(&mut Vec<u8>) -> Result<(), check::Failed>) -> String {
    let mut out = Vec::new();
    match run(&mut out) {
        Ok(()) => String::from_utf8(out).unwrap(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn weir_check_reads_callers_alone_and_with_the_settings() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mesh.callers.yaml");
    fs::write(&path, GOOD).unwrap();
    fs::write(directory.path().join("shop.yaml"), "domain: shop").unwrap();
    let alone = || checked(|out| check::run(path.as_path(), Dialect::default(), Strictness::Strict, out));
    assert_eq!(alone(), format!("{}: 2 callers\n", path.display()));

    let settings = |more: &str| {
        let text = format!(
            "policies: {{directory: {}}}\ncallers: {{file: {}}}\n{more}",
            directory.path().display(),
            path.display()
        );
        Settings::load(&[Layer::yaml("weir.yaml", &text)]).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let by_settings =
        |settings: &Settings| checked(|out| check::run_settings(settings, None, Strictness::Lenient, out));
    let refused = by_settings(&settings(""));
    assert!(refused.contains(":3:18: certificates need listen.tls.client_ca_file"), "{refused}");
    assert!(refused.contains("no listener \"sidecar\""), "{refused}");
    let tls = "listen: {grpc: 'grpc=127.0.0.1:0,sidecar=plain:127.0.0.1:0', tls: {cert_file: a, key_file: b, client_ca_file: c}}";
    let good = by_settings(&settings(tls));
    assert!(good.starts_with(&format!("{}: 2 callers\n", path.display())) && good.contains("1 domain"), "{good}");
    let mut out = Vec::new();
    check::report_settings(&settings(""), None, Strictness::Lenient, CheckFormat::Json, &mut out).unwrap_err();
    assert!(String::from_utf8(out).unwrap().contains("certificates need"));

    // A file that was cut can name other domains: `- team-a` of `- team-a/shop`.
    fs::write(&path, GOOD.trim_end()).unwrap();
    assert!(alone().ends_with(": the last line has no line end, so a part of the file can be missing"), "{}", alone());

    fs::write(&path, GOOD.replace("hits_max", "hits_mx")).unwrap();
    assert!(alone().ends_with(":6:3: unknown key \"hits_mx\" in a caller, did you mean \"hits_max\"?"), "{}", alone());
}

/// What the server reads besides policies: it was not read, or no domain was compared.
#[test]
fn weir_check_reads_certificates_and_tokens_and_compares_the_domains_of_callers() {
    let (authority, directory) = (Authority::new("ours"), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    fs::write(path("a.yaml"), "domain: team-a/shop\ndescriptors: []").unwrap();
    fs::write(path("b.yaml"), "domain: shared\ndescriptors: []").unwrap();
    let caller = "listeners: [grpc], may: [peek], domains";
    fs::write(path("mesh.callers.yaml"), format!("callers: [{{name: a, {caller}: [shraed, shared, 'team-a/*']}}]\n"))
        .unwrap();
    let good = authority.server("good", &["localhost"]);
    let settings = |certificate: &Path, key: &Path| {
        let text = format!(
            "policies: {{directory: {0}}}\ncallers: {{file: {0}/mesh.callers.yaml}}\n\
             listen: {{tls: {{cert_file: {1}, key_file: {2}}}}}\nadmin: {{token_file: {0}/tokens}}\n",
            directory.path().display(),
            certificate.display(),
            key.display()
        );
        Settings::load(&[Layer::yaml("weir.yaml", &text)]).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let check = |settings: &Settings, strictness| checked(|out| check::run_settings(settings, None, strictness, out));
    let lenient = |settings: &Settings| check(settings, Strictness::Lenient);

    let fits = settings(&good.certificate, &good.key);
    let found = lenient(&fits);
    assert!(
        found.contains(&format!("{}: not checked, because it is not on this machine\n", path("tokens").display())),
        "{found}"
    );
    let unmet =
        "the caller a has the domain \"shraed\", which meets no domain of the policies, the nearest is \"shared\"\n";
    assert!(found.contains(unmet) && found.matches("warning: ").count() == 1, "{found}");
    assert_eq!(check(&fits, Strictness::Strict), "1 warning, which --strict makes an error");
    fs::write(path("tokens"), "ann 0123456789abcdef lok *\n").unwrap();
    let found = lenient(&fits);
    assert!(found.contains(&format!("warning: {}: line 1: no right \"lok\"", path("tokens").display())), "{found}");
    let mut out = Vec::new();
    check::report_settings(&fits, None, Strictness::Lenient, CheckFormat::Json, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.matches("\"rule\": \"file\"").count() == 2 && out.contains("no right") && out.contains("shraed"),
        "{out}"
    );

    fs::write(path("tokens"), "ann 0123456789abcdef look *\n").unwrap();
    let alone = checked(|out| check::run(path("tokens").as_path(), Dialect::default(), Strictness::Lenient, out));
    assert!(
        alone.ends_with("is a file of tokens: write it in admin.token_file, and weir check --config FILE checks it"),
        "{alone}"
    );

    let expired = authority.expired_server("old", &["localhost"]);
    let found = lenient(&settings(&expired.certificate, &expired.key));
    assert!(
        found.contains(&format!("{}: expired, it was valid until 2002-01-01", expired.certificate.display())),
        "{found}"
    );
    let wrong = lenient(&settings(&good.certificate, &expired.key));
    assert!(wrong.contains("good") && !wrong.contains("2 domains"), "{wrong}");
}

#[test]
fn weir_explain_says_what_a_caller_may_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.yaml");
    fs::write(&path, GOOD).unwrap();
    let explained = |name: &str, domain: &str| checked(|out| explain::caller(&path, name, domain, out));
    let file = path.display();
    assert_eq!(
        explained("team-a", "team-a/x"),
        format!("caller team-a   {file}\n  may charge, peek in this domain, at most 100 hits of a descriptor\n\n")
    );
    assert_eq!(
        explained("team-a", "shop"),
        format!("caller team-a   {file}\n  may nothing in this domain: its domains are shared, team-a/*\n\n")
    );
    assert_eq!(
        explained("local", "shop"),
        format!("caller local   {file}\n  may charge, peek, refund, settle, limits in this domain\n\n")
    );
    // An operator has the name of a certificate, or a listener.
    for (known_by, caller) in
        [("spiffe://mesh/ns/team-a/sa/web", "team-a"), ("Envoy.team-a.example", "team-a"), ("sidecar", "local")]
    {
        let text = explained(known_by, "shop");
        assert!(text.starts_with(&format!("caller {caller}, by {known_by}   {file}\n")), "{text}");
    }
    assert_eq!(
        explained("team-b", "shop"),
        format!("{file}: no caller, certificate or listener \"team-b\", did you mean \"team-a\"?")
    );
}

#[test]
fn a_file_of_callers_beside_policies_is_no_policy() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mesh.callers.yaml"), GOOD).unwrap();
    fs::write(directory.path().join("shop.yaml"), "domain: shop").unwrap();
    let files = weir_policies::files::policy_files(Source::from(directory.path())).unwrap();
    assert_eq!(files, [directory.path().join("shop.yaml")]);
    let alone = weir_policies::files::policy_files(directory.path().join("mesh.callers.yaml").as_path()).unwrap_err();
    assert!(alone.to_string().ends_with("a file of callers, not of policies: callers.file names it"), "{alone}");
}
