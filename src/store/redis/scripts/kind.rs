//! The kinds of state that the scripts and the stored formats distinguish.

use super::library;
use crate::engine::{Limit, StateKind};
use crate::store::redis::transport::call::Script;

/// The letter of a charge that is a decision of its own, where the others have their role.
pub(super) const ALONE: u8 = b'-';

/// The kinds of state. Each has its script and its stored format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    FixedWindow = 1,
    Pacing = 2,
    AnchoredWindow = 3,
    SlidingWindowCounter = 4,
    SlidingWindow = 5,
    SlidingWindowLog = 6,
    TokenBucket = 7,
}

impl Kind {
    /// That of a limit.
    pub(super) const fn of(limit: &Limit) -> Self {
        match limit.kind() {
            StateKind::FixedWindow(_) => Self::FixedWindow,
            StateKind::Pacing(_) => Self::Pacing,
            StateKind::AnchoredWindow(_) => Self::AnchoredWindow,
            StateKind::SlidingWindowCounter(_) => Self::SlidingWindowCounter,
            StateKind::SlidingWindow(_) => Self::SlidingWindow,
            StateKind::SlidingWindowLog(_) => Self::SlidingWindowLog,
            StateKind::TokenBucket(_) => Self::TokenBucket,
        }
    }

    /// The kind as lua/skeletons/list.lua reads it.
    pub(super) const fn digit(self) -> u8 {
        b'0' + self as u8
    }

    /// How many numbers the scripts get of a limit of the kind with this digit.
    pub(super) const fn numbers(digit: u8) -> usize {
        match digit {
            b'1' | b'4' | b'6' => 2,
            b'2' => 8,
            b'3' => 6,
            b'5' => 3,
            _ => 5,
        }
    }

    /// The script that decides over one charge of this kind.
    pub(super) fn script(self) -> &'static Script {
        match self {
            Self::FixedWindow => &library::FIXED_WINDOW,
            Self::Pacing => &library::GCRA,
            Self::AnchoredWindow => &library::ANCHORED_WINDOW,
            Self::SlidingWindowCounter => &library::SLIDING_WINDOW_COUNTER,
            Self::SlidingWindow => &library::SLIDING_WINDOW,
            Self::SlidingWindowLog => &library::SLIDING_WINDOW_LOG,
            Self::TokenBucket => &library::TOKEN_BUCKET,
        }
    }
}
