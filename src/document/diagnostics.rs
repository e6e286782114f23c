//! What is wrong with a document, told to who wrote it: every fault, not the first.

use std::fmt;

use super::node::SourceLocation;

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// It can, but probably does not say what was meant.
    Warning,
}

/// One thing wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where.
    pub location: SourceLocation,
    /// Whether the document can still be used.
    pub severity: Severity,
    /// The path of the field, as `spec.rules[0].verbs`; empty where no field is at fault.
    pub field: String,
    /// What was found and what would be right.
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

/// All that is wrong, in the order in which it was found. Displayed one fault a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Adds a fault.
    pub fn push(&mut self, fault: Diagnostic) {
        self.0.push(fault);
    }

    /// Adds an error at `place`.
    pub fn report_error(
        &mut self,
        place: &SourceLocation,
        field: &str,
        message: impl Into<String>,
    ) {
        self.report(Severity::Error, place, field, message.into());
    }

    /// Adds a warning at `place`.
    pub fn report_warning(
        &mut self,
        place: &SourceLocation,
        field: &str,
        message: impl Into<String>,
    ) {
        self.report(Severity::Warning, place, field, message.into());
    }

    fn report(&mut self, severity: Severity, place: &SourceLocation, field: &str, message: String) {
        let place = place.clone();
        let field = field.to_owned();
        self.push(Diagnostic {
            location: place,
            severity,
            field,
            message,
        });
    }

    /// The faults that make the document unusable.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0
            .iter()
            .filter(|fault| fault.severity == Severity::Error)
    }

    /// The faults that do not.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0
            .iter()
            .filter(|fault| fault.severity == Severity::Warning)
    }

    /// Whether anything is unusable.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// Whether there is neither error nor warning.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All, errors and warnings.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Puts the faults behind the first `kept` in the order of their places, which is that in which Go's decoders
    /// come upon them.
    pub fn sort_from(&mut self, kept: usize) {
        let added = self.0.get_mut(kept..).unwrap_or_default();
        added.sort_by_key(|fault| (fault.location.line, fault.location.column));
    }

    /// Adds those of another list behind these.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
