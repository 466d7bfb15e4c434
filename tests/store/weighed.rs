//! Rules that weigh hits by an entry (`weigh`), on both stores.

use weir_engine::overrides::Numbers;
use weir_engine::weigh::Unweighable;
use weir_engine::{Entry, Mode, Operation, RowContent, Unit, Window};
use weir_limiter::{Answer, DescriptorRequest, HeldCharge, Query, Settle, Undecided, Unweighed};

use crate::support::worlds::{World, on_both};

/// A descriptor as `k=v` texts, its operation, and the limit of the request.
type Asked<'a> = (&'a [&'a str], Operation, Option<(u32, Window)>);

const WEIGH: &str = "weigh: {entry: model, by: {large: 30, small: 1}, default: 10}";

fn policy(keys: &str, limits: &[&str]) -> String {
    let limits: String = limits.iter().map(|limit| format!("  - {{{limit}}}\n")).collect();
    format!("domain: shop\ndescriptors:\n- key: user\n  {WEIGH}\n  {keys}\n  rate_limits:\n{limits}")
}

fn entry(text: &str) -> Entry<'_> {
    let (key, value) = text.split_once('=').expect("k=v");
    Entry { key, value }
}

fn query<R>(asked: &[Asked<'_>], settled: Option<&[HeldCharge]>, with: impl FnOnce(Query<'_>) -> R) -> R {
    let entries: Vec<Vec<Entry<'_>>> =
        asked.iter().map(|(texts, ..)| texts.iter().map(|text| entry(text)).collect()).collect();
    let descriptors = entries.iter().zip(asked).map(|(entries, &(_, operation, limit))| DescriptorRequest {
        entries,
        operation,
        limit,
    });
    let settle = settled.map(|holds| Box::new(Settle { descriptors: u64::MAX, holds: holds.to_vec() }));
    with(Query { domain: "shop", caller: None, descriptors: descriptors.collect(), settle })
}

fn decided(world: &World<'_>, asked: &[Asked<'_>], settled: Option<&[HeldCharge]>) -> Result<Answer, Undecided> {
    query(asked, settled, |query| world.decide(&query))
}

fn ask(world: &World<'_>, texts: &[&str], operation: Operation) -> Answer {
    decided(world, &[(texts, operation, None)], None).expect("the store answers")
}

/// What a limit has charged, after an answer.
fn used(answer: &Answer, limit: usize) -> u64 {
    answer.limits[limit].requests - answer.limits[limit].remaining
}

/// [mt-12] [mt-13]
#[test]
fn the_value_of_the_entry_multiplies_hits_of_all_limits_wherever_it_stands() {
    let limits = ["rate: 1000/hour", "rate: 2000/day, algorithm: gcra", "rate: 500/day, counts: requests"];
    on_both(|worlds| {
        for mode in [Mode::Atomic, Mode::Independent] {
            let world = worlds.with(&policy("detailed_metric: true", &limits), mode);
            let mut charged = 0;
            for (texts, factor) in [
                (&["user=ann", "model=large"][..], 30),
                (&["model=large", "user=ann"], 30),
                (&["user=ann", "model=small"], 1),
                (&["user=ann", "model=other"], 10),
                (&["model=", "user=ann"], 10),
                (&["user=ann"], 10),
            ] {
                let answer = ask(&world, texts, Operation::Consume(2));
                charged += 2 * factor;
                assert_eq!((used(&answer, 0), used(&answer, 1)), (charged, charged), "{texts:?}");
                let detail = answer.statuses[0].detail.expect("a limit");
                assert_eq!(detail.factor.map(u64::from), Some(factor), "{texts:?}");
            }
            let peek = ask(&world, &["user=ann", "model=large"], Operation::Peek);
            assert_eq!((used(&peek, 0), used(&peek, 2)), (charged, 6), "a peek, and requests");
            let refund = ask(&world, &["user=ann", "model=large"], Operation::Refund(3));
            assert_eq!((used(&refund, 0), used(&refund, 1)), (charged - 90, charged - 90));
            assert!(ask(&world, &["user=ann", "model=large"], Operation::Consume(34)).denied, "1020 do not fit");
            assert_eq!(used(&ask(&world, &["user=bob", "model=large"], Operation::Consume(1)), 0), 30);
        }
    });
}

/// [mt-12] [hd-5] [hd-9] [hd-10]
#[test]
fn holds_settles_and_releases_are_weighed() {
    on_both(|worlds| {
        for (hold, least) in [("hold: true", 0), ("hold: {at_least: 50}", 50)] {
            let world = worlds.with(&policy("", &[&format!("rate: 1000/hour, {hold}")]), Mode::Atomic);
            let large = ["user=ann", "model=large"];
            let left = || ask(&world, &["user=ann"], Operation::Peek).statuses[0].remaining;
            let opened = || ask(&world, &large, Operation::Consume(7)).holds;
            let holds = opened();
            assert_eq!((holds[0].receipt.hits, left()), (210, 790));
            decided(&world, &[(&large, Operation::Consume(2), None)], Some(&holds)).expect("the store answers");
            assert_eq!(left(), 940, "2 of 7 used");
            // The model of the settle counts: a request can end with another one.
            let holds = opened();
            let small = ["model=small", "user=ann"];
            decided(&world, &[(&small, Operation::Consume(60), None)], Some(&holds)).expect("the store answers");
            assert_eq!(left(), 880, "60 of the small one");
            let holds = opened();
            decided(&world, &[(&large, Operation::Peek, None)], Some(&holds)).expect("the store answers");
            assert_eq!(left(), 880 - least, "nothing used");
            let holds = opened();
            query(&[(&large, Operation::Consume(7), None)], None, |query| world.release_query(query, holds));
            assert_eq!(left(), 880 - least, "the caller is gone");
            let ([opened, settled, reported, lost], _) = world.holds.get();
            assert_eq!((opened, settled, reported, lost), (4, 4, 0, 0));
        }
    });
}

/// [mt-12] [dc-5] [cc-3]
#[test]
fn reports_are_weighed_and_permits_are_one() {
    on_both(|worlds| {
        let limits = ["rate: 100/hour, post_paid: true", "algorithm: concurrency, requests_per_unit: 3, window: 1m"];
        for (limit, expected) in limits.iter().zip([60, 1]) {
            let world = worlds.with(&policy("", &[limit]), Mode::Atomic);
            ask(&world, &["user=ann", "model=large"], Operation::Consume(2));
            assert_eq!(used(&ask(&world, &["user=ann"], Operation::Peek), 0), expected, "{limit}");
        }
    });
}

/// [mt-12] [te-1]
#[test]
fn the_limits_whose_term_has_come_are_charged_weighed_hits() {
    on_both(|worlds| {
        // The clock begins at midnight of the 3rd of January 2041.
        let limits = [
            "rate: 100/hour, until: '2041-01-03T00:00:01Z', name: first",
            "rate: 100/hour, from: '2041-01-03T00:00:01Z', name: second",
            "rate: 1000/day",
        ];
        let world = worlds.with(&policy("", &limits), Mode::Atomic);
        let large = || {
            let answer = ask(&world, &["user=ann", "model=large"], Operation::Consume(3));
            (answer.denied, answer.limits[0].name.to_string(), used(&answer, 0), used(&answer, 1))
        };
        assert_eq!(large(), (false, "first".to_owned(), 90, 90));
        assert_eq!(large(), (true, "first".to_owned(), 90, 90));
        world.step(1_000_000);
        assert_eq!(large(), (false, "second".to_owned(), 90, 180));
    });
}

/// [mt-15]
#[test]
fn a_request_that_cannot_be_weighed_charges_nothing() {
    let twice = Unweighable::Twice("model".into());
    let many = |hits| Unweighable::TooMany { hits, factor: 30 };
    on_both(|worlds| {
        let world = worlds.with(&policy("", &["rate: 4294967295/hour"]), Mode::Atomic);
        let first: Asked<'_> = (&["user=ann"], Operation::Consume(1), None);
        let fits = u32::MAX / 30;
        for (texts, operation, why) in [
            (&["model=large", "user=ann", "model=large"][..], Operation::Consume(1), twice.clone()),
            (&["model=large", "model=small", "user=ann"], Operation::Peek, twice.clone()),
            (&["user=ann", "model=large"], Operation::Consume(fits + 1), many(fits + 1)),
            (&["user=ann", "model=large"], Operation::Refund(u32::MAX), many(u32::MAX)),
        ] {
            let error = decided(&world, &[first, (texts, operation, None)], None).expect_err("it is refused");
            assert_eq!(error, Undecided::Unweighed(Unweighed { descriptor: 1, why }), "{texts:?}");
        }
        let answer = ask(&world, &["user=ann", "model=large"], Operation::Consume(fits));
        assert_eq!(used(&answer, 0), u64::from(fits) * 30, "nothing was charged before");
    });
}

/// [mt-13]
#[test]
fn a_descriptor_is_matched_without_the_entry_only_if_that_leads_to_a_rule_that_weighs_by_it() {
    let text = "domain: shop\ndescriptors:\n\
        - {key: user, weigh: {entry: model, by: {large: 3}, default: 1}, rate_limit: {rate: 100/h, name: user}}\n\
        - {key: model, rate_limit: {rate: 100/h, name: model}}\n\
        - key: team\n  rate_limit: {rate: 100/h, name: team}\n  descriptors:\n\
        \x20 - {key: model, rate_limit: {rate: 100/h, name: team-model}}\n\
        \x20 - {key: path, weigh: {entry: size, by: {big: 5}, default: 1}, rate_limit: {rate: 100/h, name: path}}\n\
        - key: size\n  descriptors:\n\
        \x20 - {key: user, weigh: {entry: model, by: {large: 7}, default: 1}, rate_limit: {rate: 100/h, name: sized}}\n\
        - key: region\n  descriptors:\n\
        \x20 - {key: model, weigh: {entry: size, by: {big: 2}, default: 1}, rate_limit: {rate: 100/h, name: r-model}}\n\
        \x20 - {key: size, weigh: {entry: model, by: {large: 4}, default: 1}, rate_limit: {rate: 100/h, name: r-size}}\n";
    on_both(|worlds| {
        for (texts, expected) in [
            (&["user=ann", "model=large"][..], Some(("user", 3))),
            (&["model=large"], Some(("model", 1))),
            (&["team=red", "model=large"], Some(("team-model", 1))),
            (&["team=red", "size=big", "path=/"], Some(("path", 5))),
            (&["team=red", "size=big"], None),
            (&["user=ann", "size=big"], None),
            // The size leads to a rule of its own, and the model only weighs.
            (&["size=big", "model=large", "user=ann"], Some(("sized", 7))),
            // Of two ways, that of the first entry.
            (&["region=eu", "model=large", "size=big"], Some(("r-size", 4))),
            (&["region=eu", "size=big", "model=large"], Some(("r-model", 2))),
        ] {
            let world = worlds.with(text, Mode::Atomic);
            let answer = ask(&world, texts, Operation::Consume(1));
            let got = answer.limits.first().map(|limit| (&*limit.name, limit.requests - limit.remaining));
            assert_eq!(got, expected, "{texts:?}");
        }
    });
}

/// [mt-13] [ov-1] [rw-1]
#[test]
fn overrides_and_rows_are_those_of_the_descriptor_without_the_entry() {
    on_both(|worlds| {
        let text = policy("rows: {default: free}", &["rate: 100/hour, plans: {gold: 900/hour}"]);
        let world = worlds.with(&text, Mode::Atomic);
        let shown = || {
            let answer = ask(&world, &["user=ann", "model=large"], Operation::Consume(1));
            (answer.limits[0].requests, used(&answer, 0))
        };
        assert_eq!(shown(), (100, 30));
        world.set_row("user", "ann", RowContent::Plan("gold".into()));
        assert_eq!(shown(), (900, 60));
        world.set_override(&[Numbers { name: None, requests: 200, window: Unit::Hour.window(), burst: None }]);
        assert_eq!(shown(), (200, 90));
    });
}

/// [mt-6] [mt-10] [mt-13]
#[test]
fn a_limit_of_the_request_is_weighed_only_if_the_rule_stays() {
    on_both(|worlds| {
        let limit = Some((500, Unit::Hour.window()));
        for (key, name, charged) in [("numbers", "r", 60), ("ignored", "r", 60), ("replaces", "(request)", 2)] {
            let world =
                worlds.with(&policy(&format!("request_limit: {key}"), &["rate: 100/hour, name: r"]), Mode::Atomic);
            let texts = ["user=ann", "model=large"];
            let answer = decided(&world, &[(&texts, Operation::Consume(2), limit)], None).expect("the store answers");
            assert_eq!((&*answer.limits[0].name, used(&answer, 0)), (name, charged), "{key}");
            let other = ask(&world, &["user=ann"], Operation::Peek);
            assert_eq!(used(&other, 0), if charged == 2 { 0 } else { 60 }, "{key}: the state of the rule");
        }
    });
}

/// [mt-6] [mt-13] [mt-15]
#[test]
fn two_entries_of_the_weighing_key_are_not_refused_if_the_limit_of_the_request_replaces_the_rule() {
    on_both(|worlds| {
        let limit = Some((5, Unit::Hour.window()));
        let texts = ["user=ann", "model=large", "model=small"];
        let world = worlds.with(&policy("", &["rate: 100/day"]), Mode::Atomic);
        for left in [4, 3] {
            let answer = decided(&world, &[(&texts, Operation::Consume(1), limit)], None).expect("the store answers");
            assert_eq!((&*answer.limits[0].name, answer.statuses[0].remaining), ("(request)", left));
        }
        for key in ["numbers", "ignored"] {
            let world = worlds.with(&policy(&format!("request_limit: {key}"), &["rate: 100/day"]), Mode::Atomic);
            decided(&world, &[(&texts, Operation::Consume(1), limit)], None).expect_err("the rule weighs");
        }
    });
}
