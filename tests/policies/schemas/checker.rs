//! As much of JSON Schema as the schemas use, and YAML 1.2 as JSON. A keyword that is not known here is an error.

use std::collections::HashMap;

use regex::Regex;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// What is wrong with a value, with its place.
pub(super) fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "", &mut found);
    found
}

fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut found = Vec::new();
    check(root, schema, value, "", &mut found);
    found.is_empty()
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        assert_eq!(schema, &Value::Bool(true), "a schema");
        return;
    };
    for (keyword, wanted) in keywords {
        let all = || wanted.as_array().expect("a list").iter();
        let is_met = match &**keyword {
            "$ref" => {
                let pointer = wanted.as_str().expect("a text").strip_prefix('#').expect("of this schema");
                check(root, root.pointer(pointer).expect("a definition"), value, at, found);
                true
            }
            "type" => {
                let names = wanted.as_array().cloned().unwrap_or_else(|| vec![wanted.clone()]);
                names.iter().any(|name| has_type(value, name.as_str().expect("a name")))
            }
            "enum" => all().any(|one| one == value),
            "pattern" => {
                let pattern = Regex::new(wanted.as_str().expect("a text")).expect("a pattern");
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value.as_u64().is_none_or(|number| number >= wanted.as_u64().expect("a number")),
            "maximum" => value.as_u64().is_none_or(|number| number <= wanted.as_u64().expect("a number")),
            "minProperties" => {
                value.as_object().is_none_or(|map| map.len() as u64 >= wanted.as_u64().expect("a number"))
            }
            "maxProperties" => {
                value.as_object().is_none_or(|map| map.len() as u64 <= wanted.as_u64().expect("a number"))
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().expect("a number")),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().expect("a number")),
            "minLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 >= wanted.as_u64().expect("a number"))
            }
            "maxLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 <= wanted.as_u64().expect("a number"))
            }
            "required" => {
                value.as_object().is_none_or(|map| all().all(|key| map.contains_key(key.as_str().expect("a key"))))
            }
            "anyOf" => all().any(|one| is_valid(root, one, value)),
            "oneOf" => all().filter(|one| is_valid(root, one, value)).count() == 1,
            "allOf" => all().all(|one| is_valid(root, one, value)),
            "not" => !is_valid(root, wanted, value),
            "if" => !is_valid(root, wanted, value) || is_valid(root, &schema["then"], value),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{at}[{i}]"), found);
                }
                true
            }
            "properties" => {
                for (key, of_key) in wanted.as_object().expect("properties") {
                    if let Some(item) = value.get(key) {
                        check(root, of_key, item, &format!("{at}.{key}"), found);
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (key, item) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(key)) {
                        continue;
                    }
                    match wanted {
                        Value::Bool(false) => found.push(format!("{at}.{key} is not known")),
                        wanted => check(root, wanted, item, &format!("{at}.{key}"), found),
                    }
                }
                true
            }
            "$schema" | "$defs" | "title" | "description" | "default" | "deprecated" | "examples" | "then" => true,
            _ => panic!("the keyword {keyword} is new"),
        };
        if !is_met {
            found.push(format!("{at}: {keyword} {wanted}, not {value}"));
        }
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("the type {name}"),
    }
}

/// A document of YAML as an editor reads it: scalars by YAML 1.2, aliases and merge keys followed.
pub(super) fn yaml(text: &str) -> Value {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let events: Vec<Event<'_>> = Parser::new_from_str(text).map(|event| event.expect("YAML").0).collect();
    let mut reader = Reader { events, at: 0, anchors: HashMap::new() };
    while !matches!(reader.events[reader.at], Event::DocumentStart(_)) {
        reader.at += 1;
    }
    reader.at += 1;
    reader.node()
}

struct Reader<'a> {
    events: Vec<Event<'a>>,
    at: usize,
    anchors: HashMap<usize, Value>,
}

impl Reader<'_> {
    fn node(&mut self) -> Value {
        let event = self.events[self.at].clone();
        self.at += 1;
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.anchors[&anchor].clone(),
            Event::Scalar(text, ScalarStyle::Plain, anchor, None) => (anchor, plain(&text)),
            Event::Scalar(text, _, anchor, _) => (anchor, Value::String(text.into_owned())),
            Event::SequenceStart(anchor, _) => {
                let mut items = Vec::new();
                while !matches!(self.events[self.at], Event::SequenceEnd) {
                    items.push(self.node());
                }
                self.at += 1;
                (anchor, Value::Array(items))
            }
            Event::MappingStart(anchor, _) => {
                let mut map = Map::new();
                while !matches!(self.events[self.at], Event::MappingEnd) {
                    let Event::Scalar(key, ..) = self.events[self.at].clone() else { panic!("a key that is no text") };
                    self.at += 1;
                    let value = self.node();
                    if key == "<<" {
                        merge(&mut map, value);
                    } else {
                        map.insert(key.into_owned(), value);
                    }
                }
                self.at += 1;
                (anchor, Value::Object(map))
            }
            other => panic!("{other:?}"),
        };
        self.anchors.insert(anchor, value.clone());
        value
    }
}

fn merge(map: &mut Map<String, Value>, from: Value) {
    match from {
        Value::Array(sources) => sources.into_iter().for_each(|source| merge(map, source)),
        Value::Object(entries) => {
            for (key, value) in entries {
                map.entry(key).or_insert(value);
            }
        }
        other => panic!("{other} cannot be merged"),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => {
            let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let number = text.parse::<u64>().map(Value::from).or_else(|_| text.parse::<f64>().map(Value::from));
            number.ok().filter(|_| is_number).unwrap_or_else(|| Value::String(text.to_owned()))
        }
    }
}
