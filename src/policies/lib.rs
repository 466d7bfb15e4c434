//! Policies from YAML: the format of envoyproxy/ratelimit with weir's extensions, read strictly.
//!
//! ```yaml
//! domain: shop                    # one file, one domain
//! charging: atomic                # or independent; without it, the setting of that name
//! on_error: deny                  # error, allow, deny or local; without it, the setting of that name
//! descriptors:
//!   - key: path
//!     value: /pay/*               # optional; a star stands for any text
//!     share_threshold: true       # all values that match the star share one state
//!     shadow_mode: true           # counts and reports, never denies
//!     on_error: local             # of these limits; without it, what the domain says
//!     rate_limit:                 # or rate_limits: a list of 1 to 8, all of which apply
//!       unit: hour                # second, minute, hour, day, week, month or year
//!       requests_per_unit: 100    # 0 denies everything
//!       name: pay                 # needed where a list has the same algorithm and window twice
//!       replaces: [{name: basic}] # in one request, limits of these names are left out
//!     descriptors: []             # the next level
//! ```
//!
//! docs/policies.md is the reference of all keys. A value is the text as written. Null (`~`, `null` or nothing) is the
//! same as no key. Anchors, aliases and merge keys are read as envoyproxy/ratelimit reads them. A compatible
//! [`Dialect`] loads every file that envoyproxy/ratelimit loads.
//!
//! A load returns either a whole policy set, with warnings and the place of every rule, or every problem of every file.
//! Not here: how policies decide (engine/policy.rs), and when files are read again (watch.rs).

mod allowed;
mod beside;
pub mod caller_file;
mod check_warnings;
mod fields;
pub mod files;
mod form;
mod given_rows;
mod heavy;
mod isolate;
mod kept;
mod keys;
mod lease;
mod limit;
mod limits;
mod many_wildcards;
mod matches;
mod metadata;
pub mod overlay;
mod plans;
mod rate;
mod reader;
mod request_limit;
pub mod row_file;
mod scalar;
pub mod schema;
mod single;
mod state;
mod tables;
mod term;
pub mod test_file;
pub mod traffic_file;
mod tree;
mod warning;
pub mod watch;
mod weigh;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use allowed::Allowed;
pub use beside::RowsBeside;
pub use caller_file::{Listening, parse_callers, read_callers};
pub use check_warnings::{check_warnings, check_warnings_with};
use files::{Source, policy_files};
pub use given_rows::GivenRows;
pub use isolate::{FileDomains, HeldBack, load_isolated};
use kept::{Content, Keeper};
pub use kept::{KEPT_BYTES_MAX, Kept, KeptSources, Sources};
pub use keys::{Kind, Needs, Only, Row};
pub use limits::{FILE_BYTES_MAX, Limits, TOTAL_BYTES_MAX};
pub use overlay::{OverlayFile, OverlayUse};
pub use rate::{SHORT_UNITS, parse_named_rate, parse_rate_of_request};
use state::Reader;
pub use tables::KINDS;
use tree::Planted;
pub use tree::Tree;
pub use warning::{Code, WARNINGS_MAX, Warning, Warnings};
use weir_engine::PolicySet;
use weir_engine::policy::NodeSpec;
use weir_engine::words::counted;
use weir_text::nearest;
use weir_text::yaml::{Options, Position};

/// The longest name of a source in messages, in characters.
const NAME_CHARS_MAX: usize = 200;
/// The most descriptors in all files together.
pub const DESCRIPTORS_MAX: usize = 1_000_000;
/// The most levels of descriptors: the default maximum of entries in a request's descriptor.
pub const LEVELS_MAX: usize = 16;
/// The longest domain, in bytes. By default, requests with a longer domain are refused.
pub const DOMAIN_BYTES_MAX: usize = 256;
/// The longest key of a descriptor, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
/// The most items of `values` and `cidr` in all files together.
pub const VALUES_MAX: usize = 1_000_000;
/// The most regular expressions in all files together. Compiling one can take milliseconds.
pub const REGEXES_MAX: usize = 10_000;
/// The longest value of a descriptor, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// The longest name of a limit, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The most names that one limit replaces.
pub const REPLACES_MAX: usize = 64;
/// The most values in the metadata of one descriptor, including mappings and lists.
pub const METADATA_VALUES_MAX: usize = 10_000;
/// The most text in the metadata of one descriptor, including keys, in bytes.
pub const METADATA_BYTES_MAX: usize = 262_144;
/// The most problems that are kept; more are only counted. At the last of one file, reading the file ends.
pub const PROBLEMS_MAX: usize = 100;
/// The most values in one file, including keys and the expansion of aliases: about 300,000 rules.
pub const NODES_MAX: u32 = 4_000_000;
/// The most values in a short text. [`NODE_BYTES`] allows more in a longer text. A tree with more values per byte would
/// use many times the memory of its text.
const NODES_FREE: usize = 10_000;
/// A text may have one more value for this many bytes. A list of numbers has about seven bytes a value, and a rule six.
const NODE_BYTES: usize = 4;
/// The deepest nesting of lists and mappings: more than the deepest policy needs.
pub const DEPTH_MAX: usize = 64;
/// The deepest nesting in a compatible reading, which allows more levels of descriptors.
const DEPTH_COMPATIBLE_MAX: usize = 192;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// Loads files that envoyproxy/ratelimit loads, with the same meaning, and warns about probable mistakes. Otherwise
    /// such files are refused.
    pub compatible: bool,
    /// The descriptors of several files of one domain are joined. Otherwise the second file is refused.
    pub merge_domains: bool,
    /// Windows of `unit: month` without `calendar` are months of the calendar in UTC. Otherwise they have 30 days.
    pub calendar_months: bool,
}

impl Dialect {
    pub const fn of(policies: &weir_settings::Policies) -> Self {
        let &weir_settings::Policies { compatible, merge_domains, calendar_months, .. } = policies;
        Self { compatible, merge_domains, calendar_months }
    }

    /// The YAML options for a text of this many bytes.
    fn yaml(self, limits: Limits, bytes: usize) -> Options {
        Options {
            is_compatible: self.compatible,
            // envoyproxy/ratelimit reads all mappings of this key into one object.
            joined_key: "rate_limit",
            written_max: NODES_FREE + bytes / NODE_BYTES,
            flow_marks_max: limits.flow_marks(bytes),
            values_max: limits.values(),
            aliased_bytes_max: limits.file_bytes,
            depth_max: if self.compatible { DEPTH_COMPATIBLE_MAX } else { DEPTH_MAX },
        }
    }
}

/// How policies are read that are not files.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub dialect: Dialect,
    /// What is added to them.
    pub overlay: Option<OverlayFile>,
}

impl From<Dialect> for Reading {
    fn from(dialect: Dialect) -> Self {
        Self { dialect, overlay: None }
    }
}

struct Bounds {
    levels: usize,
    domain_bytes: usize,
    key_bytes: usize,
    value_bytes: usize,
    name_bytes: usize,
    replaces: usize,
}

impl Bounds {
    const OURS: Self = Self {
        levels: LEVELS_MAX,
        domain_bytes: DOMAIN_BYTES_MAX,
        key_bytes: KEY_BYTES_MAX,
        value_bytes: VALUE_BYTES_MAX,
        name_bytes: NAME_BYTES_MAX,
        replaces: REPLACES_MAX,
    };
    /// envoyproxy/ratelimit has no bounds. These are the largest values that the settings allow in a request.
    const COMPATIBLE: Self = Self {
        levels: 64,
        domain_bytes: 4_096,
        key_bytes: 65_536,
        value_bytes: 65_536,
        name_bytes: 4_096,
        replaces: 1_024,
    };
}

/// Reads every policy file of a directory, or one file; see [`policy_files`].
///
/// ```no_run
/// # use std::path::Path;
/// match weir_policies::load_dir(Path::new("examples/quickstart")) {
///     Ok(loaded) => println!("{} rules", loaded.policies.rules().len()),
///     Err(problems) => eprintln!("{problems}"),
/// }
/// ```
///
/// # Errors
/// All problems of all files, in file order; also a directory that cannot be listed or has no policy file.
pub fn load_dir(directory: &Path) -> Result<Loaded, Problems> {
    load_dir_with(directory, Dialect::default())
}

/// [`load_dir`] with a dialect. A compatible one accepts a directory without policy files.
///
/// # Errors
/// As [`load_dir`].
pub fn load_dir_with(directory: &Path, dialect: Dialect) -> Result<Loaded, Problems> {
    load(&Source::from(directory), dialect)
}

/// Reads every policy file of a directory, or one file, as these settings say.
///
/// # Errors
/// As [`load_dir`].
pub fn load_dir_by(directory: &Path, settings: &weir_settings::Policies) -> Result<Loaded, Problems> {
    load(&Source { overlay: settings.overlay.clone(), ..Source::from(directory) }, Dialect::of(settings))
}

/// Reads every policy file of a source.
///
/// # Errors
/// As [`load_dir`]. A source without files is valid if it allows that.
pub fn load(source: &Source, dialect: Dialect) -> Result<Loaded, Problems> {
    load_with(source, dialect, Keep::Nothing, &Restless::default())
}

/// The files that count as they were in the last load. One that the last load did not have is left out.
#[derive(Clone, Debug, Default)]
pub struct Restless {
    /// The files that keep changing.
    paths: BTreeSet<PathBuf>,
    /// The files of domains that are held back, as they are shown.
    held: BTreeSet<Arc<str>>,
    last: LastGood,
}

/// What the last load has read.
#[derive(Clone, Debug, Default)]
pub struct LastGood {
    /// The text of each file.
    pub kept: Kept,
    pub domains: Arc<FileDomains>,
}

/// [`load`] for a server: keeps the texts for readers. For a file that keeps changing, loads its last text; without
/// one, leaves the file out.
///
/// # Errors
/// As [`load`]; also files that keep changing, if the last policies were too large to keep.
pub fn load_and_keep(source: &Source, dialect: Dialect, restless: &Restless) -> Result<Loaded, Problems> {
    load_with(source, dialect, Keep::Texts, restless)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    Texts,
}

fn load_with(source: &Source, dialect: Dialect, keep: Keep, restless: &Restless) -> Result<Loaded, Problems> {
    let name = files::shown(&source.directory);
    let alone = |message: String| {
        let mut problems = Problems { are_of_all: true, ..Problems::default() };
        problems.push(Problem { kind: ProblemKind::Unreadable, file: name.as_str().into(), position: None, message });
        problems
    };
    let mut paths = policy_files(source.clone()).map_err(|error| {
        // The problem has the path as well.
        let text = error.to_string();
        let message = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
        alone(message.to_owned())
    })?;
    let mut last_texts = restless.texts().map_err(alone)?;
    paths.retain(|path| !restless.has(path));
    paths.extend(last_texts.keys().cloned());
    paths.sort();
    if paths.is_empty() && !source.allow_empty && !dialect.compatible {
        let but = if files::has_tests_or_traffic(&source.directory) { ", besides tests and traffic" } else { "" };
        return Err(alone(format!("no policy files: no file is named *.yaml or *.yml{but}")));
    }
    let limits = source.limits;
    let overlay =
        source.overlay.as_deref().map(|path| restless.overlay(path).map_or_else(|| OverlayFile::read(path), Ok));
    let kept = overlay.as_ref().and_then(|overlay| overlay.as_ref().ok());
    let mut keeper = (keep == Keep::Texts).then(|| Keeper::new(dialect, kept));
    let mut reader = Reader::new(dialect, limits).with_overlays(overlay);
    for path in &paths {
        let file: Arc<str> = files::shown(path).into();
        let read = match last_texts.remove(path) {
            Some(text) => Ok(text.into_bytes()),
            None => read_file(path, limits, reader.bytes_left).map_err(|unread| match unread {
                Unread::File(message) => (None, message),
                Unread::All(message) => {
                    reader.problems.are_of_all = true;
                    (None, message)
                }
            }),
        };
        let read = read.and_then(|bytes| decode(bytes, dialect.compatible));
        match read {
            Ok(text) => {
                reader.file(file.clone(), &text);
                // Policies with a problem are not used, so they are not kept.
                keeper = keeper.filter(|_| reader.problems.count() == 0);
                if let Some(keeper) = &mut keeper {
                    keeper.text(&file, &text);
                    keeper.is_of(reader.problems.domains.get(&file));
                }
            }
            Err((position, message)) => {
                reader.refused(Problem { kind: ProblemKind::Unreadable, file, position, message });
            }
        }
    }
    let loaded = reader.finish()?;
    paths.extend(source.overlay.clone());
    Ok(Loaded { kept: keeper.and_then(Keeper::finish), paths, ..loaded })
}

/// The bytes of a file within the bounds, of which all files together have this many left.
fn read_file(path: &Path, limits: Limits, bytes_left: usize) -> Result<Vec<u8>, Unread> {
    let most = limits.file_bytes.min(bytes_left);
    let bytes = files::read(path, most).map_err(|error| Unread::File(error.to_string()))?;
    if bytes.len() <= most {
        return Ok(bytes);
    }
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len()).max(bytes.len() as u64);
    Err(if size > limits.file_bytes as u64 {
        Unread::File(limits::too_large(size, limits.file_bytes))
    } else {
        Unread::All(limits::too_large_together(limits.total_bytes))
    })
}

/// Why a file is not read: its own fault, or that of all files together.
enum Unread {
    File(String),
    All(String),
}

impl Restless {
    /// These files keep changing.
    pub fn of(paths: BTreeSet<PathBuf>, last: LastGood) -> Self {
        Self { paths, held: BTreeSet::new(), last }
    }

    /// The last text of each file that has one.
    fn texts(&self) -> Result<BTreeMap<PathBuf, String>, String> {
        let paths = || self.paths.iter().cloned().chain(self.held.iter().map(|file| PathBuf::from(&**file)));
        let Some(path) = paths().next() else { return Ok(BTreeMap::new()) };
        let Some(last) = self.last.kept.as_ref().and_then(kept::unpacked) else {
            let most = KEPT_BYTES_MAX >> 20;
            let file = files::shown(&path);
            return Err(format!(
                "{file} keeps changing, and the last policies are larger than the maximum of {most} MiB"
            ));
        };
        let mut last = last.texts();
        let mut text = |path: &Path| last.remove(&files::shown(path));
        Ok(paths().filter_map(|path| Some((text(&path)?, path))).map(|(text, path)| (path, text)).collect())
    }

    /// The last overlays, if their file keeps changing.
    fn overlay(&self, path: &Path) -> Option<OverlayFile> {
        let last = self.paths.contains(path).then_some(self.last.kept.as_ref())??;
        kept::unpacked(last)?.overlay
    }

    /// Whether this file counts as it was.
    fn has(&self, path: &Path) -> bool {
        self.paths.contains(path) || (!self.held.is_empty() && self.held.contains(&*files::shown(path)))
    }
}

/// Reads policies from memory: names for messages, and texts.
///
/// ```
/// use weir_policies::parse;
///
/// let good = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3}}]";
/// assert_eq!(parse(&[("shop.yaml", good)]).unwrap().policies.rules().len(), 1);
///
/// let typo = good.replace("requests", "request");
/// assert_eq!(
///     parse(&[("shop.yaml", &typo)]).unwrap_err().to_string(),
///     "shop.yaml:2:52: unknown key \"request_per_unit\" in a rate limit, did you mean \"requests_per_unit\"?"
/// );
/// ```
///
/// # Errors
/// All problems of all files, in file order.
pub fn parse(files: &[(&str, &str)]) -> Result<Loaded, Problems> {
    parse_with(files, Dialect::default())
}

/// [`parse`] with a dialect and overlays.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(files: &[(&str, &str)], reading: impl Into<Reading>) -> Result<Loaded, Problems> {
    read_texts(files, reading.into(), Limits::default())
}

fn read_texts(files: &[(&str, &str)], reading: Reading, limits: Limits) -> Result<Loaded, Problems> {
    let mut reader = Reader::new(reading.dialect, limits).with_overlays(reading.overlay.map(Ok));
    for &(name, text) in files {
        reader.file(name.into(), text);
    }
    reader.finish()
}

#[cfg(test)]
fn parse_within(files: &[(&str, &str)], limits: Limits) -> Result<Loaded, Problems> {
    read_texts(files, Dialect::default().into(), limits)
}

#[derive(Debug)]
pub struct Loaded {
    /// The policies, ready to match.
    pub policies: PolicySet,
    /// The place of each rule, by [`Rule::id`](weir_engine::Rule::id).
    pub places: Vec<Location>,
    /// The domains as written, in file order. For people; matching does not use them.
    pub domains: Vec<DomainOutline>,
    pub files: usize,
    /// The paths of the files, with that of the overlays. Empty if policies were not read from files.
    pub paths: Vec<PathBuf>,
    /// Probable mistakes, except those that the policies allow.
    pub warnings: Warnings,
    /// None: there is no file of overlays.
    pub overlays: Option<OverlayUse>,
    allowed: Allowed,
    dialect: Dialect,
    /// The sources, if they were loaded for use.
    pub kept: Kept,
    file_domains: FileDomains,
}

impl Loaded {
    /// What this load has read, for the next one.
    pub fn last_good(&self) -> LastGood {
        LastGood { kept: self.kept.clone(), domains: Arc::new(self.file_domains.clone()) }
    }
}

#[derive(Debug)]
pub struct DomainOutline {
    pub name: String,
    /// The place of the domain's name.
    pub place: Location,
    pub descriptors: Vec<Outline>,
}

/// A descriptor as written. Its rule is in the [`PolicySet`].
pub type Outline = NodeSpec<Note>;

/// Where a descriptor is written, and how.
#[derive(Debug)]
pub struct Note {
    pub position: Position,
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// The [`Rule::id`](weir_engine::Rule::id) of its rule. None: it has no rule.
    pub rule: Option<u32>,
    /// Whether `rate_limit` is present without a value.
    pub has_empty_limit: bool,
    /// Whether one of its lines has a comment, or the line above is a comment. True for policies that were not read
    /// from text.
    pub has_comment: bool,
}

impl Note {
    pub fn place(&self) -> Location {
        Location { file: self.file.clone(), position: self.position }
    }
}

/// A place in a policy file, displayed as `file:line:column`. For policies that were not read from text, `file` has the
/// path to the place, and only that is displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    pub position: Position,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if is_in_text(self.position) {
            write!(f, ":{}", self.position)?;
        }
        Ok(())
    }
}

/// Whether it is a position in a text. In other policies the line is the number of a step in `Paths`, and the column is
/// 0.
const fn is_in_text(position: Position) -> bool {
    position.column > 0
}

/// A mistake, displayed as `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    /// The file as it was named to the loader, or the directory.
    pub file: Arc<str>,
    /// The position in the file. None if the problem concerns the whole file.
    pub position: Option<Position>,
    /// The mistake and, if possible, its correction.
    pub message: String,
}

weir_engine::named! {
    /// The kind of a problem. Unlike the message, it contains no text of the file.
    #[derive(PartialOrd, Ord)]
    pub enum ProblemKind {
        /// A file or directory is too large or cannot be read.
        Unreadable = "unreadable",
        Yaml = "yaml",
        Policy = "policy",
    }
}

impl Problem {
    fn in_policies(file: Arc<str>, position: Option<Position>, message: String) -> Self {
        Self { kind: ProblemKind::Policy, file, position, message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(position) = self.position {
            write!(f, ":{position}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// All problems of a policy directory, in file order, displayed one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    more: usize,
    /// Whether a file has problems in a part that was not read.
    is_cut: bool,
    /// The files that have problems.
    files: BTreeSet<Arc<str>>,
    /// Whether one of the problems is of all files together.
    are_of_all: bool,
    /// The domain that each file names, of good files too.
    domains: FileDomains,
}

impl Problems {
    /// That of a file that is not loaded, because it keeps changing.
    pub fn of_restless(file: &Path) -> Self {
        single::unreadable(
            &files::shown(file).into(),
            None,
            "keeps changing and is not loaded: replace it by renaming, at most once a second".to_owned(),
        )
    }

    /// The problems, at most [`PROBLEMS_MAX`].
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// The number of problems, including those that were not kept. If a file was not read to its end, at least one more.
    pub fn count(&self) -> usize {
        self.list.len() + self.more.max(self.is_cut.into())
    }

    pub fn push(&mut self, problem: Problem) {
        self.push_of(&problem.file.clone(), problem);
    }

    /// Adds a problem that a policy file has, also if an overlay has the place.
    fn push_of(&mut self, file: &Arc<str>, problem: Problem) {
        self.files.insert(file.clone());
        if self.list.len() < PROBLEMS_MAX {
            self.list.push(problem);
        } else {
            self.more += 1;
        }
    }
}

impl Problems {
    /// Adds the problems of a later load of the same files, but none twice.
    fn join(&mut self, later: Self) {
        self.more = self.more.max(later.more);
        self.is_cut |= later.is_cut;
        self.are_of_all |= later.are_of_all;
        for problem in later.list {
            if !self.list.contains(&problem) {
                self.push(problem);
            }
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}{problem}")?;
        }
        if self.is_cut {
            write!(f, "\nand more: a file is read up to its problem number {PROBLEMS_MAX}")?;
        } else if self.more > 0 {
            write!(f, "\nand {}", counted(self.more, "more problem"))?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The text of a file. On failure, the reason and, if possible, its place.
fn decode(bytes: Vec<u8>, is_compatible: bool) -> Result<String, (Option<Position>, String)> {
    if is_compatible && let Some(text) = utf_16(&bytes) {
        return text.ok_or_else(|| (None, "not UTF-16, although its byte order mark is that of UTF-16".to_owned()));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err((None, "it has the byte order mark of UTF-16: save it as UTF-8".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let bad = error.as_bytes()[good];
        let before = String::from_utf8_lossy(&error.as_bytes()[..good]);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let line = small(before.matches('\n').count() + 1);
        let column = small(before[line_start..].chars().count() + 1);
        (Some(Position { line, column }), format!("not UTF-8: the byte 0x{bad:02x}"))
    })
}

/// The text of a file that begins with the byte order mark of UTF-16. The inner option is None if the file is not
/// UTF-16.
fn utf_16(bytes: &[u8]) -> Option<Option<String>> {
    let of_pair: fn([u8; 2]) -> u16 = match bytes.get(..2)? {
        [0xff, 0xfe] => u16::from_le_bytes,
        [0xfe, 0xff] => u16::from_be_bytes,
        _ => return None,
    };
    let (pairs, rest) = bytes[2..].as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().copied().map(of_pair).collect();
    Some(String::from_utf16(&units).ok().filter(|_| rest.is_empty()))
}

/// Reads sources from memory: a name for messages, and the content or why it cannot be read.
///
/// ```
/// use weir_policies::{Dialect, Tree, read_trees};
///
/// let limit = Tree::Mapping(vec![
///     ("unit".into(), Tree::Text("hour".into())),
///     ("requests_per_unit".into(), Tree::Text("many".into())),
/// ]);
/// let user = Tree::Mapping(vec![("key".into(), Tree::Text("user".into())), ("rate_limit".into(), limit)]);
/// let shop = Tree::Mapping(vec![
///     ("domain".into(), Tree::Text("shop".into())),
///     ("descriptors".into(), Tree::List(vec![user])),
/// ]);
/// assert_eq!(
///     read_trees([("shop".to_owned(), Ok(shop))], Dialect::default()).unwrap_err().to_string(),
///     "shop: descriptors[0].rate_limit (user): requests_per_unit must be a whole number from 0 to 999999999999999, not the \
///      text \"many\""
/// );
/// ```
///
/// # Errors
/// All problems of all sources, in order.
pub fn read_trees<'a>(
    sources: impl IntoIterator<Item = (String, Result<Tree<'a>, Vec<String>>)>,
    reading: impl Into<Reading>,
) -> Result<Loaded, Problems> {
    let Reading { dialect, overlay } = reading.into();
    let mut keeper = Keeper::new(dialect, overlay.as_ref());
    let mut reader = Reader::new(dialect, Limits::default()).with_overlays(overlay.map(Ok));
    for (name, tree) in sources {
        let name: Arc<str> = match name.char_indices().nth(NAME_CHARS_MAX) {
            Some((end, _)) => name[..end].into(),
            None => name.into(),
        };
        match tree {
            Ok(tree) => {
                if reader.problems.count() == 0 {
                    keeper.tree(&name, &tree);
                }
                plant(&mut reader, &name, tree);
                keeper.is_of(reader.problems.domains.get(&name));
            }
            Err(messages) => {
                for message in messages {
                    reader.refused(Problem::in_policies(name.clone(), None, message));
                }
            }
        }
    }
    let loaded = reader.finish()?;
    Ok(Loaded { kept: keeper.finish(), ..loaded })
}

/// Reads the sources that a running server has kept.
///
/// # Errors
/// All problems of all sources, in order. A server of another version may accept policies that this program refuses.
pub fn load_sources(sources: Sources) -> Result<Loaded, Problems> {
    let Sources { compatible, merge_domains, calendar_months, overlay, files } = sources;
    let dialect = Dialect { compatible, merge_domains, calendar_months };
    let mut reader = Reader::new(dialect, Limits::default()).with_overlays(overlay.map(Ok));
    for kept::File { name, content } in files {
        match content {
            Content::Text(text) => reader.file(name.into(), &text),
            Content::Tree(tree) => plant(&mut reader, &name.into(), tree),
        }
    }
    reader.finish()
}

fn plant(reader: &mut Reader, name: &Arc<str>, tree: Tree<'_>) {
    match Planted::new(tree) {
        Ok(mut planted) => reader.tree(name, &mut planted),
        Err(message) => reader.refused(Problem::in_policies(name.clone(), None, message)),
    }
}

/// The end of a message about an unknown word.
fn instead(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => format!(": it is one of {}", known.join(", ")),
    }
}
