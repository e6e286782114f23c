//! Arrivals in a simulation: when clients send requests, and the limits in their order, as in the steps
//! of a request in the proxy.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use super::agenda::SimTime;
use super::agenda::Turn;
use super::engine::Simulation;
use super::limits::fairness::{Classified, RecordedEstimate};
use super::limits::level::Started;
use super::limits::limiter::{Held, LimitRejection, Limiter};
use super::model::Retries;
use super::requests::{Attempt, Planned, RepeatedRequest, RequestPlan, SimRequest};
use super::statistics::groups::{GroupIds, Outcome};
use super::statistics::series::LevelEvent;
use super::workers::{RecordedSpan, Sending, WorkerId};
use crate::clients::{Client, ClientId};
use crate::logged::LoggedRequest;
use weir_flowcontrol::fairqueuing::longest_queue_wait;
use weir_flowcontrol::matching::bypasses_fairness;
use weir_kubernetes::numeric::{saturating_u32, saturating_u64};
use weir_kubernetes::request_info::{RequestInfo, RequestKind};
use weir_limits::AdmissionAttributes;
use weir_limits::rate::clients::enforcer::{ChargedRequest, ClientLimitPermit};

/// How often a request looks for a slot of a client limit that it may wait for, in nanoseconds.
const SLOT_RETRY_NS: u64 = 5_000_000;

/// The longest service time, in nanoseconds: a day.
const MAX_SERVICE_NS: u64 = 86_400_000_000_000;

impl Simulation {
    pub(super) fn arrive_first(&mut self, request: LoggedRequest) {
        if request.recorded.rejected && self.model.clients.retries() != Retries::Never {
            self.left_out_retries += 1;
            return;
        }
        let span = self.model.clients.is_closed_loop();
        let Some(span) = span.then(|| self.recorded_span(&request)).flatten() else {
            return self.send(request, None);
        };
        match self.workers.send(self.now, request, span) {
            Sending::Now(request, worker) => self.send(request, worker),
            Sending::At(at, worker) => self.agenda.plan(at, Turn::Arrive, Planned::Send { worker }),
            Sending::Later => {}
        }
    }

    /// When a request began and ended in the record. `None` of a long-running one, which no other
    /// request waits for.
    fn recorded_span(&self, request: &LoggedRequest) -> Option<RecordedSpan> {
        let info = RequestInfo::parse(request.method(), request.target()).ok()?;
        if info.long_running() {
            return None;
        }
        let service_ns = match request.service_ns.get() {
            Some(recorded) => recorded,
            None if request.recorded.cancelled => 0,
            None => self.service.estimate(&info),
        };
        let start = self.log_time(request.at_us);
        let end = start.plus(request.recorded.wait_ns).plus(service_ns);
        Some(RecordedSpan { start, end })
    }

    /// A client sends a request for the first time.
    pub(super) fn send(&mut self, request: LoggedRequest, worker: Option<WorkerId>) {
        if let Some(attempt) = self.first_attempt(request, worker) {
            self.arrive(attempt);
        }
    }

    fn first_attempt(
        &mut self,
        request: LoggedRequest,
        worker: Option<WorkerId>,
    ) -> Option<Attempt> {
        self.attempt(RepeatedRequest {
            request,
            worker,
            number: 0,
            first_at: self.now,
        })
    }

    /// A client sends a request again.
    pub(super) fn repeat(&mut self, repeated: RepeatedRequest) {
        if let Some(attempt) = self.attempt(repeated) {
            self.arrive(attempt);
        }
    }

    fn attempt(&mut self, repeated: RepeatedRequest) -> Option<Attempt> {
        let RepeatedRequest {
            request,
            worker,
            number,
            first_at,
        } = repeated;
        let client = self.client(request.client)?; // it is registered before its request
        Some(Attempt {
            request,
            client,
            worker,
            number,
            first_at,
            arrived: self.now,
            policies: None,
        })
    }

    fn client(&mut self, id: ClientId) -> Option<Arc<Client>> {
        let at = usize::try_from(id.0).ok()?;
        if at >= self.clients.len() {
            self.table.extend(&mut self.clients);
        }
        self.clients.get(at).map(Arc::clone)
    }

    /// A request that its client has still not sent at the end of the replay.
    pub(super) fn send_unfinished(&mut self, request: LoggedRequest) {
        let Some(attempt) = self.first_attempt(request, None) else {
            return; // unreachable: the client is registered before its request
        };
        let (method, target) = (attempt.request.method(), attempt.request.target());
        let Ok(info) = RequestInfo::parse(method, target) else {
            self.malformed += 1;
            return;
        };
        let classified = self.classify(&info, &attempt);
        let prepared = self.prepare(&info, &attempt, classified, None);
        let request = self.request(attempt, &prepared, Held::Nothing, None);
        self.count(prepared.groups.level, LevelEvent::Arrived);
        let settled = self.settled(&request, Outcome::Unfinished, None, 0);
        self.groups.settle(&request.groups, &settled);
    }

    /// Lets a request arrive at the client limits.
    pub(super) fn arrive(&mut self, mut attempt: Attempt) {
        attempt.arrived = self.now;
        if !self.rates.limits_clients() {
            return self.arrive_at_limiter(attempt, None);
        }
        let (method, target) = (attempt.request.method(), attempt.request.target());
        let Ok(info) = RequestInfo::parse(method, target) else {
            self.drop_malformed(&attempt);
            return;
        };
        let Ok(timeout) = info.timeout(self.request_timeout) else {
            self.drop_malformed(&attempt);
            return;
        };
        let now = self.epoch.instant(self.now);
        let deadline =
            (!info.long_running()).then(|| now + timeout.unwrap_or(self.request_timeout));
        let attributes = AdmissionAttributes {
            info: &info,
            user: &attempt.client.user,
        };
        let unix_second = attempt.request.at_us.div_euclid(1_000_000);
        let client = &attempt.client;
        match self
            .rates
            .check_policies(&attributes, client, now, unix_second)
        {
            Ok(permit) => attempt.policies = permit,
            Err(why) => return self.reject_at_once(attempt, &why),
        }
        let attributes = AdmissionAttributes {
            info: &info,
            user: &attempt.client.user,
        };
        let charged = self
            .rates
            .charge_client(&attributes, &attempt.client, now, deadline);
        match charged {
            Ok(None) => self.arrive_at_limiter(attempt, None),
            Ok(Some(charged)) if charged.wait.is_zero() => self.take_client_slots(attempt, charged),
            Ok(Some(charged)) => {
                let at = self.now.plus(saturating_u64(charged.wait.as_nanos()));
                self.plan_after_rates(at, attempt, charged);
            }
            Err(why) => self.reject_at_once(attempt, &why),
        }
    }

    /// weir would answer such a request with an error before all limits.
    fn drop_malformed(&mut self, attempt: &Attempt) {
        self.malformed += 1;
        self.end_of_worker(self.now, attempt.worker);
    }

    pub(super) fn plan_after_rates(
        &mut self,
        at: SimTime,
        attempt: Attempt,
        charged: ChargedRequest,
    ) {
        self.absent += 1;
        let planned = Planned::AfterRates(Box::new((attempt, charged)));
        self.agenda.plan(at, Turn::Arrive, planned);
    }

    /// Acquires the slots of the client limits, or looks for them again a little later.
    pub(super) fn take_client_slots(&mut self, attempt: Attempt, charged: ChargedRequest) {
        let now = self.epoch.instant(self.now);
        let (method, target) = (attempt.request.method(), attempt.request.target());
        let Ok(info) = RequestInfo::parse(method, target) else {
            return; // unreachable: it was parsed before
        };
        let attributes = AdmissionAttributes {
            info: &info,
            user: &attempt.client.user,
        };
        match self.rates.try_acquire_slots(&charged, &attributes, now) {
            Ok(Some(permit)) => self.arrive_at_limiter(attempt, Some(permit)),
            Ok(None) => {
                let at = self.now.plus(SLOT_RETRY_NS);
                self.plan_after_rates(at, attempt, charged);
            }
            Err(why) => self.reject_at_once(attempt, &why),
        }
    }

    /// Rejects a request before it has reached a level.
    pub(super) fn reject_at_once(&mut self, attempt: Attempt, why: &LimitRejection) {
        let (method, target) = (attempt.request.method(), attempt.request.target());
        let Ok(info) = RequestInfo::parse(method, target) else {
            return; // unreachable: it was parsed before
        };
        let classified = self.classify(&info, &attempt);
        let prepared = self.prepare(&info, &attempt, classified, None);
        let request = self.request(attempt, &prepared, Held::Nothing, None);
        self.count(prepared.groups.level, LevelEvent::Arrived);
        self.reject(request, why);
    }

    pub(super) fn classify(
        &mut self,
        info: &RequestInfo<'_>,
        attempt: &Attempt,
    ) -> Option<Classified> {
        let Limiter::Fairness(fairness) = &mut self.limiter else {
            return None;
        };
        let recorded = RecordedEstimate {
            seats: attempt.request.seats.map(NonZeroU32::get),
            work: attempt.request.work(),
            bytes: attempt.request.bytes().map(NonZeroU64::get),
        };
        let user = &attempt.client.user;
        (!bypasses_fairness(info)).then(|| fairness.classify(info, user, recorded))
    }

    pub(super) fn prepare(
        &mut self,
        info: &RequestInfo<'_>,
        attempt: &Attempt,
        classified: Option<Classified>,
        timeout: Option<Duration>,
    ) -> RequestPlan {
        let service_ns = match attempt.request.service_ns.get() {
            Some(recorded) if attempt.number == 0 => {
                self.service.observe(info, recorded);
                if let Some(total) = &mut self.auto_total {
                    total.observe(info, recorded);
                }
                recorded
            }
            Some(recorded) => recorded,
            None => self.service.estimate(info),
        };
        let timeout = timeout.unwrap_or(self.request_timeout);
        RequestPlan {
            groups: self.groups_of(info, &attempt.client, classified.as_ref()),
            classified,
            service_ns: self.scaled(service_ns),
            longest_wait_ns: saturating_u64(longest_queue_wait(timeout).as_nanos()),
        }
    }

    /// Lets a request arrive at the event limits and at what limits concurrent requests.
    pub(super) fn arrive_at_limiter(
        &mut self,
        attempt: Attempt,
        permit: Option<Box<ClientLimitPermit>>,
    ) {
        let (method, target) = (attempt.request.method(), attempt.request.target());
        let Ok(info) = RequestInfo::parse(method, target) else {
            self.drop_malformed(&attempt);
            return;
        };
        let Ok(timeout) = info.timeout(self.request_timeout) else {
            self.drop_malformed(&attempt);
            return;
        };
        let attributes = AdmissionAttributes {
            info: &info,
            user: &attempt.client.user,
        };
        let now = self.epoch.instant(self.now);
        let charged = self.rates.check_event(&attributes, &attempt.request, now);
        let held = charged.and_then(|()| self.limiter.take_slot(&attributes));
        let classified = self.classify(&info, &attempt);
        let prepared = self.prepare(&info, &attempt, classified, timeout);
        match held {
            Ok(held) => {
                let request = self.request(attempt, &prepared, held, permit);
                self.admit(request, &prepared);
            }
            Err(why) => {
                let request = self.request(attempt, &prepared, Held::Nothing, None);
                self.count(prepared.groups.level, LevelEvent::Arrived);
                self.reject(request, &why);
            }
        }
    }

    /// Lets a request arrive at its level, or executes it.
    pub(super) fn admit(&mut self, request: SimRequest, prepared: &RequestPlan) {
        let level = prepared.groups.level;
        self.count(level, LevelEvent::Arrived);
        let id = self.requests.insert(request);
        let Some(classified) = prepared.classified else {
            self.dispatch(Started {
                request: id,
                seats: 1,
            });
            self.record_level(usize::try_from(level).unwrap_or(usize::MAX));
            return;
        };
        let now = self.epoch.instant(self.now);
        let second = self.epoch.unix_second(self.now);
        let arrival = self.limiter.arrive_at_level(now, second, &classified, id);
        match arrival {
            Ok(held) => {
                if let Some(request) = self.requests.get_mut(id) {
                    request.held = held;
                }
                self.dispatch_started(classified.level);
                let waits = self.requests.get(id);
                if waits.is_some_and(|request| request.dispatched.is_none()) {
                    self.plan_end_of_wait(id, prepared.longest_wait_ns);
                }
            }
            Err(why) => {
                self.dispatch_started(classified.level);
                if let Some(request) = self.requests.try_remove(id) {
                    self.reject(request, &why);
                }
            }
        }
        self.record_level(classified.level);
    }

    /// A request that waits leaves its queue when its time is over or its client goes away.
    fn plan_end_of_wait(&mut self, id: usize, longest_ns: u64) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let (serial, logged) = (request.serial, &request.attempt.request);
        let (recorded, service_ns) = (logged.recorded, logged.service_ns.get().unwrap_or_default());
        let request = saturating_u32(id);
        let at = self.now.plus(longest_ns);
        let planned = Planned::TimeOut { request, serial };
        self.agenda.plan(at, Turn::TimeOut, planned);
        if recorded.cancelled {
            let at = self.now.plus(recorded.wait_ns).plus(service_ns);
            let planned = Planned::Cancel { request, serial };
            self.agenda.plan(at, Turn::TimeOut, planned);
        }
    }

    pub(super) fn request(
        &mut self,
        attempt: Attempt,
        prepared: &RequestPlan,
        held: Held,
        client_permit: Option<Box<ClientLimitPermit>>,
    ) -> SimRequest {
        self.serial += 1;
        SimRequest {
            serial: self.serial,
            attempt,
            groups: prepared.groups,
            queued_at: self.now,
            dispatched: None,
            seats: 0,
            service_ns: prepared.service_ns,
            held,
            client_permit,
        }
    }

    pub(super) fn groups_of(
        &self,
        info: &RequestInfo<'_>,
        client: &Client,
        classified: Option<&Classified>,
    ) -> GroupIds {
        let not_limited = saturating_u32(self.limiter.level_count());
        let (level, schema, flow) = match (&self.limiter, classified) {
            (_, Some(classified)) => (
                saturating_u32(classified.level),
                saturating_u32(classified.schema),
                classified.flow.saturating_add(1),
            ),
            (Limiter::MaxInFlight(..), None) if !info.long_running() => {
                match RequestKind::from_request_info(info) {
                    RequestKind::ReadOnly => (0, 0, 0),
                    RequestKind::Mutating => (1, 0, 0),
                }
            }
            (limiter, None) => (not_limited, saturating_u32(limiter.schema_count()), 0),
        };
        GroupIds {
            level,
            schema,
            flow,
            user: client.user_name.0,
            user_agent: client.user_agent_name.0,
            source: client.source_name.0,
        }
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; a service time of a day is exact"
    )]
    pub(super) fn scaled(&self, nanoseconds: u64) -> u64 {
        let scale = self.model.service_time_scale;
        let nanoseconds = nanoseconds.min(MAX_SERVICE_NS);
        if scale == 1.0 {
            return nanoseconds;
        }
        ((nanoseconds as f64 * scale).round() as u64).min(MAX_SERVICE_NS)
    }
}
