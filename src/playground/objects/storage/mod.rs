//! The stored objects: their serialized form, selectors, versions and history.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `object` |
//! | 1 | `selector` |
//! | 2 | `store` |
//! | 3 | `shared_store` |

pub(crate) mod object;
pub(crate) mod selector;
pub(in crate::playground) mod shared_store;
pub(crate) mod store;
