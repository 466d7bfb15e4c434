//! Loads the files of a directory so that a wrong file holds back only its own domain. (docs/adr/0031-a-wrong-file-can-hold-back-only-its-domain.md)
//!
//! A domain is held back as a whole: all files that name it now, and all that named it in the last load, count as they
//! were in the last load. A file that has moved from one domain to another holds back both, so that no rule is lost or
//! in force twice. Not here: when files are read (watch.rs), and what is shown of a domain that is held back (app).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::files::Source;
use super::{Dialect, Loaded, Problems, Restless, load_and_keep};

/// How often files are read again without those that were found wrong. Each time finds one kind of problem: of single
/// files, of files together, of compiling.
const ROUNDS_MAX: usize = 8;

/// The domain that each file names.
pub type FileDomains = BTreeMap<Arc<str>, Arc<str>>;

/// What a load has held back.
#[derive(Debug)]
pub struct HeldBack {
    /// The domains whose last policies stay in force. A domain without last policies has none.
    pub domains: BTreeSet<Arc<str>>,
    /// The problems of their files.
    pub problems: Problems,
}

/// As [`load_and_keep`]. If files are wrong, loads the last texts of their domains in their place.
///
/// # Errors
/// As [`load_and_keep`] if no file is to blame, if a wrong file could belong to any domain, or if there are no last texts.
pub fn load_isolated(
    source: &Source,
    dialect: Dialect,
    restless: &Restless,
) -> Result<(Loaded, Option<HeldBack>), Problems> {
    let mut problems = match load_and_keep(source, dialect, restless) {
        Ok(loaded) => return Ok((loaded, None)),
        Err(problems) => problems,
    };
    if restless.last.kept.is_none() {
        return Err(problems);
    }
    let now = std::mem::take(&mut problems.domains);
    let mut wrong = problems.files.clone();
    for _ in 0..ROUNDS_MAX {
        if problems.are_of_all {
            return Err(problems);
        }
        let Some(held) = Held::of(&wrong, &now, &restless.last.domains, dialect.merge_domains) else {
            return Err(problems);
        };
        let without = Restless { held: held.files, ..restless.clone() };
        match load_and_keep(source, dialect, &without) {
            Ok(loaded) => return Ok((loaded, Some(HeldBack { domains: held.domains, problems }))),
            Err(more) => {
                let known = wrong.len();
                wrong.extend(more.files.iter().cloned());
                problems.join(more);
                if wrong.len() == known {
                    return Err(problems);
                }
            }
        }
    }
    Err(problems)
}

struct Held {
    domains: BTreeSet<Arc<str>>,
    /// All files of these domains, now and in the last load, and wrong files of no known domain.
    files: BTreeSet<Arc<str>>,
}

impl Held {
    /// What the wrong files hold back. None if it could be any domain: the domain of a file is not known, and the file
    /// could have the rules of a file that is gone, or of any other if files are joined.
    fn of(wrong: &BTreeSet<Arc<str>>, now: &FileDomains, last: &FileDomains, are_joined: bool) -> Option<Self> {
        let is_gone = |file: &Arc<str>| !now.contains_key(file) && !wrong.contains(file);
        let is_unknown = |file: &Arc<str>| !now.contains_key(file) && !last.contains_key(file);
        if wrong.iter().any(is_unknown) && (are_joined || last.keys().any(is_gone)) {
            return None;
        }
        let mut files_of: BTreeMap<&Arc<str>, Vec<&Arc<str>>> = BTreeMap::new();
        for (file, domain) in now.iter().chain(last) {
            files_of.entry(domain).or_default().push(file);
        }
        let mut held = Self { domains: BTreeSet::new(), files: BTreeSet::new() };
        let mut next: Vec<&Arc<str>> = wrong.iter().collect();
        while let Some(file) = next.pop() {
            if !held.files.insert(file.clone()) {
                continue;
            }
            for domain in [now.get(file), last.get(file)].into_iter().flatten() {
                if held.domains.insert(domain.clone()) {
                    next.extend(files_of.get(domain).into_iter().flatten());
                }
            }
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::LastGood;

    /// A directory, and what was last loaded from it.
    struct Team {
        dir: TempDir,
        last: LastGood,
        dialect: Dialect,
    }

    fn policy(domain: &str, keys: &[&str]) -> String {
        let rules = keys.iter().map(|key| format!("- {{key: {key}, rate_limit: {{rate: 1/s}}}}\n"));
        format!("domain: {domain}\ndescriptors:\n{}", rules.collect::<String>())
    }

    impl Team {
        fn new(merge_domains: bool, files: &[(&str, &str, &[&str])]) -> Self {
            let dialect = Dialect { merge_domains, ..Dialect::default() };
            let team = Self { dir: tempfile::tempdir().unwrap(), last: LastGood::default(), dialect };
            for (name, domain, keys) in files {
                team.write(name, &policy(domain, keys));
            }
            let loaded = load_and_keep(&team.dir.path().into(), dialect, &Restless::default()).unwrap();
            Self { last: loaded.last_good(), ..team }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join(name), text).unwrap();
        }

        fn remove(&self, name: &str) {
            fs::remove_file(self.dir.path().join(name)).unwrap();
        }

        /// The rules that the next load puts in force, and the domains that it holds back. An error: all of them.
        fn load(&mut self) -> Result<(Vec<String>, Vec<String>), Problems> {
            let restless = Restless::of(BTreeSet::new(), self.last.clone());
            let source = Source::from(self.dir.path() as &Path);
            let (loaded, held) = load_isolated(&source, self.dialect, &restless)?;
            self.last = loaded.last_good();
            let mut rules: Vec<_> =
                loaded.policies.rules().iter().map(|rule| format!("{} {}", rule.domain, rule.path)).collect();
            rules.sort();
            let domains = held.into_iter().flat_map(|held| held.domains);
            Ok((rules, domains.map(|domain| domain.to_string()).collect()))
        }

        #[track_caller]
        fn assert(&mut self, rules: &[&str], held: &[&str]) {
            let (found, held_back) = self.load().unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!(
                (found.iter().map(String::as_str).collect::<Vec<_>>(), held_back),
                (rules.to_vec(), {
                    let held: Vec<String> = held.iter().map(|domain| (*domain).to_owned()).collect();
                    held
                })
            );
        }
    }

    const WRONG: &str = "domain: [";

    #[test]
    fn a_wrong_file_keeps_the_last_policies_of_its_domain_and_others_change() {
        let mut team = Team::new(false, &[("a.yaml", "a", &["x"]), ("b.yaml", "b", &["x"])]);
        team.write("a.yaml", WRONG);
        team.write("b.yaml", &policy("b", &["y"]));
        team.assert(&["a x", "b y"], &["a"]);
        // Also when others change later.
        team.write("b.yaml", &policy("b", &["z"]));
        team.assert(&["a x", "b z"], &["a"]);
        team.write("a.yaml", &policy("a", &["y"]));
        team.assert(&["a y", "b z"], &[]);
    }

    #[test]
    fn files_of_one_domain_are_held_back_together() {
        let mut team = Team::new(true, &[("1.yaml", "a", &["x"]), ("2.yaml", "a", &["y"]), ("3.yaml", "b", &["x"])]);
        team.write("1.yaml", &policy("a", &["x", "typo: 1, key2"]));
        team.write("2.yaml", &policy("a", &["z"]));
        team.write("4.yaml", &policy("a", &["new"]));
        team.write("3.yaml", &policy("b", &["y"]));
        team.assert(&["a x", "a y", "b y"], &["a"]);
        team.remove("2.yaml");
        team.assert(&["a x", "a y", "b y"], &["a"]);
        team.write("1.yaml", &policy("a", &["x"]));
        team.assert(&["a new", "a x", "b y"], &[]);
    }

    #[test]
    fn a_file_that_moves_to_a_domain_that_is_held_back_holds_back_its_own() {
        let files: &[(&str, &str, &[&str])] =
            &[("1.yaml", "a", &["x"]), ("2.yaml", "b", &["y"]), ("3.yaml", "c", &["x"])];
        let mut team = Team::new(true, files);
        team.write("1.yaml", "domain: a\ndescriptors: 5\n");
        team.write("2.yaml", &policy("a", &["y"]));
        team.write("3.yaml", &policy("c", &["y"]));
        team.assert(&["a x", "b y", "c y"], &["a", "b"]);
        team.write("1.yaml", &policy("a", &["x"]));
        team.assert(&["a x", "a y", "c y"], &[]);
    }

    #[test]
    fn a_second_file_of_a_domain_holds_back_both_and_a_new_domain_waits() {
        let mut team = Team::new(false, &[("b.yaml", "b", &["x"]), ("c.yaml", "c", &["x"])]);
        team.write("a.yaml", &policy("b", &["mine"]));
        team.write("b.yaml", &policy("b", &["y"]));
        team.write("c.yaml", &policy("c", &["y"]));
        team.write("d.yaml", "domain: d\ndescriptors: 5\n");
        team.assert(&["b x", "c y"], &["b", "d"]);
    }

    #[test]
    fn a_file_of_no_known_domain_holds_back_all_if_it_could_have_the_rules_of_another() {
        let mut team = Team::new(false, &[("a.yaml", "a", &["x"]), ("b.yaml", "b", &["x"])]);
        team.write("new.yaml", WRONG);
        team.write("b.yaml", &policy("b", &["y"]));
        team.assert(&["a x", "b y"], &[]);
        // It can be the new name of a file that is gone.
        team.remove("a.yaml");
        assert!(team.load().unwrap_err().to_string().contains("new.yaml:"));
        let mut team = Team::new(true, &[("a.yaml", "a", &["x"])]);
        team.write("new.yaml", WRONG);
        assert!(team.load().is_err());
    }

    #[test]
    fn a_bound_on_all_files_and_the_first_load_hold_back_all() {
        let mut team = Team::new(false, &[("a.yaml", "a", &["x"]), ("b.yaml", "b", &["x"])]);
        team.write("b.yaml", &policy("b", &["y"]));
        team.write("a.yaml", WRONG);
        let source = Source {
            limits: crate::Limits { total_bytes: 60, ..crate::Limits::default() },
            ..Source::from(team.dir.path() as &Path)
        };
        let restless = Restless::of(BTreeSet::new(), team.last.clone());
        assert!(load_isolated(&source, team.dialect, &restless).is_err());
        team.last = LastGood::default();
        assert!(team.load().is_err());
    }
}
