//! Impls that many types would otherwise write out by hand, in the same words.

/// Implements `Debug` for a type with fields that are not to be shown: it shows these values, and `..` for the rest.
macro_rules! impl_debug {
    (
        $type:ident $(<$($lifetime:lifetime $(,)?)? $($parameter:ident $(: $bound:path)?),*>)?,
        $this:ident $(, $name:ident: $value:expr)*
    ) => {
        impl $(<$($parameter $(: $bound)?),*>)? ::core::fmt::Debug
            for $type $(<$($lifetime,)? $($parameter),*>)?
        {
            fn fmt(&$this, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let mut shown = f.debug_struct(stringify!($type));
                $(shown.field(stringify!($name), &$value);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use impl_debug;

/// Implements a trait for pointers to what implements it: each method calls that of the target, also where the trait has a
/// default.
#[cfg(feature = "std")]
macro_rules! impl_behind {
    ($target:ident: $trait:ident for $($pointer:ty),*; $methods:tt) => {$(
        impl<$target: $trait + ?Sized> $trait for $pointer {
            $crate::platform::impls::call_target!($methods);
        }
    )*};
}
/// Writes the methods of such an impl.
#[cfg(feature = "std")]
macro_rules! call_target {
    ({$(fn $method:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*}) => {$(
        fn $method(&self $(, $argument: $type)*) $(-> $result)? {
            (**self).$method($($argument),*)
        }
    )*};
}
#[cfg(feature = "std")]
pub(crate) use {call_target, impl_behind};
