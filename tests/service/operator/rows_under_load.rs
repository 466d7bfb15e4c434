//! Rows that change a hundred times a second while three replicas decide, judged by what callers and the operator saw: when each request
//! began and ended, and which number its answer had. The judge uses no code of weir.
//!
//! `WEIR_ROWS_SECONDS` sets how long the load lasts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{Client, admits, look, request};
use crate::support::served::metric;
use crate::support::wait::pace;

const POLICY: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 1/day, anchor: first_hit}
";
const TENANTS: [&str; 5] = ["a", "b", "c", "d", "e"];
const REPLICAS: usize = 3;
/// Each tenant's row changes 20 times a second, all together 100 times.
const CHANGE_EVERY: Duration = Duration::from_millis(50);
const SECONDS: u64 = 2;
/// More than any run admits.
const AMPLE: u32 = 1_000_000;

/// A confirmed change of a tenant's row.
#[derive(Clone, Copy, Debug)]
struct Change {
    number: u32,
    started: Instant,
    confirmed: Instant,
}

/// An answered request of a tenant.
#[derive(Clone, Copy, Debug)]
struct Answered {
    tenant: usize,
    started: Instant,
    ended: Instant,
    /// The number of the limit in the answer.
    number: u32,
    admitted: bool,
}

/// The number that a tenant gets at its turn. Each is another one. Three of four let a few more hits pass than those before, and one is far
/// below what is used.
fn number_at(turn: u32) -> u32 {
    if turn % 4 == 3 { 3 * (turn / 2) + 2 } else { 3 * turn + 10 }
}

/// Compares the answers to a tenant with the changes of its row, which came one after the other.
///
/// # Errors
/// The first answer that is wrong, and why.
fn judge(changes: &[Change], answers: &[Answered]) -> Result<(), String> {
    let mut begun: Vec<Instant> = answers.iter().filter(|one| one.admitted).map(|one| one.started).collect();
    let mut over: Vec<Instant> = answers.iter().filter(|one| one.admitted).map(|one| one.ended).collect();
    begun.sort_unstable();
    over.sort_unstable();
    for answer in answers {
        let confirmed = changes.partition_point(|change| change.confirmed <= answer.started);
        let first = confirmed.checked_sub(1).ok_or("an answer before the first row")?;
        let mut possible =
            changes[first..].iter().enumerate().take_while(|(at, change)| *at == 0 || change.started <= answer.ended);
        if !possible.any(|(_, change)| change.number == answer.number) {
            return Err(format!(
                "{answer:?} has no number that was in force: {:?} was confirmed before",
                changes[first]
            ));
        }
        let number = answer.number as usize;
        // Of these hits it is certain that they came before it.
        let certain = over.partition_point(|ended| *ended < answer.started);
        if answer.admitted && certain >= number {
            return Err(format!("{answer:?} is one more than its number: {certain} hits came before it"));
        }
        // No others can have come before it.
        let most = begun.partition_point(|started| *started <= answer.ended);
        if !answer.admitted && most < number {
            return Err(format!("{answer:?} is denied, but at most {most} hits came before it"));
        }
    }
    Ok(())
}

fn set(weir: &Weir, tenant: &str, number: u32) -> Change {
    let body = format!(
        r#"{{"domain":"shop","descriptor":"tenant={tenant}","limits":[{{"requests":{number},"window_us":86400000000}}]}}"#
    );
    let started = Instant::now();
    let answer = http::request(weir.admin, "PUT", "/rows", &[], &body).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    Change { number, started, confirmed: Instant::now() }
}

#[test]
fn three_replicas_use_no_number_that_was_replaced_and_admit_no_more_than_the_numbers_in_force() {
    let seconds = std::env::var("WEIR_ROWS_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let redis = RedisServer::start();
    let directory = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = format!("redis.url={}", redis.url());
    let settings = ["--set", "store=redis", "--set", &url, "--set", "redis.timeout=10s"];
    let replicas = [(); REPLICAS].map(|()| Weir::start(&directory.path(), &settings));
    let firsts = TENANTS.map(|tenant| set(&replicas[0], tenant, number_at(0)));
    let turns = u32::try_from(u128::from(seconds) * 1_000 / CHANGE_EVERY.as_millis()).expect("a short test");
    let (begin, is_over) = (Instant::now(), AtomicBool::new(false));
    let (changes, answers) = thread::scope(|scope| {
        let (replicas, is_over) = (&replicas, &is_over);
        let writers = firsts.iter().zip(TENANTS).map(|(first, tenant)| {
            scope.spawn(move || {
                let mut changes = vec![*first];
                for turn in 1..=turns {
                    pace(begin + CHANGE_EVERY * turn);
                    changes.push(set(&replicas[turn as usize % REPLICAS], tenant, number_at(turn)));
                }
                changes
            })
        });
        let writers: Vec<_> = writers.collect();
        let callers = replicas.iter().map(|replica| {
            scope.spawn(move || {
                let (mut client, mut answers) = (Client::connect(replica.grpc), Vec::new());
                for tenant in (0..TENANTS.len()).cycle() {
                    if is_over.load(Relaxed) {
                        break;
                    }
                    let started = Instant::now();
                    let answer = client.ask(request("shop", &[("tenant", TENANTS[tenant])])).expect("an answer");
                    let ended = Instant::now();
                    let number = answer.statuses[0].current_limit.as_ref().expect("a limit").requests_per_unit;
                    answers.push(Answered { tenant, started, ended, number, admitted: admits(&answer) });
                }
                answers
            })
        });
        let callers: Vec<_> = callers.collect();
        let changes: Vec<Vec<Change>> = writers.into_iter().map(|writer| writer.join().expect("it ends")).collect();
        is_over.store(true, Relaxed);
        let answers = callers.into_iter().flat_map(|caller| caller.join().expect("it ends"));
        (changes, answers.collect::<Vec<Answered>>())
    });
    let took = begin.elapsed();
    let again: u64 = replicas
        .iter()
        .map(|weir| metric(weir.http, "weir_rows_total{event=\"asked_again\"}").expect("a number"))
        .sum();
    let admitted = answers.iter().filter(|answer| answer.admitted).count();
    println!(
        "{} changes and {} decisions in {took:?}, {admitted} admitted, {again} decided again",
        changes.iter().map(Vec::len).sum::<usize>() - TENANTS.len(),
        answers.len(),
    );
    let mut client = Client::connect(replicas[0].grpc);
    for (tenant, (name, changes)) in TENANTS.iter().zip(&changes).enumerate() {
        let own: Vec<Answered> = answers.iter().filter(|answer| answer.tenant == tenant).copied().collect();
        judge(changes, &own).unwrap_or_else(|problem| panic!("tenant {name}: {problem}"));
        // Each admitted request was charged once, and nothing else was.
        set(&replicas[1], name, AMPLE);
        let left = client.ask(look("shop", &[("tenant", name)])).expect("an answer").statuses[0].limit_remaining;
        let admitted = own.iter().filter(|answer| answer.admitted).count();
        assert_eq!(left as usize, AMPLE as usize - admitted, "tenant {name}");
        assert!(admitted > 0 && admitted < own.len(), "tenant {name}: {admitted} of {} admitted", own.len());
    }
    assert!(again > u64::from(turns), "{again} decisions made again at {turns} changes of each tenant");
}

#[test]
fn the_judge_finds_an_old_number_one_hit_too_many_and_a_wrong_denial() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let change = |number, started, confirmed| Change { number, started: at(started), confirmed: at(confirmed) };
    let answer = |number, started, ended, admitted| Answered {
        tenant: 0,
        started: at(started),
        ended: at(ended),
        number,
        admitted,
    };
    let changes = [change(2, 0, 1), change(5, 10, 20)];
    let good = [answer(2, 2, 3, true), answer(2, 15, 16, true), answer(5, 15, 17, true), answer(2, 18, 19, false)];
    assert_eq!(judge(&changes, &good), Ok(()));
    let wrong = |one: Answered, reason: &str| {
        let problem = judge(&changes, &[&good[..], &[one]].concat()).unwrap_err();
        assert!(problem.contains(reason), "{problem}");
    };
    wrong(answer(2, 20, 21, false), "no number that was in force");
    wrong(answer(5, 5, 9, false), "no number that was in force");
    wrong(answer(2, 18, 30, true), "one more than its number");
    wrong(answer(5, 30, 31, false), "is denied, but at most 3 hits came before it");
}
