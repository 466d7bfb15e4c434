//! Sentinels: real ones, and one that says what the test wants it to say.
//!
//! Not in here: the servers that they watch (redis.rs).

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::redis::RedisServer;
use super::wait::{PATIENCE, until, within};

/// The name by which all sentinels here know their master.
pub const MASTER: &str = "limits";

/// How long a failover may take: the master is missed, a leader is elected, a replica promoted. Sentinels wait between
/// those steps, and for longer where an election had no winner.
pub const FAILOVER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A port that was free may be taken by the time it is used: then another one is tried.
const STARTS_MAX: u32 = 5;

/// Real sentinels that watch one master. They are killed when dropped.
#[derive(Debug)]
pub struct SentinelSet {
    sentinels: Vec<RealSentinel>,
    password: String,
}

#[derive(Debug)]
struct RealSentinel {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl SentinelSet {
    /// Starts `count` of them, which want `password`, and waits until each knows the others and `replicas` replicas of
    /// the master, to which they log in by `master_password`.
    pub fn start(
        count: usize,
        password: &str,
        master: &RedisServer,
        master_password: &str,
        replicas: usize,
    ) -> SentinelSet {
        let mut set = SentinelSet { sentinels: Vec::new(), password: password.to_owned() };
        for _ in 0..count {
            let sentinel = set.start_one(count / 2 + 1, master, master_password);
            set.sentinels.push(sentinel);
        }
        let others = (count - 1).to_string();
        for sentinel in &set.sentinels {
            until("the sentinels to know each other and the replicas", FAILOVER_PATIENCE, || {
                let known = set.ask(sentinel.port, &["SENTINEL", "MASTER", MASTER])?;
                let is = |name: &str, value: &str| {
                    let mut lines = known.lines().map(str::trim);
                    lines.any(|line| line == name) && lines.next() == Some(value)
                };
                let done = is("num-other-sentinels", &others) && is("num-slaves", &replicas.to_string());
                (done && set.replicas_are_ready(sentinel.port)).then_some(())
            });
        }
        set
    }

    fn start_one(&self, quorum: usize, master: &RedisServer, master_password: &str) -> RealSentinel {
        for _ in 0..STARTS_MAX {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("the port has a number").port();
            drop(listener);
            let directory = TempDir::new().expect("a temporary directory");
            let file = directory.path().join("sentinel.conf");
            let settings = format!(
                "bind 127.0.0.1\nport {port}\ndir {dir}\nrequirepass {password}\n\
                 sentinel sentinel-pass {password}\n\
                 sentinel monitor {MASTER} 127.0.0.1 {master_port} {quorum}\n\
                 sentinel auth-pass {MASTER} {master_password}\n\
                 sentinel down-after-milliseconds {MASTER} 500\n\
                 sentinel failover-timeout {MASTER} 2000\n\
                 sentinel parallel-syncs {MASTER} 1\n",
                dir = directory.path().display(),
                password = self.password,
                master_port = master.port(),
            );
            std::fs::write(&file, settings).expect("the settings are written");
            let child = Command::new(super::redis::program())
                .arg(&file)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/test installs it"));
            let mut sentinel = RealSentinel { child, port, _directory: directory };
            let up = within(PATIENCE, || {
                if sentinel.child.try_wait().is_ok_and(|status| status.is_some()) {
                    return Some(false);
                }
                let info = self.ask(port, &["INFO", "server"])?;
                let own = format!("process_id:{}", sentinel.child.id());
                info.lines().any(|line| line.trim() == own).then_some(true)
            });
            if up == Some(true) {
                return sentinel;
            }
        }
        panic!("a sentinel does not start");
    }

    /// Whether a sentinel could promote a replica: it is in sync, and was heard of lately.
    fn replicas_are_ready(&self, port: u16) -> bool {
        let Some(replicas) = self.ask(port, &["SENTINEL", "REPLICAS", MASTER]) else {
            return false;
        };
        let mut lines = replicas.lines().map(str::trim);
        let mut states = Vec::new();
        while let Some(line) = lines.next() {
            if line == "master-link-status" {
                states.push(lines.next().unwrap_or_default().to_owned());
            }
        }
        !states.is_empty() && states.iter().all(|state| state == "ok")
    }

    /// `host:port` of each, separated by commas.
    pub fn hosts(&self) -> String {
        let mut text = String::new();
        for sentinel in &self.sentinels {
            let comma = if text.is_empty() { "" } else { "," };
            write!(text, "{comma}127.0.0.1:{}", sentinel.port).expect("a text takes everything");
        }
        text
    }

    /// The ports.
    pub fn ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(|sentinel| sentinel.port).collect()
    }

    /// The port of the master that every sentinel names, if they agree.
    pub fn master(&self) -> Option<u16> {
        let mut named = None;
        for sentinel in &self.sentinels {
            let answer = self.ask(sentinel.port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])?;
            let port: u16 = answer.lines().nth(1)?.trim().parse().ok()?;
            if named.is_some_and(|named| named != port) {
                return None;
            }
            named = Some(port);
        }
        named
    }

    /// Waits until so many clients have subscribed to failovers at each of them.
    pub fn wait_for_subscribers(&self, count: usize) {
        for sentinel in &self.sentinels {
            until("the subscriptions to failovers", PATIENCE, || {
                let clients = self.ask(sentinel.port, &["CLIENT", "LIST"])?;
                let subscribed = |line: &&str| line.split(' ').any(|field| field == "sub=2");
                (clients.lines().filter(subscribed).count() >= count).then_some(())
            });
        }
    }

    /// Orders a failover, without one being needed.
    pub fn fail_over(&self) {
        let port = self.sentinels[0].port;
        let answer = until("the sentinel to begin a failover", FAILOVER_PATIENCE, || {
            let answer = self.ask(port, &["SENTINEL", "FAILOVER", MASTER])?;
            // NOGOODSLAVE and INPROG pass.
            (answer.trim() == "OK").then_some(answer)
        });
        assert_eq!(answer.trim(), "OK");
    }

    /// Runs a command on each of them.
    pub fn command(&self, arguments: &[&str]) {
        for sentinel in &self.sentinels {
            let answer = self.ask(sentinel.port, arguments);
            assert_eq!(answer.as_deref().map(str::trim), Some("OK"), "{arguments:?}");
        }
    }

    fn ask(&self, port: u16, arguments: &[&str]) -> Option<String> {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--no-auth-warning", "-a", &self.password])
            .args(arguments)
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for RealSentinel {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sentinel that answers as it is told, and counts how often it was asked for the master. Its threads end with the
/// test process.
#[derive(Clone, Debug)]
pub struct FakeSentinel {
    port: u16,
    state: Arc<Mutex<Script>>,
}

#[derive(Debug, Default)]
struct Script {
    /// The port of the master to name; none for a master of which nothing is known.
    named: Option<u16>,
    /// Accepts connections and never answers.
    silent: bool,
    asked: usize,
    /// Every command that came, without its arguments.
    commands: Vec<String>,
    connections: usize,
    /// Those that have subscribed, each with the channel.
    subscribers: Vec<(String, TcpStream)>,
}

impl FakeSentinel {
    /// Listens, and names the server on `port`.
    pub fn naming(port: Option<u16>) -> FakeSentinel {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("the port has a number").port();
        let state = Arc::new(Mutex::new(Script { named: port, ..Script::default() }));
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let state = shared.clone();
                // A client that leaves is no failure.
                thread::spawn(move || drop(converse(client, &state)));
            }
        });
        FakeSentinel { port: own, state }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on it names this one.
    pub fn name(&self, port: Option<u16>) {
        self.state.lock().expect("no thread panics").named = port;
    }

    /// From now on it answers nothing, or answers again.
    pub fn silence(&self, silent: bool) {
        self.state.lock().expect("no thread panics").silent = silent;
    }

    /// How often it was asked for the master.
    pub fn asked(&self) -> usize {
        self.state.lock().expect("no thread panics").asked
    }

    /// How many connections were made to it.
    pub fn connections(&self) -> usize {
        self.state.lock().expect("no thread panics").connections
    }

    /// Publishes an event to those that have subscribed to its channel. Returns how many they are.
    pub fn publish(&self, channel: &str, text: &str) -> usize {
        let message = message(["message", channel, text]);
        let mut state = self.state.lock().expect("no thread panics");
        let subscribers = state.subscribers.iter_mut().filter(|(subscribed, _)| subscribed == channel);
        subscribers.filter_map(|(_, stream)| stream.write_all(message.as_bytes()).ok()).count()
    }

    /// The commands that came, in their order.
    pub fn commands(&self) -> Vec<String> {
        self.state.lock().expect("no thread panics").commands.clone()
    }
}

fn converse(client: TcpStream, state: &Mutex<Script>) -> std::io::Result<()> {
    let mut answers = client.try_clone()?;
    state.lock().expect("no thread panics").connections += 1;
    let mut requests = BufReader::new(client);
    loop {
        let count = number(&mut requests, '*')?;
        let mut words = Vec::new();
        for _ in 0..count {
            let length = number(&mut requests, '$')?;
            let mut word = vec![0; length + 2];
            requests.read_exact(&mut word)?;
            word.truncate(length);
            words.push(String::from_utf8_lossy(&word).into_owned());
        }
        let answer = {
            let mut state = state.lock().expect("no thread panics");
            let command = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
            state.commands.push(command.clone());
            if state.silent {
                continue;
            }
            match command.as_str() {
                "SENTINEL" => {
                    state.asked += 1;
                    match state.named {
                        Some(port) => {
                            let port = port.to_string();
                            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                        }
                        None => "*-1\r\n".to_owned(),
                    }
                }
                "SUBSCRIBE" => {
                    state.subscribers.push((words[1].clone(), answers.try_clone()?));
                    message(["subscribe", &words[1], "1"])
                }
                "PING" => "+PONG\r\n".to_owned(),
                _ => "+OK\r\n".to_owned(),
            }
        };
        answers.write_all(answer.as_bytes())?;
    }
}

/// An array of texts.
fn message(words: [&str; 3]) -> String {
    words.iter().fold("*3\r\n".to_owned(), |text, word| format!("{text}${}\r\n{word}\r\n", word.len()))
}

/// Reads the number of a line such as `*3`.
fn number(from: &mut impl BufRead, mark: char) -> std::io::Result<usize> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let digits = line.strip_prefix(mark).map(str::trim_end);
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
