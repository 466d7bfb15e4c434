//! A process that may use only so much memory: in a cgroup of its own, or else with a limited address space.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where systems mount cgroups, and the file with the limit: version 1, version 2.
const GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A bound on memory. The cgroup is removed when this is dropped, after its processes.
#[derive(Debug)]
pub struct MemoryLimit {
    bytes: u64,
    /// None if this machine lets us make none.
    group: Option<PathBuf>,
}

impl MemoryLimit {
    /// A limit of this many MiB.
    pub fn mib(mib: u64) -> MemoryLimit {
        let bytes = mib << 20;
        let name = format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let group = GROUPS.iter().find_map(|(root, file)| {
            let group = Path::new(root).join(&name);
            // The directory of a version that is not mounted here cannot be made, or has no such file.
            fs::create_dir(&group).ok()?;
            if group.join(file).exists() && fs::write(group.join(file), bytes.to_string()).is_ok() {
                return Some(group);
            }
            let _ = fs::remove_dir(&group);
            None
        });
        MemoryLimit { bytes, group }
    }

    /// Whether the kernel ends the process at the limit. If not, an allocation fails there.
    pub fn is_group(&self) -> bool {
        self.group.is_some()
    }

    /// The same command, within the limit.
    pub fn limit(&self, command: &Command) -> Command {
        let mut limited = Command::new("sh");
        match &self.group {
            Some(group) => limited.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(group.join("cgroup.procs")),
            None => limited.args(["-c", r#"ulimit -v "$0" && exec "$@""#, &(self.bytes >> 10).to_string()]),
        };
        limited.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        limited
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // A group stays busy for a moment after its last process has ended.
            let removed = super::wait::within(super::wait::PATIENCE, || fs::remove_dir(group).ok());
            assert!(removed.is_some() || std::thread::panicking(), "cannot remove {}", group.display());
        }
    }
}
