//! Callers by the names of their certificates, also hostile ones, by TLS and with a real Envoy. The certificates are of the test's own
//! authority.

use super::*;
use crate::support::random::SplitMix;

/// Callers by the names of certificates.
const BY_CERTIFICATE: &str = "\
callers:
- {name: a, certificates: ['spiffe://mesh/ns/a/*', envoy.a.mesh], domains: [a], may: [charge, peek]}
- {name: b, certificates: ['spiffe://mesh/ns/b/*', 'spiffe://mesh/ns/a/sa/bridge'], domains: [b], may: [charge, peek]}
";

/// The same names in every run.
struct Dice(SplitMix);

impl Dice {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next() >> 16).unwrap() % end
    }

    fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// A name of an entry, or one that is nearly that.
    fn name(&mut self) -> String {
        const NAMES: [&str; 9] = [
            "spiffe://mesh/ns/a/sa/web",
            "spiffe://mesh/ns/a",
            "spiffe://mesh/ns/b/x",
            "spiffe://mesh/ns/a/sa/bridge",
            "spiffe://mesh/ns/a/../b/x",
            "envoy.a.mesh",
            "*.a.mesh",
            "xn--envoy-0ra.a.mesh",
            "spiffe://mesh/ns/ab/sa/web",
        ];
        const PARTS: [&str; 18] = [
            "/",
            "//",
            "/..",
            "/.",
            "%2f",
            "%00",
            "\0",
            "*",
            ".",
            "?",
            "#",
            "@",
            ":",
            "A",
            "a",
            "\\",
            " ",
            "spiffe://mesh/ns/a/",
        ];
        let mut name = self.of(&NAMES).to_owned();
        for _ in 0..self.below(3) {
            let at = self.below(name.len() + 1);
            match self.below(4) {
                0 => name.insert_str(at, self.of(&PARTS)),
                1 => name.truncate(at.max(1)),
                2 if at < name.len() => {
                    let letter = name.remove(at);
                    name.insert(
                        at,
                        if letter.is_ascii_lowercase() {
                            letter.to_ascii_uppercase()
                        } else {
                            letter.to_ascii_lowercase()
                        },
                    );
                }
                _ => name.push_str(self.of(&PARTS)),
            }
        }
        name
    }

    /// The names of a certificate, each of some kind.
    fn names(&mut self) -> Vec<SanType> {
        let count = if self.below(50) == 0 { 100 + self.below(2_000) } else { self.below(4) };
        (0..count).map(|_| self.san()).collect()
    }

    fn san(&mut self) -> SanType {
        let name = self.name();
        let text = || name.as_str().try_into().expect("ASCII");
        match self.below(8) {
            0 => SanType::Rfc822Name(text()),
            1 => SanType::OtherName((vec![1, 3, 6, 1, 4, 1, 311, 20, 2, 3], name.as_str().into())),
            2 => SanType::IpAddress([10, 0, 0, 1].into()),
            3 | 4 => SanType::DnsName(text()),
            _ => SanType::URI(text()),
        }
    }
}

/// What a name gives by the entries of [`BY_CERTIFICATE`], written for these entries alone.
fn owner(name: &SanType) -> Option<&'static str> {
    match name {
        SanType::DnsName(name) => name.as_str().eq_ignore_ascii_case("envoy.a.mesh").then_some("a"),
        SanType::URI(uri) if uri.as_str() == "spiffe://mesh/ns/a/sa/bridge" => Some("b"),
        SanType::URI(uri) => {
            let (of, below) = uri.as_str().strip_prefix("spiffe://mesh/ns/")?.split_once('/')?;
            let is_plain = |c: char| c.is_ascii_alphanumeric() || ".@:".contains(c);
            let is_below = below.split('/').all(|part| !["", ".", ".."].contains(&part) && part.chars().all(is_plain));
            ["a", "b"].into_iter().find(|name| *name == of && is_below)
        }
        _ => None,
    }
}

/// The only caller that these names may be. None if they are of several, or too many.
fn owner_of(names: &[SanType]) -> Option<&'static str> {
    let owners: Vec<_> = names.iter().filter_map(owner).collect();
    let first = *owners.first()?;
    (names.len() < 64 && owners.iter().all(|owner| *owner == first)).then_some(first)
}

#[test]
fn ten_thousand_hostile_certificates_are_nobody_beyond_their_entry() {
    let callers: Callers = weir_policies::parse_callers("c.yaml", BY_CERTIFICATE, None).unwrap();
    let (authority, key, mut dice) = (Authority::new("ours"), KeyPair::generate().unwrap(), Dice(SplitMix(7)));
    let (mut known, mut refused) = (0, 0);
    for _ in 0..10_000 {
        let names = dice.names();
        let certificate: CertificateDer<'static> = authority.certificate_with(names.clone(), &key);
        let read = names_of(&certificate);
        let found = read.as_deref().and_then(|read| callers.find(read, "grpc").ok()).map(|caller| &*caller.name);
        if names.len() >= 100 {
            // Names that are no DNS names are not counted, so a few such certificates are read.
            assert!(found.is_none() || names.iter().filter_map(owner).any(|owner| Some(owner) == found), "{names:?}");
            continue;
        }
        assert_eq!(found, owner_of(&names), "{names:?} is read as {read:?}");
        if found.is_some() { known += 1 } else { refused += 1 }
    }
    assert!(known > 500 && refused > 5_000, "{known} known, {refused} refused");
}

/// A weir with callers by the names of certificates, by TLS. The directories are its files.
fn secured(authority: &Authority) -> ((TempDir, PolicyDirectory), Weir) {
    let (directory, policies) = (TempDir::new().unwrap(), policies());
    let callers = written(&directory, BY_CERTIFICATE);
    let own = authority.server("grpc", &["localhost", "127.0.0.1"]);
    let all = [
        format!("listen.tls.cert_file={}", own.certificate.display()),
        format!("listen.tls.key_file={}", own.key.display()),
        format!("listen.tls.client_ca_file={}", authority.file().display()),
        format!("callers.file={}", callers.display()),
    ];
    let arguments: Vec<String> = all.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect();
    let weir = Weir::start(&policies.path(), &arguments);
    ((directory, policies), weir)
}

fn policies() -> PolicyDirectory {
    let domain = |name: &str| {
        let policy = format!(
            "domain: {name}\ndescriptors:\n- {{key: user, rate_limit: {{unit: year, requests_per_unit: 3}}}}\n"
        );
        (format!("{name}.yaml"), policy)
    };
    PolicyDirectory::with_files(&[domain("a"), domain("b")])
}

fn written(directory: &TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("callers.yaml");
    fs::write(&path, format!("{text}\n")).unwrap();
    path
}

/// Asks with this certificate for a look. The error is that of the connection or of the answer.
fn looks(weir: &Weir, authority: &Authority, issued: &Issued, domain: &str) -> Result<(), Option<Status>> {
    runtime().block_on(async {
        let connector = Connector::new(Address::Tls(weir.grpc, config(authority, Some(issued)).into()));
        let channel = connector.channel().await.map_err(|_| None)?;
        ask(channel, rls::look(domain, &[("user", "ann")])).await.map(drop).map_err(Some)
    })
}

#[test]
fn certificates_by_tls_have_the_rights_of_their_entry_and_hostile_ones_none() {
    let authority = Authority::new("ours");
    let (_files, weir) = secured(&authority);
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let dns = |text: &str| SanType::DnsName(text.try_into().unwrap());
    for (file, names, expected) in [
        ("a", vec![uri("spiffe://mesh/ns/a/sa/web")], Ok("a")),
        ("dns", vec![dns("Envoy.A.mesh")], Ok("a")),
        ("twice", vec![uri("spiffe://mesh/ns/a/sa/web"), uri("spiffe://mesh/ns/a/sa/web")], Ok("a")),
        ("both", vec![uri("spiffe://mesh/ns/a/sa/web"), dns("envoy.a.mesh")], Ok("a")),
        ("exact", vec![uri("spiffe://mesh/ns/a/sa/bridge")], Ok("b")),
        (
            "several",
            vec![uri("spiffe://mesh/ns/a/x"), uri("spiffe://mesh/ns/b/x")],
            Err("the names of this certificate are those of different callers"),
        ),
        (
            "many",
            (0..2_000).map(|n| uri(&format!("spiffe://mesh/ns/a/{n}"))).collect(),
            Err("this certificate has more names than a caller may have"),
        ),
        (
            "none",
            vec![],
            Err("no caller of callers.file has this listener, and no certificate with a DNS name or a URI"),
        ),
        ("wildcard", vec![dns("*.a.mesh")], Err("no caller of callers.file has a name of this certificate")),
    ] {
        let issued = authority.client_with(file, names);
        for domain in ["a", "b"] {
            let answer = looks(&weir, &authority, &issued, domain);
            match (expected, answer) {
                (Ok(own), Ok(())) => assert_eq!(own, domain, "{file}"),
                (Ok(own), Err(Some(status))) => {
                    assert_ne!(own, domain, "{file}: {status}");
                    assert_eq!(
                        status.message(),
                        format!("the caller {own} has no rights in this domain (nothing was charged)")
                    );
                }
                (Err(reason), Err(Some(status))) => {
                    assert_eq!(status.code(), Code::PermissionDenied);
                    assert!(status.message().starts_with(reason), "{file}: {status}");
                }
                (_, answer) => panic!("{file} {domain}: {answer:?}"),
            }
        }
    }
    let (mut dice, mut known) = (Dice(SplitMix(11)), 0);
    for number in 0..200 {
        let names = dice.names();
        let issued = authority.client_with(&format!("hostile{number}"), names.clone());
        for domain in ["a", "b"] {
            if looks(&weir, &authority, &issued, domain).is_ok() {
                known += 1;
                assert!(names.iter().filter_map(owner).any(|owner| owner == domain), "{domain}: {names:?}");
            }
        }
    }
    assert!(known > 5, "{known} known");
    let refused = |line: &LogLine| line.message() == Some("refused requests that their caller may not send");
    assert!(weir.wait_for_log(0, PATIENCE, refused), "{}", weir.written());
    // One line for each first name and reason in ten seconds: the requests of one certificate share it.
    assert!(weir.count_in_log(refused) <= 200 + 9, "{}", weir.written());
    let names = |line: &LogLine| refused(line) && line.raw().contains("spiffe://mesh/ns/a/sa/web");
    assert!(weir.count_in_log(names) > 0, "{}", weir.written());
}

#[test]
fn an_envoy_with_a_certificate_charges_its_domain_and_no_other() {
    let authority = Authority::new("ours");
    let (_files, weir) = secured(&authority);
    let issued = authority.client_named("envoy", &[], &["spiffe://mesh/ns/a/sa/envoy"]);
    let statuses = |envoy: &Envoy| {
        let get = || http::request(envoy.ingress, "GET", "/", &[("x-user", "ann")], "").expect("an answer").status;
        [get(), get(), get(), get()]
    };
    let own = Envoy::start_secured(weir.grpc, &authority.file(), &issued, "a");
    assert_eq!(statuses(&own), [200, 200, 200, 429]);
    // With failure_mode_deny Envoy answers 500 after PERMISSION_DENIED. Without, the request would pass.
    let other = Envoy::start_secured(weir.grpc, &authority.file(), &issued, "b");
    assert_eq!(statuses(&other), [500; 4]);
    let hits = |domain: &str| served::metric(weir.http, &format!("weir_hits_total{{domain=\"{domain}\"}}"));
    assert_eq!((hits("a"), hits("b")), (Some(4), Some(0)));
    let refused = served::metric(weir.http, "weir_caller_requests_total{caller=\"a\",result=\"domain\"}");
    assert_eq!(refused, Some(4));
}

#[test]
fn a_server_with_wrong_callers_does_not_start() {
    let (directory, policies) = (TempDir::new().unwrap(), policies());
    for (text, expected) in [
        (BY_CERTIFICATE, ":2:28: certificates need listen.tls.client_ca_file: without it clients show none"),
        (
            "callers: [{name: a, listeners: [gprc], domains: [a], may: [peek]}]",
            ":1:33: no listener \"gprc\", did you mean \"grpc\"?",
        ),
        (
            "callers: [{name: a, listners: [grpc], domains: [a], may: [peek]}]",
            ":1:21: unknown key \"listners\" in a caller, did you mean \"listeners\"?",
        ),
    ] {
        let file = written(&directory, text);
        let arguments = ["--set".to_owned(), format!("callers.file={}", file.display())];
        let (status, written) = Process::spawn(serve(&policies.path(), &arguments)).finish();
        assert_eq!(status.code(), Some(1), "{written}");
        assert!(written.contains(&format!("{}{expected}", file.display())), "{written}");
    }
    let arguments = ["--set".to_owned(), "callers.file=/nowhere/callers.yaml".to_owned()];
    let (status, written) = Process::spawn(serve(&policies.path(), &arguments)).finish();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(written.contains("/nowhere/callers.yaml"), "{written}");
}
