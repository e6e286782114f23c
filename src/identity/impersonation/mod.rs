//! Impersonation: the target that request headers name, and whether the requester may impersonate
//! it.

pub mod authorizer;
pub(crate) mod decision_cache;
pub(crate) mod subject_access_review;
pub(crate) mod target;
