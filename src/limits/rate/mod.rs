//! Rate limits: client limits and event limits, which are checked before a request queues for a
//! seat.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `lru_key` `spin_lock` `top_keys` |
//! | 1 | `lru` `snapshot` |
//! | 2 | `clients` `events` |

pub mod clients;
pub mod events;
pub mod lru;
pub mod lru_key;
pub mod snapshot;
pub mod spin_lock;
pub mod top_keys;

use crate::limits::rate::clients::enforcer::ClientLimits;
use crate::limits::rate::events::enforcer::EventRateLimit;
use crate::limits::rate::snapshot::RateLimitSnapshot;
use crate::metrics::Registry;

/// The configuration of the rate limits.
#[derive(Clone, Debug, Default)]
pub struct RateLimitsConfig {
    /// The configuration of EventRateLimit; `None` if it is off.
    pub events: Option<events::enforcer::EventRateLimitConfig>,
    /// The rules of `clientLimits`.
    pub clients: Vec<clients::config::ClientLimitRule>,
}

/// The rate limits that are configured.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// EventRateLimit, if it is configured.
    pub events: Option<EventRateLimit>,
    /// The client limits, if there are rules.
    pub clients: Option<ClientLimits>,
}

impl RateLimits {
    /// Whether any limit is configured.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.events.is_some() || self.clients.is_some()
    }

    /// Creates the limits and registers their metrics in `registry`.
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

    /// The state of each limit, in the order of the configuration.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        let events = self.events.iter().flat_map(EventRateLimit::snapshot);
        let clients = self.clients.iter().flat_map(ClientLimits::snapshot);
        events.chain(clients).collect()
    }

    /// The keys with the most rejections, for operators: one line each, tab-separated.
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
