//! A real Envoy on loopback that asks weir before every request. Its configuration is one of
//! tests/data/envoy; its ports are free ones that it takes itself.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::authority::Issued;
use super::process::end;
use super::wait::{PATIENCE, until, within};
use super::{http, python};

/// The listener that clients use, as the configuration names it.
const INGRESS: &str = "ingress";

/// Asks weir before every request, and nothing more.
const ASKING: &str = include_str!("../data/envoy/envoy.yaml");
/// Holds each request until its turn, too, and logs each.
const HOLDING: &str = include_str!("../data/envoy/holding.yaml");
/// Asks weir by TLS about the rules of each route.
const GATEWAY: &str = include_str!("../data/envoy/gateway.yaml");

/// Holds tokens before each request, and settles after it.
const HOLDS: &str = include_str!("../../deploy/holds/envoy.yaml");

/// Asks several replicas of weir and checks their health.
const REPLICAS: &str = include_str!("../data/envoy/replicas.yaml");

/// Takes a permit from one of several replicas for each request, and gives it back when the stream ends.
const PERMITS: &str = include_str!("../data/envoy/permits.yaml");

/// Where the access log is, in the directory.
const ACCESS_LOG: &str = "access.log";
/// Where the address of Envoy's admin is, in the directory.
const ADMIN: &str = "admin";
/// How often Envoy writes its access log out, in milliseconds.
const LOG_FLUSH_MS: &str = "20";

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    directory: TempDir,
    /// Where clients send their requests.
    pub ingress: SocketAddr,
}

/// One weir as Envoy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// It passed the last health check.
    pub is_healthy: bool,
    /// The decisions that Envoy has asked it for.
    pub requests: u64,
}

fn with_transport(transport_socket: &str) -> String {
    let cluster = "    - name: weir\n      type: STATIC\n";
    let indented: String = transport_socket.lines().map(|line| format!("      {line}\n")).collect();
    let configured = ASKING.replace(cluster, &format!("{cluster}{indented}"));
    assert_ne!(configured, ASKING);
    configured
}

impl Envoy {
    /// Starts one that asks the weir at this address.
    pub fn start(weir: SocketAddr) -> Envoy {
        Envoy::with(ASKING, weir)
    }

    /// Starts one whose rate limit filter has these lines in place of `failure_mode_deny: true`.
    pub fn start_with_options(weir: SocketAddr, options: &[&str]) -> Envoy {
        let lines = options.join("\n                      ");
        Envoy::with(&ASKING.replace("failure_mode_deny: true", &lines), weir)
    }

    /// Starts one whose cluster of weir has this name, which Envoy sends as `:authority`.
    pub fn start_with_cluster(weir: SocketAddr, name: &str) -> Envoy {
        let named = ASKING
            .replace("cluster_name: weir", &format!("cluster_name: {name:?}"))
            .replace("name: weir\n", &format!("name: {name:?}\n"));
        Envoy::with(&named, weir)
    }

    /// Starts one that asks the weir at this address by TLS, with this certificate, about the limits of a domain.
    pub fn start_secured(weir: SocketAddr, authority: &Path, client: &Issued, domain: &str) -> Envoy {
        let tls = format!(
            "transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context:
      tls_certificates:
        - certificate_chain: {{filename: {:?}}}
          private_key: {{filename: {:?}}}
      validation_context:
        trusted_ca: {{filename: {:?}}}",
            client.certificate, client.key, authority
        );
        Envoy::with(&with_transport(&tls).replace("domain: shop", &format!("domain: {domain}")), weir)
    }

    /// Starts one with this `transport_socket` of its cluster of weir.
    pub fn start_with_transport(weir: SocketAddr, transport_socket: &str) -> Envoy {
        Envoy::with(&with_transport(transport_socket), weir)
    }

    /// Starts one that asks the weir at this address, and then holds each request until its turn.
    pub fn start_holding(weir: SocketAddr) -> Envoy {
        Envoy::with(HOLDING, weir)
    }

    /// Starts one as Envoy Gateway sets it up, with the certificates of this directory.
    pub fn start_for_gateway(weir: SocketAddr, certificates: &Path) -> Envoy {
        Envoy::with(&GATEWAY.replace("{{certificates}}", &certificates.to_string_lossy()), weir)
    }

    /// Starts the gateway of deploy/holds, with an estimate of so many tokens, in front of these replicas and this model.
    pub fn start_with_holds(weirs: &[SocketAddr], model: SocketAddr, estimate: u64) -> Envoy {
        Envoy::start_with_holds_of(weirs, model, estimate, |gateway| gateway)
    }

    /// The same with a changed configuration.
    pub fn start_with_holds_of(
        weirs: &[SocketAddr],
        model: SocketAddr,
        estimate: u64,
        change: impl Fn(String) -> String,
    ) -> Envoy {
        Envoy::with(&change(holds(weirs, model, estimate)), weirs[0])
    }

    /// The same with a second filter on the route. It differs from the first one in its name and in these texts.
    pub fn start_with_two_holds(weir: SocketAddr, model: SocketAddr, estimate: u64, other: &[(&str, &str)]) -> Envoy {
        let with_one = holds(&[weir], model, estimate);
        // Between these lines is what one filter has on the route, and what it is.
        let part = |from: &str, to: &str| {
            let (_, rest) = with_one.split_once(from).expect(from);
            let (part, _) = rest.split_once(to).expect(to);
            format!("{from}{part}")
        };
        let on_route =
            part("                            envoy.filters.http.ratelimit:\n", "                # Marks the answers");
        let filter =
            part("                  - name: envoy.filters.http.ratelimit\n", "                  # Chooses the tokens");
        let second = |text: &str| {
            let named = text.replace("envoy.filters.http.ratelimit:\n", "team:\n");
            let named = named.replace("- name: envoy.filters.http.ratelimit\n", "- name: team\n");
            let named = named.replace("&user", "&user_team").replace("*user", "*user_team");
            other.iter().fold(named, |text, (old, new)| text.replace(old, new))
        };
        let both = with_one.replacen(&on_route, &format!("{on_route}{}", second(&on_route)), 1);
        Envoy::with(&both.replacen(&filter, &format!("{filter}{}", second(&filter)), 1), weir)
    }

    /// Starts one that asks these replicas in turn, as long as they are healthy.
    pub fn start_with_replicas(weirs: &[SocketAddr]) -> Envoy {
        let endpoints: Vec<Value> = weirs.iter().map(endpoint).collect();
        Envoy::with(&REPLICAS.replace("{{weirs}}", &Value::from(endpoints).to_string()), weirs[0])
    }

    /// Kills it, so that its streams end without a word.
    pub fn kill(&self) {
        let status = Command::new("kill").args(["-KILL", &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot kill envoy");
    }

    /// Starts one that takes permits from these replicas, for requests to an upstream at this address of loopback.
    pub fn start_with_permits(weirs: &[SocketAddr], upstream: SocketAddr) -> Envoy {
        let endpoints: Vec<Value> = weirs.iter().map(endpoint).collect();
        let with_weirs = PERMITS.replace("{{weirs}}", &Value::from(endpoints).to_string());
        Envoy::with(&with_weirs.replace("{{upstream_port}}", &upstream.port().to_string()), weirs[0])
    }

    /// How Envoy sees the weir at this address.
    pub fn replica(&self, weir: SocketAddr) -> Replica {
        let clusters = self.admin("/clusters?format=json");
        let clusters: Value = serde_json::from_str(&clusters).expect("an answer in JSON");
        let named = |list: &Value, name: &str| {
            let found = list.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == name));
            found.unwrap_or_else(|| panic!("no {name} in {list}")).clone()
        };
        let hosts = &named(&clusters["cluster_statuses"], "weir")["host_statuses"];
        let host = hosts.as_array().and_then(|hosts| {
            hosts.iter().find(|host| socket_address(&host["address"]["socket_address"]) == Some(weir))
        });
        let host = host.unwrap_or_else(|| panic!("no {weir} in {hosts}"));
        let requests = named(&host["stats"], "rq_total")["value"].as_str().and_then(|text| text.parse().ok());
        Replica {
            is_healthy: host["health_status"]["failed_active_health_check"] != true,
            // Envoy leaves out a count of 0.
            requests: requests.unwrap_or_default(),
        }
    }

    /// What its rate limit filter has counted for the upstream: `ok`, `over_limit` or `error`. Envoy has no line for a
    /// count of 0.
    pub fn counted(&self, what: &str) -> u64 {
        let name = format!("cluster.upstream.ratelimit.{what}: ");
        let stats = self.admin("/stats");
        let value = stats.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().expect("a number"))
    }

    fn admin(&self, path: &str) -> String {
        let admin = std::fs::read_to_string(self.directory.path().join(ADMIN)).expect("the address of the admin");
        let answer = http::get(admin.parse().expect("an address"), path).expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    fn with(template: &str, weir: SocketAddr) -> Envoy {
        let directory = TempDir::new().expect("a temporary directory");
        let config = directory.path().join("envoy.yaml");
        std::fs::write(&config, configuration(template, weir, directory.path())).expect("the configuration");
        let log = File::create(directory.path().join("log")).expect("a file for the log");
        let admin = directory.path().join(ADMIN);

        let binary = python::venv().join("bin/envoy");
        let mut command = Command::new(&binary);
        command
            .arg("--config-path")
            .arg(&config)
            .arg("--admin-address-path")
            .arg(&admin)
            .args(["--concurrency", "1", "--log-level", "warning", "--file-flush-interval-msec", LOG_FLUSH_MS])
            // Several may run at once: they share nothing.
            .arg("--disable-hot-restart")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", binary.display()));
        let mut envoy = Envoy { child, directory, ingress: SocketAddr::from(([127, 0, 0, 1], 0)) };
        match within(PATIENCE, || ingress_address(&admin)) {
            Some(address) => envoy.ingress = address,
            None => panic!("envoy did not open its listener"),
        }
        envoy
    }

    /// Waits for so many lines of the access log, and returns them.
    pub fn access_log(&self, lines: usize) -> Vec<Value> {
        let path = self.directory.path().join(ACCESS_LOG);
        until("the access log", PATIENCE, || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // A line that is not complete yet has no end.
            let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let read: Vec<Value> = complete.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
            (read.len() >= lines).then_some(read)
        })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            eprintln!("envoy wrote:\n{}", self.log());
        }
    }
}

/// The gateway of deploy/holds at free ports, with an estimate of so many tokens, in front of these replicas and this model.
fn holds(weirs: &[SocketAddr], model: SocketAddr, estimate: u64) -> String {
    let endpoints: Vec<Value> = weirs.iter().map(endpoint).collect();
    let (head, of_weir) = HOLDS.split_once("    - name: weir\n").expect("a cluster of weir");
    let (of_weir, _) = of_weir.split_once("          - lb_endpoints:").expect("its endpoints");
    let head = head
        .replace("port_value: 10002", &format!("port_value: {}", model.port()))
        .replace("port_value: 9901", "port_value: 0")
        .replace("port_value: 10000", "port_value: 0")
        .replace("LEAST, MOST = 100, 2000", &format!("LEAST, MOST = {}, {estimate}", estimate.min(100)))
        // A busy machine: the time that Envoy waits for an answer.
        .replace("timeout: 0.02s", "timeout: 2s");
    format!("{head}    - name: weir\n{of_weir}          - lb_endpoints: {}\n", Value::from(endpoints))
}

fn configuration(template: &str, weir: SocketAddr, directory: &Path) -> String {
    template
        .replace("{{weir_host}}", &weir.ip().to_string())
        .replace("{{weir_port}}", &weir.port().to_string())
        .replace("{{upstream_socket}}", &directory.join("upstream.sock").to_string_lossy())
        .replace("{{access_log}}", &directory.join(ACCESS_LOG).to_string_lossy())
}

/// Asks Envoy's admin, once that has written its own address, where the listener is.
fn ingress_address(admin_file: &Path) -> Option<SocketAddr> {
    let admin = std::fs::read_to_string(admin_file).ok()?.parse().ok()?;
    let ready = http::get(admin, "/ready").ok()?;
    if ready.status != 200 {
        return None;
    }
    let answer = http::get(admin, "/listeners?format=json").ok()?;
    let listeners: Value = serde_json::from_str(&answer.body).ok()?;
    for listener in listeners["listener_statuses"].as_array()? {
        if listener["name"] == INGRESS {
            return socket_address(&listener["local_address"]["socket_address"]);
        }
    }
    None
}

/// A socket address as Envoy writes it.
fn socket_address(address: &Value) -> Option<SocketAddr> {
    let (host, port) = (address["address"].as_str()?, address["port_value"].as_u64()?);
    format!("{host}:{port}").parse().ok()
}

/// An endpoint of a cluster.
fn endpoint(address: &SocketAddr) -> Value {
    let address = serde_json::json!({"address": address.ip().to_string(), "port_value": address.port()});
    serde_json::json!({"endpoint": {"address": {"socket_address": address}}})
}
