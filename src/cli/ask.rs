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
use weir_engine::descriptor::spell_pairs;
use weir_engine::words::{IN_FLIGHT, counted, printable};
use weir_rls::proto::rate_limit_descriptor::Entry;
use weir_rls::proto::rate_limit_response::rate_limit::Unit;
use weir_rls::proto::rate_limit_response::{Code, DescriptorStatus};
use weir_rls::proto::rate_limit_service_client::RateLimitServiceClient;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use weir_rls::{json, receipts};
use weir_settings::RECEIPT_KEY;
use weir_tls::causes::innermost;
use weir_tls::dial::{Dial, Trouble};
use weir_tls::{GRPC_PROTOCOLS, Tls, TlsFiles};

use super::admin::{block_on, host_and_port};

/// The most bytes that a server may send after a request.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The timeout for the connection and for the call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The server, `HOST:PORT`.
    pub address: String,
    /// The files for TLS, if the connection uses TLS.
    pub tls: Option<TlsFiles>,
    /// The domain.
    pub domain: String,
    /// The descriptors, each its entries in order.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// The hits of each descriptor, 0 for none; with a receipt, the hits that were used.
    pub hits: u32,
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

/// A gRPC listener: `HOST:PORT`. TLS only after `https://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcServer {
    address: String,
    has_tls: bool,
}

impl FromStr for GrpcServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
            for (entries, status) in question.descriptors.iter().zip(&response.statuses) {
                writeln!(out, "  {}   {}", Entries(entries), Status(status, &question.domain))?;
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
    let uri = match question.address.contains("://") {
        true => question.address.clone(),
        false => format!("{scheme}://{}", question.address),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|_| AskError::Address(question.address.clone()))?;
    let trouble = Trouble::default();
    let tls = question.tls.clone().map(|files| Arc::new(Tls::new(files).offering(GRPC_PROTOCOLS)));
    let dial = Dial { tls, trouble: trouble.clone(), answer_bytes_max: ANSWER_BYTES_MAX };
    let channel = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect_with_connector(dial).await;
    let channel = channel.map_err(|error| {
        let reason = trouble.lock().take().unwrap_or_else(|| innermost(&error));
        AskError::Connect(question.address.clone(), reason)
    })?;
    let receipt = question.receipt.iter().map(|returned| (&*returned.key, &*returned.receipt));
    let descriptors = question.descriptors.iter().map(|entries| RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .chain(receipt.clone())
            .map(|(key, value)| Entry { key: key.to_owned(), value: value.to_owned() })
            .collect(),
        // 0 hits of a request are read as 1, but those of a descriptor are not.
        hits_addend: (question.receipt.is_some() || question.hits == 0).then(|| u64::from(question.hits).into()),
        ..RateLimitDescriptor::default()
    });
    let request = RateLimitRequest {
        domain: question.domain.clone(),
        descriptors: descriptors.collect(),
        hits_addend: question.hits,
    };
    match RateLimitServiceClient::new(channel).should_rate_limit(request).await {
        Ok(response) => Ok(response.into_inner()),
        // A local error: the server sent no status.
        Err(status) if std::error::Error::source(&status).is_some() => {
            let mut reason = innermost(&status);
            match &question.tls {
                None => reason.push_str(": give the address of listen.grpc, after https:// if it has TLS"),
                // The server may close the connection while the request is being sent, and then its reason is lost.
                Some(TlsFiles { identity: None, .. }) => {
                    reason.push_str(": if the server requires a certificate, give one with its key");
                }
                Some(_) => {}
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

/// A status, and the domain of the request.
struct Status<'a>(&'a DescriptorStatus, &'a str);

impl fmt::Display for Status<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status, domain) = self;
        f.write_str(status.code().as_str_name())?;
        let Some(limit) = &status.current_limit else {
            let domain = printable(domain);
            return write!(f, "   no limit: no rule of the domain {domain} limits it, or no store has decided");
        };
        let (left, requests) = (status.limit_remaining, limit.requests_per_unit);
        // On the wire, requests in flight and windows such as 1.5 s have no unit.
        let per = match (limit.unit(), &limit.unit_multiplier) {
            (Unit::Unknown, _) if limit.name == IN_FLIGHT => format!(" {IN_FLIGHT}"),
            (Unit::Unknown, _) => String::new(),
            (unit, None) => format!(" per {}", unit.as_str_name().to_ascii_lowercase()),
            (unit, Some(count)) => {
                format!(" per {}", counted(count.value, &unit.as_str_name().to_ascii_lowercase()))
            }
        };
        // A burst can be larger than the hits of a unit.
        if left > requests {
            write!(f, "   {left} left at once, {requests}{per}")?;
        } else {
            write!(f, "   {left} of {requests}{per} left")?;
        }
        if let Some(reset) = &status.duration_until_reset {
            write!(f, ", resets in {} s", reset.seconds)?;
        }
        Ok(())
    }
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
            assert_eq!(Status(&status, "shop").to_string(), expected);
        }
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
        ] {
            let server = text.parse().map(|GrpcServer { address, has_tls }| (address, has_tls));
            assert_eq!(server, expected.map(|(at, tls)| (at.to_owned(), tls)).map_err(str::to_owned), "{text}");
        }
    }
}
