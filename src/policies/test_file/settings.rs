//! The settings of a test: those that affect decisions and responses.

use std::path::Path;
use std::sync::Arc;

use weir_settings::{Kind, Layer, Problems, SETTINGS, Setting, Settings};
use weir_text::yaml::Value;
use weir_text::{nearest, quoted};

use super::Position;
use super::keys::file;
use crate::fields::Fields;
use crate::state::{FileReader, Reported};

/// The names of the settings that a test can set.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    SETTINGS.iter().filter(|setting| setting.is_of_tests).map(|setting| setting.name)
}

/// The names and texts of settings. A case's settings replace those of its file.
pub(crate) type Given = Vec<(&'static str, String)>;

impl FileReader<'_> {
    /// The settings in `settings`, added to `above`. Paths are relative to `directory`.
    pub(crate) fn settings_of(&mut self, fields: &Fields, above: &Given, directory: &Path) -> Result<Given, Reported> {
        let mut given = above.clone();
        let (Some((at, node)), Some((_, id))) = (self.value(fields, file::SETTINGS), fields.get(file::SETTINGS)) else {
            return Ok(given);
        };
        if !matches!(node.value, Value::Mapping(_)) {
            return Err(self.report(at, format!("settings must be names and values, not {}", node.describe())));
        }
        let mut result = Ok(());
        self.document.leaves(id, &mut |name, at, node| {
            let is_group = names().any(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
            let done = match (Setting::find(name).filter(|setting| setting.is_of_tests), &node.value) {
                (Some(setting), Value::Scalar { text, .. }) if matches!(setting.kind, Kind::File) => {
                    let path = directory.join(&**text);
                    self.setting(at, setting, &path.to_string_lossy(), &mut given)
                }
                (Some(setting), Value::Scalar { text, .. }) => self.setting(at, setting, text, &mut given),
                (None, _) if !is_group => Err(self.report(at, unknown(name))),
                _ => {
                    let expected = if is_group { "a mapping" } else { "one value" };
                    Err(self.report(at, format!("{name} must be {expected}, not {}", node.describe())))
                }
            };
            result = std::mem::replace(&mut result, Ok(())).and(done);
        });
        result.map(|()| given)
    }

    fn setting(&mut self, at: Position, setting: &Setting, text: &str, given: &mut Given) -> Result<(), Reported> {
        let name = setting.name;
        if let Err(reason) = setting.kind.check(text) {
            return Err(self.report(at, format!("{name} {}: {reason}", quoted(text))));
        }
        given.retain(|(other, _)| *other != name);
        given.push((name, text.to_owned()));
        Ok(())
    }

    pub(crate) fn loaded(&mut self, at: Position, given: &Given) -> Result<Arc<Settings>, Reported> {
        let settings = with_defaults(given).map(Arc::new);
        settings.map_err(|problems| self.report(at, problems.to_string().replace('\n', "; ")))
    }
}

/// The settings of a server with only these set.
///
/// # Errors
/// When they contradict each other.
pub fn with_defaults(given: &[(&'static str, String)]) -> Result<Settings, Problems> {
    let mut layer = Layer::default();
    // This setting is required, but tests do not use it.
    layer.set("policies.directory=.");
    for (name, text) in given {
        layer.set(&format!("{name}={text}"));
    }
    Settings::load(&[layer])
}

fn unknown(name: &str) -> String {
    if Setting::find(name).is_some() {
        return format!("the setting {name} changes no answer of a test");
    }
    match nearest(name, names()) {
        Some(near) => format!("no setting {}, did you mean {near:?}?", quoted(name)),
        None => format!("no setting {}: a test has {}", quoted(name), names().collect::<Vec<_>>().join(", ")),
    }
}
