//! weir's own credentials for its own calls to the API server, never for those of its clients.
//!
//! Promises: a credential is there from the start, or the start fails and says what to do. It is
//! refreshed before it expires, one attempt at a time. While refreshing fails, the old credential
//! serves until it expires. After that there is none, which is an error and not an anonymous call.
//! No secret gets into a log or a `Debug` output. Files are read again every minute, which costs
//! nothing and is soon enough for whatever rotates them. Deliberately not here: clients'
//! credentials, and the calls themselves.

pub(crate) mod exec_credential;
pub(crate) mod exec_plugin;
mod own_credentials;
mod refresh_schedule;
mod refresh_task;
mod source;

pub(crate) use own_credentials::{CredentialExpired, OwnCredentials, PreparedCredentials};
pub use source::BearerToken;
pub(crate) use source::ClientCertificate;
#[cfg(test)]
pub(crate) use source::CredentialError;
pub use source::CredentialSource;
pub(crate) use source::parse_token;

#[cfg(test)]
mod tests;
