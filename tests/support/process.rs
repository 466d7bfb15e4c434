//! The real binary as a child process: started on free ports, found by its log, stopped by SIGTERM,
//! killed when the test ends in any other way. What it wrote is shown when the test fails.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::http;
use super::wait::{PATIENCE, until, within};

/// The message of the log line that names the address of one listener.
const LISTENING: &str = "listening";

/// The message of the log line after policies were read and taken into use.
pub const POLICIES_LOADED: &str = "policies loaded";

/// The message of the log line after changed policies were found wrong, the old ones kept.
pub const POLICIES_REFUSED: &str = "policies refused";

/// The most lines kept of what one process writes; later ones are dropped.
const LINES_MAX: usize = 20_000;

/// A running weir.
#[derive(Debug)]
pub struct Weir {
    process: Process,
    /// The gRPC listener.
    pub grpc: SocketAddr,
    /// The HTTP listener.
    pub http: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
}

impl Weir {
    /// Starts `weir serve` on `policies` with more arguments, and waits until it is ready.
    pub fn start<A: AsRef<OsStr>>(policies: &Path, arguments: &[A]) -> Weir {
        match Weir::try_start(policies, arguments, &[]) {
            Ok(weir) => weir,
            Err(problem) => panic!("{problem}"),
        }
    }

    /// The same with environment variables; says what went wrong, with all that weir wrote.
    pub fn try_start<A: AsRef<OsStr>>(
        policies: &Path,
        arguments: &[A],
        environment: &[(String, String)],
    ) -> Result<Weir, String> {
        Weir::from_process(Process::start(policies, arguments, environment))
    }

    /// Waits until a process that was started listens. It need not be ready.
    pub fn listening(mut process: Process) -> Result<Weir, String> {
        Ok(Weir {
            grpc: process.address_of("grpc")?,
            http: process.address_of("http")?,
            admin: process.address_of("admin")?,
            process,
        })
    }

    /// Waits until a process that was started is ready.
    pub fn from_process(process: Process) -> Result<Weir, String> {
        let weir = Weir::listening(process)?;
        let ready = within(PATIENCE, || {
            let answer = http::get(weir.http, "/readyz");
            answer.is_ok_and(|answer| answer.status == 200).then_some(())
        });
        if ready.is_none() {
            let last = http::get(weir.http, "/readyz");
            let written = weir.written();
            return Err(format!("weir never became ready, last {last:?}\n{written}"));
        }
        Ok(weir)
    }

    /// How many lines of log that `wanted` accepts there are so far.
    pub fn count_in_log(&self, wanted: impl Fn(&LogLine) -> bool) -> usize {
        self.process.output.count(wanted)
    }

    /// Waits until there are more than `before` lines of log that `wanted` accepts; false if there
    /// were not in time.
    pub fn wait_for_log(&self, before: usize, timeout: Duration, wanted: impl Fn(&LogLine) -> bool) -> bool {
        self.process.output.wait_for_count(before + 1, timeout, wanted)
    }

    /// All that it wrote so far.
    pub fn written(&self) -> String {
        self.process.output.text()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Sends a signal: `STOP`, say.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Waits for the end of the process, and returns how it ended.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.process.wait_for_exit()
    }

    /// The memory that the process has in use (its resident set), in KiB.
    pub fn memory_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The part of it that is no file: heap and stacks, in KiB.
    pub fn anonymous_memory_kib(&self) -> u64 {
        self.status_kib("RssAnon:")
    }

    /// The most of it that the process had so far, in KiB.
    pub fn peak_memory_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.process.child.id());
        let status = std::fs::read_to_string(path).expect("a process that runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// How long the thread of this name has been on a processor.
    pub fn thread_time(&self, name: &str) -> Duration {
        let threads =
            std::fs::read_dir(format!("/proc/{}/task", self.process.child.id())).expect("a process that runs");
        let read = |thread: &Path, file: &str| std::fs::read_to_string(thread.join(file)).expect("a file of a thread");
        let mut paths = threads.map(|thread| thread.expect("a thread").path());
        let thread = paths.find(|thread| read(thread, "comm").trim() == name).expect("a thread of this name");
        let nanos = read(&thread, "schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.expect("a number of nanoseconds"))
    }

    /// The files that the process has open, sockets among them.
    pub fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.process.child.id());
        std::fs::read_dir(path).expect("a process that runs").count()
    }
}

/// A `weir serve` of which nothing is known yet but that it was started. It is killed when dropped,
/// and what it wrote is shown if the test is failing.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: Arc<Output>,
}

impl Process {
    /// Starts `weir serve` on `policies` with more arguments and environment variables.
    pub fn start<A: AsRef<OsStr>>(policies: &Path, arguments: &[A], environment: &[(String, String)]) -> Process {
        let mut command = serve(policies, arguments);
        for (name, value) in environment {
            command.env(name, value);
        }
        Process::spawn(command)
    }

    /// Starts a command that `serve` made.
    pub fn spawn(mut command: Command) -> Process {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let output = Arc::new(Output::default());
        output.follow(child.stdout.take().expect("stdout is piped"));
        output.follow(child.stderr.take().expect("stderr is piped"));
        Process { child, output }
    }

    /// Waits for the address that this listener bound.
    pub fn address_of(&mut self, listener: &str) -> Result<SocketAddr, String> {
        let address = self.address_text(listener)?;
        address.parse().map_err(|_| format!("the address of the listener {listener} is {address:?}"))
    }

    /// The same where it may be a Unix socket.
    pub fn address_text(&mut self, listener: &str) -> Result<String, String> {
        let is_it = |line: &LogLine| {
            line.message() == Some(LISTENING) && line.field("listener").and_then(Value::as_str) == Some(listener)
        };
        if !self.output.wait_for_count(1, PATIENCE, is_it) {
            let ended = self.ended();
            let written = self.output.text();
            return Err(format!("no address of the listener {listener} in the log, ended {ended:?}\n{written}"));
        }
        let written = self.output.lock();
        let line = written.lines.iter().find(|line| is_it(line));
        let address = line.and_then(|line| line.field("address")).and_then(Value::as_str).unwrap_or_default();
        Ok(address.to_owned())
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that it wrote so far.
    pub fn written(&self) -> String {
        self.output.text()
    }

    /// How many lines of log that `wanted` accepts there are so far.
    pub fn count_in_log(&self, wanted: impl Fn(&LogLine) -> bool) -> usize {
        self.output.count(wanted)
    }

    /// Waits until there are more than `before` lines of log that `wanted` accepts; false if there were not in time.
    pub fn wait_for_log(&self, before: usize, timeout: Duration, wanted: impl Fn(&LogLine) -> bool) -> bool {
        self.output.wait_for_count(before + 1, timeout, wanted)
    }

    /// Whether there is a line of log so far that `wanted` accepts.
    pub fn has_logged(&self, wanted: impl Fn(&LogLine) -> bool) -> bool {
        self.output.count(wanted) > 0
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by the shell's `kill`: it is everywhere, and the standard library has none.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status();
        assert!(status.is_ok_and(|status| status.success()), "failed: {kill}");
    }

    /// Waits for the end of the process, and returns how it ended.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        until("the process to end", PATIENCE, || self.ended())
    }

    /// Waits for the end of the process, and returns how it ended and all that it wrote.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let status = self.wait_for_exit();
        self.output.wait_for_end();
        (status, self.output.text())
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the process is ours")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            let written = self.output.text();
            eprintln!("weir, process {}, wrote:\n{written}", self.child.id());
        }
    }
}

/// One line that the process wrote.
#[derive(Debug)]
pub struct LogLine {
    raw: String,
    event: Option<Value>,
}

impl LogLine {
    /// The line as it was written.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The message, where the line is an event.
    pub fn message(&self) -> Option<&str> {
        self.field("message")?.as_str()
    }

    /// The level in upper case, where the line is an event.
    pub fn level(&self) -> Option<&str> {
        self.event.as_ref()?.get("level")?.as_str()
    }

    /// A field of the event; they stand under `fields`, or flattened beside the message.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let event = self.event.as_ref()?;
        let nested = event.get("fields").and_then(|fields| fields.get(name));
        nested.or_else(|| event.get(name))
    }
}

/// What a process writes, as it comes.
#[derive(Debug, Default)]
struct Output {
    state: Mutex<Written>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Written {
    lines: Vec<LogLine>,
    open: usize,
}

impl Output {
    /// Reads one stream to its end, on a thread of its own. The process is never held up by a full
    /// pipe.
    fn follow(self: &Arc<Self>, stream: impl Read + Send + 'static) {
        self.lock().open += 1;
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n') {
                let Ok(line) = line else { break };
                let raw = String::from_utf8_lossy(&line).into_owned();
                let event = serde_json::from_str(&raw).ok().filter(Value::is_object);
                let mut written = output.lock();
                if written.lines.len() < LINES_MAX {
                    written.lines.push(LogLine { raw, event });
                }
                output.changed.notify_all();
            }
            output.lock().open -= 1;
            output.changed.notify_all();
        });
    }

    fn count(&self, wanted: impl Fn(&LogLine) -> bool) -> usize {
        self.lock().lines.iter().filter(|line| wanted(line)).count()
    }

    /// Waits until at least `count` lines are wanted ones; false if it took too long, or if nothing
    /// more can come.
    fn wait_for_count(&self, count: usize, timeout: Duration, wanted: impl Fn(&LogLine) -> bool) -> bool {
        let end = Instant::now() + timeout;
        let mut written = self.lock();
        loop {
            let found = written.lines.iter().filter(|line| wanted(line)).count();
            if found >= count {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || written.open == 0 {
                return false;
            }
            let waited = self.changed.wait_timeout(written, left);
            written = waited.expect("no reader panics").0;
        }
    }

    /// Waits until both streams are closed.
    fn wait_for_end(&self) {
        let written = self.lock();
        let ended = self.changed.wait_timeout_while(written, PATIENCE, |written| written.open > 0);
        drop(ended.expect("no reader panics"));
    }

    fn text(&self) -> String {
        let written = self.lock();
        let mut text = String::new();
        for line in &written.lines {
            text.push_str(&line.raw);
            text.push('\n');
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.state.lock().expect("no reader panics")
    }
}

/// The binary under test: the one that cargo has built beside the test programs, or the one that `WEIR_TEST_BINARY` names (a release
/// build, say).
pub fn binary() -> PathBuf {
    match std::env::var_os("WEIR_TEST_BINARY") {
        Some(path) => path.into(),
        None => {
            let test = std::env::current_exe().expect("the path of the test program");
            test.ancestors().nth(2).expect("the directory of the profile").join("weir")
        }
    }
}

/// `weir serve` with logs in JSON, and with a free port for each listener that `arguments` do not
/// name. Settings of whoever runs the tests are kept out.
pub fn serve<A: AsRef<OsStr>>(policies: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("WEIR__") || text.starts_with("OTEL_") || text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .arg("serve")
        .arg("--policies")
        .arg(policies)
        .args(["--set", "log.format=json"]);
    for listener in ["--grpc", "--http", "--admin"] {
        if !arguments.iter().any(|given| given.as_ref() == listener) {
            command.args([listener, "127.0.0.1:0"]);
        }
    }
    command.args(arguments);
    command
}

/// Ends a process whatever its state. One that has already been waited for is left alone.
pub fn end(child: &mut Child) {
    let killed = child.kill();
    let waited = child.wait();
    assert!(
        killed.is_ok() && waited.is_ok() || std::thread::panicking(),
        "cannot end process {}: {killed:?} {waited:?}",
        child.id()
    );
}

/// A policy directory that is replaced as a whole: a symlink that is renamed over, so that a reader
/// sees the old files or the new ones and never a mix.
#[derive(Debug)]
pub struct PolicyDirectory {
    root: TempDir,
    generation: u32,
}

impl PolicyDirectory {
    /// A directory with one file.
    pub fn with_file(name: &str, text: &str) -> PolicyDirectory {
        PolicyDirectory::with_files(&[(name.to_owned(), text.to_owned())])
    }

    /// A directory with these files (name, text).
    pub fn with_files(files: &[(String, String)]) -> PolicyDirectory {
        let root = TempDir::new().expect("a temporary directory");
        let mut directory = PolicyDirectory { root, generation: 0 };
        directory.replace(files);
        directory
    }

    /// What to give to `--policies`.
    pub fn path(&self) -> PathBuf {
        self.root.path().join("policies")
    }

    /// Puts these files in the place of all that was there.
    pub fn replace(&mut self, files: &[(String, String)]) {
        self.generation += 1;
        let generation = format!("generation-{}", self.generation);
        let directory = self.root.path().join(&generation);
        std::fs::create_dir(&directory).expect("a directory for the files");
        for (name, text) in files {
            std::fs::write(directory.join(name), text).expect("a policy file is written");
        }
        point(&self.path(), Path::new(&generation));
    }
}

/// Makes `link` a symlink to `target` by one rename, whether it was one before or did not exist.
pub fn point(link: &Path, target: &Path) {
    let mut next = link.as_os_str().to_owned();
    next.push("_next");
    std::os::unix::fs::symlink(target, &next).expect("a new symlink");
    std::fs::rename(&next, link).expect("the symlink is renamed");
}
