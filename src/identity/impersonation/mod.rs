//! Impersonation: the target that request headers name, and whether the requester may act as it.

pub mod authorizer;
pub mod decision_cache;
pub mod subject_access_review;
pub mod target;
