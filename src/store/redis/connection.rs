//! One open connection to Redis: the greeting, a batch and its answers, and the meter that tells whether
//! anything of a batch has left this process.
//!
//! Not in here: how the stream below was opened (endpoint.rs), and when a connection is used again
//! (pool.rs).

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, ServerError, ServerErrorKind, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::refusal::{self, Refusal};
use super::sentinel::Term;
use crate::tls;

/// The most bytes that the answers to one batch may take. The largest honest answer (every call of a
/// batch with the most charges) stays below it; a server that sends more is not one that we know.
pub const REPLIES_BYTES_MAX: usize = 16 << 20;

/// The name that a connection shows in `CLIENT LIST`.
const CLIENT_NAME: &str = "weir";

/// One connection, used by one batch at a time.
///
/// redis' multiplexed connection is two halves: one takes requests, the other, the driver, does the
/// reading and writing and is usually a task of its own. Here the driver is polled by whoever waits
/// for the answer. That saves two switches of task for each batch, and nothing moves on the socket
/// unless somebody waits: a batch that is given up writes nothing more, and dropping the connection
/// closes it on the spot.
pub struct Connection {
    requests: MultiplexedConnection,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The driver has ended: the socket is closed or of no use.
    closed: bool,
    /// Something was sent whose answer was not read. Never used again.
    unanswered: bool,
    meter: Arc<Meter>,
    /// Counts it among those that are open, where somebody wants to know.
    counted: Option<Counted>,
    /// Of the master that it goes to, where sentinels named it.
    term: Option<Term>,
}

/// One of the connections that a count holds, as long as it is there.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Counts it in `open` until it is dropped.
    pub(super) fn count_in(&mut self, open: &Arc<AtomicUsize>) {
        open.fetch_add(1, Ordering::Relaxed);
        self.counted = Some(Counted(open.clone()));
    }

    /// Logs in on a stream that `meter` measures, and asks for a first answer: a server that accepts
    /// connections but is stopped, still loading, or wants a password is found here, before a call is sent
    /// to it.
    ///
    /// # Errors
    ///
    /// Why the server is not one to use, for people.
    pub(super) async fn greet<S>(
        stream: S,
        meter: Arc<Meter>,
        login: &RedisConnectionInfo,
    ) -> Result<Connection, Unusable>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let heard = Arc::new(Heard::default());
        let greeted = Connection::log_in(Attentive { stream, heard: heard.clone() }, meter, login).await;
        let last_words = heard.stop();
        greeted.map_err(|error| match (last_words, heard.trouble.get()) {
            _ if error.code().is_some() => Unusable::at_login(error, login),
            // What Redis says first is why it closes: the rest is told in other words, or not at all.
            (Some(last_words), _) => Unusable::at_login(last_words.into(), login),
            (None, Some(trouble)) => trouble.clone().into(),
            (None, None) => Unusable::at_login(error, login),
        })
    }

    async fn log_in<S>(
        stream: Attentive<S>,
        meter: Arc<Meter>,
        login: &RedisConnectionInfo,
    ) -> Result<Connection, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        meter.allow(REPLIES_BYTES_MAX);
        // Both timeouts are ours: the dial has a bound, and each call has a deadline.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (requests, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
        let mut connection = Connection {
            requests,
            driver: Box::pin(driver),
            closed: false,
            unanswered: false,
            meter,
            counted: None,
            term: None,
        };
        let mut greeting = redis::pipe();
        greeting.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
        greeting.cmd("PING");
        let answers = connection.exchange(&greeting).await?;
        // A user may be denied both commands and still be the right one.
        match answers.into_iter().nth(1) {
            Some(Value::ServerError(error)) if error.kind() != Some(ServerErrorKind::NoPerm) => Err(error.into()),
            _ => Ok(connection),
        }
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is none, or when it is an error of the server; for people.
    pub(super) async fn ask(&mut self, command: Cmd) -> Result<Value, Unusable> {
        let mut batch = redis::pipe();
        batch.add_command(command);
        let answers = self.exchange(&batch).await?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) => Err(RedisError::from(error).into()),
            Some(answer) => Ok(answer),
            None => Err("no answer".to_owned().into()),
        }
    }

    /// Sends `batch` (not empty) as one pipeline and returns one answer for each command, an answer
    /// that is an error of the server included. Nothing is sent twice.
    ///
    /// The connection is unfit from the first poll until all answers are in: so it is not used again
    /// where this future fails or is dropped.
    ///
    /// # Errors
    ///
    /// When the connection breaks, answers what is no RESP, or answers more than
    /// [`REPLIES_BYTES_MAX`].
    pub async fn exchange(&mut self, batch: &redis::Pipeline) -> Result<Vec<Value>, RedisError> {
        self.unanswered = true;
        self.meter.allow(REPLIES_BYTES_MAX);
        let Connection { requests, driver, closed, .. } = self;
        let mut request = pin!(requests.send_packed_commands(batch, 0, batch.len()));
        let answers = poll_fn(|context| {
            // The request before the driver, so that the driver finds it; and again after, for the
            // answer that the driver may have read.
            if let Poll::Ready(answers) = request.as_mut().poll(context) {
                return Poll::Ready(answers);
            }
            if !*closed {
                *closed = driver.as_mut().poll(context).is_ready();
            }
            request.as_mut().poll(context)
        })
        .await;
        match answers {
            Ok(answers) if answers.len() == batch.len() => {
                self.unanswered = false;
                Ok(answers)
            }
            Ok(_) => Err((ErrorKind::Parse, "answers and calls differ in number").into()),
            Err(_) if self.meter.overrun() => {
                Err((ErrorKind::Parse, "the answers to one batch take too many bytes").into())
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes written to the socket so far. If it stands where it stood before a batch that failed,
    /// nothing of that batch has left this process.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.meter.bytes_written()
    }

    /// The same count, for who has an exchange under way.
    pub(super) fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    /// Closes the connection instead of giving it back: it works, but not for us (a replica, or a
    /// server that is still loading).
    pub fn condemn(&mut self) {
        self.unanswered = true;
    }

    /// It goes to a master that is in office for this term.
    pub(super) fn set_term(&mut self, term: Term) {
        self.term = Some(term);
    }

    /// Sentinels name another master by now: this one is to be left, although it may work.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.term.as_ref().is_some_and(Term::is_over)
    }

    /// It can be used for another batch.
    pub(super) fn fit(&self) -> bool {
        !self.closed && !self.unanswered && !self.is_superseded()
    }

    /// Lets it notice that its peer has closed it.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        if !self.closed {
            self.closed = self.driver.as_mut().poll(context).is_ready();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("closed", &self.closed)
            .field("unanswered", &self.unanswered)
            .finish_non_exhaustive()
    }
}

/// Why a server is not one to use.
#[derive(Clone, Debug)]
pub(super) struct Unusable {
    /// A word for metrics: that of the error by which Redis refused us, or [`NO_CONNECTION`].
    pub(super) kind: &'static str,
    /// A sentence for the operator, without secrets. It may be what the server said.
    pub(super) text: String,
}

/// The word where no Redis has answered.
pub(super) const NO_CONNECTION: &str = "no_connection";

impl From<String> for Unusable {
    fn from(text: String) -> Unusable {
        Unusable { kind: NO_CONNECTION, text }
    }
}

impl Unusable {
    /// What a server says against a login. It may repeat what it was sent, in whatever form: where the password stands
    /// in its text, nothing of that text is kept.
    fn at_login(error: RedisError, login: &RedisConnectionInfo) -> Unusable {
        let mut unusable = Unusable::from(error);
        let repeats = login.password().is_some_and(|password| unusable.text.contains(password));
        // That sentence is ours.
        if repeats && unusable.kind != "wrongpass" {
            "its answer repeats the password, and is not shown".clone_into(&mut unusable.text);
        }
        unusable
    }
}

impl From<RedisError> for Unusable {
    fn from(error: RedisError) -> Unusable {
        let Some(code) = error.code() else {
            return Unusable::from(refusal::without_arguments(&error.to_string()).to_owned());
        };
        let said = refusal::without_arguments(error.detail().unwrap_or_default());
        let text = format!("{code} {said}").trim_end().to_owned();
        match Refusal::of_parts(code, said).kind {
            kind @ "wrongpass" => {
                Unusable { kind, text: format!("it does not accept the user or the password ({code})") }
            }
            kind if kind == refusal::OTHER.kind => Unusable::from(text),
            kind => Unusable { kind, text },
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is remembered of the answers to a greeting, in bytes: a few of Redis' errors.
const HEARD_BYTES_MAX: usize = 1024;

/// What a server said until it was greeted. Atomics and a mutex only because the stream is owned by the driver; one
/// task touches both.
#[derive(Debug, Default)]
struct Heard {
    greeted: AtomicBool,
    bytes: Mutex<Vec<u8>>,
    /// How the stream failed first.
    trouble: OnceLock<String>,
}

impl Heard {
    fn listen(&self, bytes: &[u8]) {
        if !self.greeted.load(Ordering::Relaxed) {
            let mut heard = self.bytes.lock();
            let room = HEARD_BYTES_MAX - heard.len();
            heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// Keeps how the stream failed first: what comes later follows from that.
    fn note(&self, error: &io::Error) {
        self.trouble.get_or_init(|| tls::in_words(error));
    }

    /// Ends the greeting, and returns the last error that was heard.
    fn stop(&self) -> Option<ServerError> {
        self.greeted.store(true, Ordering::Relaxed);
        let heard = std::mem::take(&mut *self.bytes.lock());
        let mut last = None;
        for line in heard.split_inclusive(|&byte| byte == b'\n') {
            // A user may be denied what a greeting asks, and still be the right one.
            if let Ok(Value::ServerError(error)) = redis::parse_redis_value(line)
                && error.kind() != Some(ServerErrorKind::NoPerm)
            {
                last = Some(error);
            }
        }
        last
    }
}

/// The stream that the protocol is spoken on, through TLS or not, of which is remembered what it said first and how it
/// failed. A server that has too many clients, say, tells so and closes before anything is asked; one that does not
/// like our certificate tells so when the handshake is over for us. redis' own handshake then only knows that the pipe
/// is broken.
struct Attentive<S> {
    stream: S,
    heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> Attentive<S> {
    /// A server that has closed may have said why, and nobody reads it any more.
    fn hear_last_words(&mut self, context: &mut Context<'_>, error: &io::Error) {
        let mut last_words = [0; HEARD_BYTES_MAX];
        let mut buffer = ReadBuf::new(&mut last_words);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) => self.heard.listen(buffer.filled()),
            Poll::Ready(Err(said)) => self.heard.note(&said),
            Poll::Pending => {}
        }
        self.heard.note(error);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Attentive<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &result {
            Poll::Ready(Ok(())) => self.heard.listen(&buffer.filled()[before..]),
            Poll::Ready(Err(error)) => self.heard.note(error),
            Poll::Pending => {}
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Attentive<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(error)) = &result {
            self.hear_last_words(context, error);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Err(error)) = &result {
            self.hear_last_words(context, error);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What one connection has written, and what it may still read for this batch. Atomics only because
/// the stream is owned by the driver; one task touches both.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    readable: AtomicUsize,
    overrun: AtomicBool,
}

impl Meter {
    pub(super) fn bytes_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn allow(&self, bytes: usize) {
        self.readable.store(bytes, Ordering::Relaxed);
    }

    fn overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        let readable = self.readable.load(Ordering::Relaxed);
        if bytes > readable {
            self.overrun.store(true, Ordering::Relaxed);
            // Of the kinds that redis takes for the end of the connection.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.readable.store(readable - bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// A stream whose bytes are counted as they pass, in both directions.
///
/// Under TLS this is the stream below it: what TLS keeps back has not left the process, and records that
/// carry no batch (a new key, an alert) can only make us believe that something was sent.
pub(super) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, meter: &Arc<Meter>) -> Metered<S> {
        meter.allow(REPLIES_BYTES_MAX);
        Metered { stream, meter: meter.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = result {
            self.meter.read(buffer.filled().len() - before)?;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = result {
            self.meter.written.fetch_add(written as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio_rustls::rustls::{ServerConfig, crypto};

    use super::*;
    use crate::tls::{Tls, TlsFiles};

    #[test]
    fn what_a_server_says_to_a_login_never_holds_its_password() {
        let said = |answer: &str| match redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => {
                let login = RedisConnectionInfo::default().set_username("weir").set_password("password");
                let unusable = Unusable::at_login(error.into(), &login);
                (unusable.kind, unusable.text)
            }
            other => panic!("{other:?}"),
        };
        let check = |answer: &str, kind: &'static str, text: &str| assert_eq!(said(answer), (kind, text.to_owned()));
        let hidden = "its answer repeats the password, and is not shown";
        check(
            "ERR unknown command 'AUTH', with args beginning with: 'weir' 'password' ",
            "unknown_command",
            "ERR unknown command 'AUTH'",
        );
        check("ERR a proxy knows no AUTH weir password", NO_CONNECTION, hidden);
        check("password", NO_CONNECTION, hidden);
        check(
            "WRONGPASS invalid username-password pair",
            "wrongpass",
            "it does not accept the user or the password (WRONGPASS)",
        );
        check(
            "LOADING Redis is loading the dataset in memory",
            "loading",
            "LOADING Redis is loading the dataset in memory",
        );
    }

    /// A pipe whose writing end can be stopped up: what is written then waits for ever.
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

    /// Serves TLS on one end of a pipe, answers the greeting, and then counts what it reads.
    async fn serve(pipe: DuplexStream, config: ServerConfig) -> usize {
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(pipe).await.unwrap();
        let mut greeting = [0; 256];
        assert!(stream.read(&mut greeting).await.unwrap() > 0);
        stream.write_all(b"+OK\r\n+PONG\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let mut rest = Vec::new();
        // The other end hangs up without a word of TLS.
        let _ = stream.read_to_end(&mut rest).await;
        rest.len()
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
        let meter = Arc::new(Meter::default());
        let below = Metered::new(Stopped { pipe: ours, stopped: stopped.clone() }, &meter);
        let tls = Arc::new(Tls::new(TlsFiles { ca: Some(ca), ..TlsFiles::default() }));
        let stream = tls.handshake("redis.internal", below, |_| ()).await.unwrap();
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut connection = Connection::greet(stream, meter, &login).await.unwrap();

        let before = connection.bytes_written();
        assert!(before > 0, "the greeting was written");
        stopped.store(true, Ordering::SeqCst);
        let mut batch = redis::pipe();
        batch.cmd("INCR").arg("n");
        {
            let mut exchange = std::pin::pin!(connection.exchange(&batch));
            // As often as a runtime would: the batch is with TLS now, and TLS cannot get rid of it.
            for _ in 0..10 {
                let polled = std::future::poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
                assert!(polled.is_pending());
            }
        }
        assert_eq!(connection.bytes_written(), before);
        assert!(!connection.fit());
        stopped.store(false, Ordering::SeqCst);
        drop(connection);
        assert_eq!(server.await.unwrap(), 0, "nothing of the batch has left");
    }
}
