//! The macro that makes the enum of all algorithms from one line for each: its name in policies, and its parameters.
//!
//! Not here: the lines (algorithm.rs), and the types of parameters (parameters.rs).

/// Makes [`Algorithm`] from the lines, and everything that depends only on a line. A parameter is a field of
/// [`Parameters`] too.
macro_rules! algorithms {
    ($(
        $(#[$doc:meta])*
        $Variant:ident $({ $($(#[$field_doc:meta])* $field:ident: $Type:ty,)* })? = $name:literal,
    )*) => {
        /// How a limit counts. The other numbers of a limit (hits, window) are in the limit itself.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Algorithm {
            $($(#[$doc])* $Variant $({ $($(#[$field_doc])* $field: $Type,)* })?,)*
        }

        impl Algorithm {
            /// The names of all algorithms, as policies write them.
            pub const NAMES: [&'static str; [$($name),*].len()] = [$($name),*];

            /// Every algorithm, each with the parameters that it uses.
            pub const fn all(with: &Parameters) -> [Self; Self::NAMES.len()] {
                [$(Self::$Variant $({ $($field: with.$field,)* })?),*]
            }

            /// The name that policies use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant { .. } => $name,)*
                }
            }

            pub const fn parameter_names(self) -> &'static [&'static str] {
                match self {
                    $(Self::$Variant { .. } => &[$($(stringify!($field)),*)?],)*
                }
            }
        }
    };
}
