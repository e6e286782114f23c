//! `policies:` in the `--config` file: ordered rules of a platform team, which deny, reject, limit or
//! tag requests.
//!
//! [`config`] reads them. [`RequestPolicies::decide`](enforcer::RequestPolicies::decide) decides about
//! a request: it takes the time as an argument and waits for nothing. Rules are found by an index over
//! verbs, resources and subjects, so that one that cannot match costs nothing.
//!
//! All rules that match are asked in their order, until one denies or rejects. A tag and a limit that
//! the request keeps let it go on to the next rule.

pub mod config;
pub mod enforcer;
mod message;
mod metrics;
pub mod request;
#[cfg(test)]
mod tests;
