//! Sends the statistics of envoyproxy/ratelimit to a StatsD server, by TCP or UDP.
//!
//! Nothing waits for the server. Without a connection the counters keep growing, and the next lines have the increase.
//! A line that was written to a connection that then broke is not sent again, so no hit is counted twice. Not here: the
//! format of lines (lines.rs).

mod lines;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use weir_lifecycle::on_own_thread;
use weir_tls::backoff::doubled;

pub use self::lines::{Format, Mogrifier};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

#[derive(Debug)]
pub struct Options {
    /// The server, `HOST:PORT`. Names are looked up for each connection.
    pub address: String,
    pub transport: Transport,
    pub format: Format,
    pub interval: Duration,
    pub tags: Vec<(String, String)>,
    /// Replaces names; the first match counts. For DogStatsD.
    pub mogrifiers: Vec<Mogrifier>,
}

/// Sends statistics until `stop` ends, and then the rest.
///
/// # Errors
/// None; the type is that of a supervised task.
pub async fn run(options: Options, metrics: Arc<Metrics>, stop: impl Future<Output = ()>) -> Result<(), String> {
    let mut ticks = tokio::time::interval(options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let packet_bytes = match options.transport {
        Transport::Tcp => PACKET_BYTES.1,
        Transport::Udp => PACKET_BYTES.0,
    };
    let lines = Lines::new(options.format, options.tags, options.mogrifiers, packet_bytes);
    let mut sender = Sender::new(options.address, options.transport, lines, metrics);
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
    transport: Transport,
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
    fn new(address: String, transport: Transport, lines: Lines, metrics: Arc<Metrics>) -> Self {
        Self {
            address,
            transport,
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
                if self.transport == Transport::Tcp {
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
        match timeout(CONNECT_TIMEOUT, dial(&self.address, self.transport)).await {
            Ok(Ok(connection)) => {
                self.connection = Some(connection);
                (self.retry_at, self.failures) = (None, 0);
                if self.transport == Transport::Tcp && self.complaint.ended().is_some() {
                    tracing::info!(address = self.address, "connected to the statsd server");
                }
                true
            }
            failed => {
                let error = failed.map_or_else(
                    |_| io::ErrorKind::TimedOut.into(),
                    |dialled| dialled.err().unwrap_or_else(|| io::ErrorKind::Other.into()),
                );
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

async fn dial(address: &str, transport: Transport) -> io::Result<Connection> {
    match transport {
        Transport::Tcp => Ok(Connection::Tcp(TcpStream::connect(address).await?)),
        Transport::Udp => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for server in tokio::net::lookup_host(address).await? {
                let any: std::net::IpAddr = if server.is_ipv4() {
                    std::net::Ipv4Addr::UNSPECIFIED.into()
                } else {
                    std::net::Ipv6Addr::UNSPECIFIED.into()
                };
                let socket = UdpSocket::bind((any, 0)).await?;
                match socket.connect(server).await {
                    Ok(()) => return Ok(Connection::Udp(socket)),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
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
