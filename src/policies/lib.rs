//! Policies from YAML: envoyproxy/ratelimit's format and weir's extensions of it, read strictly.
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
//! docs/policies.md is the reference of all keys. Numbers and booleans are values as written; nothing (`~`, `null`) is
//! the same as leaving a key out. Anchors, aliases and merge keys are read as envoyproxy/ratelimit reads them, under a
//! bound on what they expand to. A compatible [`Dialect`] loads every file that envoyproxy/ratelimit loads.
//!
//! A load gives either a whole policy set, with the place of every rule and warnings, or every problem of every file,
//! each with file, line and column. Not here: what a policy decides (engine/policy.rs) and when files are read again (watch.rs).

mod allowed;
mod comments;
mod fields;
pub mod files;
mod heavy;
mod kept;
mod keys;
mod lease;
mod limit;
mod lint;
mod matches;
mod metadata;
mod rate;
mod reader;
mod scalar;
pub mod schema;
mod single;
mod state;
mod term;
pub mod test_file;
pub mod traffic_file;
mod tree;
mod warning;
pub mod watch;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use allowed::Allowed;
use files::{Source, policy_files};
use kept::{Content, Keeper};
pub use kept::{KEPT_BYTES_MAX, Kept, Sources};
pub use keys::{KINDS, Key, Kind, Needs, Only};
pub use lint::lint;
pub use matches::FORMS;
pub use rate::{SHORT_UNITS, parse_rate};
use state::Reader;
use tree::Planted;
pub use tree::Tree;
pub use warning::{Code, WARNINGS_MAX, Warning, Warnings};
use weir_engine::words::counted;
use weir_engine::{Matcher, PolicySet};
use weir_text::nearest;
pub use yaml::{DEPTH_MAX, NODES_MAX};

/// The longest name of a source in messages, in characters.
const NAME_CHARS_MAX: usize = 200;
/// The largest policy file, in bytes.
pub const FILE_BYTES_MAX: usize = 32 << 20;
/// The most bytes in all files together.
pub const ALL_BYTES_MAX: usize = 256 << 20;
/// The most descriptors in all files together.
pub const DESCRIPTORS_MAX: usize = 1_000_000;
/// The most levels of descriptors: as many as a request's descriptor may have entries unless a setting says otherwise.
pub const LEVELS_MAX: usize = 16;
/// The longest domain, in bytes: a longer one could not be asked about.
pub const DOMAIN_BYTES_MAX: usize = 256;
/// The longest key of a descriptor, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
/// The most items of `values` and `cidr` in all files together.
pub const VALUES_MAX: usize = 1_000_000;
/// The most regular expressions in all files together: each is compiled by itself, which can take milliseconds.
pub const REGEXES_MAX: usize = 10_000;
/// The longest value of a descriptor, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// The longest name of a limit, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The most names that one limit replaces.
pub const REPLACES_MAX: usize = 64;
/// The most values in the metadata of one descriptor, mappings and lists included.
pub const METADATA_VALUES_MAX: usize = 10_000;
/// The most text in the metadata of one descriptor, keys included, in bytes.
pub const METADATA_BYTES_MAX: usize = 262_144;
/// The most problems that are kept; those past it are counted.
pub const PROBLEMS_MAX: usize = 1_000;
/// How much of a text from a file is shown in a message, in characters.
const SHOWN_CHARS_MAX: usize = 60;

/// How policy files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// What envoyproxy/ratelimit loads is loaded and means the same; where that is probably a mistake there is a
    /// warning. Otherwise it is refused.
    pub compatible: bool,
    /// Several files may be of one domain, whose descriptors are joined. Otherwise the second one is refused.
    pub merge_domains: bool,
}

impl Dialect {
    /// What the settings say.
    #[must_use]
    pub const fn of(policies: &weir_settings::Policies) -> Self {
        Self { compatible: policies.compatible, merge_domains: policies.merge_domains }
    }
}

/// How much of each thing there may be in a file.
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
    /// envoyproxy/ratelimit has no bounds: these are the largest that the settings allow in a request.
    const COMPATIBLE: Self = Self {
        levels: 64,
        domain_bytes: 4_096,
        key_bytes: 65_536,
        value_bytes: 65_536,
        name_bytes: 4_096,
        replaces: 1_024,
    };
}

/// Reads every policy file of a directory, or one file; see [`policy_files`] for which those are.
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
/// All problems of all files, in file order; also a directory that cannot be listed or holds no policy file.
pub fn load_dir(directory: &Path) -> Result<Loaded, Problems> {
    load_dir_with(directory, Dialect::default())
}

/// The same, read in a given way. A compatible reading accepts a directory without policy files.
///
/// # Errors
/// Those of [`load_dir`].
pub fn load_dir_with(directory: &Path, dialect: Dialect) -> Result<Loaded, Problems> {
    load(&Source::from(directory), dialect)
}

/// Reads every policy file of a source.
///
/// # Errors
/// Those of [`load_dir`]. A source without a file is legal where it allows that.
pub fn load(source: &Source, dialect: Dialect) -> Result<Loaded, Problems> {
    load_with(source, dialect, None, &Restless::default())
}

/// Files that keep changing.
#[derive(Clone, Debug, Default)]
pub struct Restless {
    /// Their paths.
    pub paths: BTreeSet<PathBuf>,
    /// What was last loaded, which has their last texts.
    pub last: Kept,
}

/// The same for policies that are put in force: what was read is kept, so that others can read it again. Of files that keep changing
/// the last texts are loaded in place of the files. One that was never loaded is left out.
///
/// # Errors
/// Those of [`load`], and files that keep changing while the last policies were too large to be kept.
pub fn load_and_keep(source: &Source, dialect: Dialect, restless: &Restless) -> Result<Loaded, Problems> {
    load_with(source, dialect, Some(Keeper::new(dialect.compatible, dialect.merge_domains)), restless)
}

fn load_with(
    source: &Source,
    dialect: Dialect,
    mut keeper: Option<Keeper>,
    restless: &Restless,
) -> Result<Loaded, Problems> {
    let name = files::shown(&source.directory);
    let alone = |message: String| {
        let mut problems = Problems::default();
        problems.push(Problem { kind: ProblemKind::Unreadable, file: name.as_str().into(), position: None, message });
        problems
    };
    let mut paths = policy_files(source.clone()).map_err(|error| {
        // The error names the path, which the problem does too.
        let text = error.to_string();
        let message = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
        alone(message.to_owned())
    })?;
    let mut last_texts = restless.texts().map_err(alone)?;
    paths.retain(|path| !restless.paths.contains(path));
    paths.extend(last_texts.keys().map(|path| path.to_path_buf()));
    paths.sort();
    if paths.is_empty() && !source.allow_empty && !dialect.compatible {
        let but = if files::has_tests_or_traffic(&source.directory) { ", besides tests and traffic" } else { "" };
        return Err(alone(format!("no policy files: none here is named *.yaml or *.yml{but}")));
    }
    let mut reader = Reader::new(dialect);
    let mut bytes_left = ALL_BYTES_MAX;
    for path in &paths {
        let file: Arc<str> = files::shown(path).into();
        let read = match last_texts.remove(&**path) {
            Some(text) => Ok(text.into_bytes()),
            None => files::read(path, FILE_BYTES_MAX.min(bytes_left)).map_err(|error| (None, error.to_string())),
        };
        let read = read.and_then(|bytes| match bytes_left.checked_sub(bytes.len()) {
            Some(left) => {
                bytes_left = left;
                decode(bytes, dialect.compatible)
            }
            None => Err((None, too_many_bytes())),
        });
        match read {
            Ok(text) => {
                reader.file(file.clone(), &text);
                // Policies with a problem are not put in force: nothing more of them is kept.
                keeper = keeper.filter(|_| reader.problems.count() == 0);
                if let Some(keeper) = &mut keeper {
                    keeper.text(&file, &text);
                }
            }
            Err((position, message)) => {
                reader.refused(Problem { kind: ProblemKind::Unreadable, file, position, message });
            }
        }
    }
    let loaded = reader.finish()?;
    Ok(Loaded { kept: keeper.and_then(Keeper::finish), paths, ..loaded })
}

impl Restless {
    /// The last text of each file that has one.
    fn texts(&self) -> Result<BTreeMap<&Path, String>, String> {
        let Some(path) = self.paths.first() else { return Ok(BTreeMap::new()) };
        let Some(last) = self.last.as_ref().and_then(kept::unpacked) else {
            let most = KEPT_BYTES_MAX >> 20;
            let file = files::shown(path);
            return Err(format!(
                "{file} keeps changing, and the last policies are larger than the {most} MiB that are kept"
            ));
        };
        let mut last = last.texts();
        let mut text = |path: &Path| last.remove(&files::shown(path));
        Ok(self.paths.iter().filter_map(|path| Some((&**path, text(path)?))).collect())
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

/// The same, read in a given way.
///
/// # Errors
/// Those of [`parse`].
pub fn parse_with(files: &[(&str, &str)], dialect: Dialect) -> Result<Loaded, Problems> {
    let mut reader = Reader::new(dialect);
    for &(name, text) in files {
        reader.file(name.into(), text);
    }
    reader.finish()
}

/// What a load gives.
#[derive(Debug)]
pub struct Loaded {
    /// The policies, ready to match.
    pub policies: PolicySet,
    /// Where each rule is written, by [`Rule::id`](weir_engine::Rule::id).
    pub places: Vec<Location>,
    /// The domains as written, in file order. For people; matching does not use them.
    pub domains: Vec<DomainOutline>,
    /// How many files were read.
    pub files: usize,
    /// Their paths; none where policies were not read from files.
    pub paths: Vec<PathBuf>,
    /// Probable mistakes, without those that the policies allow.
    pub warnings: Warnings,
    allowed: Allowed,
    dialect: Dialect,
    /// What was read, where it was read to be put in force.
    pub kept: Kept,
}

/// A domain as written.
#[derive(Debug)]
pub struct DomainOutline {
    /// Its name.
    pub name: String,
    /// Where its name stands.
    pub place: Location,
    /// The first level.
    pub descriptors: Vec<Outline>,
}

/// A descriptor as written.
#[derive(Debug)]
pub struct Outline {
    /// The key.
    pub key: Box<str>,
    /// The values that it is for; none for the key alone.
    pub value: Option<Matcher>,
    /// Whether all these values share one state.
    pub share_threshold: bool,
    /// Where it stands in its file.
    pub position: Position,
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// The [`Rule::id`](weir_engine::Rule::id) of its rule, where it has one.
    pub rule: Option<u32>,
    /// Whether `rate_limit` is there without a value.
    pub has_empty_limit: bool,
    /// Whether a comment stands in one of its lines, or alone in the line above. True where there can be no comments, because it
    /// did not come as text.
    pub has_comment: bool,
    /// The next level, in file order.
    pub descriptors: Vec<Outline>,
}

impl Outline {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> Location {
        Location { file: self.file.clone(), position: self.position }
    }
}

/// A line and a column, both counted from 1; columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Position {
    /// Whether it is a place in a text. In policies that did not come as text, the line is the number of a place and the
    /// column is 0.
    pub(crate) const fn is_text(self) -> bool {
        self.column > 0
    }
}

/// A place in a policy file; displayed as `file:line:column`. For policies that did not come as text, the path to the place
/// stands in `file`, and is all that is displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// Where in it.
    pub position: Position,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.position.is_text() {
            return f.write_str(&self.file);
        }
        write!(f, "{}:{}:{}", self.file, self.position.line, self.position.column)
    }
}

/// One thing that is wrong; displayed as `file:line:column: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Of which kind it is.
    pub kind: ProblemKind,
    /// The file as it was named to the loader, or the directory.
    pub file: Arc<str>,
    /// Where in it; none if all of it is meant, such as a file that cannot be read.
    pub position: Option<Position>,
    /// What is wrong, and where possible what to write instead.
    pub message: String,
}

/// What a problem is about. Unlike the text of a problem, its kind has nothing of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A file or a directory cannot be read, or is too large.
    Unreadable,
    /// A file is not YAML.
    Yaml,
    /// The policies have a mistake.
    Policy,
    /// The store cannot hold a limit.
    Store,
}

impl ProblemKind {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Yaml => "yaml",
            Self::Policy => "policy",
            Self::Store => "store",
        }
    }
}

impl Problem {
    /// A mistake in policies.
    fn in_policies(file: Arc<str>, position: Option<Position>, message: String) -> Self {
        Self { kind: ProblemKind::Policy, file, position, message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Everything that is wrong with a policy directory, in file order, at least one; displayed one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    /// How many more there were than are kept.
    more: usize,
}

impl Problems {
    /// The problems, at most [`PROBLEMS_MAX`].
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// How many problems there are, those past [`PROBLEMS_MAX`] included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    fn push(&mut self, problem: Problem) {
        if self.list.len() < PROBLEMS_MAX {
            self.list.push(problem);
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {}", counted(self.more, "more problem"))?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The text of a file, or what is wrong with it and where.
fn decode(bytes: Vec<u8>, is_compatible: bool) -> Result<String, (Option<Position>, String)> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err((None, too_large()));
    }
    if is_compatible && let Some(text) = utf_16(&bytes) {
        return text.ok_or_else(|| (None, "not UTF-16, which its byte order mark announces".to_owned()));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err((None, "UTF-16 by its byte order mark: save it as UTF-8".to_owned()));
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

/// The text of a file that begins with the byte order mark of UTF-16; nothing in it where it is none after all.
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

/// Reads sources from memory: names for messages, and the content of each, or why it cannot be read.
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
///     "shop: descriptors[0].rate_limit (user): requests_per_unit must be a whole number from 0 to 4294967295, not the \
///      text \"many\""
/// );
/// ```
///
/// # Errors
/// All problems of all sources, in order.
pub fn read_trees<'a>(
    sources: impl IntoIterator<Item = (String, Result<Tree<'a>, Vec<String>>)>,
    dialect: Dialect,
) -> Result<Loaded, Problems> {
    let mut reader = Reader::new(dialect);
    let mut keeper = Keeper::new(dialect.compatible, dialect.merge_domains);
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

/// Reads what a running server has kept.
///
/// # Errors
/// All problems of all sources, in order; a server of another version may accept what this one does not.
pub fn load_sources(sources: Sources) -> Result<Loaded, Problems> {
    let Sources { compatible, merge_domains, files } = sources;
    let mut reader = Reader::new(Dialect { compatible, merge_domains });
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
        Ok(planted) => reader.tree(name, &planted),
        Err(message) => reader.refused(Problem::in_policies(name.clone(), None, message)),
    }
}

fn too_large() -> String {
    format!("larger than {} MiB: split it by domain", FILE_BYTES_MAX >> 20)
}

fn too_many_bytes() -> String {
    format!("all files together are larger than {} MiB", ALL_BYTES_MAX >> 20)
}

/// The end of a message about a word that is none of the known ones.
fn instead(word: &str, known: &[&'static str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => format!(": it is one of {}", known.join(", ")),
    }
}

/// A text from a file, quoted for a message and cut to a bounded length.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}
