//! The labels of the counters of a limit.

use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels {
    pub(super) domain: Arc<str>,
    pub(super) rule: Box<str>,
    pub(super) limit: Box<str>,
}
