//! Overrides: numbers that operators set for single descriptors. A store that processes share keeps them, or else the
//! process, and this file applies them. [ov-3]
//!
//! All processes that share a store share one text with a version. A change replaces the text only if its version is
//! still the one that was read. If the store has an older version than a process, the process writes its text back. Not
//! here: the effect of an override on a decision (engine, matched.rs), when the store is read (app), and who may change it
//! (http).

mod text;
mod version;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_engine::descriptor::spell_pairs;
use weir_engine::overrides::{Misfit, OVERRIDES_MAX, Override, fit};
use weir_engine::words::counted;
use weir_engine::{Micros, PolicySet};
use weir_lifecycle::on_own_thread;
use weir_store::{Clock, OVERRIDES_BYTES_MAX, Store, StoreError, StoredOverrides};

pub use self::text::fuzz;
pub use self::version::version_time;
use self::version::{Relation, Writer};
use super::Policies;

/// The most bytes of a reason.
pub const REASON_BYTES_MAX: usize = 256;
/// The longest author, in bytes.
pub const BY_BYTES_MAX: usize = 64;
/// The longest time from now to the end of an override: 366 days, in microseconds.
const LASTS_MAX: Micros = 366 * 86_400 * 1_000_000;
/// The timeout of one call to the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The most overrides of unknown outcome that a process remembers, so that it can report when it finds them in force.
const UNCONFIRMED_MAX: usize = 100;
/// The most replaced versions that a process remembers until they are logged.
const REPLACED_MAX: usize = 100;
/// How many times a change is tried while other processes change overrides too.
const TRIES: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetOverride {
    pub set: Override,
    /// When it was set. [`OverrideTable::set`] assigns it.
    pub set_at: Micros,
    /// The author: the name of the token.
    pub by: Box<str>,
    pub reason: Box<str>,
}

impl SetOverride {
    fn place(&self) -> Place<'_> {
        (&self.set.domain, &self.set.entries)
    }
}

/// Identifies an override: its domain and its descriptor.
type Place<'o> = (&'o str, &'o [(Box<str>, Box<str>)]);

/// Why an override was not set or deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It matches no rule of the policies in force.
    #[error("{0}")]
    Misfit(Misfit),
    /// It is invalid for another reason.
    #[error("{0}")]
    Invalid(String),
    /// There are too many overrides.
    #[error("{0}")]
    Full(String),
    /// The descriptor has no override.
    #[error("there is no override for this domain and descriptor")]
    Absent,
    /// Other processes kept changing overrides.
    #[error("other changes of overrides came first: try again")]
    Contended,
    /// The store did not return the overrides. Nothing was written.
    #[error("cannot read overrides: {}: nothing has changed", .0.reason())]
    Unread(StoreError),
    /// The store did not confirm the change.
    #[error("{}: {}", .0.reason(), match .0.is_unknown() {
        true => "the change may or may not be in force, check the list of overrides",
        false => "nothing has changed",
    })]
    Store(StoreError),
}

impl Refused {
    /// Whether the change may be in force.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unknown())
    }
}

/// The result of reading the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Overrides that ended since the last read.
    pub ended: usize,
    /// Whether the overrides in force have changed.
    pub is_changed: bool,
    /// The number of invalid lines, and the reason for the first. Only if the store had a new text.
    pub skipped: Option<(usize, String)>,
    /// Changes of this process that the store did not confirm, and that were found in it.
    pub found: Vec<FoundChange>,
}

/// A change that the store did not confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChange {
    /// The override that was set or deleted. Its author is that of the change.
    pub changed: SetOverride,
    pub is_deletion: bool,
}

/// A version of all overrides that another one has replaced, and may not include.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub kept: String,
    pub lost: String,
    pub how: Replacement,
}

/// How a version was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// This process took the store's newer version.
    Adopted,
    /// This process wrote its newer version to the store.
    WrittenBack,
    /// The store did not confirm that it was written.
    Unconfirmed,
}

/// All known overrides.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Sorted by domain and descriptor. Some may have ended since the last read.
    pub overrides: Arc<[SetOverride]>,
    /// When the store was last read. None before the first time.
    pub read: Option<Instant>,
}

/// The overrides of one process.
pub struct OverrideTable {
    store: Arc<dyn Store>,
    /// The text, if the store keeps none. A change whose caller leaves before the answer is found here.
    of_process: Mutex<StoredOverrides>,
    policies: Arc<Policies>,
    clock: Arc<dyn Clock>,
    /// Distinguishes this process's changes from simultaneous changes of others.
    writer: Writer,
    /// The version that was last read or written. Locked during a store call.
    version: tokio::sync::Mutex<String>,
    known: Mutex<Known>,
    /// Changes that the store may have made.
    unconfirmed: Mutex<Vec<FoundChange>>,
    /// Replaced versions that are not logged yet.
    replaced: Mutex<Vec<Replaced>>,
    /// Why the last read failed, and what is wrong with the store's text.
    problems: Mutex<[Option<String>; 2]>,
}

impl OverrideTable {
    /// The overrides of this store, for these policies. None is in force before [`OverrideTable::look`].
    pub fn new(store: Arc<dyn Store>, policies: Arc<Policies>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            of_process: Mutex::default(),
            policies,
            clock,
            writer: Writer::random(),
            version: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            unconfirmed: Mutex::default(),
            replaced: Mutex::default(),
            problems: Mutex::default(),
        }
    }

    /// All known overrides, without a store call.
    pub fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// Why the overrides in force differ from the store's, if they do. Contains no text from the store; the log has it.
    pub fn problem(&self) -> Option<String> {
        let [unread, skipped] = &*self.problems.lock();
        unread.as_ref().or(skipped.as_ref()).cloned()
    }

    /// The clock for the end of overrides.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// How many are in force, and how many match no rule.
    pub fn counts(&self) -> (usize, usize) {
        let in_force = self.policies.snapshot().overrides.as_ref().map_or(0, |overrides| overrides.len());
        (in_force, self.known().overrides.len().saturating_sub(in_force))
    }

    /// The policies in force.
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.current()
    }

    /// Reads the store, and applies changes.
    ///
    /// # Errors
    /// When the store does not answer. Then the last known overrides stay in force.
    pub async fn look(&self) -> Result<Seen, StoreError> {
        let mut version = self.version.lock().await;
        let read = self.read(&mut version).await;
        self.problems.lock()[0] =
            read.as_ref().err().map(|error| format!("the store cannot be read: {}", error.kind()));
        let mut seen = read?;
        seen.ended = self.drop_ended().await;
        seen.is_changed |= seen.ended > 0;
        seen.found = self.found_written();
        Ok(seen)
    }

    /// The versions that were replaced since the last call, by reads and by changes.
    pub fn take_replaced(&self) -> Vec<Replaced> {
        std::mem::take(&mut *self.replaced.lock())
    }

    fn add_replaced(&self, kept: &str, lost: &str, how: Replacement) {
        let mut replaced = self.replaced.lock();
        if replaced.len() == REPLACED_MAX {
            replaced.remove(0);
        }
        replaced.push(Replaced { kept: kept.to_owned(), lost: lost.to_owned(), how });
    }

    /// Takes the changes out of the unconfirmed ones that are in force. Forgets those of overrides that would have ended, and
    /// deletions of overrides that were set again since.
    fn found_written(&self) -> Vec<FoundChange> {
        let mut unconfirmed = self.unconfirmed.lock();
        if unconfirmed.is_empty() {
            return Vec::new();
        }
        let (now, known) = (self.clock.now(), self.known().overrides);
        // No other change has the same time.
        let set_at = |one: &FoundChange| {
            known.iter().find(|other| other.place() == one.changed.place()).map(|other| other.set_at)
        };
        unconfirmed.retain(|one| {
            let is_set_again = one.is_deletion && set_at(one).is_some_and(|set_at| set_at != one.changed.set_at);
            now < one.changed.set.until && !is_set_again
        });
        let is_made = |one: &mut FoundChange| (set_at(one) == Some(one.changed.set_at)) != one.is_deletion;
        unconfirmed.extract_if(.., is_made).collect()
    }

    /// Remembers a change that the store may have made, and forgets earlier ones of the same override if it has made this one.
    fn end_change(&self, changed: &SetOverride, is_deletion: bool, end: Result<(), &Refused>) {
        let mut unconfirmed = self.unconfirmed.lock();
        match end {
            Ok(()) => unconfirmed.retain(|one| one.changed.place() != changed.place()),
            Err(refused) if refused.is_unknown() => {
                if unconfirmed.len() == UNCONFIRMED_MAX {
                    unconfirmed.remove(0);
                }
                unconfirmed.push(FoundChange { changed: changed.clone(), is_deletion });
            }
            Err(_) => {}
        }
    }

    /// Sets an override, and replaces an existing one for its descriptor. Returns it as stored.
    ///
    /// # Errors
    /// When it is refused, or the store does not confirm it.
    pub async fn set(&self, new: &SetOverride) -> Result<SetOverride, Refused> {
        self.check(new)?;
        let mut new = new.clone();
        let changed = self.change(|known, now, number| {
            // An earlier weir that joins two texts finds by it which of them the override was set in.
            new.set_at = number;
            let mut next: Vec<SetOverride> = known.iter().filter(|one| now < one.set.until).cloned().collect();
            match next.binary_search_by(|one| one.place().cmp(&new.place())) {
                Ok(at) => next[at] = new.clone(),
                Err(at) => next.insert(at, new.clone()),
            }
            if next.len() > OVERRIDES_MAX {
                let reason = format!("there are {OVERRIDES_MAX} overrides, which is the maximum: delete some");
                return Err(Refused::Full(reason));
            }
            self.check_alone(&new, &next)?;
            Ok(next)
        });
        let changed = changed.await;
        self.end_change(&new, false, changed.as_ref().copied());
        changed.map(|()| new)
    }

    /// Deletes the override of a descriptor, and returns it. `by` is the author of the deletion.
    ///
    /// # Errors
    /// When there is none, or the store does not confirm it.
    pub async fn delete(
        &self,
        domain: &str,
        entries: &[(Box<str>, Box<str>)],
        by: &str,
    ) -> Result<SetOverride, Refused> {
        let mut deleted = None;
        let changed = self.change(|known, now, _| {
            let is_it = |one: &&SetOverride| one.place() == (domain, entries);
            deleted = Some(known.iter().find(is_it).ok_or(Refused::Absent)?.clone());
            Ok(known.iter().filter(|one| now < one.set.until && !is_it(one)).cloned().collect())
        });
        let changed = changed.await;
        if let Some(deleted) = &deleted {
            let by_author = SetOverride { by: by.into(), ..deleted.clone() };
            self.end_change(&by_author, true, changed.as_ref().copied());
        }
        changed.and(deleted.ok_or(Refused::Absent))
    }

    fn check(&self, new: &SetOverride) -> Result<(), Refused> {
        fit(&self.policies.current(), &new.set).map_err(Refused::Misfit)?;
        let now = self.clock.now();
        if new.set.until <= now {
            return Err(Refused::Invalid("its end is not in the future".to_owned()));
        }
        if new.set.until - now > LASTS_MAX {
            let reason = "it lasts more than 366 days: write the number into the policy".to_owned();
            return Err(Refused::Invalid(reason));
        }
        text::check(new).map_err(Refused::Invalid)
    }

    /// Checks that no other override applies to the same state.
    fn check_alone(&self, new: &SetOverride, all: &[SetOverride]) -> Result<(), Refused> {
        let policies = self.policies.current();
        let tag = |one: &SetOverride| fit(&policies, &one.set).map(|(_, tag, _)| tag);
        let own = tag(new).map_err(Refused::Misfit)?;
        let is_twin = |one: &&SetOverride| {
            // Only overrides of one domain and one length can share a state.
            let is_near = one.set.domain == new.set.domain && one.set.entries.len() == new.set.entries.len();
            is_near && one.place() != new.place() && tag(one).as_ref() == Ok(&own)
        };
        let other = |twin: &SetOverride| Refused::Misfit(Misfit::Taken(spell_pairs(&twin.set.entries)));
        all.iter().find(is_twin).map_or(Ok(()), |twin| Err(other(twin)))
    }

    /// Replaces all overrides with the result of `change`, which gets the time and the number of the change. Repeats it
    /// if other processes were faster.
    async fn change(
        &self,
        mut change: impl FnMut(&[SetOverride], Micros, Micros) -> Result<Vec<SetOverride>, Refused>,
    ) -> Result<(), Refused> {
        let mut version = self.version.lock().await;
        for _ in 0..TRIES {
            self.read(&mut version).await.map_err(Refused::Unread)?;
            let now = self.clock.now();
            let number = version::time_after(&version, now);
            let next = change(&self.known().overrides, now, number)?;
            let text = text::write(&next);
            if text.len() > OVERRIDES_BYTES_MAX {
                let reason = format!("all overrides together take more than {OVERRIDES_BYTES_MAX} bytes: delete some");
                return Err(Refused::Full(reason));
            }
            let with = StoredOverrides { version: version::next(number, self.writer, &version), text: Some(text) };
            if self.write_text(&version, &with).await.map_err(Refused::Store)? {
                self.problems.lock()[1] = None;
                self.put_in_force(next).await;
                *version = with.version;
                return Ok(());
            }
        }
        Err(Refused::Contended)
    }

    /// Reads the store, if its version is not the known one.
    async fn read(&self, version: &mut String) -> Result<Seen, StoreError> {
        let mut seen = Seen::default();
        if let Some(stored) = self.read_text(version).await? {
            match version::relation(&stored.version, version) {
                Relation::Older => self.write_back(&stored.version, version).await?,
                relation => self.adopt(stored, version, relation, &mut seen).await,
            }
        }
        self.known.lock().read = Some(Instant::now());
        Ok(seen)
    }

    /// Takes the store's overrides.
    async fn adopt(&self, stored: StoredOverrides, version: &mut String, relation: Relation, seen: &mut Seen) {
        let Some(text) = stored.text else {
            let reason =
                format!("not at most {OVERRIDES_BYTES_MAX} bytes of text: the last known overrides stay in force");
            self.problems.lock()[1] = Some(reason.clone());
            seen.skipped = Some((0, reason));
            *version = stored.version;
            return;
        };
        let read = on_own_thread(move || text::read(&text)).await;
        self.problems.lock()[1] =
            (read.skipped > 0).then(|| format!("skipped {}: the log has the first", counted(read.skipped, "line")));
        seen.skipped = read.reason.map(|reason| (read.skipped, reason));
        seen.is_changed = true;
        self.put_in_force(read.overrides).await;
        if relation == Relation::Newer {
            self.add_replaced(&stored.version, version, Replacement::Adopted);
        }
        // Last, because a caller who leaves drops this future: then the next read finds the text again.
        *version = stored.version;
    }

    /// Writes the known overrides to a store with an older version: after a failover, or a restart without persistence.
    async fn write_back(&self, stored: &str, version: &str) -> Result<(), StoreError> {
        let text = Some(text::write(&*self.known().overrides));
        let with = StoredOverrides { version: version.to_owned(), text };
        let written = self.write_text(stored, &with).await;
        match &written {
            Ok(true) => {
                self.problems.lock()[1] = None;
                self.add_replaced(version, stored, Replacement::WrittenBack);
            }
            Err(StoreError::Unknown(_)) => self.add_replaced(version, stored, Replacement::Unconfirmed),
            // Another process has written first: the next read finds its text. Or nothing was written.
            Ok(false) | Err(_) => {}
        }
        written.map(drop)
    }

    /// The text of the store, or of this process. None if its version is still `known`.
    async fn read_text(&self, known: &str) -> Result<Option<StoredOverrides>, StoreError> {
        let Some(texts) = self.store.texts() else {
            let text = self.of_process.lock();
            return Ok((text.version != known).then(|| text.clone()));
        };
        texts.read_overrides(known, Instant::now() + CALL_TIMEOUT).get().await
    }

    /// Replaces the text if its version is still `known`. Returns whether it replaced it.
    async fn write_text(&self, known: &str, with: &StoredOverrides) -> Result<bool, StoreError> {
        let Some(texts) = self.store.texts() else {
            // Only this table has it, and its changes wait for each other.
            self.of_process.lock().clone_from(with);
            return Ok(true);
        };
        texts.write_overrides(known, with, Instant::now() + CALL_TIMEOUT).get().await
    }

    /// Drops ended overrides in this process. The next change drops them in the store.
    async fn drop_ended(&self) -> usize {
        let (now, known) = (self.clock.now(), self.known().overrides);
        let ended = known.iter().filter(|one| one.set.until <= now).count();
        if ended > 0 {
            self.put_in_force(known.iter().filter(|one| now < one.set.until).cloned().collect()).await;
        }
        ended
    }

    async fn put_in_force(&self, overrides: Vec<SetOverride>) {
        let given: Arc<[Override]> = overrides.iter().map(|one| one.set.clone()).collect();
        let policies = self.policies.clone();
        on_own_thread(move || policies.set_overrides(given)).await;
        // The list changes last, so it shows only overrides that are already applied.
        self.known.lock().overrides = overrides.into();
    }
}

#[cfg(test)]
mod tests {
    mod lost;

    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use futures_util::FutureExt as _;
    use weir_engine::descriptor::Entries;
    use weir_engine::observer::Silent;
    use weir_engine::overrides::Numbers;
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Count, Entry, Limit, Unit};
    use weir_store::memory::Memory;

    use self::lost::{Shared, Way};
    use super::*;

    pub(super) const HOUR: Micros = 3_600_000_000;
    pub(super) const START: Micros = 1_700_000_000_000_000;

    pub(super) struct Hand(pub(super) AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Micros {
            self.0.load(Relaxed)
        }
    }

    struct World {
        clock: Arc<Hand>,
        store: Arc<Shared>,
        table: OverrideTable,
    }

    pub(super) fn policies(keys: &[&str]) -> PolicySet {
        let descriptors = keys.iter().map(|key| NodeSpec {
            key: (*key).into(),
            rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(10, Unit::Hour)]))),
            ..NodeSpec::default()
        });
        let descriptors = descriptors.collect();
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
    }

    fn world() -> World {
        let clock = Arc::new(Hand(AtomicU64::new(START)));
        let store = Arc::new(Shared::default());
        World { table: table(&store, &clock), clock, store }
    }

    fn table(store: &Arc<Shared>, clock: &Arc<Hand>) -> OverrideTable {
        let policies = Arc::new(Policies::new(policies(&["user"]), Arc::new(Silent)));
        OverrideTable::new(Arc::new(Way::to(store)), policies, clock.clone())
    }

    /// A table of a process whose store keeps no texts.
    fn table_in_memory(clock: &Arc<Hand>) -> OverrideTable {
        let policies = Arc::new(Policies::new(policies(&["user"]), Arc::new(Silent)));
        OverrideTable::new(Arc::new(Memory::new(10, clock.clone(), Arc::new(Silent))), policies, clock.clone())
    }

    pub(super) fn one(value: &str, requests: Count, until: Micros) -> SetOverride {
        let numbers = Numbers { name: None, requests, window: Unit::Hour.window(), burst: None };
        let entries = [("user".into(), value.into())].into();
        let set = Override { domain: "shop".into(), entries, numbers: [numbers].into(), until };
        SetOverride { set, set_at: START, by: "ann".into(), reason: "a launch".into() }
    }

    /// The hits of a user's limit in force.
    pub(super) fn requests(table: &OverrideTable, user: &str) -> Count {
        let in_force = table.policies.snapshot();
        let domain = in_force.policies.domain("shop").unwrap();
        let rule = in_force.policies.find(domain, &[Entry { key: "user", value: user }]).rule.unwrap();
        let tag = format!("w1:{{shop|user={user}}}");
        let set = in_force.overrides.as_ref().and_then(|overrides| overrides.limits(&tag, || table.now()));
        set.map_or(&*rule.limits, |set| set.limits())[0].requests()
    }

    #[tokio::test]
    async fn an_override_is_in_force_until_its_end_or_until_it_is_deleted() {
        let World { clock, table, .. } = world();
        is_in_force_until_its_end_or_deletion(&clock, &table).await;
        let clock = Arc::new(Hand(AtomicU64::new(START)));
        is_in_force_until_its_end_or_deletion(&clock, &table_in_memory(&clock)).await;
    }

    async fn is_in_force_until_its_end_or_deletion(clock: &Hand, table: &OverrideTable) {
        assert_eq!(requests(table, "ann"), 10);
        table.set(&one("ann", 50, START + HOUR)).await.unwrap();
        table.set(&one("bob", 60, START + 2 * HOUR)).await.unwrap();
        assert_eq!((requests(table, "ann"), requests(table, "bob"), requests(table, "eve")), (50, 60, 10));
        table.set(&one("ann", 70, START + HOUR)).await.unwrap();
        assert_eq!((requests(table, "ann"), table.known().overrides.len()), (70, 2));
        // By the clock alone.
        clock.0.store(START + HOUR, Relaxed);
        assert_eq!((requests(table, "ann"), requests(table, "bob")), (10, 60));
        let seen = table.look().await.unwrap();
        assert_eq!((seen.ended, table.known().overrides.len()), (1, 1));
        let bob: Entries = [("user".into(), "bob".into())].into();
        assert_eq!(table.delete("shop", &bob, "ann").await.map(|one| one.set.until), Ok(START + 2 * HOUR));
        assert_eq!(requests(table, "bob"), 10);
        assert_eq!(table.delete("shop", &bob, "ann").await, Err(Refused::Absent));
    }

    #[tokio::test]
    async fn those_who_share_a_store_share_overrides_and_lose_no_change() {
        let World { clock, store, table: here } = world();
        let there = table(&store, &clock);
        here.set(&one("ann", 50, START + HOUR)).await.unwrap();
        // It has read nothing yet, and must keep the existing overrides.
        there.set(&one("bob", 60, START + HOUR)).await.unwrap();
        assert_eq!((requests(&there, "ann"), requests(&there, "bob"), requests(&here, "bob")), (50, 60, 10));
        let seen = here.look().await.unwrap();
        assert!(seen.is_changed && seen.skipped.is_none());
        assert_eq!(requests(&here, "bob"), 60);
        assert_eq!(here.look().await, Ok(Seen::default()), "nothing is new");
    }

    #[tokio::test]
    async fn simultaneous_changes_of_one_process_lose_none() {
        let table = table_in_memory(&Arc::new(Hand(AtomicU64::new(START))));
        let (ann, bob) = (one("ann", 50, START + HOUR), one("bob", 60, START + HOUR));
        let (first, second) = tokio::join!(table.set(&ann), table.set(&bob));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!((requests(&table, "ann"), requests(&table, "bob")), (50, 60));
    }

    #[tokio::test]
    async fn a_reload_keeps_overrides_and_those_without_a_rule_wait() {
        let World { table, .. } = world();
        table.set(&one("ann", 50, START + HOUR)).await.unwrap();
        table.policies.replace(policies(&["user", "other"]));
        assert_eq!(requests(&table, "ann"), 50);
        table.policies.replace(policies(&["other"]));
        assert!(table.policies.snapshot().overrides.is_none(), "nothing is looked up any more");
        assert_eq!(table.known().overrides.len(), 1);
        table.policies.replace(policies(&["user"]));
        assert_eq!(requests(&table, "ann"), 50);
    }

    #[tokio::test]
    async fn what_a_store_has_lost_is_written_back() {
        let World { clock, store, table } = world();
        table.set(&one("ann", 50, START + HOUR)).await.unwrap();
        let saved = store.read("").unwrap();
        clock.0.store(START + 1, Relaxed);
        table.set(&one("bob", 60, START + HOUR)).await.unwrap();
        let newest = store.read("").unwrap();
        for lost in [saved, StoredOverrides { version: String::new(), text: Some(String::new()) }] {
            assert!(store.write(&newest.version, &lost));
            table.look().await.unwrap();
            let (kept, how) = (newest.version.clone(), Replacement::WrittenBack);
            assert_eq!(table.take_replaced(), [Replaced { kept, lost: lost.version, how }]);
            assert_eq!(store.read("").as_ref(), Some(&newest));
            assert_eq!((requests(&table, "ann"), requests(&table, "bob")), (50, 60));
        }
    }

    /// The override was in the store, and in force nowhere until the next change.
    #[tokio::test]
    async fn a_change_whose_caller_leaves_before_the_answer_is_found_in_the_store() {
        let World { store, clock, table } = world();
        let (other, in_memory) = (self::table(&store, &clock), table_in_memory(&clock));
        let ann = one("ann", 50, START + HOUR);
        // The first poll writes, and waits for the thread that fits the overrides.
        for changing in [&table, &other, &in_memory] {
            drop(changing.set(&ann).now_or_never());
        }
        for changed in [&table, &other, &in_memory] {
            changed.look().await.unwrap();
            assert_eq!(requests(changed, "ann"), 50);
        }
    }

    #[tokio::test]
    async fn what_is_out_of_bounds_is_refused() {
        let World { table, .. } = world();
        let refused = async |one: SetOverride| table.set(&one).await.unwrap_err();
        assert_eq!(refused(one("ann", 1, START)).await, Refused::Invalid("its end is not in the future".into()));
        let long = refused(one("ann", 1, START + LASTS_MAX + 1)).await.to_string();
        assert!(long.contains("366 days"), "{long}");
        let mut wordy = one("ann", 1, START + HOUR);
        wordy.reason = "x".repeat(REASON_BYTES_MAX + 1).into();
        assert!(matches!(refused(wordy).await, Refused::Invalid(_)));
        let large = refused(one(&"x".repeat(9_000), 1, START + HOUR)).await;
        assert!(matches!(large, Refused::Invalid(_)), "{large}");
        let nobody = SetOverride { set: Override { domain: "shp".into(), ..one("ann", 1, 1).set }, ..one("ann", 1, 1) };
        assert_eq!(refused(nobody).await, Refused::Misfit(Misfit::NoDomain));
    }

    #[tokio::test]
    async fn there_are_at_most_as_many_as_the_bounds() {
        let World { store, table, .. } = world();
        let fill = |count: usize, reason: &str| {
            let with =
                |number: usize| SetOverride { reason: reason.into(), ..one(&format!("{number:06}"), 1, START + HOUR) };
            text::write(&(0..count).map(with).collect::<Vec<_>>())
        };
        let full = StoredOverrides { version: "1".into(), text: Some(fill(OVERRIDES_MAX, "")) };
        assert!(store.write("", &full));
        let refused = table.set(&one("zoe", 1, START + HOUR)).await.unwrap_err();
        assert!(matches!(&refused, Refused::Full(reason) if reason.contains("10000")), "{refused}");
        // An existing override can still be changed.
        table.set(&one("000007", 5, START + HOUR)).await.unwrap();
        assert_eq!(requests(&table, "000007"), 5);

        let reason = "x".repeat(REASON_BYTES_MAX - 56);
        let bytes = fill(OVERRIDES_BYTES_MAX / fill(1, &reason).len(), &reason);
        let version = store.read("").unwrap().version;
        let large = StoredOverrides { version: "2".into(), text: Some(bytes) };
        assert!(store.write(&version, &large));
        let long =
            SetOverride { reason: "y".repeat(REASON_BYTES_MAX).into(), ..one(&"z".repeat(250), 1, START + HOUR) };
        let refused = table.set(&long).await.unwrap_err();
        assert!(matches!(&refused, Refused::Full(reason) if reason.contains("bytes")), "{refused}");
    }

    #[tokio::test]
    async fn a_text_that_is_none_leaves_the_last_known_in_force() {
        let World { store, table, .. } = world();
        table.set(&one("ann", 50, START + HOUR)).await.unwrap();
        let version = store.read("").unwrap().version;
        let none = StoredOverrides { version: "strange".into(), text: None };
        assert!(store.write(&version, &none));
        let seen = table.look().await.unwrap();
        assert!(seen.skipped.is_some() && !seen.is_changed);
        assert_eq!(requests(&table, "ann"), 50);
        assert_eq!(table.look().await, Ok(Seen::default()), "said once");
        table.set(&one("bob", 60, START + HOUR)).await.unwrap();
        assert_eq!((requests(&table, "ann"), requests(&table, "bob")), (50, 60));
    }
}
