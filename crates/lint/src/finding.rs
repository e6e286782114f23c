//! A warning with its place.

use super::rule::Rule;
use weir_kubernetes::document::SourceLocation;

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintFinding {
    /// What it is about.
    pub rule: Rule,
    /// The place in the file.
    pub location: SourceLocation,
    /// The path of the field, such as `spec.rules[0].subjects[1]`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}
