//! The vectors of tests/vectors: their format, read and written. Not in here: running them.
//!
//! A file is a list of `[[vector]]`: a name, the rules of docs/semantics.md that it is about, limits by name, and steps, one
//! a line:
//!
//! ```text
//! <time> [independent] <charge>[, <charge>]  ->  ok|denied <outcome>[, <outcome>] ; <key>=<state> ...
//! <time> undo <step>[.<charge>][:<hits>] ...  ->  done ; <key>=<state> ...
//! <time> reset <key> ...                     ->  <how many there were> ; <key>=<state> ...
//! <time> stored <key> ...                     ->  done ; <key>=<state> ...
//! ```
//!
//! - limit: the algorithm, `N per <time>`, then what it takes of `burst N`, `interval` (a token bucket's refill),
//!   `precision <time>`, `first_hit`, `calendar`, `drain`, and `post_paid`.
//!
//! - time: since the vector's base, such as `0`, `1s-1us` or `-1h`. The base is the first multiple of `align` (7d, where
//!   the vector says nothing) that lies in 2041: windows start there, and no key expires by Redis' own clock.
//! - charge: `consume N`, `report N`, `refund N` or `peek`; the limit's name, with `@key` where the key is not `k`; then `shadow`
//!   or `quota`, and `group N`; then `by <time>`: the clock of the caller who chose the boundaries of a calendar, where it
//!   is not the store's. Calendar windows start at the vector's `boundaries`, or every 24 hours from its base. A decision
//!   whose boundaries do not hold the clock answers `stale_bounds`.
//! - undo: of the charge of an earlier step, the first one where none is named; all of its hits, or so many of them.
//! - outcome: `within`, `over <retry_after>` or `never`; `<remaining_before>><remaining>`; `reset <reset_after>`; then
//!   `wait <wait>` where there is one, `charged N` where there is a receipt (and `mark <mark>`, where the receipt is for
//!   another part of the state than the newest one shown), and `shows <state>` where the state shown is not the one that
//!   is stored after the step (or an empty one, where none is stored).
//! - state, with times since the base, and windows and buckets numbered from it; `-` where nothing is stored that still
//!   matters:
//!   - of a fixed window `#<window>:<count>`; where it has an anchor `<count>@<start>`, and as shown with its end,
//!     `<count>@<start>..<end>`
//!   - of a sliding window counter `#<window>:<previous>+<count>`
//!   - of a sliding window `<count>@#<bucket>/<count>@#<bucket>`, oldest first
//!   - of a log `<hits>@<time>/<hits>@<time>`, oldest first, after `<sum>|` where hits before them are in their sums
//!   - of these two as shown `<used>~<empty at>~<fits at>~<mark>`: the newest bucket, or the sum of all hits
//!   - of a debt `@<tat>~<fraction>/<requests>`
//!   - of a bucket that is refilled in steps `<used>@<start of its period>`
//!
//! Every key that a step touches is listed with its state after the step.

mod states;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use weir_engine::algorithm::Summary;
use weir_engine::algorithm::parameters::Parameters;
use weir_engine::descriptor::saturated;
use weir_engine::{
    Algorithm, Anchor, Bounds, CalendarUnit, Count, Decision, Limit, Micros, Mode, Observed, Operation, Outcome,
    Precision, Receipt, Refill, Role, State, Verdict, Window,
};

use self::states::{mark, mark_of, seen, state};

/// 2041-01-01T00:00:00Z.
const IN_2041_US: Micros = 2_240_611_200 * 1_000_000;
/// What a base is a multiple of, where a vector says nothing: windows of up to a week start there.
const ALIGN_US: Micros = 7 * 86_400 * 1_000_000;
/// The key of a charge that names none.
const KEY: &str = "k";
/// Where calendar windows start if a vector does not say: every 24 hours.
const DAY_US: Micros = 86_400 * 1_000_000;

/// One story about limits, and what each of its steps must answer.
#[derive(Clone, Debug)]
pub struct Vector {
    /// The file and the name, for messages.
    pub title: String,
    /// The numbered rules that it is about.
    pub rules: Vec<String>,
    /// The time that its steps count from.
    pub base: Micros,
    /// The limits by name.
    pub limits: BTreeMap<String, Limit>,
    /// Where calendar windows start, in order; every 24 hours where there are none.
    pub boundaries: Vec<Micros>,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// One line of a vector.
#[derive(Clone, Debug)]
pub struct Step {
    /// The line as written.
    pub text: String,
    /// The clock.
    pub now: Micros,
    /// What is done.
    pub action: Action,
    /// What it must answer.
    pub answer: Answer,
    /// The state of each key after it.
    pub states: BTreeMap<String, Option<State>>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes a decision.
    Decide(Mode, Vec<VectorCharge>),
    /// Takes charges back.
    Undo(Vec<ChargeUndo>),
    /// Forgets keys.
    Reset(Vec<String>),
    /// Looks at keys without touching them.
    Stored(Vec<String>),
}

/// A charge that is taken back, whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeUndo {
    /// The step that made it, from 0.
    pub step: usize,
    /// Which of the step's charges, from 0.
    pub charge: usize,
    /// How many of its hits.
    pub hits: u32,
}

/// One charge of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorCharge {
    /// The name of its limit.
    pub limit: String,
    /// Its key.
    pub key: String,
    /// What to do.
    pub operation: Operation,
    /// What being over means.
    pub role: Role,
    /// Which descriptor.
    pub group: u16,
    /// The clock of the caller who chose the boundaries, where it is not the store's.
    pub by: Option<Micros>,
}

/// What a step must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A decision.
    Decision {
        /// Whether it denies.
        denied: bool,
        /// One for each charge.
        outcomes: Vec<Outcome>,
    },
    /// That no boundaries hold the clock.
    StaleBounds,
    /// How many states were forgotten.
    Count(u64),
    /// Nothing but an end.
    Done,
}

/// Every vector of one file.
///
/// # Panics
/// When the file is not there or cannot be read as vectors, with the file, the vector and the step.
pub fn read(file: &Path) -> Vec<Vector> {
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{name}: {error}"));
    parse(&name, &text).unwrap_or_else(|error| panic!("{error}"))
}

/// The files of tests/vectors, by name.
pub fn files() -> Vec<PathBuf> {
    let directory = super::tools::repository().join("tests/vectors");
    let entries = std::fs::read_dir(&directory).expect("tests/vectors is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("its entries can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

/// Reads the text of a file. The error names the file, the vector and the step.
///
/// # Errors
/// When it is not TOML, or not vectors.
pub fn parse(file: &str, text: &str) -> Result<Vec<Vector>, String> {
    let mut table: toml::Table = text.parse().map_err(|error| format!("{file}: {error}"))?;
    let list = table.remove("vector").ok_or_else(|| format!("{file}: it has no [[vector]]"))?;
    if let Some(key) = table.keys().next() {
        return Err(format!("{file}: unknown key {key:?}"));
    }
    let toml::Value::Array(list) = list else {
        return Err(format!("{file}: vector is not a list"));
    };
    let mut vectors: Vec<Vector> = Vec::new();
    for (i, value) in list.iter().enumerate() {
        let name = value.get("name").and_then(toml::Value::as_str);
        let title = name.map_or_else(|| format!("{file}: vector {}", i + 1), |name| format!("{file}: {name:?}"));
        let vector = vector(&title, value).map_err(|error| format!("{title}: {error}"))?;
        if vectors.iter().any(|other| other.title == title) {
            return Err(format!("{title}: the name is used twice"));
        }
        vectors.push(vector);
    }
    Ok(vectors)
}

fn vector(title: &str, value: &toml::Value) -> Result<Vector, String> {
    let table = value.as_table().ok_or("it is not a table")?;
    for key in table.keys() {
        if !["name", "rules", "align", "boundaries", "limits", "steps"].contains(&key.as_str()) {
            return Err(format!("unknown key {key:?}"));
        }
    }
    table.get("name").and_then(toml::Value::as_str).ok_or("it has no name")?;
    let mut rules = Vec::new();
    for rule in table.get("rules").and_then(toml::Value::as_array).ok_or("it cites no rules")? {
        rules.push(rule.as_str().ok_or("a rule is not a string")?.to_owned());
    }
    let align = match table.get("align") {
        Some(align) => micros(align.as_str().ok_or("align is not a string")?)?,
        None => ALIGN_US,
    };
    let base = IN_2041_US.div_ceil(align) * align;
    let mut limits = BTreeMap::new();
    for (name, text) in table.get("limits").and_then(toml::Value::as_table).ok_or("it has no limits")? {
        let text = text.as_str().ok_or_else(|| format!("limit {name:?} is not a string"))?;
        limits.insert(name.clone(), limit(text).map_err(|error| format!("limit {name:?}: {error}"))?);
    }
    let mut vector = Vector { title: title.to_owned(), rules, base, limits, boundaries: Vec::new(), steps: Vec::new() };
    if let Some(boundaries) = table.get("boundaries") {
        let text = boundaries.as_str().ok_or("boundaries is not a string")?;
        for time in text.split_whitespace() {
            vector.boundaries.push(vector.at(time)?);
        }
        if !vector.boundaries.is_sorted_by(|a, b| a < b) {
            return Err("boundaries is not in order".to_owned());
        }
    }
    let text = table.get("steps").and_then(toml::Value::as_str).ok_or("it has no steps")?;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let number = vector.steps.len() + 1;
        let step = step(&vector, line).map_err(|error| format!("step {number}, {line:?}: {error}"))?;
        vector.steps.push(step);
    }
    Ok(vector)
}

impl Vector {
    /// The limit of that name.
    ///
    /// # Panics
    /// When there is none: reading the vector checks it.
    pub fn limit(&self, name: &str) -> &Limit {
        &self.limits[name]
    }

    /// A limit that a key is used with: all of them store the same kind of state.
    fn limit_of(&self, key: &str, asked: &[VectorCharge]) -> Option<&Limit> {
        let here = asked.iter().find(|asked| asked.key == key);
        let before = || {
            self.steps.iter().find_map(|step| match &step.action {
                Action::Decide(_, asked) => asked.iter().find(|asked| asked.key == key),
                _ => None,
            })
        };
        here.or_else(before).map(|asked| &self.limits[&asked.limit])
    }

    /// The instant of a time since the base.
    fn at(&self, text: &str) -> Result<Micros, String> {
        let at = i128::from(self.base) + signed_us(text)?;
        Micros::try_from(at).map_err(|_| format!("the time {text} lies before the epoch"))
    }

    /// The boundaries of a calendar's windows around a time, for a limit that has some.
    ///
    /// # Panics
    /// When the vector's boundaries do not go so far.
    pub fn bounds(&self, limit: &Limit, now: Micros) -> Option<Bounds> {
        if !matches!(limit.algorithm().anchor(), Anchor::Calendar(_)) {
            return None;
        }
        if self.boundaries.is_empty() {
            let here = now / DAY_US * DAY_US;
            return Some([here - DAY_US, here, here + DAY_US, here + 2 * DAY_US]);
        }
        let next = self.boundaries.partition_point(|boundary| *boundary <= now);
        let around = next.checked_sub(2).and_then(|first| self.boundaries.get(first..first + 4));
        let around = around.and_then(|around| around.try_into().ok());
        Some(around.unwrap_or_else(|| panic!("{}: the boundaries do not go as far as {now}", self.title)))
    }

    /// Every key with a limit that it is used with.
    pub fn keys(&self) -> BTreeMap<&str, &Limit> {
        let mut keys = BTreeMap::new();
        for step in &self.steps {
            if let Action::Decide(_, asked) = &step.action {
                for asked in asked {
                    keys.entry(asked.key.as_str()).or_insert(&self.limits[&asked.limit]);
                }
            }
        }
        keys
    }

    /// The line of a decision, ready to paste.
    pub fn write_decision(
        &self,
        asked: &[VectorCharge],
        mode: Mode,
        decision: &Decision,
        states: &States<'_>,
    ) -> String {
        let denied = if decision.denied { "denied" } else { "ok" };
        let mut outcomes = Vec::new();
        for (asked, outcome) in asked.iter().zip(&decision.outcomes) {
            let stored = states.iter().find(|(key, _)| *key == asked.key).and_then(|(_, state)| state.as_ref());
            outcomes.push(self.write_outcome(asked, outcome, stored, decision.now));
        }
        let question = self.write_question(asked, mode, decision.now);
        format!("{question} -> {denied} {}{}", outcomes.join(", "), self.write_states(states))
    }

    /// The line of a decision that was not made, for want of a window, ready to paste.
    pub fn write_stale_bounds(&self, asked: &[VectorCharge], mode: Mode, now: Micros, states: &States<'_>) -> String {
        format!("{} -> stale_bounds{}", self.write_question(asked, mode, now), self.write_states(states))
    }

    fn write_question(&self, asked: &[VectorCharge], mode: Mode, now: Micros) -> String {
        let charges: Vec<String> = asked.iter().map(|asked| self.write_asked(asked)).collect();
        let independent = if mode == Mode::Independent { " independent" } else { "" };
        format!("{}{independent} {}", self.time(now), charges.join(", "))
    }

    fn write_outcome(&self, asked: &VectorCharge, outcome: &Outcome, stored: Option<&State>, now: Micros) -> String {
        let limit = self.limit(&asked.limit);
        let mut text = match outcome.verdict {
            Verdict::Within => "within".to_owned(),
            Verdict::Over { retry_after } => format!("over {}", write_us(i128::from(retry_after))),
            Verdict::Never => "never".to_owned(),
        };
        let _ = write!(text, " {}>{}", outcome.remaining_before, outcome.remaining);
        let _ = write!(text, " reset {}", write_us(i128::from(outcome.reset_after)));
        if outcome.wait > 0 {
            let _ = write!(text, " wait {}", write_us(i128::from(outcome.wait)));
        }
        if let Some(receipt) = outcome.receipt {
            let _ = write!(text, " charged {}", receipt.hits);
            if receipt.mark != mark(&outcome.state) {
                let _ = write!(text, " mark {}", self.write_mark(limit, receipt.mark));
            }
        }
        if outcome.state != self.shown(limit, stored, asked.operation.asked(), now) {
            let _ = write!(text, " shows {}", self.write_seen(limit, &outcome.state));
        }
        text
    }

    /// The end of a line: the states after it.
    pub fn write_states(&self, states: &States<'_>) -> String {
        let mut text = " ;".to_owned();
        let keys = self.keys();
        for (key, state) in states {
            let state = state.as_ref().map_or_else(|| "-".to_owned(), |state| self.write_state(keys[key], state));
            let _ = write!(text, " {key}={state}");
        }
        text
    }

    fn write_asked(&self, asked: &VectorCharge) -> String {
        let mut text = write_asked(asked);
        if let Some(by) = asked.by {
            let _ = write!(text, " by {}", self.time(by));
        }
        text
    }

    /// A time since the base.
    pub fn time(&self, now: Micros) -> String {
        write_us(i128::from(now) - i128::from(self.base))
    }

    /// The whole vector but for its steps' answers, ready to paste above lines of [`Vector::write_decision`].
    pub fn write_head(&self, name: &str) -> String {
        let mut limits = Vec::new();
        for (name, limit) in &self.limits {
            limits.push(format!("{name} = \"{}\"", write_limit(limit)));
        }
        format!("[[vector]]\nname = {name:?}\nrules = []\nlimits = {{ {} }}\nsteps = '''\n", limits.join(", "))
    }
}

/// Keys and what is stored for them.
pub type States<'a> = [(&'a str, Option<State>)];

/// A state in which nothing counts has no newest part, and vectors say what a charge shows and not what it found.
pub fn without_idle_marks(outcomes: impl IntoIterator<Item = Outcome>) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect();
    for outcome in &mut outcomes {
        if let Observed::Summary(Summary { used: 0, mark, .. }) = &mut outcome.state {
            *mark = 0;
        }
        outcome.before = outcome.state;
    }
    outcomes
}

fn step(vector: &Vector, line: &str) -> Result<Step, String> {
    let (before, after) = line.split_once("->").ok_or("there is no ->")?;
    let (answer, states) = after.split_once(';').ok_or("there is no ; before the states")?;
    let (time, action) = before.trim().split_once(' ').ok_or("there is no time")?;
    let now = vector.at(time)?;
    let action = action_of(vector, action.trim())?;
    let asked = match &action {
        Action::Decide(_, asked) => asked.as_slice(),
        _ => &[],
    };

    let mut stored = BTreeMap::new();
    for word in states.split_whitespace() {
        let (key, text) = word.split_once('=').ok_or_else(|| format!("{word:?} is no key=state"))?;
        let limit = vector.limit_of(key, asked).ok_or_else(|| format!("no charge used the key {key:?}"))?;
        let state = if text == "-" { None } else { Some(state(vector, limit, text)?) };
        if stored.insert(key.to_owned(), state).is_some() {
            return Err(format!("the key {key:?} is listed twice"));
        }
    }
    for key in keys_of(vector, &action) {
        if !stored.contains_key(&key) {
            return Err(format!("the state of {key:?} is not listed"));
        }
    }
    let answer = answer_of(vector, &action, answer.trim(), &stored, now)?;
    Ok(Step { text: line.to_owned(), now, action, answer, states: stored })
}

fn keys_of(vector: &Vector, action: &Action) -> Vec<String> {
    match action {
        Action::Decide(_, asked) => asked.iter().map(|asked| asked.key.clone()).collect(),
        Action::Reset(keys) | Action::Stored(keys) => keys.clone(),
        Action::Undo(undos) => {
            let asked = |undo: &ChargeUndo| match &vector.steps[undo.step].action {
                Action::Decide(_, asked) => asked[undo.charge].key.clone(),
                _ => unreachable!("an undo names a decision, see action_of"),
            };
            undos.iter().map(asked).collect()
        }
    }
}

fn action_of(vector: &Vector, text: &str) -> Result<Action, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let rest = || words[1..].iter().map(|&word| word.to_owned()).collect();
    match words[0] {
        "reset" => return Ok(Action::Reset(rest())),
        "stored" => return Ok(Action::Stored(rest())),
        "undo" => {}
        "independent" => {
            let charges = text.trim_start_matches("independent");
            return Ok(Action::Decide(Mode::Independent, asked_of(vector, charges)?));
        }
        _ => return Ok(Action::Decide(Mode::Atomic, asked_of(vector, text)?)),
    }
    let mut undos = Vec::new();
    for &word in &words[1..] {
        let (place, part) = word.split_once(':').map_or((word, None), |(place, part)| (place, Some(part)));
        let (step, charge) = place.split_once('.').unwrap_or((place, "1"));
        let (step, charge): (usize, usize) = (number(step)?, number(charge)?);
        let found = step.checked_sub(1).zip(charge.checked_sub(1));
        let Some((step, charge)) = found else { return Err(format!("{word}: steps and charges count from 1")) };
        let Some(Answer::Decision { outcomes, .. }) = vector.steps.get(step).map(|step| &step.answer) else {
            return Err(format!("{word} is no earlier decision"));
        };
        let charged = outcomes.get(charge).and_then(|outcome| outcome.receipt);
        let charged = charged.ok_or_else(|| format!("{word} charged nothing that could be undone"))?.hits;
        let hits = part.map_or(Ok(charged), number)?;
        if hits > charged {
            return Err(format!("{word}: {charged} hits were charged"));
        }
        undos.push(ChargeUndo { step, charge, hits });
    }
    Ok(Action::Undo(undos))
}

fn asked_of(vector: &Vector, text: &str) -> Result<Vec<VectorCharge>, String> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let mut words = part.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("{part:?} lacks {what}"));
        let operation = match next("what to do")? {
            "consume" => Operation::Consume(number(next("hits")?)?),
            "report" => Operation::Report(number(next("hits")?)?),
            "refund" => Operation::Refund(number(next("hits")?)?),
            "peek" => Operation::Peek,
            other => return Err(format!("unknown action {other:?}")),
        };
        let target = next("a limit")?;
        let (limit, key) = target.split_once('@').unwrap_or((target, KEY));
        if !vector.limits.contains_key(limit) {
            return Err(format!("unknown limit {limit:?}"));
        }
        let (mut role, mut group, mut by) = (Role::Enforced, 0, None);
        while let Some(word) = words.next() {
            match word {
                "shadow" => role = Role::Shadow,
                "quota" => role = Role::Quota,
                "group" => group = number(words.next().ok_or("a group has a number")?)?,
                "by" => by = Some(vector.at(words.next().ok_or("a clock has a time")?)?),
                other => return Err(format!("unknown word {other:?}")),
            }
        }
        list.push(VectorCharge { limit: limit.to_owned(), key: key.to_owned(), operation, role, group, by });
    }
    Ok(list)
}

fn answer_of(
    vector: &Vector,
    action: &Action,
    text: &str,
    stored: &BTreeMap<String, Option<State>>,
    now: Micros,
) -> Result<Answer, String> {
    let asked = match action {
        Action::Decide(_, asked) => asked,
        Action::Reset(_) => return Ok(Answer::Count(number(text)?)),
        Action::Undo(_) | Action::Stored(_) if text == "done" => return Ok(Answer::Done),
        Action::Undo(_) | Action::Stored(_) => return Err(format!("{text:?} is not done")),
    };
    if text == "stale_bounds" {
        return Ok(Answer::StaleBounds);
    }
    let (word, rest) = text.split_once(' ').ok_or("there is no outcome")?;
    let denied = match word {
        "ok" => false,
        "denied" => true,
        other => return Err(format!("{other:?} is neither ok nor denied")),
    };
    let mut outcomes = Vec::new();
    for (i, part) in rest.split(',').enumerate() {
        let asked = asked.get(i).ok_or("there are more outcomes than charges")?;
        let limit = vector.limit(&asked.limit);
        let state = vector.shown(limit, stored[&asked.key].as_ref(), asked.operation.asked(), now);
        outcomes.push(outcome(vector, limit, state, part, now)?);
    }
    if outcomes.len() < asked.len() {
        return Err("there are fewer outcomes than charges".to_owned());
    }
    Ok(Answer::Decision { denied, outcomes })
}

fn outcome(vector: &Vector, limit: &Limit, stored: Observed, text: &str, now: Micros) -> Result<Outcome, String> {
    let mut words = text.split_whitespace();
    let mut next = || words.next().ok_or_else(|| format!("the outcome {text:?} is cut off"));
    let verdict = match next()? {
        "within" => Verdict::Within,
        "over" => Verdict::Over { retry_after: micros(next()?)? },
        "never" => Verdict::Never,
        other => return Err(format!("unknown verdict {other:?}")),
    };
    let (before, after) = next()?.split_once('>').ok_or_else(|| format!("{text:?} has no before>after"))?;
    if next()? != "reset" {
        return Err(format!("{text:?} has no reset"));
    }
    let reset_after = micros(next()?)?;
    let (remaining_before, remaining) = (number(before)?, number(after)?);
    let (state, before) = (stored, stored);
    let mut outcome =
        Outcome { verdict, remaining_before, remaining, now, before, wait: 0, reset_after, state, receipt: None };
    let (mut charged, mut marked) = (None, None);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word:?} has no value"))?;
        match word {
            "wait" => outcome.wait = micros(value)?,
            "charged" => charged = Some(number(value)?),
            "mark" => marked = Some(mark_of(vector, limit, value)?),
            "shows" => outcome.state = seen(vector, limit, value)?,
            other => return Err(format!("unknown word {other:?}")),
        }
    }
    let mark = marked.unwrap_or_else(|| mark(&outcome.state));
    outcome.receipt = charged.map(|hits| Receipt { hits, at: now, mark });
    outcome.before = outcome.state;
    Ok(outcome)
}

fn limit(text: &str) -> Result<Limit, String> {
    let mut words = text.split_whitespace();
    let mut next = || words.next().ok_or_else(|| format!("{text:?} is cut off"));
    let name = next()?;
    let requests: Count = number(next()?)?;
    if next()? != "per" {
        return Err(format!("{text:?} has no per"));
    }
    let window = Window::from_micros(micros(next()?)?).map_err(|error| error.to_string())?;
    let (mut burst, mut drain, mut post_paid) = (saturated(requests.max(1)), false, false);
    let (mut refill, mut anchor, mut precision) = (Refill::Continuous, Anchor::Clock, None);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word:?} has no value"));
        match word {
            "burst" => burst = number(value()?)?,
            "interval" => refill = Refill::Interval,
            "precision" => precision = Precision::new(micros(value()?)?),
            "first_hit" => anchor = Anchor::FirstHit,
            "calendar" => anchor = Anchor::Calendar(CalendarUnit::Day),
            "drain" => drain = true,
            "post_paid" => post_paid = true,
            other => return Err(format!("unknown word {other:?}")),
        }
    }
    let precision = precision.unwrap_or_else(|| Algorithm::default_precision(window));
    let all = Algorithm::all(&Parameters { anchor, precision, burst, refill });
    let algorithm = all.into_iter().find(|known| known.name() == name);
    let algorithm = algorithm.ok_or_else(|| format!("unknown algorithm {name:?}"))?;
    let mut limit = Limit::new(requests, window, algorithm).map_err(|error| error.to_string())?;
    limit.drain = drain;
    limit.set_post_paid(post_paid);
    Ok(limit)
}

/// A limit as vectors write it.
fn write_limit(limit: &Limit) -> String {
    let window = write_us(i128::from(limit.window().us()));
    let mut text = format!("{} {} per {window}", limit.algorithm().name(), limit.requests());
    if let Some(burst) = super::algorithms::burst(limit.algorithm()) {
        let _ = write!(text, " burst {burst}");
    }
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::FirstHit } => text.push_str(" first_hit"),
        Algorithm::FixedWindow { anchor: Anchor::Calendar(_) } => text.push_str(" calendar"),
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => text.push_str(" interval"),
        Algorithm::SlidingWindow { precision } => {
            let _ = write!(text, " precision {}", write_us(i128::from(precision.get())));
        }
        Algorithm::FixedWindow { anchor: Anchor::Clock }
        | Algorithm::SlidingWindowCounter
        | Algorithm::SlidingWindowLog
        | Algorithm::TokenBucket { refill: Refill::Continuous, .. }
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Gcra { .. }
        | Algorithm::Concurrency => {}
    }
    for (on, word) in [(limit.drain, " drain"), (limit.post_paid(), " post_paid")] {
        if on {
            text.push_str(word);
        }
    }
    text
}

fn write_asked(asked: &VectorCharge) -> String {
    let mut text = match asked.operation {
        Operation::Consume(hits) => format!("consume {hits} "),
        Operation::Report(hits) => format!("report {hits} "),
        Operation::Refund(hits) => format!("refund {hits} "),
        Operation::Peek => "peek ".to_owned(),
    };
    text.push_str(&asked.limit);
    if asked.key != KEY {
        let _ = write!(text, "@{}", asked.key);
    }
    match asked.role {
        Role::Enforced => {}
        Role::Shadow => text.push_str(" shadow"),
        Role::Quota => text.push_str(" quota"),
    }
    if asked.group > 0 {
        let _ = write!(text, " group {}", asked.group);
    }
    text
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number that fits here"))
}

fn micros(text: &str) -> Result<Micros, String> {
    Micros::try_from(signed_us(text)?).map_err(|_| format!("{text:?} is negative"))
}

/// Units of time, the longest first.
const UNITS: [(&str, i128); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// A sum such as `1h-1us`, in microseconds. `0` needs no unit.
fn signed_us(text: &str) -> Result<i128, String> {
    let wrong = || format!("{text:?} is no time");
    let mut sum = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (sign, term) = match rest.as_bytes()[0] {
            b'-' => (-1, &rest[1..]),
            b'+' => (1, &rest[1..]),
            _ => (1, rest),
        };
        let end = term.find(['+', '-']).unwrap_or(term.len());
        let digits = term[..end].trim_end_matches(char::is_alphabetic);
        let unit = &term[digits.len()..end];
        let unit_us = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, us)| *us);
        let count: i128 = digits.parse().map_err(|_| wrong())?;
        sum += sign * count * if unit.is_empty() && count == 0 { 0 } else { unit_us.ok_or_else(wrong)? };
        rest = &term[end..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(sum) }
}

/// A time in the longest unit that measures it, or in seconds and the rest.
pub fn write_us(us: i128) -> String {
    if us == 0 {
        return "0".to_owned();
    }
    for (unit, unit_us) in UNITS {
        if us % unit_us == 0 && (unit != "us" || us.abs() < 1_000_000) {
            return format!("{}{unit}", us / unit_us);
        }
    }
    format!("{}s{:+}us", us / 1_000_000, us % 1_000_000)
}
