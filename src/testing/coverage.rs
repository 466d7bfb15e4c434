//! Which policies were loaded for tests, and which of their rules were met.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::policy_file::test_file::Policies;
use crate::config::policy_file::{Loaded, Location, Problems, Reading, load_dir_with, parse_with};
use crate::engine::PolicySet;

/// Policies as loaded, shared by all cases that use them.
pub(super) struct Load {
    pub(super) policies: Arc<PolicySet>,
    pub(super) places: Vec<Location>,
    /// Which rules were met, by their id.
    met: RefCell<Vec<bool>>,
}

impl Load {
    /// Notes that a request met a rule.
    pub(super) fn met(&self, rule: u32) {
        if let Some(met) = self.met.borrow_mut().get_mut(rule as usize) {
            *met = true;
        }
    }
}

impl From<Loaded> for Load {
    fn from(loaded: Loaded) -> Self {
        let met = RefCell::new(vec![false; loaded.policies.rules().len()]);
        Self { policies: Arc::new(loaded.policies), places: loaded.places, met }
    }
}

/// The policies that were loaded from files; those in the text of a test are loaded for each case.
#[derive(Default)]
pub(super) struct Loads {
    kept: HashMap<(PathBuf, bool, bool), Rc<Load>>,
}

impl Loads {
    /// Policies, loaded once.
    pub(super) fn get(&mut self, policies: &Policies, reading: Reading) -> Result<Rc<Load>, Problems> {
        match policies {
            Policies::Texts(texts) => {
                let files: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
                parse_with(&files, reading).map(|loaded| Rc::new(loaded.into()))
            }
            Policies::At(path) => {
                let key = (path.clone(), reading.compatible, reading.merge_domains);
                if let Some(load) = self.kept.get(&key) {
                    return Ok(load.clone());
                }
                let load: Rc<Load> = Rc::new(load_dir_with(path, reading)?.into());
                self.kept.insert(key, load.clone());
                Ok(load)
            }
        }
    }

    /// The rules by their places: a file that is in two directories is one.
    pub(super) fn coverage(&self) -> Coverage {
        let mut rules: BTreeMap<(String, u32, u32), CoveredRule> = BTreeMap::new();
        for load in self.kept.values() {
            let met = load.met.borrow();
            for ((rule, place), met) in load.policies.rules().iter().zip(&load.places).zip(met.iter()) {
                let position = place.position;
                let known =
                    rules.entry((place.file.to_string(), position.line, position.column)).or_insert_with(|| {
                        CoveredRule {
                            place: place.clone(),
                            domain: rule.domain.to_string(),
                            path: rule.path.to_string(),
                            met: false,
                        }
                    });
                known.met |= met;
            }
        }
        Coverage { rules: rules.into_values().collect() }
    }
}

/// Which rules of policies were met by tests.
#[derive(Debug, Default)]
pub struct Coverage {
    /// All rules, in the order of their places.
    pub rules: Vec<CoveredRule>,
}

/// One rule, and whether a request of a test met it.
#[derive(Debug)]
pub struct CoveredRule {
    /// Where it is written.
    pub place: Location,
    /// Its domain.
    pub domain: String,
    /// Its path.
    pub path: String,
    /// Whether a request met it.
    pub met: bool,
}

impl Coverage {
    /// How many rules were met.
    #[must_use]
    pub fn met(&self) -> usize {
        self.rules.iter().filter(|rule| rule.met).count()
    }

    /// The rules that no request met.
    pub fn unmet(&self) -> impl Iterator<Item = &CoveredRule> {
        self.rules.iter().filter(|rule| !rule.met)
    }

    /// How many of a hundred rules were met, rounded down; 100 where there are none.
    #[must_use]
    pub fn percent(&self) -> u32 {
        let percent = (self.met() * 100).checked_div(self.rules.len()).unwrap_or(100);
        u32::try_from(percent).unwrap_or(100)
    }
}
