//! How much memory this process may use before the system ends it.
//!
//! Bounds on what callers can make weir hold are parts of it ([`MemoryPart`]). Not here: who keeps to them (grpc, http, policies).

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

/// From this many bytes on, a limit is none: version 1 of cgroups writes the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;
/// Where systems mount the hierarchies of cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The most bytes of memory that this process may use: the least of its cgroup's limit, those of all groups above it, its
/// limits of address space and data (`ulimit -v`, `ulimit -d`), and the memory of the machine. Read once. `u64::MAX` if
/// the system names none.
pub fn memory_limit() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let resources = [Resource::As, Resource::Data].into_iter().filter_map(|resource| getrlimit(resource).current);
        let limits = of_groups(&groups, Path::new(CGROUPS)).into_iter().chain(of_machine(&machine)).chain(resources);
        limits.filter(|bytes| *bytes < UNLIMITED).min().unwrap_or(u64::MAX)
    })
}

/// A bound on memory that follows the memory of the process: this part of it, and at most so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    parts: u64,
    bytes_max: u64,
}

impl MemoryPart {
    /// Requests and responses of gRPC callers: the default of `grpc.held_bytes`.
    pub const GRPC_HELD: Self = Self { parts: 8, bytes_max: 32 << 20 };
    /// Buffers and tables of gRPC connections.
    pub const GRPC_CONNECTIONS: Self = Self { parts: 4, bytes_max: u64::MAX };
    /// Connections of one HTTP listener.
    pub const HTTP_CONNECTIONS: Self = Self { parts: 16, bytes_max: 80 << 20 };
    /// Rows of customers that a process remembers of Redis.
    pub const ROWS: Self = Self { parts: 8, bytes_max: 64 << 20 };
    /// States of the memory store.
    pub const KEYS: Self = Self { parts: 4, bytes_max: u64::MAX };

    /// The bound for this process.
    pub fn bytes(self) -> usize {
        self.of(memory_limit())
    }

    /// The bound for a process that may use `limit` bytes. Rounded down.
    pub fn of(self, limit: u64) -> usize {
        usize::try_from((limit / self.parts).min(self.bytes_max)).unwrap_or(usize::MAX)
    }
}

/// The limits of the groups that `/proc/self/cgroup` lists, and of all groups above them.
fn of_groups(listed: &str, mounted: &Path) -> Vec<u64> {
    let mut limits = Vec::new();
    for line in listed.lines() {
        // HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            (mounted.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mounted.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // A container can see the path of the host, of which its own mount has only the end: the root.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(root.join(group).join(file)).ok();
            limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits
}

/// The memory of the machine, from `/proc/meminfo`.
fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A directory of this test, which it removes.
    struct Mount(std::path::PathBuf);

    impl Mount {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-cgroups-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_table_of_the_documentation_has_the_parts() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bounds.md");
        let page = fs::read_to_string(page).unwrap();
        for (what, part) in [
            ("gRPC connections and their tables", MemoryPart::GRPC_CONNECTIONS),
            ("requests and responses of gRPC callers", MemoryPart::GRPC_HELD),
            ("connections of each HTTP listener", MemoryPart::HTTP_CONNECTIONS),
            ("rows of Redis that weir remembers", MemoryPart::ROWS),
            ("states in the memory store", MemoryPart::KEYS),
        ] {
            let [small, medium, large] = [64, 128, 512].map(|mib: u64| part.of(mib << 20) >> 20);
            let row = format!("| {what} | {small} | {medium} | {large} |");
            assert!(page.contains(&row), "docs/bounds.md has no row {row:?}");
        }
    }

    #[test]
    fn the_limits_of_all_groups_above_count() {
        let mount = Mount::new("v2");
        write(&mount.0, "kubepods/memory.max", "1073741824\n");
        write(&mount.0, "kubepods/pod/memory.max", "max\n");
        write(&mount.0, "kubepods/pod/weir/memory.max", "536870912\n");
        assert_eq!(of_groups("0::/kubepods/pod/weir\n", &mount.0), [536_870_912, 1_073_741_824]);
    }

    #[test]
    fn version_1_and_a_mount_of_only_the_own_group_are_read() {
        let mount = Mount::new("v1");
        write(&mount.0, "memory/memory.limit_in_bytes", "67108864\n");
        let listed = "9:name=systemd:/\n4:cpu,memory:/docker/0123\n0::/\n";
        assert_eq!(of_groups(listed, &mount.0), [67_108_864]);
    }

    #[test]
    fn the_memory_of_the_machine_is_a_limit() {
        assert_eq!(of_machine("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764 * 1_024));
        assert_eq!(of_machine("MemTotal: much\n"), None);
        assert!(memory_limit() > 0);
    }
}
