//! Errors and warnings about a document: all of them, not only the first.

use std::fmt;

use super::node::SourceLocation;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// The document can be used, but probably not as intended.
    Warning,
}

/// An error or a warning at one location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The location in the file.
    pub location: SourceLocation,
    /// Whether the document can still be used.
    pub severity: Severity,
    /// The path of the field, such as `spec.rules[0].verbs`. Empty if the diagnostic is not about a
    /// field.
    pub field: String,
    /// What was found, and what is expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    /// `FILE:LINE:COL: FIELD: MESSAGE`, with `warning: ` before the field of a warning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.location)?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Errors and warnings in the order in which they were found. Displayed one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    error_count: usize,
}

impl Diagnostics {
    /// Adds a diagnostic.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.error_count += usize::from(diagnostic.severity == Severity::Error);
        self.list.push(diagnostic);
    }

    /// Adds an error.
    pub fn report_error(
        &mut self,
        location: &SourceLocation,
        field: &str,
        message: impl Into<String>,
    ) {
        self.report(Severity::Error, location, field, message.into());
    }

    /// Adds a warning.
    pub fn report_warning(
        &mut self,
        location: &SourceLocation,
        field: &str,
        message: impl Into<String>,
    ) {
        self.report(Severity::Warning, location, field, message.into());
    }

    fn report(
        &mut self,
        severity: Severity,
        location: &SourceLocation,
        field: &str,
        message: String,
    ) {
        let location = location.clone();
        let field = field.to_owned();
        self.push(Diagnostic {
            location,
            severity,
            field,
            message,
        });
    }

    /// The errors.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// The warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Warning)
    }

    /// The number of errors. Takes no longer with many.
    #[must_use]
    pub const fn error_count(&self) -> usize {
        self.error_count
    }

    /// Whether there is an error.
    #[must_use]
    pub const fn has_errors(&self) -> bool {
        self.error_count > 0
    }

    /// Whether there are neither errors nor warnings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All errors and warnings.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Sorts all but the first `kept` by location, which is the order in which Go's decoders find
    /// them.
    pub fn sort_from(&mut self, kept: usize) {
        let added = self.list.get_mut(kept..).unwrap_or_default();
        added.sort_by_key(|diagnostic| (diagnostic.location.line, diagnostic.location.column));
    }

    /// Appends the diagnostics of `others`.
    pub fn extend(&mut self, others: Self) {
        self.error_count += others.error_count;
        self.list.extend(others.list);
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, diagnostic) in self.list.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}
