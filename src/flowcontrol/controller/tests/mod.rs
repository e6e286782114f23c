//! Invariants of the controller: no request or seat is lost or kept, whenever any request leaves.
//! The time is the runtime's, which is paused.

mod dry_run;
mod held_seats;
mod immediate;
mod metrics;
mod queuing;
mod reconfiguration;
#[cfg(feature = "tools")]
mod replay;
mod stress;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::*;
use crate::flowcontrol::level::{
    ArrivalError, ArrivingRequest, LevelDump, PriorityLevel, SeatPermit, SeatRejection,
};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_flowcontrol::fairqueuing::queue_set::{QueueSetTotals, RejectReason};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{
    FlowDistinguisherMethodType, FlowSchema, FlowSchemaSpec, LimitResponse, LimitResponseType,
    LimitedPriorityLevelConfiguration, NonResourcePolicyRule, Object, ObjectMeta,
    PolicyRulesWithSubjects, PriorityLevelConfiguration, PriorityLevelConfigurationSpec,
    PriorityLevelEnablement, QueuingConfiguration, ResourcePolicyRule, Subject, SubjectKind,
};
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::in_flight::InFlightMetrics;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const POD: &str = "/api/v1/namespaces/a/pods/p";
pub(crate) const PODS: &str = "/api/v1/namespaces/a/pods";
pub(crate) const WATCH: &str = "/api/v1/namespaces/a/pods?watch=1&resourceVersion=7";

/// A controller and its registry.
pub(crate) struct ControllerFixture {
    pub(crate) controller: Arc<Controller>,
    in_flight: Arc<InFlightMetrics>,
    pub(crate) registry: Registry,
}

/// The outcome of an admission.
pub(crate) type AdmissionResult = Result<SeatPermit, SeatRejection>;

pub(crate) fn controller_fixture(
    seats: u32,
    enforcement: Enforcement,
    objects: &[Object],
) -> ControllerFixture {
    let registry = Registry::new();
    let config = ControllerConfig {
        server_concurrency_limit: seats,
        request_timeout: 60_000 * MS,
        enforcement,
        consistent_reads_from_cache: true,
    };
    let in_flight = InFlightMetrics::new(&registry);
    ControllerFixture {
        controller: Controller::with_in_flight(config, objects, &in_flight, &registry),
        in_flight,
        registry,
    }
}

/// One level `work` with this many seats, which serves every user, and the mandatory levels.
pub(crate) fn one_level(seats: u32, limit_response: LimitResponse) -> ControllerFixture {
    let objects = [
        level("work", 100, limit_response),
        schema("all", "work", "*"),
    ];
    controller_fixture(seats, Enforcement::Enforce, &objects)
}

pub(crate) fn queue(queues: i32, queue_length_limit: i32) -> LimitResponse {
    LimitResponse {
        kind: LimitResponseType::Queue,
        queuing: Some(QueuingConfiguration {
            queues,
            hand_size: 1,
            queue_length_limit,
        }),
    }
}

pub(crate) fn reject() -> LimitResponse {
    LimitResponse {
        kind: LimitResponseType::Reject,
        queuing: None,
    }
}

pub(crate) fn level(name: &str, shares: i32, limit_response: LimitResponse) -> Object {
    Object::PriorityLevelConfiguration(PriorityLevelConfiguration {
        metadata: meta(name),
        spec: PriorityLevelConfigurationSpec {
            enablement: PriorityLevelEnablement::Limited,
            limited: Some(LimitedPriorityLevelConfiguration {
                nominal_concurrency_shares: shares,
                limit_response,
                lendable_percent: 0,
                borrowing_limit_percent: None,
            }),
            exempt: None,
        },
        ..PriorityLevelConfiguration::default()
    })
}

/// A schema that assigns a user (`*`: every user) to a level.
pub(crate) fn schema(name: &str, level: &str, user: &str) -> Object {
    let any = || vec!["*".to_owned()];
    let rules = PolicyRulesWithSubjects {
        subjects: vec![Subject {
            kind: SubjectKind::User,
            user: Some(user.to_owned()),
            ..Subject::default()
        }],
        resource_rules: vec![ResourcePolicyRule {
            verbs: any(),
            api_groups: any(),
            resources: any(),
            cluster_scope: true,
            namespaces: any(),
        }],
        non_resource_rules: vec![NonResourcePolicyRule {
            verbs: any(),
            non_resource_urls: any(),
        }],
    };
    Object::FlowSchema(FlowSchema {
        metadata: meta(name),
        spec: FlowSchemaSpec {
            priority_level_configuration: level.to_owned(),
            matching_precedence: if user == "*" { 900 } else { 500 },
            distinguisher_method: Some(FlowDistinguisherMethodType::ByUser),
            rules: vec![rules],
        },
        ..FlowSchema::default()
    })
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.to_owned(),
        ..ObjectMeta::default()
    }
}

impl ControllerFixture {
    fn publish_peaks(&self) {
        self.in_flight.publish_peaks();
    }

    /// Admits a request that arrives now and has no deadline.
    pub(crate) async fn admit(&self, user: &str, method: &str, target: &str) -> AdmissionResult {
        self.admit_until(user, method, target, Clock.now(), None)
            .await
    }

    pub(crate) async fn admit_until(
        &self,
        user: &str,
        method: &str,
        target: &str,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> AdmissionResult {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let user = UserInfo {
            name: user.to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            ..UserInfo::default()
        };
        let times = RequestTimes {
            now: Clock.now(),
            arrived,
            deadline,
        };
        self.controller.admit(&info, &user, times).await
    }

    /// A get request, as a future that can be polled step by step.
    pub(crate) fn get<'w>(&'w self, user: &'w str) -> PolledAdmission<'w> {
        PolledAdmission::new(self.admit(user, "GET", POD))
    }

    /// A get request that must not wait.
    pub(crate) fn get_now(&self, user: &str) -> SeatPermit {
        match self.get(user).poll_once() {
            Poll::Ready(Ok(admitted)) => admitted,
            Poll::Ready(Err(rejected)) => panic!("{user} is refused: {rejected:?}"),
            Poll::Pending => panic!("{user} has to wait"),
        }
    }

    /// `None` if the level is not in use.
    pub(crate) fn level_dump(&self, level: &str) -> Option<LevelDump> {
        let levels = self.controller.levels();
        let found = levels.iter().find(|found| found.name() == level)?;
        Some(found.dump())
    }

    pub(crate) fn totals(&self, level: &str) -> QueueSetTotals {
        self.level_dump(level).expect("a level in use").totals
    }

    /// Waiting requests, executing requests, seats in use.
    pub(crate) fn load(&self, level: &str) -> (usize, usize, u64) {
        let totals = self.totals(level);
        (
            totals.requests_waiting,
            totals.requests_executing,
            totals.seats_in_use,
        )
    }

    /// The value of a series, by its name and labels as in the exposition.
    pub(crate) fn metric_value(&self, series: &str) -> Option<f64> {
        let text = self.registry.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series))?;
        line.strip_prefix(' ')?.parse().ok()
    }

    pub(crate) fn interested_watches(&self, method: &str, target: &str) -> usize {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        self.controller
            .watch_tracker
            .lock()
            .interested_watches(&info)
    }
}

/// An admission in progress.
pub(crate) struct PolledAdmission<'w>(Pin<Box<dyn Future<Output = AdmissionResult> + Send + 'w>>);

impl<'w> PolledAdmission<'w> {
    pub(crate) fn new(admission: impl Future<Output = AdmissionResult> + Send + 'w) -> Self {
        Self(Box::pin(admission))
    }

    /// Polls the admission once.
    pub(crate) fn poll_once(&mut self) -> Poll<AdmissionResult> {
        self.0
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Expects that the request waits.
    pub(crate) fn expect_pending(mut self) -> Self {
        assert!(self.poll_once().is_pending(), "it does not have to wait");
        self
    }
}

/// Runs the tasks that are ready without any time passing.
pub(crate) async fn run_ready_tasks() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Lets this much time pass, and runs the tasks that become ready in it.
pub(crate) async fn advance(time: Duration) {
    tokio::time::sleep(time).await;
    run_ready_tasks().await;
}
