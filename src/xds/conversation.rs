//! One stream: a request, responses, and an answer to each of them.
//!
//! Not here: the connection (dial.rs), and the meaning of resources (resource.rs).

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::OptionFuture;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, BinaryMetadataKey, BinaryMetadataValue, MetadataMap};
use tonic::{Code, Request};
use weir_engine::words::counted;
use weir_tls::backoff::doubled;
use weir_tls::causes::in_full;

use super::codec::{DiscoveryCodec, Response};
use super::dial::Dialled;
use super::proto::{DiscoveryRequest, Node, Status};
use super::{Options, Progress, Resource, Sink, StreamEnd, TYPE_URL, Watch, shown};

const STREAM: PathAndQuery =
    PathAndQuery::from_static("/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources");
/// The name of this client at control planes.
const USER_AGENT: &str = "weir";
/// The longest time to send a request. After that, the server does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest delay of an answer if the server repeats a version. Some servers answer each NACK with the same
/// version at once.
const REPEATED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The most problems of one response in a NACK and in the log.
const PROBLEMS_SHOWN_MAX: usize = 20;
/// The longest text of a NACK, in bytes.
const REASON_BYTES_MAX: usize = 4096;
/// The next response is read after the time that the last one takes at this rate. Without this limit large responses
/// could use a whole core.
const BYTES_PER_SECOND: u64 = 8 << 20;

/// The node and the versions of a stream.
struct Conversation<'a> {
    node: Node,
    sink: &'a Sink,
    watch: &'a Watch,
    /// The version of the last response, and how often it was repeated.
    last: Option<(String, u32)>,
    /// The last logged problems of a refused version.
    complained: Option<(String, Vec<String>)>,
}

pub(super) async fn hold(dialled: Dialled, options: &Options, sink: &Sink, watch: &Watch) -> StreamEnd {
    let Dialled { channel, trouble } = dialled;
    let mut client = Grpc::new(channel).max_decoding_message_size(options.message_bytes_max);
    let node = node(options);
    // Versions and nonces of an earlier stream are not valid here.
    let first = DiscoveryRequest { node: Some(node.clone()), type_url: TYPE_URL.to_owned(), ..Default::default() };
    let mut conversation = Conversation { node, sink, watch, last: None, complained: None };

    // One more than needed: each response has one answer.
    let (requests, sent) = mpsc::channel(2);
    let mut got = Progress::Connection;
    let talking = async {
        send(&requests, first).await?;
        let mut request = Request::new(ReceiverStream::new(sent));
        *request.metadata_mut() = metadata(&options.headers)?;
        // A server may send its headers only with its first response, which may come late.
        let said = |status: &tonic::Status| in_words(status, options.message_bytes_max);
        client.ready().await.map_err(|error| in_full(&error))?;
        let response = client.streaming(request, STREAM, DiscoveryCodec).await;
        let mut responses = response.map_err(|status| said(&status))?.into_inner();
        let mut held: Option<(Instant, DiscoveryRequest)> = None;
        let mut resumed = Instant::now();
        loop {
            let due = OptionFuture::from(held.as_ref().map(|(at, _)| sleep_until(*at)));
            let response = {
                let due = pin!(due);
                let next = async {
                    sleep_until(resumed).await;
                    responses.message().await
                };
                tokio::select! {
                    response = next => Some(response),
                    Some(()) = due => None,
                }
            };
            match response {
                Some(Ok(Some(response))) => {
                    got = Progress::Response;
                    let bytes = response.bytes as u64;
                    let (pause, answer) = conversation.answer(response).await?;
                    // A delayed answer is obsolete after another response.
                    held = None;
                    resumed = Instant::now() + Duration::from_micros(bytes * 1_000_000 / BYTES_PER_SECOND);
                    if pause.is_zero() {
                        send(&requests, answer).await?;
                    } else {
                        held = Some((Instant::now() + pause, answer));
                    }
                }
                Some(Ok(None)) => return Err("the server ended the stream".to_owned()),
                Some(Err(status)) => return Err(said(&status)),
                None => {
                    if let Some((_, answer)) = held.take() {
                        send(&requests, answer).await?;
                    }
                }
            }
        }
    };
    let ended: Result<Infallible, String> = talking.await;
    let Err(reason) = ended;
    let reason = trouble.get().cloned().unwrap_or(reason);
    StreamEnd { reason, got }
}

impl Conversation<'_> {
    /// Applies or refuses a response. Returns the answer and its delay.
    /// Fails if weir itself fails.
    async fn answer(&mut self, response: Response) -> Result<(Duration, DiscoveryRequest), String> {
        let Response { version_info, resources, type_url, nonce, .. } = response;
        let repeats = match self.last.take() {
            Some((version, repeats)) if version == version_info => repeats.saturating_add(1),
            _ => 0,
        };
        self.last = Some((version_info.clone(), repeats));
        // Some servers omit the type, because there is only one.
        let taken = if type_url.is_empty() || type_url == TYPE_URL {
            match resources {
                Ok(resources) => self.put(resources).await?,
                Err(problem) => Err(vec![problem]),
            }
        } else {
            Err(vec![format!("a response of the type {:?}: {TYPE_URL} was asked for", shown(&type_url))])
        };
        let error_detail = match taken {
            Ok(()) => {
                self.watch.acked(&version_info);
                self.complained = None;
                tracing::debug!(version = shown(&version_info), "version accepted");
                None
            }
            Err(problems) => {
                let reason = reason(&problems);
                self.watch.nacked(&version_info, &reason);
                self.complain(&version_info, problems);
                Some(Status { code: Code::InvalidArgument as i32, message: reason })
            }
        };
        let in_force = match error_detail {
            None => version_info,
            Some(_) => self.watch.read(|status| status.version.clone().unwrap_or_default()),
        };
        let request = DiscoveryRequest {
            version_info: in_force,
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail,
            ..Default::default()
        };
        let pause = if repeats == 0 { Duration::ZERO } else { doubled(REPEATED.0, repeats - 1, REPEATED.1) };
        Ok((pause, request))
    }

    /// Applies all resources, or none.
    /// Fails if weir itself fails.
    async fn put(&self, resources: Vec<Resource>) -> Result<Result<(), Vec<String>>, String> {
        let sink = self.sink.clone();
        // Many rules take time, and this runtime also serves HTTP.
        let putting = tokio::task::spawn_blocking(move || sink(&resources));
        putting.await.map_err(|error| format!("taking a response failed: {error}"))
    }

    /// Logs why a version was refused, if that was not logged before.
    fn complain(&mut self, version: &str, problems: Vec<String>) {
        let complaint = Some((version.to_owned(), problems));
        if self.complained == complaint {
            return;
        }
        self.complained = complaint;
        let version = shown(version);
        for problem in self.complained.iter().flat_map(|(_, problems)| problems).take(PROBLEMS_SHOWN_MAX) {
            tracing::error!(problem, version, "policies refused");
        }
    }
}

/// Sends a request on the connection.
/// Fails if the connection does not accept it.
async fn send(requests: &mpsc::Sender<DiscoveryRequest>, request: DiscoveryRequest) -> Result<(), String> {
    match timeout(SEND_TIMEOUT, requests.send(request)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err("the connection is gone".to_owned()),
        Err(_) => Err(format!("the server read no answer for {SEND_TIMEOUT:?}")),
    }
}

fn reason(problems: &[String]) -> String {
    let mut text = String::new();
    for (count, problem) in problems.iter().enumerate() {
        if count == PROBLEMS_SHOWN_MAX || text.len() + problem.len() > REASON_BYTES_MAX {
            if text.is_empty() {
                text.push_str(shown(problem));
            }
            let more = problems.len() - count.max(1);
            if more > 0 {
                text.push_str(&format!("; and {}", counted(more, "more problem")));
            }
            break;
        }
        if count > 0 {
            text.push_str("; ");
        }
        text.push_str(problem);
    }
    text
}

fn node(options: &Options) -> Node {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = options.node_metadata.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    Node {
        id: options.node_id.clone(),
        metadata: Some(Struct { fields }),
        user_agent_name: USER_AGENT.to_owned(),
        ..Node::default()
    }
}

/// The headers of the stream.
/// Fails when a header cannot be sent. The error has only its name, because its value may be secret.
fn metadata(headers: &[(String, String)]) -> Result<MetadataMap, String> {
    let mut map = MetadataMap::new();
    for (name, value) in headers {
        let unusable = || format!("the header {name:?} cannot be sent");
        if name.ends_with("-bin") {
            let key = BinaryMetadataKey::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            map.insert_bin(key, BinaryMetadataValue::from_bytes(value.as_bytes()));
        } else {
            let key = AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            map.insert(key, value.parse().map_err(|_| unusable())?);
        }
    }
    Ok(map)
}

/// Why a stream failed, in the words of the server or the connection.
fn in_words(status: &tonic::Status, message_bytes_max: usize) -> String {
    let text = in_full(status);
    if status.code() == Code::OutOfRange && text.contains("message length too large") {
        return format!("a response of more than policies.xds.max_message_bytes = {message_bytes_max} bytes: {text}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nack_names_problems_up_to_a_bound() {
        let problems: Vec<String> = (0..30).map(|number| format!("problem {number}")).collect();
        assert_eq!(reason(&problems[..2]), "problem 0; problem 1");
        let many = reason(&problems);
        assert!(many.ends_with("problem 19; and 10 more problems"), "{many}");
        let long = vec!["x".repeat(REASON_BYTES_MAX + 1), "y".to_owned()];
        let text = reason(&long);
        assert!(text.starts_with("xxx") && text.ends_with("; and 1 more problem"), "{text}");
        assert!(text.len() <= REASON_BYTES_MAX);
        assert_eq!(reason(&long[1..]), "y");
    }

    #[test]
    fn headers_are_sent_as_they_are_and_binary_ones_in_base64() {
        let headers = [("authorization", "Bearer a:b"), ("trace-bin", "x")];
        let map = metadata(&headers.map(|(name, value)| (name.to_owned(), value.to_owned()))).unwrap();
        assert_eq!(map.get("authorization").unwrap(), "Bearer a:b");
        assert_eq!(map.get_bin("trace-bin").unwrap().to_bytes().unwrap(), "x");
        let error = metadata(&[("a b".to_owned(), "hunter2".to_owned())]).unwrap_err();
        assert_eq!(error, "the header \"a b\" cannot be sent");
    }
}
