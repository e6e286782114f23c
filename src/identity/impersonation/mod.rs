//! Impersonation: the target that request headers name, and whether the requester may impersonate
//! it.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `decision_cache` `target` |
//! | 1 | `subject_access_review` |
//! | 2 | `authorizer` |

pub mod authorizer;
pub(crate) mod decision_cache;
pub(crate) mod subject_access_review;
pub(crate) mod target;
