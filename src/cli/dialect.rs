//! The flags for how files of policies are read.

use weir_policies::Dialect;

/// The dialect of policy files, for commands that load no settings.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct DialectArguments {
    /// Read the files as envoyproxy/ratelimit does, as with policies.compatible
    #[arg(long)]
    pub compatible: bool,
    /// Join files of one domain, as with policies.merge_domains
    #[arg(long)]
    pub merge_domains: bool,
}

impl DialectArguments {
    /// The dialect that the flags select.
    pub const fn dialect(&self) -> Dialect {
        Dialect { compatible: self.compatible, merge_domains: self.merge_domains }
    }
}
