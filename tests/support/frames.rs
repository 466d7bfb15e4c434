//! HTTP/2 by hand, for peers that do what no client does. Frames are written as they are given; what the server sends is
//! read frame by frame. It shares no code with the server under test.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// How long a read or write may take.
const IO_TIMEOUT: Duration = Duration::from_secs(40);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes in one DATA frame.
const DATA_BYTES_MAX: usize = 16_384;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

/// SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_INITIAL_WINDOW_SIZE.
pub const MAX_STREAMS: u16 = 3;
pub const INITIAL_WINDOW: u16 = 4;

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// One frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A frame as it goes over the wire.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A HEADERS frame that asks for a gRPC path, its body to follow.
pub fn headers(stream: u32, path: &str) -> Vec<u8> {
    // POST and http are in HPACK's static table; all else is literal and never indexed.
    let mut block = vec![0x83, 0x86];
    let mut literal = |index: &[u8], value: &str| {
        block.extend(index);
        block.push(u8::try_from(value.len()).expect("a short value"));
        block.extend(value.as_bytes());
    };
    literal(&[0x04], path);
    literal(&[0x01], "weir.test");
    literal(&[0x0f, 0x10], "application/grpc");
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// What stands before a message, and the message.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(bytes.len()).expect("a short message").to_be_bytes());
    framed.extend(bytes);
    framed
}

/// A whole request.
pub fn request(stream: u32, path: &str, bytes: &[u8]) -> Vec<u8> {
    let mut frames = headers(stream, path);
    frames.extend(frame(DATA, END_STREAM, stream, &message(bytes)));
    frames
}

/// A RST_STREAM frame: the caller has given up.
pub fn reset(stream: u32) -> Vec<u8> {
    const CANCEL: u32 = 8;
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// One connection.
pub struct Raw {
    pub socket: TcpStream,
    read: Vec<u8>,
    /// Bytes of DATA that the server still takes on this connection.
    window: usize,
    /// The settings that the server sent.
    pub settings: Vec<(u16, u32)>,
}

impl Raw {
    /// Connects and shakes hands, with this window for the responses of each stream.
    pub fn connect(address: SocketAddr, window: u32) -> Raw {
        Raw::over(TcpStream::connect(address).expect("a connection"), window)
    }

    /// The same from this address of the machine.
    pub fn connect_from(source: IpAddr, address: SocketAddr, window: u32) -> Raw {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("an address of this machine");
        socket.connect(&address.into()).expect("a connection");
        Raw::over(socket.into(), window)
    }

    fn over(socket: TcpStream, window: u32) -> Raw {
        socket.set_read_timeout(Some(IO_TIMEOUT)).expect("a timeout");
        socket.set_write_timeout(Some(IO_TIMEOUT)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        let mut raw = Raw { socket, read: Vec::new(), window: 65_535, settings: Vec::new() };
        let mut setting = INITIAL_WINDOW.to_be_bytes().to_vec();
        setting.extend(window.to_be_bytes());
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()).expect("a handshake");
        while raw.settings.is_empty() {
            raw.next().expect("a handshake").expect("settings");
        }
        raw.send(&frame(SETTINGS, ACK, 0, &[])).expect("a handshake");
        raw
    }

    /// Writes bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Writes bytes, but gives up soon where the server does not take them.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.set_write_timeout(Some(Duration::from_secs(1)))?;
        let sent = self.socket.write_all(bytes);
        self.socket.set_write_timeout(Some(IO_TIMEOUT))?;
        sent
    }

    /// Sends data on a stream within the window of the connection, reading on where that is used up.
    pub fn send_data(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(DATA_BYTES_MAX) {
            while self.window < part.len() {
                if self.next()?.is_none() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            self.window -= part.len();
            self.send(&frame(DATA, 0, stream, part))?;
        }
        Ok(())
    }

    /// Reads the next frame, or nothing at the end of the connection.
    #[expect(clippy::should_implement_trait, reason = "to read can fail")]
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut chunk = [0; 16_384];
        loop {
            if let Some(frame) = self.complete() {
                return Ok(Some(frame));
            }
            match self.socket.read(&mut chunk)? {
                0 => return Ok(None),
                count => self.read.extend(&chunk[..count]),
            }
        }
    }

    fn complete(&mut self) -> Option<Frame> {
        let head: [u8; 9] = *self.read.first_chunk()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.read.get(9..9 + length)?.to_vec();
        self.read.drain(..9 + length);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if frame.kind == SETTINGS && frame.flags & ACK == 0 {
            for setting in frame.payload.chunks_exact(6) {
                let name = u16::from_be_bytes([setting[0], setting[1]]);
                let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                self.settings.push((name, value));
            }
        }
        if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
            let more: [u8; 4] = *frame.payload.first_chunk().expect("four bytes");
            self.window += u32::from_be_bytes(more) as usize;
        }
        Some(frame)
    }

    /// Reads until the end of a stream; whether there was one before the connection ended.
    pub fn answered(&mut self, stream: u32) -> bool {
        while let Ok(Some(frame)) = self.next() {
            let ends = [HEADERS, DATA].contains(&frame.kind) && frame.flags & END_STREAM != 0;
            if frame.stream == stream && (ends || frame.kind == RST_STREAM) {
                return ends;
            }
        }
        false
    }

    /// Reads until the server closes; whether it did in time, and the code of its last GOAWAY.
    pub fn closed(&mut self) -> (bool, Option<u32>) {
        let mut code = None;
        loop {
            match self.next() {
                Ok(Some(frame)) if frame.kind == GOAWAY => {
                    code = frame.payload.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
                }
                Ok(Some(_)) => {}
                Ok(None) => return (true, code),
                Err(error) => {
                    let waited = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind());
                    return (!waited, code);
                }
            }
        }
    }
}
