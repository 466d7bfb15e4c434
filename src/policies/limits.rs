//! Bounds on the policy files of one load, and so on the memory that reading them takes.
//!
//! A server derives the defaults from the memory that it may use. Commands have the largest ones, so what they answer
//! does not depend on the machine. Not here: bounds on single values (lib.rs).

use weir_engine::automaton::AUTOMATA_BYTES_MAX;

use super::{DESCRIPTORS_MAX, NODE_BYTES, NODES_FREE, NODES_MAX};

/// The largest policy file by default, in bytes.
pub const FILE_BYTES_MAX: usize = 32 << 20;
/// The most bytes in all files together by default.
pub const TOTAL_BYTES_MAX: usize = 256 << 20;
/// While weir reads a file, it takes up to about 40 times its bytes, and the policies in force stay in memory.
const FILE_SHARE: u64 = 128;
/// The descriptors that this allows take half of the memory while policies replace others: those in force and the new ones.
const TOTAL_SHARE: u64 = 32;
/// All files may have one descriptor for this many bytes of `total_bytes`: each takes 1 to 2 KiB, also from an alias of
/// few bytes.
const DESCRIPTOR_BYTES: usize = 256;
/// The parser takes about 640 bytes for each character of `, [ ] { }` between the brackets of an outermost list or
/// mapping, and 1,100 if each value has an anchor. A quarter of the memory may have them.
const FLOW_MARK_SHARE: u64 = 4 * 640;
/// The most bytes in the automata of all regular expressions, each built alone: 3 to 10 seconds of a core.
const REGEX_BYTES_MAX: usize = 64 << 20;
/// Small processes read this much, so that the defaults are of use.
const FILE_BYTES_MIN: u64 = 256 << 10;
const TOTAL_BYTES_MIN: u64 = 1 << 20;

/// The bounds of one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest file, in bytes, with its aliases written out.
    pub file_bytes: usize,
    /// The most bytes in all files together, with their aliases written out.
    pub total_bytes: usize,
    /// The most characters of `, [ ] { }` in one file, if its bytes allow more.
    pub(super) flow_marks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::within(u64::MAX)
    }
}

impl Limits {
    /// The bounds for a process that may use this many bytes of memory.
    #[must_use]
    pub fn within(memory: u64) -> Self {
        let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let share = |of: u64, least: u64, most: usize| small((memory / of).max(least)).min(most);
        Self {
            file_bytes: share(FILE_SHARE, FILE_BYTES_MIN, FILE_BYTES_MAX),
            total_bytes: share(TOTAL_SHARE, TOTAL_BYTES_MIN, TOTAL_BYTES_MAX),
            flow_marks: small(memory / FLOW_MARK_SHARE),
        }
    }

    /// The bounds of these settings, and those that they do not set as in [`Limits::within`].
    #[must_use]
    pub fn of(policies: &weir_settings::Policies, memory: u64) -> Self {
        let by_memory = Self::within(memory);
        Self {
            file_bytes: policies.file_bytes.unwrap_or(by_memory.file_bytes),
            total_bytes: policies.total_bytes.unwrap_or(by_memory.total_bytes),
            // Who sets the size of files knows what the process can take.
            flow_marks: if policies.file_bytes.is_some() { usize::MAX } else { by_memory.flow_marks },
        }
    }

    /// The most descriptors in all files together.
    pub(super) fn descriptors(self) -> usize {
        (self.total_bytes / DESCRIPTOR_BYTES).min(DESCRIPTORS_MAX)
    }

    /// The most bytes in all automata.
    pub(super) fn automata_bytes(self) -> usize {
        self.total_bytes.saturating_mul(2).min(AUTOMATA_BYTES_MAX)
    }

    /// The most bytes in the automata of all regular expressions, each built alone, and so the time that this takes.
    pub(super) fn regex_bytes(self) -> usize {
        self.automata_bytes().min(REGEX_BYTES_MAX)
    }

    /// The most characters of `, [ ] { }` in a text of this many bytes.
    pub(super) fn flow_marks(self, bytes: usize) -> usize {
        (NODES_FREE + bytes / NODE_BYTES).min(self.flow_marks.max(NODES_FREE))
    }

    /// The most values of one file after expanding aliases.
    pub(super) fn values(self) -> u32 {
        u32::try_from(NODES_FREE + self.file_bytes / NODE_BYTES).unwrap_or(u32::MAX).min(NODES_MAX)
    }
}

/// Why a file of this many bytes is refused.
pub(super) fn too_large(bytes: u64, most: usize) -> String {
    format!("{bytes} bytes, and policies.file_bytes allows {most}: split it by domain, or set more")
}

/// Why the files up to this one are refused.
pub(super) fn too_large_together(most: usize) -> String {
    format!("with this file, all files have more bytes than policies.total_bytes allows, which is {most}")
}

/// Why more descriptors are refused.
pub(super) fn too_many_descriptors(most: usize) -> String {
    format!(
        "more than {most} descriptors in all files: policies.total_bytes allows one for each {DESCRIPTOR_BYTES} bytes, \
         and never more than {DESCRIPTORS_MAX}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_processes_read_small_files_and_large_ones_read_a_million_descriptors() {
        let bounds = |mib: u64| {
            let limits = Limits::within(mib << 20);
            (limits.file_bytes >> 10, limits.total_bytes >> 10, limits.descriptors(), limits.automata_bytes() >> 20)
        };
        assert_eq!(bounds(64), (512, 2_048, 8_192, 4));
        assert_eq!(bounds(128), (1_024, 4_096, 16_384, 8));
        assert_eq!(bounds(512), (4_096, 16_384, 65_536, 32));
        assert_eq!(bounds(8_192), (32_768, 262_144, 1_000_000, 128));
        assert_eq!(Limits::default(), Limits { flow_marks: Limits::default().flow_marks, ..Limits::within(64 << 30) });
        assert_eq!(bounds(1), (256, 1_024, 4_096, 2), "of use");
    }

    #[test]
    fn a_setting_replaces_a_default_and_is_named_by_the_refusal() {
        let text = format!("domain: shop\ndescriptors:\n- key: a\n- key: b\n- key: c\n#{}\n", "-".repeat(945));
        let other = text.replace("shop", "blog");
        let read = |limits: Limits| crate::parse_within(&[("p.yaml", &text), ("q.yaml", &other)], limits);
        let problem = |limits| read(limits).unwrap_err().to_string();
        let most = Limits::default();
        assert!(read(most).is_ok());
        assert_eq!(
            problem(Limits { file_bytes: 50, ..most }),
            "p.yaml: 1000 bytes, and policies.file_bytes allows 50: split it by domain, or set more\n\
             q.yaml: 1000 bytes, and policies.file_bytes allows 50: split it by domain, or set more"
        );
        assert_eq!(
            problem(Limits { total_bytes: 1_999, ..most }),
            "q.yaml: with this file, all files have more bytes than policies.total_bytes allows, which is 1999"
        );
        let text =
            format!("domain: d\ndescriptors:\n{}", (0..100).map(|n| format!("- key: k{n}\n")).collect::<String>());
        let problem = crate::parse_within(&[("p.yaml", &text)], Limits { total_bytes: 2_560, ..most }).unwrap_err();
        assert!(problem.to_string().starts_with("p.yaml:13:3: more than 10 descriptors in all files: "), "{problem}");
    }

    /// A file of 0.5 MB with 9,900 large regular expressions held every other change back for 30 s.
    #[test]
    fn large_regular_expressions_are_refused_at_the_first_past_the_budget() {
        let large = |count: usize, regex: &str| {
            let rule = |n| format!("- {{key: k{n}, regex: '{regex}{n}'}}\n");
            format!("domain: d\ndescriptors:\n{}", (0..count).map(rule).collect::<String>())
        };
        let read = |text: &str| {
            let limits = Limits { file_bytes: 1 << 20, total_bytes: 2 << 20, ..Limits::default() };
            crate::parse_within(&[("p.yaml", text)], limits)
        };
        assert!(read(&large(10, "(a|b)*a(a|b){11}")).is_ok());
        let problems = read(&large(5_000, "(a|b)*a(a|b){11}")).unwrap_err();
        assert_eq!(problems.count(), 1, "{problems}");
        let text = problems.to_string();
        assert!(text.starts_with("p.yaml:26:21: regex \"(a|b)*a(a|b){11}23\": it needs 13"), "{text}");
        assert!(text.contains("need more than 4194304 bytes together"), "{text}");
        // Those that fit no automaton take as long.
        let problems = read(&large(5_000, r"\w{20}")).unwrap_err();
        assert_eq!(problems.count(), 5, "{problems}");
    }

    #[test]
    fn an_alias_counts_as_the_text_that_it_stands_for() {
        let below = "x".repeat(30);
        let mut text = format!("domain: d\ndescriptors:\n- key: a\n  descriptors: &b [{{key: {below}}}, {{key: c}}]\n");
        for n in 0..100 {
            text.push_str(&format!("- {{key: k{n}, descriptors: *b}}\n"));
        }
        let read = |limits: Limits| crate::parse_within(&[("p.yaml", &text)], limits);
        let most = Limits::default();
        assert!(read(most).is_ok());
        let of_text = Limits { file_bytes: text.len(), ..most };
        assert!(read(of_text).unwrap_err().to_string().contains("aliases expand to more than"));
        let of_text = Limits { total_bytes: text.len(), ..most };
        assert!(read(of_text).unwrap_err().to_string().contains("policies.total_bytes allows"));
    }
}
