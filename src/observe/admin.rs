//! The listeners for operators: `/livez`, `/readyz`, `/metrics`, in plain HTTP.
//!
//! They run on a runtime of their own, so that a flood of clients does not keep a probe or a scrape waiting.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::debug;
use tracing::warn;

use crate::flowcontrol::controller::Controller;
use crate::limits::rates::Rates;
use crate::metrics::Registry;
use crate::observe::log_level;
use crate::observe::log_level::LogLevel;
use crate::observe::readiness::Readiness;
use crate::observe::talkers;
use crate::observe::talkers::Talkers;
use crate::request_info::Query;

/// Most connections at a time: probes and scrapers are few, and these listeners must not eat the clients' descriptors.
const MOST_CONNECTIONS: usize = 64;

/// How long an idle connection is kept, or a slow request waited for.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

const METRICS_TYPE: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Where kube-apiserver has its dumps.
const DUMPS: &str = "/debug/api_priority_and_fairness/";

/// Who was refused most.
const RATES: &str = "/debug/rate_limits";

/// Who does most.
const TOP_TALKERS: &str = "/debug/top_talkers";

/// What a wrong path is told.
const SERVED: &str = "served here: /livez /readyz /metrics, and under /debug/api_priority_and_fairness/ dump_priority_levels, \
                      dump_queues and dump_requests; /debug/rate_limits /debug/top_talkers /debug/log_level\n";

/// What is served.
#[derive(Debug)]
pub struct Admin {
    /// Whether weir can do its work.
    pub readiness: Arc<Readiness>,
    /// The metrics, where they are served.
    pub metrics: Option<Registry>,
    /// Who was refused most by client limits and event limits, where it is served.
    pub rates: Option<Arc<Rates>>,
    /// What is logged, where that may be changed.
    pub log_level: Option<Arc<LogLevel>>,
    /// The state of fairness, where there is fairness and where it is served.
    pub dumps: Option<Arc<Controller>>,
    /// Who does most, where it is served.
    pub talkers: Option<Arc<Talkers>>,
}

impl Admin {
    /// Serves `listener` until it is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener; connections under way end by themselves.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return; // never: the semaphore is not closed
            };
            let tcp = match listener.accept().await {
                Ok((tcp, _)) => tcp,
                Err(why) => {
                    warn!(%why, "cannot accept connections of operators");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let admin = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(|request| admin.answer(request));
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(tcp), service)
                    .await;
                if let Err(why) = served {
                    debug!(%why, "an operator's connection ended");
                }
                drop(place);
            });
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        if let (log_level::PATH, Some(level)) = (request.uri().path(), &self.log_level) {
            let (code, text) = level.answer(request).await;
            return Ok(response(code, text));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(response(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET is served here\n",
            ));
        }
        if let Some(dump) = request.uri().path().strip_prefix(DUMPS) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(self.dump(dump, query));
        }
        if let (RATES, Some(rates)) = (request.uri().path(), &self.rates) {
            return Ok(response(StatusCode::OK, rates.dump()));
        }
        if let (TOP_TALKERS, Some(talkers)) = (request.uri().path(), &self.talkers) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(top_talkers(talkers, query));
        }
        Ok(match (request.uri().path(), &self.metrics) {
            ("/livez", _) => response(StatusCode::OK, "ok"),
            ("/readyz", _) => {
                let (ready, text) = self.readiness.report().await;
                let code = if ready {
                    StatusCode::OK
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                response(code, text)
            }
            ("/metrics", Some(registry)) => {
                let mut metrics = response(StatusCode::OK, registry.render());
                metrics
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, METRICS_TYPE);
                metrics
            }
            _ => response(StatusCode::NOT_FOUND, SERVED),
        })
    }

    /// The dump endpoints of kube-apiserver (`apf_controller_debug.go`).
    fn dump(&self, which: &str, query: Query<'_>) -> Response<Full<Bytes>> {
        let Some(controller) = &self.dumps else {
            return response(
                StatusCode::NOT_FOUND,
                "served with --enable-priority-and-fairness only\n",
            );
        };
        let details = query
            .first("includeRequestDetails")
            .is_some_and(|value| !value.is_empty());
        let text = match which {
            "dump_priority_levels" => controller.dump_priority_levels(),
            "dump_queues" => controller.dump_queues(),
            "dump_requests" => controller.dump_requests(details),
            _ => return response(StatusCode::NOT_FOUND, SERVED),
        };
        response(StatusCode::OK, text)
    }
}

fn top_talkers(talkers: &Talkers, query: Query<'_>) -> Response<Full<Bytes>> {
    let query = match talkers::Query::parse(query) {
        Ok(query) => query,
        Err(faults) => return response(StatusCode::BAD_REQUEST, faults.to_string()),
    };
    match serde_json::to_vec(&talkers.top(&query)) {
        Ok(text) => {
            let mut top = response(StatusCode::OK, text);
            top.headers_mut().insert(header::CONTENT_TYPE, JSON);
            top
        }
        Err(why) => response(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

fn response(code: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, PLAIN);
    response
}
