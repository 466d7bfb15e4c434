//! Sends the statistics of envoyproxy/ratelimit to a StatsD server, by TCP or UDP.
//!
//! Nothing waits for the server. Without a connection the counters keep growing, and the next lines have the increase.
//! A line that was written to a connection that then broke is not sent again, so no hit is counted twice. Not here: the
//! format of lines (lines.rs).

mod lines;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use weir_lifecycle::on_own_thread;
use weir_tls::backoff::doubled;

use self::lines::{Lines, Packet};
use super::complaint::Complaint;
use super::metrics::Metrics;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long the server may take to read one packet.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of the last send during shutdown.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// The first and the longest pause before the next connection attempt.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// The bytes of a packet: with UDP what fits into an Ethernet frame, and with TCP.
const PACKET_BYTES: (usize, usize) = (1_432, 65_536);

/// Sends statistics to this server, `HOST:PORT`, until `stop` ends, and then the rest. A name is looked up for each connection.
///
/// # Errors
/// None; the type is that of a supervised task.
pub async fn run(
    address: String,
    settings: weir_settings::Statsd,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let mut ticks = tokio::time::interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // DogStatsD always uses UDP.
    let is_udp = settings.is_udp || settings.is_dogstatsd;
    let packet_bytes = if is_udp { PACKET_BYTES.0 } else { PACKET_BYTES.1 };
    let lines = Lines::new(settings.is_dogstatsd, settings.tags, &settings.mogrifiers, packet_bytes);
    let mut sender = Sender::new(address, is_udp, lines, metrics);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        sender.send().await;
    }
    // The last attempt does not wait for a pause.
    sender.retry_at = None;
    if timeout(LAST_TIMEOUT, sender.send()).await.is_err() {
        tracing::warn!(address = sender.address, "the last statistics did not reach the statsd server in time");
    }
    sender.close().await;
    Ok(())
}

enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

struct Sender {
    address: String,
    is_udp: bool,
    /// None during a flush.
    lines: Option<Lines>,
    metrics: Arc<Metrics>,
    connection: Option<Connection>,
    retry_at: Option<Instant>,
    /// Failed attempts to connect since the last connection.
    failures: u32,
    complaint: Complaint,
}

impl Sender {
    fn new(address: String, is_udp: bool, lines: Lines, metrics: Arc<Metrics>) -> Self {
        Self {
            address,
            is_udp,
            lines: Some(lines),
            metrics,
            connection: None,
            retry_at: None,
            failures: 0,
            // Logged once, until there is a connection again.
            complaint: Complaint::new(Duration::MAX),
        }
    }

    /// Sends the changed statistics, if there is a connection or one can be made.
    async fn send(&mut self) {
        if !self.connect().await {
            return;
        }
        let Some(lines) = self.lines.take() else { return };
        let mut flush = lines.flush(self.metrics.clone());
        // Reading many statistics takes milliseconds.
        loop {
            let (packets, rest) = on_own_thread(move || (flush.next(), flush)).await;
            flush = rest;
            if packets.is_empty() || !self.send_packets(packets).await {
                break;
            }
        }
        let (lines, left) = flush.end();
        self.lines = Some(lines);
        self.metrics.statsd_dropped().add(left);
    }

    /// Returns whether there is still a connection.
    async fn send_packets(&mut self, packets: Vec<Packet>) -> bool {
        for packet in packets {
            if self.connection.is_none() {
                self.metrics.statsd_dropped().add(packet.lines);
            } else if let Err(error) = self.send_packet(&packet).await {
                self.metrics.statsd_dropped().add(packet.lines);
                self.complain(&error);
                // With UDP the next datagram can still arrive.
                if !self.is_udp {
                    self.connection = None;
                }
            }
        }
        self.connection.is_some()
    }

    async fn send_packet(&mut self, packet: &Packet) -> io::Result<()> {
        match &mut self.connection {
            Some(Connection::Tcp(stream)) => {
                let written = timeout(WRITE_TIMEOUT, stream.write_all(packet.text.as_bytes())).await;
                written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
            Some(Connection::Udp(socket)) => {
                // Without the last line break, because a datagram has its own end.
                socket.send(packet.text.trim_end_matches('\n').as_bytes()).await.map(drop)
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Whether there is a connection.
    async fn connect(&mut self) -> bool {
        if let Some(Connection::Tcp(stream)) = &self.connection
            && is_closed(stream)
        {
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let dialled = timeout(CONNECT_TIMEOUT, dial(&self.address, self.is_udp)).await;
        match dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(connection) => {
                self.connection = Some(connection);
                (self.retry_at, self.failures) = (None, 0);
                if !self.is_udp && self.complaint.ended().is_some() {
                    tracing::info!(address = self.address, "connected to the statsd server");
                }
                true
            }
            Err(error) => {
                self.complain(&error);
                self.retry_at = Some(Instant::now() + doubled(RETRY.0, self.failures, RETRY.1));
                self.failures = self.failures.saturating_add(1);
                false
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if self.complaint.failed(1).is_some() {
            tracing::warn!(address = self.address, %error, "no statsd server: statistics are not sent until there is one");
        }
    }

    async fn close(&mut self) {
        if let Some(Connection::Tcp(stream)) = &mut self.connection {
            // Ignores a connection that cannot be closed.
            let _ = timeout(WRITE_TIMEOUT, stream.shutdown()).await;
        }
    }
}

async fn dial(address: &str, is_udp: bool) -> io::Result<Connection> {
    if !is_udp {
        return Ok(Connection::Tcp(TcpStream::connect(address).await?));
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for server in lookup_host(address).await? {
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).await?;
        match socket.connect(server).await {
            Ok(()) => return Ok(Connection::Udp(socket)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the server has closed its side: lines written after that would be lost. Bytes from the server are ignored.
fn is_closed(stream: &TcpStream) -> bool {
    let mut ignored = [0; 256];
    loop {
        match stream.try_read(&mut ignored) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}
