//! The macro that makes the enums of all kinds of state, and their dispatch, from one line for each kind.
//!
//! Not here: the lines (table.rs), and what a kind does (counting.rs).

/// Makes [`StateKind`], [`State`] and [`Observed`] from the lines, and the dispatch to each kind.
macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident($Counting:ty, $name:literal, $number:literal),)*) => {
        /// A kind of state, with the numbers of one limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum StateKind {
            $($(#[$doc])* $Kind($Counting),)*
        }

        /// The state that a key stores. Its kind follows from the limit's shape, which is part of the key.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State {
            $($(#[$doc])* $Kind(<$Counting as Counting>::State),)*
        }

        /// A state as one charge finds it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Observed {
            $($(#[$doc])* $Kind(<$Counting as Counting>::Observed),)*
        }

        $(impl Variant for $Counting {
            fn state(state: &State) -> Option<&Self::State> {
                match state {
                    State::$Kind(own) => Some(own),
                    _ => None,
                }
            }

            fn state_mut(state: &mut State) -> Option<&mut Self::State> {
                match state {
                    State::$Kind(own) => Some(own),
                    _ => None,
                }
            }

            fn into_state(stored: Self::State) -> State {
                State::$Kind(stored)
            }

            fn observed(observed: &Observed) -> Option<&Self::Observed> {
                match observed {
                    Observed::$Kind(own) => Some(own),
                    _ => None,
                }
            }
        })*

        impl Observed {
            /// Whether the state equals an empty one, so the store can delete its key.
            pub fn is_empty(&self, now: Micros) -> bool {
                match self {
                    $(Self::$Kind(own) => <$Counting>::is_empty(own, now),)*
                }
            }

            /// The part of the state that a charge was added to, for its receipt. [un-1]
            pub fn mark(&self) -> u64 {
                match self {
                    $(Self::$Kind(own) => <$Counting>::mark(own),)*
                }
            }
        }

        impl StateKind {
            /// How many numbers of a limit and a charge the scripts read, by the number of the kind. None for an
            /// unknown number.
            pub const fn numbers_of(number: u8) -> Option<usize> {
                match number {
                    $($number => Some(<<$Counting as Counting>::Numbers as ScriptNumbers>::COUNT),)*
                    _ => None,
                }
            }

            /// The number by which scripts distinguish the kinds.
            pub const fn number(&self) -> u8 {
                match self {
                    $(Self::$Kind(_) => $number,)*
                }
            }

            /// Hits per window. 0 denies everything. [lm-5]
            pub fn requests(&self) -> Hits {
                match self {
                    $(Self::$Kind(counting) => counting.requests(),)*
                }
            }

            /// The most hits that a state can hold at one instant. [lm-4]
            pub fn capacity(&self) -> Hits {
                match self {
                    $(Self::$Kind(counting) => counting.capacity(),)*
                }
            }

            /// The same limit with `post_paid` set. [dc-5]
            #[must_use]
            pub fn with_post_paid(self, post_paid: bool) -> Self {
                match self {
                    $(Self::$Kind(counting) => Self::$Kind(counting.with_post_paid(post_paid)),)*
                }
            }

            /// The id of the limit in keys. [ky-4]
            pub fn id(&self, zone: &str) -> String {
                match self {
                    $(Self::$Kind(counting) => counting.id(zone),)*
                }
            }

            /// The weight of a charge that is not a refund. [dc-11]
            pub fn weight(&self) -> u32 {
                match self {
                    $(Self::$Kind(counting) => counting.weight(),)*
                }
            }

            /// The weight of a refund.
            pub fn weight_to_give(&self, hits: Hits) -> u32 {
                match self {
                    $(Self::$Kind(counting) => counting.weight_to_give(hits),)*
                }
            }

            pub fn weight_to_undo(&self) -> u32 {
                match self {
                    $(Self::$Kind(counting) => counting.weight_to_undo(),)*
                }
            }

            /// Whether independent charging counts denied hits. [dc-4]
            pub const fn counts_denied(&self) -> bool {
                match self {
                    $(Self::$Kind(_) => <$Counting as Counting>::COUNTS_DENIED,)*
                }
            }

            /// Whether an observation has the wait of only the requested hits.
            pub const fn is_summary(&self) -> bool {
                match self {
                    $(Self::$Kind(_) => <$Counting as Counting>::IS_SUMMARY,)*
                }
            }

            /// The state as a charge of `asked` hits finds it at `now`.
            ///
            /// `bounds` are the boundaries of a calendar window that contains `now`; None for every other limit.
            pub fn observe(
                &self,
                state: Option<&State>,
                asked: Hits,
                bounds: Option<Bounds>,
                now: Micros,
            ) -> Observed {
                match self {
                    $(Self::$Kind(counting) => {
                        let stored = state.map(|state| own_state(counting, state));
                        Observed::$Kind(counting.observe(stored, asked, bounds, now))
                    })*
                }
            }

            /// Whether each decision about a state must store it as observed, even if it charges nothing. [tm-3]
            pub fn is_stale(&self, state: &State, bounds: Option<Bounds>, now: Micros) -> bool {
                if self.is_stateless() {
                    return false;
                }
                match self {
                    $(Self::$Kind(counting) => counting.is_stale(own_state(counting, state), bounds, now),)*
                }
            }

            /// The observation after an effect. None for a summary, which does not have the single parts.
            pub fn left(&self, before: &Observed, effect: Effect, now: Micros) -> Option<Observed> {
                match self {
                    $(Self::$Kind(counting) => {
                        let before = own_observed(counting, before);
                        counting.left(*before, effect.on(counting, before, now), now).map(Observed::$Kind)
                    })*
                }
            }

            /// The state after an effect, as the same charge of `asked` hits would find it.
            pub fn left_of(
                &self,
                state: Option<&State>,
                before: &Observed,
                asked: Hits,
                effect: Effect,
                now: Micros,
            ) -> Observed {
                match self {
                    $(Self::$Kind(counting) => {
                        let stored = state.map(|state| own_state(counting, state));
                        let before = own_observed(counting, before);
                        let effect = effect.on(counting, before, now);
                        Observed::$Kind(counting.left_of(stored, *before, asked, effect, now))
                    })*
                }
            }

            /// Applies an effect to a key. The state changes in place: it can be long, and a store that moves it out
            /// first could lose it.
            #[must_use]
            pub fn apply_in_place(
                &self,
                state: &mut Option<State>,
                effect: Effect,
                bounds: Option<Bounds>,
                now: Micros,
            ) -> Change {
                if self.is_stateless() {
                    return Change::Kept;
                }
                match self {
                    $(Self::$Kind(counting) => apply(counting, state, effect, bounds, now),)*
                }
            }

            /// Undoes, in place, the charge of the receipt, as far as it still counts. [un-1]
            #[must_use]
            pub fn undo_in_place(
                &self,
                state: &mut Option<State>,
                receipt: Receipt,
                bounds: Option<Bounds>,
                now: Micros,
            ) -> Change {
                if self.is_stateless() {
                    return Change::Kept;
                }
                match self {
                    $(Self::$Kind(counting) => undo(counting, state, receipt, bounds, now),)*
                }
            }

            /// Converts an observation under another limit of the same shape to the observation under this limit.
            pub fn reobserved(&self, found: &Observed, now: Micros) -> Observed {
                match self {
                    $(Self::$Kind(counting) => {
                        Observed::$Kind(counting.reobserved(*own_observed(counting, found), now))
                    })*
                }
            }

            /// An earlier observation, moved to `now` without a charge in between. [dn-3]
            pub fn later(&self, found: &Observed, now: Micros) -> Observed {
                match self {
                    $(Self::$Kind(counting) => {
                        Observed::$Kind(counting.later(*own_observed(counting, found), now))
                    })*
                }
            }

            /// A state written at `now`, before the next charge cuts it to the maximum that the limit believes.
            pub fn as_written(&self, state: &State, bounds: Option<Bounds>, now: Micros) -> Observed {
                match self {
                    $(Self::$Kind(counting) => {
                        Observed::$Kind(counting.as_written(own_state(counting, state), bounds, now))
                    })*
                }
            }

            /// The largest number of hits that would be admitted at `now`.
            pub fn remaining(&self, observed: &Observed, now: Micros) -> Hits {
                match self {
                    $(Self::$Kind(counting) => counting.remaining(own_observed(counting, observed), now),)*
                }
            }

            /// The wait in microseconds, rounded up, until `hits` fit without other requests. They do not fit now.
            ///
            /// `hits` is at most the capacity; more would never fit. A summary has the wait of only the hits of its
            /// charge.
            pub fn retry_after(&self, observed: &Observed, hits: Hits, now: Micros) -> Micros {
                match self {
                    $(Self::$Kind(counting) => {
                        counting.retry_after(own_observed(counting, observed), hits, now)
                    })*
                }
            }

            /// The microseconds, rounded up, until the state equals an empty one without further charges.
            pub fn reset_after(&self, observed: &Observed, now: Micros) -> Micros {
                match self {
                    $(Self::$Kind(counting) => counting.reset_after(own_observed(counting, observed), now),)*
                }
            }

            /// Whether more hits are charged than the limit holds: the rule for a peek of independent charging. [dc-6]
            pub fn is_past(&self, observed: &Observed, now: Micros) -> bool {
                match self {
                    $(Self::$Kind(counting) => counting.is_past(own_observed(counting, observed), now),)*
                }
            }

            /// The wait of an admitted request until its turn, in microseconds. [lb-2]
            pub fn turn_after(&self, before: &Observed, now: Micros) -> Micros {
                match self {
                    $(Self::$Kind(counting) => counting.turn_after(own_observed(counting, before), now),)*
                }
            }

            pub const fn format(&self) -> StoredFormat {
                match self {
                    $(Self::$Kind(_) => <$Counting as Counting>::FORMAT,)*
                }
            }

            /// How many numbers a script returns for one charge.
            pub const fn reply_count(&self) -> usize {
                match self {
                    $(Self::$Kind(_) => <$Counting as Counting>::REPLY,)*
                }
            }

            pub const fn undo_script(&self) -> UndoScript {
                match self {
                    $(Self::$Kind(_) => <$Counting as Counting>::UNDO,)*
                }
            }

            /// The number from a receipt that a script searches for.
            pub fn proof(&self, receipt: Receipt) -> u64 {
                match self {
                    $(Self::$Kind(_) => <$Counting>::proof(receipt),)*
                }
            }

            /// The numbers of a charge, in the order in which its script reads them.
            pub fn script_numbers(&self, hits: Hits, bounds: Option<Bounds>) -> StateNumbers {
                match self {
                    $(Self::$Kind(counting) => StateNumbers::from_slice(&counting.script_numbers(hits, bounds)),)*
                }
            }

            /// Reads the numbers that a script returned for one charge: the state before it, and for a summary the
            /// state after it. None if they are not of this kind.
            pub fn read_reply(&self, numbers: &[u64], now: Micros) -> Option<(Observed, Option<Observed>)> {
                match self {
                    $(Self::$Kind(counting) => {
                        let (before, after) = counting.read_reply(numbers, now)?;
                        Some((Observed::$Kind(before), after.map(Observed::$Kind)))
                    })*
                }
            }

            /// A state from the numbers that Redis stores. None if they are not of this kind.
            pub fn read_stored(&self, numbers: &[u64]) -> Option<State> {
                match self {
                    $(Self::$Kind(_) => <$Counting>::read_stored(numbers).map(State::$Kind),)*
                }
            }
        }
    };
}
