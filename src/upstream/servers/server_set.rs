//! All API servers, shared by all workers: the current list, which of them gets a request, and
//! outages of all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{timeout, timeout_at};
use tracing::{error, info, warn};

use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::front_proxy_trust::FrontProxyTrust;
use crate::upstream::loop_detection::{is_local_address, is_own_address};
use crate::upstream::requester::SlotHolder;
use crate::upstream::servers::answer_times::RECENT_ANSWER;
use crate::upstream::servers::api_server::{ApiServer, ServerOrigin};
use crate::upstream::servers::balancer::Candidate;
use crate::upstream::servers::health::{
    Availability, HANG_TIME, Health, HealthChange, ProbeOutcome, ServerFailure, UpstreamReadiness,
    WeirServer,
};
use crate::upstream::servers::metrics::UpstreamServerMetrics;
use crate::upstream::servers::recovery::Recovery;
use crate::upstream::servers::sources::{FormerSource, MAX_ADDRESSES, Sources, UpstreamTls};
use crate::upstream::servers::{balancer, health, sources};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_io::pauses::ServerLoad;

/// A server that answers nothing for this long gets no request while another one answers, and a
/// probe.
const SUSPICIOUS_SILENCE: Duration = Duration::from_millis(500);

/// Most servers that one request is tried on.
const MAX_TRIED: usize = 3;

/// The API servers.
#[derive(Debug)]
pub struct ServerSet {
    list: ArcSwap<ServerList>,
    /// Locked while the list is built, never across an await.
    state: Mutex<SetState>,
    recovery: Mutex<Recovery>,
    /// Whether watches and lists wait for their turn; read without the lock.
    is_recovering: AtomicBool,
    version: watch::Sender<u64>,
    /// Counts the probes of all servers.
    probed: watch::Sender<u64>,
    /// Counts the times that a server became ready.
    ready_events: watch::Sender<u64>,
    /// Whether they accept weir's front-proxy certificate.
    front_proxy_trust: Arc<FrontProxyTrust>,
    resolve_request: Notify,
    /// Whether servers are probed, and get no request before their `/readyz` has passed.
    is_probed: bool,
    metrics: UpstreamServerMetrics,
    /// Times of health are kept relative to it.
    base: Instant,
}

#[derive(Debug)]
struct SetState {
    sources: Sources,
    tls: UpstreamTls,
    /// The listener for clients, once it is bound.
    listener: Option<SocketAddr>,
}

/// The servers at one time.
#[derive(Debug)]
pub(crate) struct ServerList {
    /// Grows with each change.
    pub(crate) version: u64,
    pub(crate) servers: Vec<Arc<ApiServer>>,
    /// Where the address of each server comes from, in the order of `servers`.
    origins: Vec<ServerOrigin>,
    pub(crate) tls: UpstreamTls,
    /// Whether servers are checked for being a weir.
    verify: bool,
    /// Whether the address of one has vanished from its source.
    has_former: bool,
}

/// What the choice of a server depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTraits {
    /// Short and long-running requests are balanced apart.
    pub(crate) long_running: bool,
    /// A health check of a server shows its state, and goes to one that is not ready, too.
    pub(crate) is_health_check: bool,
}

/// The choice for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The index of the server.
    pub(crate) index: usize,
    /// Whether the request can go to another server that was not tried.
    pub(crate) has_alternative: bool,
}

impl ServerSet {
    /// The servers at `configured`. If `is_probed`, each gets no request before its `/readyz` has
    /// passed. Registers their metrics.
    pub(crate) fn new(
        configured: &[ServerAddress],
        follows_slices: bool,
        is_probed: bool,
        tls: UpstreamTls,
        registry: &Registry,
    ) -> Arc<Self> {
        let now = Clock.now();
        let set = Self {
            list: ArcSwap::from_pointee(ServerList {
                version: 0,
                servers: Vec::new(),
                origins: Vec::new(),
                tls: tls.clone(),
                verify: false,
                has_former: false,
            }),
            state: Mutex::new(SetState {
                sources: Sources::new(configured, follows_slices),
                tls,
                listener: None,
            }),
            recovery: Mutex::default(),
            is_recovering: AtomicBool::new(false),
            version: watch::Sender::new(0),
            probed: watch::Sender::new(0),
            ready_events: watch::Sender::new(0),
            front_proxy_trust: Arc::default(),
            resolve_request: Notify::new(),
            is_probed,
            metrics: UpstreamServerMetrics::register(registry),
            base: now,
        };
        set.rebuild(&mut set.state.lock(), now);
        Arc::new(set)
    }

    /// The current servers.
    pub(crate) fn list(&self) -> Guard<Arc<ServerList>> {
        self.list.load()
    }

    /// Whether requests are balanced over several servers.
    #[must_use]
    pub(crate) fn has_choice(&self) -> bool {
        self.list().has_choice()
    }

    /// The servers but those that are this weir itself.
    #[must_use]
    pub(crate) fn others(&self) -> Vec<Arc<ApiServer>> {
        let list = self.list();
        let servers = list.servers.iter();
        let servers = servers.filter(|server| !server.is_own() && !server.is_removed());
        servers.cloned().collect()
    }

    /// What all servers have to do now.
    pub(crate) fn load(&self) -> ServerLoad {
        let list = self.list();
        let each = list.servers.iter().map(|server| ServerLoad {
            in_flight: server.in_flight(false),
            requests: server.requests(),
        });
        each.fold(ServerLoad::default(), |sum, one| ServerLoad {
            in_flight: sum.in_flight + one.in_flight,
            requests: sum.requests.wrapping_add(one.requests),
        })
    }

    /// Whether a server has passed its last probe, or needs none.
    #[must_use]
    pub(crate) fn is_ready(&self) -> bool {
        let now = Clock.now();
        self.list()
            .servers
            .iter()
            .any(|server| server.is_ready(now))
    }

    /// Whether the servers accept weir's front-proxy certificate.
    #[must_use]
    pub(crate) const fn front_proxy_trust(&self) -> &Arc<FrontProxyTrust> {
        &self.front_proxy_trust
    }

    /// Waits for the next probe of a server, for at most this time. Returns whether there was one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn wait_for_probe(&self, patience: Duration) -> bool {
        let mut probed = self.probed.subscribe();
        let list = Arc::clone(&self.list());
        if !self.is_probed {
            return false;
        }
        list.servers
            .iter()
            .for_each(|server| server.request_probe());
        timeout(patience, probed.changed()).await.is_ok()
    }

    /// Reports each time that a server becomes ready.
    #[must_use]
    pub(crate) fn ready_events(&self) -> watch::Receiver<u64> {
        self.ready_events.subscribe()
    }

    /// Waits until the servers that have to pass their `/readyz` first have been probed once more,
    /// or one of them may get requests, or until `deadline`.
    ///
    /// # Errors
    /// None may get requests: what the last probe of one has shown.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn wait_for_gates(&self, deadline: Instant) -> Result<(), ForwardError> {
        let mut probed = self.probed.subscribe();
        let (list, now) = (Arc::clone(&self.list()), Clock.now());
        let is_gated = |server: &&Arc<ApiServer>| server.is_gated(now);
        let gated = list.servers.iter().filter(is_gated);
        let gated: Vec<_> = gated.map(|server| (server, server.probes())).collect();
        gated.iter().for_each(|(server, _)| server.request_probe());
        if gated.is_empty() {
            return Ok(());
        }
        loop {
            let late = timeout_at(deadline.into(), probed.changed()).await.is_err();
            let now = Clock.now();
            if gated.iter().any(|(server, _)| !server.is_gated(now)) {
                return Ok(());
            }
            if late
                || gated
                    .iter()
                    .all(|(server, before)| server.probes() > *before)
            {
                let first = gated.first();
                return Err(first.map_or(ForwardError::NoServer, |(server, _)| server.gate_error()));
            }
        }
    }

    /// The state of each server at `now`.
    #[must_use]
    pub(crate) fn states(&self, now: Instant) -> Vec<ServerSnapshot> {
        self.list().states(now)
    }

    pub(crate) const fn metrics(&self) -> &UpstreamServerMetrics {
        &self.metrics
    }

    /// The first configured server, as HOST:PORT.
    #[must_use]
    pub(crate) fn authority(&self) -> String {
        self.state.lock().sources.authority()
    }

    /// Reports changes of the list.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Takes over a changed configuration. Servers that stay keep their connections and their
    /// health, unless the roots or the certificate have changed. Connections to the others end with
    /// their requests.
    pub(crate) fn reconfigure(
        &self,
        configured: &[ServerAddress],
        follows_slices: bool,
        tls: &UpstreamTls,
    ) {
        let mut state = self.state.lock();
        state.sources.reconfigure(configured, follows_slices);
        state.tls.update(&tls.roots, tls.front_proxy.as_ref());
        self.rebuild(&mut state, Clock.now());
        drop(state);
        self.request_resolve();
    }

    /// Sets the address of the listener for clients. Servers at the same address are refused.
    pub(crate) fn set_listener(&self, listener: SocketAddr) {
        let mut state = self.state.lock();
        state.listener = Some(listener);
        self.rebuild(&mut state, Clock.now());
    }

    /// Whether the API servers are on this machine: no address of theirs stands for several.
    pub(crate) fn are_local(&self) -> bool {
        let servers = &self.list().servers;
        let is_local = |socket: SocketAddr| is_local_address(socket.ip().to_canonical());
        servers
            .iter()
            .all(|server| sources::socket_of(server.address()).is_some_and(is_local))
    }

    pub(crate) fn names(&self) -> Vec<ServerAddress> {
        self.state.lock().sources.names().cloned().collect()
    }

    pub(crate) fn record_resolved(&self, address: &ServerAddress, resolved: Vec<SocketAddr>) {
        warn_of_too_many(&resolved);
        let mut state = self.state.lock();
        if state.sources.record_resolved(address, resolved) {
            self.rebuild(&mut state, Clock.now());
        }
    }

    pub(crate) fn record_discovered(&self, addresses: Vec<SocketAddr>) {
        warn_of_too_many(&addresses);
        let mut state = self.state.lock();
        state.sources.record_discovered(addresses);
        self.rebuild(&mut state, Clock.now());
    }

    /// Builds the list from its sources. Servers whose address stays are kept, wherever the address
    /// comes from.
    fn rebuild(&self, state: &mut SetState, now: Instant) {
        let before = self.list.load_full();
        before.prune_former(&mut state.sources);
        let targets = state.sources.targets();
        let mut servers = Vec::with_capacity(targets.servers.len());
        let mut origins = Vec::with_capacity(targets.servers.len());
        for (address, origin) in targets.servers {
            servers.push(self.server_at(address, &before, targets.verify));
            origins.push(origin);
        }
        if targets.verify {
            servers
                .iter()
                .for_each(|server| refuse_own(server, state.listener));
        }
        let is_kept =
            |server: &Arc<ApiServer>| servers.iter().any(|kept| Arc::ptr_eq(kept, server));
        for removed in before.servers.iter().filter(|server| !is_kept(server)) {
            info!(server = removed.label(), "an API server is removed");
            removed.remove();
        }
        let is_new =
            |server: &&Arc<ApiServer>| !before.servers.iter().any(|old| Arc::ptr_eq(old, server));
        if before.version > 0 {
            for added in servers.iter().filter(is_new) {
                info!(server = added.label(), "an API server is added");
            }
        }
        servers.iter().for_each(|server| server.publish_health(now));
        let version = before.version + 1;
        self.list.store(Arc::new(ServerList {
            version,
            servers,
            origins,
            tls: state.tls.clone(),
            verify: targets.verify,
            has_former: targets.has_former,
        }));
        self.version.send_replace(version);
    }

    /// The server at `address`, with what is known about it.
    fn server_at(
        &self,
        address: ServerAddress,
        before: &ServerList,
        verify: bool,
    ) -> Arc<ApiServer> {
        let mut known = before.servers.iter();
        if let Some(known) = known.find(|known| *known.address() == address) {
            return Arc::clone(known);
        }
        let mut known = before.servers.iter();
        let known = known.find(|known| verify && sources::is_same(known.address(), &address));
        match known {
            Some(known) => known.renamed(address, &self.metrics),
            None => {
                let mut health = Health::new(verify);
                if self.is_probed {
                    health = health.with_gate(Clock.now());
                }
                ApiServer::new(address, health, &self.metrics, self.base)
            }
        }
    }

    /// Records a response of `server` to a request.
    pub(crate) fn record_success(&self, server: &ApiServer) {
        server.answers().record_answer(Clock.now());
        if server.record_success() {
            self.record_up(Clock.now());
        }
    }

    /// Records a request that failed because of `server`.
    pub(crate) fn record_failure(&self, server: &ApiServer, failure: ServerFailure) {
        let now = Clock.now();
        let list = self.list();
        let ejected = list.usable().filter(|other| other.is_ejected(now));
        let may_eject = health::may_eject(ejected.count(), list.usable().count());
        let change = server.record_failure(failure, now, may_eject);
        log_change(server, change.as_ref());
        if failure == ServerFailure::Connect && server.address().socket.is_some() {
            self.request_resolve();
        }
        self.record_down_if_all(&list, now);
    }

    /// Records a probe of `server`.
    pub(crate) fn record_probe(&self, server: &ApiServer, outcome: ProbeOutcome) {
        let now = Clock.now();
        let responds = outcome.is_response() && !matches!(outcome, ProbeOutcome::Weir(_));
        let change = server.record_probe(outcome, now);
        log_change(server, change.as_ref());
        self.probed.send_modify(|probes| *probes += 1);
        if change == Some(HealthChange::Ready) {
            self.ready_events.send_modify(|events| *events += 1);
        }
        if responds {
            server.record_success();
            self.record_up(now);
        } else {
            self.record_down_if_all(&self.list(), now);
        }
        if change.is_some() && self.list().has_former {
            let mut state = self.state.lock();
            if self.list().prune_former(&mut state.sources) {
                self.rebuild(&mut state, now);
            }
        }
    }

    fn record_down_if_all(&self, list: &ServerList, now: Instant) {
        if !list.usable().any(|server| server.is_reachable()) {
            self.recovery.lock().record_down(now);
        }
    }

    fn record_up(&self, now: Instant) {
        if self.recovery.lock().record_up(now) {
            self.is_recovering.store(true, Ordering::Release);
            info!(
                "an API server responds after an outage of all: watches and lists are admitted at a growing pace"
            );
        }
    }

    /// Whether watches and lists wait for their turn after an outage of all servers.
    #[must_use]
    pub(crate) fn is_recovering(&self) -> bool {
        self.is_recovering.load(Ordering::Acquire)
    }

    /// How long a watch or a list of `holder` waits for its turn after an outage of all servers.
    #[must_use]
    pub(crate) fn recovery_delay(&self, holder: &SlotHolder) -> Duration {
        if !self.is_recovering() {
            return Duration::ZERO;
        }
        let now = Clock.now();
        let mut recovery = self.recovery.lock();
        let delay = recovery.take_turn(holder, now, fastrand::f64());
        if !recovery.is_recovering(now) {
            self.is_recovering.store(false, Ordering::Release);
        }
        if !delay.is_zero() {
            self.metrics.paced.inc();
        }
        delay
    }

    /// Requests that names are resolved again.
    pub(crate) fn request_resolve(&self) {
        self.resolve_request.notify_one();
    }

    /// Waits for a request to resolve names.
    ///
    /// # Cancel safety
    /// No request is lost.
    pub(crate) async fn wait_for_resolve_request(&self) {
        self.resolve_request.notified().await;
    }
}

impl ServerList {
    /// Whether there are several servers to choose from.
    pub(crate) const fn has_choice(&self) -> bool {
        self.servers.len() > 1 || self.verify
    }

    /// Whether servers that are a weir are refused.
    pub(crate) const fn is_verified(&self) -> bool {
        self.verify
    }

    /// Chooses the server of a request that `tried` have failed.
    pub(crate) fn pick(
        &self,
        request: RequestTraits,
        tried: &[Arc<ApiServer>],
        candidates: &mut Vec<Candidate>,
        mut random: impl FnMut() -> f64,
    ) -> Option<Pick> {
        let now = Clock.now();
        let is_open = |server: &ApiServer| request.is_health_check || !server.is_gated(now);
        if !self.has_choice() {
            let only = self.servers.first().filter(|server| is_open(server));
            return only.map(|_| Pick {
                index: 0,
                has_alternative: false,
            });
        }
        let untried =
            |server: &Arc<ApiServer>| !tried.iter().any(|other| Arc::ptr_eq(other, server));
        for tier in Tier::ALL {
            candidates.clear();
            for (index, (server, origin)) in self.with_origins().enumerate() {
                if untried(server)
                    && is_open(server)
                    && let Some(share) = tier.share(server, origin, now)
                {
                    let load = server.in_flight(request.long_running);
                    candidates.push(Candidate { index, load, share });
                }
            }
            self.drop_silent(candidates, now);
            if let Some(index) = balancer::choose(candidates, &mut random) {
                let others = self.with_origins().enumerate();
                let mut others = others.filter(|(other, (server, origin))| {
                    *other != index
                        && untried(server)
                        && is_open(server)
                        && server.is_usable(*origin)
                });
                return Some(Pick {
                    index,
                    has_alternative: tried.len() + 1 < MAX_TRIED && others.next().is_some(),
                });
            }
        }
        None
    }

    /// Drops the candidates that have answered nothing for a moment in which another one has
    /// answered. A probe shows whether they answer at all.
    fn drop_silent(&self, candidates: &mut Vec<Candidate>, now: Instant) {
        let answers = |of: &Candidate| self.servers.get(of.index).map(|server| server.answers());
        let is_silent = |candidate: &Candidate| {
            let silence = answers(candidate).map_or(Duration::ZERO, |answers| answers.silence(now));
            let answered = |other: &Arc<ApiServer>| other.answers().answered_within(silence, now);
            silence >= SUSPICIOUS_SILENCE && self.servers.iter().any(answered)
        };
        if candidates.len() < 2 || !candidates.iter().any(is_silent) {
            return;
        }
        candidates.retain(|candidate| {
            let is_silent = is_silent(candidate);
            if let (true, Some(server)) = (is_silent, self.servers.get(candidate.index)) {
                server.request_probe();
            }
            !is_silent
        });
    }

    /// Whether `server` hangs, on which a request waits since `sent`, and another server answers.
    /// Where that is not known, requests probes.
    pub(crate) fn is_hung(&self, server: &Arc<ApiServer>, sent: Instant, now: Instant) -> bool {
        if server.answers().answered_within(RECENT_ANSWER, now) {
            return false;
        }
        for unknown in self.servers.iter().filter(|other| !is_recent(other, now)) {
            unknown.request_probe();
        }
        let has_other = || {
            let mut others = self.servers.iter();
            others.any(|other| {
                !Arc::ptr_eq(other, server) && other.is_ready(now) && is_recent(other, now)
            })
        };
        now.saturating_duration_since(sent) >= HANG_TIME
            && !server.answers().answered_within(HANG_TIME, now)
            && has_other()
    }

    /// The servers that do not get a request which `hung` has not answered.
    pub(crate) fn unanswering(&self, hung: &Arc<ApiServer>, now: Instant) -> Vec<Arc<ApiServer>> {
        let is_excluded =
            |server: &&Arc<ApiServer>| Arc::ptr_eq(server, hung) || !is_recent(server, now);
        self.servers.iter().filter(is_excluded).cloned().collect()
    }

    /// Whether weir can use a server at `now`. One of several that is ready is enough.
    pub(crate) fn readiness(&self, now: Instant) -> UpstreamReadiness {
        if let ([only], false) = (&*self.servers, self.has_choice()) {
            return only.readiness(now);
        }
        if self.servers.iter().any(|server| server.is_ready(now)) {
            return UpstreamReadiness::Ready;
        }
        UpstreamReadiness::NotReady(format!(
            "none of {} API servers is ready",
            self.servers.len()
        ))
    }

    /// The end of the last probe of any server.
    pub(crate) fn probed_at(&self) -> Option<Instant> {
        let servers = self.servers.iter();
        servers.filter_map(|server| server.probed_at()).max()
    }

    fn with_origins(&self) -> impl Iterator<Item = (&Arc<ApiServer>, ServerOrigin)> {
        self.servers.iter().zip(self.origins.iter().copied())
    }

    /// The servers that may get requests, be it as a last resort.
    fn usable(&self) -> impl Iterator<Item = &Arc<ApiServer>> {
        let servers = self.with_origins();
        servers.filter_map(|(server, origin)| server.is_usable(origin).then_some(server))
    }

    /// Gives up addresses that have vanished from their source: those of EndpointSlices once another
    /// one of them is ready, those of a name when they no longer respond and another server is
    /// ready. Servers that were not verified are given up at once. Returns whether there were any.
    fn prune_former(&self, sources: &mut Sources) -> bool {
        let now = Clock.now();
        let socket = |server: &ApiServer| sources::socket_of(server.address());
        let mut ready = self
            .with_origins()
            .filter(|(server, _)| server.is_ready(now));
        let is_current = |origin| origin != ServerOrigin::FormerAddress;
        let is_discovered = |server| socket(server).is_some_and(|at| sources.is_discovered(&at));
        let has_discovered = ready.any(|(server, _)| is_discovered(server));
        let mut ready = self
            .with_origins()
            .filter(|(server, _)| server.is_ready(now));
        let has_current = ready.any(|(_, origin)| is_current(origin));
        sources.prune_former(|address, source| {
            let mut servers = self.servers.iter();
            let server = servers.find(|server| socket(server) == Some(address));
            match (server.map(|server| server.availability()), source) {
                (None | Some(Availability::Unverified | Availability::Refused), _) => false,
                (Some(_), FormerSource::EndpointSlices) => !has_discovered,
                (Some(Availability::NotReady), FormerSource::Name) => !has_current,
                (Some(Availability::Always | Availability::From(_)), FormerSource::Name) => true,
            }
        })
    }

    /// The state of each server at `now`.
    pub(crate) fn states(&self, now: Instant) -> Vec<ServerSnapshot> {
        let servers = self.servers.iter();
        servers
            .map(|server| ServerSnapshot::of(server, now, self.has_choice()))
            .collect()
    }
}

/// Whether it has answered a moment ago.
fn is_recent(server: &ApiServer, now: Instant) -> bool {
    server.answers().answered_within(RECENT_ANSWER, now)
}

/// Which servers are chosen from. The next tier is used where the one before has none.
#[derive(Clone, Copy)]
enum Tier {
    /// Available servers that the EndpointSlices list.
    Discovered,
    /// Available servers that have not vanished from their source.
    Current,
    /// Available servers.
    Available,
    /// All servers that may be used: where all seem to be down, each may be back.
    LastResort,
}

impl Tier {
    const ALL: [Self; 4] = [
        Self::Discovered,
        Self::Current,
        Self::Available,
        Self::LastResort,
    ];

    /// The part of its share that a server of this tier gets; `None` if it is of another.
    fn share(self, server: &ApiServer, origin: ServerOrigin, now: Instant) -> Option<f64> {
        let is_in_tier = match self {
            Self::Discovered => origin == ServerOrigin::EndpointSlice,
            Self::Current => origin != ServerOrigin::FormerAddress,
            Self::Available => true,
            Self::LastResort => return server.is_usable(origin).then_some(1.0),
        };
        is_in_tier
            .then(|| server.availability().share(now))
            .flatten()
    }
}

/// The state of a server, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSnapshot {
    /// Host and port.
    pub(crate) address: String,
    /// Whether it gets requests.
    pub(crate) healthy: bool,
    /// Why not.
    pub(crate) why: Option<String>,
    /// Whether it is a weir, and never used.
    pub(crate) refused: bool,
    /// Short requests in flight.
    pub(crate) in_flight: usize,
    /// Long-running requests in flight.
    pub(crate) long_running: usize,
    /// Requests so far.
    pub requests: u64,
    /// Ejections so far.
    pub(crate) ejections: u64,
}

impl ServerSnapshot {
    fn of(server: &ApiServer, now: Instant, has_others: bool) -> Self {
        let availability = server.availability();
        // A slow request to the only server shows no hang: another answer is missing to compare with.
        let silence = match has_others {
            true => server.answers().silence(now),
            false => server.probe_silence(now),
        };
        let is_silent = silence >= HANG_TIME;
        let why = server.probe_failure().or_else(|| {
            if is_silent {
                return Some(format!("no answer for {} s", silence.as_secs()));
            }
            if server.is_gated(now) {
                return Some(server.gate_error().probe_failure());
            }
            match availability {
                Availability::Unverified => Some("not probed yet".to_owned()),
                Availability::From(from) if now < from => {
                    Some("ejected: requests failed on it".to_owned())
                }
                Availability::Always
                | Availability::From(_)
                | Availability::NotReady
                | Availability::Refused => None,
            }
        });
        Self {
            address: server.label().to_owned(),
            healthy: server.is_available(now) && !is_silent,
            why,
            refused: availability == Availability::Refused,
            in_flight: server.in_flight(false),
            long_running: server.in_flight(true),
            requests: server.requests(),
            ejections: server.ejections(),
        }
    }
}

/// Refuses a server at the address of weir's own listener.
fn refuse_own(server: &ApiServer, listener: Option<SocketAddr>) {
    let socket = sources::socket_of(server.address());
    let is_own = listener
        .zip(socket)
        .is_some_and(|(listener, socket)| is_own_address(listener, socket));
    if is_own && server.availability() != Availability::Refused {
        server.refuse(WeirServer::OwnAddress);
        log_change(server, Some(&HealthChange::Refused(WeirServer::OwnAddress)));
    }
}

fn log_change(server: &ApiServer, change: Option<&HealthChange>) {
    let server = server.label();
    match change {
        Some(HealthChange::Ready) => info!(server, "the API server is ready"),
        Some(HealthChange::NotReady(why)) => {
            warn!(
                server,
                why,
                "the API server is not ready: it gets no requests while another one is, and after a start or an \
                 outage none for a minute at most"
            );
        }
        Some(HealthChange::Ejected(time)) => warn!(
            server,
            seconds = time.as_secs(),
            "requests fail on the API server one after the other: it is ejected"
        ),
        Some(HealthChange::Refused(why)) => error!(
            server,
            %why,
            "the address is no API server's and is never used: give weir the addresses of API servers"
        ),
        None => {}
    }
}

fn warn_of_too_many(addresses: &[SocketAddr]) {
    if addresses.len() > MAX_ADDRESSES {
        let found = addresses.len();
        warn!(
            found,
            "there are more addresses of API servers than {MAX_ADDRESSES}: the rest are not used"
        );
    }
}

#[cfg(test)]
#[path = "server_set_tests.rs"]
mod tests;
