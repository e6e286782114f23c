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
mod error;
mod expression;
mod fields;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

pub use crate::error::{EvaluationError, ExpressionError};
use crate::expression::BoolExpr;

/// The longest expression in bytes.
pub const MAX_BYTES: usize = 1024;

/// What a condition looks at.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'r> {
    /// The parsed request line.
    pub info: &'r RequestInfo<'r>,
    /// The user that limits count.
    pub user: &'r UserInfo,
    /// Whether the user is proven.
    pub is_verified: bool,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
    /// The address of the client.
    pub source_address: IpAddr,
}

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    expression: BoolExpr,
}

/// Conditions of the same text are the same.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Condition {
    /// Parses and checks an expression.
    ///
    /// # Errors
    /// What is wrong, all of it, with places in the text.
    pub fn compile(text: &str) -> Result<Self, Vec<ExpressionError>> {
        checker::compile(text).map(|expression| Self {
            text: text.to_owned(),
            expression,
        })
    }

    /// The expression.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the request meets it.
    ///
    /// # Errors
    /// It asks for something that the request does not have.
    pub fn evaluate(&self, input: &ConditionInput<'_>) -> Result<bool, EvaluationError> {
        self.expression.evaluate(input)
    }
}
