//! Boxes whose values are made where they stay.
//!
//! `Box::new` and `Box::pin` take a value that exists: if it owns anything, it is made on the stack
//! and copied as a whole after the allocation, which might unwind. Futures have room for their
//! largest state, so that several KiB would be copied for a few words. Here the allocation comes
//! first.

use std::pin::Pin;

/// Boxes what `make` returns.
#[inline]
pub fn boxed<T>(make: impl FnOnce() -> T) -> Box<T> {
    Box::write(Box::new_uninit(), make())
}

/// Boxes and pins the future that `make` returns.
#[inline]
pub fn pinned<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(boxed(make))
}
