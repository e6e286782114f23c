//! The error of a proxy that cannot start.

use std::fmt;

/// Why the proxy cannot start.
#[derive(Debug)]
pub struct StartError {
    context: String,
    reason: String,
}

impl StartError {
    pub(super) fn new(context: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self {
            context: context.into(),
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.context, self.reason)
    }
}

impl std::error::Error for StartError {}
