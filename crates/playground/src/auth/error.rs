//! The errors of making certificates and tokens.

/// The reason why certificates or tokens could not be made.
#[derive(Debug)]
pub enum PkiError {
    /// The certificate library failed.
    Certificate(rcgen::Error),
    /// The system has no randomness.
    Random,
}

impl std::fmt::Display for PkiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Certificate(error) => write!(f, "cannot make certificates: {error}"),
            Self::Random => f.write_str("cannot make tokens: no randomness"),
        }
    }
}

impl std::error::Error for PkiError {}

impl From<rcgen::Error> for PkiError {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error)
    }
}
