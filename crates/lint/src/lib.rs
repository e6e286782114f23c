//! `weir check`'s warnings: what is legal in a configuration and surely unwanted. Pure.
//!
//! Each warning has a [`Rule`](rule::Rule) with a stable id. A warning must be true: where a fact
//! depends on what is not in the files (the objects of a cluster, the users of an authenticator),
//! nothing is said. [`shadowing`] and [`elephants`] have the two decisions that are not obvious.
//!
//! The linter reads decoded, valid objects and the nodes that they were decoded from, for
//! locations. Errors are the decoders' matter.
//!
//! A linter with false warnings is switched off. Whether a FlowSchema is shadowed is decided on the
//! rules as products of sets, without assumptions about users; what authenticators guarantee is a
//! rule of its own. A random test compares both with the matcher. Objects that kube-apiserver
//! maintains are never warned about.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod authenticators;
mod elephants;
pub mod flow_schemas;
pub mod objects;
pub mod priority_levels;
pub mod rate_limits;
pub mod rule;
mod shadowing;
mod subject_set;
#[cfg(test)]
mod tests;
