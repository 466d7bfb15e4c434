//! Whose answers change: the same traffic through the policies before and through those now, each with an empty store.
//!
//! Not here: traffic and the limiter under its clock (simulation).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::app::decisions;
use crate::engine::descriptor::spell_entries;
use crate::engine::observer::Silent;
use crate::engine::words::counted;
use crate::engine::{Entry, PolicySet};
use crate::limiter::{Answer, Query, Undecided};
use crate::simulation::traffic::{self, Traffic, TrafficError};
use crate::simulation::world::World;

/// The most requests of one comparison.
pub const REQUESTS_MAX: u64 = 100_000_000;
/// The most descriptors that are counted one by one; those that come later are counted together.
pub const KEYS_MAX: usize = 100_000;
/// The longest descriptor that is counted by its text, in bytes.
const KEY_BYTES_MAX: usize = 1_024;
/// How many domains that neither side has are named.
const STRANGERS_MAX: usize = 8;

/// Why traffic has no answers.
#[derive(Debug, thiserror::Error)]
pub enum AnswersError {
    /// It cannot be read.
    #[error("{0}")]
    Traffic(#[from] TrafficError),
    /// There is too much of it.
    #[error("the traffic has more than {REQUESTS_MAX} requests")]
    TooMany,
}

/// Requests whose answer changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// They passed before, and are denied now.
    pub now_denied: u64,
    /// They were denied before, and pass now.
    pub now_passed: u64,
    /// They get an error on one side only, such as for a request whose limits are too heavy.
    pub errors: u64,
}

impl Changed {
    /// How many.
    #[must_use]
    pub const fn all(self) -> u64 {
        self.now_denied + self.now_passed + self.errors
    }

    fn add(&mut self, flip: Flip) {
        match flip {
            Flip::NowDenied => self.now_denied += 1,
            Flip::NowPassed => self.now_passed += 1,
            Flip::Error => self.errors += 1,
        }
    }
}

#[derive(Clone, Copy)]
enum Flip {
    NowDenied,
    NowPassed,
    Error,
}

/// What a descriptor met before and meets now, by the paths of the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Met {
    /// The domain.
    pub domain: String,
    /// The rule before.
    pub old: Option<String>,
    /// The rule now.
    pub new: Option<String>,
}

/// The answers of one traffic.
#[derive(Debug, Default)]
pub struct Answers {
    /// The name of the traffic.
    pub traffic: String,
    /// How many requests there were.
    pub requests: u64,
    /// How many of them a server refuses, as they have no domain or no descriptor.
    pub refused: u64,
    /// Those whose answer changed.
    pub changed: Changed,
    /// The same by what the descriptors meet that are over a limit on one side only, most changes first.
    pub rules: Vec<(Met, Changed)>,
    /// The same by domain and descriptor, most changes first.
    pub keys: Vec<(String, String, Changed)>,
    /// The changes of descriptors that came after so many others.
    pub other_keys: Changed,
    /// What a reader must know of the traffic.
    pub notes: Vec<String>,
}

/// Sends traffic through both.
///
/// # Errors
/// When the traffic cannot be read on, or is too much.
pub fn answers(old: &Arc<PolicySet>, new: &Arc<PolicySet>, traffic: &mut Traffic) -> Result<Answers, AnswersError> {
    let settings = traffic.settings().clone();
    let bounds = decisions::bounds(&settings.limits);
    let world = |policies: &Arc<PolicySet>| World::new(policies.clone(), &settings, Arc::new(Silent));
    let (before, now) = (world(old), world(new));
    let mut counts = Counts {
        old,
        new,
        answers: Answers::default(),
        rules: HashMap::new(),
        keys: HashMap::new(),
        strangers: BTreeSet::new(),
        of_strangers: 0,
    };
    while let Some(request) = traffic.next()? {
        counts.answers.requests += 1;
        if counts.answers.requests > REQUESTS_MAX {
            return Err(AnswersError::TooMany);
        }
        let view = request.view();
        let Ok(query) = traffic::query(&view, &bounds) else {
            counts.answers.refused += 1;
            continue;
        };
        counts.note_stranger(query.domain);
        before.set_now(request.time);
        now.set_now(request.time);
        counts.compare(&query, &before.decide_now(&query), &now.decide_now(&query));
    }
    let mut answers = counts.finish();
    answers.traffic = traffic.name().to_owned();
    answers.notes.extend(traffic.notes());
    Ok(answers)
}

struct Counts<'c> {
    old: &'c PolicySet,
    new: &'c PolicySet,
    answers: Answers,
    rules: HashMap<Met, Changed>,
    keys: HashMap<(String, String), Changed>,
    /// Some domains that neither side has, and how many requests all such domains have.
    strangers: BTreeSet<String>,
    of_strangers: u64,
}

impl Counts<'_> {
    /// A domain that neither side has is probably misspelled: its requests pass on both.
    fn note_stranger(&mut self, domain: &str) {
        if self.old.domain(domain).is_some() || self.new.domain(domain).is_some() {
            return;
        }
        self.of_strangers += 1;
        // One more than are named, so that there is a sign of more.
        if self.strangers.len() <= STRANGERS_MAX && !self.strangers.contains(domain) {
            self.strangers.insert(domain.to_owned());
        }
    }

    fn compare(&mut self, query: &Query<'_>, before: &Result<Answer, Undecided>, now: &Result<Answer, Undecided>) {
        let flip = match (before, now) {
            (Ok(before), Ok(now)) if before.denied == now.denied => return,
            (Ok(_), Ok(now)) if now.denied => Flip::NowDenied,
            (Ok(_), Ok(_)) => Flip::NowPassed,
            (Err(_), Err(_)) => return,
            _ => Flip::Error,
        };
        self.answers.changed.add(flip);
        let is_over = |answer: &Result<Answer, Undecided>, number: usize| {
            answer.as_ref().is_ok_and(|answer| answer.statuses.get(number).is_some_and(|status| status.over))
        };
        for (number, descriptor) in query.descriptors.iter().enumerate() {
            if is_over(before, number) != is_over(now, number) {
                self.count(query.domain, descriptor.entries, flip);
            }
        }
    }

    fn count(&mut self, domain: &str, entries: &[Entry<'_>], flip: Flip) {
        let met = |set: &PolicySet| Some(set.find(set.domain(domain)?, entries).rule?.path.to_string());
        let met = Met { domain: domain.to_owned(), old: met(self.old), new: met(self.new) };
        // As many as there are pairs of rules at most.
        self.rules.entry(met).or_default().add(flip);
        let key = (domain.to_owned(), spell_entries(entries.iter().copied()));
        let has_room = self.keys.len() < KEYS_MAX && key.1.len() <= KEY_BYTES_MAX;
        match self.keys.get_mut(&key) {
            Some(changed) => changed.add(flip),
            None if has_room => self.keys.entry(key).or_default().add(flip),
            None => self.answers.other_keys.add(flip),
        }
    }

    fn finish(self) -> Answers {
        let mut answers = self.answers;
        if self.of_strangers > 0 {
            let mut names: Vec<&str> = self.strangers.iter().take(STRANGERS_MAX).map(String::as_str).collect();
            if self.strangers.len() > STRANGERS_MAX {
                names.push("and more");
            }
            let requests = counted(self.of_strangers, "request");
            answers.notes.push(format!("{requests} of domains that neither side has: {}", names.join(", ")));
        }
        answers.rules = self.rules.into_iter().collect();
        answers.rules.sort_by(|one, other| (other.1.all(), &one.0).cmp(&(one.1.all(), &other.0)));
        answers.keys = self.keys.into_iter().map(|((domain, key), changed)| (domain, key, changed)).collect();
        answers.keys.sort_by(|one, other| (other.2.all(), &one.0, &one.1).cmp(&(one.2.all(), &other.0, &other.1)));
        answers
    }
}
