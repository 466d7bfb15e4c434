//! The queue before the log's target, and the thread that writes.
//!
//! A target can be slow, full, closed or blocked: a pipe that no process reads, a full disk. Only the thread here waits
//! for it. Callers put a whole line into a bounded queue and continue. A line that does not fit is dropped and counted.
//! A part of the queue is for audit lines only, and a change waits until its line has room.
//! An error of the target is only counted, because there is no other place to report it. The writer of tracing-appender
//! has no bound on bytes, does not count failed writes, and does not open a file again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::call_sites::AUDIT;

/// The most lines that wait for the target.
pub const LINES_MAX: usize = 8_192;
/// The most bytes in those lines in total.
pub const BYTES_MAX: usize = 4 << 20;
/// The part of the queue that lines other than those of [`AUDIT`] can fill, in eighths.
const ORDINARY_EIGHTHS: usize = 6;
/// The part that can be full when a change begins. The rest is for the lines of changes that have begun.
const BEGUN_EIGHTHS: usize = 7;
/// The longest line in bytes. A longer one is cut.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// The end of a line that was cut.
const CUT: &[u8] = b"... (cut)\n";

/// Lines that did not reach the target, since the start of the process.
#[derive(Debug, Default)]
pub(super) struct Lost {
    pub(super) full: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// The sending side. Clones share one queue.
#[derive(Clone)]
pub(super) struct Queue {
    sender: SyncSender<Item>,
    shared: Arc<Shared>,
    /// Whether it gets audit lines only.
    is_audit: bool,
}

enum Item {
    Line(Box<[u8]>),
    /// A panic of another thread. The hook does not format an event, because that can panic too.
    Panic {
        thread: Box<str>,
        text: Box<str>,
    },
    Reopen,
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Line(line) => line.len(),
            Self::Panic { thread, text } => thread.len() + text.len(),
            Self::Reopen => 0,
        }
    }
}

struct Shared {
    lost: &'static Lost,
    /// The bytes of the items in the queue or being written.
    bytes: AtomicUsize,
    items: AtomicUsize,
    /// Whether to open the file again. Set even if the item did not fit into the queue.
    reopen: AtomicBool,
    /// Locked by a thread that waits for `emptied`.
    waiting: Mutex<()>,
    emptied: Condvar,
}

pub(super) struct Target {
    file: File,
    /// The path to open again. None for standard error.
    path: Option<PathBuf>,
    /// Whether the last line was written only in part.
    is_torn: bool,
}

impl Target {
    /// Standard error, with its own descriptor: a write that blocks would hold the lock of [`io::stderr`].
    pub(super) fn stderr() -> io::Result<Self> {
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        Ok(Self { file, path: None, is_torn: false })
    }

    pub(super) fn file(path: &Path) -> io::Result<Self> {
        Ok(Self { file: open(path)?, path: Some(path.to_owned()), is_torn: false })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut left = line;
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    left = &left[written..];
                    self.is_torn = !left.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = open(path)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Opens a file to append to it. Never waits for the reader of a named pipe.
fn open(path: &Path) -> io::Result<File> {
    let options = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        options
    };
    // Without a reader, opening a named pipe fails here; below it would block.
    let _has_reader = match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_fifo() => Some(options().custom_flags(libc::O_NONBLOCK).open(path)?),
        _ => None,
    };
    options().open(path)
}

impl Queue {
    /// Starts the thread. It ends when all clones of the queue are dropped.
    /// Fails when the system cannot start a thread.
    pub(super) fn start(target: Target, lost: &'static Lost) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let shared = Arc::new(Shared {
            lost,
            bytes: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            reopen: AtomicBool::new(false),
            waiting: Mutex::new(()),
            emptied: Condvar::new(),
        });
        let of_thread = shared.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || run(target, &receiver, &of_thread))?;
        Ok(Self { sender, shared, is_audit: false })
    }

    /// Queues a line with its line feed. Drops and counts it if the queue is full. Never waits.
    pub(super) fn line(&self, line: &[u8]) {
        let line: Box<[u8]> = if line.len() > LINE_BYTES_MAX {
            // Cuts between two characters of UTF-8.
            let cut = (0..=LINE_BYTES_MAX - CUT.len()).rev().find(|at| line[*at] & 0xc0 != 0x80).unwrap_or(0);
            [&line[..cut], CUT].concat().into()
        } else {
            line.into()
        };
        self.send(Item::Line(line));
    }

    /// Queues the text of a panic. Never waits.
    pub(super) fn panic(&self, thread: &str, text: &str) {
        let text = &text[..text.floor_char_boundary(LINE_BYTES_MAX)];
        self.send(Item::Panic { thread: thread.into(), text: text.into() });
    }

    /// Opens the file again soon. If that fails, the old one stays in use.
    pub(super) fn reopen(&self) {
        self.shared.reopen.store(true, SeqCst);
        self.send(Item::Reopen);
    }

    fn send(&self, item: Item) {
        let shared = &self.shared;
        let bytes = item.bytes();
        let eighths = if self.is_audit { 8 } else { ORDINARY_EIGHTHS };
        let items = shared.items.fetch_add(1, SeqCst);
        let all_bytes = shared.bytes.fetch_add(bytes, Relaxed) + bytes;
        let fits = items < LINES_MAX / 8 * eighths && all_bytes <= BYTES_MAX / 8 * eighths;
        if !(fits && self.sender.try_send(item).is_ok()) {
            shared.bytes.fetch_sub(bytes, Relaxed);
            shared.lost.full.fetch_add(1, Relaxed);
            shared.item_done();
        }
    }

    /// Whether the audit lines of one more change have room.
    pub(super) fn has_room(&self) -> bool {
        self.shared.items.load(SeqCst) <= LINES_MAX / 8 * BEGUN_EIGHTHS
            && self.shared.bytes.load(Relaxed) <= BYTES_MAX / 8 * BEGUN_EIGHTHS
    }

    /// Waits until every item so far is written, for at most `timeout`. Returns whether it succeeded.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut waiting = self.shared.waiting.lock();
        while self.shared.items.load(SeqCst) > 0 {
            if self.shared.emptied.wait_until(&mut waiting, end).timed_out() {
                return self.shared.items.load(SeqCst) == 0;
            }
        }
        true
    }
}

impl Shared {
    fn item_done(&self) {
        if self.items.fetch_sub(1, SeqCst) == 1 {
            drop(self.waiting.lock());
            self.emptied.notify_all();
        }
    }
}

/// Writes until all senders are dropped. A panic loses one item, but the thread continues.
fn run(mut target: Target, receiver: &Receiver<Item>, shared: &Shared) {
    while let Ok(item) = receiver.recv() {
        let bytes = item.bytes();
        let done = catch_unwind(AssertUnwindSafe(|| {
            if shared.reopen.swap(false, SeqCst) {
                reopen(&mut target);
            }
            match item {
                Item::Line(line) => target.write(&line),
                Item::Panic { thread, text } => {
                    tracing::error!(target: "weir::panic", %thread, "{text}");
                    Ok(())
                }
                Item::Reopen => Ok(()),
            }
        }));
        if !matches!(done, Ok(Ok(()))) {
            shared.lost.failed.fetch_add(1, Relaxed);
        }
        shared.bytes.fetch_sub(bytes, Relaxed);
        shared.item_done();
    }
}

fn reopen(target: &mut Target) {
    let Err(error) = target.reopen() else { return };
    if let Some(path) = &target.path {
        let path = path.display();
        tracing::error!(%path, %error, "cannot open the log file again: the old one stays in use");
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Self {
        Self { is_audit: line.target() == AUDIT, ..self.clone() }
    }
}

/// Each call gets one line, because the formatter writes an event in one call.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};

    use super::*;

    /// Long, so that a busy machine does not fail the test.
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn lost() -> &'static Lost {
        Box::leak(Box::default())
    }

    /// A queue whose target is a pipe, and the reading end of the pipe.
    fn piped(lost: &'static Lost) -> (Queue, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let target = Target { file: File::from(std::os::fd::OwnedFd::from(writer)), path: None, is_torn: false };
        (Queue::start(target, lost).unwrap(), reader)
    }

    #[test]
    fn lines_arrive_in_order() {
        let (queue, reader) = piped(lost());
        for number in 0..100 {
            queue.line(format!("{number}\n").as_bytes());
        }
        let mut lines = BufReader::new(reader).lines();
        for number in 0..100 {
            assert_eq!(lines.next().unwrap().unwrap(), number.to_string());
        }
        assert!(queue.flush(TIMEOUT));
    }

    #[test]
    fn a_pipe_that_is_not_read_costs_a_bounded_queue_and_no_wait() {
        let lost = lost();
        let (queue, reader) = piped(lost);
        let line = [b"x".repeat(1_023), b"\n".to_vec()].concat();
        // Many more lines than fit into the pipe and the queue.
        for _ in 0..4 * LINES_MAX {
            queue.line(&line);
        }
        assert!(queue.shared.bytes.load(Relaxed) <= BYTES_MAX + line.len());
        assert!(lost.full.load(Relaxed) > 0);
        assert!(!queue.flush(Duration::from_millis(1)), "nobody reads");
        // When the pipe is read, the queue is written, and the thread ends with the last queue.
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            BufReader::new(reader).read_to_end(&mut text).map(|_| text.len() / 1_024)
        });
        assert!(queue.flush(TIMEOUT));
        drop(queue);
        let written = reading.join().unwrap().unwrap() as u64;
        assert_eq!(written + lost.full.load(Relaxed), 4 * LINES_MAX as u64);
        assert_eq!(lost.failed.load(Relaxed), 0);
    }

    /// A holder of the right to change filled the queue, so that the lines of its changes were dropped.
    #[test]
    fn other_lines_leave_room_for_the_lines_of_changes() {
        let lost = lost();
        let (queue, _reader) = piped(lost);
        let audit = Queue { is_audit: true, ..queue.clone() };
        let line = [b"x".repeat(99), b"\n".to_vec()].concat();
        (0..2 * LINES_MAX).for_each(|_| queue.line(&line));
        let lost_before = lost.full.load(Relaxed);
        assert!(lost_before > 0 && queue.has_room());
        let mut changes = 0;
        while queue.has_room() {
            audit.line(&line);
            changes += 1;
        }
        assert!(changes > LINES_MAX / 10, "{changes} changes had room");
        // Those that had begun.
        (0..LINES_MAX / 10).for_each(|_| audit.line(&line));
        assert_eq!(lost.full.load(Relaxed), lost_before);
    }

    #[test]
    fn a_pipe_that_was_closed_and_a_full_device_cost_the_lines_alone() {
        let lost = lost();
        let (queue, reader) = piped(lost);
        drop(reader);
        queue.line(b"one\n");
        queue.line(b"two\n");
        assert!(queue.flush(TIMEOUT));
        assert_eq!(lost.failed.load(Relaxed), 2);

        let queue = Queue::start(Target::file(Path::new("/dev/full")).unwrap(), lost).unwrap();
        queue.line(b"three\n");
        assert!(queue.flush(TIMEOUT));
        assert_eq!(lost.failed.load(Relaxed), 3);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let (queue, mut reader) = piped(lost());
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map(|_| text)
        });
        queue.line(format!("a{}\n", "\u{e9}".repeat(LINE_BYTES_MAX)).as_bytes());
        assert!(queue.flush(TIMEOUT));
        drop(queue);
        let text = String::from_utf8(reading.join().unwrap().unwrap()).unwrap();
        assert!(text.len() <= LINE_BYTES_MAX && text.ends_with("\u{e9}... (cut)\n"), "{} bytes", text.len());
    }

    #[test]
    fn the_text_of_a_panic_is_cut_between_characters() {
        let (sender, receiver) = sync_channel(1);
        let shared = Shared {
            lost: lost(),
            bytes: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            reopen: AtomicBool::new(false),
            waiting: Mutex::new(()),
            emptied: Condvar::new(),
        };
        let queue = Queue { sender, shared: Arc::new(shared), is_audit: false };
        queue.panic("main", &format!("a{}", "\u{e9}".repeat(LINE_BYTES_MAX)));
        let Item::Panic { text, .. } = receiver.recv().unwrap() else { panic!("no panic") };
        assert_eq!(text.len(), LINE_BYTES_MAX - 1);
    }

    #[test]
    fn a_file_is_continued_and_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, rotated) = (directory.path().join("log"), directory.path().join("log.1"));
        std::fs::write(&path, "before\n").unwrap();
        let lost = lost();
        let queue = Queue::start(Target::file(&path).unwrap(), lost).unwrap();
        queue.line(b"one\n");
        assert!(queue.flush(TIMEOUT));
        std::fs::rename(&path, &rotated).unwrap();
        queue.line(b"two\n");
        // An order to reopen overtakes waiting lines.
        assert!(queue.flush(TIMEOUT));
        queue.reopen();
        queue.line(b"three\n");
        assert!(queue.flush(TIMEOUT));
        assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "before\none\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");

        // If the new file cannot be opened, the old one stays in use.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        queue.reopen();
        queue.line(b"four\n");
        assert!(queue.flush(TIMEOUT));
        assert_eq!((lost.full.load(Relaxed), lost.failed.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_named_pipe_without_a_reader_is_an_error_and_no_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        assert!(Target::file(&path).is_err());
    }
}
