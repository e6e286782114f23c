//! The state of a rate limit for operators.

use serde::{Deserialize, Serialize};

use crate::limits::rate::top_keys::TopKey;

/// The state of a rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RateLimitSnapshot {
    /// `EventRateLimit/TYPE` or `clientLimits/NAME`.
    pub(crate) name: String,
    /// A summary of what it allows.
    pub(crate) allows: String,
    /// Whether it only counts and rejects no request.
    pub(crate) dry_run: bool,
    /// The number of requests that it passed at once.
    pub(crate) passed: u64,
    /// The number of requests that it delayed.
    pub(crate) delayed: u64,
    /// The number of requests that it rejected.
    pub(crate) rejected: u64,
    /// The number of keys (clients, namespaces ...) that it tracks.
    pub(crate) keys: u64,
    /// The most keys that it tracks.
    pub(crate) most_keys: u64,
    /// The keys with the most rejections.
    pub(crate) top: Vec<TopKey>,
}
