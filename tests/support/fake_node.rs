//! A node of a Redis Cluster that says what a test tells it to: for what real nodes seldom say, or not for long. It reads
//! commands as Redis does, and answers connections and handshakes by itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What a node answers to a command, in RESP. It closes the connection in place of an empty answer.
pub type Answers = Arc<dyn Fn(&[String]) -> String + Send + Sync>;

/// A running one. It ends with the test process; its threads wait on sockets and do nothing else.
pub struct FakeNode {
    port: u16,
    answers: Arc<Mutex<Answers>>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl FakeNode {
    /// Listens on a free port of loopback. What it says is set by [`FakeNode::says`].
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("the port has a number").port();
        let nothing: Answers = Arc::new(|_| "-ERR nothing to say\r\n".into());
        let (answers, heard) = (Arc::new(Mutex::new(nothing)), Arc::new(Mutex::new(Vec::new())));
        let shared = (answers.clone(), heard.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let (answers, heard) = shared.clone();
                thread::spawn(move || serve(&client, &answers, &heard));
            }
        });
        Self { port, answers, heard }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on it answers that to everything but handshakes.
    pub fn says(&self, answers: impl Fn(&[String]) -> String + Send + Sync + 'static) {
        *self.answers.lock().unwrap() = Arc::new(answers);
    }

    /// The names of the commands that it was sent so far, but for handshakes.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// CLUSTER SLOTS where one master, which is told as that host (nil where there is none) and port, holds all slots.
pub fn all_slots(host: Option<&str>, port: u16) -> String {
    let host = host.map_or("$-1\r\n".into(), bulk);
    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{host}:{port}\r\n{}", bulk("id"))
}

/// A text as RESP has it.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn serve(client: &TcpStream, answers: &Mutex<Answers>, heard: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(client);
    while let Some(command) = read(&mut reader) {
        let name = command[0].to_ascii_uppercase();
        let answer = match name.as_str() {
            "CLIENT" => "+OK\r\n".into(),
            "PING" => "+PONG\r\n".into(),
            _ => {
                heard.lock().unwrap().push(name);
                let answers = answers.lock().unwrap().clone();
                answers(&command)
            }
        };
        let mut to = client;
        if answer.is_empty() || to.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// One command: an array of texts. None where the client has gone.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<Vec<String>> {
    let number = |mark: char, reader: &mut BufReader<&TcpStream>| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse().ok()
    };
    let count = number('*', reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let bytes = number('$', reader)?;
        let mut word = vec![0; bytes + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(bytes);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}
