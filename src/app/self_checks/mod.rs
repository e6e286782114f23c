//! What weir asks the API server about itself: the permissions of its own credential, and, for
//! `weir check --online`, whether it can be reached and accepts weir's certificates.

pub(super) mod online;
pub(super) mod self_access;
