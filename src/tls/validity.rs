//! The expiry of the certificates in use: weir's own, those of trusted authorities, and those of servers.
//!
//! Not here: whether a certificate is accepted (rustls), and the metric (app/certificates.rs).

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode as _;
use x509_cert::der::oid::db::rfc5280::ID_KP_CLIENT_AUTH;
use x509_cert::ext::pkix::ExtendedKeyUsage;

/// A certificate that expires within this time is logged when weir starts to use it, and when this time begins.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3_600);
/// If a server's certificate expires within this time, its connections are replaced every [`RENEWED_EVERY`], to get the
/// server's new certificate.
const RENEWED_BEFORE: Duration = Duration::from_secs(21 * 24 * 3_600);
/// See [`RENEWED_BEFORE`].
const RENEWED_EVERY: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Holder {
    /// weir itself, including intermediates.
    Own,
    /// The trusted authorities of a file.
    Authority,
    /// The servers that weir has open connections to.
    Peer,
}

/// The expiry of the certificates of one use.
#[derive(Debug, Default)]
pub struct Validity {
    own: AtomicU64,
    authority: AtomicU64,
    /// By host. Each host has an open connection, so the bounds on connections apply here too.
    peers: Mutex<BTreeMap<Box<str>, Presented>>,
}

#[derive(Debug)]
struct Presented {
    /// In seconds since 1970, from the latest handshake.
    not_after: u64,
    connections: usize,
}

impl Validity {
    /// The expiry of these certificates in seconds since 1970; 0 without any. For `own` and `peer`, the first to
    /// expire. For the authorities, the last to expire, because a file can have old ones beside new ones.
    pub fn not_after(&self, holder: Holder) -> u64 {
        match holder {
            Holder::Own => self.own.load(Relaxed),
            Holder::Authority => self.authority.load(Relaxed),
            Holder::Peer => self.peers.lock().values().map(|peer| peer.not_after).min().unwrap_or(0),
        }
    }

    /// The date until which these certificates were valid, if they have expired.
    pub(super) fn expired(&self, holder: Holder) -> Option<String> {
        let not_after = self.not_after(holder);
        (0 < not_after && not_after < now()).then(|| date(not_after))
    }

    /// Warns of each certificate that has begun to expire soon since the last look.
    pub fn look(&self, used_for: &str, looked_at: &mut SystemTime) {
        let now = SystemTime::now();
        for holder in self.begin_to_expire(std::mem::replace(looked_at, now), now) {
            let (certificate, not_after): (&str, _) = (holder.into(), date(self.not_after(holder)));
            tracing::warn!(used_for, certificate, not_after, "the certificate expires soon");
        }
    }

    fn begin_to_expire(&self, after: SystemTime, until: SystemTime) -> impl Iterator<Item = Holder> {
        let soon = move |holder: &Holder| {
            let soon = (UNIX_EPOCH + Duration::from_secs(self.not_after(*holder))).checked_sub(EXPIRES_SOON);
            soon.is_some_and(|soon| after < soon && soon <= until)
        };
        Holder::VARIANTS.iter().copied().filter(soon)
    }

    /// Stores a chain that weir starts to use. Warns if it is not valid now, or expires soon.
    pub(super) fn put_own(&self, path: &Path, chain: &[CertificateDer<'_>]) {
        let validities = || chain.iter().filter_map(Period::of);
        warn(path, validities().map(|one| one.not_before).max(), validities().map(|one| one.not_after).min());
        self.own.store(validities().map(|one| one.not_after).min().unwrap_or(0), Relaxed);
    }

    /// Stores the authorities of a file that weir starts to use. Warns if none is valid now, or all expire soon.
    pub(super) fn put_authorities(&self, path: &Path, authorities: &[CertificateDer<'_>]) {
        let validities = || authorities.iter().filter_map(Period::of);
        warn(path, validities().map(|one| one.not_before).min(), validities().map(|one| one.not_after).max());
        self.authority.store(validities().map(|one| one.not_after).max().unwrap_or(0), Relaxed);
    }

    /// Stores the certificate of a host until the result is dropped.
    fn put_peer(self: &Arc<Self>, host: &str, certificate: &CertificateDer<'_>) -> Option<Peer> {
        let not_after = Period::of(certificate)?.not_after;
        let host: Box<str> = host.into();
        let mut peers = self.peers.lock();
        let presented = peers.entry(host.clone()).or_insert(Presented { not_after, connections: 0 });
        presented.not_after = not_after;
        presented.connections += 1;
        Some(Peer { validity: self.clone(), host, not_after })
    }
}

/// The time in which a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    not_before: u64,
    not_after: u64,
}

impl Period {
    /// None if the certificate cannot be parsed. Only rustls decides whether it is accepted.
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = CertificateInner::<Raw>::from_der(certificate).ok()?;
        let validity = certificate.tbs_certificate().validity();
        Some(Self {
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }
}

/// Why each server refuses this chain of a client now, if the chain shows it.
pub(super) fn unfit(chain: &[CertificateDer<'_>]) -> Option<String> {
    let (now, periods) = (now(), || chain.iter().filter_map(Period::of));
    if let Some(expired) = periods().map(|period| period.not_after).find(|not_after| *not_after < now) {
        return Some(format!("has expired at {}", date(expired)));
    }
    if let Some(begins) = periods().map(|period| period.not_before).find(|not_before| *not_before > now) {
        return Some(format!("is not valid before {}", date(begins)));
    }
    let own = CertificateInner::<Raw>::from_der(chain.first()?).ok()?;
    let (_, usage) = own.tbs_certificate().get_extension::<ExtendedKeyUsage>().ok()??;
    let is_for_clients = usage.0.contains(&ID_KP_CLIENT_AUTH);
    (!is_for_clients).then(|| "is not for clients: its extended key usage has no clientAuth".to_owned())
}

/// When a certificate expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The last second in which it is valid, since 1970.
    not_after: u64,
}

impl Expiry {
    /// None if the certificate cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        Period::of(certificate).map(|period| Self { not_after: period.not_after })
    }

    /// How long the certificate is still valid, by the system's clock. None if it has expired.
    pub fn left(self) -> Option<Duration> {
        self.left_at(now())
    }

    fn left_at(self, now: u64) -> Option<Duration> {
        self.not_after.checked_sub(now).map(|left| Duration::from_secs(left.saturating_add(1)))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
}

fn warn(path: &Path, not_before: Option<u64>, not_after: Option<u64>) {
    let (Some(not_before), Some(not_after)) = (not_before, not_after) else { return };
    let (now, file) = (now(), path.display());
    if not_after < now {
        tracing::warn!(%file, not_after = date(not_after), "the certificate has expired");
    } else if not_before > now {
        tracing::warn!(%file, not_before = date(not_before), "the certificate is not valid yet");
    } else if not_after - now <= EXPIRES_SOON.as_secs() {
        tracing::warn!(%file, not_after = date(not_after), "the certificate expires soon");
    }
}

/// The certificate of a host, stored while a connection to it is open.
#[derive(Debug)]
struct Peer {
    validity: Arc<Validity>,
    host: Box<str>,
    not_after: u64,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut peers = self.validity.peers.lock();
        if let Some(presented) = peers.get_mut(&self.host) {
            presented.connections -= 1;
            if presented.connections == 0 {
                peers.remove(&self.host);
            }
        }
    }
}

/// A TLS connection to a server. The server's certificate counts as in use while the connection is open.
pub struct ClientStream<S> {
    stream: TlsStream<S>,
    peer: Option<Peer>,
}

impl<S> ClientStream<S> {
    /// Wraps a stream after the handshake with a host.
    pub(super) fn new(stream: TlsStream<S>, validity: &Arc<Validity>, host: &str) -> Self {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer = certificate.and_then(|certificate| validity.put_peer(host, certificate));
        Self { stream, peer }
    }

    /// How long to use the connection before it is replaced, to get the server's new certificate. None if the
    /// certificate has expired: a new connection would fail, and this one works.
    pub fn renew_after(&self) -> Option<Duration> {
        renew_after(self.peer.as_ref()?.not_after, now())
    }
}

fn renew_after(not_after: u64, now: u64) -> Option<Duration> {
    let left = Duration::from_secs(not_after.checked_sub(now)?);
    Some(left.saturating_sub(RENEWED_BEFORE).max(RENEWED_EVERY))
}

impl<S> fmt::Debug for ClientStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate that is valid until the first of January of that year, and this instant in seconds since 1970.
    fn until(year: i32) -> (CertificateDer<'static>, u64) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let expected = format!("{year}-01-01T00:00:00Z").parse::<jiff::Timestamp>().unwrap().as_second();
        (certificate.der().clone(), expected.try_into().unwrap())
    }

    fn ends(validity: &Validity) -> Vec<u64> {
        Holder::VARIANTS.iter().map(|holder| validity.not_after(*holder)).collect()
    }

    #[test]
    fn the_first_of_a_chain_counts_and_the_last_of_the_authorities() {
        let validity = Validity::default();
        assert_eq!(ends(&validity), [0; 3]);
        let ((early, first), (late, last)) = (until(2031), until(2066));
        validity.put_own(Path::new("chain"), &[late.clone(), early.clone()]);
        validity.put_authorities(Path::new("ca"), &[early, late]);
        assert_eq!(ends(&validity), [first, last, 0]);
        validity.put_own(Path::new("chain"), &[CertificateDer::from(vec![0; 9])]);
        assert_eq!(validity.not_after(Holder::Own), 0, "the certificate cannot be parsed");
    }

    /// A certificate was in the log only when weir began to use it, which can be a year before.
    #[test]
    fn a_certificate_that_begins_to_expire_soon_is_seen_once() {
        let validity = Validity::default();
        let (certificate, not_after) = until(2031);
        validity.put_own(Path::new("chain"), &[certificate]);
        let soon = UNIX_EPOCH + Duration::from_secs(not_after) - EXPIRES_SOON;
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let begin = |after, until| validity.begin_to_expire(after, until).collect::<Vec<_>>();
        assert_eq!(begin(soon - minute, soon - second), []);
        assert_eq!(begin(soon - second, soon), [Holder::Own]);
        assert_eq!(begin(soon, soon + minute), []);
    }

    #[test]
    fn a_server_counts_while_a_connection_is_open_and_by_its_latest_certificate() {
        let validity = Arc::<Validity>::default();
        let ((early, first), (late, last)) = (until(2031), until(2066));
        let old = validity.put_peer("one", &early).unwrap();
        let other = validity.put_peer("other", &late).unwrap();
        assert_eq!(validity.not_after(Holder::Peer), first);
        let new = validity.put_peer("one", &late).unwrap();
        assert_eq!(validity.not_after(Holder::Peer), last, "the server has a new certificate");
        drop((old, other));
        assert_eq!(validity.not_after(Holder::Peer), last);
        drop(new);
        assert_eq!(validity.not_after(Holder::Peer), 0);
    }

    #[test]
    fn a_certificate_is_valid_in_its_last_second() {
        let (certificate, not_after) = until(2031);
        let expiry = Expiry::of(&certificate).unwrap();
        assert_eq!(expiry.left_at(not_after - 9), Some(Duration::from_secs(10)));
        assert_eq!(expiry.left_at(not_after), Some(Duration::from_secs(1)));
        assert_eq!(expiry.left_at(not_after + 1), None);
    }

    #[test]
    fn a_connection_is_renewed_hourly_before_the_certificate_expires_and_not_after() {
        let day = 24 * 3_600;
        for (left, expected) in [
            (-1, None),
            (0, Some(RENEWED_EVERY)),
            (20 * day, Some(RENEWED_EVERY)),
            (31 * day, Some(Duration::from_secs(10 * 24 * 3_600))),
        ] {
            assert_eq!(renew_after(1_000_000_000_u64.saturating_add_signed(left), 1_000_000_000), expected, "{left}");
        }
    }
}
