//! The error of a configuration that cannot be in force.

/// Why the proxy cannot start, or a configuration is not in force.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {reason}")]
pub struct StartError {
    context: String,
    reason: String,
    /// Whether a key belongs to another certificate: one of the two files may be new already, and
    /// the other not yet.
    pub(crate) is_key_mismatch: bool,
}

impl StartError {
    pub(super) fn new(context: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self {
            context: context.into(),
            reason: reason.to_string(),
            is_key_mismatch: false,
        }
    }
}
