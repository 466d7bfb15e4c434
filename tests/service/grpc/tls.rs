//! The gRPC listener by TLS and through a Unix socket, and connections that are replaced when they are old: the real
//! binary, asked by clients that are not weir's.

use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncReadExt as _;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, HandshakeKind};
use tonic::transport::Channel;

use crate::support::authority::{Authority, Issued};
use crate::support::process::{self, LogLine, PolicyDirectory, Process, Weir, point, serve};
use crate::support::rls::{admits, ask, request};
use crate::support::secured::{Address, Connector, config, config_of, config_of_pem, handshake};
use crate::support::wait::{PATIENCE, eventually, until};
use crate::support::{http, served};

/// Every user may ask as often as a test can.
const POLICY: &str = "domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

/// How long a test asks while something changes.
const CALLS: usize = 400;

fn policies() -> PolicyDirectory {
    PolicyDirectory::with_file("shop.yaml", POLICY)
}

/// A weir whose gRPC listener has this certificate, with more settings.
fn secured(policies: &PolicyDirectory, issued: &Issued, settings: &[&str]) -> Weir {
    Weir::start(&policies.path(), &arguments(issued, settings))
}

fn arguments(issued: &Issued, settings: &[&str]) -> Vec<String> {
    let mut arguments = Vec::new();
    let files = [
        format!("listen.tls.cert_file={}", issued.certificate.display()),
        format!("listen.tls.key_file={}", issued.key.display()),
    ];
    for setting in files.into_iter().chain(settings.iter().map(|&setting| setting.to_owned())) {
        arguments.extend(["--set".to_owned(), setting]);
    }
    arguments
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn tls(address: SocketAddr, config: ClientConfig) -> Connector {
    Connector::new(Address::Tls(address, Arc::new(config)))
}

/// Connects and asks once; the error's text where either fails.
fn admitted(connector: &Connector) -> Result<bool, String> {
    runtime().block_on(async {
        let channel = connector.channel().await.map_err(|error| format!("{error:?}"))?;
        let answer = ask(channel, request("shop", &[("user", "ann")])).await;
        answer.map(|answer| admits(&answer)).map_err(|status| status.to_string())
    })
}

async fn ask_once(channel: &Channel) {
    let answer = ask(channel.clone(), request("shop", &[("user", "ann")])).await;
    assert!(admits(&answer.expect("no call fails")));
}

#[test]
fn a_client_that_trusts_the_authority_is_served_and_another_is_not() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[]);
    assert_eq!(admitted(&tls(weir.grpc, config(&authority, None))), Ok(true));
    let refused = admitted(&tls(weir.grpc, config(&other, None))).expect_err("another authority");
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    let cleartext = admitted(&Connector::new(Address::Tcp(weir.grpc)));
    assert!(cleartext.is_err(), "{cleartext:?}");
    until("the failures in the metrics", PATIENCE, || {
        let count =
            |kind: &str| served::metric(weir.http, &format!("weir_tls_handshake_errors_total{{kind=\"{kind}\"}}"));
        (count("refused") >= Some(1) && count("protocol") >= Some(1)).then_some(())
    });
}

#[test]
fn a_client_that_names_no_protocol_is_served() {
    let authority = Authority::new("ours");
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[]);
    let mut client = config(&authority, None);
    client.alpn_protocols.clear();
    assert_eq!(admitted(&tls(weir.grpc, client)), Ok(true));
    let mut client = config(&authority, None);
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert!(admitted(&tls(weir.grpc, client)).is_err());
}

#[test]
fn weir_ask_and_the_client_of_envoyproxy_ratelimit_speak_tls() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let ca_file = format!("listen.tls.client_ca_file={}", authority.file().display());
    let policies = policies();
    let weir = secured(&policies, &authority.server("grpc", &["localhost"]), &[&ca_file]);
    let at = format!("https://localhost:{}", weir.grpc.port());
    let bare = at.trim_start_matches("https://");
    let known = authority.client("client");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (cert, key) = (path(&known.certificate), path(&known.key));
    let (ours, theirs) = (path(&authority.file()), path(&other.file()));
    let identity = ["--tls-cert-file", &cert, "--tls-key-file", &key];

    let asked = |name: &str, arguments: &[&str]| {
        Command::new(process::binary()).arg0(name).args(arguments).output().expect("it runs")
    };
    let answer = |address: &str, more: &[&str]| {
        let output = asked("weir", &[&["ask", address, "shop", "user=ann"], more].concat());
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = answer(&at, &[&["--tls-ca-file", &ours], &identity[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("OK\n  user=ann   OK   "), "{text}");
    let by_address = format!("https://127.0.0.1:{}", weir.grpc.port());
    let named = [&["--tls-ca-file", &ours, "--tls-server-name", "localhost"], &identity[..]].concat();
    assert_eq!(answer(&by_address, &named).0, Some(0));

    for (address, arguments, reason) in [
        (
            &*at,
            [&["--tls-ca-file", &theirs], &identity[..]].concat(),
            "no trusted authority has signed its certificate",
        ),
        (&*at, vec!["--tls-ca-file", &ours], "if the server requires a certificate, give one with its key"),
        (&*at, vec!["--tls-ca-file", "/no/such/file"], "/no/such/file: "),
        (&*at, vec!["--tls-cert-file", &cert], "--tls-key-file <FILE>"),
        (bare, vec![], "give the address of listen.grpc, after https:// if it has TLS"),
        (bare, vec!["--tls-ca-file", &ours], &format!("--tls-* is for a server with TLS: write {at}")),
    ] {
        let (code, text) = answer(address, &arguments);
        assert_eq!(code, Some(2), "{address} {arguments:?}: {text}");
        assert!(text.contains(reason), "{address} {arguments:?}: {text}");
    }

    // Its certificate is the reason of each refusal.
    let expired = authority.client_until("expired", 1_000_000_000);
    for (issued, reason) in [
        (&expired, format!("{} has expired at 2001-09-09T01:46:40Z", path(&expired.certificate))),
        (&authority.server("other", &["localhost"]), "is not for clients: its extended key usage".to_owned()),
        (&other.client("stranger"), "its log".to_owned()),
    ] {
        let (cert, key) = (path(&issued.certificate), path(&issued.key));
        let arguments = ["--tls-ca-file", &ours, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let (code, text) = answer(&at, &arguments);
        assert!(code == Some(2) && text.contains(&reason), "{text}");
    }

    let question = ["-dial_string", bare, "-domain", "shop", "-descriptors", "user=ann", "-grpc-use-tls"];
    let files = ["-grpc-server-ca-file", &ours, "-grpc-cert-file", &cert, "-grpc-key-file", &key];
    let output = asked("ratelimit_client", &[&question[..], &files].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("response: {\"overallCode\":\"OK\""), "{output:?}");
    assert_eq!(asked("ratelimit_client", &[&question[..], &files[..4]].concat()).status.code(), Some(2));
}

#[test]
fn clients_need_a_certificate_of_the_authority_given() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let ca = format!("listen.tls.client_ca_file={}", authority.file().display());
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[&ca]);
    let known = authority.client("client");
    assert_eq!(admitted(&tls(weir.grpc, config(&authority, Some(&known)))), Ok(true));
    for stranger in [None, Some(other.client("client")), Some(authority.server("server", &["localhost"]))] {
        let answer = admitted(&tls(weir.grpc, config(&authority, stranger.as_ref())));
        assert!(answer.is_err(), "{stranger:?}: {answer:?}");
    }
    let count = |kind: &str| served::metric(weir.http, &format!("weir_tls_handshake_errors_total{{kind=\"{kind}\"}}"));
    until("the failures in the metrics", PATIENCE, || {
        // A client learns that it was refused after its own part of the handshake, and may try again.
        (count("no_certificate") >= Some(1) && count("certificate") >= Some(2)).then_some(())
    });
    for kind in ["no_certificate", "certificate"] {
        let names = |line: &LogLine| {
            let has = |name: &str, value: &str| line.field(name).is_some_and(|field| field == value);
            line.message() == Some("TLS handshake failed") && has("kind", kind) && has("peer", "127.0.0.1")
        };
        assert!(weir.wait_for_log(0, PATIENCE, names), "{}", weir.written());
        // One a core in ten seconds, however many fail.
        assert!(weir.count_in_log(names) <= 64, "{}", weir.written());
    }
}

#[test]
fn clients_need_one_of_the_names() {
    let authority = Authority::new("ours");
    let ca = format!("listen.tls.client_ca_file={}", authority.file().display());
    let names = "listen.tls.client_names=one.envoy.mesh,10.1.2.3,spiffe://mesh/envoy";
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[&ca, names]);
    let client = |file: &str, names: &[&str], uris: &[&str]| {
        let issued = authority.client_named(file, names, uris);
        admitted(&tls(weir.grpc, config(&authority, Some(&issued))))
    };
    assert_eq!(client("dns", &["one.envoy.mesh"], &[]), Ok(true));
    assert_eq!(client("wildcard", &["*.envoy.mesh"], &[]), Ok(true));
    assert_eq!(client("ip", &["10.1.2.3"], &[]), Ok(true));
    assert_eq!(client("uri", &["a"], &["spiffe://mesh/envoy"]), Ok(true));
    for (file, names, uris) in [
        ("none", &[][..], &[][..]),
        ("other-dns", &["one.envoy.mesh.evil"], &[]),
        ("other-ip", &["10.1.2.4"], &[]),
        ("other-uri", &["a"], &["spiffe://mesh/envoy/x"]),
        ("uri-as-dns", &[], &["one.envoy.mesh://"]),
    ] {
        let answer = client(file, names, uris);
        assert!(answer.is_err(), "{file}: {answer:?}");
    }
}

/// A client whose certificate is valid for a few seconds, and the last of them since 1970.
fn short_lived(authority: &Authority) -> (Issued, u64) {
    const VALID_FOR: Duration = Duration::from_secs(4);
    let end = (SystemTime::now() + VALID_FOR).duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    (authority.client_until("short-lived", end), end)
}

fn has_passed(second: u64) -> bool {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() > second
}

/// A client that connected every few seconds with its tickets was served long after its certificate had expired.
#[test]
fn a_client_cannot_resume_after_its_certificate_has_expired() {
    let authority = Authority::new("ours");
    let ca = format!("listen.tls.client_ca_file={}", authority.file().display());
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[&ca]);
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let (client, end) = short_lived(&authority);
        let resuming = tls(weir.grpc, config_of(versions, &authority, Some(&client)));
        let first = admitted(&resuming);
        assert!(first == Ok(true) || has_passed(end), "{first:?}");
        until("the client to be refused", PATIENCE, || {
            let answer = admitted(&resuming);
            assert!(answer == Ok(true) || has_passed(end), "{answer:?}");
            answer.is_err().then_some(())
        });
    }
}

#[test]
fn no_session_is_resumed_where_clients_need_a_certificate() {
    let authority = Authority::new("ours");
    let (ours, client) = (authority.server("grpc", &["localhost"]), authority.client("client"));
    let ca = format!("listen.tls.client_ca_file={}", authority.file().display());
    for (settings, identity, expected) in
        [(&[][..], None, HandshakeKind::Resumed), (&[ca.as_str()], Some(&client), HandshakeKind::Full)]
    {
        let weir = secured(&policies(), &ours, settings);
        for versions in [&[&TLS13][..], &[&TLS12]] {
            let config = config_of(versions, &authority, identity);
            assert_eq!(admitted(&tls(weir.grpc, config.clone())), Ok(true));
            let second = runtime().block_on(handshake(weir.grpc, config)).expect("a handshake");
            assert_eq!(second.get_ref().1.handshake_kind(), Some(expected), "{versions:?}");
        }
    }
}

/// A connection stayed open for as long as its client liked.
#[test]
fn a_connection_ends_when_the_certificate_of_its_client_expires() {
    let authority = Authority::new("ours");
    let ca = format!("listen.tls.client_ca_file={}", authority.file().display());
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[&ca]);
    let (client, end) = short_lived(&authority);
    runtime().block_on(async {
        let lasting = tls(weir.grpc, config(&authority, Some(&authority.client("lasting"))));
        let other = lasting.channel().await.expect("a connection");
        let mut stream = handshake(weir.grpc, config(&authority, Some(&client))).await.expect("a handshake");
        let opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        tokio::io::AsyncWriteExt::write_all(&mut stream, opening).await.expect("an open connection");
        let mut read = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await;
        assert!(closed.is_ok(), "the connection is still open");
        assert!(has_passed(end), "closed before its certificate expired");
        // The type of a GOAWAY frame, and of its connection the largest stream and NO_ERROR.
        let goaway = b"\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0";
        assert!(read.windows(goaway.len()).any(|part| part == goaway), "{read:x?}");
        ask_once(&other).await;
        assert_eq!(lasting.count(), 1, "the connection of another client stays");
    });
}

/// Has `directory/tls` point to a new directory with this certificate, as Kubernetes mounts a secret.
fn mount(directory: &Path, name: &str, certificate: &Path, key: &Path) {
    let next = directory.join(name);
    fs::create_dir(&next).expect("a new directory");
    fs::copy(certificate, next.join("tls.crt")).expect("a copy");
    fs::copy(key, next.join("tls.key")).expect("a copy");
    point(&directory.join("tls"), Path::new(name));
}

#[test]
fn a_certificate_is_replaced_under_load_without_a_failed_call() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let directory = tempfile::tempdir().unwrap();
    let first = old.server("grpc", &["localhost"]);
    mount(directory.path(), "first", &first.certificate, &first.key);
    let mounted =
        Issued { certificate: directory.path().join("tls/tls.crt"), key: directory.path().join("tls/tls.key") };
    let weir = secured(&policies(), &mounted, &[]);
    let (is_over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let connector = tls(weir.grpc, config(&old, None));
    let caller = std::thread::spawn({
        let (is_over, calls, connector) = (is_over.clone(), calls.clone(), connector.clone());
        move || {
            runtime().block_on(async {
                let channel = connector.channel().await.expect("a connection");
                while !is_over.load(Ordering::SeqCst) {
                    ask_once(&channel).await;
                    calls.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let called = |more: usize| {
        let before = calls.load(Ordering::SeqCst);
        until("calls", PATIENCE, || (calls.load(Ordering::SeqCst) >= before + more).then_some(()));
    };
    called(20);
    let second = new.server("grpc", &["localhost"]);
    // A key that is not the certificate's: the old pair stays.
    mount(directory.path(), "torn", &second.certificate, &first.key);
    until("the torn pair to be refused", PATIENCE, || {
        (served::metric(weir.http, "weir_tls_reloads_total{result=\"refused\"}") == Some(1)).then_some(())
    });
    let is_refused = || served::metric(weir.http, "weir_input_refused{input=\"certificate\"}");
    until("the gauge", PATIENCE, || (is_refused() == Some(1)).then_some(()));
    assert_eq!(admitted(&tls(weir.grpc, config(&old, None))), Ok(true));
    let line = |line: &crate::support::process::LogLine| {
        line.message() == Some("certificate refused, the last good one stays in use")
            && line.raw().contains("is not the key of")
    };
    assert!(weir.wait_for_log(0, PATIENCE, line));
    mount(directory.path(), "second", &second.certificate, &second.key);
    until("the new certificate", PATIENCE, || {
        (admitted(&tls(weir.grpc, config(&new, None))) == Ok(true)).then_some(())
    });
    assert!(admitted(&tls(weir.grpc, config(&old, None))).is_err(), "the old certificate is gone");
    until("the gauge to fall", PATIENCE, || (is_refused() == Some(0)).then_some(()));
    called(20);
    is_over.store(true, Ordering::SeqCst);
    caller.join().expect("no call fails");
    assert_eq!(connector.count(), 1, "the open connection stays");
}

/// The line named neither the listener nor the certificate nor the names that it needs.
#[test]
fn a_failed_handshake_names_its_listener_and_the_refused_certificate() {
    let authority = Authority::new("ours");
    let settings = [
        format!("listen.tls.client_ca_file={}", authority.file().display()),
        "listen.tls.client_names=envoy.mesh,spiffe://mesh/ns/edge".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut arguments = arguments(&authority.server("grpc", &["localhost"]), &settings);
    arguments.extend(["--grpc", "grpc=127.0.0.1:0,mesh=127.0.0.1:0"].map(str::to_owned));
    let weir = Weir::start(&policies().path(), &arguments);
    let mesh = Cell::new(None);
    let listening = |line: &LogLine| {
        let is_it = line.message() == Some("listening") && line.field("listener").is_some_and(|name| name == "mesh");
        let address = line.field("address").and_then(|address| address.as_str()?.parse::<SocketAddr>().ok());
        mesh.set(mesh.get().or(address.filter(|_| is_it)));
        is_it
    };
    assert!(weir.wait_for_log(0, PATIENCE, listening));
    let mesh = mesh.get().expect("an address");
    let other = authority.client_named("other", &["envoy.other"], &["spiffe://mesh/ns/other"]);
    let expired = authority.client_until("expired", 1_009_843_200);
    for (client, kind, error, names) in [
        (
            other,
            "name",
            "the certificate has no name of listen.tls.client_names: envoy.mesh, spiffe://mesh/ns/edge",
            Some("envoy.other, spiffe://mesh/ns/other"),
        ),
        (expired, "certificate", "the certificate has expired: it was valid until 2002-01-01T00:00:00Z", None),
    ] {
        assert!(admitted(&tls(mesh, config(&authority, Some(&client)))).is_err());
        let is_it = |line: &LogLine| {
            let field = |name: &str| line.field(name).and_then(|value| value.as_str());
            line.message() == Some("TLS handshake failed")
                && [field("listener"), field("kind"), field("error")] == [Some("mesh"), Some(kind), Some(error)]
                && field("names") == names
        };
        assert!(weir.wait_for_log(0, PATIENCE, is_it), "{}", weir.written());
    }
}

#[test]
fn a_certificate_that_has_expired_is_logged_at_the_start_and_at_a_rotation() {
    const NAME: &str = "weir_certificate_not_after_timestamp_seconds";
    let authority = Authority::new("ours");
    let issued = authority.expired_server("grpc", &["localhost"]);
    let clients = format!("listen.tls.client_ca_file={}", authority.file().display());
    let weir = secured(&policies(), &issued, &[&clients]);
    let not_after =
        |of: &str| served::metric(weir.http, &format!("{NAME}{{certificate=\"{of}\",use=\"grpc\"}}")).unwrap();
    let expired = |line: &crate::support::process::LogLine| {
        line.message() == Some("the certificate has expired") && line.raw().contains("2002-01-01T00:00:00Z")
    };
    assert!(weir.wait_for_log(0, PATIENCE, expired), "{}", weir.written());
    assert_eq!(not_after("own"), 1_009_843_200);
    assert!(not_after("authority") > 2_000_000_000);
    assert_eq!(not_after("peer"), 0, "a listener dials nobody");

    let replace = |by: &Issued| {
        fs::rename(&by.certificate, &issued.certificate).unwrap();
        fs::rename(&by.key, &issued.key).unwrap();
    };
    replace(&authority.server("good", &["localhost"]));
    until("the good certificate", PATIENCE, || (not_after("own") > 2_000_000_000).then_some(()));
    replace(&authority.expired_server("bad", &["localhost"]));
    assert!(weir.wait_for_log(1, PATIENCE, expired), "{}", weir.written());
    assert_eq!(not_after("own"), 1_009_843_200);
}

#[test]
fn sighup_puts_replaced_files_in_force_and_ends_nothing() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let issued = old.server("grpc", &["localhost"]);
    let weir = secured(&policies(), &issued, &[]);
    let runtime = runtime();
    let connector = tls(weir.grpc, config(&old, None));
    let channel = runtime.block_on(connector.channel()).expect("a connection");
    runtime.block_on(ask_once(&channel));
    let second = new.server("second", &["localhost"]);
    fs::rename(&second.certificate, &issued.certificate).unwrap();
    fs::rename(&second.key, &issued.key).unwrap();
    weir.signal("HUP");
    let reloading = |line: &crate::support::process::LogLine| {
        line.message() == Some("reloading policies, certificates and the log file")
    };
    assert!(weir.wait_for_log(0, PATIENCE, reloading));
    until("the new certificate", PATIENCE, || {
        (admitted(&tls(weir.grpc, config(&new, None))) == Ok(true)).then_some(())
    });
    runtime.block_on(ask_once(&channel));
    assert_eq!(connector.count(), 1, "the open connection stays");
}

/// What weir prints when it cannot start with these files.
fn refusal(certificate: &Path, key: &Path, settings: &[&str]) -> String {
    let issued = Issued { certificate: certificate.to_owned(), key: key.to_owned() };
    let policies = policies();
    let arguments = arguments(&issued, settings);
    let (status, written) = Process::spawn(serve(&policies.path(), &arguments)).finish();
    assert_eq!(status.code(), Some(1), "{written}");
    written
}

#[test]
fn weir_does_not_start_with_files_that_cannot_be_used() {
    let authority = Authority::new("ours");
    let (one, two) = (authority.server("one", &["localhost"]), authority.server("two", &["localhost"]));
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.pem");
    let empty = directory.path().join("empty.pem");
    fs::write(&empty, "no PEM").unwrap();
    for (certificate, key, settings, wanted) in [
        (&missing, &one.key, None, "missing.pem: cannot be opened"),
        (&one.certificate, &missing, None, "missing.pem: cannot be opened"),
        (&one.certificate, &two.key, None, "two.key: is not the key of"),
        (&empty, &one.key, None, "empty.pem: contains no certificate in PEM"),
        (&one.certificate, &one.certificate, None, "one.pem: contains no unencrypted private key"),
        (&one.certificate, &one.key, Some(&empty), "empty.pem: contains no certificate in PEM"),
    ] {
        let ca = settings.map(|ca| format!("listen.tls.client_ca_file={}", ca.display()));
        let settings: Vec<&str> = ca.iter().map(String::as_str).collect();
        let written = refusal(certificate, key, &settings);
        assert!(written.contains(wanted), "{wanted}\n{written}");
        assert!(!written.contains("PRIVATE KEY"), "{written}");
    }
}

/// RSA keys of 2048 bits as PKCS#1 and as PKCS#8, and an elliptic one as SEC1.
#[test]
fn every_form_of_key_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &str| {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(words.split_whitespace()).current_dir(&directory).output().expect("openssl runs");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("genrsa -traditional -out pkcs1.key 2048");
    run("pkcs8 -topk8 -nocrypt -in pkcs1.key -out pkcs8.key");
    run("ecparam -name prime256v1 -genkey -noout -out sec1.key");
    let own = "-subj /CN=test -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE";
    for (key, first_line) in [
        ("pkcs1.key", "-----BEGIN RSA PRIVATE KEY-----"),
        ("pkcs8.key", "-----BEGIN PRIVATE KEY-----"),
        ("sec1.key", "-----BEGIN EC PRIVATE KEY-----"),
    ] {
        let certificate = format!("{key}.pem");
        run(&format!("req -x509 -new -key {key} -out {certificate} -days 2 {own}"));
        let path = |name: &str| -> PathBuf { directory.path().join(name) };
        assert!(fs::read_to_string(path(key)).unwrap().starts_with(first_line));
        let issued = Issued { certificate: path(&certificate), key: path(key) };
        let weir = secured(&policies(), &issued, &[]);
        let trusted = config_of_pem(&fs::read(&issued.certificate).unwrap(), None);
        let accepted = runtime().block_on(async { handshake(weir.grpc, trusted).await.map(drop) });
        accepted.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

#[test]
fn old_connections_are_replaced_without_a_failed_call() {
    let authority = Authority::new("ours");
    let issued = authority.server("grpc", &["localhost"]);
    let weir =
        secured(&policies(), &issued, &["listen.max_connection_age=100ms", "listen.max_connection_age_grace=10s"]);
    let connector = tls(weir.grpc, config(&authority, None));
    runtime().block_on(async {
        let channel = connector.channel().await.expect("a connection");
        let (mut calls, mut unsent) = (0, 0);
        while connector.count() < 4 || calls < CALLS {
            match ask(channel.clone(), request("shop", &[("user", "ann")])).await {
                Ok(answer) => assert!(admits(&answer)),
                Err(status) if never_sent(&status) => unsent += 1,
                Err(status) => panic!("no call fails: {status:?}"),
            }
            calls += 1;
        }
        // One for each connection that closed, at most: the client asks one at a time.
        assert!(unsent < connector.count(), "{unsent} calls were never sent on {} connections", connector.count());
    });
}

/// Whether the client gave the call up before it wrote a byte of it, since the connection closed
/// meanwhile. Clients of gRPC send such a call again by themselves; tonic's does not.
fn never_sent(status: &tonic::Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        source = error.source();
    }
    false
}

#[test]
fn a_connection_with_an_endless_request_is_closed_after_the_grace() {
    let policies = policies();
    let settings = ["--set", "listen.max_connection_age=50ms", "--set", "listen.max_connection_age_grace=50ms"];
    let weir = Weir::start(&policies.path(), &settings);
    runtime().block_on(async {
        let mut stream = tokio::net::TcpStream::connect(weir.grpc).await.unwrap();
        // A preface, SETTINGS, and the headers of a request whose body never ends: POST, http, a path.
        let head = b"\x83\x86\x44\x01/";
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        bytes.extend([0, 0, u8::try_from(head.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
        bytes.extend(head);
        tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
        let mut read = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await;
        assert!(closed.is_ok(), "the connection is still open");
    });
}

#[test]
fn a_unix_socket_serves_and_goes_with_weir() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("grpc.sock");
    let address = format!("unix:{}", path.display());
    let policies = policies();
    let arguments = ["--grpc", &address, "--set", "listen.socket_mode=0600"];
    let mut killed = Process::spawn(serve(&policies.path(), &arguments));
    killed.address_text("grpc").expect("it listens");
    assert_eq!(admitted(&Connector::new(Address::Unix(path.clone()))), Ok(true));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    for spelled in [address.clone(), format!("plain:{address}")] {
        let asked =
            Command::new(process::binary()).args(["ask", &spelled, "shop", "user=ann"]).output().expect("it runs");
        assert!(asked.status.success() && asked.stdout.starts_with(b"OK\n  user=ann   OK   "), "{asked:?}");
    }

    // Another weir does not take the socket of one that runs.
    let (status, written) = Process::spawn(serve(&policies.path(), &arguments)).finish();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(written.contains("a process listens on this socket"), "{written}");
    assert_eq!(admitted(&Connector::new(Address::Unix(path.clone()))), Ok(true));

    drop(killed);
    assert!(path.exists(), "a process that is killed leaves its socket");
    let mut weir = Process::spawn(serve(&policies.path(), &arguments));
    weir.address_text("grpc").expect("the socket that was left is replaced");
    let connector = Connector::new(Address::Unix(path.clone()));
    until("an answer", PATIENCE, || (admitted(&connector) == Ok(true)).then_some(()));
    weir.terminate();
    assert!(weir.wait_for_exit().success());
    assert!(!path.exists(), "a process that ends removes its socket");
}

#[test]
fn handshakes_that_stall_keep_nobody_out() {
    const STALLED: usize = 300;
    let authority = Authority::new("ours");
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &[]);
    let stalled: Vec<TcpStream> = (0..STALLED)
        .map(|_| {
            let mut stream = TcpStream::connect(weir.grpc).expect("a connection");
            // The first bytes of a ClientHello that never ends.
            stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").expect("room for some bytes");
            stream
        })
        .collect();
    assert_eq!(admitted(&tls(weir.grpc, config(&authority, None))), Ok(true));
    runtime().block_on(async {
        eventually("the stalled handshakes to be closed", 2 * PATIENCE, async || {
            served::metric(weir.http, "weir_connections{runtime=\"0\"}").unwrap_or_default()
                + served::metric(weir.http, "weir_connections{runtime=\"1\"}").unwrap_or_default()
                == 0
        })
        .await;
    });
    drop(stalled);
    assert_eq!(http::get(weir.http, "/healthz").expect("an answer").status, 200);
}

/// The first bytes of a client that goes on no further.
fn client_hello(authority: &Authority) -> Vec<u8> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(Arc::new(config(authority, None)), name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("a ClientHello");
    hello
}

/// The answer to a ClientHello costs weir a signature and tens of kilobytes, and its peer nothing.
#[test]
fn half_open_handshakes_are_bounded_and_keep_no_client_out() {
    /// More than one address may have, in the 10 s that a handshake may take.
    const OPEN: usize = 3_000;
    const GIVEN_UP: u64 = 50;
    /// 512 handshakes that have begun, and 3,000 connections with a ClientHello that wait for a turn.
    const GROWTH_KIB_MAX: u64 = 160 * 1_024;
    let authority = Authority::new("ours");
    let weir = secured(&policies(), &authority.server("grpc", &["localhost"]), &["runtime.cores=1"]);
    let hello = client_hello(&authority);
    let given_up = |kind: &str| {
        let name = format!("weir_tls_handshake_errors_total{{kind=\"{kind}\"}}");
        served::metric(weir.http, &name).unwrap_or_default()
    };
    let (before, runtime) = (weir.memory_kib(), runtime());
    let mut flood = VecDeque::new();
    // The honest client has an address of its own, and the same as the flood.
    for source in [[127, 0, 0, 2], [127, 0, 0, 1]] {
        let before = given_up("too_many_of_peer");
        until("the oldest to be given up", 2 * PATIENCE, || {
            for _ in 0..500 {
                let mut stream = connect_from(&runtime, source.into(), weir.grpc);
                // One that weir has closed already.
                let _ = stream.write_all(&hello);
                flood.push_back(stream);
            }
            flood.drain(..flood.len().saturating_sub(OPEN));
            assert_eq!(admitted(&tls(weir.grpc, config(&authority, None))), Ok(true), "{}", weir.written());
            (given_up("too_many_of_peer") - before >= GIVEN_UP).then_some(())
        });
    }
    assert_eq!(given_up("too_many"), 0, "one address has its own bound");
    let grown = weir.memory_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "grew by {grown} KiB");
}

fn connect_from(runtime: &tokio::runtime::Runtime, address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((address, 0).into()).expect("loopback has many addresses");
        let stream = socket.connect(to).await.expect("a connection").into_std().expect("a stream");
        stream.set_nonblocking(false).expect("a stream that waits");
        stream
    })
}
