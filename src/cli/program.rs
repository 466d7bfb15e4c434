//! The program by its name: links with the names of envoyproxy/ratelimit's programs select its behaviour.

use std::ffi::OsStr;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `weir`, and any unknown name.
    Weir,
    /// `ratelimit`: the server, set by envoyproxy/ratelimit's environment variables.
    Ratelimit,
    /// `ratelimit_config_check`: validates policy files.
    ConfigCheck,
    /// `ratelimit_client`: asks a server.
    Client,
}

impl Program {
    pub fn called(name: &OsStr) -> Self {
        match Path::new(name).file_name().and_then(OsStr::to_str) {
            Some("ratelimit") => Self::Ratelimit,
            Some("ratelimit_config_check") => Self::ConfigCheck,
            Some("ratelimit_client") => Self::Client,
            _ => Self::Weir,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_name_decides() {
        let called = |name: &str| Program::called(OsStr::new(name));
        assert_eq!(called("/bin/ratelimit"), Program::Ratelimit);
        assert_eq!(called("ratelimit"), Program::Ratelimit);
        assert_eq!(called("./ratelimit_config_check"), Program::ConfigCheck);
        assert_eq!(called("/bin/ratelimit_client"), Program::Client);
        for name in ["weir", "/usr/local/bin/weir", "", "/ratelimit/weir", "ratelimit2", "Ratelimit"] {
            assert_eq!(called(name), Program::Weir, "{name}");
        }
    }
}
