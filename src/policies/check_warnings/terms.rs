//! Finds a gap between the terms of a rule's limits.

use weir_engine::{Micros, Rule, Term};
use weir_text::instant_text;

use super::super::{Code, Outline};
use super::Findings;
use crate::term::now;

impl Findings<'_> {
    /// Warns about the first gap that has not ended. Gaps between spans of the week are meant.
    pub(super) fn term_gap(&mut self, outline: &Outline, rule: &Rule) {
        let always = Term::new(0, Term::NO_END);
        let terms = rule
            .limits
            .iter()
            .filter(|limit| !limit.shadow)
            .map(|limit| limit.term.as_deref().cloned().or(always.clone()));
        let Some((from, until)) = gap(terms.flatten().collect()).filter(|(_, until)| *until > now()) else { return };
        self.add(&outline.note.place(), Code::TermGap, || {
            format!("no limit applies from {} until {}", instant_text(from), instant_text(until))
        });
    }
}

/// The first gap between two terms.
fn gap(mut terms: Vec<Term>) -> Option<(Micros, Micros)> {
    terms.sort_unstable_by_key(Term::from);
    let (first, rest) = terms.split_first()?;
    let mut end = first.until();
    for term in rest {
        if term.from() > end {
            return Some((end, term.from()));
        }
        end = end.max(term.until());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_time_in_no_term() {
        let gap =
            |terms: &[(u64, u64)]| gap(terms.iter().filter_map(|(from, until)| Term::new(*from, *until)).collect());
        assert_eq!(gap(&[(1, 3), (5, 7)]), Some((3, 5)));
        assert_eq!(gap(&[(5, 7), (1, 3)]), Some((3, 5)));
        assert_eq!(gap(&[(1, 3), (3, 7)]), None);
        assert_eq!(gap(&[(1, 9), (2, 3), (8, 12)]), None);
        assert_eq!(gap(&[(1, 9), (2, 3), (10, 12)]), Some((9, 10)));
        assert_eq!(gap(&[(4, 9)]), None);
        assert_eq!(gap(&[]), None);
    }
}
