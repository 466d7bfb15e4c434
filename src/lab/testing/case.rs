//! One case, step by step.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Runtime;
use weir_engine::descriptor::spell_entries;
use weir_engine::request_limit::RequestLimit;
use weir_engine::words::counted;
use weir_engine::{Entry, Micros};
use weir_limiter::{Answer, DescriptorRequest, HeldCharge, Query, Undecided};
use weir_policies::test_file::{Action, Ask, CALLER, Case, Policies, StateOnSwap, Step, TestFile, Verdict};
use weir_policies::{GivenRows, Problems};
use weir_rls::convert::{self, Bounds, Extras};
use weir_rls::proto::{RateLimitRequest, rate_limit_descriptor};
use weir_rls::request::Request;
use weir_rls::{configured, receipts};
use weir_store::StoreError;
use weir_store::redis::Endpoint;
use weir_text::instant_text;
use weir_text::yaml::Position;

use super::compare::{RequestResult, compare, count, decided_by};
use super::coverage::{Load, Loads};
use super::unmet::Unmet;
use super::world::{RowsNotSet, World};
use super::{Difference, FAILURES_MAX, Failure, name_of};
use crate::message::{message, set_used};
use crate::world::RedisPart;

pub(super) enum CaseEnd {
    Passed,
    Failed {
        failures: Vec<Failure>,
        more: usize,
    },
    /// It could not be run. Contains the reason, with the place in the file of tests.
    Broken(String),
    StoreFailed(StoreError),
}

pub(super) fn run(
    runtime: &Arc<Runtime>,
    redis: Option<&Endpoint>,
    number: u64,
    file: &TestFile,
    case: &Case,
    loads: &mut Loads,
    unmet: &mut Unmet,
) -> CaseEnd {
    let load = match loads.get(&case.policies, &case.settings.policies) {
        Ok(load) => load,
        Err(problems) => return CaseEnd::Broken(not_valid(file, case.position, &case.policies, &problems)),
    };
    let redis = match redis.map(|endpoint| RedisPart::connect(runtime, endpoint, number)).transpose() {
        Ok(redis) => redis,
        Err(error) => return CaseEnd::StoreFailed(error),
    };
    let is_in_redis = redis.is_some();
    let world = World::new(runtime, redis, load, &case.settings);
    let bounds = configured::bounds(&case.settings.limits);
    let extras = configured::extras(&case.settings.response);
    let (receipts, failures) = (HashMap::new(), Vec::new());
    let mut running = Running { file, case, world, bounds, extras, receipts, failures, more: 0, unmet };
    let ended = running.steps(loads);
    // Also after a failure, so nothing remains in Redis.
    let cleaned = if is_in_redis { running.world.clear().map_err(Trouble::Store) } else { Ok(()) };
    match ended.and(cleaned) {
        Err(Trouble::NotValid(reason)) => CaseEnd::Broken(reason),
        Err(Trouble::Store(error)) => CaseEnd::StoreFailed(error),
        Ok(()) if running.failures.is_empty() => CaseEnd::Passed,
        Ok(()) => CaseEnd::Failed { failures: running.failures, more: running.more },
    }
}

enum Trouble {
    /// Its next policies or rows are not valid; the text has the place.
    NotValid(String),
    Store(StoreError),
}

struct Running<'a> {
    file: &'a TestFile,
    case: &'a Case,
    world: World<'a>,
    bounds: Bounds,
    extras: Extras,
    /// The texts of receipts by their names in the case.
    receipts: HashMap<String, String>,
    failures: Vec<Failure>,
    more: usize,
    unmet: &'a mut Unmet,
}

impl Running<'_> {
    fn steps(&mut self, loads: &mut Loads) -> Result<(), Trouble> {
        let case = self.case;
        if let Some(rows) = &case.rows {
            self.world.go_on(case.starts_at()).map_err(Trouble::Store)?;
            self.set_rows(rows)?;
        }
        for step in &case.steps {
            self.world.go_on(step.now).map_err(Trouble::Store)?;
            match &step.action {
                Action::Wait => {}
                Action::Rows(rows) => self.set_rows(rows)?,
                Action::Ask(ask) => self.ask(step, ask)?,
                Action::Swap { policies, state, refused } => {
                    self.swap(step, policies, *refused, loads)?;
                    if *state == StateOnSwap::Forgotten {
                        self.world.forget().map_err(Trouble::Store)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn set_rows(&mut self, rows: &Arc<GivenRows>) -> Result<(), Trouble> {
        self.world.set_rows(rows).map_err(|error| match error {
            RowsNotSet::Store(error) => Trouble::Store(error),
            RowsNotSet::Misfit(reason) => {
                let Position { line, column } = rows.position;
                Trouble::NotValid(format!("{}:{line}:{column}: {reason}", self.file.name))
            }
        })
    }

    fn fail(&mut self, failure: Failure) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        } else {
            self.more += 1;
        }
    }

    fn swap(&mut self, step: &Step, policies: &Policies, refused: bool, loads: &mut Loads) -> Result<(), Trouble> {
        match (loads.get(policies, &self.case.settings.policies), refused) {
            (Ok(load), false) => {
                self.world.swap(load);
                return Ok(());
            }
            (Err(_), true) => return Ok(()),
            (Err(problems), false) => {
                return Err(Trouble::NotValid(not_valid(self.file, step.position, policies, &problems)));
            }
            (Ok(_), true) => {}
        }
        self.fail(Failure {
            position: step.position,
            step: format!("swap to {}, at {}", name_of(policies, self.file), instant_text(step.now)),
            decided_by: None,
            differences: vec![difference(step.position, "swap", "refused", "in force".to_owned())],
            more: 0,
        });
        Ok(())
    }

    /// Sends the requests of a step. Reports the first unexpected answer, and the number of others.
    fn ask(&mut self, step: &Step, ask: &Ask) -> Result<(), Trouble> {
        let mut failure: Option<Failure> = None;
        let (mut passed, mut denied) = (0_u64, 0_u64);
        let mut has_held = false;
        let first = self.request(ask, 1);
        if let Some(name) = &ask.receipt {
            self.receipts.remove(name);
        }
        let mut sent = 0_u64;
        let mut may_be_unmet = ask.expect.holds_without_rule();
        for round in 0..ask.rounds {
            let now = step.now + round * ask.every;
            self.world.go_on(now).map_err(Trouble::Store)?;
            for caller in 1..=ask.callers {
                let own = (ask.callers > 1).then(|| self.request(ask, caller));
                let request = own.as_ref().unwrap_or(&first);
                for _ in 0..ask.times {
                    sent += 1;
                    let mut got = self.send(request)?;
                    if let RequestResult::Answer { answer, .. } = &mut got {
                        has_held |= !answer.holds.is_empty();
                        self.keep(ask, request, now, std::mem::take(&mut answer.holds));
                    }
                    may_be_unmet &= got.meets_no_rule(ask);
                    match got.verdict() {
                        Some(Verdict::Ok) => passed += 1,
                        Some(Verdict::Over) => denied += 1,
                        None => {}
                    }
                    let differences = compare(&ask.expect, &got, step.position);
                    if differences.is_empty() {
                        continue;
                    }
                    match &mut failure {
                        Some(failure) => failure.more += 1,
                        None => {
                            let step_text = described(ask, request, sent, now);
                            let (position, decided_by) = (step.position, decided_by(&got));
                            failure = Some(Failure { position, step: step_text, decided_by, differences, more: 0 });
                        }
                    }
                }
            }
        }
        failure.into_iter().for_each(|failure| self.fail(failure));
        if may_be_unmet && sent > 0 {
            let step_text = described(ask, &first, 1, step.now);
            self.unmet.add(step.position, step_text, &first, &self.world.load);
        }
        let mut differences = count(&ask.expect, passed, denied);
        if ask.receipt.as_ref().is_some_and(|name| !self.receipts.contains_key(name)) {
            differences.push(difference(step.position, "receipt", "a receipt", "no hold".to_owned()));
        }
        if ask.lasts.is_some() && passed > 0 && !has_held {
            differences.push(difference(step.position, "lasts", "a hold or a permit that ends", "none".to_owned()));
        }
        if !differences.is_empty() {
            let text = format!("{} from {}", counted(ask.requests(), "request"), instant_text(step.now));
            self.fail(Failure { position: step.position, step: text, decided_by: None, differences, more: 0 });
        }
        Ok(())
    }

    /// The request of a caller, with the receipt that it settles.
    fn request(&self, ask: &Ask, caller: u32) -> RateLimitRequest {
        let mut message = request(ask, caller);
        let Some(settled) = &ask.settle else { return message };
        if let Some(used) = ask.used {
            set_used(&mut message, used);
        }
        let key = self.case.settings.holds.receipt_key.clone();
        let value = self.receipts.get(settled).map_or(receipts::NONE, |receipt| receipt).to_owned();
        let entry = rate_limit_descriptor::Entry { key, value };
        message.descriptors.iter_mut().for_each(|descriptor| descriptor.entries.push(entry.clone()));
        message
    }

    /// Keeps the receipt of an admitted request, and notes when it settles.
    fn keep(&mut self, ask: &Ask, request: &RateLimitRequest, now: Micros, holds: Vec<HeldCharge>) {
        if let Some(name) = ask.receipt.clone().filter(|_| !holds.is_empty()) {
            self.receipts.insert(name, receipts::text(&holds));
        }
        if let Some(lasts) = ask.lasts {
            self.world.begin(now + lasts, request, ask.used, holds);
        }
    }

    /// Sends one request as if it came from the network.
    fn send(&self, request: &RateLimitRequest) -> Result<RequestResult, Trouble> {
        let mut request = Request::of(request);
        let receipt_key = &self.case.settings.holds.receipt_key;
        let taken = receipts::take(&mut request, receipt_key, |domain| self.world.has_holds(domain));
        let query = match taken.and_then(|settle| Ok(Query { settle, ..convert::query(&request, &self.bounds)? })) {
            Ok(query) => query,
            Err(invalid) => return Ok(RequestResult::Error(invalid.to_string())),
        };
        let (answer, trial): (Answer, _) = match self.world.decide(&query) {
            Ok(decided) => decided,
            Err(Undecided::Store(error)) => return Err(Trouble::Store(error)),
            Err(error @ (Undecided::NoPolicies | Undecided::Unweighed(_))) => {
                return Ok(RequestResult::Error(error.to_string()));
            }
        };
        let rules: Vec<Option<u32>> =
            query.descriptors.iter().map(|descriptor| rule_of(&self.world.load, query.domain, descriptor)).collect();
        for rule in rules.iter().flatten() {
            self.world.load.met(*rule);
        }
        let response = convert::response(&request, answer.clone(), &self.extras);
        Ok(RequestResult::Answer {
            answer: Box::new(answer),
            response: Box::new(response),
            rules,
            load: Rc::clone(&self.world.load),
            trial,
        })
    }
}

fn rule_of(load: &Load, domain: &str, asked: &DescriptorRequest<'_>) -> Option<u32> {
    let domain = load.policies.domain(domain)?;
    let rule = load.policies.weigh(domain, asked.entries, asked.limit).ok()?.met.rule?;
    (asked.limit.is_none() || rule.request_limit != RequestLimit::Replaces).then_some(rule.id)
}

fn request(ask: &Ask, caller: u32) -> RateLimitRequest {
    let mut message = message(&ask.domain, &ask.descriptors, ask.hits);
    let number = caller.to_string();
    for entry in message.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
        entry.key = entry.key.replace(CALLER, &number);
        entry.value = entry.value.replace(CALLER, &number);
    }
    message
}

/// A request in words: its descriptors, what it settles, its number in the step, and its time.
fn described(ask: &Ask, request: &RateLimitRequest, sent: u64, now: Micros) -> String {
    // The text of a receipt is the last entry.
    let receipts = usize::from(ask.settle.is_some());
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().take(descriptor.entries.len() - receipts);
        spell_entries(entries.map(|entry| Entry { key: &entry.key, value: &entry.value }))
    });
    let named = |text: String| if text.is_empty() { "(no entries)".to_owned() } else { text };
    let descriptors: Vec<String> = descriptors.map(named).collect();
    let asked = if descriptors.is_empty() { "no descriptor".to_owned() } else { descriptors.join(" ") };
    let all = ask.requests();
    let which = if all > 1 { format!(", request {sent} of {all}") } else { String::new() };
    let settle = ask.settle.as_ref().map(|settled| format!(", settle {settled}")).unwrap_or_default();
    format!("ask {asked} in {:?}{settle}{which}, at {}", request.domain, instant_text(now))
}

pub(super) fn difference(position: Position, what: &str, expected: &str, got: String) -> Difference {
    Difference { position, what: what.to_owned(), expected: expected.to_owned(), got }
}

/// Why a case with invalid policies cannot be run, with the place that names them.
fn not_valid(file: &TestFile, at: Position, policies: &Policies, problems: &Problems) -> String {
    let (name, Position { line, column }) = (name_of(policies, file), at);
    format!("{}:{line}:{column}: the policies at {name} are not valid:\n{problems}", file.name)
}
