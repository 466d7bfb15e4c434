//! `ratelimit`, and `weir ratelimit`: the server as a replacement of envoyproxy/ratelimit, with its environment variables.
//!
//! Not here: the meaning of each variable (settings/envoy_ratelimit.rs), and serving (serve.rs).

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs as _};
use std::num::NonZeroUsize;

use weir_lifecycle::OnHangup;
use weir_settings::envoy_ratelimit::{self, Machine, Note};
use weir_settings::otel::{self, TurnsOn};
use weir_settings::{Layer, Problems, Program, Setting, Settings};

use super::serve::{self, ServeError};

/// Serves until a signal stops it. All settings come from environment variables.
///
/// # Errors
/// If variables are wrong, or if the server cannot start or continue.
pub fn serve() -> Result<(), ServeError> {
    let (settings, notes) = settings(std::env::vars_os().collect()).map_err(ServeError::Settings)?;
    serve::run(settings, OnHangup::Stop, || {
        for Note { variable, text } in &notes {
            tracing::warn!("{variable} {text}");
        }
    })
}

/// The settings of an environment, and notes about it.
///
/// # Errors
/// Every problem of all variables.
pub fn settings(environment: Vec<(OsString, OsString)>) -> Result<(Settings, Vec<Note>), Problems> {
    let machine = Machine { cores: cores(&environment), any: any_address(), resolve: &resolve };
    let reading = envoy_ratelimit::read(environment.iter().cloned(), &machine);
    let standard = otel::read(environment.iter().cloned(), TurnsOn::No);
    let layers = [reading.fixed, standard.settings, reading.variables, Layer::environment(environment), standard.last];
    let settings = Settings { program: Program::Ratelimit, ..Settings::load(&layers)? };
    Ok((settings, [reading.notes, standard.notes].concat()))
}

/// The number of cores that serve: `WEIR__RUNTIME__CORES`, or all.
fn cores(environment: &[(OsString, OsString)]) -> usize {
    let name = Setting::find("runtime.cores").map(Setting::env_name).unwrap_or_default();
    let given = environment.iter().find(|(variable, _)| variable.to_str() == Some(&name));
    let given = given.and_then(|(_, text)| text.to_str()?.parse().ok()).filter(|cores| *cores > 0);
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// The address that Go listens on without a host: IPv6 with IPv4, or IPv4 alone if there is no IPv6.
fn any_address() -> IpAddr {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// The address of a host to listen on, IPv4 before IPv6.
fn resolve(host: &str) -> Option<IpAddr> {
    let found: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().find(|ip| ip.is_ipv4()).or_else(|| found.first()).copied()
}
