//! Conditions of policies: a part of CEL about a request, as in Kubernetes' `matchConditions`. Pure.
//!
//! [`Condition::compile`] parses and checks an expression, and makes a typed tree of it
//! ([`expression`]). What compiles has types that fit, so that evaluating it fails only by what a
//! request has: [`EvaluationError`] lists all of that. Values are borrowed from the request, and
//! nothing is allocated but decoded query parameters.
//!
//! # Bounds
//! An expression has at most [`MAX_BYTES`]. There are no comprehensions and no loops: each node of the
//! tree is evaluated at most once, and costs at most the length of the values that it looks at. The
//! parser calls itself for each bracket, so brackets are counted before it runs.

#![forbid(unsafe_code)]

mod checker;
mod condition;
mod error;
mod expression;
mod fields;
#[cfg(test)]
mod tests;

pub use crate::checker::MAX_BYTES;
pub use crate::condition::Condition;
pub use crate::error::{EvaluationError, ExpressionError};
pub use crate::fields::ConditionInput;
