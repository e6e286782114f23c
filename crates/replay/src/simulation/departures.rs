//! Departures in a simulation: dispatches, ends, time-outs and rejections.

use super::agenda::SimTime;
use super::agenda::Turn;
use super::engine::Simulation;
use super::limits::fairness::watch_duration;
use super::limits::level::Started;
use super::limits::limiter::{Held, LimitRejection, Limiter};
use super::limits::retries;
use super::model::Retries;
use super::requests::{Attempt, LingeringSeats, OpenWatch, Planned, RepeatedRequest, SimRequest};
use super::statistics::groups::{Outcome, RejectedBy, Settled};
use super::statistics::series::LevelEvent;
use super::workers::WorkerId;
use weir_kubernetes::numeric::{saturating_u32, saturating_u64};
use weir_kubernetes::request_info::{RequestInfo, Verb};

impl Simulation {
    /// Starts the requests that the last step of a level has dispatched.
    pub(super) fn dispatch_started(&mut self, level: usize) {
        let mut started = std::mem::take(&mut self.started);
        self.limiter.take_started(level, &mut started);
        for one in started.drain(..) {
            self.dispatch(one);
        }
        self.started = started;
    }

    pub(super) fn dispatch(&mut self, started: Started) {
        let Started { request: id, seats } = started;
        let now = self.now;
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.dispatched = Some(now);
        request.seats = seats;
        let (serial, service_ns) = (request.serial, request.service_ns);
        let (level, wait_ns) = (request.groups.level, now.since(request.queued_at));
        let is_open = matches!(request.held, Held::Nothing) && request.attempt.request.stream != 0;
        self.register_watch(id);
        self.count(level, LevelEvent::Dispatched { wait_ns });
        match &mut self.capacity {
            Some(capacity) if !is_open => capacity.start(now, id, service_ns),
            _ => {
                let request = saturating_u32(id);
                let planned = Planned::End { request, serial };
                self.agenda
                    .plan(now.plus(service_ns), Turn::Release, planned);
            }
        }
    }

    /// A watch counts for the seats of writes until it ends.
    pub(super) fn register_watch(&mut self, id: usize) {
        let Limiter::Fairness(fairness) = &self.limiter else {
            return;
        };
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let logged = &request.attempt.request;
        if !matches!(request.held, Held::Level(..)) || logged.stream == 0 {
            return;
        }
        let Ok(info) = RequestInfo::parse(logged.method(), logged.target()) else {
            return;
        };
        if *info.verb() != Verb::Watch {
            return;
        }
        let registration = fairness.register_watch(&info);
        let stream = logged.stream;
        let lasts = saturating_u64(watch_duration(&info).as_nanos());
        self.agenda.plan(
            self.now.plus(lasts),
            Turn::Release,
            Planned::WatchEnd { stream },
        );
        let earlier = self.watches.insert(stream, OpenWatch { registration });
        if let (Some(earlier), Limiter::Fairness(fairness)) = (earlier, &self.limiter)
            && let Some(registration) = earlier.registration
        {
            fairness.unregister_watch(registration);
        }
    }

    pub(super) fn end_watch(&mut self, stream: u64) {
        let ended = self.watches.remove(&stream);
        if let (Some(registration), Limiter::Fairness(fairness)) =
            (ended.and_then(|watch| watch.registration), &self.limiter)
        {
            fairness.unregister_watch(registration);
        }
    }

    /// Ends a request that was dispatched.
    pub(super) fn end(&mut self, id: usize) {
        let Some(mut request) = self.requests.try_remove(id) else {
            return;
        };
        let mut linger_ns = 0;
        let held = std::mem::replace(&mut request.held, Held::Nothing);
        match held {
            Held::Level(level, key) => {
                let now = self.epoch.instant(self.now);
                let lingers = match &mut self.limiter {
                    Limiter::Fairness(fairness) => fairness
                        .level_mut(level)
                        .and_then(|level| level.leave(now, key)),
                    Limiter::MaxInFlight(..) => None,
                };
                if let Some(time) = lingers {
                    linger_ns = saturating_u64(time.as_nanos());
                    let lingering = self.lingering.insert(LingeringSeats { level, key });
                    let planned = Planned::LingerEnd { lingering };
                    self.agenda
                        .plan(self.now.plus(linger_ns), Turn::Release, planned);
                }
                self.dispatch_started(level);
                self.record_level(level);
            }
            Held::Slot(slot) => {
                drop(slot);
                self.record_level(usize::try_from(request.groups.level).unwrap_or(usize::MAX));
            }
            Held::Nothing => request.seats = 0,
        }
        if let (Some(permit), Some(code)) = (
            &mut request.client_permit,
            request.attempt.request.recorded.code,
        ) {
            let sent = request.dispatched.unwrap_or(self.now);
            permit.record_response(code, self.epoch.instant(sent), self.epoch.instant(self.now));
        }
        let settled = self.settled(&request, Outcome::Executed, request.dispatched, linger_ns);
        self.groups.settle(&request.groups, &settled);
        self.end_of_worker(self.now, request.attempt.worker);
    }

    /// A request leaves its queue, if it still waits there.
    pub(super) fn leave_queue(&mut self, id: usize, cancelled: bool) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let (Held::Level(level, key), None) = (&request.held, request.dispatched) else {
            return;
        };
        let (level, key) = (*level, *key);
        let now = self.epoch.instant(self.now);
        let second = self.epoch.unix_second(self.now);
        let Limiter::Fairness(fairness) = &mut self.limiter else {
            return;
        };
        let retry_after = fairness
            .level_mut(level)
            .and_then(|level| level.cancel(now, second, key));
        let Some(request) = self.requests.try_remove(id) else {
            return;
        };
        self.dispatch_started(level);
        self.record_level(level);
        if cancelled {
            let settled = self.settled(&request, Outcome::Cancelled, None, 0);
            self.groups.settle(&request.groups, &settled);
            self.end_of_worker(self.now, request.attempt.worker);
        } else {
            let why = LimitRejection::of_seats(RejectedBy::TimeOut, retry_after.unwrap_or(1));
            self.reject(request, &why);
        }
    }

    /// Rejects a request, which may come again.
    pub(super) fn reject(&mut self, request: SimRequest, why: &LimitRejection) {
        self.count(request.groups.level, LevelEvent::Rejected);
        let now = self.epoch.instant(self.now);
        let client = request.attempt.request.client;
        let class = (why.by, request.groups.schema);
        let user = &request.attempt.client.user.name;
        // A denial has no Retry-After, and is sent at once.
        let is_denial = why.by == RejectedBy::Policy && why.retry_after.is_none();
        let held = match is_denial {
            true => None,
            false => self.holds.hold(now, client, user, class, why),
        };
        let mut received = self.now;
        if let Some((until, hold)) = held {
            let later = until.saturating_duration_since(now).as_nanos();
            received = received.plus(saturating_u64(later));
            self.agenda
                .plan(received, Turn::Release, Planned::HoldEnd { client, hold });
        }
        let (attempt, how) = (&request.attempt, self.model.clients.retries());
        let deadline = attempt
            .first_at
            .plus(saturating_u64(self.request_timeout.as_nanos()));
        let again = retries::retry_at(how, attempt.number, why, received, deadline);
        let mut settled = self.settled(&request, Outcome::Rejected(why.by), None, 0);
        settled.held = held.is_some();
        settled.gave_up = again.is_none() && how != Retries::Never;
        self.groups.settle(&request.groups, &settled);
        if let Some(at) = again {
            let Attempt {
                request,
                worker,
                number,
                first_at,
                ..
            } = request.attempt;
            let repeated = RepeatedRequest {
                request,
                worker,
                number: number + 1,
                first_at,
            };
            self.absent += 1;
            self.agenda
                .plan(at, Turn::Arrive, Planned::Retry(Box::new(repeated)));
        } else {
            self.end_of_worker(received, request.attempt.worker);
        }
    }

    /// The client has its answer at this time: its worker may send the next request.
    pub(super) fn end_of_worker(&mut self, at: SimTime, worker: Option<WorkerId>) {
        let Some(worker) = worker else {
            return;
        };
        if let Some(at) = self.workers.end(at, worker) {
            self.agenda.plan(at, Turn::Arrive, Planned::Send { worker });
        }
    }

    pub(super) fn settled(
        &self,
        request: &SimRequest,
        outcome: Outcome,
        dispatched: Option<SimTime>,
        linger_ns: u64,
    ) -> Settled {
        let recorded = request.attempt.request.recorded;
        let is_retry = request.attempt.number > 0;
        let occupied = dispatched.map_or(0, |at| self.now.since(at).saturating_add(linger_ns));
        Settled {
            outcome,
            wait_ns: dispatched
                .unwrap_or(self.now)
                .since(request.attempt.arrived),
            dispatched: dispatched.is_some(),
            seat_ns: u128::from(request.seats) * u128::from(occupied),
            is_retry,
            gave_up: false,
            held: false,
            recorded_rejected: recorded.rejected && !is_retry,
            recorded_wait_ns: match is_retry {
                true => 0,
                false => request.attempt.request.recorded_wait_ns(),
            },
        }
    }
}
