//! The OpenTelemetry collector from the settings, and the resource of all signals.
//!
//! Not here: the data (traces.rs, metrics.rs), and the connection (telemetry/otlp.rs).

use std::sync::Arc;

use opentelemetry_sdk::Resource;
use tonic::codegen::http::{HeaderName, HeaderValue, Uri};
use weir_lifecycle::on_own_thread;
use weir_settings::{Otlp, Tracing};
use weir_telemetry::otlp::{self, Collector};
use weir_telemetry::traces::Service;
use weir_tls::{Tls, TlsFiles};

use super::AppError;

/// The default address of a collector. With HTTP the path is appended.
const DEFAULT_GRPC: &str = "http://localhost:4317";
const DEFAULT_HTTP: &str = "http://localhost:4318";

/// The resource of all signals. Without an instance id in the settings, each call makes a new one.
pub(super) fn resource(settings: &Tracing) -> Resource {
    let service = Service {
        name: settings.service_name.clone(),
        namespace: settings.service_namespace.clone(),
        instance_id: settings.service_instance_id.clone(),
        attributes: settings.attributes.clone(),
    };
    service.resource()
}

/// The collector at this URL. Reads the TLS files once.
/// Fails when a file cannot be used.
pub(super) async fn open(settings: &Otlp, url: Uri) -> Result<Collector, AppError> {
    let collector = collector(settings, url);
    if let Some(tls) = collector.tls.clone() {
        on_own_thread(move || tls.config(|_| {}).map(drop)).await?;
    }
    Ok(collector)
}

fn collector(settings: &Otlp, url: Uri) -> Collector {
    let headers = settings.headers.0.iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
    });
    let tls = (url.scheme_str() == Some("https")).then(|| {
        let Otlp { ca_file, cert_file, key_file, .. } = settings;
        Tls::new(TlsFiles::of(ca_file.clone(), cert_file.clone(), key_file.clone()))
            .offering(otlp::protocols(settings.is_grpc))
    });
    Collector {
        url,
        is_grpc: settings.is_grpc,
        headers: headers.collect(),
        timeout: settings.timeout,
        gzip: settings.gzip,
        tls: tls.map(Arc::new),
    }
}

/// The URL for a signal. With HTTP it gets this path, unless it has one; gRPC has its own paths.
/// Fails when it is not a URL. The settings have checked that.
pub(super) fn url(endpoint: Option<&str>, is_grpc: bool, path: &str) -> Result<Uri, String> {
    let text = endpoint.unwrap_or(if is_grpc { DEFAULT_GRPC } else { DEFAULT_HTTP });
    let authority = text.find("://").map_or(0, |at| at + 3);
    let own = text[authority..].find('/').map(|at| authority + at);
    let text = match (own, is_grpc) {
        (Some(own), true) => text[..own].to_owned(),
        (None, false) => format!("{text}{path}"),
        (Some(_), false) | (None, true) => text.to_owned(),
    };
    text.parse::<Uri>().map_err(|error| error.to_string())
}

/// The server of a URL, for the log. The path or the query can have a key.
pub(super) fn server(url: &Uri) -> String {
    let host = url.authority().map_or("", |authority| authority.as_str());
    format!("{}://{host}", url.scheme_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_no_key_of_a_url() {
        let url = "https://collector.example:4318/in/T0KEN?key=T0KEN".parse().unwrap();
        assert_eq!(server(&url), "https://collector.example:4318");
    }

    #[test]
    fn the_url_has_the_path_of_the_signal_unless_it_has_one() {
        for (endpoint, is_grpc, expected) in [
            (None, true, "http://localhost:4317/"),
            (None, false, "http://localhost:4318/v1/traces"),
            (Some("http://c:4318"), false, "http://c:4318/v1/traces"),
            (Some("http://c:4318/"), false, "http://c:4318/"),
            (Some("https://c/otlp/v1/traces"), false, "https://c/otlp/v1/traces"),
            (Some("http://c:4317"), true, "http://c:4317/"),
            (Some("http://c:4317/v1/traces"), true, "http://c:4317/"),
            (Some("http://[::1]:4317"), true, "http://[::1]:4317/"),
        ] {
            assert_eq!(url(endpoint, is_grpc, "/v1/traces").unwrap().to_string(), expected, "{endpoint:?}");
        }
    }
}
