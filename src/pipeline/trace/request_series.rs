//! The label values of a request and the metrics that are resolved for them.

use std::sync::OnceLock;

use http::{HeaderValue, StatusCode, header, request};
use prometheus::{Histogram, IntCounter, IntGauge};

use crate::pipeline::trace::label_allowlist::{HandlerLabels, path_label};
use weir_kubernetes::request_info::{MetricLabels, RequestInfo};

/// Codes that are counted without a lookup by text; the others are rare.
const COMMON_CODES: [u16; 12] = [200, 201, 304, 400, 401, 403, 404, 409, 422, 429, 500, 503];

/// One set of label values, with its metrics.
pub(crate) struct RequestSeries {
    pub(super) values: [Box<str>; 8],
    pub(super) duration: OnceLock<Histogram>,
    pub(super) sli: OnceLock<Histogram>,
    pub(super) response_size: OnceLock<Histogram>,
    pub(super) body_size: OnceLock<Histogram>,
    pub(super) common: CodeCounters,
    /// Rejected by a limit; of resource requests, whose labels are all here.
    pub(super) terminated: OnceLock<IntCounter>,
    pub(super) long_running: OnceLock<IntGauge>,
}

/// A counter for each common code.
#[derive(Default)]
pub(super) struct CodeCounters([OnceLock<IntCounter>; COMMON_CODES.len()]);

impl CodeCounters {
    pub(super) fn inc(&self, code: StatusCode, resolve: impl FnOnce() -> IntCounter) {
        let usual = COMMON_CODES
            .iter()
            .zip(&self.0)
            .find(|(usual, _)| **usual == code.as_u16());
        match usual {
            Some((_, counter)) => counter.get_or_init(resolve).inc(),
            None => resolve().inc(),
        }
    }
}

/// What responded to a request; upstream's labels depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Responder {
    /// weir itself, as kube-apiserver's filters do.
    Filter,
    /// The API server, and whether its response shows that the requested object exists.
    Handler {
        exists: bool,
        /// The labels of the handler of a non-resource path.
        labels: Option<HandlerLabels>,
    },
    /// The API server, or weir in its place, before a handler that counts was reached: see
    /// [`HandlerReached`](crate::pipeline::trace::outcome::HandlerReached).
    NoHandler,
}

impl RequestSeries {
    pub(super) fn new(values: [&str; 8]) -> Self {
        Self {
            values: values.map(Into::into),
            duration: OnceLock::new(),
            sli: OnceLock::new(),
            response_size: OnceLock::new(),
            body_size: OnceLock::new(),
            common: CodeCounters::default(),
            terminated: OnceLock::new(),
            long_running: OnceLock::new(),
        }
    }

    pub(super) fn labels(&self) -> [&str; 8] {
        self.values.each_ref().map(|value| &**value)
    }

    pub(super) fn without_dry_run(&self) -> [&str; 7] {
        let [
            verb,
            _,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        ] = self.labels();
        [
            verb,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        ]
    }

    /// The labels without the dry run, with the path as subresource of a non-resource request.
    pub(super) fn with_path_label<'a>(&'a self, info: &'a RequestInfo<'_>) -> [&'a str; 7] {
        let [verb, group, version, resource, own, scope, component] = self.without_dry_run();
        let subresource = if info.is_resource_request() {
            own
        } else {
            path_label(info)
        };
        [
            verb,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        ]
    }
}

/// A request as metrics distinguish it.
#[derive(Clone, Copy, Debug)]
pub struct MetricSubject<'a> {
    /// Verb, scope and dry run.
    pub labels: MetricLabels,
    /// Group, version, resource and subresource, or the path.
    pub info: &'a RequestInfo<'a>,
}

impl<'a> MetricSubject<'a> {
    /// The subject of a request with this head.
    #[must_use]
    pub(crate) fn from_head(head: &request::Parts, info: &'a RequestInfo<'a>) -> Self {
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(HeaderValue::as_bytes);
        let labels = MetricLabels::from_request(head.method.as_str(), info, content_type);
        Self { labels, info }
    }
}
