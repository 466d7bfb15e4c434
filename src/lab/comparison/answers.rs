//! Changed answers: the same traffic through the old and the new policies, each with an empty store.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use weir_engine::descriptor::spell_entries;
use weir_engine::observer::Silent;
use weir_engine::words::counted;
use weir_engine::{Entry, PolicySet};
use weir_limiter::{Answer, Query, Undecided};
use weir_rls::configured;

use crate::simulation::traffic::{self, Traffic, TrafficError};
use crate::simulation::{decide_lasting, go_on};
use crate::world::World;

pub const REQUESTS_MAX: u64 = 100_000_000;
/// The most descriptors to count separately. Later ones are counted together.
pub const KEYS_MAX: usize = 100_000;
/// The longest descriptor to count by its text, in bytes.
const KEY_BYTES_MAX: usize = 1_024;
/// The most unknown domains to name.
const STRANGERS_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum AnswersError {
    #[error("{0}")]
    Traffic(#[from] TrafficError),
    #[error("the traffic has more than {REQUESTS_MAX} requests")]
    TooMany,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// They passed before, and are denied now.
    pub now_denied: u64,
    /// They were denied before, and pass now.
    pub now_passed: u64,
    /// They get an error on one side only, for example because their limits are too heavy.
    pub errors: u64,
}

impl Changed {
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

/// The old and the new rule of a descriptor, by path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetRules {
    pub domain: String,
    pub old: Option<String>,
    pub new: Option<String>,
}

#[derive(Debug, Default)]
pub struct Answers {
    pub traffic: String,
    pub requests: u64,
    /// The requests that a server refuses, because they have no domain or no descriptor.
    pub refused: u64,
    pub changed: Changed,
    /// Changes by the rules of the descriptors that are over a limit on one side only, most changes first.
    pub rules: Vec<(MetRules, Changed)>,
    /// Changes by domain and descriptor, most changes first.
    pub keys: Vec<(String, String, Changed)>,
    /// Changes of descriptors past [`KEYS_MAX`].
    pub other_keys: Changed,
    pub notes: Vec<String>,
}

/// Sends traffic through both policies.
///
/// # Errors
/// If the traffic cannot be read, or has too many requests.
pub fn answers(old: &Arc<PolicySet>, new: &Arc<PolicySet>, traffic: &mut Traffic) -> Result<Answers, AnswersError> {
    let settings = traffic.settings().clone();
    let bounds = configured::bounds(&settings.limits);
    let world = |policies: Arc<PolicySet>| World::new(policies, &settings, Arc::new(Silent));
    let (before, now) = (world(old.clone()), world(new.clone()));
    let mut counts = Counts {
        old,
        new,
        answers: Answers::default(),
        rules: HashMap::new(),
        keys: HashMap::new(),
        strangers: BTreeSet::new(),
        of_strangers: 0,
    };
    for (side, world) in [("old", &before), ("new", &now)] {
        if let Some((left_out, first)) = traffic.rows().and_then(|rows| world.replace_rows(rows)) {
            let rows = counted(left_out, "row");
            let note = format!(
                "{rows} without effect under the {side} policies, so the default plan applies, such as {first}"
            );
            counts.answers.notes.push(note);
        }
    }
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
        let [before, now] = [&before, &now].map(|world| {
            go_on(world, request.time, |_| {});
            decide_lasting(world, request, &query)
        });
        counts.compare(&query, &before, &now);
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
    rules: HashMap<MetRules, Changed>,
    keys: HashMap<(String, String), Changed>,
    /// Some domains that neither side has, and the number of requests of all these domains.
    strangers: BTreeSet<String>,
    of_strangers: u64,
}

impl Counts<'_> {
    /// Notes a domain that neither side has. It is probably misspelled: both sides let its requests pass.
    fn note_stranger(&mut self, domain: &str) {
        if self.old.domain(domain).is_some() || self.new.domain(domain).is_some() {
            return;
        }
        self.of_strangers += 1;
        // Keeps one name more than the report shows, so the report can say that there are more.
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
        let path = |set: &PolicySet| Some(set.find(set.domain(domain)?, entries).rule?.path.to_string());
        let met = MetRules { domain: domain.to_owned(), old: path(self.old), new: path(self.new) };
        // There are at most as many entries as pairs of rules.
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
