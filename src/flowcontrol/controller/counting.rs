//! Object counts that weir asks for: which resources are listed through it, and what was answered.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use prometheus::IntCounterVec;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::lock;
use crate::flowcontrol::count_schedule::Call;
use crate::flowcontrol::count_schedule::CountSchedule;
use crate::flowcontrol::count_schedule::Countable;
use crate::flowcontrol::count_schedule::Next;
use crate::flowcontrol::count_schedule::Outcome;
use crate::flowcontrol::object_counts::is_of_objects;
use crate::flowcontrol::work_estimate::depends_on_count;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;

/// What the controller keeps for it.
pub(super) struct Counting {
    /// Whether counts are asked for at all. Nothing is noted before.
    enabled: AtomicBool,
    schedule: Mutex<CountSchedule>,
    /// A resource was listed for the first time.
    listed: Notify,
    calls: IntCounterVec,
}

impl Counting {
    pub(super) fn new(registry: &Registry) -> Self {
        let calls = registry.counters(
            "weir_object_count_calls_total",
            "Calls to the API server for object counts that its metrics do not tell, by result: reviews of whether weir may list (allowed, denied, no-reviews), and lists of one object (counted, uncountable, denied); failed is either.",
            &["result"],
        );
        Self {
            enabled: AtomicBool::new(false),
            schedule: Mutex::new(CountSchedule::new(Clock.now())),
            listed: Notify::new(),
            calls,
        }
    }

    fn enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

impl Controller {
    /// Notes from now on which resources are listed, for [`Controller::next_count_call`].
    pub fn ask_for_counts(&self) {
        self.counting.enabled.store(true, Ordering::Relaxed);
    }

    /// Takes in that the API server answered this request 200.
    pub fn answered(&self, info: &RequestInfo<'_>) {
        if !self.counting.enabled() || !is_of_objects(info) || !depends_on_count(info) {
            return;
        }
        if lock(&self.counting.schedule).listed(Clock.now(), info) {
            self.counting.listed.notify_one();
        }
    }

    /// Whether a list of a part of the objects tells something: how large they are, where only their
    /// number is known.
    #[must_use]
    pub fn lacks_size(&self, info: &RequestInfo<'_>) -> bool {
        self.counting.enabled()
            && is_of_objects(info)
            && lock(&self.objects).lacks_size(info.api_group(), info.resource())
    }

    /// What to ask the API server next, and when.
    #[must_use]
    pub fn next_count_call(&self) -> Next {
        let now = Clock.now();
        lock(&self.counting.schedule).next(now, |of| {
            lock(&self.objects).wants_count(now, of.group.as_bytes(), of.resource.as_bytes())
        })
    }

    /// Takes in how that call ended.
    pub fn count_call_ended(&self, call: &Call, outcome: Outcome) {
        let result = match outcome {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::NoReviews => "no-reviews",
            Outcome::Counted => "counted",
            Outcome::Uncountable => "uncountable",
            Outcome::Failed => "failed",
        };
        self.counting.calls.with_label_values(&[result]).inc();
        lock(&self.counting.schedule).ended(Clock.now(), call, outcome);
    }

    /// Takes in how many objects there are of a resource that was asked about.
    pub fn learn_asked(&self, of: &Countable, count: u64) {
        let (group, resource) = (of.group.as_bytes(), of.resource.as_bytes());
        lock(&self.objects).learn_asked(Clock.now(), group, resource, count);
    }

    /// Waits until a resource is listed for the first time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn newly_listed(&self) {
        self.counting.listed.notified().await;
    }
}
