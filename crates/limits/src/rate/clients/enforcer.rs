//! Enforces the rules of `clientLimits`: matches, delays, rejects and counts requests.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::IntCounter;

use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use crate::enforcement::EnforcementSwitch;
use crate::rate::clients::config::{
    ClientDistinguisher, ClientLimitResponse, ClientLimitRule, rule_summary,
};
use crate::rate::clients::metrics::{ClientLimitMetrics, ClientRuleMetrics};
use crate::rate::clients::tables::{
    ClientLimitDecision, ClientLimitKind, ClientLimitRequest, ClientRuleTables, ObjectWriteOutcome,
};
use crate::rate::keyed_slots::{KeyedSlotHandle, KeyedSlots};
use crate::rate::lru_key::{LruKey, LruKeyHasher};
use crate::rate::spin_lock::spin_lock;
use crate::rate::top_keys::{RateLimitSnapshot, TopKey, TopKeys};
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{RefillSource, Sharing, SourceCall};
use crate::throttling::token_bucket::retry_after_seconds;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_flowcontrol::matching;
use weir_flowcontrol::matching::Policies;
use weir_kubernetes::numeric::saturating_i64;
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// The prefix of the user names of service accounts.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// A request that a rule has rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimitRejection {
    /// The rule that rejected it.
    pub rule: Arc<str>,
    /// The limit of the rule.
    pub limit: ClientLimitKind,
    /// Whole seconds until a retry makes sense.
    pub retry_after: u32,
    /// The same, not rounded.
    pub wait: Duration,
}

/// All rules of `clientLimits`.
#[derive(Debug)]
pub struct ClientLimits {
    rule_matchers: Policies,
    rules: Box<[Arc<ClientRuleEnforcer>]>,
    keys: LruKeyHasher,
}

/// A rule with its state.
#[derive(Debug)]
pub(super) struct ClientRuleEnforcer {
    rule: ClientLimitRule,
    /// Whether it is enforced.
    enforcement: Arc<EnforcementSwitch>,
    name: Arc<str>,
    /// Locked for one decision.
    pub(super) tables: Mutex<ClientRuleTables>,
    concurrency: Option<Arc<KeyedSlots>>,
    watches: Option<Arc<KeyedSlots>>,
    streams: Option<Arc<KeyedSlots>>,
    /// Locked for one rejection.
    top_clients: Mutex<TopKeys>,
    counters: ClientRuleMetrics,
}

/// What a request holds until the end of its response, and the backoffs that its status code is
/// recorded for.
#[derive(Debug, Default)]
pub struct ClientLimitPermit {
    /// Kept for their drop.
    slots: Vec<KeyedSlotHandle>,
    object_writes: Vec<(Arc<ClientRuleEnforcer>, LruKey)>,
    admitted_at: Option<Instant>,
    dry_run_rejections: Vec<ClientLimitRejection>,
}

impl ClientLimitPermit {
    /// Takes the rejections by rules that only count.
    pub fn take_dry_run_rejections(&mut self) -> Vec<ClientLimitRejection> {
        std::mem::take(&mut self.dry_run_rejections)
    }

    /// When the request was admitted, if it was delayed. Its time in a queue starts then.
    #[must_use]
    pub const fn admitted_after_delay(&self) -> Option<Instant> {
        self.admitted_at
    }

    /// Records the response later for the object that a request writes to.
    fn track_object(
        &mut self,
        rule: &Arc<ClientRuleEnforcer>,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
    ) {
        let object = rule.object_key(keys, client, info);
        self.object_writes
            .extend(object.map(|key| (Arc::clone(rule), key)));
    }

    /// Records the status code of the upstream's response.
    pub fn record_response(&mut self, code: u16, sent: Instant, now: Instant) {
        for (rule, object) in self.object_writes.drain(..) {
            spin_lock(&rule.tables).record_response(
                object,
                ObjectWriteOutcome::from_status_code(code),
                sent,
                now,
            );
        }
    }
}

impl ClientLimits {
    /// Creates the rules and registers their metrics in `registry`.
    #[must_use]
    pub fn new(rules: &[ClientLimitRule], registry: &Registry) -> Self {
        Self::replacing(None, rules, &Arc::default(), None, registry)
    }

    /// The rules, which replace those of `earlier`. A rule that is in both keeps its state.
    /// Requests release what they hold of other rules as before.
    #[must_use]
    pub fn replacing(
        earlier: Option<&Self>,
        rules: &[ClientLimitRule],
        enforcement: &Arc<EnforcementSwitch>,
        sharing: Option<&Sharing>,
        registry: &Registry,
    ) -> Self {
        let metrics = ClientLimitMetrics::register(registry);
        let known = earlier.map(|earlier| &*earlier.rules).unwrap_or_default();
        for gone in known.iter().filter(|known| !rules.contains(&known.rule)) {
            metrics.remove_gauges(&gone.rule.name);
        }
        let enforcer = |rule: &ClientLimitRule| {
            if let Some(known) = known.iter().find(|known| known.rule == *rule) {
                return Arc::clone(known);
            }
            let enforcer = Arc::new(ClientRuleEnforcer {
                name: rule.name.as_str().into(),
                tables: Mutex::new(ClientRuleTables::new(rule, sharing)),
                concurrency: rule.concurrency.map(KeyedSlots::new),
                watches: rule.long_running.watches.map(KeyedSlots::new),
                streams: rule.long_running.streams.map(KeyedSlots::new),
                top_clients: Mutex::default(),
                counters: metrics.for_rule(&rule.name),
                rule: rule.clone(),
                enforcement: Arc::clone(enforcement),
            });
            if let Some(sharing) = sharing {
                let source: Weak<ClientRuleEnforcer> = Arc::downgrade(&enforcer);
                sharing.add_source(source);
            }
            enforcer
        };
        Self {
            rule_matchers: Policies::new(rules.iter().map(|rule| &rule.rules[..])),
            rules: rules.iter().map(enforcer).collect(),
            keys: match earlier {
                Some(earlier) => earlier.keys,
                None => LruKeyHasher::sharing(sharing),
            },
        }
    }

    /// Admits a request, after a delay if necessary. Requests are admitted in the order of arrival,
    /// and wait until `deadline` at most.
    ///
    /// # Errors
    /// A rule rejects the request. All other rules are charged nevertheless.
    ///
    /// # Cancel safety
    /// A request that is cancelled while it waits releases its slots; its tokens are spent.
    pub async fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Result<Option<Box<ClientLimitPermit>>, ClientLimitRejection> {
        let Some(charged) = self.charge(attributes, source, arrived, deadline)? else {
            return Ok(None);
        };
        let wait = charged.wait;
        if !wait.is_zero() {
            tokio::time::sleep_until((arrived + wait).into()).await;
        }
        let mut permit = Box::<ClientLimitPermit>::default();
        permit.dry_run_rejections = charged.dry_run_rejections;
        let mut delayed = !wait.is_zero();
        for charge in charged.rules {
            let Some(rule) = self.rules.get(charge.rule) else {
                continue; // unreachable: it was charged
            };
            let acquired =
                rule.acquire_slot(&self.keys, &charge.client, attributes.info, charge.until);
            match acquired.await {
                Ok(SlotOutcome::Immediate(slot)) => {
                    rule.record_passed(charge.delay);
                    permit.slots.extend(slot);
                }
                Ok(SlotOutcome::Waited(slot)) => {
                    permit.slots.push(slot);
                    delayed = true;
                }
                Err(rejection) if rule.is_dry_run() => permit.dry_run_rejections.push(rejection),
                Err(rejection) => return Err(rejection),
            }
            permit.track_object(rule, &self.keys, &charge.client, attributes.info);
        }
        permit.admitted_at = delayed.then(|| Clock.now());
        Ok(Some(permit))
    }

    /// Charges the rates and backoffs of all rules that match. `None` if none does.
    ///
    /// # Errors
    /// A rule rejects the request. All other rules are charged nevertheless.
    pub fn charge(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Result<Option<ChargedRequest>, ClientLimitRejection> {
        let digest = matching::RequestDigest::new(attributes.info, attributes.user);
        let matching = self.rule_matchers.matching_entries(&digest);
        let mut charged = ChargedRequest::default();
        let mut longest_rejection: Option<ClientLimitRejection> = None;
        let mut any = false;
        for (n, rule) in matching.filter_map(|n| Some((n, self.rules.get(n)?))) {
            any = true;
            let client = LimitedClient::from_request(rule.rule.distinguisher, attributes, &source);
            let max_wait = rule.max_wait(arrived, deadline);
            let delay = rule.charge(&self.keys, &client, attributes.info, arrived, max_wait);
            let delay = match delay {
                Err(rejection) if rule.is_dry_run() => {
                    charged.dry_run_rejections.push(rejection);
                    Ok(Some(Duration::ZERO))
                }
                delay => delay,
            };
            match delay {
                Ok(delay) => {
                    charged.wait = charged.wait.max(delay.unwrap_or_default());
                    charged.rules.push(ChargedRule {
                        rule: n,
                        client,
                        until: arrived + max_wait,
                        delay,
                    });
                }
                Err(rejection)
                    if longest_rejection
                        .as_ref()
                        .is_none_or(|r| r.retry_after < rejection.retry_after) =>
                {
                    longest_rejection = Some(rejection);
                }
                Err(_) => {}
            }
        }
        let Some(longest_rejection) = longest_rejection else {
            return Ok(any.then_some(charged));
        };
        for charge in charged.rules {
            if let Some(rule) = self.rules.get(charge.rule) {
                rule.record_passed(charge.delay);
            }
        }
        Err(longest_rejection)
    }

    /// Acquires the slots of a request at once, if they are free. `None` if it may wait for them.
    ///
    /// # Errors
    /// A rule rejects the request.
    pub fn try_acquire_slots(
        &self,
        charged: &ChargedRequest,
        info: &RequestInfo<'_>,
        now: Instant,
    ) -> Result<Option<Box<ClientLimitPermit>>, ClientLimitRejection> {
        let mut permit = Box::<ClientLimitPermit>::default();
        for charge in &charged.rules {
            let Some(rule) = self.rules.get(charge.rule) else {
                continue; // unreachable: it was charged
            };
            if let Some((limit, mut handle)) = rule.slot_handle(&self.keys, &charge.client, info) {
                if handle.try_acquire() {
                    permit.slots.push(handle);
                } else if !rule.is_dry_run() && now < charge.until {
                    return Ok(None);
                } else {
                    let rejection = rule.record_rejection(&charge.client, limit, Duration::ZERO);
                    if !rule.is_dry_run() {
                        return Err(rejection);
                    }
                }
            }
            permit.track_object(rule, &self.keys, &charge.client, info);
        }
        Ok(Some(permit))
    }

    /// Removes the gauges of all rules, when there are no rules any more.
    pub fn remove_gauges(&self, registry: &Registry) {
        let metrics = ClientLimitMetrics::register(registry);
        let names = self.rules.iter().map(|rule| &rule.name);
        names.for_each(|name| metrics.remove_gauges(name));
    }

    /// The state of each rule.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        self.rules.iter().map(|rule| rule.snapshot()).collect()
    }

    /// The clients with the most rejections, for each rule.
    #[must_use]
    pub fn top_keys(&self) -> Vec<(Arc<str>, Vec<TopKey>)> {
        let top_keys = |rule: &Arc<ClientRuleEnforcer>| {
            (
                Arc::clone(&rule.name),
                spin_lock(&rule.top_clients).sorted(),
            )
        };
        self.rules.iter().map(top_keys).collect()
    }
}

/// A request that the rates of all rules have admitted.
#[derive(Debug, Default)]
pub struct ChargedRequest {
    rules: Vec<ChargedRule>,
    dry_run_rejections: Vec<ClientLimitRejection>,
    /// How long it has to wait for its tokens.
    pub wait: Duration,
}

#[derive(Debug)]
struct ChargedRule {
    /// The index of the rule.
    rule: usize,
    client: LimitedClient,
    /// How long the request may wait for the rule.
    until: Instant,
    /// `Some` if a rate was exceeded.
    delay: Option<Duration>,
}

/// A client in the sense of a rule, as text.
#[derive(Debug)]
pub struct LimitedClient {
    kind: &'static [u8],
    name: Vec<u8>,
    user_agent: Vec<u8>,
}

impl LimitedClient {
    /// The client of a request, by what its rule distinguishes.
    #[must_use]
    pub fn from_request(
        distinguisher: ClientDistinguisher,
        attributes: &AdmissionAttributes<'_>,
        source: &RequestSource<'_>,
    ) -> Self {
        let user = attributes.user.name.as_str();
        let (kind, name) = match distinguisher {
            ClientDistinguisher::Namespace => {
                let account = user.strip_prefix(SERVICE_ACCOUNT_PREFIX);
                match account.and_then(|account| account.split_once(':')) {
                    Some((namespace, _)) => (&b"namespace"[..], namespace.to_owned()),
                    None => (&b"user"[..], user.to_owned()),
                }
            }
            ClientDistinguisher::SourceAddress => {
                (&b"address"[..], source.address.to_canonical().to_string())
            }
            ClientDistinguisher::User | ClientDistinguisher::UserAndAgent => {
                (&b"user"[..], user.to_owned())
            }
        };
        let user_agent = match distinguisher {
            ClientDistinguisher::UserAndAgent => source.user_agent.to_vec(),
            ClientDistinguisher::Namespace
            | ClientDistinguisher::SourceAddress
            | ClientDistinguisher::User => Vec::new(),
        };
        Self {
            kind,
            name: name.into_bytes(),
            user_agent,
        }
    }

    fn key_parts(&self) -> [&[u8]; 3] {
        [self.kind, &self.name, &self.user_agent]
    }

    /// The name of the client for operators.
    pub fn display_name(&self) -> Vec<u8> {
        if self.user_agent.is_empty() {
            return self.name.clone();
        }
        [&self.name[..], &self.user_agent].join(&b' ')
    }
}

impl ClientRuleEnforcer {
    fn is_dry_run(&self) -> bool {
        self.enforcement.is_dry_run(self.rule.dry_run)
    }

    fn snapshot(&self) -> RateLimitSnapshot {
        let sum = |counters: &[IntCounter]| counters.iter().map(IntCounter::get).sum();
        let counters = &self.counters;
        RateLimitSnapshot {
            name: format!("clientLimits/{}", self.name),
            allows: rule_summary(&self.rule),
            dry_run: self.is_dry_run(),
            passed: counters.passed.get(),
            delayed: sum(&counters.delayed),
            rejected: sum(&counters.rejected),
            keys: u64::try_from(counters.clients.get()).unwrap_or_default(),
            most_keys: self.rule.max_clients.into(),
            top: spin_lock(&self.top_clients).sorted(),
        }
    }

    /// How long a request may wait for this rule.
    fn max_wait(&self, arrived: Instant, deadline: Option<Instant>) -> Duration {
        match self.rule.response {
            ClientLimitResponse::Delay(max_wait) => deadline.map_or(max_wait, |deadline| {
                max_wait.min(deadline.saturating_duration_since(arrived))
            }),
            ClientLimitResponse::Reject => Duration::ZERO,
        }
    }

    /// The key of the object that a request writes to, if the path names it. A create has no name
    /// yet.
    fn object_key(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
    ) -> Option<LruKey> {
        let named = info.is_resource_request() && !info.name().is_empty();
        if self.rule.object_backoff.is_none() || !is_write(info) || !named {
            return None;
        }
        let object = [
            info.api_group(),
            info.resource(),
            info.namespace(),
            info.name(),
        ];
        Some(keys.hash_separate(client.key_parts().into_iter().chain(object)))
    }

    /// Charges the buckets and the backoff, and counts a delay or rejection. Returns the delay if a
    /// limit was exceeded, which is zero in a dry run.
    ///
    /// # Errors
    /// The rule rejects the request, unless it is a dry run.
    fn charge(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Option<Duration>, ClientLimitRejection> {
        let request = ClientLimitRequest {
            client: keys.hash_separate(client.key_parts()),
            write: is_write(info),
            object: self.object_key(keys, client, info),
        };
        let mut tables = spin_lock(&self.tables);
        let decision = tables.charge(&request, now, max_wait);
        let (clients, objects) = tables.entry_counts();
        drop(tables);
        self.counters.clients.set(saturating_i64(clients));
        self.counters.objects.set(saturating_i64(objects));
        match decision {
            ClientLimitDecision::Admit(None) => Ok(None),
            ClientLimitDecision::Admit(Some((limit, wait))) => {
                self.record_delayed(limit, wait);
                Ok(Some(if self.is_dry_run() {
                    Duration::ZERO
                } else {
                    wait
                }))
            }
            ClientLimitDecision::Reject(limit, wait) => {
                Err(self.record_rejection(client, limit, wait))
            }
        }
    }

    /// Counts a request as passed if it got its slot at once and exceeded no rate.
    fn record_passed(&self, delay: Option<Duration>) {
        if delay.is_none() {
            self.counters.passed.inc();
        }
    }

    fn record_delayed(&self, limit: ClientLimitKind, wait: Duration) {
        ClientRuleMetrics::increment(&self.counters.delayed, limit);
        self.counters.delay_seconds.observe(wait.as_secs_f64());
    }

    /// Counts a rejection, enforced or not.
    fn record_rejection(
        &self,
        client: &LimitedClient,
        limit: ClientLimitKind,
        wait: Duration,
    ) -> ClientLimitRejection {
        ClientRuleMetrics::increment(&self.counters.rejected, limit);
        spin_lock(&self.top_clients).add(&client.display_name());
        ClientLimitRejection {
            rule: Arc::clone(&self.name),
            limit,
            retry_after: retry_after_seconds(wait),
            wait,
        }
    }

    /// The slot that the request would hold to its end, if the rule limits any. It is not acquired
    /// yet.
    fn slot_handle(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
    ) -> Option<(ClientLimitKind, KeyedSlotHandle)> {
        let (limit, slots) = if *info.verb() == Verb::Watch {
            (ClientLimitKind::LongRunning, &self.watches)
        } else if info.long_running() {
            (ClientLimitKind::LongRunning, &self.streams)
        } else {
            (ClientLimitKind::Concurrency, &self.concurrency)
        };
        let slots = slots.as_ref()?;
        let resource = [info.api_group(), info.resource()];
        let key_suffix = if limit == ClientLimitKind::Concurrency {
            &resource[..]
        } else {
            &[]
        };
        let parts = client.key_parts().into_iter();
        let key = keys.hash_separate(parts.chain(key_suffix.iter().copied()));
        Some((limit, slots.handle(key)))
    }

    /// Acquires the slot that the request holds to its end, if the rule limits any. All outcomes
    /// but [`SlotOutcome::Immediate`] are counted.
    async fn acquire_slot(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
        until: Instant,
    ) -> Result<SlotOutcome, ClientLimitRejection> {
        let Some((limit, mut handle)) = self.slot_handle(keys, client, info) else {
            return Ok(SlotOutcome::Immediate(None));
        };
        if handle.try_acquire() {
            return Ok(SlotOutcome::Immediate(Some(handle)));
        }
        let started_at = Clock.now();
        let waits = !self.is_dry_run() && started_at < until;
        if waits
            && tokio::time::timeout_at(until.into(), handle.acquire())
                .await
                .is_ok()
        {
            self.record_delayed(limit, Clock.now().saturating_duration_since(started_at));
            return Ok(SlotOutcome::Waited(handle));
        }
        // When a slot becomes free is unknown.
        Err(self.record_rejection(client, limit, Duration::ZERO))
    }
}

/// The outcome of acquiring a slot.
enum SlotOutcome {
    /// Acquired at once; `None` if the rule has no such limit.
    Immediate(Option<KeyedSlotHandle>),
    /// Acquired after a wait.
    Waited(KeyedSlotHandle),
}

/// Whether the request is a write that is not long-running.
pub fn is_write(info: &RequestInfo<'_>) -> bool {
    info.mutating() && !info.long_running()
}

impl RefillSource for ClientRuleEnforcer {
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        spin_lock(&self.tables).collect(now, max_keys, calls);
    }

    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        spin_lock(&self.tables).apply(call, answer, now);
    }
}
