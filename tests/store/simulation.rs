//! `weir simulate`: traffic is made as its file says and the same each time, records and logs are read, mistakes have their
//! place, and results add up.

mod mistakes;
mod outputs;
mod page;
mod records;
mod results;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use tempfile::TempDir;
use weir_cli::simulate::{SimulateArguments, SimulateError, run};
use weir_lab::simulation::traffic::{Request, Traffic, TrafficError};

const SHOP: &str =
    "domain: shop\ndescriptors:\n  - {key: user, rate_limit: 3/min}\n  - {key: path, value: /a*, rate_limit: 1/s}\n";

/// A directory with policies, and files of traffic.
struct Written {
    directory: TempDir,
}

impl Written {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        fs::create_dir(directory.path().join("policies")).expect("a directory");
        let written = Self { directory };
        written.write("policies/shop.yaml", SHOP);
        written
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("a file");
        self.path(name)
    }

    /// A text with the directory left out.
    fn shown(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.directory.path().display()), "")
    }

    fn arguments(&self, traffic: PathBuf) -> SimulateArguments {
        SimulateArguments {
            traffic,
            policies: vec![self.path("policies")],
            json: None,
            html: None,
            keys: 10,
            max_requests: 1_000_000,
        }
    }

    /// What is reported to a terminal, and noted beside.
    fn ran(&self, arguments: &SimulateArguments) -> (String, String) {
        let (out, notes) = (Shared::default(), Shared::default());
        run(arguments, out.clone(), notes.clone()).unwrap_or_else(|error| panic!("{error}"));
        (self.shown(&out.text()), self.shown(&notes.text()))
    }

    fn refused(&self, arguments: &SimulateArguments) -> String {
        match run(arguments, io::sink(), io::sink()) {
            Ok(_) => panic!("ran"),
            Err(SimulateError::Input(problems)) => self.shown(&problems),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What another thread writes.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("a text")
    }
}

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All requests of traffic.
fn all(path: &Path) -> Result<Vec<Request>, TrafficError> {
    let mut traffic = Traffic::open(path)?;
    let mut requests = Vec::new();
    while let Some(request) = traffic.next()? {
        requests.push(request.clone());
    }
    Ok(requests)
}

/// The descriptors of a request, each as people type it.
fn short(request: &Request) -> Vec<String> {
    let entry = |entry: &weir_rls::proto::rate_limit_descriptor::Entry| format!("{}={}", entry.key, entry.value);
    let descriptors = request.message.descriptors.iter();
    descriptors.map(|descriptor| descriptor.entries.iter().map(entry).collect::<Vec<_>>().join(",")).collect()
}
