//! What an operator sees of a running weir at the admin listener and in the log: who is limited, the live page, states.

mod heavy;
mod limited;
mod page;
mod policies;
mod states;
mod top;
