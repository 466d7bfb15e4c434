//! `weir ask`, and `ratelimit_client`: sends one request by gRPC, and prints the answer.
//!
//! Not here: parsing of arguments (args.rs, client.rs).

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tonic::transport::Endpoint;
use weir_engine::Window;
use weir_engine::descriptor::spell_pairs;
use weir_engine::words::{IN_FLIGHT, counted, printable};
use weir_lab::message::limit_of_request;
use weir_rls::proto::rate_limit_descriptor::Entry;
use weir_rls::proto::rate_limit_response::rate_limit::Unit;
use weir_rls::proto::rate_limit_response::{Code, DescriptorStatus};
use weir_rls::proto::rate_limit_service_client::RateLimitServiceClient;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use weir_rls::{detail, json, receipts};
use weir_settings::RECEIPT_KEY;
use weir_tls::causes::innermost;
use weir_tls::dial::{Dial, Trouble};
use weir_tls::{GRPC_PROTOCOLS, Tls, TlsFiles};

use super::admin::{block_on, host_and_port};

/// The most bytes that a server may send after a request.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The timeout for the connection and for the call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// The request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The server, `HOST:PORT` or `unix:/path`.
    pub address: String,
    /// The files for TLS, if the connection uses TLS.
    pub tls: Option<TlsFiles>,
    /// The domain.
    pub domain: String,
    /// The descriptors, each its entries in order.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// The hits, 0 for none: one number for all descriptors, or one for each. With a receipt, the hits that were used.
    pub hits: Vec<u32>,
    /// The limits of the request: none, one for all descriptors, or one for each.
    pub limits: Vec<(u32, Window)>,
    /// The receipt of an earlier answer, if the request settles it.
    pub receipt: Option<ReturnedReceipt>,
}

/// The entry that returns a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnedReceipt {
    /// Its key: the server's `holds.receipt_key`.
    key: String,
    /// The receipt of an earlier answer, or `none`.
    receipt: String,
}

impl FromStr for ReturnedReceipt {
    type Err = String;

    /// No receipt has a `=`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, receipt) = text.split_once('=').unwrap_or((RECEIPT_KEY, text));
        if key.is_empty() || receipt.is_empty() {
            return Err("not a receipt, or a key, = and a receipt".to_owned());
        }
        Ok(Self { key: key.to_owned(), receipt: receipt.to_owned() })
    }
}

impl Question {
    /// # Errors
    /// If there are several hits or limits, but not one for each descriptor.
    pub fn check(&self) -> Result<(), String> {
        let descriptors = self.descriptors.len();
        for (option, count) in [("--hits", self.hits.len()), ("--limit", self.limits.len())] {
            if count > 1 && count != descriptors {
                let asked = counted(descriptors, "descriptor");
                return Err(format!("{count} times {option} for {asked}: give it once for all, or once for each"));
            }
        }
        Ok(())
    }

    fn request(&self) -> RateLimitRequest {
        let receipt = self.receipt.iter().map(|returned| (&*returned.key, &*returned.receipt));
        let hits = |index| self.hits.get(index).or(self.hits.first()).copied().unwrap_or(1);
        let descriptors = self.descriptors.iter().enumerate().map(|(index, entries)| RateLimitDescriptor {
            entries: entries
                .iter()
                .map(|(key, value)| (&**key, &**value))
                .chain(receipt.clone())
                .map(|(key, value)| Entry { key: key.to_owned(), value: value.to_owned() })
                .collect(),
            // 0 hits of a request are read as 1, but those of a descriptor are not.
            hits_addend: (self.receipt.is_some() || self.hits.len() > 1 || hits(index) == 0)
                .then(|| u64::from(hits(index)).into()),
            limit: self.limits.get(index).or(self.limits.first()).copied().and_then(limit_of_request),
            ..RateLimitDescriptor::default()
        });
        let (domain, descriptors) = (self.domain.clone(), descriptors.collect());
        RateLimitRequest { domain, descriptors, hits_addend: hits(0) }
    }
}

/// How the answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A line for the request, and one for each descriptor.
    Text,
    /// The response as JSON, on one line.
    Json,
}

/// The server's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Decided {
    /// The request may pass, and a limit counts it.
    Ok,
    /// The request may not pass.
    OverLimit,
    /// The request may pass, and no limit counts it.
    NoLimit,
}

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The text is not an address.
    #[error("{0:?}: not an address such as localhost:8081")]
    Address(String),
    /// No server answers at this address.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, String),
    /// The server does not use gRPC, or the connection broke.
    #[error("{0} does not answer by gRPC: {1}")]
    NoGrpc(String, String),
    /// The server answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The answer has an unknown code.
    #[error("the answer has no code")]
    NoCode,
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The runtime of the call cannot be started.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// A gRPC listener: `HOST:PORT`, or `unix:/path` as in `listen.grpc`. TLS only after `https://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcServer {
    address: String,
    has_tls: bool,
}

impl FromStr for GrpcServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let socket = text.strip_prefix("plain:").unwrap_or(text);
        if let Some(path) = socket.strip_prefix(UNIX) {
            let has_path = !path.is_empty();
            let server = has_path.then(|| GrpcServer { address: socket.to_owned(), has_tls: false });
            return server.ok_or_else(|| "has no path: write unix:/run/weir.sock".to_owned());
        }
        let (has_tls, bare) = match text.strip_prefix("https://") {
            Some(bare) => (true, bare),
            None => (false, text.strip_prefix("http://").unwrap_or(text)),
        };
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        match host_and_port(bare) {
            Some((_, Some(_))) => Ok(GrpcServer { address: bare.to_owned(), has_tls }),
            Some((host, None)) if host.contains(':') => Err(format!("has no port: write [{host}]:8081")),
            Some((host, None)) => Err(format!("has no port: write {host}:8081")),
            None => Err("not an address such as localhost:8081 or [::1]:8081".to_owned()),
        }
    }
}

/// The files for TLS. The address must begin with `https://`.
#[derive(Args, Debug)]
pub struct TlsArguments {
    /// The authorities to trust, in PEM, in place of those of the system
    #[arg(long, value_name = "FILE")]
    tls_ca_file: Option<PathBuf>,
    /// The certificate to show to the server, in PEM, with its intermediates
    #[arg(long, value_name = "FILE", requires = "tls_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_key_file: Option<PathBuf>,
    /// The name that the server's certificate must have, in place of the host of the address
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
}

impl TlsArguments {
    /// The address of the server, and the files for TLS.
    ///
    /// # Errors
    /// If there are files but the address has no TLS.
    pub fn with(self, server: GrpcServer) -> Result<(String, Option<TlsFiles>), String> {
        let GrpcServer { address, has_tls } = server;
        let Self { tls_ca_file, tls_cert_file, tls_key_file, tls_server_name: server_name } = self;
        let files = TlsFiles::of(tls_ca_file, tls_cert_file, tls_key_file);
        let files = TlsFiles { server_name, ..files };
        if !has_tls && files != TlsFiles::default() {
            if address.starts_with(UNIX) {
                return Err("--tls-* is for https://HOST:PORT: weir ask uses no TLS on a Unix socket".to_owned());
            }
            return Err(format!("--tls-* is for a server with TLS: write https://{address}"));
        }
        Ok((address, has_tls.then_some(files)))
    }
}

/// Asks a server and writes its answer.
///
/// # Errors
/// When there is no answer, or it cannot be written.
pub fn run(question: &Question, output: Output, out: &mut dyn Write) -> Result<Decided, AskError> {
    let response = block_on(ask(question)).map_err(AskError::Start)??;
    let decided = match response.overall_code() {
        Code::Ok if response.statuses.iter().all(|status| status.current_limit.is_none()) => Decided::NoLimit,
        Code::Ok => Decided::Ok,
        Code::OverLimit => Decided::OverLimit,
        Code::Unknown => return Err(AskError::NoCode),
    };
    match output {
        Output::Json => {
            let body = json::render_response(&response).map_err(io::Error::from)?;
            out.write_all(&body)?;
            writeln!(out)?;
        }
        Output::Text => {
            writeln!(out, "{}", response.overall_code().as_str_name())?;
            for (index, (entries, status)) in question.descriptors.iter().zip(&response.statuses).enumerate() {
                let exact = detail::exact(&response, index);
                writeln!(out, "  {}   {}", Entries(entries), Status { status, domain: &question.domain, exact })?;
            }
            if let Some(receipt) = receipts::of_response(&response, &question.domain) {
                writeln!(out, "receipt {}", printable(receipt))?;
            }
        }
    }
    Ok(decided)
}

async fn ask(question: &Question) -> Result<RateLimitResponse, AskError> {
    let scheme = if question.tls.is_some() { "https" } else { "http" };
    let uri = match question.address.contains("://") || question.address.starts_with(UNIX) {
        true => question.address.clone(),
        false => format!("{scheme}://{}", question.address),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|_| AskError::Address(question.address.clone()))?;
    let endpoint = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT);
    let trouble = Trouble::default();
    let tls = question.tls.clone().map(|files| Arc::new(Tls::new(files).offering(GRPC_PROTOCOLS)));
    let dial = Dial { tls, trouble: trouble.clone(), answer_bytes_max: ANSWER_BYTES_MAX };
    let is_unix = question.address.starts_with(UNIX);
    let channel = if is_unix { endpoint.connect().await } else { endpoint.connect_with_connector(dial).await };
    let channel = channel.map_err(|error| {
        let reason = trouble.lock().take().unwrap_or_else(|| innermost(&error));
        AskError::Connect(question.address.clone(), reason)
    })?;
    match RateLimitServiceClient::new(channel).should_rate_limit(question.request()).await {
        Ok(response) => Ok(response.into_inner()),
        // A local error: the server sent no status.
        Err(status) if std::error::Error::source(&status).is_some() => {
            let mut reason = innermost(&status);
            match &question.tls {
                None if is_unix => reason.push_str(": weir ask needs a listener with plain: before unix:"),
                None => reason.push_str(": give the address of listen.grpc, after https:// if it has TLS"),
                // The server may close the connection while the request is being sent, and then its reason is lost.
                Some(TlsFiles { identity: None, .. }) => {
                    reason.push_str(": if the server requires a certificate, give one with its key");
                }
                Some(TlsFiles { identity: Some(identity), .. }) => match identity.unfit() {
                    Some(why) => reason.push_str(&format!(": {why}")),
                    // In TLS 1.3 the server judges the certificate after the client's part of the handshake.
                    None if reason.contains("alert") => {
                        reason.push_str(": the server refuses this certificate: see its log");
                    }
                    None => reason.push_str(": if the server refuses this certificate, its log has the reason"),
                },
            }
            Err(AskError::NoGrpc(question.address.clone(), reason))
        }
        Err(status) => Err(AskError::Refused(format!("{:?}: {}", status.code(), status.message()))),
    }
}

/// The entries of a descriptor as typed.
struct Entries<'a>(&'a [(String, String)]);

impl fmt::Display for Entries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&spell_pairs(self.0)))
    }
}

/// A status for people.
struct Status<'a> {
    status: &'a DescriptorStatus,
    domain: &'a str,
    /// What is left and the hits of the limit, if the answer has more than the protocol's 32 bits.
    exact: Option<[String; 2]>,
}

impl fmt::Display for Status<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, domain, exact } = self;
        f.write_str(status.code().as_str_name())?;
        let Some(limit) = &status.current_limit else {
            return match (status.code(), status.limit_remaining) {
                (Code::OverLimit, _) => f.write_str("   no limit: no store has decided, and on_error denies"),
                (_, u32::MAX) => f.write_str("   no limit: its rule or row is unlimited"),
                _ => {
                    let domain = printable(domain);
                    write!(f, "   no limit: no rule of the domain {domain} limits it, or no store has decided")
                }
            };
        };
        let (remaining, requests) = (status.limit_remaining, limit.requests_per_unit);
        // On the wire, requests in flight and windows such as 1.5 s have no unit.
        let per = match (limit.unit(), &limit.unit_multiplier) {
            (Unit::Unknown, _) if limit.name == IN_FLIGHT => format!(" {IN_FLIGHT}"),
            (Unit::Unknown, _) => String::new(),
            (unit, None) => format!(" per {}", unit.as_str_name().to_ascii_lowercase()),
            (unit, Some(count)) => {
                format!(" per {}", counted(count.value, &unit.as_str_name().to_ascii_lowercase()))
            }
        };
        let [left, of] = exact.clone().unwrap_or_else(|| [remaining, requests].map(at_least));
        // A burst can be larger than the hits of a unit.
        if remaining > requests {
            write!(f, "   {left} left at once, {of}{per}")?;
        } else {
            // Both have one unit, such as usd.
            let unit = of.find(' ').filter(|_| exact.is_some()).map_or("", |at| &of[at..]);
            write!(f, "   {} of {of}{per} left", left.strip_suffix(unit).unwrap_or(&left))?;
        }
        if let Some(reset) = &status.duration_until_reset {
            write!(f, ", resets in {} s", reset.seconds)?;
        }
        if exact.is_none() && requests == u32::MAX {
            f.write_str("; response.dynamic_metadata shows all digits")?;
        }
        Ok(())
    }
}

/// A number of the protocol. A larger number than it can have is sent as the largest one.
fn at_least(hits: u32) -> String {
    if hits == u32::MAX { format!("{hits} or more") } else { hits.to_string() }
}

#[cfg(test)]
mod tests {
    use weir_rls::proto::rate_limit_response::RateLimit;

    use super::*;

    #[test]
    fn a_status_has_no_unit_that_is_not_known_and_no_more_left_than_there_is() {
        for (unit, count, name, limit_remaining, expected) in [
            (Unit::Hour, None, "", 2, "OK   2 of 10 per hour left"),
            (Unit::Second, None, "", 19, "OK   19 left at once, 10 per second"),
            (Unit::Second, Some(90), "", 9, "OK   9 of 10 per 90 seconds left"),
            (Unit::Unknown, None, "1500ms", 10, "OK   10 of 10 left"),
            (Unit::Unknown, None, "", 11, "OK   11 left at once, 10"),
            (Unit::Unknown, None, IN_FLIGHT, 3, "OK   3 of 10 in flight left"),
        ] {
            let unit_multiplier = count.map(|count: u32| count.into());
            let limit = RateLimit { requests_per_unit: 10, unit: unit.into(), name: name.to_owned(), unit_multiplier };
            let status = DescriptorStatus {
                code: Code::Ok.into(),
                current_limit: Some(limit),
                limit_remaining,
                ..DescriptorStatus::default()
            };
            assert_eq!(Status { status: &status, domain: "shop", exact: None }.to_string(), expected);
        }
    }

    /// A budget of 5000 usd was shown as `4294967295 of 4294967295`.
    #[test]
    fn a_large_limit_has_its_amount_or_no_end() {
        let unit = Unit::Month.into();
        let limit = RateLimit { requests_per_unit: u32::MAX, unit, ..RateLimit::default() };
        for (exact, limit_remaining, expected) in [
            (Some(["4999.50 usd", "5000.00 usd"]), u32::MAX, "OK   4999.50 of 5000.00 usd per month left"),
            (Some(["0.00 usd", "5000.00 usd"]), 0, "OK   0.00 of 5000.00 usd per month left"),
            (Some(["4999500000", "5000000000"]), u32::MAX, "OK   4999500000 of 5000000000 per month left"),
            (None, 7, "OK   7 of 4294967295 or more per month left; response.dynamic_metadata shows all digits"),
        ] {
            let (code, current_limit) = (Code::Ok.into(), Some(limit.clone()));
            let status = DescriptorStatus { code, current_limit, limit_remaining, ..DescriptorStatus::default() };
            let exact = exact.map(|pair| pair.map(str::to_owned));
            assert_eq!(Status { status: &status, domain: "shop", exact }.to_string(), expected);
        }
    }

    #[test]
    fn a_status_without_a_limit_has_its_cause_if_the_answer_tells_it() {
        for (code, limit_remaining, expected) in [
            (Code::Ok, 0, "OK   no limit: no rule of the domain shop limits it, or no store has decided"),
            (Code::Ok, u32::MAX, "OK   no limit: its rule or row is unlimited"),
            (Code::OverLimit, 0, "OVER_LIMIT   no limit: no store has decided, and on_error denies"),
        ] {
            let status = DescriptorStatus { code: code.into(), limit_remaining, ..DescriptorStatus::default() };
            assert_eq!(Status { status: &status, domain: "shop", exact: None }.to_string(), expected);
        }
    }

    #[test]
    fn hits_and_limits_are_for_all_descriptors_or_for_each() {
        let question = |hits: &[u32], limits: &[(u32, Window)]| Question {
            address: String::new(),
            tls: None,
            domain: "ai".to_owned(),
            descriptors: ["team", "tokens"].map(|key| vec![(key.to_owned(), "search".to_owned())]).into(),
            hits: hits.into(),
            limits: limits.into(),
            receipt: None,
        };
        let sent = |hits: &[u32]| {
            let RateLimitRequest { descriptors, hits_addend, .. } = question(hits, &[]).request();
            let own = descriptors.into_iter().map(|descriptor| descriptor.hits_addend.map(|hits| hits.value));
            (hits_addend, own.collect::<Vec<_>>())
        };
        assert_eq!(sent(&[7]), (7, vec![None, None]));
        assert_eq!(sent(&[0]), (0, vec![Some(0), Some(0)]));
        assert_eq!(sent(&[2_500_000, 8_000]), (2_500_000, vec![Some(2_500_000), Some(8_000)]));
        let limit = |number| (number, weir_engine::Unit::Minute.window());
        for (limits, expected) in [(vec![limit(1)], [1, 1]), (vec![limit(1), limit(2)], [1, 2])] {
            let request = question(&[1], &limits).request();
            let sent = request.descriptors.iter().map(|one| one.limit.expect("a limit").requests_per_unit);
            assert_eq!(sent.collect::<Vec<_>>(), expected);
        }
        let refused = question(&[1, 2, 3], &[]).check().unwrap_err();
        assert_eq!(refused, "3 times --hits for 2 descriptors: give it once for all, or once for each");
        assert!(question(&[1], &[limit(1); 3]).check().unwrap_err().starts_with("3 times --limit"));
        assert_eq!(question(&[1, 2], &[limit(1), limit(2)]).check(), Ok(()));
    }

    #[test]
    fn an_address_has_a_port() {
        for (text, expected) in [
            ("localhost:8081", Ok(("localhost:8081", false))),
            ("http://[::1]:8081/", Ok(("[::1]:8081", false))),
            ("https://localhost:8081", Ok(("localhost:8081", true))),
            ("https://localhost", Err("has no port: write localhost:8081")),
            ("localhost", Err("has no port: write localhost:8081")),
            ("::1", Err("has no port: write [::1]:8081")),
            ("localhost:x", Err("not an address such as localhost:8081 or [::1]:8081")),
            ("127.0.0.1:99999", Err("not an address such as localhost:8081 or [::1]:8081")),
            ("unix:/run/weir.sock", Ok(("unix:/run/weir.sock", false))),
            ("plain:unix:/run/weir.sock", Ok(("unix:/run/weir.sock", false))),
            ("unix:", Err("has no path: write unix:/run/weir.sock")),
            ("plain:localhost:8081", Err("not an address such as localhost:8081 or [::1]:8081")),
        ] {
            let server = text.parse().map(|GrpcServer { address, has_tls }| (address, has_tls));
            assert_eq!(server, expected.map(|(at, tls)| (at.to_owned(), tls)).map_err(str::to_owned), "{text}");
        }
    }
}
