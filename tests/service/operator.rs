//! What an operator sees of a running weir at the admin listener and in the log: who is limited, the live page, states. Also what `weir test` and `weir schema`
//! tell a script.

mod alerts;
mod heavy;
mod limited;
mod overrides;
mod page;
mod policies;
mod rights;
mod row_import;
mod row_log;
mod row_versions;
mod rows;
mod rows_under_load;
mod states;
mod tap;
mod tested;
mod top;
