//! A client for HTTP/1.1 of the smallest kind: one request on one connection, the answer read to
//! its end. It shares no code with the server under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long connecting, and each read and write, may take.
const IO_TIMEOUT: Duration = Duration::from_secs(20);

/// The most that is read of one answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, with their values, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The body, its transfer coding undone.
    pub body: String,
}

impl Answer {
    /// The first header of that name (given in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// GETs `path`.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    request(address, "GET", path, &[], "")
}

/// POSTs JSON to `path`.
pub fn post_json(address: SocketAddr, path: &str, body: &str) -> io::Result<Answer> {
    let headers = [("content-type", "application/json")];
    request(address, "POST", path, &headers, body)
}

/// Sends one request and reads its answer.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Answer> {
    let mut stream = connect(address)?;
    stream.write_all(head(method, path, headers, body.len()).as_bytes())?;
    stream.write_all(body.as_bytes())?;
    read_answer(stream)
}

/// A connection with timeouts, for tests that write a request piece by piece.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    Ok(stream)
}

/// The request line and the headers of a request that ends its connection.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)], body_bytes: usize) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if body_bytes > 0 || method == "POST" {
        text.push_str(&format!("content-length: {body_bytes}\r\n"));
    }
    text.push_str("\r\n");
    text
}

/// Reads an answer to the end of its connection.
pub fn read_answer(stream: TcpStream) -> io::Result<Answer> {
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    let status_line = read_line(&mut reader)?;
    let status = status_line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| invalid(format!("not a status line: {status_line:?}")))?;

    let mut answer = Answer { status, headers: Vec::new(), body: String::new() };
    loop {
        let line = read_line(&mut reader)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid(format!("not a header: {line:?}")))?;
        let header = (name.to_ascii_lowercase(), value.trim().to_owned());
        answer.headers.push(header);
    }

    let mut body = Vec::new();
    if answer.header("transfer-encoding") == Some("chunked") {
        read_chunks(&mut reader, &mut body)?;
    } else if let Some(length) = answer.header("content-length") {
        let length = length.parse().map_err(|_| invalid(format!("not a length: {length:?}")))?;
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
    } else {
        reader.read_to_end(&mut body)?;
    }
    answer.body = String::from_utf8(body).map_err(|error| invalid(error.to_string()))?;
    Ok(answer)
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let line = read_line(reader)?;
        let size = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16)
            .map_err(|_| invalid(format!("not the size of a chunk: {line:?}")))?;
        let start = body.len();
        body.resize(start + size, 0);
        reader.read_exact(&mut body[start..])?;
        read_line(reader)?;
        if size == 0 {
            return Ok(());
        }
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        let text = "the connection ended inside an answer";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
