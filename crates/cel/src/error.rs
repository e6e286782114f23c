//! What is wrong with an expression, and what an evaluation fails by.

use std::fmt;

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// The line in the expression, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl ExpressionError {
    /// An error at a byte of the text.
    pub(crate) fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = text.get(..text.floor_char_boundary(offset));
        let before = before.unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let in_line = before.get(line_start..).unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: in_line.chars().count() + 1,
            message: message.into(),
        }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            message,
        } = self;
        write!(
            f,
            "{message} (line {line}, column {column} of the expression)"
        )
    }
}

/// Why a condition has no value for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationError {
    /// `request.resourceAttributes` of a non-resource request.
    NoResource,
    /// `request.nonResourceAttributes` of a resource request.
    Resource,
    /// The map has no such key.
    NoSuchKey,
    /// The list has no such index.
    NoSuchIndex,
    /// A parameter of the request is no number.
    NoNumber,
    /// The result of a calculation is beyond 64 bits, or a division is by zero.
    Arithmetic,
}

impl fmt::Display for EvaluationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoResource => "the request has no resourceAttributes",
            Self::Resource => "the request has no nonResourceAttributes",
            Self::NoSuchKey => "no such key",
            Self::NoSuchIndex => "no such index",
            Self::NoNumber => "a parameter of the request is no number",
            Self::Arithmetic => "a division by zero, or a result beyond 64 bits",
        })
    }
}

impl std::error::Error for EvaluationError {}
