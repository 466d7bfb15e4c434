//! Whether a server can evict limits that are in use.
//!
//! Not here: when the check runs (app), and the consequences of a lost limit (docs/semantics.md).

use crate::redis::transport::call::Call;

/// The eviction policies that evict nothing, or the key that expires soonest.
const HARMLESS: [&str; 2] = ["noeviction", "volatile-ttl"];

/// The command that reads the settings.
pub(crate) fn question() -> Call {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    Call::command(info)
}

/// The warning about the Redis at `address` with this answer. None if its settings are safe.
pub(crate) fn warning(address: &str, info: &str) -> Option<String> {
    let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    let bytes: u64 = field("maxmemory")?.parse().ok()?;
    let policy = field("maxmemory_policy")?;
    if bytes == 0 || HARMLESS.contains(&policy) {
        return None;
    }
    let rows =
        if policy.starts_with("allkeys") { ". Rows of customers are evicted too: they never expire" } else { "" };
    Some(format!(
        "redis at {address} evicts limits that are in use once it holds {bytes} bytes: its maxmemory-policy is {policy}, \
         and should be noeviction or volatile-ttl{rows}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_can_drop_live_state_is_warned_about() {
        let check = |bytes: u64, policy: &str, warned: bool| {
            let info = format!(
                "# Memory\r\nused_memory:1\r\nmaxmemory:{bytes}\r\nmaxmemory_human:x\r\nmaxmemory_policy:{policy}\r\n"
            );
            let warning = warning("cache:6379", &info);
            assert_eq!(warning.is_some(), warned, "{bytes} {policy}: {warning:?}");
        };
        for policy in
            ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"]
        {
            check(1 << 20, policy, true);
            check(0, policy, false);
        }
        let rows = |policy: &str| {
            let warning = warning("cache:6379", &format!("maxmemory:5\r\nmaxmemory_policy:{policy}\r\n"));
            warning.is_some_and(|warning| warning.contains("Rows of customers"))
        };
        assert!(rows("allkeys-lru") && !rows("volatile-lru"));
        check(1 << 20, "noeviction", false);
        check(1 << 20, "volatile-ttl", false);
    }

    #[test]
    fn what_tells_no_policy_is_no_reason_to_warn() {
        assert_eq!(warning("cache:6379", ""), None);
        assert_eq!(warning("cache:6379", "maxmemory:much\r\nmaxmemory_policy:allkeys-lru\r\n"), None);
        assert_eq!(warning("cache:6379", "maxmemory:5\r\n"), None);
    }
}
