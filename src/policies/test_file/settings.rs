//! The settings of a test: those on which decisions and responses depend.

use std::sync::Arc;

use weir_settings::{Layer, Problems, Setting, Settings};
use weir_text::nearest;

use super::Position;
use crate::fields::Fields;
use crate::shown;
use crate::state::{FileReader, Reported};
use crate::yaml::{NodeId, Value};

/// The settings that a test may have.
pub const NAMES: [&str; 21] = [
    "charging",
    "shadow_mode",
    "quota_mode",
    "policies.compatible",
    "policies.merge_domains",
    "response.dynamic_metadata",
    "response.delay_header",
    "response.limit_metadata",
    "response.ietf_headers",
    "response.problem_body",
    "response.limit_headers",
    "response.limit_header",
    "response.remaining_header",
    "response.reset_header",
    "memory.max_keys",
    "limits.descriptors",
    "limits.entries",
    "limits.domain_bytes",
    "limits.key_bytes",
    "limits.value_bytes",
    "limits.hits",
];
/// How deep the groups of settings nest.
const DEPTH_MAX: usize = 4;

/// The settings as written, each with its text: those of a case come after those of its file and win.
pub(crate) type Given = Vec<(&'static str, String)>;

impl FileReader<'_> {
    /// The settings below `settings`, added to those of `above`.
    pub(crate) fn settings_of(&mut self, fields: &Fields, above: &Given) -> Result<Given, Reported> {
        let mut given = above.clone();
        let Some((at, id)) = fields.get("settings") else { return Ok(given) };
        if !self.document.node(id).is_null() {
            self.group(at, id, "", 0, &mut given)?;
        }
        Ok(given)
    }

    fn group(
        &mut self,
        at: Position,
        id: NodeId,
        prefix: &str,
        depth: usize,
        given: &mut Given,
    ) -> Result<(), Reported> {
        let document = self.document;
        let node = document.node(id);
        let Value::Mapping(entries) = &node.value else {
            let at = self.value_position(at, id);
            return Err(self.report(at, format!("settings must be names and values, not {}", node.describe())));
        };
        let mut result = Ok(());
        for &(key, value) in entries {
            let Value::Scalar { text: key_text, .. } = &document.node(key).value else { continue };
            let at = document.node(key).position;
            let name = format!("{prefix}{key_text}");
            let known = NAMES.iter().find(|known| **known == name);
            let is_group = NAMES.iter().any(|known| known.starts_with(&format!("{name}.")));
            let done = match (known, &document.node(value).value) {
                (Some(known), Value::Scalar { text, .. }) => self.setting(at, known, text, given),
                (None, Value::Mapping(_)) if is_group && depth < DEPTH_MAX => {
                    self.group(at, value, &format!("{name}."), depth + 1, given)
                }
                (Some(_), _) | (None, _) if known.is_some() || is_group => {
                    let described = document.node(value).describe();
                    let wanted = if is_group { "a mapping" } else { "one value" };
                    Err(self.report(at, format!("{name} must be {wanted}, not {described}")))
                }
                _ => Err(self.report(at, unknown(&name))),
            };
            result = result.and(done);
        }
        result
    }

    fn setting(&mut self, at: Position, name: &'static str, text: &str, given: &mut Given) -> Result<(), Reported> {
        let checked = Setting::find(name).map_or(Ok(()), |setting| setting.kind.check(text));
        if let Err(reason) = checked {
            return Err(self.report(at, format!("{name} {}: {reason}", shown(text))));
        }
        given.retain(|(other, _)| *other != name);
        given.push((name, text.to_owned()));
        Ok(())
    }

    /// The settings with all defaults.
    pub(crate) fn loaded(&mut self, at: Position, given: &Given) -> Result<Arc<Settings>, Reported> {
        let settings = with_defaults(given).map(Arc::new);
        settings.map_err(|problems| self.report(at, problems.to_string().replace('\n', "; ")))
    }
}

/// The settings of a server with these alone.
///
/// # Errors
/// When they do not fit together.
pub fn with_defaults(given: &[(&'static str, String)]) -> Result<Settings, Problems> {
    let mut layer = Layer::default();
    // Where policies are is not a matter of settings here.
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
    match nearest(name, NAMES) {
        Some(near) => format!("no setting {}, did you mean {near:?}?", shown(name)),
        None => format!("no setting {}: a test has {}", shown(name), NAMES.join(", ")),
    }
}
