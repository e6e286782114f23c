//! The state of a rate limit for operators.

use serde::{Deserialize, Serialize};

use crate::rate::top_keys::TopKey;

/// The state of a rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitSnapshot {
    /// `EventRateLimit/TYPE` or `clientLimits/NAME`.
    pub name: String,
    /// A summary of what it allows.
    pub allows: String,
    /// Whether it only counts and rejects no request.
    pub dry_run: bool,
    /// The number of requests that it passed at once.
    pub passed: u64,
    /// The number of requests that it delayed.
    pub delayed: u64,
    /// The number of requests that it rejected.
    pub rejected: u64,
    /// The number of keys (clients, namespaces ...) that it tracks.
    pub keys: u64,
    /// The most keys that it tracks.
    pub most_keys: u64,
    /// The keys with the most rejections.
    pub top: Vec<TopKey>,
}
