//! The login and the first answer on a new connection.
//!
//! Not here: the credentials (credentials.rs), and later batches (connection.rs).

use redis::{ServerError, ServerErrorKind, Value};

use super::command_buffer::CommandBuffer;
use super::connection::{Broken, Connection, Stream};
use super::credentials::Login;
use super::meter::Meter;
use crate::redis::base::dial_error::DialError;

/// The connection's name in `CLIENT LIST`.
const CLIENT_NAME: &str = "weir";

/// Logs in on a stream that `meter` measures, and requests a first answer. So a server that accepts connections but is
/// stopped, loading, or needs a password is found before a call is sent to it.
///
/// # Errors
///
/// When the server cannot be used, with the reason for people.
pub(crate) async fn greet(stream: impl Stream + 'static, meter: Meter, login: &Login) -> Result<Connection, DialError> {
    let mut connection = Connection::new(stream, meter);
    let error = match log_in(&mut connection, login).await {
        Ok(None) => return Ok(connection.greeted()),
        Ok(Some(error)) => DialError::from(&error),
        // A server with too many clients sends an error and closes the connection before any command.
        Err(broken) => match connection.last_words() {
            Some(error) => DialError::from(&error),
            None => DialError::from(broken),
        },
    };
    Err(error.without_password(login.password.as_deref()))
}

/// Returns the error of a server that refuses the login.
async fn log_in(connection: &mut Connection, login: &Login) -> Result<Option<ServerError>, Broken> {
    let mut refusal = authenticate(connection, login, login.username.as_deref()).await?;
    // A server without support for users accepts the password alone.
    if login.username.is_some() && refusal.as_ref().is_some_and(knows_no_users) {
        refusal = authenticate(connection, login, None).await?;
    }
    if refusal.is_some() {
        return Ok(refusal);
    }
    let mut greeting = CommandBuffer::default();
    greeting.add(redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME));
    greeting.add(&redis::cmd("PING"));
    // A user without the right to either command is acceptable.
    Ok(match connection.exchange(&greeting).await?.into_iter().nth(1) {
        Some(Value::ServerError(error)) if error.kind() != Some(ServerErrorKind::NoPerm) => Some(error),
        _ => None,
    })
}

/// Sends the password, if any, and selects the database. Returns the error of a server that refuses one of them.
async fn authenticate(
    connection: &mut Connection,
    login: &Login,
    username: Option<&str>,
) -> Result<Option<ServerError>, Broken> {
    let mut request = CommandBuffer::default();
    if let Some(password) = &login.password {
        request.add(redis::cmd("AUTH").arg(username).arg(&**password));
    }
    if login.database != 0 {
        request.add(redis::cmd("SELECT").arg(login.database));
    }
    if request.commands() == 0 {
        return Ok(None);
    }
    for answer in connection.exchange(&request).await? {
        match answer {
            Value::Okay => {}
            Value::ServerError(error) => return Ok(Some(error)),
            _ => return Err(Broken::new("its answer to the login is not a redis answer")),
        }
    }
    Ok(None)
}

fn knows_no_users(error: &ServerError) -> bool {
    error.details().is_some_and(|text| text.contains("wrong number of arguments for 'auth' command"))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll};

    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio_rustls::rustls::{ServerConfig, crypto};
    use weir_tls::{Tls, TlsFiles};

    use super::*;
    use crate::redis::dial::meter::Metered;

    /// A pipe whose writing end can block: then writes never complete.
    struct Stopped {
        pipe: DuplexStream,
        stopped: Arc<AtomicBool>,
    }

    impl AsyncRead for Stopped {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Stopped {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.stopped.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            Pin::new(&mut self.pipe).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_shutdown(context)
        }
    }

    /// Serves TLS on one end of a pipe, answers the handshake, and counts the bytes that it reads.
    async fn serve(pipe: DuplexStream, config: ServerConfig) -> usize {
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(pipe).await.unwrap();
        let mut greeting = [0; 256];
        assert!(stream.read(&mut greeting).await.unwrap() > 0);
        stream.write_all(b"+OK\r\n+PONG\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let mut rest = Vec::new();
        // The other end closes without a TLS alert.
        let _ = stream.read_to_end(&mut rest).await;
        rest.len()
    }

    /// Reads the next bytes, and answers them.
    async fn answer(server: &mut DuplexStream, answer: &[u8]) {
        assert!(server.read(&mut [0; 256]).await.unwrap() > 0);
        server.write_all(answer).await.unwrap();
    }

    /// A connection after its handshake, and its server.
    async fn greeted() -> (Connection, DuplexStream) {
        let (client, mut server) = tokio::io::duplex(1 << 10);
        let login = Login::default();
        let handshake = greet(client, Meter::default(), &login);
        let (connection, ()) = tokio::join!(handshake, answer(&mut server, b"+OK\r\n+PONG\r\n"));
        (connection.unwrap(), server)
    }

    /// Asserts that nothing of a further batch is sent.
    async fn check_is_over(mut connection: Connection, batch: &CommandBuffer, reason: &str) {
        assert!(!connection.is_reusable());
        let written = connection.bytes_written();
        assert_eq!(connection.exchange(batch).await.unwrap_err().to_string(), reason);
        assert_eq!(connection.bytes_written(), written);
    }

    #[tokio::test]
    async fn a_byte_that_no_request_waits_for_ends_the_connection() {
        let batch = CommandBuffer::of(&redis::cmd("DBSIZE"));
        let reason = |shown: &str| format!("a reply without a request: {shown:?}");
        // Together with the answer.
        for surplus in [":666\r\n", "$2\r\n", "x"] {
            let (mut connection, mut server) = greeted().await;
            let bytes = format!(":1\r\n{surplus}");
            let (answers, ()) = tokio::join!(connection.exchange(&batch), answer(&mut server, bytes.as_bytes()));
            assert_eq!(answers.unwrap(), [Value::Int(1)]);
            assert_eq!(connection.fault().unwrap().to_string(), reason(surplus));
            check_is_over(connection, &batch, &reason(surplus)).await;
        }
        // While the connection is idle.
        let (mut connection, mut server) = greeted().await;
        server.write_all(b":666\r\n").await.unwrap();
        std::future::poll_fn(|context| {
            connection.notice(context);
            Poll::Ready(())
        })
        .await;
        check_is_over(connection, &batch, &reason(":666\r\n")).await;
        // Before the next batch.
        let (connection, mut server) = greeted().await;
        server.write_all(b"$2\r\n").await.unwrap();
        let (mut connection, reason) = (connection, reason("$2\r\n"));
        let written = connection.bytes_written();
        assert_eq!(connection.exchange(&batch).await.unwrap_err().to_string(), reason);
        assert_eq!(connection.bytes_written(), written);
        check_is_over(connection, &batch, &reason).await;
    }

    #[tokio::test]
    async fn what_a_server_answers_against_the_protocol_is_shown() {
        let batch = CommandBuffer::of(&redis::cmd("DBSIZE"));
        for (bytes, reason) in [
            (&b"hello\r\n"[..], "a reply that is not RESP: a value begins with \"hello\\r\\n\""),
            (b":x\r\n", "a reply that is not RESP: "),
        ] {
            let (mut connection, mut server) = greeted().await;
            let (answers, ()) = tokio::join!(connection.exchange(&batch), answer(&mut server, bytes));
            let text = answers.unwrap_err().to_string();
            assert!(text.starts_with(reason), "{text}");
            assert!(!connection.is_reusable());
        }
        let (mut connection, mut server) = greeted().await;
        let closes = async {
            answer(&mut server, b":").await;
            drop(server);
        };
        let (answers, ()) = tokio::join!(connection.exchange(&batch), closes);
        assert_eq!(answers.unwrap_err().to_string(), "it closed the connection");
        assert!(!connection.is_reusable());
    }

    #[tokio::test]
    async fn an_error_that_a_server_sends_before_it_closes_is_the_reason() {
        for (error, kind) in [
            ("-ERR max number of clients reached\r\n", "max_clients"),
            ("-NOAUTH Authentication required.\r\n", "noauth"),
        ] {
            let (client, mut server) = tokio::io::duplex(1 << 10);
            server.write_all(error.as_bytes()).await.unwrap();
            drop(server);
            let error = greet(client, Meter::default(), &Login::default()).await.err().unwrap();
            assert_eq!(error.kind, kind, "{error}");
        }
    }

    #[tokio::test]
    async fn a_server_without_users_gets_the_password_alone() {
        let (client, mut server) = tokio::io::duplex(1 << 10);
        let login = Login { username: Some("weir".into()), password: Some("secret".into()), database: 0 };
        let script = async {
            answer(&mut server, b"-ERR wrong number of arguments for 'auth' command\r\n").await;
            answer(&mut server, b"+OK\r\n").await;
            answer(&mut server, b"+OK\r\n+PONG\r\n").await;
        };
        let (connection, ()) = tokio::join!(greet(client, Meter::default(), &login), script);
        assert!(connection.unwrap().is_reusable());
    }

    #[tokio::test]
    async fn what_tls_keeps_back_does_not_count_as_written_and_goes_with_the_connection() {
        let params = CertificateParams::new(vec!["redis.internal".to_owned()]).unwrap();
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, issuer.pem()).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issuer.der().clone()], PrivatePkcs8KeyDer::from(issuer.key().serialize_der()).into())
            .unwrap();

        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let server = tokio::spawn(serve(theirs, config));
        let stopped = Arc::new(AtomicBool::new(false));
        let meter = Meter::default();
        let below = Metered::new(Stopped { pipe: ours, stopped: stopped.clone() }, &meter);
        let tls = Arc::new(Tls::new(TlsFiles { ca: Some(ca), ..TlsFiles::default() }));
        let stream = tls.handshake("redis.internal", below, |_| ()).await.unwrap();
        let mut connection = greet(stream, meter, &Login::default()).await.unwrap();

        let before = connection.bytes_written();
        assert!(before > 0, "the greeting was written");
        stopped.store(true, Ordering::SeqCst);
        let batch = CommandBuffer::of(redis::cmd("INCR").arg("n"));
        {
            let mut exchange = std::pin::pin!(connection.exchange(&batch));
            // As often as a runtime would poll: TLS has the batch now, and cannot send it.
            for _ in 0..10 {
                let polled = std::future::poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
                assert!(polled.is_pending());
            }
        }
        assert_eq!(connection.bytes_written(), before);
        assert!(!connection.is_reusable());
        stopped.store(false, Ordering::SeqCst);
        drop(connection);
        assert_eq!(server.await.unwrap(), 0, "nothing of the batch has left");
    }
}
