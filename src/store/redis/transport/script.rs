//! A Lua script, identified by its SHA-1.
//!
//! Not here: the list of scripts (scripts/library.rs).

use redis::Cmd;

/// A Lua script, identified by its SHA-1.
///
/// Use it in a `static`: `static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::new("decide", CODE));`
#[derive(Debug)]
pub struct Script {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    pub(crate) sha1: String,
}

impl Script {
    /// Computes the hash of the script, once.
    pub fn new(name: &'static str, code: &'static str) -> Script {
        Script { name, code, sha1: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The command that loads it into Redis.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.code);
        command
    }

    /// The SHA-1 of the code, in 40 lower case hexadecimal digits.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_named_as_redis_names_it() {
        // The answer to `redis-cli script load "return 1"`.
        let script = Script::new("one", "return 1");
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
