//! The steps of a case, with their times.

use std::path::Path;

use weir_engine::Micros;
use weir_text::INSTANT_US_MAX;
use weir_text::yaml::{NodeId, Value};

use super::keys::{STATE, step};
use super::values::micros;
use super::{Action, Ask, Expect, ROWS_MAX, StateOnSwap, Step};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::{NAME_BYTES_MAX, Position};

/// The placeholder for the number of the caller in keys and values.
pub const CALLER: &str = "<n>";
/// The kinds of steps. A step has exactly one of these keys.
pub(crate) const ACTIONS: [&str; 5] =
    [step::ASK.name, step::WAIT.name, step::AT.name, step::SWAP.name, step::ROWS.name];

pub(super) struct Clock {
    pub(super) now: Micros,
    /// The requests so far.
    pub(super) asks: u64,
}

impl FileReader<'_> {
    pub(super) fn step(
        &mut self,
        id: NodeId,
        directory: &Path,
        domain: Option<&str>,
        clock: &mut Clock,
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
        let now = clock.now;
        let action = match action {
            _ if action == step::ASK.name => Action::Ask(Box::new(self.ask(&fields, domain, clock)?)),
            _ if action == step::SWAP.name => self.swap(&fields, directory)?,
            _ if action == step::ROWS.name => match self.given_rows(&fields, directory, ROWS_MAX)? {
                Some(rows) => Action::Rows(rows),
                None => return Err(self.report_value(&fields, step::ROWS, "rows without a path and lines".to_owned())),
            },
            wait_or_at => {
                self.advance(&fields, wait_or_at, clock)?;
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

    fn ask(&mut self, fields: &Fields, domain: Option<&str>, clock: &mut Clock) -> Result<Ask, Reported> {
        let asked = self.asked(fields);
        let own_domain = self.default_domain(fields);
        let callers = self.read(fields, step::CALLERS);
        let times = self.read(fields, step::TIMES);
        let rounds = self.rounds(fields);
        let lasts = self.read(fields, step::LASTS);
        let used = self.used(fields);
        let (descriptors, hits) = asked?;
        let expect = self.expect(fields, descriptors.len());
        let Some(domain) = own_domain.or_else(|| domain.map(str::to_owned)) else {
            let message = "no domain: give it here, in the case or at the top of the file";
            return Err(self.report(fields.at, message));
        };
        let (rounds, every) = rounds?;
        let (callers, times, lasts, used, expect) = (callers?, times?, lasts?, used?, expect?);
        let ask = Ask { domain, descriptors, hits, callers, times, rounds, every, lasts, used, expect };
        clock.asks = clock.asks.saturating_add(ask.requests());
        self.move_to(fields.at, clock, clock.now.saturating_add(every.saturating_mul(rounds)))?;
        Ok(ask)
    }

    /// The hits that a request has used when it ends.
    fn used(&mut self, fields: &Fields) -> Read<u32> {
        if let Some(at) = fields.key_at(step::USED).filter(|_| fields.lacks(step::LASTS)) {
            return Err(self.report(at, "used needs lasts: when the request ends, and settles"));
        }
        self.read(fields, step::USED)
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

    fn advance(&mut self, fields: &Fields, key: &'static str, clock: &mut Clock) -> Result<(), Reported> {
        let at = fields.key_at(key).unwrap_or(fields.at);
        let to = if key == step::WAIT.name {
            self.length(fields, key)?.map(|length| clock.now.saturating_add(length))
        } else {
            self.instant(fields, key)?
        };
        let Some(to) = to else { return Err(self.report(at, format!("{key} has no value"))) };
        if to < clock.now {
            let message = "this instant is past: the clock of a case only goes on".to_owned();
            return Err(self.report_value(fields, key, message));
        }
        self.move_to(at, clock, to)
    }

    fn move_to(&mut self, at: Position, clock: &mut Clock, to: Micros) -> Result<(), Reported> {
        if to > INSTANT_US_MAX {
            return Err(self.report(at, "the case goes on past the year 2100"));
        }
        clock.now = to;
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
