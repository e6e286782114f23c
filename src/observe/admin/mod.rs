//! The listeners for operators: `/livez`, `/readyz`, `/metrics` and the status page, in plain HTTP.
//!
//! They run on a runtime of their own, so that a flood of clients does not keep a probe or a scrape waiting.

pub mod log_level;
pub mod zpages;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header;
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::debug;
use tracing::warn;

use crate::clock::Clock;
use crate::flowcontrol::controller::Controller;
use crate::limits::rate::RateLimits;
use crate::metrics::Registry;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::admin::zpages::Zpages;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::page;
use crate::observe::top_talkers;
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::connection::request_count::RequestCount;
use crate::request_info::Query;
use crate::upstream::connection::connection_budget::ConnectionBudget;

/// Most connections at a time: probes and scrapers are few, and these listeners must not eat the clients' descriptors.
const MAX_CONNECTIONS: usize = 64;

/// How long an idle connection is kept, or a slow request waited for.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a filter of [`log_level`] may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an operator's machine may leave what was sent to it unread or unconfirmed: who listens and has gone to sleep
/// gives its place back then.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// What the kernel keeps of answers that are not read yet, in bytes: some seconds of events, not the megabytes that it would
/// grow to.
const SEND_BUFFER_BYTES: usize = 256 << 10;

const METRICS_TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT_PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const TEXT_HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Where kube-apiserver has its dumps.
const APF_DEBUG_PREFIX: &str = "/debug/api_priority_and_fairness/";

/// Who was refused most.
const RATE_LIMITS_PATH: &str = "/debug/rate_limits";

/// Who holds the places for requests to the API server.
const PLACES_PATH: &str = "/debug/places";

/// Who does most.
const TOP_TALKERS_PATH: &str = "/debug/top_talkers";

/// What a wrong path is told.
const NOT_FOUND_TEXT: &str = "served here: /livez /readyz /metrics, the page / (/status), its data /status.json and /status/events, \
                       and under /debug/api_priority_and_fairness/ dump_priority_levels, dump_queues and dump_requests; \
                       /debug/rate_limits /debug/places /debug/top_talkers /debug/log_level; /configz /flagz /statusz\n";

/// What a browser is told that was led here by a name of somebody else's.
const FOREIGN_HOST_TEXT: &str =
    "this listener is on the loopback: ask for it by its address, or as localhost\n";

/// What a change is answered on a listener that is not on the loopback.
const READ_ONLY_TEXT: &str = "this listener is not on the loopback, and does not authenticate: nothing can be changed here\n";

/// Whether only this machine reaches a listener at `address`.
#[must_use]
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
/// What a browser is told that a page from elsewhere makes change something.
const CROSS_SITE_TEXT: &str = "nothing is changed here for a page of another site\n";

/// What is served.
#[derive(Debug)]
pub struct AdminServer {
    /// Whether weir can do its work.
    pub readiness: Arc<Readiness>,
    /// The metrics, where they are served.
    pub metrics: Option<Registry>,
    /// Who was refused most by client limits and event limits, where it is served.
    pub rate_limits: Option<Arc<RateLimits>>,
    /// Who holds which places for requests to the API server, where it is served.
    pub connection_budget: Option<ConnectionBudget>,
    /// What is logged, where that may be changed.
    pub log_level: Option<Arc<LogLevel>>,
    /// The state of fairness, where there is fairness and where it is served.
    pub flow_controller: Option<Arc<Controller>>,
    /// Who does most, where it is served.
    pub top_talkers: Option<Arc<TopTalkers>>,
    /// The status page's data, where it is served.
    pub status: Option<Arc<StatusFeed>>,
    /// What weir was started with, where it is served.
    pub zpages: Option<Arc<Zpages>>,
}

/// The body of an answer.
type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

impl AdminServer {
    /// Serves `listener` until it is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener; connections under way end by themselves.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let local = listener.local_addr().is_ok_and(is_loopback);
        let mut connections = AdminConnections::default();
        loop {
            let tcp = match listener.accept().await {
                Ok((tcp, _)) => {
                    limit_socket_buffers(&tcp);
                    tcp
                }
                Err(why) => {
                    warn!(%why, "cannot accept connections of operators");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let admin = Arc::clone(&self);
            connections.spawn(|requests| async move {
                let service = service_fn(|request| {
                    let begun = requests.start();
                    let answer = admin.handle(request, local);
                    async move { answer.await.inspect(|_| drop(begun)) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_READ_TIMEOUT)
                    .serve_connection(TokioIo::new(tcp), service)
                    .await;
                if let Err(why) = served {
                    debug!(%why, "an operator's connection ended");
                }
            });
        }
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        local: bool,
    ) -> Result<Response<AdminBody>, Infallible> {
        if local && !has_loopback_host(request.headers()) {
            return Ok(response(StatusCode::FORBIDDEN, FOREIGN_HOST_TEXT));
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if !reads && is_cross_origin(request.headers()) {
            return Ok(response(StatusCode::FORBIDDEN, CROSS_SITE_TEXT));
        }
        if let (log_level::PATH, Some(level)) = (request.uri().path(), &self.log_level) {
            if !local && !reads {
                return Ok(response(StatusCode::FORBIDDEN, READ_ONLY_TEXT));
            }
            return Ok(handle_log_level(level, request).await);
        }
        if !reads {
            return Ok(response(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET is served here\n",
            ));
        }
        if let Some(dump) = request.uri().path().strip_prefix(APF_DEBUG_PREFIX) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(self.handle_apf_dump(dump, query));
        }
        if let (RATE_LIMITS_PATH, Some(rates)) = (request.uri().path(), &self.rate_limits) {
            return Ok(response(StatusCode::OK, rates.dump_top_keys()));
        }
        if let (PLACES_PATH, Some(places)) = (request.uri().path(), &self.connection_budget) {
            return Ok(response(StatusCode::OK, places.dump()));
        }
        if let (TOP_TALKERS_PATH, Some(talkers)) = (request.uri().path(), &self.top_talkers) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(handle_top_talkers(talkers, query));
        }
        if let Some(status) = &self.status
            && let Some(answer) = handle_status(status, &request).await
        {
            return Ok(answer);
        }
        if let Some(zpages) = &self.zpages
            && let Some(answer) = Self::handle_zpage(zpages, &request)
        {
            return Ok(answer);
        }
        Ok(self.handle_probe_or_metrics(request.uri().path()).await)
    }

    /// What probes and scrapes ask for.
    async fn handle_probe_or_metrics(&self, path: &str) -> Response<AdminBody> {
        match (path, &self.metrics) {
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
                    .insert(header::CONTENT_TYPE, METRICS_TEXT);
                metrics
            }
            _ => response(StatusCode::NOT_FOUND, NOT_FOUND_TEXT),
        }
    }

    /// What weir was started with; none for any other path.
    fn handle_zpage(zpages: &Zpages, request: &Request<Incoming>) -> Option<Response<AdminBody>> {
        let path = request.uri().path();
        if path == "/configz" {
            return Some(typed_response(APPLICATION_JSON, zpages.configz()));
        }
        let text = match path {
            "/flagz" => zpages.flagz(),
            "/statusz" => zpages.statusz(Clock.now()),
            _ => return None,
        };
        if !zpages::accepts_plain_text(request.headers()) {
            let why = "media type not acceptable, must be: text/plain\n";
            return Some(response(StatusCode::NOT_ACCEPTABLE, why));
        }
        Some(response(StatusCode::OK, text))
    }

    /// The dump endpoints of kube-apiserver (`apf_controller_debug.go`).
    fn handle_apf_dump(&self, which: &str, query: Query<'_>) -> Response<AdminBody> {
        let Some(controller) = &self.flow_controller else {
            return response(
                StatusCode::NOT_FOUND,
                "served on --admin-address only, and with --enable-priority-and-fairness\n",
            );
        };
        let details = query
            .first("includeRequestDetails")
            .is_some_and(|value| !value.is_empty());
        let text = match which {
            "dump_priority_levels" => controller.dump_priority_levels(),
            "dump_queues" => controller.dump_queues(),
            "dump_requests" => controller.dump_requests(details),
            _ => return response(StatusCode::NOT_FOUND, NOT_FOUND_TEXT),
        };
        response(StatusCode::OK, text)
    }
}

/// Whether a listener on the loopback is asked for as one: a page from elsewhere, whose name was made to lead here, would be taken for
/// weir's own otherwise, by a browser on this machine.
fn has_loopback_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => true, // no browser
        (Some(host), None) => host.to_str().is_ok_and(is_loopback_host),
        (Some(_), Some(_)) => false,
    }
}

/// An address or `localhost`, and a port or none.
fn is_loopback_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) if name.parse::<Ipv6Addr>().is_ok() => ("localhost", port),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok());
    port && (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok())
}

/// Whether a browser says that a page of another site asks (`Sec-Fetch-Site`, `Origin`).
fn is_cross_origin(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let own = |origin: &HeaderValue| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        origin
            .zip(host)
            .is_some_and(|((_, authority), host)| authority.eq_ignore_ascii_case(host))
    };
    is_cross_site(headers) || !headers.get_all(header::ORIGIN).iter().all(own)
}

fn is_cross_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| site != "same-origin" && site != "none")
}

/// The open connections, the oldest first. Whoever comes finds a place: that of one on which nothing is under way, if all are taken,
/// so that nobody keeps a probe out by saying nothing.
#[derive(Debug, Default)]
struct AdminConnections(VecDeque<(Arc<RequestCount>, AbortHandle)>);

impl AdminConnections {
    fn spawn<F>(&mut self, serve: impl FnOnce(Arc<RequestCount>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let quiet = |requests: &RequestCount| requests.started() == requests.ended();
            let quiet = self.0.iter().position(|(requests, _)| quiet(requests));
            if let Some((_, task)) = self.0.remove(quiet.unwrap_or(0)) {
                task.abort();
            }
        }
        let requests = Arc::new(RequestCount::default());
        let task = tokio::spawn(serve(Arc::clone(&requests)));
        self.0.push_back((requests, task.abort_handle()));
    }
}

async fn handle_log_level(level: &LogLevel, request: Request<Incoming>) -> Response<AdminBody> {
    let answered = timeout(BODY_TIMEOUT, level.handle(request)).await;
    let (code, text) = answered.unwrap_or_else(|_| {
        let why = "no filter came\n".to_owned();
        (StatusCode::REQUEST_TIMEOUT, why)
    });
    response(code, text)
}

fn handle_top_talkers(talkers: &TopTalkers, query: Query<'_>) -> Response<AdminBody> {
    let query = match top_talkers::TopTalkersQuery::parse(query) {
        Ok(query) => query,
        Err(faults) => return response(StatusCode::BAD_REQUEST, faults.to_string()),
    };
    match serde_json::to_vec(&talkers.top(&query)) {
        Ok(text) => typed_response(APPLICATION_JSON, text),
        Err(why) => response(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

/// The status page and its data; none for any other path.
async fn handle_status(
    status: &Arc<StatusFeed>,
    request: &Request<Incoming>,
) -> Option<Response<AdminBody>> {
    let mut answer = match request.uri().path() {
        "/" | "/status" => {
            let mut answer = typed_response(TEXT_HTML, page::PAGE);
            let policy = page::content_security_policy();
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            headers.insert(
                header::REFERRER_POLICY,
                HeaderValue::from_static("no-referrer"),
            );
            answer
        }
        "/status.json" => typed_response(APPLICATION_JSON, status.json().await),
        "/status/events" => handle_events(status, request),
        _ => return None,
    };
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    Some(answer)
}

/// The stream of events. A page from elsewhere could not read it, but would take places: it gets none.
fn handle_events(status: &Arc<StatusFeed>, request: &Request<Incoming>) -> Response<AdminBody> {
    if is_cross_site(request.headers()) {
        return response(StatusCode::FORBIDDEN, "events are for weir's own page\n");
    }
    if request.method() == Method::HEAD {
        return typed_response(EVENT_STREAM, "");
    }
    let Some(events) = status.subscribe() else {
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many listen already as may; /status.json is there for everybody\n",
        );
    };
    let mut answer = Response::new(StreamBody::new(events).boxed_unsync());
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, EVENT_STREAM);
    answer
}

/// Bounds what a connection can hold. Where the system does not know how, it is as it was.
fn limit_socket_buffers(tcp: &TcpStream) {
    let socket = SockRef::from(tcp);
    let bounded = socket
        .set_send_buffer_size(SEND_BUFFER_BYTES)
        .and_then(|()| set_user_timeout(&socket));
    if let Err(why) = bounded {
        debug!(%why, "an operator's connection is not bounded");
    }
}

#[cfg(target_os = "linux")]
fn set_user_timeout(socket: &SockRef<'_>) -> std::io::Result<()> {
    socket.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))
}

#[cfg(not(target_os = "linux"))]
fn set_user_timeout(_: &SockRef<'_>) -> std::io::Result<()> {
    Ok(())
}

fn typed_response(content_type: HeaderValue, text: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = response(StatusCode::OK, text);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn response(code: StatusCode, text: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, TEXT_PLAIN);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_host_is_loopback_only_if_every_byte_matches() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:65535",
        ] {
            assert!(has_loopback_host(&headers(&[("host", host)])), "{host}");
        }
        assert!(has_loopback_host(&headers(&[])));
        for host in [
            "[::1].evil.com",
            "[::1]evil.com:80",
            "[::1]:80.evil.com",
            "[::1",
            "[127.0.0.1]",
            "[evil.com]",
            "::1",
            "127.0.0.1.evil.com",
            "localhost.evil.com",
            "localhost:80:80",
            "localhost:evil",
            "localhost:65536",
            "user@localhost",
            "evil.com",
            "",
        ] {
            assert!(!has_loopback_host(&headers(&[("host", host)])), "{host}");
        }
        let two = [("host", "localhost"), ("host", "evil.com")];
        assert!(!has_loopback_host(&headers(&two)));
    }

    #[test]
    fn cross_origin_requests_are_detected_by_browser_headers() {
        const HOST: (&str, &str) = ("host", "localhost:9443");
        let other = |pairs: &[(&'static str, &'static str)]| {
            is_cross_origin(&headers(&[&[HOST], pairs].concat()))
        };
        assert!(!other(&[]));
        assert!(!other(&[
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://localhost:9443")
        ]));
        assert!(!other(&[("sec-fetch-site", "none")]));
        assert!(!other(&[("origin", "https://LOCALHOST:9443")]));
        for site in ["cross-site", "same-site", ""] {
            assert!(other(&[("sec-fetch-site", site)]), "{site}");
        }
        for origin in [
            "http://localhost",
            "http://localhost:9444",
            "http://evil.com",
            "null",
            "",
        ] {
            assert!(other(&[("origin", origin)]), "{origin}");
        }
        assert!(is_cross_origin(&headers(&[(
            "origin",
            "http://localhost:9443"
        )])));
    }
}
