//! TODO

pub(crate) mod selector;
pub(in crate::playground) mod shared_store;
pub(crate) mod store;
