//! The vectors of tests/vectors hold on the engine, on the memory store and on Redis: the same answers, every field of
//! them, and the same states. Not in here: what the vectors say, and sequences made at random (differential.rs).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weir_engine::decision::StaleBounds;
use weir_engine::{Algorithm, Charge, Decision, Limit, Micros, Receipt};
use weir_store::Undo;

use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::stores::{NAMES, Stores};
use crate::support::vectors::{self, Action, Answer, ChargeUndo, Vector};

/// How many vectors each file must have at least.
const VECTORS_MIN: usize = 25;

#[test]
fn every_vector_holds_on_engine_memory_and_redis() {
    let server = RedisServer::start();
    run_all(&server.url());
    let keys = Stores::new(&server, "", 1).check_every_key_expires();
    assert!(keys > VECTORS_MIN, "the vectors left {keys} keys in redis");
}

/// A server whose Lua has floats can return numbers that a script computes as texts.
#[test]
fn every_vector_holds_on_a_redis_whose_scripts_return_numbers_as_texts() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.numbers_as_texts();
    run_all(&proxy.url());
}

/// Runs all vectors with the Redis at this URL.
fn run_all(url: &str) {
    let mut failures = Vec::new();
    for file in vectors::files() {
        for (i, vector) in vectors::read(&file).iter().enumerate() {
            let name = file.file_stem().unwrap().to_string_lossy();
            let stores = &mut Stores::with_redis_at(url, &format!("{name}:{i}:"), vector.base);
            if let Err(failure) = run(vector, stores) {
                failures.push(failure);
            }
        }
    }
    assert!(failures.is_empty(), "{} vectors fail\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Runs one vector up to its first wrong step.
fn run(vector: &Vector, stores: &mut Stores) -> Result<(), String> {
    let all_keys = vector.keys();
    let mut decisions: Vec<Option<Made>> = Vec::new();
    for (number, step) in vector.steps.iter().enumerate() {
        let at = format!("{}, step {}\n  want  {}", vector.title, number + 1, step.text);
        stores.set_now(step.now);
        let mut made = None;
        match &step.action {
            Action::Decide(mode, asked) => {
                let charges = charges(vector, asked, step.now);
                made = Some(stores.decide(&charges, *mode));
            }
            Action::Undo(asked) => {
                let undos = [0, 1, 2].map(|i| undos(vector, asked, &decisions, i, step.now));
                stores.undo(&undos);
            }
            Action::Reset(keys) => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                let counts = stores.reset(&keys);
                for (name, count) in NAMES.iter().zip(counts) {
                    if step.answer != Answer::Count(count) {
                        return Err(format!("{at}\n  {name} forgot {count}"));
                    }
                }
            }
            Action::Stored(_) => {}
        }

        let keys: Vec<(&str, &Limit)> = step.states.keys().map(|key| (key.as_str(), all_keys[key.as_str()])).collect();
        let states = stores.states(&keys);
        for (i, (name, states)) in NAMES.iter().zip(states).enumerate() {
            let states: Vec<_> = keys.iter().map(|(key, _)| *key).zip(states).collect();
            if let (Some(made), Action::Decide(mode, asked)) = (&made, &step.action) {
                let answer = match made[i].clone() {
                    Err(StaleBounds) => Answer::StaleBounds,
                    Ok(Decision { denied, outcomes, .. }) => {
                        Answer::Decision { denied, outcomes: vectors::without_idle_marks(outcomes) }
                    }
                };
                if answer != step.answer {
                    let line = made[i].as_ref().map(|made| vector.write_decision(asked, *mode, made, &states));
                    let line = line.unwrap_or_else(|StaleBounds| "stale_bounds".to_owned());
                    return Err(format!("{at}\n  {name:6}{line}\n  {answer:?}"));
                }
                if let Ok(made) = &made[i] {
                    assert_eq!(made.now, step.now, "{at}\n  {name}");
                }
            }
            for (key, state) in &states {
                if *state != step.states[*key] {
                    return Err(format!("{at}\n  {name} stores{}", vector.write_states(&states)));
                }
            }
        }
        stores.check_expiries();
        decisions.push(made);
    }
    Ok(())
}

/// What the three made of one decision.
type Made = [Result<Decision, StaleBounds>; 3];

fn charges<'a>(vector: &'a Vector, asked: &'a [vectors::VectorCharge], now: Micros) -> Vec<Charge<'a>> {
    let charge = |asked: &'a vectors::VectorCharge| {
        let limit = vector.limit(&asked.limit);
        let bounds = vector.bounds(limit, asked.by.unwrap_or(now));
        Charge { role: asked.role, bounds, ..Charge::alone(&asked.key, limit, asked.operation) }
    };
    asked.iter().map(charge).collect()
}

/// What the `i`-th store is asked to consume back, by the receipts that it gave itself.
fn undos<'a>(
    vector: &'a Vector,
    asked: &[ChargeUndo],
    decisions: &[Option<Made>],
    i: usize,
    now: Micros,
) -> Vec<Undo<'a>> {
    let mut undos = Vec::new();
    for &ChargeUndo { step, charge, hits } in asked {
        let (Action::Decide(_, asked), Some(made)) = (&vector.steps[step].action, &decisions[step]) else {
            panic!("{}: step {} is no decision", vector.title, step + 1);
        };
        let (asked, made) = (&asked[charge], made[i].as_ref().expect("checked against the vector"));
        let receipt = Receipt { hits, ..made.outcomes[charge].receipt.expect("checked against the vector") };
        let limit = vector.limit(&asked.limit);
        undos.push(Undo { key: &asked.key, limit, receipt, bounds: vector.bounds(limit, now) });
    }
    undos
}

#[test]
fn there_are_enough_vectors_and_each_cites_rules_that_the_code_cites() {
    let mut cited = BTreeSet::new();
    for directory in ["src", "lua"] {
        cite(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut cited);
    }
    let files = vectors::files();
    for algorithm in Algorithm::NAMES {
        let is_own = |file: &PathBuf| file.file_stem().is_some_and(|stem| stem == algorithm);
        assert!(files.iter().any(is_own), "tests/vectors has no {algorithm}.toml");
    }
    for file in files {
        let list = vectors::read(&file);
        assert!(list.len() >= VECTORS_MIN, "{} has {} vectors", file.display(), list.len());
        for vector in list {
            assert!(!vector.rules.is_empty(), "{} cites no rule", vector.title);
            for rule in &vector.rules {
                assert!(cited.contains(rule), "{}: no code cites [{rule}]", vector.title);
            }
        }
    }
}

/// Collects what the files under `directory` cite as `[fw-3]`.
fn cite(directory: &Path, cited: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cite(&path, cited);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for part in text.split('[').skip(1) {
            if let Some((rule, _)) = part.split_once(']') {
                cited.insert(rule.to_owned());
            }
        }
    }
}

#[test]
fn a_mistake_in_a_vector_is_named_with_file_vector_and_step() {
    let with = |limit: &str, steps: &str| {
        let text = format!(
            "[[vector]]\nname = 'first'\nrules = ['fw-3']\nlimits = {{ a = '{limit}' }}\nsteps = '''\n{steps}\n'''"
        );
        vectors::parse("x.toml", &text).map(|vectors| vectors.len())
    };
    let fine = "0 consume 1 a -> ok within 3>2 reset 1s charged 1 ; k=#0:1";
    assert_eq!(with("fixed_window 3 per 1s", fine), Ok(1));

    let limit = "fixed_window 3 per 1s";
    let wrong = [
        (with("fixed_windows 3 per 1s", fine), "limit \"a\": unknown algorithm \"fixed_windows\""),
        (with("fixed_window 3 per 1", fine), "limit \"a\": \"1\" is no time"),
        (with("gcra 3 per 1s burst 0", fine), "limit \"a\": a burst of 0 admits nothing: at least 1"),
        (with(limit, "0 consume 1 b -> ok within 3>2 reset 1s ; k=-"), "unknown limit \"b\""),
        (with(limit, "0 consume 1 a -> ok within 3>2 reset 1s ; k=@0~0/3"), "\"@0~0/3\" is no state of fixed_window"),
        (with(limit, "0 consume 1 a -> ok within 3>2 reset 1s ;"), "the state of \"k\" is not listed"),
        (with(limit, "0 consume 1 a, peek a -> ok within 3>2 reset 1s ; k=-"), "there are fewer outcomes than charges"),
        (with(limit, "0 consume 1 a -> ok near 3>2 reset 1s ; k=-"), "unknown verdict \"near\""),
        (with(limit, &format!("{fine}\n0 undo 2 -> done ; k=-")), "2 is no earlier decision"),
    ];
    for (result, message) in wrong {
        let error = result.unwrap_err();
        assert!(error.starts_with("x.toml: \"first\": "), "{error}");
        assert!(error.contains(message), "{error} is not about {message}");
        assert!(message.starts_with("limit") || error.contains(": step "), "{error} names no step");
    }
}
