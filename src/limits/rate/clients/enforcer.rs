//! The rules at work: who is meant, who waits, what is counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use prometheus::Histogram;
use prometheus::HistogramVec;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use prometheus::IntGaugeVec;

use crate::clock::Clock;
use crate::flowcontrol::matching;
use crate::flowcontrol::matching::Policies;
use crate::limits::AdmissionAttributes;
use crate::limits::rate::RateLimitSnapshot;
use crate::limits::rate::clients::ClientLimitDecision;
use crate::limits::rate::clients::ClientLimitKind;
use crate::limits::rate::clients::ClientLimitRequest;
use crate::limits::rate::clients::ClientRuleTables;
use crate::limits::rate::clients::ObjectWriteOutcome;
use crate::limits::rate::clients::config::ClientDistinguisher;
use crate::limits::rate::clients::config::ClientLimitResponse;
use crate::limits::rate::clients::config::ClientLimitRule;
use crate::limits::rate::clients::keyed_slots::KeyedSlotHandle;
use crate::limits::rate::clients::keyed_slots::KeyedSlots;
use crate::limits::rate::clients::summary::rule_summary;
use crate::limits::rate::lru::LruKey;
use crate::limits::rate::lru::LruKeyHasher;
use crate::limits::rate::spin_lock::spin_lock;
use crate::limits::rate::top_keys::TopKey;
use crate::limits::rate::top_keys::TopKeys;
use crate::limits::retry_after_seconds;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// What the names of service accounts' users begin with.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Upper bounds, in seconds, of the time that requests were delayed.
const DELAY_BUCKETS: [f64; 10] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct RequestSource<'r> {
    /// The address of the connection.
    pub address: IpAddr,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
}

/// A request too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimitRejection {
    /// The rule that refused.
    pub rule: Arc<str>,
    /// Which of its limits.
    pub limit: ClientLimitKind,
    /// Whole seconds until it makes sense to come again.
    pub retry_after: u32,
    /// The same, not rounded.
    pub wait: Duration,
}

/// All rules.
#[derive(Debug)]
pub struct ClientLimits {
    rule_matchers: Policies,
    rules: Box<[Arc<ClientRuleEnforcer>]>,
    keys: LruKeyHasher,
}

/// A rule at work.
#[derive(Debug)]
struct ClientRuleEnforcer {
    rule: ClientLimitRule,
    name: Arc<str>,
    /// Guards the buckets; held for one decision.
    tables: Mutex<ClientRuleTables>,
    concurrency: Option<Arc<KeyedSlots>>,
    watches: Option<Arc<KeyedSlots>>,
    streams: Option<Arc<KeyedSlots>>,
    /// Guards who was refused; held for one refusal.
    top_clients: Mutex<TopKeys>,
    counters: ClientRuleMetrics,
}

/// What is counted of a rule.
#[derive(Debug)]
struct ClientRuleMetrics {
    passed: IntCounter,
    /// By the place of the limit in [`Limit::ALL`].
    rejected: [IntCounter; ClientLimitKind::ALL.len()],
    delayed: [IntCounter; ClientLimitKind::ALL.len()],
    delay_seconds: Histogram,
    clients: IntGauge,
    objects: IntGauge,
}

struct ClientLimitMetrics {
    requests: IntCounterVec,
    delays: HistogramVec,
    keys: IntGaugeVec,
}

impl ClientLimitMetrics {
    fn register(registry: &Registry) -> Self {
        Self {
            requests: registry.counters(
                "weir_client_limit_requests_total",
                "Requests that a rule of clientLimits was about, by what became of them (or would have, with dryRun) and the limit that was met.",
                &["rule", "decision", "limit"],
            ),
            delays: registry.histograms(
                "weir_client_limit_delay_seconds",
                "Time that requests were made to wait by a rule of clientLimits.",
                &["rule"],
                &DELAY_BUCKETS,
            ),
            keys: registry.gauges(
                "weir_client_limit_keys",
                "Clients and failing objects that a rule of clientLimits remembers; at most its maxClients of each.",
                &["rule", "table"],
            ),
        }
    }

    fn for_rule(&self, rule: &str) -> ClientRuleMetrics {
        let count = |decision: &'static str| {
            move |limit: ClientLimitKind| {
                self.requests
                    .with_label_values(&[rule, decision, limit.name()])
            }
        };
        ClientRuleMetrics {
            passed: self.requests.with_label_values(&[rule, "passed", ""]),
            rejected: ClientLimitKind::ALL.map(count("rejected")),
            delayed: ClientLimitKind::ALL.map(count("delayed")),
            delay_seconds: self.delays.with_label_values(&[rule]),
            clients: self.keys.with_label_values(&[rule, "clients"]),
            objects: self.keys.with_label_values(&[rule, "objects"]),
        }
    }
}

impl ClientRuleMetrics {
    fn increment(of: &[IntCounter; ClientLimitKind::ALL.len()], limit: ClientLimitKind) {
        let place = ClientLimitKind::ALL
            .iter()
            .position(|known| *known == limit);
        if let Some(counter) = place.and_then(|place| of.get(place)) {
            counter.inc();
        }
    }
}

/// What a request holds until its answer has ended, and what its answer is to be told to.
#[derive(Debug, Default)]
pub struct ClientLimitPermit {
    _slots: Vec<KeyedSlotHandle>,
    object_writes: Vec<(Arc<ClientRuleEnforcer>, LruKey)>,
    admitted_at: Option<Instant>,
}

impl ClientLimitPermit {
    /// When the request was let through, if it had to wait: its time in a queue begins then.
    #[must_use]
    pub const fn admitted_after_delay(&self) -> Option<Instant> {
        self.admitted_at
    }

    /// The upstream has answered with `code`.
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
    /// Rules that nobody was charged by yet, and that show themselves in `registry`.
    #[must_use]
    pub fn new(rules: &[ClientLimitRule], registry: &Registry) -> Self {
        let metrics = ClientLimitMetrics::register(registry);
        let working = |rule: &ClientLimitRule| {
            Arc::new(ClientRuleEnforcer {
                name: rule.name.as_str().into(),
                tables: Mutex::new(ClientRuleTables::new(rule)),
                concurrency: rule.concurrency.map(KeyedSlots::new),
                watches: rule.long_running.watches.map(KeyedSlots::new),
                streams: rule.long_running.streams.map(KeyedSlots::new),
                top_clients: Mutex::default(),
                counters: metrics.for_rule(&rule.name),
                rule: rule.clone(),
            })
        };
        Self {
            rule_matchers: Policies::new(rules.iter().map(|rule| &rule.rules[..])),
            rules: rules.iter().map(working).collect(),
            keys: LruKeyHasher::default(),
        }
    }

    /// Lets a request through, perhaps after a while: in the order of arrival, at most until `deadline`.
    ///
    /// # Errors
    /// A rule refuses it. All others were charged nevertheless.
    ///
    /// # Cancel safety
    /// A request that goes away while it waits gives its slots back; its tokens are spent.
    pub async fn admit(
        &self,
        digest: &AdmissionAttributes<'_>,
        origin: RequestSource<'_>,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Result<Option<Box<ClientLimitPermit>>, ClientLimitRejection> {
        let asked = matching::RequestDigest::new(digest.info, digest.user);
        let matching = self.rule_matchers.matching_entries(&asked);
        let rules: Vec<_> = matching.filter_map(|n| self.rules.get(n)).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let mut charged = Vec::with_capacity(rules.len());
        let mut wait = Duration::ZERO;
        let mut refused: Option<ClientLimitRejection> = None;
        for rule in rules {
            let client = LimitedClient::from_request(rule.rule.distinguisher, digest, &origin);
            let most = rule.max_wait(arrived, deadline);
            match rule.charge(&self.keys, &client, digest.info, arrived, most) {
                Ok(met) => {
                    wait = wait.max(met.unwrap_or_default());
                    charged.push((rule, client, arrived + most, met));
                }
                Err(no)
                    if refused
                        .as_ref()
                        .is_none_or(|r| r.retry_after < no.retry_after) =>
                {
                    refused = Some(no);
                }
                Err(_) => {}
            }
        }
        if let Some(refused) = refused {
            for (rule, _, _, met) in charged {
                rule.record_passed(met);
            }
            return Err(refused);
        }
        if !wait.is_zero() {
            tokio::time::sleep_until((arrived + wait).into()).await;
        }
        let mut hold = Box::<ClientLimitPermit>::default();
        let mut waited = !wait.is_zero();
        for (rule, client, until, met) in charged {
            let entered = rule.acquire_slot(&self.keys, &client, digest.info, until);
            let (slot, queued) = match entered.await? {
                SlotOutcome::Immediate(slot) => {
                    rule.record_passed(met);
                    (slot, false)
                }
                SlotOutcome::Waited(slot) => (Some(slot), true),
                SlotOutcome::WouldReject => (None, false),
            };
            hold._slots.extend(slot);
            waited |= queued;
            let object = rule.object_key(&self.keys, &client, digest.info);
            hold.object_writes
                .extend(object.map(|key| (Arc::clone(rule), key)));
        }
        hold.admitted_at = waited.then(|| Clock.now());
        Ok(Some(hold))
    }

    /// Each rule as it stands.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        self.rules.iter().map(|rule| rule.snapshot()).collect()
    }

    /// Who was refused most, rule by rule.
    #[must_use]
    pub fn top_keys(&self) -> Vec<(Arc<str>, Vec<TopKey>)> {
        let of = |rule: &Arc<ClientRuleEnforcer>| {
            (
                Arc::clone(&rule.name),
                spin_lock(&rule.top_clients).sorted(),
            )
        };
        self.rules.iter().map(of).collect()
    }
}

/// Who is one client, as texts.
struct LimitedClient {
    kind: &'static [u8],
    name: Vec<u8>,
    user_agent: Vec<u8>,
}

impl LimitedClient {
    fn from_request(
        identity: ClientDistinguisher,
        digest: &AdmissionAttributes<'_>,
        origin: &RequestSource<'_>,
    ) -> Self {
        let user = digest.user.name.as_str();
        let (kind, name) = match identity {
            ClientDistinguisher::Namespace => {
                let account = user.strip_prefix(SERVICE_ACCOUNT_PREFIX);
                match account.and_then(|account| account.split_once(':')) {
                    Some((namespace, _)) => (&b"namespace"[..], namespace.to_owned()),
                    None => (&b"user"[..], user.to_owned()),
                }
            }
            ClientDistinguisher::SourceAddress => {
                (&b"address"[..], origin.address.to_canonical().to_string())
            }
            ClientDistinguisher::User | ClientDistinguisher::UserAndAgent => {
                (&b"user"[..], user.to_owned())
            }
        };
        let agent = match identity {
            ClientDistinguisher::UserAndAgent => origin.user_agent.to_vec(),
            ClientDistinguisher::Namespace
            | ClientDistinguisher::SourceAddress
            | ClientDistinguisher::User => Vec::new(),
        };
        Self {
            kind,
            name: name.into_bytes(),
            user_agent: agent,
        }
    }

    fn key_parts(&self) -> [&[u8]; 3] {
        [self.kind, &self.name, &self.user_agent]
    }

    /// As an operator reads it.
    fn display_name(&self) -> Vec<u8> {
        if self.user_agent.is_empty() {
            return self.name.clone();
        }
        [&self.name[..], &self.user_agent].join(&b' ')
    }
}

impl ClientRuleEnforcer {
    fn snapshot(&self) -> RateLimitSnapshot {
        let sum = |counters: &[IntCounter]| counters.iter().map(IntCounter::get).sum();
        let counters = &self.counters;
        RateLimitSnapshot {
            name: format!("clientLimits/{}", self.name),
            allows: rule_summary(&self.rule),
            dry_run: self.rule.dry_run,
            passed: counters.passed.get(),
            delayed: sum(&counters.delayed),
            rejected: sum(&counters.rejected),
            keys: u64::try_from(counters.clients.get()).unwrap_or_default(),
            most_keys: self.rule.max_clients.into(),
            top: spin_lock(&self.top_clients).sorted(),
        }
    }

    /// How long a request may wait here.
    fn max_wait(&self, arrived: Instant, deadline: Option<Instant>) -> Duration {
        match self.rule.response {
            ClientLimitResponse::Delay(most) => deadline.map_or(most, |deadline| {
                most.min(deadline.saturating_duration_since(arrived))
            }),
            ClientLimitResponse::Reject => Duration::ZERO,
        }
    }

    /// The object that a request writes to, where the path names it: a create has none yet.
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

    /// The limit of a rate that the request has met, if any, by how long it is to wait: it is counted then.
    fn charge(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
        now: Instant,
        most: Duration,
    ) -> Result<Option<Duration>, ClientLimitRejection> {
        let ask = ClientLimitRequest {
            client: keys.hash_separate(client.key_parts()),
            write: is_write(info),
            object: self.object_key(keys, client, info),
        };
        let mut tables = spin_lock(&self.tables);
        let verdict = tables.charge(&ask, now, most);
        let (clients, objects) = tables.entry_counts();
        drop(tables);
        let gauge = |n| i64::try_from(n).unwrap_or(i64::MAX);
        self.counters.clients.set(gauge(clients));
        self.counters.objects.set(gauge(objects));
        match verdict {
            ClientLimitDecision::Admit(None) => Ok(None),
            ClientLimitDecision::Admit(Some((limit, wait))) => {
                self.record_delayed(limit, wait);
                Ok(Some(if self.rule.dry_run {
                    Duration::ZERO
                } else {
                    wait
                }))
            }
            ClientLimitDecision::Reject(limit, wait) => self
                .record_rejection(client, limit, wait)
                .map_or(Ok(Some(Duration::ZERO)), Err),
        }
    }

    /// Counts a request that had no place to wait for, if it has met no limit of a rate either.
    fn record_passed(&self, met: Option<Duration>) {
        if met.is_none() {
            self.counters.passed.inc();
        }
    }

    fn record_delayed(&self, limit: ClientLimitKind, wait: Duration) {
        ClientRuleMetrics::increment(&self.counters.delayed, limit);
        self.counters.delay_seconds.observe(wait.as_secs_f64());
    }

    /// What is to be said, if it is not dry.
    fn record_rejection(
        &self,
        client: &LimitedClient,
        limit: ClientLimitKind,
        wait: Duration,
    ) -> Option<ClientLimitRejection> {
        ClientRuleMetrics::increment(&self.counters.rejected, limit);
        spin_lock(&self.top_clients).add(&client.display_name());
        (!self.rule.dry_run).then(|| ClientLimitRejection {
            rule: Arc::clone(&self.name),
            limit,
            retry_after: retry_after_seconds(wait),
            wait,
        })
    }

    /// Takes what the request holds to its end, if it holds anything. Whatever else than [`Place::Free`] becomes of it is
    /// counted.
    async fn acquire_slot(
        &self,
        keys: &LruKeyHasher,
        client: &LimitedClient,
        info: &RequestInfo<'_>,
        until: Instant,
    ) -> Result<SlotOutcome, ClientLimitRejection> {
        let (limit, slots) = if *info.verb() == Verb::Watch {
            (ClientLimitKind::LongRunning, &self.watches)
        } else if info.long_running() {
            (ClientLimitKind::LongRunning, &self.streams)
        } else {
            (ClientLimitKind::Concurrency, &self.concurrency)
        };
        let Some(slots) = slots else {
            return Ok(SlotOutcome::Immediate(None));
        };
        let resource = [info.api_group(), info.resource()];
        let of = if limit == ClientLimitKind::Concurrency {
            &resource[..]
        } else {
            &[]
        };
        let key = keys.hash_separate(client.key_parts().into_iter().chain(of.iter().copied()));
        let mut entered = slots.handle(key);
        if entered.try_acquire() {
            return Ok(SlotOutcome::Immediate(Some(entered)));
        }
        let began = Clock.now();
        let waits = !self.rule.dry_run && began < until;
        if waits
            && tokio::time::timeout_at(until.into(), entered.acquire())
                .await
                .is_ok()
        {
            self.record_delayed(limit, Clock.now().saturating_duration_since(began));
            return Ok(SlotOutcome::Waited(entered));
        }
        // Nobody knows when a slot comes free.
        match self.record_rejection(client, limit, Duration::ZERO) {
            Some(no) => Err(no),
            None => Ok(SlotOutcome::WouldReject),
        }
    }
}

/// What a request gets of those that a rule has.
enum SlotOutcome {
    /// At once; nothing where the rule bounds none.
    Immediate(Option<KeyedSlotHandle>),
    /// After a while.
    Waited(KeyedSlotHandle),
    /// None, but the rule only counts.
    WouldReject,
}

/// Whether the request is a write that comes to an end.
fn is_write(info: &RequestInfo<'_>) -> bool {
    info.mutating() && !info.long_running()
}
