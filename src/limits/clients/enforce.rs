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
use crate::limits::RequestDigest;
use crate::limits::clients::Ask;
use crate::limits::clients::Limit;
use crate::limits::clients::Outcome;
use crate::limits::clients::Tables;
use crate::limits::clients::Verdict;
use crate::limits::clients::config::Identity;
use crate::limits::clients::config::Response;
use crate::limits::clients::config::Rule;
use crate::limits::clients::shown::allows;
use crate::limits::clients::slots::Entered;
use crate::limits::clients::slots::Slots;
use crate::limits::lock::lock;
use crate::limits::lru::Key;
use crate::limits::lru::Keys;
use crate::limits::rates::RateLimit;
use crate::limits::retry_after;
use crate::limits::top_keys::TopKey;
use crate::limits::top_keys::TopKeys;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// What the names of service accounts' users begin with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Upper bounds, in seconds, of the time that requests were delayed.
const DELAYS: [f64; 10] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'r> {
    /// The address of the connection.
    pub address: IpAddr,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
}

/// A request too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// The rule that refused.
    pub rule: Arc<str>,
    /// Which of its limits.
    pub limit: Limit,
    /// Whole seconds until it makes sense to come again.
    pub retry_after: u32,
    /// The same, not rounded.
    pub wait: Duration,
}

/// All rules.
#[derive(Debug)]
pub struct ClientLimits {
    policies: Policies,
    rules: Box<[Arc<Working>]>,
    keys: Keys,
}

/// A rule at work.
#[derive(Debug)]
struct Working {
    rule: Rule,
    name: Arc<str>,
    /// Guards the buckets; held for one decision.
    tables: Mutex<Tables>,
    concurrency: Option<Arc<Slots>>,
    watches: Option<Arc<Slots>>,
    streams: Option<Arc<Slots>>,
    /// Guards who was refused; held for one refusal.
    top: Mutex<TopKeys>,
    counters: Counters,
}

/// What is counted of a rule.
#[derive(Debug)]
struct Counters {
    passed: IntCounter,
    /// By the place of the limit in [`Limit::ALL`].
    rejected: [IntCounter; Limit::ALL.len()],
    delayed: [IntCounter; Limit::ALL.len()],
    delay: Histogram,
    clients: IntGauge,
    objects: IntGauge,
}

struct Metrics {
    requests: IntCounterVec,
    delays: HistogramVec,
    keys: IntGaugeVec,
}

impl Metrics {
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
                &DELAYS,
            ),
            keys: registry.gauges(
                "weir_client_limit_keys",
                "Clients and failing objects that a rule of clientLimits remembers; at most its maxClients of each.",
                &["rule", "table"],
            ),
        }
    }

    fn of(&self, rule: &str) -> Counters {
        let count = |decision: &'static str| {
            move |limit: Limit| {
                self.requests
                    .with_label_values(&[rule, decision, limit.name()])
            }
        };
        Counters {
            passed: self.requests.with_label_values(&[rule, "passed", ""]),
            rejected: Limit::ALL.map(count("rejected")),
            delayed: Limit::ALL.map(count("delayed")),
            delay: self.delays.with_label_values(&[rule]),
            clients: self.keys.with_label_values(&[rule, "clients"]),
            objects: self.keys.with_label_values(&[rule, "objects"]),
        }
    }
}

impl Counters {
    fn count(of: &[IntCounter; Limit::ALL.len()], limit: Limit) {
        let place = Limit::ALL.iter().position(|known| *known == limit);
        if let Some(counter) = place.and_then(|place| of.get(place)) {
            counter.inc();
        }
    }
}

/// What a request holds until its answer has ended, and what its answer is to be told to.
#[derive(Debug, Default)]
pub struct Hold {
    _slots: Vec<Entered>,
    writes: Vec<(Arc<Working>, Key)>,
    admitted: Option<Instant>,
}

impl Hold {
    /// When the request was let through, if it had to wait: its time in a queue begins then.
    #[must_use]
    pub const fn delayed_until(&self) -> Option<Instant> {
        self.admitted
    }

    /// The upstream has answered with `code`.
    pub fn answered(&mut self, code: u16, sent: Instant, now: Instant) {
        for (rule, object) in self.writes.drain(..) {
            lock(&rule.tables).answered(object, Outcome::of(code), sent, now);
        }
    }
}

impl ClientLimits {
    /// Rules that nobody was charged by yet, and that show themselves in `registry`.
    #[must_use]
    pub fn new(rules: &[Rule], registry: &Registry) -> Self {
        let metrics = Metrics::register(registry);
        let working = |rule: &Rule| {
            Arc::new(Working {
                name: rule.name.as_str().into(),
                tables: Mutex::new(Tables::new(rule)),
                concurrency: rule.concurrency.map(Slots::new),
                watches: rule.long_running.watches.map(Slots::new),
                streams: rule.long_running.streams.map(Slots::new),
                top: Mutex::default(),
                counters: metrics.of(&rule.name),
                rule: rule.clone(),
            })
        };
        Self {
            policies: Policies::new(rules.iter().map(|rule| &rule.rules[..])),
            rules: rules.iter().map(working).collect(),
            keys: Keys::default(),
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
        digest: &RequestDigest<'_>,
        origin: Origin<'_>,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Result<Option<Box<Hold>>, TooMany> {
        let asked = matching::RequestDigest::new(digest.info, digest.user);
        let matching = self.policies.matching(&asked);
        let rules: Vec<_> = matching.filter_map(|n| self.rules.get(n)).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let mut charged = Vec::with_capacity(rules.len());
        let mut wait = Duration::ZERO;
        let mut refused: Option<TooMany> = None;
        for rule in rules {
            let client = Client::of(rule.rule.client, digest, &origin);
            let most = rule.most_wait(arrived, deadline);
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
                rule.passed(met);
            }
            return Err(refused);
        }
        if !wait.is_zero() {
            tokio::time::sleep_until((arrived + wait).into()).await;
        }
        let mut hold = Box::<Hold>::default();
        let mut waited = !wait.is_zero();
        for (rule, client, until, met) in charged {
            let entered = rule.enter(&self.keys, &client, digest.info, until);
            let (slot, queued) = match entered.await? {
                Place::Free(slot) => {
                    rule.passed(met);
                    (slot, false)
                }
                Place::Awaited(slot) => (Some(slot), true),
                Place::WouldBeRefused => (None, false),
            };
            hold._slots.extend(slot);
            waited |= queued;
            let object = rule.object(&self.keys, &client, digest.info);
            hold.writes
                .extend(object.map(|key| (Arc::clone(rule), key)));
        }
        hold.admitted = waited.then(|| Clock.now());
        Ok(Some(hold))
    }

    /// Each rule as it stands.
    #[must_use]
    pub fn shown(&self) -> Vec<RateLimit> {
        self.rules.iter().map(|rule| rule.shown()).collect()
    }

    /// Who was refused most, rule by rule.
    #[must_use]
    pub fn top_keys(&self) -> Vec<(Arc<str>, Vec<TopKey>)> {
        let of = |rule: &Arc<Working>| (Arc::clone(&rule.name), lock(&rule.top).sorted());
        self.rules.iter().map(of).collect()
    }
}

/// Who is one client, as texts.
struct Client {
    kind: &'static [u8],
    name: Vec<u8>,
    agent: Vec<u8>,
}

impl Client {
    fn of(identity: Identity, digest: &RequestDigest<'_>, origin: &Origin<'_>) -> Self {
        let user = digest.user.name.as_str();
        let (kind, name) = match identity {
            Identity::Namespace => {
                let account = user.strip_prefix(SERVICE_ACCOUNT);
                match account.and_then(|account| account.split_once(':')) {
                    Some((namespace, _)) => (&b"namespace"[..], namespace.to_owned()),
                    None => (&b"user"[..], user.to_owned()),
                }
            }
            Identity::SourceAddress => (&b"address"[..], origin.address.to_canonical().to_string()),
            Identity::User | Identity::UserAndAgent => (&b"user"[..], user.to_owned()),
        };
        let agent = match identity {
            Identity::UserAndAgent => origin.user_agent.to_vec(),
            Identity::Namespace | Identity::SourceAddress | Identity::User => Vec::new(),
        };
        Self {
            kind,
            name: name.into_bytes(),
            agent,
        }
    }

    fn texts(&self) -> [&[u8]; 3] {
        [self.kind, &self.name, &self.agent]
    }

    /// As an operator reads it.
    fn shown(&self) -> Vec<u8> {
        if self.agent.is_empty() {
            return self.name.clone();
        }
        [&self.name[..], &self.agent].join(&b' ')
    }
}

impl Working {
    fn shown(&self) -> RateLimit {
        let sum = |counters: &[IntCounter]| counters.iter().map(IntCounter::get).sum();
        let counters = &self.counters;
        RateLimit {
            name: format!("clientLimits/{}", self.name),
            allows: allows(&self.rule),
            dry_run: self.rule.dry_run,
            passed: counters.passed.get(),
            delayed: sum(&counters.delayed),
            rejected: sum(&counters.rejected),
            keys: u64::try_from(counters.clients.get()).unwrap_or_default(),
            most_keys: self.rule.max_clients.into(),
            top: lock(&self.top).sorted(),
        }
    }

    /// How long a request may wait here.
    fn most_wait(&self, arrived: Instant, deadline: Option<Instant>) -> Duration {
        match self.rule.response {
            Response::Delay(most) => deadline.map_or(most, |deadline| {
                most.min(deadline.saturating_duration_since(arrived))
            }),
            Response::Reject => Duration::ZERO,
        }
    }

    /// The object that a request writes to, where the path names it: a create has none yet.
    fn object(&self, keys: &Keys, client: &Client, info: &RequestInfo<'_>) -> Option<Key> {
        let named = info.is_resource_request() && !info.name().is_empty();
        if self.rule.object_backoff.is_none() || !writes(info) || !named {
            return None;
        }
        let object = [
            info.api_group(),
            info.resource(),
            info.namespace(),
            info.name(),
        ];
        Some(keys.apart(client.texts().into_iter().chain(object)))
    }

    /// The limit of a rate that the request has met, if any, by how long it is to wait: it is counted then.
    fn charge(
        &self,
        keys: &Keys,
        client: &Client,
        info: &RequestInfo<'_>,
        now: Instant,
        most: Duration,
    ) -> Result<Option<Duration>, TooMany> {
        let ask = Ask {
            client: keys.apart(client.texts()),
            write: writes(info),
            object: self.object(keys, client, info),
        };
        let mut tables = lock(&self.tables);
        let verdict = tables.charge(&ask, now, most);
        let (clients, objects) = tables.known();
        drop(tables);
        let gauge = |n| i64::try_from(n).unwrap_or(i64::MAX);
        self.counters.clients.set(gauge(clients));
        self.counters.objects.set(gauge(objects));
        match verdict {
            Verdict::Pass(None) => Ok(None),
            Verdict::Pass(Some((limit, wait))) => {
                self.delayed(limit, wait);
                Ok(Some(if self.rule.dry_run {
                    Duration::ZERO
                } else {
                    wait
                }))
            }
            Verdict::Refuse(limit, wait) => self
                .refused(client, limit, wait)
                .map_or(Ok(Some(Duration::ZERO)), Err),
        }
    }

    /// Counts a request that had no place to wait for, if it has met no limit of a rate either.
    fn passed(&self, met: Option<Duration>) {
        if met.is_none() {
            self.counters.passed.inc();
        }
    }

    fn delayed(&self, limit: Limit, wait: Duration) {
        Counters::count(&self.counters.delayed, limit);
        self.counters.delay.observe(wait.as_secs_f64());
    }

    /// What is to be said, if it is not dry.
    fn refused(&self, client: &Client, limit: Limit, wait: Duration) -> Option<TooMany> {
        Counters::count(&self.counters.rejected, limit);
        lock(&self.top).add(&client.shown());
        (!self.rule.dry_run).then(|| TooMany {
            rule: Arc::clone(&self.name),
            limit,
            retry_after: retry_after(wait),
            wait,
        })
    }

    /// Takes what the request holds to its end, if it holds anything. Whatever else than [`Place::Free`] becomes of it is
    /// counted.
    async fn enter(
        &self,
        keys: &Keys,
        client: &Client,
        info: &RequestInfo<'_>,
        until: Instant,
    ) -> Result<Place, TooMany> {
        let (limit, slots) = if *info.verb() == Verb::Watch {
            (Limit::LongRunning, &self.watches)
        } else if info.long_running() {
            (Limit::LongRunning, &self.streams)
        } else {
            (Limit::Concurrency, &self.concurrency)
        };
        let Some(slots) = slots else {
            return Ok(Place::Free(None));
        };
        let resource = [info.api_group(), info.resource()];
        let of = if limit == Limit::Concurrency {
            &resource[..]
        } else {
            &[]
        };
        let key = keys.apart(client.texts().into_iter().chain(of.iter().copied()));
        let mut entered = slots.enter(key);
        if entered.try_take() {
            return Ok(Place::Free(Some(entered)));
        }
        let began = Clock.now();
        let waits = !self.rule.dry_run && began < until;
        if waits
            && tokio::time::timeout_at(until.into(), entered.take())
                .await
                .is_ok()
        {
            self.delayed(limit, Clock.now().saturating_duration_since(began));
            return Ok(Place::Awaited(entered));
        }
        // Nobody knows when a slot comes free.
        match self.refused(client, limit, Duration::ZERO) {
            Some(no) => Err(no),
            None => Ok(Place::WouldBeRefused),
        }
    }
}

/// What a request gets of those that a rule has.
enum Place {
    /// At once; nothing where the rule bounds none.
    Free(Option<Entered>),
    /// After a while.
    Awaited(Entered),
    /// None, but the rule only counts.
    WouldBeRefused,
}

/// Whether the request is a write that comes to an end.
fn writes(info: &RequestInfo<'_>) -> bool {
    info.mutating() && !info.long_running()
}
