//! Priority and fairness of the playground's API server: weir's own flow controller, inside the
//! server instead of in front of it, and weir's own reading of its objects.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Uri};
use serde_json::Value;

use crate::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, RequestTimes};
use crate::flowcontrol::level::FlowControlDecision;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap;
use weir_kubernetes::api::flowcontrol::{Manifest, Object};
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Strictness};
use weir_kubernetes::request_info::{RequestInfo, Verb};
use weir_playground::{
    ApiUser, BoxFuture, ClassificationUids, Fairness, InvalidField, ObjectError, SeatGuard,
    TooManyRequests,
};

/// kube-apiserver's default `--request-timeout`. A request may wait a quarter of it in a queue.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The flow controller, with the objects that the server stores.
#[derive(Debug)]
pub struct ServerFairness {
    controller: Arc<Controller>,
    registry: Registry,
    /// Whether requests take seats. Otherwise they are only classified, for the headers of their
    /// responses.
    limits: bool,
}

impl ServerFairness {
    /// `seats` is the total of all priority levels. `None`: nothing is limited.
    #[must_use]
    pub fn new(seats: Option<NonZeroU32>) -> Self {
        let config = ControllerConfig {
            server_concurrency_limit: seats.map_or(1, NonZeroU32::get),
            request_timeout: REQUEST_TIMEOUT,
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        let objects = bootstrap::add_missing(Vec::new());
        let registry = Registry::new();
        Self {
            controller: Controller::new(config, &objects, &registry),
            registry,
            limits: seats.is_some(),
        }
    }

    async fn acquire_seat(
        &self,
        method: &Method,
        uri: &Uri,
        user: &ApiUser,
    ) -> Result<Option<SeatGuard>, TooManyRequests> {
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let Ok(info) = RequestInfo::parse(method.as_str(), target.as_bytes()) else {
            return Ok(None); // the server answers 404
        };
        if info.long_running() && *info.verb() != Verb::Watch {
            return Ok(None);
        }
        let user = UserInfo {
            name: user.name.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone().into_iter().collect(),
        };
        if !self.limits {
            return Ok(Some(SeatGuard {
                classification: classification(&self.controller.classify(&info, &user)),
                permit: Box::new(()),
            }));
        }
        let now = Clock.now();
        let limit = info.timeout(REQUEST_TIMEOUT).ok().flatten();
        let times = RequestTimes {
            deadline: Some(now + limit.unwrap_or(REQUEST_TIMEOUT)),
            ..RequestTimes::at(now)
        };
        let admitted = self.controller.admit(&info, &user, times).await;
        let admitted = admitted.map_err(|rejected| TooManyRequests {
            classification: classification(&rejected.decision),
            retry_after: rejected.retry_after,
        })?;
        Ok(Some(SeatGuard {
            classification: classification(admitted.decision()),
            permit: Box::new(admitted),
        }))
    }
}

/// Decodes a manifest of one object, and gives it to `read`.
fn with_manifest<T>(value: &Value, read: impl FnOnce(&Manifest<'_>) -> T) -> Result<T, String> {
    let mut diagnostics = Diagnostics::default();
    let node = document::parse_json("the object", &value.to_string(), &mut diagnostics);
    let decoded = node
        .as_ref()
        .map(|node| flowcontrol::decode(node, Strictness::Lenient, &mut diagnostics));
    let found = decoded.iter().flatten().next().map(read);
    found.ok_or_else(|| diagnostics.to_string())
}

fn classification(decision: &FlowControlDecision) -> ClassificationUids {
    ClassificationUids {
        flow_schema: decision.flow_schema().uid.clone(),
        priority_level: decision.priority_level().uid.clone(),
    }
}

impl Fairness for ServerFairness {
    fn admit<'a>(
        &'a self,
        method: &'a Method,
        uri: &'a Uri,
        user: &'a ApiUser,
    ) -> BoxFuture<'a, Result<Option<SeatGuard>, TooManyRequests>> {
        Box::pin(self.acquire_seat(method, uri, user))
    }

    fn built_in_objects(&self) -> Vec<Value> {
        let objects = bootstrap::add_missing(Vec::new());
        objects.iter().map(flowcontrol::to_manifest).collect()
    }

    fn check_object(&self, object: &Value) -> Result<Value, ObjectError> {
        let checked = with_manifest(object, |manifest| {
            let spec = flowcontrol::to_manifest(&manifest.object)
                .get_mut("spec")
                .map(Value::take);
            (spec.unwrap_or_default(), manifest.validate())
        });
        let (spec, errors) = checked.map_err(ObjectError::Malformed)?;
        if errors.is_empty() {
            return Ok(spec);
        }
        let invalid = errors.into_iter().map(|error| InvalidField {
            reason: error.error_type.reason(),
            message: error.body(),
            field: error.field,
        });
        Err(ObjectError::Invalid(invalid.collect()))
    }

    fn configure(&self, objects: &[Value]) {
        let objects: Vec<Object> = objects
            .iter()
            .filter_map(|object| with_manifest(object, |one| one.object.clone()).ok())
            .collect();
        self.controller.configure(Clock.now(), &objects);
    }

    fn metrics(&self) -> String {
        match self.limits {
            true => self.registry.render(),
            false => String::new(),
        }
    }

    fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.controller.run())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;

    type PendingAdmission<'a> = BoxFuture<'a, Result<Option<SeatGuard>, TooManyRequests>>;

    fn poll(
        admission: &mut PendingAdmission<'_>,
    ) -> Poll<Result<Option<SeatGuard>, TooManyRequests>> {
        admission
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    fn user(name: &str, groups: &[&str]) -> ApiUser {
        ApiUser {
            name: name.to_owned(),
            uid: String::new(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            extra: Default::default(),
        }
    }

    #[test]
    fn a_server_with_limits_publishes_their_seats() {
        let seats = |fairness: &ServerFairness| {
            let mut metrics = ResourceMetrics::default();
            metrics.feed(fairness.metrics().as_bytes());
            metrics.nominal_seats()
        };
        // Shares are rounded up.
        let limited = seats(&ServerFairness::new(NonZeroU32::new(600))).unwrap();
        assert!((600..610).contains(&limited), "{limited}");
        assert_eq!(seats(&ServerFairness::new(None)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_flow_fills_its_seats_and_then_its_queues_and_is_rejected_after_that() {
        // 20 of the 245 shares of the built-in levels are those of global-default: 49 of 600 seats.
        let fairness = ServerFairness::new(NonZeroU32::new(600));
        let pods = Uri::from_static("/api/v1/namespaces/default/pods/p");
        let log = Uri::from_static("/api/v1/namespaces/default/pods/p/log");
        let alice = user("alice", &["dev", "system:authenticated"]);
        let node = user("system:node:n", &["system:nodes", "system:authenticated"]);
        let admin = user("admin", &["system:masters", "system:authenticated"]);
        let get = Method::GET;
        let admit = |uri, user| fairness.admit(&get, uri, user);
        let (mut seated, mut queued) = (Vec::new(), Vec::new());
        let rejected = loop {
            let mut admission = admit(&pods, &alice);
            match poll(&mut admission) {
                Poll::Ready(Ok(seat)) => seated.push(seat.expect("a seat")),
                Poll::Ready(Err(rejected)) => break rejected,
                Poll::Pending => queued.push(admission),
            }
            assert!(queued.len() < 1000, "and no end");
        };
        // 49 seats plus those that other levels lend from the start; then a hand of 6 queues with
        // 50 requests each.
        assert!((49..200).contains(&seated.len()), "{}", seated.len());
        assert_eq!(queued.len(), 300);
        assert!(rejected.retry_after >= 1);
        assert_eq!(rejected.classification, seated[0].classification);
        // Another level has its own seats, and system:masters is exempt.
        for other in [&node, &admin] {
            let seat = poll(&mut admit(&pods, other));
            assert!(matches!(seat, Poll::Ready(Ok(Some(_)))), "{other:?}");
        }
        // A long-running request that is not a watch is not admitted by fairness.
        let seat = poll(&mut admit(&log, &alice));
        assert!(matches!(seat, Poll::Ready(Ok(None))), "{seat:?}");
    }
}
