//! `weir check`'s warnings: what is legal in a configuration and surely unwanted. Pure.
//!
//! Each warning has a [`Rule`](rule::Rule) with a stable id. A warning must be true: where a fact
//! depends on what is not in the files (the objects of a cluster, the users of an authenticator),
//! nothing is said. [`shadowing`] and [`elephants`] have the two decisions that are not obvious.
//!
//! The linter reads decoded, valid objects and the nodes that they were decoded from, for
//! locations. Errors are the decoders' matter.

pub(crate) mod authenticators;
mod elephants;
pub(crate) mod finding;
pub(crate) mod flow_schemas;
pub(crate) mod objects;
pub(crate) mod priority_levels;
pub(crate) mod rate_limits;
pub mod rule;
mod shadowing;
mod subject_set;
#[cfg(test)]
mod tests;
