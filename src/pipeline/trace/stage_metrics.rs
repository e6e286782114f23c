//! The metrics of kube-apiserver's filters (`server/filters`, `endpoints/filters`, 1.36), and the
//! time of each stage in weir.
//!
//! All series are resolved once: a request looks nothing up here.

use std::time::Duration;

use prometheus::core::Metric;
use prometheus::{Histogram, IntCounter};

use weir_base::metrics::{Registry, SparseHistogram};

/// `apiserver_request_filter_duration_seconds` (`endpoints/metrics/metrics.go`).
const FILTER_BUCKETS: [f64; 13] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0,
];

/// `authentication_duration_seconds` (`endpoints/filters/metrics.go`): 15 from a millisecond, each
/// twice the one before.
const AUTHENTICATION_BUCKETS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

/// `apiserver_client_certificate_expiration_seconds` (`authentication/request/x509/x509.go`): 0,
/// half an hour and so on to a year.
const EXPIRATION_BUCKETS: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// From the duration of a decision to the maximum duration of a request, in seconds.
const STAGE_BUCKETS: [f64; 14] = [
    0.000_03, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0,
];

/// The users that upstream distinguishes here (`compressUsername`), and its classes for the others:
/// a user's name is no label.
const USER_CLASSES: [&str; 7] = [
    "admin",
    "client",
    "kube_proxy",
    "kubelet",
    "system:serviceaccount:kube-system:default",
    EMAIL_CLASS,
    OTHER_CLASS,
];
const EMAIL_CLASS: &str = "email_id";
const OTHER_CLASS: &str = "other";

/// The metrics of stages.
#[derive(Debug)]
pub(crate) struct StageMetrics {
    succeeded: AuthenticationAttempts,
    failed: AuthenticationAttempts,
    users: [IntCounter; USER_CLASSES.len()],
    expiration: Histogram,
    authentication: SparseHistogram,
    fairness: SparseHistogram,
    stages: [Histogram; RequestStage::ALL.len()],
}

/// How long the API server has taken to begin its responses, as a histogram.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpstreamLatency {
    /// The number of responses.
    pub(crate) count: u64,
    /// The sum of their times in seconds.
    pub(crate) seconds: f64,
    /// Upper bounds in seconds, each with the number of responses that took no longer.
    pub(crate) buckets: Vec<(f64, u64)>,
}

#[derive(Debug)]
struct AuthenticationAttempts {
    count: IntCounter,
    duration: SparseHistogram,
}

/// A stage of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestStage {
    /// Until the request is authenticated.
    Authentication,
    /// Then until the request is admitted: in queues, or delayed by a rate.
    Limits,
    /// Then until the API server starts to respond.
    Upstream,
    /// Then until the last byte of the response; not measured for long-running requests.
    Response,
}

impl RequestStage {
    const ALL: [Self; 4] = [
        Self::Authentication,
        Self::Limits,
        Self::Upstream,
        Self::Response,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Limits => "limits",
            Self::Upstream => "upstream",
            Self::Response => "answer",
        }
    }
}

impl StageMetrics {
    pub(crate) fn register(registry: &Registry) -> Self {
        let users = registry.counters(
            "authenticated_user_requests",
            "[ALPHA] Authenticated requests, by class of user name as in kube-apiserver (email_id and other).",
            &["username"],
        );
        let attempts = registry.counters(
            "authentication_attempts",
            "[ALPHA] Authentication attempts by result: success, or error for an invalid certificate and for a token that weir cannot verify but the API server still may.",
            &["result"],
        );
        let durations = registry.sparse_histograms(
            "authentication_duration_seconds",
            "[ALPHA] Duration of authentication, in seconds.",
            "result",
            &AUTHENTICATION_BUCKETS,
        );
        let filters = registry.sparse_histograms(
            "apiserver_request_filter_duration_seconds",
            "[ALPHA] Time that a request spent before it was handed on: in authentication, and in priorityandfairness with its queues, in seconds.",
            "filter",
            &FILTER_BUCKETS,
        );
        let stages = registry.histograms(
            "weir_stage_duration_seconds",
            "Duration of the stages of forwarded requests: authentication, limits (waiting), upstream (until its response starts), answer (until the response ends; not of long-running requests), in seconds.",
            &["stage"],
            &STAGE_BUCKETS,
        );
        let attempt = |result| AuthenticationAttempts {
            count: attempts.with_label_values(&[result]),
            duration: durations.with_label_value(result),
        };
        Self {
            succeeded: attempt("success"),
            failed: attempt("error"),
            users: USER_CLASSES.map(|user| users.with_label_values(&[user])),
            expiration: registry.histogram(
                "apiserver_client_certificate_expiration_seconds",
                "[ALPHA] How long the certificates by which requests were authenticated are still good for, in seconds.",
                &EXPIRATION_BUCKETS,
            ),
            authentication: filters.with_label_value("authentication"),
            fairness: filters.with_label_value("priorityandfairness"),
            stages: RequestStage::ALL.map(|stage| stages.with_label_values(&[stage.label()])),
        }
    }

    /// Records that `user` was authenticated after `took`.
    pub(crate) fn record_authenticated(&self, user: &str, took: Duration) {
        self.succeeded.record(took);
        self.authentication.observe(took);
        if let Some((_, count)) = USER_CLASSES
            .iter()
            .zip(&self.users)
            .find(|(name, _)| matches_class(user, name))
        {
            count.inc();
        }
    }

    /// Records that weir could not authenticate the request after `took`; the API server still may.
    pub(crate) fn record_unauthenticated(&self, took: Duration) {
        self.failed.record(took);
        self.authentication.observe(took);
    }

    /// Records the remaining validity of the certificate that authenticated the request.
    pub(crate) fn record_certificate_expiration(&self, left: Duration) {
        self.expiration.observe(left.as_secs_f64());
    }

    /// Records that priority and fairness admitted the request after `took`.
    pub(crate) fn record_fairness(&self, took: Duration) {
        self.fairness.observe(took);
    }

    /// How long the API server has taken to begin its responses.
    pub(crate) fn upstream_latency(&self) -> UpstreamLatency {
        let [_, _, upstream, _] = &self.stages;
        let metric = upstream.metric();
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter();
        UpstreamLatency {
            count: histogram.get_sample_count(),
            seconds: histogram.get_sample_sum(),
            buckets: buckets
                .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                .filter(|(bound, _)| bound.is_finite())
                .collect(),
        }
    }

    pub(crate) fn record_stage(&self, stage: RequestStage, took: Duration) {
        let [authentication, limits, upstream, answer] = &self.stages;
        let histogram = match stage {
            RequestStage::Authentication => authentication,
            RequestStage::Limits => limits,
            RequestStage::Upstream => upstream,
            RequestStage::Response => answer,
        };
        histogram.observe(took.as_secs_f64());
    }
}

impl AuthenticationAttempts {
    fn record(&self, took: Duration) {
        self.count.inc();
        self.duration.observe(took);
    }
}

/// Whether the user belongs to the class; checked in the classes' order.
fn matches_class(user: &str, class: &str) -> bool {
    match class {
        OTHER_CLASS => true,
        EMAIL_CLASS => user.contains('@'),
        name => user == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_of_the_api_server_is_read_back() {
        let stages = StageMetrics::register(&Registry::new());
        for millis in [2, 20, 2000] {
            let took = Duration::from_millis(millis);
            stages.record_stage(RequestStage::Upstream, took);
            stages.record_stage(RequestStage::Limits, took);
        }
        let latency = stages.upstream_latency();
        assert_eq!((latency.count, latency.seconds), (3, 2.022));
        assert_eq!(latency.buckets.len(), STAGE_BUCKETS.len());
        let upto = |bound: f64| latency.buckets.iter().find(|(at, _)| *at == bound);
        assert_eq!(upto(0.003), Some(&(0.003, 1)));
        assert_eq!(upto(3.0), Some(&(3.0, 3)));
    }

    #[test]
    fn a_user_name_is_never_a_label() {
        let registry = Registry::new();
        let filters = StageMetrics::register(&registry);
        for user in [
            "admin",
            "alice",
            "other",
            "email_id",
            "alice@example.org",
            "system:node:n1",
            "kubelet",
        ] {
            filters.record_authenticated(user, Duration::ZERO);
        }
        let text = registry.render();
        for (class, count) in [
            ("admin", 1),
            ("kubelet", 1),
            ("email_id", 1),
            ("other", 4),
            ("client", 0),
        ] {
            let line = format!("authenticated_user_requests{{username=\"{class}\"}} {count}\n");
            assert!(text.contains(&line), "{class}: {text}");
        }
        assert!(
            !text.contains("alice") && !text.contains("system:node"),
            "{text}"
        );
    }
}
