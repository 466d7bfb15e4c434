//! What a decision is: pure functions over limits, states, hits and a time that arrives as an argument.
//!
//! Deliberately absent: async, I/O, a clock, serde, floats, time zones and anything that can fail for a reason
//! outside the arguments. A rule cited as `[fw-3]` is one of the numbered rules of docs/semantics.md.

pub mod algorithm;
pub mod arith;
pub mod charge;
pub mod decision;
pub mod descriptor;
pub mod key;
pub mod limit;
pub mod metadata;
pub mod observer;
pub mod policy;
pub mod weight;

pub use algorithm::{Observed, State};
pub use charge::{Bounds, Charge, Mode, Receipt, Role, Take};
pub use decision::{Decision, Outcome, Verdict};
pub use descriptor::{Entry, Hits};
pub use limit::{Algorithm, Anchor, CalendarUnit, Limit, LimitError, Precision, Refill, Unit, Window};
pub use observer::Observer;
pub use policy::{Domain, OnError, PolicySet, Rule};

/// Microseconds since the Unix epoch, at most 2^52 (the year 2112). [tm-1]
pub type Micros = u64;
