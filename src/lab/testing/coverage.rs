//! The policies that tests have loaded, and which of their rules were met.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

use weir_engine::PolicySet;
use weir_engine::words::tenths_of_percent;
use weir_policies::test_file::Policies;
use weir_policies::{Dialect, Loaded, Location, OverlayFile, Problems, Reading, load_dir_by, parse_with};

/// Loaded policies, shared by all cases that use them.
pub(super) struct Load {
    pub(super) policies: Arc<PolicySet>,
    pub(super) places: Vec<Location>,
    /// Which rules requests met, by id.
    met: RefCell<Vec<bool>>,
}

impl Load {
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

type Loading = Result<Rc<Load>, Rc<Problems>>;

/// All policies from files. Policies in the text of a test are loaded for each case.
#[derive(Default)]
pub(super) struct Loads {
    kept: HashMap<(PathBuf, Option<PathBuf>, Dialect), Loading>,
}

impl Loads {
    /// Policies or their problems, loaded once.
    pub(super) fn get(&mut self, policies: &Policies, settings: &weir_settings::Policies) -> Loading {
        let dialect = Dialect::of(settings);
        match policies {
            Policies::Texts(texts) => {
                let files: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
                let overlay = settings.overlay.as_deref().map(OverlayFile::read).transpose();
                let loaded = overlay.and_then(|overlay| parse_with(&files, Reading { dialect, overlay }));
                loaded.map(|loaded| Rc::new(loaded.into())).map_err(Rc::new)
            }
            Policies::At(path) => {
                let key = (path.clone(), settings.overlay.clone(), dialect);
                let load = || load_dir_by(path, settings).map(|loaded| Rc::new(loaded.into())).map_err(Rc::new);
                self.kept.entry(key).or_insert_with(load).clone()
            }
        }
    }

    /// The rules by their places, so a file in two directories counts once.
    pub(super) fn coverage(&self) -> Coverage {
        let mut rules: BTreeMap<(String, u32, u32), CoveredRule> = BTreeMap::new();
        for load in self.kept.values().flatten() {
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

#[derive(Debug, Default)]
pub struct Coverage {
    /// All rules, in the order of their places.
    pub rules: Vec<CoveredRule>,
}

#[derive(Debug)]
pub struct CoveredRule {
    pub place: Location,
    pub domain: String,
    pub path: String,
    pub met: bool,
}

impl Coverage {
    pub fn met(&self) -> usize {
        self.rules.iter().filter(|rule| rule.met).count()
    }

    pub fn unmet(&self) -> impl Iterator<Item = &CoveredRule> {
        self.rules.iter().filter(|rule| !rule.met)
    }

    /// The part of the rules that was met, in tenths of a percent. None if there are no rules.
    pub fn tenths_of_percent(&self) -> Option<u64> {
        let (met, all) = (self.met() as u64, self.rules.len() as u64);
        (all > 0).then(|| tenths_of_percent(met, all))
    }

    /// Whether at least this percentage of the rules was met, without rounding. False if there are no rules.
    pub fn reaches(&self, least: Percentage) -> bool {
        let (met, all) = (self.met() as u128, self.rules.len() as u128);
        if all == 0 {
            return least.0 == 0;
        }
        met * u128::from(Percentage::WHOLE) >= u128::from(least.0) * all
    }
}

/// A percentage from 0 to 100, exact: in millionths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentage(u64);

impl Percentage {
    /// The most digits after the point.
    const DECIMALS: usize = 6;
    /// 100 percent.
    const WHOLE: u64 = 100_000_000;
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = Self::WHOLE / 100;
        let fraction = format!("{:0width$}", self.0 % one, width = Self::DECIMALS);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / one),
            fraction => write!(f, "{}.{fraction}", self.0 / one),
        }
    }
}

impl FromStr for Percentage {
    type Err = &'static str;

    /// Reads `80` or `99.5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "must be a percentage from 0 to 100, such as 80 or 99.5";
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || fraction.len() > Self::DECIMALS {
            return Err(WRONG);
        }
        let millionths = format!("{whole}{fraction:0<width$}", width = Self::DECIMALS).parse().ok();
        millionths.filter(|millionths| *millionths <= Self::WHOLE).map(Self).ok_or(WRONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(met: usize, all: usize) -> Coverage {
        let position = weir_text::yaml::Position::START;
        let rule = |number| CoveredRule {
            place: Location { file: "a.yaml".into(), position },
            domain: "shop".to_owned(),
            path: format!("user{number}"),
            met: number < met,
        };
        Coverage { rules: (0..all).map(rule).collect() }
    }

    #[test]
    fn percentages_are_read_exactly() {
        for (text, expected) in
            [("0", 0), ("80", 80_000_000), ("99.5", 99_500_000), ("100.0", 100_000_000), ("0.000001", 1)]
        {
            assert_eq!(text.parse(), Ok(Percentage(expected)), "{text}");
            assert_eq!(Percentage(expected).to_string(), text.trim_end_matches(".0"));
        }
        for text in ["", "101", "100.1", "-1", ".5", "5.", "1e1", "+1", "x", "0.0000001", "99999999999999999999"] {
            assert!(text.parse::<Percentage>().is_err(), "{text}");
        }
    }

    #[test]
    fn coverage_is_compared_without_rounding() {
        for (met, all, least, expected) in [
            (2, 3, "66.6", true),
            (2, 3, "66.666666", true),
            (2, 3, "66.666667", false),
            (2, 3, "66.7", false),
            (1_999, 2_000, "99.95", true),
            (1_999, 2_000, "100", false),
            (1, 2, "50", true),
            (0, 2, "0", true),
            (0, 0, "0", true),
            (0, 0, "0.1", false),
            (0, 0, "100", false),
        ] {
            let least: Percentage = least.parse().expect("a percentage");
            assert_eq!(of(met, all).reaches(least), expected, "{met} of {all}, {least:?}");
        }
        assert_eq!(
            [of(2, 3), of(1_999, 2_000), of(0, 0)].map(|one| one.tenths_of_percent()),
            [Some(667), Some(999), None]
        );
    }
}
