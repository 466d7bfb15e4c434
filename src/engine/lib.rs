//! Decisions: pure functions of limits, states, hits and a time, which is an argument.
//!
//! Deliberately absent: async, I/O, a clock, serde, floats, time zones, and anything that can fail for a reason outside
//! its arguments. `[fw-3]` cites one of the numbered rules of docs/semantics.md.

pub mod algorithm;
pub mod arith;
pub mod automaton;
mod branch;
pub mod callers;
pub mod charge;
pub mod crossing;
pub mod decision;
pub mod denomination;
pub mod descriptor;
pub mod during;
mod escape;
pub mod key;
pub mod lease;
pub mod limit;
pub mod matcher;
pub mod metadata;
mod named;
pub mod network;
mod numbers;
pub mod observer;
pub mod overrides;
pub mod pairs;
pub mod pattern;
pub mod plans;
pub mod policy;
mod policy_error;
pub mod request_limit;
pub mod rows;
mod rule_keys;
pub mod share;
pub mod time;
mod trie;
pub mod weigh;
pub mod weighed;
pub mod weight;
pub mod wildcards;
pub mod words;

pub use algorithm::parameters::{Anchor, Parameter, ParameterValue, Precision, Refill};
pub use algorithm::{Algorithm, LimitError, Observed, Receipt, State, StateKind};
pub use charge::{Charge, Group, Mode, Operation, Role};
pub use crossing::Rise;
pub use decision::{Decision, Outcome, Verdict};
pub use denomination::Denomination;
pub use descriptor::{COUNT_MAX, Count, Entry, Hits};
pub use during::{Days, During, SPANS_MAX, Span};
pub use lease::{Lease, hits_ahead};
pub use limit::{KeyValue, Limit};
pub use matcher::Matcher;
pub use observer::Observer;
pub use overrides::{Override, Overrides};
pub use pairs::{Property, exclusion};
pub use policy::{Domain, OnError, PolicySet, Rule};
pub use rows::{Row, RowContent};
pub use share::{SHARES_MAX, Shares, SharesError};
pub use time::{Bounds, CalendarUnit, Micros, Phase, Term, Unit, Window};
