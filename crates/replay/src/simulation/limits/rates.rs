//! Policies and rate limits in virtual time: first policies, then limits of clients, then those of events.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limiter::LimitRejection;
use crate::clients::Client;
use crate::logged::LoggedRequest;
use crate::simulation::statistics::groups::RejectedBy;
use weir_base::metrics::Registry;
use weir_limits::rate::RateLimitsConfig;
use weir_limits::rate::clients::config::ClientLimitRule;
use weir_limits::rate::clients::enforcer::{
    ChargedRequest, ClientLimitPermit, ClientLimitRejection, ClientLimits,
};
use weir_limits::rate::events::buckets::{EventWrite, LimitedEvent, LimitedEventGroups};
use weir_limits::rate::events::enforcer::EventRateLimit;
use weir_limits::rate::policies::config::PolicyRule;
use weir_limits::rate::policies::enforcer::{PolicyPermit, RequestPolicies};
use weir_limits::rate::policies::request::PolicyRequest;
use weir_limits::{AdmissionAttributes, RequestSource};

/// The rate limits that are configured.
#[derive(Debug)]
pub(crate) struct SimRates {
    events: Option<(EventRateLimit, LimitedEventGroups)>,
    clients: Option<ClientLimits>,
    policies: Option<RequestPolicies>,
}

impl SimRates {
    pub(crate) fn new(config: &RateLimitsConfig) -> Self {
        let registry = Registry::new();
        let events = config.events.as_ref();
        // As the enforcement of levels, a rule decides what it would, if it were no dry run.
        let clients = config.clients.iter().map(|rule| ClientLimitRule {
            dry_run: false,
            ..rule.clone()
        });
        let clients: Vec<ClientLimitRule> = clients.collect();
        let clients = Some(clients).filter(|rules| !rules.is_empty());
        let policies = config.policies.iter().map(|policy| PolicyRule {
            dry_run: false,
            ..policy.clone()
        });
        let policies: Vec<PolicyRule> = policies.collect();
        Self {
            events: events.map(|config| (EventRateLimit::new(config, &registry), config.groups)),
            clients: clients.map(|rules| ClientLimits::new(&rules, &registry)),
            policies: (!policies.is_empty()).then(|| {
                RequestPolicies::replacing(None, &policies, &Arc::default(), None, &registry)
            }),
        }
    }

    /// Whether there are policies or client limits.
    pub(crate) const fn limits_clients(&self) -> bool {
        self.clients.is_some() || self.policies.is_some()
    }

    /// Asks the policies, at this second of the log. A log does not say whose user is proven: all count
    /// as proven but anonymous ones.
    pub(crate) fn check_policies(
        &self,
        attributes: &AdmissionAttributes<'_>,
        client: &Client,
        now: Instant,
        unix_second: i64,
    ) -> Result<Option<PolicyPermit>, LimitRejection> {
        let Some(policies) = &self.policies else {
            return Ok(None);
        };
        let request = PolicyRequest {
            attributes: *attributes,
            source: request_source(client),
            is_verified: !attributes.user.is_anonymous(),
        };
        let Some(mut decision) = policies.decide(&request, now, unix_second) else {
            return Ok(None);
        };
        match decision.rejection.take() {
            None => Ok(decision.into_permit()),
            Some(why) => Err(LimitRejection {
                by: RejectedBy::Policy,
                retry_after: (!why.is_denial).then(|| Duration::from_secs(why.retry_after.into())),
                rate_wait: Some(why.wait),
            }),
        }
    }

    /// Charges the client limits. `None` if there are none for the request.
    pub(crate) fn charge_client(
        &self,
        attributes: &AdmissionAttributes<'_>,
        client: &Client,
        now: Instant,
        deadline: Option<Instant>,
    ) -> Result<Option<ChargedRequest>, LimitRejection> {
        let Some(limits) = &self.clients else {
            return Ok(None);
        };
        let charged = limits.charge(attributes, request_source(client), now, deadline);
        charged.map_err(|why| client_rejection(&why))
    }

    /// Acquires the slots of the client limits. `None` if the request may wait for them.
    pub(crate) fn try_acquire_slots(
        &self,
        charged: &ChargedRequest,
        attributes: &AdmissionAttributes<'_>,
        now: Instant,
    ) -> Result<Option<Box<ClientLimitPermit>>, LimitRejection> {
        let Some(limits) = &self.clients else {
            return Ok(Some(Box::default()));
        };
        let acquired = limits.try_acquire_slots(charged, attributes.info, now);
        acquired.map_err(|why| client_rejection(&why))
    }

    /// Charges the event limits.
    pub(crate) fn check_event(
        &self,
        attributes: &AdmissionAttributes<'_>,
        request: &LoggedRequest,
        now: Instant,
    ) -> Result<(), LimitRejection> {
        let Some((limits, groups)) = &self.events else {
            return Ok(());
        };
        let info = attributes.info;
        if EventWrite::from_request(info, *groups).is_none() {
            return Ok(());
        }
        // A log of metadata does not have the event, but its name, which begins with the object's.
        let named = || [info.namespace(), info.name()].join(&b'/');
        let key = request.event().map_or_else(
            || Cow::Owned(named()),
            |event| Cow::Borrowed(event.key.as_bytes()),
        );
        let event = LimitedEvent {
            namespace: info.namespace(),
            user: attributes.user.name.as_bytes(),
            source_and_object: key,
            warning: request.event().is_some_and(|event| event.warning),
        };
        limits.charge(&event, now).map_err(|why| LimitRejection {
            by: RejectedBy::EventRateLimit,
            retry_after: why.retry_after.map(|s| Duration::from_secs(s.into())),
            rate_wait: Some(why.wait),
        })
    }
}

fn request_source(client: &Client) -> RequestSource<'_> {
    let address = client.source.parse();
    RequestSource {
        address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        user_agent: client.user_agent.as_bytes(),
    }
}

fn client_rejection(why: &ClientLimitRejection) -> LimitRejection {
    LimitRejection {
        by: RejectedBy::ClientLimit,
        retry_after: Some(Duration::from_secs(why.retry_after.into())),
        rate_wait: Some(why.wait),
    }
}
