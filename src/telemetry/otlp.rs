//! The connection to an OpenTelemetry collector: OTLP by gRPC or HTTP, in cleartext or with TLS.
//!
//! For spans, the exporter of `opentelemetry-otlp` encodes, compresses and retries. This file provides its connections
//! and headers: TLS as in the rest of weir (ring, files that are read at each dial), and only the headers of the
//! settings. Metrics are sent without that exporter, because it accepts only numbers of the crate's own instruments.

use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Compression, ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prost::Message as _;
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::{HeaderName, HeaderValue, Uri, header};
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use weir_tls::causes::in_full;
use weir_tls::dial::{CONNECT_MAX, Dial, Trouble, USER_AGENT};
use weir_tls::{GRPC_PROTOCOLS, Tls};

/// The most bytes that a collector may send after a request. Answers are short.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The protocols that an exporter offers by ALPN.
pub const fn protocols(is_grpc: bool) -> &'static [&'static [u8]] {
    if is_grpc { GRPC_PROTOCOLS } else { &[b"http/1.1"] }
}

#[derive(Debug)]
pub struct Collector {
    /// The URL: of the server alone for gRPC, with the path for HTTP.
    pub url: Uri,
    /// Whether gRPC is used, instead of HTTP with protobuf.
    pub is_grpc: bool,
    /// Headers of each request. They can be secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub timeout: Duration,
    pub gzip: bool,
    /// TLS that offers [`protocols`]. None for a URL with `http`.
    pub tls: Option<Arc<Tls>>,
}

impl Collector {
    /// An exporter of spans.
    ///
    /// # Errors
    /// When the exporter refuses the settings or the environment.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spans(self, resource: &Resource) -> Result<SpanSender, ExporterBuildError> {
        let trouble = Trouble::default();
        let compression = self.gzip.then_some(Compression::Gzip);
        let dial = Dial { tls: self.tls, trouble: trouble.clone(), answer_bytes_max: ANSWER_BYTES_MAX };
        let mut exporter = if self.is_grpc {
            let channel = channel(self.url, self.timeout, dial)
                .map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))?;
            let metadata = metadata(&self.headers);
            let mut builder = SpanExporter::builder()
                .with_tonic()
                .with_channel(channel)
                .with_timeout(self.timeout)
                // The exporter adds headers of environment variables. The settings have read those already.
                .with_interceptor(move |mut request: tonic::Request<()>| {
                    *request.metadata_mut() = metadata.clone();
                    Ok(request)
                });
            if let Some(compression) = compression {
                builder = builder.with_compression(compression);
            }
            builder.build()?
        } else {
            let client = Client { inner: HyperClient::new(dial, self.timeout, None), headers: self.headers };
            let mut builder = SpanExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(self.url.to_string())
                .with_timeout(self.timeout)
                .with_http_client(client);
            if let Some(compression) = compression {
                builder = builder.with_compression(compression);
            }
            builder.build()?
        };
        exporter.set_resource(resource);
        Ok(SpanSender { exporter, trouble })
    }

    /// A sender of metrics.
    ///
    /// # Errors
    /// When weir's user agent is not a valid header: a mistake in weir.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn metrics(self) -> Result<MetricsSender, tonic::transport::Error> {
        let trouble = Trouble::default();
        let dial = Dial { tls: self.tls, trouble: trouble.clone(), answer_bytes_max: ANSWER_BYTES_MAX };
        let client = if self.is_grpc {
            let mut service = MetricsServiceClient::new(channel(self.url, self.timeout, dial)?);
            if self.gzip {
                service = service.send_compressed(CompressionEncoding::Gzip);
            }
            MetricsClient::Grpc { service, metadata: metadata(&self.headers) }
        } else {
            let client = Client { inner: HyperClient::new(dial, self.timeout, None), headers: self.headers };
            MetricsClient::Http { client, url: self.url, gzip: self.gzip }
        };
        Ok(MetricsSender { client, timeout: self.timeout, trouble })
    }
}

fn channel(url: Uri, timeout: Duration, dial: Dial) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from(url).user_agent(USER_AGENT)?;
    Ok(endpoint.connect_timeout(CONNECT_MAX.min(timeout)).timeout(timeout).connect_with_connector_lazy(dial))
}

/// Sends spans. Stores the reason of a failed connection.
#[derive(Debug)]
pub struct SpanSender {
    exporter: SpanExporter,
    trouble: Trouble,
}

impl opentelemetry_sdk::trace::SpanExporter for SpanSender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        *self.trouble.lock() = None;
        self.exporter.export(batch).await.map_err(|error| match self.trouble.lock().take() {
            // With HTTP the exporter's own error has no reason.
            Some(reason) => OTelSdkError::InternalFailure(format!("no connection: {reason}")),
            None => error,
        })
    }
}

/// Sends metrics. Stores the reason of a failed connection.
#[derive(Debug)]
pub struct MetricsSender {
    client: MetricsClient,
    timeout: Duration,
    trouble: Trouble,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it in a process")]
enum MetricsClient {
    Grpc { service: MetricsServiceClient<Channel>, metadata: MetadataMap },
    Http { client: Client, url: Uri, gzip: bool },
}

impl MetricsSender {
    /// Sends one request, once.
    ///
    /// # Errors
    /// The reason why the collector did not accept all of it.
    pub async fn send(&self, metrics: ExportMetricsServiceRequest) -> Result<(), String> {
        *self.trouble.lock() = None;
        let answer = match timeout(self.timeout, self.client.send(metrics)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        };
        let answer = answer.map_err(|reason| match self.trouble.lock().take() {
            Some(reason) => format!("no connection: {reason}"),
            None => reason,
        })?;
        match answer.partial_success {
            Some(part) if part.rejected_data_points > 0 => {
                Err(format!("{} series refused: {}", part.rejected_data_points, part.error_message))
            }
            _ => Ok(()),
        }
    }
}

impl MetricsClient {
    async fn send(&self, metrics: ExportMetricsServiceRequest) -> Result<ExportMetricsServiceResponse, String> {
        match self {
            Self::Grpc { service, metadata } => {
                let request = tonic::Request::from_parts(metadata.clone(), tonic::Extensions::default(), metrics);
                let answer = service.clone().export(request).await;
                answer
                    .map(tonic::Response::into_inner)
                    .map_err(|status| format!("{}: {}", status.code(), status.message()))
            }
            Self::Http { client, url, gzip } => {
                let mut body = metrics.encode_to_vec();
                let mut request = Request::post(url).header(header::CONTENT_TYPE, "application/x-protobuf");
                if *gzip {
                    body = compressed(&body).map_err(|error| error.to_string())?;
                    request = request.header(header::CONTENT_ENCODING, "gzip");
                }
                let request = request.body(Bytes::from(body)).map_err(|error| error.to_string())?;
                let response = client.send_bytes(request).await.map_err(|error| in_full(&*error))?;
                if !response.status().is_success() {
                    return Err(format!("HTTP {}", response.status()));
                }
                // Some collectors answer without a message, or with JSON.
                Ok(ExportMetricsServiceResponse::decode(response.into_body()).unwrap_or_default())
            }
        }
    }
}

fn compressed(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

fn metadata(headers: &[(HeaderName, HeaderValue)]) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for (name, value) in headers {
        let key = MetadataKey::from_bytes(name.as_str().as_bytes());
        let value = value.to_str().ok().and_then(|text| text.parse().ok());
        if let (Ok(key), Some(value)) = (key, value) {
            metadata.insert(key, value);
        }
    }
    metadata
}

/// An HTTP client that sends the headers of the settings and no others.
struct Client {
    inner: HyperClient<Dial>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&HeaderName> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Client").field("headers", &names).finish_non_exhaustive()
    }
}

/// The headers that the exporter sets for a body.
const OWN_HEADERS: [HeaderName; 2] = [header::CONTENT_TYPE, header::CONTENT_ENCODING];

// `async_trait` declares the trait. This is the signature that its macro makes.
impl HttpClient for Client {
    fn send_bytes<'a, 'f>(
        &'a self,
        mut request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let given = std::mem::take(request.headers_mut());
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        for name in OWN_HEADERS {
            if let Some(value) = given.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        self.inner.send_bytes(request)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_collector_that_sends_100_continue_without_end_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/metrics", listener.local_addr().unwrap()).parse().unwrap();
        let collector = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An answer before the request is none.
            tokio::io::AsyncReadExt::read_u8(&mut stream).await.unwrap();
            while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
        });
        // Longer than a test may take, so the byte bound ends the request, not the timeout.
        let timeout = Duration::from_secs(3_600);
        let collector_of = Collector { url, is_grpc: false, headers: Vec::new(), timeout, gzip: false, tls: None };
        let sender = collector_of.metrics().unwrap();
        let sent = tokio::time::timeout(Duration::from_secs(60), sender.send(ExportMetricsServiceRequest::default()));
        assert!(sent.await.expect("an end").is_err());
        collector.await.unwrap();
    }
}
