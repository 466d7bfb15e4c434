//! How many files the process may open.
//!
//! Not here: how many connections a listener may have (grpc, http).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. Each connection is a file, and many systems have a soft limit of 1,024.
pub fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // The soft limit stays if the system refuses.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
