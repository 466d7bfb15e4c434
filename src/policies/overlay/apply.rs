//! Applies overlays to a document.
//!
//! Aliases share nodes, so an edit changes no node: it adds a new one, and new ones for all nodes above it. A document that no
//! overlay meets stays as it is.

use std::collections::HashMap;

use weir_text::boolean;
use weir_text::yaml::{Document, Node, NodeId, Value};

use super::COMPARISONS_MAX;
use super::edits::{
    EditedBy, Edits, Given, OTHER_BYTES_MAX, OTHERS_MAX, Overlay, Overlays, Pattern, Reached, ValuePattern,
};
use crate::tables::{FORMS, descriptor, file, limit};
use crate::{PROBLEMS_MAX, Position};

type Entries = Vec<(NodeId, NodeId)>;

/// The keys that give the number of a limit. A limit without one has the number 0.
const NUMBERS: [&str; 3] = [limit::RATE.name, limit::REQUESTS_PER_UNIT.name, limit::UNLIMITED.name];

impl Overlays {
    /// Edits a policy file. `place` spells a place of it, for messages.
    pub(crate) fn apply(&mut self, document: &mut Document<'_>, place: &dyn Fn(Position) -> String) -> Edits {
        let Self { list, values, reached, comparisons_left, .. } = self;
        let mut editor = Editor {
            document,
            values,
            reached,
            comparisons_left,
            place,
            grafted: HashMap::new(),
            at: Position::START,
            edits: Edits::default(),
        };
        editor.root(list);
        editor.edits
    }
}

struct Editor<'e, 'd> {
    document: &'e mut Document<'d>,
    values: &'e Document<'static>,
    reached: &'e mut [Reached],
    comparisons_left: &'e mut Option<usize>,
    place: &'e dyn Fn(Position) -> String,
    /// Keys and values that the document has already, by the value in `values`.
    grafted: HashMap<NodeId, (NodeId, NodeId)>,
    /// The place of the current descriptor.
    at: Position,
    edits: Edits,
}

/// An overlay whose first patterns match the descriptors above.
#[derive(Clone, Copy)]
struct Live<'o> {
    index: usize,
    overlay: &'o Overlay,
    depth: usize,
}

impl Editor<'_, '_> {
    fn root(&mut self, overlays: &[Overlay]) {
        let Some(root) = self.document.root else { return };
        let Value::Mapping(entries) = &self.document.node(root).value else { return };
        let Some(domain) = self.value(entries, file::DOMAIN.name).and_then(|id| self.scalar(id)) else { return };
        let all = overlays.iter().enumerate().filter(|(_, overlay)| overlay.domain.matches(domain));
        let live: Vec<_> = all.map(|(index, overlay)| Live { index, overlay, depth: 0 }).collect();
        live.iter().for_each(|one| self.reached[one.index].domain = true);
        let mut entries = entries.clone();
        if self.below(&mut entries, &live) {
            self.document.root = Some(self.replaced(root, Value::Mapping(entries)));
        }
    }

    /// Edits the descriptors of a mapping. Whether one has changed.
    fn below(&mut self, entries: &mut Entries, live: &[Live<'_>]) -> bool {
        if live.is_empty() {
            return false;
        }
        let Some(at) = self.index(entries, descriptor::DESCRIPTORS.name) else { return false };
        let list = entries[at].1;
        let Value::List(items) = &self.document.node(list).value else { return false };
        let mut items = items.clone();
        let mut has_changed = false;
        for item in &mut items {
            if self.is_full() || !self.compare(self.document.node(*item).position, live.len()) {
                break;
            }
            if let Some(edited) = self.descriptor(*item, live) {
                (*item, has_changed) = (edited, true);
            }
        }
        if has_changed {
            entries[at].1 = self.replaced(list, Value::List(items));
        }
        has_changed
    }

    /// Subtracts from the comparisons that are left. False if there are too few, which is reported once.
    fn compare(&mut self, at: Position, count: usize) -> bool {
        let Some(left) = *self.comparisons_left else { return false };
        *self.comparisons_left = left.checked_sub(count);
        if self.comparisons_left.is_none() {
            let message = format!(
                "more than {COMPARISONS_MAX} comparisons of overlays with descriptors: write fewer overlays, or narrower \
                 domains"
            );
            self.report(at, message);
        }
        self.comparisons_left.is_some()
    }

    fn descriptor(&mut self, id: NodeId, live: &[Live<'_>]) -> Option<NodeId> {
        let Value::Mapping(entries) = &self.document.node(id).value else { return None };
        let (mut here, mut further) = (Vec::new(), Vec::new());
        for one in live {
            let Live { index, overlay, depth } = *one;
            let is_match = overlay.path.get(depth).map(|pattern| self.matches(pattern, entries));
            let known = &self.reached[index];
            if is_match == Some(false) {
                if depth == known.depth && known.others.len() < OTHERS_MAX {
                    let other = self.spelled(entries);
                    if other.len() <= OTHER_BYTES_MAX && !known.others.contains(&other) {
                        self.reached[index].others.push(other);
                    }
                }
                continue;
            }
            let depth = depth + usize::from(is_match.is_some());
            if depth > known.depth {
                self.reached[index] = Reached { depth, others: Vec::new(), ..*known };
            }
            let is_whole = depth == overlay.path.len();
            if is_whole {
                here.push(*one);
            }
            if !is_whole || overlay.any_depth {
                further.push(Live { depth, ..*one });
            }
        }
        if here.is_empty() && further.is_empty() {
            return None;
        }
        let mut entries = entries.clone();
        self.at = self.document.node(id).position;
        let by = self.limits(&mut entries, &here);
        let has_changed = self.below(&mut entries, &further);
        if by.places.is_empty() && !has_changed {
            return None;
        }
        let edited = self.replaced(id, Value::Mapping(entries));
        if !by.places.is_empty() {
            self.edits.of.insert(edited, by);
        }
        Some(edited)
    }

    fn matches(&self, pattern: &Pattern, entries: &Entries) -> bool {
        let key = self.value(entries, descriptor::KEY.name).and_then(|id| self.scalar(id)).unwrap_or_default();
        if !pattern.key.matches(key) {
            return false;
        }
        let mut values = FORMS.iter().filter_map(|form| Some((*form, self.value(entries, form)?)));
        match &pattern.value {
            ValuePattern::Any => true,
            ValuePattern::None => values.all(|(_, id)| self.scalar(id).is_some_and(str::is_empty)),
            ValuePattern::Of(glob) => values.any(|(form, id)| match &self.document.node(id).value {
                Value::Scalar { text, .. } if form == descriptor::REGEX.name => glob.matches(&format!("~{text}")),
                Value::Scalar { text, .. } => !text.is_empty() && glob.matches(text),
                Value::List(items) => {
                    items.iter().any(|item| self.scalar(*item).is_some_and(|text| glob.matches(text)))
                }
                Value::Mapping(_) => false,
            }),
        }
    }

    /// A descriptor as a pattern of its key and value.
    fn spelled(&self, entries: &Entries) -> String {
        let text = |name| self.value(entries, name).and_then(|id| self.scalar(id));
        let key = text(descriptor::KEY.name).unwrap_or_default();
        text(descriptor::VALUE.name).map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
    }

    /// Adds to a descriptor and its limits. Returns the overlays that met a limit.
    fn limits(&mut self, entries: &mut Entries, here: &[Live<'_>]) -> EditedBy {
        let mut by = EditedBy::default();
        let keys = [descriptor::RATE_LIMIT.name, descriptor::RATE_LIMITS.name];
        if here.is_empty() || keys.iter().all(|key| self.value(entries, key).is_none()) {
            return by;
        }
        let mut are_met = vec![false; here.len()];
        for key in keys {
            let Some(at) = self.index(entries, key) else { continue };
            if let Some(edited) = self.limits_at(entries[at].1, here, &mut are_met) {
                entries[at].1 = edited;
            }
        }
        for (&Live { index, overlay, .. }, _) in here.iter().zip(are_met).filter(|(_, is_met)| *is_met) {
            if self.is_full() {
                break;
            }
            self.reached[index].limit = true;
            self.give(entries, &overlay.descriptor, overlay);
            by.places.push(overlay.at);
            by.has_comment |= overlay.has_comment;
        }
        by
    }

    /// Adds to one limit or a list of them. None if nothing changes, or if an overlay contradicts the limit.
    fn limits_at(&mut self, id: NodeId, here: &[Live<'_>], are_met: &mut [bool]) -> Option<NodeId> {
        let node = self.document.node(id);
        if node.is_null() {
            return None;
        }
        let mut entries = match &node.value {
            Value::List(items) => {
                let mut items = items.clone();
                let mut has_changed = false;
                for item in &mut items {
                    if let Some(edited) = self.limits_at(*item, here, are_met) {
                        (*item, has_changed) = (edited, true);
                    }
                }
                return has_changed.then(|| self.replaced(id, Value::List(items)));
            }
            Value::Mapping(entries) => entries.clone(),
            // A rate in its short form.
            Value::Scalar { .. } => {
                let key = Value::Scalar { text: limit::RATE.name.into(), plain: false };
                vec![(self.replaced(id, key), id)]
            }
        };
        let problems = self.edits.problems.len();
        let mut has_changed = false;
        // By the limit of the policy, so that the order of overlays does not matter.
        let meets: Vec<bool> = here.iter().map(|Live { overlay, .. }| self.meets(overlay, &entries)).collect();
        for ((Live { overlay, .. }, is_met), meets) in here.iter().zip(are_met).zip(meets) {
            if self.is_full() {
                return None;
            }
            if meets {
                *is_met = true;
                has_changed |= !overlay.limit.is_empty();
                self.give(&mut entries, &overlay.limit, overlay);
            }
        }
        let is_good = self.edits.problems.len() == problems;
        (has_changed && is_good).then(|| self.replaced(id, Value::Mapping(entries)))
    }

    /// Whether an overlay is for this limit of the policy. An unlimited one has no other keys, so only an overlay of numbers meets it.
    fn meets(&self, overlay: &Overlay, entries: &Entries) -> bool {
        let has_name = |name| self.value(entries, limit::NAME.name).and_then(|id| self.scalar(id)) == Some(name);
        overlay.name.as_deref().is_none_or(has_name)
            && (overlay.limit.iter().any(|given| excludes(given.name, limit::UNLIMITED.name))
                || !self.value(entries, limit::UNLIMITED.name).is_some_and(|id| is_true(self.document, id)))
    }

    /// Adds keys to a mapping, and reports those that it has.
    fn give(&mut self, entries: &mut Entries, given: &[Given], overlay: &Overlay) {
        let has_number = given.iter().any(|one| {
            NUMBERS.contains(&one.name) && (one.name != limit::UNLIMITED.name || is_true(self.values, one.value))
        });
        // First all of them, so that the keys of one overlay do not exclude each other.
        let is_free: Vec<bool> = given.iter().map(|one| self.make_room(entries, one, overlay, has_number)).collect();
        for (one, _) in given.iter().zip(is_free).filter(|(_, is_free)| *is_free) {
            entries.push(self.grafted(one));
        }
    }

    /// Removes what a key takes the place of. False: the mapping has it, which is reported.
    fn make_room(&mut self, entries: &mut Entries, given: &Given, overlay: &Overlay, has_number: bool) -> bool {
        let mut at = 0;
        while let Some(&(key, value)) = entries.get(at) {
            let word = self.scalar(key).unwrap_or_default();
            let place = self.document.node(key).position;
            if !excludes(given.name, word) {
                at += 1;
            } else if self.document.node(value).is_null()
                || (overlay.replace && place.of_graft().is_none() && (has_number || !NUMBERS.contains(&word)))
            {
                entries.remove(at);
            } else {
                let name = given.name;
                let what = if word == name { "it" } else { word };
                let message = match place.of_graft() {
                    Some(other) => {
                        let here = (self.place)(self.at);
                        format!(
                            "{name}: the overlay at line {} gives {what} too, to the descriptor at {here}",
                            other.line
                        )
                    }
                    None if overlay.replace => {
                        let place = (self.place)(place);
                        format!(
                            "{name}: replaces {word} at {place}, which leaves no number: write requests_per_unit too"
                        )
                    }
                    None => {
                        let place = (self.place)(place);
                        format!(
                            "{name}: the policy gives {what} already, at {place}: remove one, or write replace: true"
                        )
                    }
                };
                self.report(given.at.grafted(), message);
                return false;
            }
        }
        true
    }

    fn grafted(&mut self, given: &Given) -> (NodeId, NodeId) {
        if let Some(known) = self.grafted.get(&given.value) {
            return *known;
        }
        let key = Value::Scalar { text: given.name.into(), plain: false };
        let key = self.document.add(Node { position: given.at.grafted(), value: key });
        let both = (key, self.document.graft(self.values, given.value));
        self.grafted.insert(given.value, both);
        both
    }

    fn report(&mut self, at: Position, message: String) {
        if !self.is_full() {
            self.edits.problems.push((at, message));
        }
    }

    /// Whether there are so many problems that the rest of the file is not edited.
    fn is_full(&self) -> bool {
        self.edits.problems.len() >= PROBLEMS_MAX
    }

    /// Adds a value in the place of another one.
    fn replaced(&mut self, id: NodeId, value: Value<'static>) -> NodeId {
        let position = self.document.node(id).position;
        self.document.add(Node { position, value })
    }

    fn index(&self, entries: &Entries, name: &str) -> Option<usize> {
        entries.iter().position(|&(key, _)| self.scalar(key) == Some(name))
    }

    /// The value of a key, unless it is null.
    fn value(&self, entries: &Entries, name: &str) -> Option<NodeId> {
        let (_, value) = entries[self.index(entries, name)?];
        (!self.document.node(value).is_null()).then_some(value)
    }

    fn scalar(&self, id: NodeId) -> Option<&str> {
        match &self.document.node(id).value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }
}

fn is_true(document: &Document<'_>, id: NodeId) -> bool {
    matches!(&document.node(id).value, Value::Scalar { text, .. } if boolean(text) == Some(true))
}

/// Whether a mapping that gets a key cannot keep another one.
fn excludes(name: &str, other: &str) -> bool {
    let [unlimited, rate, requests] = [limit::UNLIMITED.name, limit::RATE.name, limit::REQUESTS_PER_UNIT.name];
    let period = [limit::UNIT.name, limit::WINDOW.name];
    let is_amount = |key: &str| key == rate || key == requests || period.contains(&key);
    name == other
        || (name == unlimited && ![limit::NAME.name, limit::REPLACES.name].contains(&other))
        || (is_amount(name) && other == unlimited)
        || (name == rate && is_amount(other))
        || (is_amount(name) && other == rate)
        || (period.contains(&name) && period.contains(&other))
}

#[cfg(test)]
mod tests {
    use weir_text::yaml::{Document, Node, NodeId, Position, Value};

    use crate::state::Reader;
    use crate::{Dialect, Limits, OverlayFile, PROBLEMS_MAX};

    #[test]
    fn comparisons_have_a_bound_in_all_files_together() {
        let policy =
            |domain: &str| format!("domain: {domain}\ndescriptors:\n{}", "- {key: a, descriptors: [{key: b}]}\n");
        let text = "overlays:\n- {domain: '*', descriptors: [a, c], on_error: deny}\n- {domain: '*', descriptors: [x], on_error: deny}\n";
        let read = |comparisons: usize| {
            let file = OverlayFile::of("o.yaml", text).unwrap();
            let mut reader = Reader::new(Dialect::default(), Limits::default()).with_overlays(Some(Ok(file)));
            reader.overlays.as_mut().unwrap().comparisons_left = Some(comparisons);
            for domain in ["d", "e"] {
                reader.file(format!("{domain}.yaml").into(), &policy(domain));
            }
            reader.finish().map(drop).map_err(|problems| problems.to_string())
        };
        // For each file two overlays with the first descriptor, and one with the second.
        assert_eq!(read(6), Ok(()));
        let problem = read(5).unwrap_err();
        assert!(
            problem.starts_with("e.yaml:3:26: more than 100000000 comparisons") && !problem.contains('\n'),
            "{problem}"
        );
    }

    /// The number of nodes that overlays add to a document, and of problems.
    fn added(policy: &str, overlays: &str) -> (u32, usize) {
        let options = Dialect::default().yaml(Limits::default(), policy.len());
        let mut document = Document::parse(policy, options).unwrap();
        let next = |document: &mut Document<'_>| {
            let id = document.add(Node { position: Position::START, value: Value::List(Vec::new()) });
            (0..).find(|index| NodeId::new(*index) == id).unwrap()
        };
        let before = next(&mut document);
        let mut overlays = OverlayFile::of("o.yaml", overlays).unwrap().overlays().unwrap();
        let edits = overlays.apply(&mut document, &|_| String::new());
        (next(&mut document) - before - 1, edits.problems.len())
    }

    #[test]
    fn many_overlays_add_one_node_for_each_limit_and_end_with_too_many_problems() {
        let policy = |rules: usize| {
            let rule = "- {key: a, rate_limits: [{rate: 1/s}, {rate: 9/h}]}\n";
            format!("domain: d\ndescriptors:\n{}", rule.repeat(rules))
        };
        let overlay = |keys: &str| format!("- {{domain: d, descriptors: ['**'], rate_limit: {{{keys}}}}}\n");
        let one = format!("overlays:\n{}", overlay("drain: true"));
        let more = [overlay("lease: 1s"), overlay("alert_at: [50]"), overlay("algorithm: gcra")].concat();
        let (of_one, of_four) = (added(&policy(10), &one).0, added(&policy(10), &format!("{one}{more}")).0);
        // Limits, lists and descriptors of 10 rules; the list of rules and the root; and what each overlay gives.
        assert_eq!((of_one, of_four), (42 + 2, 42 + 4 * 2 + 1));
        let refused = added(&policy(100), &format!("overlays:\n{}", overlay("drain: true").repeat(1000)));
        assert!(refused.0 < 10 && refused.1 == PROBLEMS_MAX, "{refused:?}");
    }
}
