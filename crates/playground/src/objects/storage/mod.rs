//! The stored objects: their serialized form, selectors, versions and history.

pub(crate) mod object;
pub(crate) mod selector;
pub(crate) mod shared_store;
pub(crate) mod store;
