//! The table of all settings, made of the groups.
//!
//! It is used for defaults, unknown names, `weir serve --help`, the schema, and the check of docs/configuration.md. A new
//! setting is an entry of its group (group.rs).

use super::Settings;
use super::group::{Group, count, flat};
use super::setting::Setting;

/// Every setting, grouped as in the documentation.
pub const SETTINGS: &[Setting] = &flat::<{ count(Settings::ENTRIES) }>(Settings::ENTRIES);

impl Setting {
    pub fn find(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }
}

/// Whether this is a group of settings, such as `redis`.
pub(super) fn is_group(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The probable correction of a misspelled name. A name without its group is also found: `key_prefix` for
/// `redis.key_prefix`.
pub fn nearest(unknown: &str) -> Option<&'static str> {
    let last_part = |setting: &'static Setting| setting.name.rsplit('.').next();
    weir_text::nearest(unknown, SETTINGS.iter().map(|setting| setting.name)).or_else(|| {
        let last = weir_text::nearest(unknown, SETTINGS.iter().filter_map(last_part))?;
        SETTINGS.iter().find(|setting| last_part(setting) == Some(last)).map(|setting| setting.name)
    })
}

/// Every setting with its default and explanation, for `weir serve --help`.
pub fn listing() -> String {
    let mut text = String::new();
    for setting in SETTINGS {
        text.push_str(&format!(
            "  {}\n      {}\n      [{}; {}]\n",
            setting.name,
            setting.about,
            setting.default_note(),
            setting.bounds()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice_or_is_a_group_itself() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[..index] {
                assert_ne!(setting.name, other.name);
                assert_ne!(setting.env_name(), other.env_name());
            }
            assert!(!is_group(setting.name), "{}", setting.name);
        }
    }

    #[test]
    fn nearest_knows_typos_and_missing_groups_and_does_not_guess() {
        assert_eq!(nearest("redis.timout"), Some("redis.timeout"));
        assert_eq!(nearest("redis.pool-size"), Some("redis.pool_size"));
        assert_eq!(nearest("key_prefix"), Some("redis.key_prefix"));
        assert_eq!(nearest("stroe"), Some("store"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
    }
}
