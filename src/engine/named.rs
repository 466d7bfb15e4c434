//! The macro for enums whose variants have names that operators or callers see.

/// Declares an enum with a name for each variant: `name`, `named`, all variants in `ALL`, and all names in `NAMES`.
///
/// ```
/// weir_engine::named! {
///     /// A light.
///     pub enum Light {
///         /// Stop.
///         Red = "red",
///         /// Go.
///         Green = "green",
///     }
/// }
/// assert_eq!((Light::ALL[1].name(), Light::NAMES[1]), ("green", "green"));
/// assert_eq!((Light::named("red"), Light::named("blue")), (Some(Light::Red), None));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $Enum:ident {
        $($(#[$of_variant:meta])* $Variant:ident = $name:literal,)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Enum {
            $($(#[$of_variant])* $Variant,)+
        }

        impl $Enum {
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$Variant),+];
            /// Their names, in the order of the variants.
            pub const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];

            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }

            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}
