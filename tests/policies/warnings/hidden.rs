//! `never_met` against a matcher of its own: random descriptors of a key, and each text of a small alphabet up to a length.

use proptest::prelude::*;
use weir_policies::{Code, check_warnings, parse};

use crate::support::arbitrary::config;

/// Which texts are tried: all of these letters up to this length. Two shortest texts that tell any patterns of these sizes apart are shorter.
const LETTERS: [char; 3] = ['a', 'b', 'c'];
const LENGTH_MAX: usize = 6;

/// A part of a regular expression.
#[derive(Clone, Debug)]
enum Part {
    One(char),
    Any,
    Class(char, char),
    Not(char),
}

/// A part, and whether it is there any number of times.
type Parts = Vec<(Part, bool)>;

#[derive(Clone, Debug)]
enum Values {
    Text(String),
    List(Vec<String>),
    Wildcard(Vec<String>),
    Regex(Vec<Parts>),
    Alone,
}

impl Part {
    fn has(&self, letter: char) -> bool {
        match self {
            Self::One(one) => *one == letter,
            Self::Any => letter != '\n',
            Self::Class(one, other) => *one == letter || *other == letter,
            Self::Not(one) => *one != letter,
        }
    }

    fn written(&self) -> String {
        match self {
            Self::One(one) => one.to_string(),
            Self::Any => ".".to_owned(),
            Self::Class(one, other) => format!("[{one}{other}]"),
            Self::Not(one) => format!("[^{one}]"),
        }
    }
}

fn parts_match(parts: &[(Part, bool)], text: &[char]) -> bool {
    match parts {
        [] => text.is_empty(),
        [(part, false), rest @ ..] => {
            text.split_first().is_some_and(|(first, left)| part.has(*first) && parts_match(rest, left))
        }
        [(part, true), rest @ ..] => {
            parts_match(rest, text)
                || text.split_first().is_some_and(|(first, left)| part.has(*first) && parts_match(parts, left))
        }
    }
}

fn wildcard_matches(literals: &[String], text: &str) -> bool {
    let Some((first, rest)) = literals.split_first() else { return text.is_empty() };
    let Some(left) = text.strip_prefix(first.as_str()) else { return false };
    if rest.is_empty() { left.is_empty() } else { (0..=left.len()).any(|at| wildcard_matches(rest, &left[at..])) }
}

impl Values {
    fn is_exact(&self, text: &str) -> bool {
        match self {
            Self::Text(one) => one == text,
            Self::List(values) => values.iter().any(|value| value == text),
            _ => false,
        }
    }

    fn is_pattern_of(&self, text: &str) -> bool {
        match self {
            Self::Wildcard(literals) => wildcard_matches(literals, text),
            Self::Regex(choices) => {
                let letters: Vec<char> = text.chars().collect();
                choices.iter().any(|parts| parts_match(parts, &letters))
            }
            _ => false,
        }
    }

    fn written(&self) -> String {
        let quoted = |text: &String| format!("'{text}'");
        match self {
            Self::Text(text) => format!(", value: {}", quoted(text)),
            Self::List(values) => format!(", values: [{}]", values.iter().map(quoted).collect::<Vec<_>>().join(", ")),
            Self::Wildcard(literals) => format!(", value: '{}'", literals.join("*")),
            Self::Regex(choices) => {
                let choice = |parts: &Parts| {
                    parts.iter().map(|(part, many)| part.written() + if *many { "*" } else { "" }).collect::<String>()
                };
                format!(", regex: '{}'", choices.iter().map(choice).collect::<Vec<_>>().join("|"))
            }
            Self::Alone => String::new(),
        }
    }
}

/// Which descriptor a value meets. [mt-2]
fn met(all: &[Values], text: &str) -> Option<usize> {
    let exact = all.iter().position(|values| values.is_exact(text));
    let pattern = || all.iter().position(|values| values.is_pattern_of(text));
    exact.or_else(pattern).or_else(|| all.iter().position(|values| matches!(values, Values::Alone)))
}

fn texts() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut begin = 0;
    for _ in 0..LENGTH_MAX {
        let end = all.len();
        for at in begin..end {
            let longer: Vec<String> = LETTERS.iter().map(|letter| format!("{}{letter}", all[at])).collect();
            all.extend(longer);
        }
        begin = end;
    }
    all
}

fn values() -> impl Strategy<Value = Values> {
    let letter = || prop_oneof![Just('a'), Just('b')];
    let text = "[ab]{1,2}";
    let part = prop_oneof![
        3 => letter().prop_map(Part::One),
        2 => Just(Part::Any),
        1 => Just(Part::Class('a', 'b')),
        1 => letter().prop_map(Part::Not),
    ];
    let parts = prop::collection::vec((part, prop::bool::weighted(0.3)), 1..3);
    prop_oneof![
        2 => text.prop_map(Values::Text),
        1 => prop::collection::btree_set(text, 1..4).prop_map(|values| Values::List(values.into_iter().collect())),
        4 => prop::collection::vec("[ab]{0,1}", 2..4).prop_map(Values::Wildcard),
        4 => prop::collection::vec(parts, 1..3).prop_map(Values::Regex),
        1 => Just(Values::Alone),
    ]
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn a_rule_is_never_met_exactly_where_no_value_meets_it(all in prop::collection::vec(values(), 2..6)) {
        let rules: String = all.iter().map(|values| format!("- {{key: k{}, rate_limit: 1/s}}\n", values.written())).collect();
        let Ok(mut loaded) = parse(&[("p", &format!("domain: d\ndescriptors:\n{rules}"))]) else {
            // Two of them are for the same values.
            return Ok(());
        };
        check_warnings(&mut loaded);
        let told = |at: usize| loaded.warnings.list().iter().any(|warning| {
            [Code::NeverMet, Code::MatchesNothing].contains(&warning.code) && warning.position.line as usize == at + 3
        });
        let mut is_met = vec![false; all.len()];
        for text in texts() {
            if let Some(at) = met(&all, &text) {
                is_met[at] = true;
            }
        }
        for (at, is_met) in is_met.into_iter().enumerate() {
            prop_assert_eq!(told(at), !is_met, "descriptor {} of\n{}{}", at + 1, rules, loaded.warnings);
        }
    }
}
