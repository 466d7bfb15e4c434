//! One layer of settings: from a file, the environment or the command line.
//!
//! A layer stores each value as text with its place, and finds all problems within the layer: unknown names, names set
//! twice, values out of bounds. It never prints a value, because values may be secret. Not here: how layers are merged
//! (lib.rs).

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::Path;

use config::{ConfigError, Map, Source};
use weir_text::yaml::{Document, Options, Position, Value};

use super::setting::{ENV_PREFIX, Preset, Setting, env_name};
use super::value::shorten;
use super::{Problem, table};

/// The longest settings file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The longest error message from another library, in characters: it may quote a value of any length.
const REASON_CHARS_MAX: usize = 400;
/// The reason for a name that is not similar to any setting.
const NO_SUCH_SETTING: &str = "no such setting";
/// The most problems of one file that are reported.
const PROBLEMS_MAX: usize = 1_000;
/// A settings file is small, and no name has eight parts.
const YAML: Options = Options {
    is_compatible: false,
    joined_key: "",
    written_max: 20_000,
    flow_marks_max: 20_000,
    values_max: 20_000,
    aliased_bytes_max: 1 << 20,
    depth_max: 8,
};

/// The settings of one source, and its problems.
///
/// A later layer overrides an earlier one; see [`Settings::load`](super::Settings::load).
#[derive(Clone, Default)]
pub struct Layer {
    entries: Vec<GivenSetting>,
    problems: Vec<Problem>,
}

#[derive(Clone)]
struct GivenSetting {
    name: &'static str,
    text: String,
    origin: String,
}

impl Layer {
    pub fn defaults() -> Self {
        let mut layer = Self::default();
        for setting in table::SETTINGS {
            if let Preset::Is(text) = setting.default {
                layer.put(setting.name, text, "default");
            }
        }
        layer
    }

    pub fn file(path: &Path) -> Self {
        let shown = path.display().to_string();
        match read_bounded(path) {
            Ok(text) => Self::yaml(&shown, &text),
            Err(reason) => {
                let mut layer = Self::default();
                layer.problems.push(Problem { origin: shown, name: None, value: None, reason });
                layer
            }
        }
    }

    /// The text of a settings file; errors call it `file`.
    ///
    /// Groups are mappings, and a dotted name is the same as its mapping: `redis.timeout: 10ms`.
    pub fn yaml(file: &str, text: &str) -> Self {
        let mut layer = Self::default();
        if let Err(problem) = layer.read_yaml(file, text) {
            layer.problems.push(problem);
        }
        // A file without any setting may be a secret of another kind, so its names are not printed.
        let is_setting = |problem: &Problem| problem.name.is_some() && !problem.reason.starts_with(NO_SUCH_SETTING);
        if layer.entries.is_empty() && !layer.problems.iter().any(is_setting) {
            let unknown = layer.problems.iter_mut().filter(|problem| problem.reason == NO_SUCH_SETTING);
            unknown.for_each(|problem| problem.name = None);
        }
        layer
    }

    /// Every variable that starts with `WEIR__`.
    pub fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut layer = Self::default();
        let mut ours: Vec<(String, OsString)> = variables
            .into_iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX))
            .collect();
        ours.sort();
        for (variable, value) in ours {
            let known = table::SETTINGS.iter().find(|setting| setting.env_name() == variable);
            let Some(setting) = known else {
                layer.unknown_variable(&variable);
                continue;
            };
            match value.to_str() {
                Some(text) => layer.put(setting.name, text, &variable),
                None => layer.problems.push(Problem {
                    origin: variable,
                    name: Some(setting.name.to_owned()),
                    value: None,
                    reason: "not UTF-8".to_owned(),
                }),
            }
        }
        layer
    }

    /// Adds one value of the command line; `origin` is the flag.
    pub fn flag(&mut self, name: &str, text: &str, origin: &str) {
        self.put(name, text, origin);
    }

    /// Adds one `NAME=VALUE` of `--set`.
    pub fn set(&mut self, assignment: &str) {
        match assignment.split_once('=') {
            Some((name, text)) => self.put(name, text, "--set"),
            // The text is not printed: it may be a name, a colon and a secret.
            None => self.problems.push(Problem {
                origin: "--set".to_owned(),
                name: None,
                value: None,
                reason: "an argument without \"=\": write NAME=VALUE".to_owned(),
            }),
        }
    }

    /// Adds a problem of a variable or flag that is not a single setting. `origin` is its name.
    pub fn refuse(&mut self, origin: &str, reason: &str) {
        let end = reason.char_indices().nth(REASON_CHARS_MAX).map_or(reason.len(), |(end, _)| end);
        let reason = reason[..end].to_owned();
        self.problems.push(Problem { origin: origin.to_owned(), name: None, value: None, reason });
    }

    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub(super) fn origin(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| entry.origin.as_str())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| entry.text.as_str())
    }

    fn put(&mut self, name: &str, text: &str, origin: &str) {
        let Some(setting) = Setting::find(name) else {
            self.unknown_name(name, origin);
            return;
        };
        if let Some(earlier) = self.origin(name) {
            let reason = format!("given twice, before by {earlier}");
            self.problem(setting, None, origin, reason);
            return;
        }
        if let Err(reason) = setting.kind.check(text) {
            self.problem(setting, setting.kind.show(text), origin, reason);
        }
        self.entries.push(GivenSetting { name: setting.name, text: text.to_owned(), origin: origin.to_owned() });
    }

    fn problem(&mut self, setting: &Setting, value: Option<String>, origin: &str, reason: String) {
        self.problems.push(Problem { origin: origin.to_owned(), name: Some(setting.name.to_owned()), value, reason });
    }

    fn unknown_name(&mut self, name: &str, origin: &str) {
        let around = table::SETTINGS
            .iter()
            .find(|setting| name.strip_prefix(setting.name).is_some_and(|rest| rest.starts_with('.')));
        let reason = if table::is_group(name) {
            format!("a group of settings, not one: {}", members(name))
        } else if let Some(setting) = around {
            format!("{} takes one value, not a group", setting.name)
        } else {
            match table::nearest(name) {
                Some(nearest) => format!("no such setting, the nearest is {nearest}"),
                None => NO_SUCH_SETTING.to_owned(),
            }
        };
        // A name of other characters is not printed: it may be the beginning of a URL with a secret.
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        let name = is_name.then(|| shorten(name));
        self.problems.push(Problem { origin: origin.to_owned(), name, value: None, reason });
    }

    fn unknown_variable(&mut self, variable: &str) {
        let name = variable.strip_prefix(ENV_PREFIX).unwrap_or(variable).to_ascii_lowercase().replace("__", ".");
        let reason = match table::nearest(&name) {
            Some(nearest) => format!("no such setting, the nearest is {}", env_name(nearest)),
            None => NO_SUCH_SETTING.to_owned(),
        };
        self.problems.push(Problem {
            origin: "environment".to_owned(),
            name: Some(shorten(variable)),
            value: None,
            reason,
        });
    }

    fn read_yaml(&mut self, file: &str, text: &str) -> Result<(), Problem> {
        let document = Document::parse(text, YAML).map_err(|fault| Problem {
            origin: format!("{file}:{}", fault.position),
            name: None,
            value: None,
            reason: fault.message,
        })?;
        let Some(root) = document.root.filter(|&root| !document.node(root).is_null()) else { return Ok(()) };
        if !matches!(document.node(root).value, Value::Mapping(_)) {
            let reason = "settings are a mapping of names to values".to_owned();
            return Err(Problem { origin: format!("{file}:{}", Position::START), name: None, value: None, reason });
        }
        document.leaves(root, &mut |name, at, node| {
            if self.problems.len() > PROBLEMS_MAX {
                return;
            }
            let origin = format!("{file}:{at}");
            match (&node.value, Setting::find(name)) {
                _ if node.is_null() && table::is_group(name) => {}
                (Value::Scalar { text, .. }, Some(_)) if !node.is_null() => self.put(name, text, &origin),
                (Value::Scalar { .. }, Some(setting)) => {
                    let reason = "has no value: give one, or remove the name".to_owned();
                    self.problem(setting, None, &origin, reason);
                }
                (_, Some(setting)) => {
                    self.problem(setting, None, &origin, "a list, but one value is expected".to_owned());
                }
                (_, None) => self.unknown_name(name, &origin),
            }
            if self.problems.len() > PROBLEMS_MAX {
                self.problems.truncate(PROBLEMS_MAX);
                self.refuse(&origin, &format!("more than {PROBLEMS_MAX} problems"));
            }
        });
        Ok(())
    }
}

/// Lets the `config` crate merge layers. A layer has only known names, so `config` reads none as a path expression.
impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, config::Value>, ConfigError> {
        let value = |entry: &GivenSetting| config::Value::new(Some(&entry.origin), entry.text.clone());
        Ok(self.entries.iter().map(|entry| (entry.name.to_owned(), value(entry))).collect())
    }
}

/// Prints only names and places, because a value may be secret.
impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.entries.iter().map(|entry| (entry.name, &entry.origin));
        f.debug_map().entries(places).finish()
    }
}

/// The settings in a group. A nested group is written `redis.tls.*`.
fn members(group: &str) -> String {
    let mut names: Vec<String> = Vec::new();
    for setting in table::SETTINGS {
        let Some(rest) = setting.name.strip_prefix(group).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        let name = match rest.split_once('.') {
            Some((inner, _)) => format!("{group}.{inner}.*"),
            None => setting.name.to_owned(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

fn read_bounded(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut text = String::new();
    let size =
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    if size as u64 > FILE_BYTES_MAX {
        return Err(format!("more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}
