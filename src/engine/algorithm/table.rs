//! The table of the kinds of state.
//!
//! These lines generate all code for every kind: the enums and the dispatch (kinds.rs), the assembly of the scripts when
//! weir is built (lua/assemble.rs), and the script texts (src/store/redis/scripts/library.rs).

/// Calls a macro with all kinds, one a line. A line has the variant, the type that implements `Counting`, the name (also of the
/// fragment in lua/algorithms), and the number by which scripts distinguish the kinds. Scripts test for the kinds in
/// the order of the lines.
#[macro_export]
macro_rules! kind_table {
    ($make:ident) => {
        $make! {
            /// Hits counted in one window of the clock.
            FixedWindow(fixed_window::FixedWindow, "fixed_window", 1),
            /// A debt that drains at a steady rate.
            Pacing(gcra::Pacing, "gcra", 2),
            /// Hits counted in a window that begins with its first hit, or at a calendar boundary.
            AnchoredWindow(anchored_window::AnchoredWindow, "anchored_window", 3),
            /// Hits counted in the current window and in the window before.
            SlidingWindowCounter(sliding_window_counter::SlidingWindowCounter, "sliding_window_counter", 4),
            /// Used hits of a bucket that is refilled in steps.
            TokenBucket(token_bucket::TokenBucket, "token_bucket", 7),
            /// Hits counted in the sub-buckets of a window.
            SlidingWindow(sliding_window::SlidingWindow, "sliding_window", 5),
            /// Every charge of a window.
            SlidingWindowLog(sliding_window_log::SlidingWindowLog, "sliding_window_log", 6),
        }
    };
}
