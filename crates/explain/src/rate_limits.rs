//! The event limits and client limits that a request is charged to, and their keys.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

use crate::report::RequestBytes;
use crate::request::ExplainRequest;
use weir_flowcontrol::matching::{Policies, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::{RequestInfo, Verb};
use weir_limits::rate::RateLimitsConfig;
use weir_limits::rate::clients::config::{
    ClientDistinguisher, ClientLimitResponse, ClientLimitRule,
};
use weir_limits::rate::clients::enforcer::{LimitedClient, is_write};
use weir_limits::rate::clients::tables::ClientLimitKind;
use weir_limits::rate::events::body;
use weir_limits::rate::events::body::EventEncoding;
use weir_limits::rate::events::buckets::{EventWrite, LimitedEvent};
use weir_limits::rate::events::config::{EventLimitConfig, LimitType};
use weir_limits::rate::events::enforcer::EventRateLimitConfig;
use weir_limits::throttling::token_bucket::Rate;
use weir_limits::{AdmissionAttributes, RequestSource};

/// The rate limits of a configuration.
#[derive(Debug)]
pub struct RateLimitRules {
    events: Option<EventRateLimitConfig>,
    clients: Vec<ClientLimitRule>,
    client_matchers: Policies,
}

/// An event limit that the request is charged to.
#[derive(Clone, Debug, Serialize)]
pub struct EventLimitCharge<'e> {
    /// The position in the configuration.
    pub limit: usize,
    /// The type of the limit.
    pub r#type: &'static str,
    /// Events per second and bucket.
    pub qps: u32,
    /// The capacity of a bucket.
    pub burst: u32,
    /// The key of the bucket. `None` if it is not known.
    pub key: Option<RequestBytes<'e>>,
    /// What is needed to know the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
    /// Whether the limits of events only count.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A rule of `clientLimits` that matches the request.
#[derive(Clone, Debug, Serialize)]
pub struct ClientRuleCharge<'e> {
    /// The rule's name.
    pub rule: &'e str,
    /// The client. `None` if it is not known.
    pub client: Option<RequestBytes<'static>>,
    /// What is needed to know the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
    /// Whether the rule only counts.
    pub dry_run: bool,
    /// The longest delay in seconds of a request above a limit. `None`: it is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_s: Option<f64>,
    /// The limits of the rule that the request is charged to.
    pub limits: Vec<ClientLimitCharge>,
}

/// A limit of a rule.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientLimitCharge {
    /// The name in the configuration.
    pub limit: &'static str,
    /// What shares the limit.
    pub per: &'static str,
    /// Requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<f64>,
    /// The capacity of the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<f64>,
    /// The most concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// The backoff after a first failure, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_s: Option<f64>,
    /// The longest backoff, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_s: Option<f64>,
}

impl ClientRuleCharge<'_> {
    /// Whether the rule rejects every request: a rate of 0.
    #[must_use]
    pub fn blocks(&self) -> bool {
        let is_block = |limit: &ClientLimitCharge| limit.qps == Some(0.0);
        !self.dry_run && self.limits.iter().any(is_block)
    }
}

impl RateLimitRules {
    /// Compiles the rules.
    #[must_use]
    pub fn new(config: RateLimitsConfig) -> Self {
        let RateLimitsConfig {
            events,
            clients,
            policies: _, // `PolicyRules` has them
        } = config;
        Self {
            client_matchers: Policies::new(clients.iter().map(|rule| &rule.rules[..])),
            events,
            clients,
        }
    }

    /// The event limits that the request is charged to. `None` if none are configured.
    pub(super) fn event_charges<'e>(
        &self,
        request: &ExplainRequest<'_>,
        info: &'e RequestInfo<'_>,
        user: &'e UserInfo,
    ) -> Option<Vec<EventLimitCharge<'e>>> {
        let EventRateLimitConfig {
            limits,
            groups,
            dry_run,
            ..
        } = self.events.as_ref()?;
        let Some(write) = EventWrite::from_request(info, *groups) else {
            return Some(Vec::new());
        };
        let key = event_key(write, request, info);
        let event = LimitedEvent {
            namespace: info.namespace(),
            user: user.name.as_bytes(),
            source_and_object: Cow::default(),
            warning: false,
        };
        let charge = |(limit, config): (usize, &EventLimitConfig)| {
            let key = match config.limit_type {
                LimitType::SourceAndObject => key.clone().map(Cow::Owned),
                LimitType::Namespace => Ok(Cow::Borrowed(event.namespace)),
                LimitType::User => Ok(Cow::Borrowed(event.user)),
                LimitType::Server => Ok(Cow::default()),
            };
            EventLimitCharge {
                limit,
                r#type: config.limit_type.name(),
                qps: config.qps,
                burst: config.burst,
                needs: key.as_ref().err().copied(),
                key: key.ok().map(RequestBytes),
                dry_run: *dry_run,
            }
        };
        Some(limits.iter().enumerate().map(charge).collect())
    }

    /// The rules of `clientLimits` that match the request. `None` if none are configured.
    pub(super) fn client_charges<'e>(
        &'e self,
        request: &ExplainRequest<'_>,
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) -> Option<Vec<ClientRuleCharge<'e>>> {
        if self.clients.is_empty() {
            return None;
        }
        let digest = RequestDigest::new(info, user);
        let matching = self.client_matchers.matching_entries(&digest);
        let rules = matching.filter_map(|n| self.clients.get(n));
        Some(
            rules
                .map(|rule| rule_charge(rule, request, info, user))
                .collect(),
        )
    }
}

/// The key of source and object, or what is missing.
fn event_key(
    write: EventWrite,
    request: &ExplainRequest<'_>,
    info: &RequestInfo<'_>,
) -> Result<Vec<u8>, &'static str> {
    let content_type = request.content_type.as_deref().map(str::as_bytes);
    let encoding = match write {
        EventWrite::Create | EventWrite::Update => EventEncoding::from_content_type(content_type),
        EventWrite::Patch => {
            let apply = EventEncoding::from_patch_content_type(content_type);
            // A patch has the key of its event, if that was written through this weir.
            Some(apply.ok_or("the event that is patched")?)
        }
    };
    let Some(encoding) = encoding else {
        return Ok(Vec::new());
    };
    let body = request.body.as_deref().ok_or("body")?;
    let group_version = match info.api_group() {
        b"" => Cow::Borrowed(info.api_version()),
        group => Cow::Owned([group, b"/", info.api_version()].concat()),
    };
    let event = body::parse(encoding, &group_version, body.as_bytes());
    let event = event.filter(|event| event.version_accepted);
    Ok(event.map(|event| event.key.concat()).unwrap_or_default())
}

fn rule_charge<'e>(
    rule: &'e ClientLimitRule,
    request: &ExplainRequest<'_>,
    info: &RequestInfo<'_>,
    user: &UserInfo,
) -> ClientRuleCharge<'e> {
    let needs = match rule.distinguisher {
        ClientDistinguisher::SourceAddress if request.source_address.is_none() => {
            Some("source_address")
        }
        ClientDistinguisher::UserAndAgent if request.user_agent.is_none() => Some("user_agent"),
        ClientDistinguisher::Namespace
        | ClientDistinguisher::SourceAddress
        | ClientDistinguisher::User
        | ClientDistinguisher::UserAndAgent => None,
    };
    let source = RequestSource {
        address: request
            .source_address
            .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        user_agent: request.user_agent.as_deref().unwrap_or_default().as_bytes(),
    };
    let attributes = AdmissionAttributes { info, user };
    let client = LimitedClient::from_request(rule.distinguisher, &attributes, &source);
    let client = needs.is_none().then(|| client.display_name());
    ClientRuleCharge {
        rule: &rule.name,
        client: client.map(|name| RequestBytes(Cow::Owned(name))),
        needs,
        dry_run: rule.dry_run,
        max_delay_s: match rule.response {
            ClientLimitResponse::Delay(limit) => Some(limit.as_secs_f64()),
            ClientLimitResponse::Reject => None,
        },
        limits: charged_limits(rule, info),
    }
}

fn charged_limits(rule: &ClientLimitRule, info: &RequestInfo<'_>) -> Vec<ClientLimitCharge> {
    let charge = |kind: ClientLimitKind, per| ClientLimitCharge {
        limit: kind.name(),
        per,
        ..ClientLimitCharge::default()
    };
    let rate = |kind, per, rate: Rate| ClientLimitCharge {
        qps: Some(rate.per_second()),
        burst: Some(rate.burst()),
        ..charge(kind, per)
    };
    let concurrent = |kind, per, limit| ClientLimitCharge {
        concurrent: Some(limit),
        ..charge(kind, per)
    };
    let write = is_write(info);
    let names_object = info.is_resource_request() && !info.name().is_empty();
    let requests = rule.requests;
    let writes = rule.writes.filter(|_| write);
    let backoff = rule.object_backoff.filter(|_| write && names_object);
    let slots = if *info.verb() == Verb::Watch {
        let watches = rule.long_running.watches;
        watches.map(|limit| concurrent(ClientLimitKind::LongRunning, "client", limit))
    } else if info.long_running() {
        let streams = rule.long_running.streams;
        streams.map(|limit| concurrent(ClientLimitKind::LongRunning, "client", limit))
    } else {
        let limit = rule.concurrency;
        limit.map(|limit| concurrent(ClientLimitKind::Concurrency, "client and resource", limit))
    };
    let charges = [
        requests.map(|limit| rate(ClientLimitKind::Requests, "client", limit)),
        writes.map(|limit| rate(ClientLimitKind::Writes, "rule", limit)),
        backoff.map(|backoff| ClientLimitCharge {
            base_s: Some(backoff.base.as_secs_f64()),
            max_s: Some(backoff.max.as_secs_f64()),
            ..charge(ClientLimitKind::ObjectBackoff, "client and object")
        }),
        slots,
    ];
    charges.into_iter().flatten().collect()
}
