//! Opens a TCP connection to the first address of a name that accepts it.
//!
//! Some addresses of a name can drop every packet: the dead pod of a headless service, or IPv6 without a route. If weir
//! tried them one after the other, the first one would use up the time of each dial. So each attempt gets a head start,
//! and then the next one starts in parallel (RFC 8305, "happy eyeballs", in the order of the resolver). Not here:
//! protocols, and the time limit.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The head start of one attempt before the next. It is more than a connection within a data centre takes, and short
/// enough for [`ADDRESSES_MAX`] attempts within the default of `redis.connect_timeout`.
const HEAD_START: Duration = Duration::from_millis(25);

/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// How long a TCP connection may be silent before the kernel probes it. This detects peers that disappeared while a
/// connection was in the pool.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);

/// The time between two probes. The system's default number of probes (nine on Linux) may fail.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// Connects to `host`, a name or an address. The caller sets the time limit.
///
/// # Errors
/// When the name has no address, or no address accepts; then the error of the last attempt.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.take(ADDRESSES_MAX).collect();
    let stream = first_of(&addresses).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// The first connection that succeeds. The other attempts are dropped.
async fn first_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut rest = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        // Each iteration starts one more attempt: the attempts so far have failed, or their head start is over.
        if let Some(address) = rest.next() {
            attempts.push(TcpStream::connect(address));
        }
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(failed)) => error = failed,
                None => return Err(error),
            },
            () = tokio::time::sleep(HEAD_START), if rest.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Longer than any connection to loopback takes, and shorter than Linux retries an unanswered one.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// An address that does not answer a SYN: a listener whose queue the connections keep full.
    async fn black_hole() -> (SocketAddr, Socket, Vec<TcpStream>) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(one)) = tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            held.push(one);
            assert!(held.len() < 64, "a full queue drops connections");
        }
        (address, socket, held)
    }

    #[tokio::test]
    async fn an_address_that_answers_nothing_does_not_defeat_the_next() {
        let (hole, _socket, _held) = black_hole().await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let connected = tokio::time::timeout(PATIENCE / 20, first_of(&[hole, hole, good])).await;
        assert_eq!(connected.expect("within a dial's time").unwrap().peer_addr().unwrap(), good);
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_no_reason_to_wait() {
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let connected = tokio::time::timeout(PATIENCE, first_of(&[refusing, good])).await.unwrap();
        assert_eq!(connected.unwrap().peer_addr().unwrap(), good);
        let error = tokio::time::timeout(PATIENCE, first_of(&[refusing])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = first_of(&[]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
