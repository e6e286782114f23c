//! One API server at one address: its health and its requests in flight, shared by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::servers::answer_times::{AnswerTimes, RECENT_ANSWER};
use crate::upstream::servers::health::{
    Availability, Health, HealthChange, ProbeOutcome, ServerFailure, UpstreamReadiness, WeirServer,
};
use crate::upstream::servers::metrics::{ServerSeries, UpstreamServerMetrics};

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerOrigin {
    /// From the configuration, or from a name in it.
    Configured,
    /// From the EndpointSlices of the Service `kubernetes`.
    EndpointSlice,
    /// From a name in the configuration that no longer resolves to it.
    FormerAddress,
}

/// An API server.
#[derive(Debug)]
pub(crate) struct ApiServer {
    address: ServerAddress,
    /// Host and port, for operators.
    label: String,
    /// Locked for a few instructions, when a request fails and when a probe ends.
    health: Mutex<Health>,
    /// A copy of the availability that requests read without the lock.
    availability: AtomicAvailability,
    /// A copy of the time until which it has to pass its probe first, in milliseconds after the base;
    /// 0 if it has not.
    gated_until: AtomicU64,
    /// The probes so far.
    probes: AtomicU64,
    answers: AnswerTimes,
    /// Whether requests have failed since the last response.
    has_failures: AtomicBool,
    /// Whether the last connection or exchange succeeded.
    is_reachable: AtomicBool,
    probe_request: Notify,
    is_removed: AtomicBool,
    /// Whether it is weir's own address, which is not probed.
    is_own: AtomicBool,
    series: Arc<ServerSeries>,
}

impl ApiServer {
    pub(crate) fn new(
        address: ServerAddress,
        health: Health,
        metrics: &UpstreamServerMetrics,
        base: Instant,
    ) -> Arc<Self> {
        let label = match address.socket {
            Some(socket) => socket.to_string(),
            None => address.authority.to_string(),
        };
        let server = Self {
            series: metrics.server(&label),
            availability: AtomicAvailability::new(base),
            gated_until: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            answers: AnswerTimes::new(base),
            health: Mutex::new(health),
            has_failures: AtomicBool::new(false),
            is_reachable: AtomicBool::new(true),
            probe_request: Notify::new(),
            is_removed: AtomicBool::new(false),
            is_own: AtomicBool::new(false),
            address,
            label,
        };
        server.copy_health(&server.health.lock());
        Arc::new(server)
    }

    pub(crate) const fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Host and port, as metrics name it.
    #[must_use]
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The same server under another name: its health stays, its connections do not.
    pub(crate) fn renamed(
        &self,
        address: ServerAddress,
        metrics: &UpstreamServerMetrics,
    ) -> Arc<Self> {
        let health = self.health.lock().clone();
        let server = Self::new(address, health, metrics, self.availability.base);
        let copy = |to: &AtomicBool, from: &AtomicBool| {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        };
        copy(&server.has_failures, &self.has_failures);
        copy(&server.is_reachable, &self.is_reachable);
        copy(&server.is_own, &self.is_own);
        server
    }

    /// Whether a server from `origin` may get requests, be it as a last resort. The EndpointSlices
    /// can list a weir, so their servers are used after a passed probe only. What an operator has
    /// configured is used if there is nothing better.
    pub(crate) fn is_usable(&self, origin: ServerOrigin) -> bool {
        match self.availability() {
            Availability::Refused => false,
            Availability::Unverified => origin == ServerOrigin::Configured,
            Availability::Always | Availability::From(_) | Availability::NotReady => true,
        }
    }

    /// Whether its last probe passed, or none was needed.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        let is_ready = matches!(
            self.availability(),
            Availability::Always | Availability::From(_)
        );
        is_ready && !self.is_gated(now)
    }

    pub(crate) fn availability(&self) -> Availability {
        self.availability.load()
    }

    /// Whether it gets no requests at `now` because its `/readyz` has to pass first.
    pub(crate) fn is_gated(&self, now: Instant) -> bool {
        let until = self.gated_until.load(Ordering::Acquire);
        until > 0 && now < self.availability.base + Duration::from_millis(until)
    }

    /// Why a request is not sent while the server is gated.
    pub(crate) fn gate_error(&self) -> ForwardError {
        self.health.lock().gate_error()
    }

    /// Whether weir can use it at `now`, if it is the only one.
    pub(crate) fn readiness(&self, now: Instant) -> UpstreamReadiness {
        self.health.lock().readiness(now)
    }

    /// The end of the last probe.
    pub(crate) fn probed_at(&self) -> Option<Instant> {
        self.health.lock().probed_at()
    }

    /// How long probes have got no response at `now`.
    pub(crate) fn probe_silence(&self, now: Instant) -> Duration {
        self.health.lock().probe_silence(now)
    }

    /// When it answered last, and since when requests wait for it.
    pub(crate) const fn answers(&self) -> &AnswerTimes {
        &self.answers
    }

    /// The probes so far.
    pub(crate) fn probes(&self) -> u64 {
        self.probes.load(Ordering::Acquire)
    }

    /// Makes the health visible without the lock.
    fn copy_health(&self, health: &Health) {
        self.availability.store(health.availability());
        let until = health.gated_until().map_or(0, |until| {
            let since = until.saturating_duration_since(self.availability.base);
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        self.gated_until.store(until, Ordering::Release);
    }

    /// Why the last probe failed, if it did.
    pub(crate) fn probe_failure(&self) -> Option<String> {
        let health = self.health.lock();
        health.probe_failure().map(ForwardError::probe_failure)
    }

    pub(crate) fn is_ejected(&self, now: Instant) -> bool {
        self.health.lock().is_ejected(now)
    }

    /// Requests in flight: short ones, or long-running ones.
    pub(crate) fn in_flight(&self, long_running: bool) -> usize {
        let gauge = self.series.in_flight.get(long_running);
        gauge.get().try_into().unwrap_or_default()
    }

    /// Requests sent so far, of both kinds.
    pub(crate) fn requests(&self) -> u64 {
        self.series.requests.short.get() + self.series.requests.long_running.get()
    }

    /// The ejections so far.
    pub(crate) fn ejections(&self) -> u64 {
        self.series.ejections.get()
    }

    /// Counts a request as in flight until the value is dropped.
    pub(crate) fn count_request(self: &Arc<Self>, long_running: bool) -> ServerRequest {
        self.series.in_flight.get(long_running).inc();
        self.series.requests.get(long_running).inc();
        ServerRequest {
            server: Arc::clone(self),
            long_running,
        }
    }

    /// Records a response. Returns whether the server was unreachable before.
    pub(crate) fn record_success(&self) -> bool {
        // Read first: a write for each request would take the cache line from the other workers.
        if self.has_failures.load(Ordering::Relaxed) {
            self.has_failures.store(false, Ordering::Relaxed);
            self.health.lock().record_success();
        }
        !self.is_reachable.load(Ordering::Relaxed)
            && !self.is_reachable.swap(true, Ordering::AcqRel)
    }

    /// Records a request that failed because of the server.
    pub(crate) fn record_failure(
        &self,
        failure: ServerFailure,
        now: Instant,
        may_eject: bool,
    ) -> Option<HealthChange> {
        self.has_failures.store(true, Ordering::Relaxed);
        let mut health = self.health.lock();
        if health.is_unreachable_after(failure) {
            self.is_reachable.store(false, Ordering::Release);
            // A server that answers others is overloaded at most: the probe decides.
            if !self.answers.answered_within(RECENT_ANSWER, now) {
                health.record_outage(now);
            }
        }
        let change = health.record_failure(failure, now, may_eject);
        self.copy_health(&health);
        drop(health);
        self.request_probe();
        if matches!(change, Some(HealthChange::Ejected(_))) {
            self.series.ejections.inc();
        }
        change
    }

    /// Records a probe that is sent.
    pub(crate) fn record_probe_sent(&self, now: Instant) {
        self.answers.record_request(now);
        self.health.lock().record_probe_sent(now);
    }

    /// Records a probe that ended.
    pub(crate) fn record_probe(&self, outcome: ProbeOutcome, now: Instant) -> Option<HealthChange> {
        self.series.record_probe(&outcome);
        self.series.set_refused(outcome.weir());
        let responds = outcome.is_response();
        if responds {
            self.answers.record_answer(now);
        }
        let mut health = self.health.lock();
        let change = health.record_probe(outcome, now);
        self.copy_health(&health);
        self.probes.fetch_add(1, Ordering::AcqRel);
        // A single probe without a response in time is not recorded as a failed one.
        let failed = health.probe_failure().is_some();
        drop(health);
        if !responds && failed {
            self.is_reachable.store(false, Ordering::Release);
        }
        self.publish_health(now);
        change
    }

    /// Marks the server as one that is never used.
    pub(crate) fn refuse(&self, weir: WeirServer) {
        self.is_own
            .store(weir == WeirServer::OwnAddress, Ordering::Release);
        let mut health = self.health.lock();
        *health = Health::refused(weir);
        self.copy_health(&health);
        drop(health);
        self.series.set_refused(Some(weir));
        self.series.healthy.set(0);
    }

    /// Sets the gauge to the health at `now`: an ejection ends without an event.
    pub(crate) fn publish_health(&self, now: Instant) {
        self.series.healthy.set(self.is_available(now).into());
    }

    /// Whether it gets its share of the requests at `now`, or a part of it.
    pub(crate) fn is_available(&self, now: Instant) -> bool {
        self.availability().share(now).is_some() && !self.is_gated(now)
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Acquire)
    }

    /// Requests a probe before the next one is due.
    pub(crate) fn request_probe(&self) {
        self.probe_request.notify_one();
    }

    /// Waits for a requested probe.
    ///
    /// # Cancel safety
    /// No request for a probe is lost.
    pub(crate) async fn wait_for_probe_request(&self) {
        self.probe_request.notified().await;
    }

    /// Records that the server is no longer in the configuration. Ends its probes.
    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
        self.request_probe();
    }

    pub(crate) fn is_own(&self) -> bool {
        self.is_own.load(Ordering::Acquire)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

/// A request in flight on a server. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct ServerRequest {
    server: Arc<ApiServer>,
    long_running: bool,
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        self.server.series.in_flight.get(self.long_running).dec();
    }
}

/// An [`Availability`] that is read without a lock. Times are kept in milliseconds.
#[derive(Debug)]
struct AtomicAvailability {
    base: Instant,
    /// One of the constants below, or milliseconds since `base` plus one.
    value: AtomicU64,
}

const ALWAYS: u64 = 0;
const NOT_READY: u64 = u64::MAX;
const UNVERIFIED: u64 = u64::MAX - 1;
const REFUSED: u64 = u64::MAX - 2;

impl AtomicAvailability {
    const fn new(base: Instant) -> Self {
        Self {
            base,
            value: AtomicU64::new(ALWAYS),
        }
    }

    fn store(&self, availability: Availability) {
        let value = match availability {
            Availability::Always => ALWAYS,
            Availability::From(from) => {
                let since = from.saturating_duration_since(self.base).as_millis();
                u64::try_from(since).unwrap_or(REFUSED - 2) + 1
            }
            Availability::NotReady => NOT_READY,
            Availability::Unverified => UNVERIFIED,
            Availability::Refused => REFUSED,
        };
        self.value.store(value, Ordering::Release);
    }

    fn load(&self) -> Availability {
        match self.value.load(Ordering::Acquire) {
            ALWAYS => Availability::Always,
            NOT_READY => Availability::NotReady,
            UNVERIFIED => Availability::Unverified,
            REFUSED => Availability::Refused,
            millis => Availability::From(self.base + Duration::from_millis(millis - 1)),
        }
    }
}
