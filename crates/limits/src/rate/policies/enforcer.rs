//! Decides about requests by the policies.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::config::{PolicyAction, PolicyCondition, PolicyLimit, PolicyRule};
use super::metrics::{PolicyCounters, PolicyMetrics};
use super::request::{PolicyRequest, RequestField};
use crate::enforcement::{EnforcementOverride, EnforcementSwitch};
use crate::rate::bucket_table::{BucketTable, SharedScope};
use crate::rate::keyed_slots::{KeyedSlotHandle, KeyedSlots};
use crate::rate::lru_key::{LruKey, LruKeyHasher};
use crate::rate::spin_lock::spin_lock;
use crate::rate::top_keys::{RateLimitSnapshot, TopKey, TopKeys};
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::Sharing;
use crate::shared_limits::source::{RefillSource, SourceCall};
use crate::throttling::token_bucket::retry_after_seconds;
use weir_base::metrics::Registry;
use weir_cel::EvaluationError;
use weir_flowcontrol::matching::{Policies, RequestDigest};
use weir_kubernetes::numeric::{saturating_i64, saturating_usize};

/// The most idle buckets that a request evicts: more than the one that it may add.
const MAX_EVICTIONS: usize = 2;

/// All policies.
#[derive(Debug)]
pub struct RequestPolicies {
    index: Policies,
    policies: Box<[Arc<PolicyEnforcer>]>,
    keys: LruKeyHasher,
}

/// A policy with its state.
#[derive(Debug)]
pub(super) struct PolicyEnforcer {
    rule: PolicyRule,
    name: Arc<str>,
    tag: Option<Arc<str>>,
    enforcement: Arc<EnforcementSwitch>,
    /// Locked for one decision.
    pub(super) buckets: Option<Mutex<BucketTable>>,
    slots: Option<Arc<KeyedSlots>>,
    /// The users with the most effects. Locked for one effect.
    top_users: Mutex<TopKeys>,
    counters: PolicyCounters,
}

/// What the policies say of a request. Drop releases the slots that it holds of limits.
#[derive(Debug, Default)]
pub struct PolicyDecision {
    /// Why it goes no further; `None` if it does.
    pub rejection: Option<PolicyRejection>,
    /// Why it would go no further, if the policies that only count were enforced.
    pub dry_run_rejections: Vec<PolicyRejection>,
    /// What the audit log and the top talkers have of it.
    pub notes: PolicyNotes,
    slots: Vec<KeyedSlotHandle>,
}

/// The slots that a request holds until its end. Drop releases them.
#[derive(Debug)]
pub struct PolicyPermit(#[expect(dead_code, reason = "kept for its drop")] Vec<KeyedSlotHandle>);

/// What is recorded of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyNotes {
    /// The policy that denied or rejected it.
    pub rejected_by: Option<Arc<str>>,
    /// Its tags, in the order of the policies.
    pub tags: Vec<Arc<str>>,
}

impl PolicyNotes {
    /// Whether there is nothing to record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A request that a policy denies or rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRejection {
    /// The policy.
    pub policy: Arc<str>,
    /// Whether the response is 403, and a retry makes no sense.
    pub is_denial: bool,
    /// Whether its limit rejects the request.
    pub is_by_limit: bool,
    /// What the policy says; `None` for weir's own words.
    pub message: Option<String>,
    /// Whole seconds until a retry makes sense.
    pub retry_after: u32,
    /// The same, not rounded, of a rate.
    pub wait: Duration,
}

impl PolicyDecision {
    /// What the request holds until its end, if it holds anything.
    #[must_use]
    pub fn into_permit(self) -> Option<PolicyPermit> {
        (!self.slots.is_empty()).then_some(PolicyPermit(self.slots))
    }
}

impl RequestPolicies {
    /// The policies, which replace those of `earlier`. One that is in both keeps its state. Requests
    /// release what they hold of others as before.
    #[must_use]
    pub fn replacing(
        earlier: Option<&Self>,
        rules: &[PolicyRule],
        enforcement: &Arc<EnforcementSwitch>,
        sharing: Option<&Sharing>,
        registry: &Registry,
    ) -> Self {
        let metrics = PolicyMetrics::register(registry);
        let known = earlier.map(|earlier| &*earlier.policies);
        let known = known.unwrap_or_default();
        for gone in known.iter().filter(|known| !rules.contains(&known.rule)) {
            metrics.remove_gauges(&gone.name);
        }
        let enforcer = |rule: &PolicyRule| {
            if let Some(known) = known.iter().find(|known| known.rule == *rule) {
                return Arc::clone(known);
            }
            let enforcer = PolicyEnforcer::new(rule, &metrics, enforcement, sharing);
            let enforcer = Arc::new(enforcer);
            if let Some(sharing) = sharing.filter(|_| enforcer.buckets.is_some()) {
                let source: Weak<PolicyEnforcer> = Arc::downgrade(&enforcer);
                sharing.add_source(source);
            }
            enforcer
        };
        Self {
            index: Policies::indexed(rules.iter().map(|rule| &rule.rules[..])),
            policies: rules.iter().map(enforcer).collect(),
            keys: match earlier {
                Some(earlier) => earlier.keys,
                None => LruKeyHasher::sharing(sharing),
            },
        }
    }

    /// Decides about a request that arrives at `now`, `unix_second` by the wall clock. `None` if no
    /// policy is for it.
    #[must_use]
    pub fn decide(
        &self,
        request: &PolicyRequest<'_>,
        now: Instant,
        unix_second: i64,
    ) -> Option<Box<PolicyDecision>> {
        let digest = RequestDigest::new(request.attributes.info, request.attributes.user);
        let matching = self.index.matching_entries(&digest);
        let mut decided: Option<Box<PolicyDecision>> = None;
        for policy in matching.filter_map(|n| self.policies.get(n)) {
            if !policy.applies(request, unix_second) {
                continue;
            }
            let decision = decided.get_or_insert_default();
            let Some(rejection) = policy.effect(request, &self.keys, now, decision) else {
                continue;
            };
            if policy.record_effect(request) {
                decision.notes.rejected_by = Some(Arc::clone(&policy.name));
                decision.rejection = Some(rejection);
                break;
            }
            decision.dry_run_rejections.push(rejection);
        }
        decided
    }

    /// Removes the gauges of all policies, when there are none any more.
    pub(in crate::rate) fn remove_gauges(&self, registry: &Registry) {
        let metrics = PolicyMetrics::register(registry);
        let names = self.policies.iter().map(|policy| &policy.name);
        names.for_each(|name| metrics.remove_gauges(name));
    }

    /// The state of each policy.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        self.policies
            .iter()
            .map(|policy| policy.snapshot())
            .collect()
    }

    /// The users with the most effects, for each policy.
    #[must_use]
    pub fn top_keys(&self) -> Vec<(Arc<str>, Vec<TopKey>)> {
        let top = |policy: &Arc<PolicyEnforcer>| {
            let users = spin_lock(&policy.top_users).sorted();
            (Arc::clone(&policy.name), users)
        };
        self.policies.iter().map(top).collect()
    }
}

impl PolicyRule {
    /// Whether it is for a request that its rules select.
    ///
    /// # Errors
    /// A condition has no value, and none is false. `failurePolicy` says what that means.
    pub fn matches(
        &self,
        request: &PolicyRequest<'_>,
        unix_second: i64,
    ) -> Result<bool, EvaluationError> {
        let agent = request.source.user_agent;
        let is_selected = self.until.is_none_or(|until| unix_second < until)
            && (self.user_agents.is_empty() || self.user_agents.iter().any(|of| of.matches(agent)));
        if !is_selected || self.conditions.is_empty() {
            return Ok(is_selected);
        }
        let input = request.condition_input();
        let mut outcome = Ok(true);
        for PolicyCondition { condition, .. } in &self.conditions {
            match condition.evaluate(&input) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

impl PolicyEnforcer {
    fn new(
        rule: &PolicyRule,
        metrics: &PolicyMetrics,
        enforcement: &Arc<EnforcementSwitch>,
        sharing: Option<&Sharing>,
    ) -> Self {
        let limit = rule.action.limit();
        let buckets = limit.and_then(|limit| {
            let name = format!("policy {}", rule.name);
            let shared = sharing.map(|sharing| SharedScope {
                sharing,
                name: &name,
            });
            let capacity = saturating_usize(limit.max_keys);
            Some(BucketTable::new(limit.requests?, 0.0, capacity, shared))
        });
        Self {
            name: rule.name.as_str().into(),
            tag: rule.action.tag().map(Arc::from),
            enforcement: Arc::clone(enforcement),
            buckets: buckets.map(Mutex::new),
            slots: limit.and_then(|limit| limit.in_flight.map(KeyedSlots::new)),
            top_users: Mutex::default(),
            counters: metrics.for_policy(&rule.name, &rule.action),
            rule: rule.clone(),
        }
    }

    /// Whether it is for a request that its rules select. Counts that.
    fn applies(&self, request: &PolicyRequest<'_>, unix_second: i64) -> bool {
        let applies = !self.is_lifted()
            && self.rule.matches(request, unix_second).unwrap_or_else(|_| {
                self.counters.errors.inc();
                self.rule.applies_on_error
            });
        if applies {
            self.counters.matches.inc();
        }
        applies
    }

    /// Whether an operator lets requests pass without this policy: a bypass lifts limits, and a denial
    /// is none.
    fn is_lifted(&self) -> bool {
        let is_limit = matches!(
            self.rule.action,
            PolicyAction::Limit(_) | PolicyAction::Reject { .. }
        );
        is_limit && self.enforcement.get() == EnforcementOverride::Lifted
    }

    fn is_dry_run(&self) -> bool {
        match self.enforcement.get() {
            EnforcementOverride::Lifted => self.rule.dry_run,
            EnforcementOverride::Configured
            | EnforcementOverride::DryRun
            | EnforcementOverride::Enforced => self.enforcement.is_dry_run(self.rule.dry_run),
        }
    }

    /// What it does with the request: a rejection, or something that `decision` takes up.
    fn effect(
        &self,
        request: &PolicyRequest<'_>,
        keys: &LruKeyHasher,
        now: Instant,
        decision: &mut PolicyDecision,
    ) -> Option<PolicyRejection> {
        let rejection = |message| PolicyRejection {
            policy: Arc::clone(&self.name),
            is_denial: false,
            is_by_limit: false,
            message,
            retry_after: 0,
            wait: Duration::ZERO,
        };
        match &self.rule.action {
            PolicyAction::Deny(message) => Some(PolicyRejection {
                is_denial: true,
                ..rejection(message.render(request))
            }),
            PolicyAction::Reject {
                message,
                retry_after,
            } => Some(PolicyRejection {
                retry_after: *retry_after,
                ..rejection(message.render(request))
            }),
            PolicyAction::Limit(limit) => {
                let wait = self.exceeds(limit, request, keys, now, decision)?;
                Some(PolicyRejection {
                    is_by_limit: true,
                    retry_after: retry_after_seconds(wait),
                    wait,
                    ..rejection(limit.message.render(request))
                })
            }
            PolicyAction::Tag(_) => {
                if self.record_effect(request) {
                    decision.notes.tags.extend(self.tag.clone());
                }
                None
            }
        }
    }

    /// Charges the limit. Returns the time until a retry makes sense, if the request exceeds it; when
    /// a slot becomes free is unknown.
    fn exceeds(
        &self,
        limit: &PolicyLimit,
        request: &PolicyRequest<'_>,
        keys: &LruKeyHasher,
        now: Instant,
        decision: &mut PolicyDecision,
    ) -> Option<Duration> {
        let key = limit_key(&limit.key, request, keys);
        if let Some(buckets) = &self.buckets {
            let mut buckets = spin_lock(buckets);
            buckets.evict_full(now, MAX_EVICTIONS);
            let (taken, _) = buckets.reserve(key, true, now, Duration::ZERO);
            let count = buckets.len();
            drop(buckets);
            self.counters.keys.set(saturating_i64(count));
            if let Err(wait) = taken {
                return Some(wait);
            }
        }
        let mut slot = self.slots.as_ref()?.handle(key);
        if !slot.try_acquire() {
            return Some(Duration::ZERO);
        }
        decision.slots.push(slot);
        None
    }

    /// Counts an effect. Returns whether it is enforced.
    fn record_effect(&self, request: &PolicyRequest<'_>) -> bool {
        let is_enforced = !self.is_dry_run();
        let counter = if is_enforced {
            &self.counters.effects
        } else {
            &self.counters.dry_run_effects
        };
        counter.inc();
        spin_lock(&self.top_users).add(request.attributes.user.distinguisher().as_bytes());
        is_enforced
    }

    fn snapshot(&self) -> RateLimitSnapshot {
        let counters = &self.counters;
        let effects = counters.effects.get() + counters.dry_run_effects.get();
        let rejected = if self.tag.is_some() { 0 } else { effects };
        let limit = self.rule.action.limit().filter(|_| self.buckets.is_some());
        RateLimitSnapshot {
            name: format!("policies/{}", self.name),
            allows: self.rule.action.summary(),
            dry_run: self.is_dry_run(),
            passed: counters.matches.get().saturating_sub(rejected),
            delayed: 0,
            rejected,
            keys: u64::try_from(counters.keys.get()).unwrap_or_default(),
            most_keys: limit.map_or(0, |limit| limit.max_keys.into()),
            top: spin_lock(&self.top_users).sorted(),
        }
    }
}

/// What a limit counts the request by.
fn limit_key(fields: &[RequestField], request: &PolicyRequest<'_>, keys: &LruKeyHasher) -> LruKey {
    let values: Vec<Cow<'_, [u8]>> = fields.iter().map(|field| field.key(request)).collect();
    keys.hash_separate(values.iter().map(|value| &**value))
}

impl RefillSource for PolicyEnforcer {
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        if let Some(buckets) = &self.buckets {
            spin_lock(buckets).collect(0, now, max_keys, calls);
        }
    }

    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        if let Some(buckets) = &self.buckets {
            spin_lock(buckets).apply(call.key, answer, now);
        }
    }
}
