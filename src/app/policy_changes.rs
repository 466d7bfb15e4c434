//! The difference between two policy sets, for the log. It shows when an incomplete file was loaded.

use std::collections::BTreeMap;
use std::fmt;

use weir_engine::{PolicySet, Rule};

/// The most domains and rules that are named.
const NAMED_MAX: usize = 3;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    before: usize,
    after: usize,
    /// Rules that only the new set has.
    pub(super) added: usize,
    /// Rules that only the old set has.
    pub(super) removed: usize,
    /// Rules of both sets that differ.
    pub(super) changed: usize,
    /// Domains that only the old set has, and the names of some.
    removed_domains: usize,
    gone_domains: Vec<String>,
    /// The names of some removed rules.
    gone: Vec<String>,
}

impl Changes {
    /// Compares the rules with the same domain and path.
    pub(super) fn between(before: &PolicySet, after: &PolicySet) -> Self {
        let mut old: BTreeMap<(&str, &str), &Rule> = before.rules().iter().map(|rule| (key(rule), rule)).collect();
        let mut changes = Self { before: before.rules().len(), after: after.rules().len(), ..Self::default() };
        for rule in after.rules() {
            let known = old.remove(&key(rule));
            match known {
                None => changes.added += 1,
                Some(known) if !is_same(known, rule) || own_words(before, known) != own_words(after, rule) => {
                    changes.changed += 1;
                }
                Some(_) => {}
            }
        }
        let gone = || before.domains().map(|domain| &*domain.name).filter(|name| after.domain(name).is_none());
        changes.removed_domains = gone().count();
        changes.gone_domains = gone().take(NAMED_MAX).map(str::to_owned).collect();
        changes.removed = old.len();
        changes.gone = old.keys().take(NAMED_MAX).map(|(domain, path)| format!("{domain} {path}")).collect();
        changes
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after, removed, gone, removed_domains, gone_domains, .. } = self;
        write!(f, "rules {before} -> {after}")?;
        for (what, names, count) in [("removed domain", gone_domains, removed_domains), ("removed", gone, removed)] {
            if !names.is_empty() {
                write!(f, "; {what} {}", names.join(", "))?;
                if *count > names.len() {
                    write!(f, " and {} more", count - names.len())?;
                }
            }
        }
        Ok(())
    }
}

fn key(rule: &Rule) -> (&str, &str) {
    (&rule.domain, &rule.path)
}

fn is_same(one: &Rule, other: &Rule) -> bool {
    one.levels == other.levels && one.spec == other.spec
}

/// The settings of a rule's domain.
fn own_words(set: &PolicySet, rule: &Rule) -> impl PartialEq + use<> {
    set.domain(&rule.domain).map(|domain| (domain.mode, domain.on_error))
}

#[cfg(test)]
mod tests {
    use weir_policies::parse;

    use super::*;

    fn set(text: &str) -> PolicySet {
        parse(&[("p.yaml", text)]).unwrap().policies
    }

    #[test]
    fn rules_that_come_go_and_change_are_counted() {
        let of = |rules: &[(&str, u32)], on_error: &str| {
            let mut text = format!("domain: shop\non_error: {on_error}\ndescriptors:\n");
            for (key, requests) in rules {
                text.push_str(&format!(
                    "  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {requests}}}}}\n"
                ));
            }
            set(&text)
        };
        let before = of(&[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 6)], "deny");
        let after = of(&[("g", 1), ("f", 7), ("a", 1)], "deny");
        let changes = Changes::between(&before, &after);
        assert_eq!((changes.added, changes.removed, changes.changed), (1, 4, 1));
        assert_eq!(changes.to_string(), "rules 6 -> 3; removed shop b, shop c, shop d and 1 more");

        let other = set("domain: other\ndescriptors: []");
        let changes = Changes::between(&after, &other);
        assert_eq!(changes.to_string(), "rules 3 -> 0; removed domain shop; removed shop a, shop f, shop g");
        assert_eq!(Changes::between(&other, &after).to_string(), "rules 0 -> 3; removed domain other");

        let changes = Changes::between(&before, &before);
        assert_eq!(changes.to_string(), "rules 6 -> 6");
        assert_eq!((changes.added, changes.removed, changes.changed), (0, 0, 0));

        let changes = Changes::between(&after, &of(&[("g", 1), ("f", 7), ("a", 1)], "allow"));
        assert_eq!((changes.added, changes.removed, changes.changed), (0, 0, 3), "the domain's word is theirs");
    }
}
