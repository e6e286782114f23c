//! One API server at one address: its health and its requests in flight, shared by all workers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::upstream::connection::address::ServerAddress;
use crate::upstream::servers::health::Availability;
use crate::upstream::servers::health::Health;
use crate::upstream::servers::health::HealthChange;
use crate::upstream::servers::health::ProbeOutcome;
use crate::upstream::servers::health::ServerFailure;
use crate::upstream::servers::health::WeirServer;
use crate::upstream::servers::metrics::ServerSeries;
use crate::upstream::servers::metrics::UpstreamServerMetrics;

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum ServerOrigin {
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
    pub(in crate::upstream) fn new(
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
            health: Mutex::new(health),
            has_failures: AtomicBool::new(false),
            is_reachable: AtomicBool::new(true),
            probe_request: Notify::new(),
            is_removed: AtomicBool::new(false),
            is_own: AtomicBool::new(false),
            address,
            label,
        };
        server
            .availability
            .store(server.health.lock().availability());
        Arc::new(server)
    }

    pub(in crate::upstream) const fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Host and port, as metrics name it.
    #[must_use]
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The same server under another name: its health stays, its connections do not.
    pub(in crate::upstream) fn renamed(
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
    pub(in crate::upstream) fn is_usable(&self, origin: ServerOrigin) -> bool {
        match self.availability() {
            Availability::Refused => false,
            Availability::Unverified => origin == ServerOrigin::Configured,
            Availability::Always | Availability::From(_) | Availability::NotReady => true,
        }
    }

    /// Whether its last probe passed, or none was needed.
    pub(in crate::upstream) fn is_ready(&self) -> bool {
        matches!(
            self.availability(),
            Availability::Always | Availability::From(_)
        )
    }

    pub(in crate::upstream) fn availability(&self) -> Availability {
        self.availability.load()
    }

    /// Why the last probe failed, if it did.
    pub(in crate::upstream) fn probe_failure(&self) -> Option<String> {
        self.health.lock().probe_failure().map(str::to_owned)
    }

    pub(in crate::upstream) fn is_ejected(&self, now: Instant) -> bool {
        self.health.lock().is_ejected(now)
    }

    /// Requests in flight: short ones, or long-running ones.
    pub(in crate::upstream) fn in_flight(&self, long_running: bool) -> usize {
        let gauge = self.series.in_flight.get(long_running);
        gauge.get().try_into().unwrap_or_default()
    }

    /// Requests sent so far, of both kinds.
    pub(in crate::upstream) fn requests(&self) -> u64 {
        self.series.requests.short.get() + self.series.requests.long_running.get()
    }

    /// The ejections so far.
    pub(in crate::upstream) fn ejections(&self) -> u64 {
        self.series.ejections.get()
    }

    /// Counts a request as in flight until the value is dropped.
    pub(in crate::upstream) fn count_request(
        self: &Arc<Self>,
        long_running: bool,
    ) -> ServerRequest {
        self.series.in_flight.get(long_running).inc();
        self.series.requests.get(long_running).inc();
        ServerRequest {
            server: Arc::clone(self),
            long_running,
        }
    }

    /// Records a response. Returns whether the server was unreachable before.
    pub(in crate::upstream) fn record_success(&self) -> bool {
        // Read first: a write for each request would take the cache line from the other workers.
        if self.has_failures.load(Ordering::Relaxed) {
            self.has_failures.store(false, Ordering::Relaxed);
            self.health.lock().record_success();
        }
        !self.is_reachable.load(Ordering::Relaxed)
            && !self.is_reachable.swap(true, Ordering::AcqRel)
    }

    /// Records a request that failed because of the server.
    pub(in crate::upstream) fn record_failure(
        &self,
        failure: ServerFailure,
        now: Instant,
        may_eject: bool,
    ) -> Option<HealthChange> {
        self.has_failures.store(true, Ordering::Relaxed);
        let mut health = self.health.lock();
        if health.is_unreachable_after(failure) {
            self.is_reachable.store(false, Ordering::Release);
        }
        let change = health.record_failure(failure, now, may_eject);
        self.availability.store(health.availability());
        drop(health);
        self.request_probe();
        if matches!(change, Some(HealthChange::Ejected(_))) {
            self.series.ejections.inc();
        }
        change
    }

    /// Records a probe.
    pub(in crate::upstream) fn record_probe(
        &self,
        outcome: ProbeOutcome,
        now: Instant,
    ) -> Option<HealthChange> {
        self.series.record_probe(&outcome);
        self.series.set_refused(outcome.weir());
        let responds = outcome.is_response();
        let mut health = self.health.lock();
        let change = health.record_probe(outcome, now);
        self.availability.store(health.availability());
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
    pub(in crate::upstream) fn refuse(&self, weir: WeirServer) {
        self.is_own
            .store(weir == WeirServer::OwnAddress, Ordering::Release);
        *self.health.lock() = Health::refused(weir);
        self.availability.store(Availability::Refused);
        self.series.set_refused(Some(weir));
        self.series.healthy.set(0);
    }

    /// Sets the gauge to the health at `now`: an ejection ends without an event.
    pub(in crate::upstream) fn publish_health(&self, now: Instant) {
        let available = self.availability().share(now).is_some();
        self.series.healthy.set(available.into());
    }

    pub(in crate::upstream) fn is_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Acquire)
    }

    /// Requests a probe before the next one is due.
    pub(in crate::upstream) fn request_probe(&self) {
        self.probe_request.notify_one();
    }

    /// Waits for a requested probe.
    ///
    /// # Cancel safety
    /// No request for a probe is lost.
    pub(in crate::upstream) async fn wait_for_probe_request(&self) {
        self.probe_request.notified().await;
    }

    /// Records that the server is no longer in the configuration. Ends its probes.
    pub(in crate::upstream) fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
        self.request_probe();
    }

    pub(in crate::upstream) fn is_own(&self) -> bool {
        self.is_own.load(Ordering::Acquire)
    }

    pub(in crate::upstream) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

/// A request in flight on a server. Dropping it ends the count.
#[derive(Debug)]
pub(in crate::upstream) struct ServerRequest {
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
