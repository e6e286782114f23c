//! Runs a request through the policies of a configuration.

use std::cell::Cell;
use std::time::Duration;

use serde::Serialize;

use crate::levels::{LevelAtRest, levels_at_rest};
use crate::policies::{PolicyReport, PolicyRules};
use crate::rate_limits::{ClientRuleCharge, EventLimitCharge, RateLimitRules};
use crate::report::{
    FlowSchemaMatchReport, MaxInFlightReport, Prediction, RequestBytes, RequestInfoReport,
    ShuffleShardReport, TriedSchemas, WorkEstimateReport,
};
use crate::request::{ExplainRequest, GivenRequestInfo};
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_flowcontrol::work_estimator::{EstimateContext, ObjectStats, estimate};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::api::user::GROUP_MASTERS;
use weir_kubernetes::request_info::{RequestInfo, TargetError, Verb};
use weir_limits::max_in_flight::{InFlightLimit, MaxInFlightConfig};
use weir_limits::rate::RateLimitsConfig;

/// The policies to explain.
#[derive(Clone, Debug)]
pub struct ExplainedPolicies {
    /// What limits concurrent requests.
    pub concurrency: ConcurrencyPolicy,
    /// Policies, event limits and client limits.
    pub rates: RateLimitsConfig,
    /// `--request-timeout`.
    pub request_timeout: Duration,
}

/// What limits concurrent requests.
#[derive(Clone, Debug)]
pub enum ConcurrencyPolicy {
    /// API Priority and Fairness.
    Fairness {
        /// The seats of all levels together.
        server_concurrency_limit: u32,
        /// All flow schemas and priority levels.
        objects: Vec<Object>,
        /// Whether decisions are only counted.
        dry_run: bool,
    },
    /// Two counters.
    MaxInFlight(MaxInFlightConfig),
}

/// Explains requests. Immutable.
#[derive(Debug)]
pub struct Explainer {
    concurrency: CompiledConcurrency,
    policies: PolicyRules,
    rates: RateLimitRules,
    request_timeout: Duration,
}

#[derive(Debug)]
enum CompiledConcurrency {
    Fairness {
        matcher: Box<Matcher>,
        /// By the index of the level in the matcher.
        levels: Vec<LevelAtRest>,
        dry_run: bool,
    },
    MaxInFlight(MaxInFlightConfig),
}

/// A request whose attributes have been resolved.
#[derive(Debug)]
pub struct ResolvedRequest<'r> {
    pub(super) request: &'r ExplainRequest<'r>,
    pub(super) user: UserInfo,
    target: ResolvedTarget<'r>,
}

#[derive(Debug)]
enum ResolvedTarget<'r> {
    Given(&'r GivenRequestInfo),
    Parsed(Box<RequestInfo<'r>>),
    Rejected(TargetError<'r>),
}

/// The explanation of a request. A field that has no meaning for the request is `None`.
#[derive(Debug, Serialize)]
pub struct Explanation<'e> {
    /// The attributes.
    pub request_info: Option<RequestInfoReport<'e>>,
    /// The schema, the level and the flow.
    pub flow_schema_match: Option<FlowSchemaMatchReport<'e>>,
    /// The queues of the flow.
    pub shuffle_shard: Option<ShuffleShardReport>,
    /// The seats.
    pub work_estimate: Option<WorkEstimateReport<'e>>,
    /// The level.
    pub priority_level: Option<&'e LevelAtRest>,
    /// The counter of max-in-flight, in place of the level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<MaxInFlightReport>,
    /// The policies whose fields select the request. `None` without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<PolicyReport<'e>>>,
    /// The event limits. `None` without any.
    pub event_limits: Option<Vec<EventLimitCharge<'e>>>,
    /// The client limits. `None` without any.
    pub client_limits: Option<Vec<ClientRuleCharge<'e>>>,
    /// What becomes of the request if no other request is there.
    pub at_rest: Prediction,
}

impl<'r> ResolvedRequest<'r> {
    /// Resolves the attributes.
    ///
    /// # Errors
    /// The request has neither `method` and `url` nor `request_info`, or both.
    pub fn new(request: &'r ExplainRequest<'r>) -> Result<Self, &'static str> {
        let target = match (&request.method, &request.url, &request.request_info) {
            (None, None, Some(info)) => ResolvedTarget::Given(info),
            (Some(method), Some(url), None) => match RequestInfo::parse(method, &url.0) {
                Ok(info) => ResolvedTarget::Parsed(Box::new(info)),
                Err(why) => ResolvedTarget::Rejected(why),
            },
            _ => return Err("method and url are expected, or request_info"),
        };
        Ok(Self {
            request,
            user: request.user_info(),
            target,
        })
    }
}

impl Explainer {
    /// Compiles the policies.
    #[must_use]
    pub fn new(policies: ExplainedPolicies) -> Self {
        let concurrency = match policies.concurrency {
            ConcurrencyPolicy::MaxInFlight(config) => CompiledConcurrency::MaxInFlight(config),
            ConcurrencyPolicy::Fairness {
                server_concurrency_limit,
                objects,
                dry_run,
            } => {
                let matcher = Box::new(Matcher::new(&objects));
                CompiledConcurrency::Fairness {
                    levels: levels_at_rest(&matcher, server_concurrency_limit),
                    matcher,
                    dry_run,
                }
            }
        };
        Self {
            concurrency,
            policies: PolicyRules::new(policies.rates.policies.clone()),
            rates: RateLimitRules::new(policies.rates),
            request_timeout: policies.request_timeout,
        }
    }

    /// The names of the schemas that are left out because their level does not exist.
    #[must_use]
    pub fn dangling(&self) -> &[String] {
        match &self.concurrency {
            CompiledConcurrency::Fairness { matcher, .. } => matcher.dangling(),
            CompiledConcurrency::MaxInFlight(_) => &[],
        }
    }

    /// Explains a request.
    #[must_use]
    pub fn explain<'e>(&'e self, resolved: &'e ResolvedRequest<'e>) -> Explanation<'e> {
        let ResolvedRequest {
            request,
            user,
            target,
        } = resolved;
        let mut explanation = Explanation {
            request_info: None,
            flow_schema_match: None,
            shuffle_shard: None,
            work_estimate: None,
            priority_level: None,
            max_in_flight: None,
            policies: None,
            event_limits: None,
            client_limits: None,
            at_rest: Prediction::new("unknown", "method and url are not given"),
        };
        match target {
            ResolvedTarget::Given(given) => self.classify(&given.digest(user), &mut explanation),
            ResolvedTarget::Rejected(TargetError::Malformed(why)) => {
                explanation.request_info = Some(RequestInfoReport::HttpError);
                explanation.at_rest = Prediction::rejection(400, why.reason());
            }
            ResolvedTarget::Rejected(TargetError::Unresolvable(why)) => {
                explanation.request_info = Some(RequestInfoReport::Resolved {
                    info: why.info(),
                    error: Some(why.message()),
                });
                let reason = "kube-apiserver cannot determine kind and namespace";
                explanation.at_rest = Prediction::rejection(500, reason);
            }
            ResolvedTarget::Parsed(info) => {
                explanation.request_info = Some(RequestInfoReport::Resolved { info, error: None });
                self.classify(&RequestDigest::new(info, user), &mut explanation);
                self.estimate(request, info, &mut explanation);
                explanation.max_in_flight = self.max_in_flight(info, user);
                explanation.policies = self.policies.reports(request, info, user);
                explanation.event_limits = self.rates.event_charges(request, info, user);
                explanation.client_limits = self.rates.client_charges(request, info, user);
                explanation.at_rest = self.at_rest(info, &explanation);
            }
        }
        explanation
    }

    /// Adds schema, level and flow.
    fn classify<'e>(&'e self, digest: &RequestDigest<'e>, explanation: &mut Explanation<'e>) {
        let CompiledConcurrency::Fairness {
            matcher, levels, ..
        } = &self.concurrency
        else {
            return;
        };
        let found = matcher.classify(digest);
        let dealer = match found.level.spec.queuing {
            Queuing::Queue { dealer, .. } => Some(dealer),
            Queuing::Exempt | Queuing::Reject => None,
        };
        explanation.priority_level = levels.get(found.schema.level);
        explanation.flow_schema_match = Some(FlowSchemaMatchReport {
            flow_schema: &found.schema.name,
            priority_level: &found.level.spec.name,
            exempt: found.level.is_exempt(),
            dry_run: found.schema.is_dry_run || found.level.is_dry_run,
            flow_distinguisher: RequestBytes::from(found.flow_distinguisher),
            queues: dealer.map_or(0, |dealer| dealer.deck_size()),
            hash: found.flow_hash,
            tried: TriedSchemas {
                schemas: matcher.schemas(),
                mismatches: matcher.explain(digest),
            },
        });
        explanation.shuffle_shard = dealer.map(|dealer| ShuffleShardReport {
            hash: found.flow_hash,
            dealer,
            hand: dealer.deal(found.flow_hash),
        });
    }

    /// Adds the seats.
    fn estimate<'e>(
        &self,
        request: &ExplainRequest<'_>,
        info: &'e RequestInfo<'e>,
        explanation: &mut Explanation<'e>,
    ) {
        let Some(level) = explanation.priority_level else {
            return;
        };
        let counts = GivenCounts {
            request,
            object_count_consulted: Cell::new(false),
            watch_count_consulted: Cell::new(false),
        };
        let max_seats = request.max_seats.unwrap_or(level.max_seats);
        let work = estimate(info, Some(max_seats).filter(|seats| *seats > 0), &counts);
        explanation.work_estimate = Some(WorkEstimateReport {
            info,
            work,
            object_count_consulted: counts.object_count_consulted.get(),
            object_count: request.object_count,
            watch_count_consulted: counts.watch_count_consulted.get(),
        });
    }

    fn max_in_flight(&self, info: &RequestInfo<'_>, user: &UserInfo) -> Option<MaxInFlightReport> {
        let CompiledConcurrency::MaxInFlight(config) = &self.concurrency else {
            return None;
        };
        let (kind, limit) = if info.mutating() {
            ("mutating", config.mutating)
        } else {
            ("readOnly", config.read_only)
        };
        Some(MaxInFlightReport {
            kind,
            limit: match limit {
                InFlightLimit::Limited(limit) => Some(limit.get()),
                InFlightLimit::Unlimited => None,
            },
            exempt: user.in_group(GROUP_MASTERS),
        })
    }

    /// What becomes of the request if no other request is there. In the order of the proxy's
    /// checks.
    fn at_rest(&self, info: &RequestInfo<'_>, explanation: &Explanation<'_>) -> Prediction {
        if info.timeout(self.request_timeout).is_err() {
            return Prediction::rejection(400, "the parameter timeout is not a duration");
        }
        for policy in explanation.policies.iter().flatten() {
            if let Some(code) = policy.rejection_code() {
                let reason = format!("policy {} {}", policy.policy, policy.does);
                return Prediction::rejection(code, reason);
            }
        }
        let rules = explanation.client_limits.iter().flatten();
        if let Some(rule) = rules.into_iter().find(|rule| rule.blocks()) {
            let reason = format!("client limit {} has a rate of 0", rule.rule);
            return Prediction::rejection(429, reason);
        }
        if info.long_running() && *info.verb() != Verb::Watch {
            return Prediction::new(
                "execute",
                "long-running requests other than watches take no seat",
            );
        }
        match (&self.concurrency, explanation.priority_level) {
            (CompiledConcurrency::Fairness { dry_run: true, .. }, _) => {
                Prediction::new("execute", "dry run: every request executes at once")
            }
            (_, Some(level)) if level.kind == "Exempt" => {
                Prediction::new("execute", "an exempt level neither queues nor rejects")
            }
            (CompiledConcurrency::Fairness { .. }, _)
                if explanation
                    .flow_schema_match
                    .as_ref()
                    .is_some_and(|found| found.dry_run) =>
            {
                let why = "dry run: the flow schema or its priority level only counts";
                Prediction::new("execute", why)
            }
            (CompiledConcurrency::Fairness { .. }, _) => {
                Prediction::new("execute", "the level has free seats")
            }
            (CompiledConcurrency::MaxInFlight(_), _) if info.long_running() => {
                Prediction::new("execute", "long-running requests are not counted")
            }
            (CompiledConcurrency::MaxInFlight(_), _) => {
                Prediction::new("execute", "no other request is in flight")
            }
        }
    }
}

impl GivenRequestInfo {
    fn digest<'r>(&'r self, user: &'r UserInfo) -> RequestDigest<'r> {
        RequestDigest {
            is_resource_request: self.is_resource_request,
            verb: &self.verb.0,
            path: self.path.as_bytes(),
            api_group: self.api_group.as_bytes(),
            resource: self.resource.as_bytes(),
            subresource: self.subresource.as_bytes(),
            namespace: self.namespace.as_bytes(),
            user,
        }
    }
}

/// The counts that the request is explained with.
struct GivenCounts<'r> {
    request: &'r ExplainRequest<'r>,
    object_count_consulted: Cell<bool>,
    watch_count_consulted: Cell<bool>,
}

impl EstimateContext for GivenCounts<'_> {
    fn consistent_reads_from_cache(&self) -> bool {
        self.request.consistent_read_supported.unwrap_or(true)
    }

    fn object_stats(&self, _: &[u8], _: &[u8]) -> ObjectStats {
        self.object_count_consulted.set(true);
        let count = self.request.object_count;
        count.map_or(ObjectStats::NotFound, |count| ObjectStats::Counted {
            count,
            average_size: self.request.average_object_size_bytes,
        })
    }

    fn interested_watches(&self, _: &RequestInfo<'_>) -> usize {
        self.watch_count_consulted.set(true);
        self.request.watch_count
    }
}
