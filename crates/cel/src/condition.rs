//! A compiled condition.

use crate::checker;
use crate::error::{EvaluationError, ExpressionError};
use crate::expression::BoolExpr;
use crate::fields::ConditionInput;

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    expression: BoolExpr,
    asks_for_user: bool,
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
        checker::compile(text).map(|(expression, asks_for_user)| Self {
            text: text.to_owned(),
            expression,
            asks_for_user,
        })
    }

    /// The expression.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it asks who the user is: for the name, the groups or another attribute.
    #[must_use]
    pub const fn asks_for_user(&self) -> bool {
        self.asks_for_user
    }

    /// Whether the request meets it.
    ///
    /// # Errors
    /// It asks for something that the request does not have.
    pub fn evaluate(&self, input: &ConditionInput<'_>) -> Result<bool, EvaluationError> {
        self.expression.evaluate(input)
    }
}
