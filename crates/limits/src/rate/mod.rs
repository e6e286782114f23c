//! Policies, client limits and event limits, which are checked before a request queues for a seat.

mod bucket_table;
pub mod clients;
pub mod events;
mod keyed_slots;
pub mod lru;
pub mod lru_key;
pub mod policies;
pub mod spin_lock;
pub mod top_keys;

use std::sync::Arc;

use crate::enforcement::EnforcementSwitch;
use crate::rate::clients::enforcer::ClientLimits;
use crate::rate::events::enforcer::EventRateLimit;
use crate::rate::policies::enforcer::RequestPolicies;
use crate::rate::top_keys::RateLimitSnapshot;
use crate::shared_limits::source::Sharing;
use weir_base::metrics::Registry;
use weir_kubernetes::encoding::printable::escape;

/// The configuration of the rate limits.
#[derive(Clone, Debug, Default)]
pub struct RateLimitsConfig {
    /// The configuration of EventRateLimit; `None` if it is off.
    pub events: Option<events::enforcer::EventRateLimitConfig>,
    /// The rules of `clientLimits`.
    pub clients: Vec<clients::config::ClientLimitRule>,
    /// The policies, in their order.
    pub policies: Vec<policies::config::PolicyRule>,
}

/// The rate limits that are configured.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// EventRateLimit, if it is configured.
    pub events: Option<EventRateLimit>,
    /// The client limits, if there are rules.
    pub clients: Option<ClientLimits>,
    /// The policies, if there are any.
    pub policies: Option<RequestPolicies>,
    /// How the buckets are shared with other replicas, if they are.
    sharing: Option<Sharing>,
    /// Whether the limits are enforced.
    enforcement: Arc<EnforcementSwitch>,
}

impl RateLimits {
    /// Whether any rate limit is configured. Policies are none.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        self.events.is_some() || self.clients.is_some()
    }

    /// Creates the limits and registers their metrics in `registry`.
    #[must_use]
    pub fn new(config: &RateLimitsConfig, registry: &Registry) -> Self {
        Self::default().replaced_by(config, registry)
    }

    /// No limits, whose buckets will be shared with other replicas.
    #[must_use]
    pub fn sharing(sharing: Option<&Sharing>) -> Self {
        Self {
            sharing: sharing.cloned(),
            ..Self::default()
        }
    }

    /// No limits; those that take their place follow `enforcement`.
    #[must_use]
    pub fn following(self, enforcement: &Arc<EnforcementSwitch>) -> Self {
        Self {
            enforcement: Arc::clone(enforcement),
            ..self
        }
    }

    /// Whether event limits only count.
    #[must_use]
    pub fn events_are_dry_run(&self) -> bool {
        let configured = self.events.as_ref().is_some_and(EventRateLimit::is_dry_run);
        self.enforcement.is_dry_run(configured)
    }

    /// The limits of `config`, which replace these. Limits and rules that have not changed keep
    /// their state; others start anew, or go. Requests that still use these limits, and what
    /// requests hold of them, are not lost.
    #[must_use]
    pub fn replaced_by(&self, config: &RateLimitsConfig, registry: &Registry) -> Self {
        let RateLimitsConfig {
            events,
            clients,
            policies,
        } = config;
        let rules = Some(clients).filter(|rules| !rules.is_empty());
        let policies = Some(policies).filter(|rules| !rules.is_empty());
        if let (Some(gone), None) = (&self.events, events) {
            gone.remove_gauges(registry);
        }
        if let (Some(gone), None) = (&self.clients, rules) {
            gone.remove_gauges(registry);
        }
        if let (Some(gone), None) = (&self.policies, policies) {
            gone.remove_gauges(registry);
        }
        let sharing = self.sharing.as_ref();
        let with_events =
            |config| EventRateLimit::replacing(self.events.as_ref(), config, sharing, registry);
        let with_rules = |rules: &Vec<_>| {
            ClientLimits::replacing(
                self.clients.as_ref(),
                rules,
                &self.enforcement,
                sharing,
                registry,
            )
        };
        let with_policies = |rules: &Vec<_>| {
            let earlier = self.policies.as_ref();
            RequestPolicies::replacing(earlier, rules, &self.enforcement, sharing, registry)
        };
        Self {
            events: events.as_ref().map(with_events),
            clients: rules.map(with_rules),
            policies: policies.map(with_policies),
            sharing: self.sharing.clone(),
            enforcement: Arc::clone(&self.enforcement),
        }
    }

    /// The state of each limit, in the order of the configuration.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        let events = self.events.iter().flat_map(EventRateLimit::snapshot);
        let dry_run = self.events_are_dry_run();
        let events = events.map(|limit| RateLimitSnapshot { dry_run, ..limit });
        let clients = self.clients.iter().flat_map(ClientLimits::snapshot);
        let policies = self.policies.iter().flat_map(RequestPolicies::snapshot);
        policies.chain(events).chain(clients).collect()
    }

    /// The keys with the most rejections, for operators: one line each, tab-separated.
    #[must_use]
    pub fn dump_top_keys(&self) -> String {
        let mut lines = vec!["LIMIT\tREJECTIONS\tTOO HIGH BY AT MOST\tKEY".to_owned()];
        let events = self.events.iter().flat_map(EventRateLimit::top_keys);
        let events = events.map(|(kind, keys)| (format!("EventRateLimit/{}", kind.name()), keys));
        let clients = self.clients.iter().flat_map(ClientLimits::top_keys);
        let clients = clients.map(|(rule, keys)| (format!("clientLimits/{rule}"), keys));
        let policies = self.policies.iter().flat_map(RequestPolicies::top_keys);
        let policies = policies.map(|(policy, keys)| (format!("policies/{policy}"), keys));
        for (limit, keys) in policies.chain(events).chain(clients) {
            for top in keys {
                let (n, error) = (top.rejections, top.error);
                let limit = escape(&limit);
                lines.push(format!("{limit}\t{n}\t{error}\t{:?}", top.key));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use futures_util::FutureExt;

    use super::*;
    use crate::admission_attributes::{AdmissionAttributes, RequestSource};
    use crate::rate::clients::config::{
        ClientDistinguisher, ClientLimitResponse, ClientLimitRule, LongRunningLimits,
    };
    use crate::rate::clients::enforcer::ClientLimitPermit;
    use crate::throttling::token_bucket::Rate;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::api::flowcontrol::{
        PolicyRulesWithSubjects, ResourcePolicyRule, Subject, SubjectKind,
    };
    use weir_kubernetes::request_info::RequestInfo;

    fn rule(name: &str, concurrency: u32, burst: u32) -> ClientLimitRule {
        let any = || vec!["*".to_owned()];
        let everything = PolicyRulesWithSubjects {
            subjects: vec![Subject {
                kind: SubjectKind::User,
                user: Some("*".to_owned()),
                ..Subject::default()
            }],
            resource_rules: vec![ResourcePolicyRule {
                verbs: any(),
                api_groups: any(),
                resources: any(),
                cluster_scope: true,
                namespaces: any(),
            }],
            non_resource_rules: Vec::new(),
        };
        ClientLimitRule {
            name: name.to_owned(),
            rules: vec![everything],
            distinguisher: ClientDistinguisher::User,
            requests: Some(Rate::new(1, burst)),
            writes: None,
            object_backoff: None,
            concurrency: Some(concurrency),
            long_running: LongRunningLimits::default(),
            response: ClientLimitResponse::Reject,
            dry_run: false,
            max_clients: 100,
        }
    }

    fn clients(rules: &[ClientLimitRule]) -> RateLimitsConfig {
        RateLimitsConfig {
            events: None,
            clients: rules.to_vec(),
            policies: Vec::new(),
        }
    }

    /// `None` if the request is rejected.
    fn admit(limits: &RateLimits, now: Instant) -> Option<Option<Box<ClientLimitPermit>>> {
        let Some(limits) = &limits.clients else {
            return Some(None);
        };
        let user = UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        };
        let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
        let attributes = AdmissionAttributes {
            info: &info,
            user: &user,
        };
        let source = RequestSource {
            address: Ipv4Addr::LOCALHOST.into(),
            user_agent: b"",
        };
        let admitted = limits.admit(&attributes, source, now, None);
        admitted.now_or_never().unwrap().ok()
    }

    #[test]
    fn a_rule_that_stays_keeps_its_buckets_and_its_held_slots() {
        let (registry, now) = (Registry::new(), Instant::now());
        let first = RateLimits::new(&clients(&[rule("a", 1, 3)]), &registry);
        let held = admit(&first, now).unwrap();
        let second = first.replaced_by(&clients(&[rule("b", 9, 9), rule("a", 1, 3)]), &registry);
        assert!(admit(&second, now).is_none(), "the slot is held");
        drop(held);
        assert!(admit(&second, now).is_some());
        assert!(admit(&second, now).is_none(), "three tokens are spent");
    }

    #[test]
    fn a_rule_that_changes_starts_anew_and_one_that_goes_limits_nothing() {
        let (registry, now) = (Registry::new(), Instant::now());
        let first = RateLimits::new(&clients(&[rule("a", 1, 1)]), &registry);
        let held = admit(&first, now).unwrap();
        let second = first.replaced_by(&clients(&[rule("a", 2, 9)]), &registry);
        let both = [admit(&second, now).unwrap(), admit(&second, now).unwrap()];
        assert!(admit(&second, now).is_none());
        drop(held); // releases a slot of the rule before, and none of the new one
        assert!(admit(&second, now).is_none());
        drop(both);
        assert!(
            registry
                .render()
                .contains("weir_client_limit_keys{rule=\"a\"")
        );
        let none = second.replaced_by(&RateLimitsConfig::default(), &registry);
        assert!(!none.is_configured() && admit(&none, now).is_some());
        assert!(!registry.render().contains("weir_client_limit_keys{"));
    }
}
