//! How many at all: client limits and event limits, which come before how many at a time.

pub mod clients;
pub mod events;
pub mod lru;
pub mod spin_lock;
pub mod token_bucket;
pub mod top_keys;

use serde::Deserialize;
use serde::Serialize;

use crate::limits::rate::clients::enforcer::ClientLimits;
use crate::limits::rate::events::enforcer::EventRateLimit;
use crate::limits::rate::top_keys::TopKey;
use crate::metrics::Registry;

/// Which limits there are.
#[derive(Clone, Debug, Default)]
pub struct RateLimitsConfig {
    /// EventRateLimit.
    pub events: Option<events::enforcer::EventRateLimitConfig>,
    /// `clientLimits`.
    pub clients: Vec<clients::config::ClientLimitRule>,
}

/// The limits that are configured.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// EventRateLimit.
    pub events: Option<EventRateLimit>,
    /// `clientLimits`.
    pub clients: Option<ClientLimits>,
}

impl RateLimits {
    /// Whether there are any.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.events.is_some() || self.clients.is_some()
    }

    /// What is configured, showing itself in `registry`.
    #[must_use]
    pub fn new(config: &RateLimitsConfig, registry: &Registry) -> Self {
        let RateLimitsConfig { events, clients } = config;
        let clients = Some(clients).filter(|rules| !rules.is_empty());
        Self {
            events: events
                .as_ref()
                .map(|config| EventRateLimit::new(config, registry)),
            clients: clients.map(|rules| ClientLimits::new(rules, registry)),
        }
    }

    /// Every limit as it stands, in the order of the configuration.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        let events = self.events.iter().flat_map(EventRateLimit::snapshot);
        let clients = self.clients.iter().flat_map(ClientLimits::snapshot);
        events.chain(clients).collect()
    }

    /// Who was refused most, for operators: a line each, its parts apart by tabs.
    #[must_use]
    pub fn dump_top_keys(&self) -> String {
        let mut lines = vec!["LIMIT\tREJECTIONS\tTOO HIGH BY AT MOST\tKEY".to_owned()];
        let events = self.events.iter().flat_map(EventRateLimit::top_keys);
        let events = events.map(|(kind, keys)| (format!("EventRateLimit/{}", kind.name()), keys));
        let clients = self.clients.iter().flat_map(ClientLimits::top_keys);
        let clients = clients.map(|(rule, keys)| (format!("clientLimits/{rule}"), keys));
        for (limit, keys) in events.chain(clients) {
            for top in keys {
                let (n, error) = (top.rejections, top.error);
                lines.push(format!("{limit}\t{n}\t{error}\t{:?}", top.key));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

/// A limit as it stands, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitSnapshot {
    /// `EventRateLimit/Namespace`, `clientLimits/NAME`.
    pub name: String,
    /// What it allows, in few words.
    pub allows: String,
    /// It refuses nobody, and counts only.
    pub dry_run: bool,
    /// Requests that it let through at once.
    pub passed: u64,
    /// Requests that it made wait.
    pub delayed: u64,
    /// Requests that it refused.
    pub rejected: u64,
    /// Keys (clients, namespaces ...) that it remembers.
    pub keys: u64,
    /// The most that it may.
    pub most_keys: u64,
    /// Whom it refused most.
    pub top: Vec<TopKey>,
}
