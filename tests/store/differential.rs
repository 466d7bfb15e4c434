//! Random sequences of decisions, undos and resets give the same answers and the same states on the engine, the memory
//! store and Redis; a difference is printed as a vector, ready to paste into tests/vectors. Not in here: whether the
//! answers are right (conformance.rs, engine/properties.rs).

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::Index;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use weir_engine::decision::StaleBounds;
use weir_engine::{Anchor, Charge, Decision, Limit, Micros, Mode, Operation, Receipt, Role, Verdict};
use weir_store::Undo;

use crate::support::arbitrary::{DAY_US, START_US, bounds, config, fitting, limits, mode, operation, role, step};
use crate::support::redis::RedisServer;
use crate::support::stores::{NAMES, Stores};
use crate::support::vectors::{Action, Answer, Step, Vector, VectorCharge};

/// The keys of a sequence. Each is charged under two limits that share its state, `<key>0` and `<key>1`.
const KEYS: [&str; 3] = ["x", "y", "z"];
/// The clock is not moved beyond this, however long a wait is told: the year 2059, so that steps do not reach 2^52 us.
const TOLD_US_MAX: Micros = (1 << 51) + (1 << 49);
/// How many sequences one proptest case stands for: each is many decisions on three stores.
const SHARE: u32 = 1;

/// How the clock moves before something is done.
#[derive(Clone, Copy, Debug)]
enum Move {
    By(i64),
    /// To so many microseconds from when the last decision said that hits would fit, or that a state would be empty.
    ToTold(Index, i64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => step().prop_map(Move::By),
        1 => (any::<Index>(), -1..2_i64).prop_map(|(which, us)| Move::ToTold(which, us)),
    ]
}

/// One thing that is done.
#[derive(Clone, Debug)]
enum Doing {
    Decide(Mode, Vec<Part>),
    /// Takes back some of the charges made so far: of each so many fourths of what was not taken back yet, 1 at least.
    Undo(Vec<(Index, u8)>),
    Reset(usize),
}

/// One charge: its key, which of the key's limits, and the rest.
#[derive(Clone, Debug)]
struct Part {
    key: usize,
    second_limit: bool,
    operation: Operation,
    role: Role,
    /// Whether the caller's clock is so far behind that its boundaries of days do not hold the store's.
    behind: bool,
}

fn part() -> impl Strategy<Value = Part> {
    // A key's second limit is rare, so that states live on under the first; then it is met by every kind of charge.
    let second = prop_oneof![6 => Just(false), 1 => Just(true)];
    (0..KEYS.len(), second, operation(), role(), 0..40_u8).prop_map(|(key, second_limit, operation, role, behind)| {
        Part { key, second_limit, operation, role, behind: behind == 0 }
    })
}

fn doing() -> impl Strategy<Value = Doing> {
    let one = (mode(), vec(part(), 1)).prop_map(|(mode, parts)| Doing::Decide(mode, parts));
    let many = (mode(), vec(part(), 2..6)).prop_map(|(mode, parts)| Doing::Decide(mode, parts));
    prop_oneof![
        8 => one,
        8 => many,
        2 => vec((any::<Index>(), prop_oneof![2 => Just(4), 1 => 1..4_u8]), 1..4).prop_map(Doing::Undo),
        1 => (0..KEYS.len()).prop_map(Doing::Reset),
    ]
}

#[test]
fn random_sequences_agree_on_engine_memory_and_redis() {
    let server = RedisServer::start();
    let sequences = Cell::new(0);
    let sequence = (vec(limits(), KEYS.len()), vec((moves(), doing()), 1..40));
    let result = TestRunner::new(config(SHARE)).run(&sequence, |(limits, story)| {
        sequences.set(sequences.get() + 1);
        let mut stores = Stores::new(&server, &format!("{}:", sequences.get()), START_US);
        play(&mut stores, &limits, story)
    });
    match result {
        Ok(()) => {}
        // The vector says it all; the sequence as proptest would print it is pages long.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(error) => panic!("{error}"),
    }
    let keys = Stores::new(&server, "", START_US).check_every_key_expires();
    assert!(keys > 0, "the sequences left no key in redis");
}

fn play(stores: &mut Stores, limits: &[[Limit; 2]], story: Vec<(Move, Doing)>) -> Result<(), TestCaseError> {
    let mut named = BTreeMap::new();
    for (key, pair) in KEYS.iter().zip(limits) {
        for (i, limit) in pair.iter().enumerate() {
            named.insert(format!("{key}{i}"), limit.clone());
        }
    }
    let asked_keys: Vec<(&str, &Limit)> = KEYS.iter().copied().zip(limits.iter().map(|pair| &pair[0])).collect();
    let mut vector = Vector {
        title: String::new(),
        rules: Vec::new(),
        base: START_US,
        limits: named.clone(),
        boundaries: Vec::new(),
        steps: Vec::new(),
    };
    let mut lines = Vec::new();
    // Each receipt as the three gave it, with its key and limit, and where the vector's line has it.
    let mut receipts: Vec<(String, String, [Receipt; 3], String)> = Vec::new();
    // How many hits of each were not taken back yet.
    let mut left: Vec<u32> = Vec::new();

    // The instants that decisions told of last.
    let mut told: Vec<Micros> = Vec::new();

    for (step, doing) in story {
        let now = stores.now();
        stores.set_now(match step {
            Move::By(us) => now.checked_add_signed(us).unwrap(),
            Move::ToTold(_, _) if told.is_empty() => now,
            Move::ToTold(which, us) => which.get(&told).checked_add_signed(us).unwrap().min(TOLD_US_MAX),
        });
        let mut differences = Vec::new();
        let mut line = format!("{} ", vector.time(stores.now()));
        let mut made: Option<[Result<Decision, StaleBounds>; 3]> = None;
        let mut action = Action::Stored(Vec::new());
        match doing {
            Doing::Decide(mode, parts) => {
                let now = stores.now();
                let asked: Vec<VectorCharge> = parts.iter().map(|part| asked(part, limits, now)).collect();
                let mut charges = Vec::new();
                for asked in &asked {
                    let (key, limit) = (asked.key.as_str(), &named[&asked.limit]);
                    let (operation, role) = (asked.operation, asked.role);
                    let bounds = bounds(limit, asked.by.unwrap_or(now));
                    charges.push(Charge { role, bounds, ..Charge::alone(key, limit, operation) });
                }
                let decisions = stores.decide(&charges, mode);
                for (name, decision) in NAMES.iter().zip(&decisions).skip(1) {
                    if *decision != decisions[0] {
                        differences.push(format!("{name} answers\n{decision:?}\nand not\n{:?}", decisions[0]));
                    }
                }
                for (i, asked) in asked.iter().enumerate() {
                    let given = decisions.each_ref().map(|decision| decision.as_ref().ok()?.outcomes[i].receipt);
                    if let [Some(a), Some(b), Some(c)] = given {
                        let place = format!("{}.{}", lines.len() + 1, i + 1);
                        receipts.push((asked.key.clone(), asked.limit.clone(), [a, b, c], place));
                        left.push(a.hits);
                    }
                }
                if let Ok(decision) = &decisions[0] {
                    told.clear();
                    for outcome in &decision.outcomes {
                        told.push(decision.now + outcome.reset_after);
                        if let Verdict::Over { retry_after } = outcome.verdict {
                            told.push(decision.now + retry_after);
                        }
                    }
                }
                made = Some(decisions);
                action = Action::Decide(mode, asked);
            }
            Doing::Undo(_) if receipts.is_empty() => continue,
            Doing::Undo(which) => {
                line.push_str("undo");
                let mut undos = [const { Vec::new() }; 3];
                for (index, fourths) in which {
                    let which = index.index(receipts.len());
                    let (key, limit, given, place) = &receipts[which];
                    let rest = left[which];
                    let hits = u32::try_from(u64::from(rest) * u64::from(fourths) / 4).unwrap().max(1);
                    // The last part is taken back again and again.
                    left[which] = if hits < rest { rest - hits } else { rest };
                    for (undos, receipt) in undos.iter_mut().zip(given) {
                        let (limit, receipt) = (&named[limit], Receipt { hits, ..*receipt });
                        undos.push(Undo { key, limit, receipt, bounds: bounds(limit, stores.now()) });
                    }
                    line = format!("{line} {place}:{hits}");
                }
                line.push_str(" -> done");
                stores.undo(&undos);
            }
            Doing::Reset(key) => {
                stores.reset(&[KEYS[key]]);
                line = format!("{line}reset {} -> ?", KEYS[key]);
            }
        }

        let states = stores.states(&asked_keys);
        for (name, other) in NAMES.iter().zip(&states).skip(1) {
            if *other != states[0] {
                differences.push(format!("{name} stores {other:?} and not {:?}", states[0]));
            }
        }
        let listed: Vec<_> = KEYS.iter().copied().zip(states[0].iter().cloned()).collect();
        vector.steps.push(Step {
            text: String::new(),
            now: stores.now(),
            action,
            answer: Answer::Done,
            states: BTreeMap::new(),
        });
        // Keys that no decision has used yet have no place in a vector.
        let used = vector.keys();
        let listed: Vec<_> = listed.into_iter().filter(|(key, _)| used.contains_key(key)).collect();
        lines.push(match (&made, &vector.steps.last().unwrap().action) {
            (Some([Ok(made), ..]), Action::Decide(mode, asked)) => vector.write_decision(asked, *mode, made, &listed),
            (Some([Err(StaleBounds), ..]), Action::Decide(mode, asked)) => {
                vector.write_stale_bounds(asked, *mode, stores.now(), &listed)
            }
            _ => line + &vector.write_states(&listed),
        });
        if !differences.is_empty() {
            let (head, lines) = (vector.write_head("found by chance"), lines.join("\n"));
            let all = differences.join("\n");
            return Err(TestCaseError::fail(format!("\n{all}\n\n# with the engine's answers\n{head}{lines}\n'''\n")));
        }
    }
    stores.check_expiries();
    Ok(())
}

fn asked(part: &Part, limits: &[[Limit; 2]], now: Micros) -> VectorCharge {
    let key = KEYS[part.key].to_owned();
    let of = &limits[part.key][usize::from(part.second_limit)];
    let limit = format!("{key}{}", u8::from(part.second_limit));
    let behind = part.behind && matches!(of.algorithm().anchor(), Anchor::Calendar(_));
    let by = behind.then_some(now - 3 * DAY_US);
    VectorCharge { limit, key, operation: fitting(of, part.operation), role: part.role, group: 0, by }
}
