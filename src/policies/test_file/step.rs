//! The steps of a case, with their times.

use std::collections::BTreeSet;
use std::path::Path;

use weir_engine::Micros;
use weir_text::yaml::{NodeId, Value};
use weir_text::{INSTANT_US_MAX, nearest, quoted};

use super::keys::{STATE, step};
use super::values::{NONE, micros};
use super::{Action, Ask, Expect, ROWS_MAX, StateOnSwap, Step};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::{NAME_BYTES_MAX, Position};

/// The placeholder for the number of the caller in keys and values.
pub const CALLER: &str = "<n>";
/// The kinds of steps. A step has exactly one of these keys.
pub(crate) const ACTIONS: [&str; 5] =
    [step::ASK.name, step::WAIT.name, step::AT.name, step::SWAP.name, step::ROWS.name];

/// What the steps of a case have reached so far.
pub(super) struct Reached {
    pub(super) now: Micros,
    pub(super) asks: u64,
    /// The names of receipts.
    pub(super) receipts: BTreeSet<String>,
}

impl FileReader<'_> {
    pub(super) fn step(
        &mut self,
        id: NodeId,
        directory: &Path,
        domain: Option<&str>,
        reached: &mut Reached,
    ) -> Result<Step, Reported> {
        let fields = self.fields(id, &step::KIND)?;
        let named: Vec<&'static str> = ACTIONS.into_iter().filter(|key| fields.get(*key).is_some()).collect();
        let action = match named[..] {
            [action] => action,
            // A misspelled key was reported before.
            [] if ACTIONS.iter().any(|key| !fields.lacks(*key)) => return Err(Reported),
            [] => return Err(self.report(fields.at, format!("a step has one of {}", ACTIONS.join(", ")))),
            _ => return Err(self.report(fields.at, format!("{} are steps of their own", named.join(" and ")))),
        };
        self.refuse_others(&fields, action)?;
        let now = reached.now;
        let action = match action {
            _ if action == step::ASK.name => Action::Ask(Box::new(self.ask(&fields, domain, reached)?)),
            _ if action == step::SWAP.name => self.swap(&fields, directory)?,
            _ if action == step::ROWS.name => match self.given_rows(&fields, directory, ROWS_MAX)? {
                Some(rows) => Action::Rows(rows),
                None => return Err(self.report_value(&fields, step::ROWS, "rows without a path and lines".to_owned())),
            },
            wait_or_at => {
                self.advance(&fields, wait_or_at, reached)?;
                Action::Wait
            }
        };
        Ok(Step { position: fields.at, now, action })
    }

    /// Reports keys that belong to other kinds of steps.
    fn refuse_others(&mut self, fields: &Fields, action: &str) -> Result<(), Reported> {
        let (is_ask, is_swap) = (action == step::ASK.name, action == step::SWAP.name);
        let is_wrong = |key: &&str| match *key {
            key if ACTIONS.contains(&key) => false,
            key if key == step::EXPECT.name => !is_ask && !is_swap,
            key if key == step::STATE.name => !is_swap,
            _ => !is_ask,
        };
        let mut result = Ok(());
        for key in step::KIND.names().filter(is_wrong) {
            if let Some(at) = fields.key_at(key) {
                result = Err(self.report(at, format!("{key} has no effect in a step with {action}")));
            }
        }
        result
    }

    fn ask(&mut self, fields: &Fields, domain: Option<&str>, reached: &mut Reached) -> Result<Ask, Reported> {
        let asked = self.asked(fields);
        let own_domain = self.default_domain(fields);
        let callers = self.read(fields, step::CALLERS);
        let times = self.read(fields, step::TIMES);
        let rounds = self.rounds(fields);
        let lasts = self.read(fields, step::LASTS);
        let used = self.used(fields);
        let settle = self.settle(fields, &reached.receipts);
        let receipt = self.receipt(fields, &mut reached.receipts);
        let (descriptors, hits) = asked?;
        let expect = self.expect(fields, descriptors.len());
        let Some(domain) = own_domain.or_else(|| domain.map(str::to_owned)) else {
            let message = "no domain: give it here, in the case or at the top of the file";
            return Err(self.report(fields.at, message));
        };
        let (rounds, every) = rounds?;
        let (callers, times, lasts, used, expect) = (callers?, times?, lasts?, used?, expect?);
        let (receipt, settle) = (receipt?, settle?);
        let ask =
            Ask { domain, descriptors, hits, callers, times, rounds, every, lasts, used, receipt, settle, expect };
        reached.asks = reached.asks.saturating_add(ask.requests());
        self.move_to(fields.at, reached, reached.now.saturating_add(every.saturating_mul(rounds)))?;
        Ok(ask)
    }

    /// The hits that a request has used when it ends.
    fn used(&mut self, fields: &Fields) -> Read<u32> {
        let never_settles = fields.lacks(step::LASTS) && fields.lacks(step::SETTLE);
        if let Some(at) = fields.key_at(step::USED).filter(|_| never_settles) {
            return Err(self.report(at, "used needs lasts: when the request ends, and settles; or settle"));
        }
        self.read(fields, step::USED)
    }

    /// The name of the receipt that a request settles.
    fn settle(&mut self, fields: &Fields, receipts: &BTreeSet<String>) -> Read<String> {
        let Some(name) = self.read(fields, step::SETTLE)? else { return Ok(None) };
        if let Some(at) = fields.key_at(step::LASTS) {
            return Err(self.report(at, "lasts beside settle: a request that settles holds nothing"));
        }
        if name == NONE || receipts.contains(&name) {
            return Ok(Some(name));
        }
        let meant = nearest(&name, receipts.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |meant| format!(", did you mean {meant:?}?"));
        let message = format!("no step before has the receipt {}{meant}", quoted(&name));
        Err(self.report_value(fields, step::SETTLE, message))
    }

    /// The name for the receipt of a request. A step after it can settle it.
    fn receipt(&mut self, fields: &Fields, receipts: &mut BTreeSet<String>) -> Read<String> {
        let name = self.read(fields, step::RECEIPT)?;
        if name.as_deref() == Some(NONE) {
            return Err(self.report_value(fields, step::RECEIPT, "none is the word for no receipt".to_owned()));
        }
        receipts.extend(name.clone());
        Ok(name)
    }

    /// A number of repetitions, from 1.
    pub(super) fn count(&mut self, fields: &Fields, key: &'static str, most: u32) -> Result<u32, Reported> {
        match self.number(fields, key, 0)? {
            Some(number) if number == 0 || number > most => {
                Err(self.report_value(fields, key, format!("{key} must be from 1 to {most}, not {number}")))
            }
            number => Ok(number.unwrap_or(1)),
        }
    }

    /// The number of rounds from `every` and `for`, and the interval between them.
    fn rounds(&mut self, fields: &Fields) -> Result<(u64, Micros), Reported> {
        let every = self.read(fields, step::EVERY)?;
        let length = self.read(fields, step::FOR)?;
        match (every, length) {
            (None, None) => Ok((1, 0)),
            (Some(every), Some(length)) if every == 0 || every > length => Err(self.report_value(
                fields,
                "every",
                "every must be longer than 0, and at most as long as for".to_owned(),
            )),
            // Every round begins before the end of `for`.
            (Some(every), Some(length)) if length.is_multiple_of(every) => Ok((length / every, every)),
            (Some(_), Some(_)) => {
                Err(self.report_value(fields, step::FOR, "for must be a whole number of times every".to_owned()))
            }
            _ => Err(self.report(fields.at, "every and for belong together: every: 1s, for: 10m")),
        }
    }

    fn advance(&mut self, fields: &Fields, key: &'static str, reached: &mut Reached) -> Result<(), Reported> {
        let at = fields.key_at(key).unwrap_or(fields.at);
        let to = if key == step::WAIT.name {
            self.length(fields, key)?.map(|length| reached.now.saturating_add(length))
        } else {
            self.instant(fields, key)?
        };
        let Some(to) = to else { return Err(self.report(at, format!("{key} has no value"))) };
        if to < reached.now {
            let message = "this instant is past: the clock of a case only goes on".to_owned();
            return Err(self.report_value(fields, key, message));
        }
        self.move_to(at, reached, to)
    }

    fn move_to(&mut self, at: Position, reached: &mut Reached, to: Micros) -> Result<(), Reported> {
        if to > INSTANT_US_MAX {
            return Err(self.report(at, "the case goes on past the year 2100"));
        }
        reached.now = to;
        Ok(())
    }

    fn swap(&mut self, fields: &Fields, directory: &Path) -> Result<Action, Reported> {
        let Some(policies) = self.policies_of(fields, step::SWAP.name, directory)? else {
            return Err(self.report(fields.at, "swap needs a path, or texts by names of files"));
        };
        let state = match self.read(fields, step::STATE)? {
            Some(word) if word == STATE[1] => StateOnSwap::Forgotten,
            _ => StateOnSwap::Kept,
        };
        let refused = match fields.get(step::EXPECT) {
            None => false,
            Some((_, id)) => match &self.document.node(id).value {
                Value::Scalar { text, .. } if &**text == "refused" => true,
                _ => {
                    let message = "expect of a swap can be refused, and nothing else".to_owned();
                    return Err(self.report_value(fields, step::EXPECT, message));
                }
            },
        };
        Ok(Action::Swap { policies, state, refused })
    }

    /// The value of `expect`: a word or a mapping.
    fn expect(&mut self, fields: &Fields, descriptors: usize) -> Result<Expect, Reported> {
        match fields.get(step::EXPECT) {
            None => Ok(Expect::default()),
            Some((at, id)) => self.expectation(self.value_position(at, id), id, descriptors),
        }
    }

    pub(crate) fn length(&mut self, fields: &Fields, key: &'static str) -> Read<Micros> {
        self.parsed(fields, key, NAME_BYTES_MAX, micros)
    }
}
