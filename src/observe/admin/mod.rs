//! The listeners for operators: `/livez`, `/readyz`, `/metrics` and the status page, in plain HTTP or
//! over TLS. [`access`] says which requests are answered.
//!
//! In plain HTTP on the loopback, a browser's page of another site must not read them by a name that
//! it lets resolve to the loopback (DNS rebinding): the `Host` has to be the loopback's. Over TLS such
//! a page fails by the certificate, which is not valid for its name. On either, nothing changes and no
//! stream opens for a page of another origin.
//!
//! They run beside weir's own calls and the listener for clients, not on the workers: a flood of
//! client requests does not delay probes and scrapes. Nor does a flood of these delay what else is
//! there: each request waits for its [turn](turns).

pub(crate) mod access;
mod connections;
pub mod log_level;
#[cfg(test)]
mod tests;
mod turns;
pub mod zpages;

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::identity::client_certificate::PeerCertificate;
use crate::identity::delegated::PathAttributes;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::limits::Admission;
use crate::observe::admin::access::{AccessError, AdminAccess, AdminClient};
use crate::observe::admin::connections::AdminConnections;
use crate::observe::admin::log_level::LogLevel;
pub(crate) use crate::observe::admin::turns::RenderTurns;
use crate::observe::admin::zpages::Zpages;
use crate::observe::alarm_board::AlarmBoard;
use crate::observe::logging::recording::Recorder;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::sources::ConfiguredSources;
use crate::pipeline::connection::request_count::RequestCount;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use weir_agreement::message::check_name;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::encoding::printable::escape_json;
use weir_kubernetes::request_info::Query;
use weir_limits::throttling::log_limiter::LogLimiter;
use weir_status::page;
use weir_status::replica_view::ALL_REPLICAS;
use weir_talkers::{TopTalkers, TopTalkersQuery};

/// Longest time to receive a request's headers, and longest idle time of a connection.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the access of a stream's client is checked again, as long as the API server's answers count.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Longest time to receive the body of a [`log_level`] request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for which a probe waits to see whether it gets reasons: its status does not depend on
/// them.
const REASONS_PATIENCE: Duration = Duration::from_millis(500);

/// The time between two TLS handshakes: a client that connects again and again gets at most 100 a
/// second, which is less than half of a core with the slowest usual key (RSA of 4096 bits).
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(10);

/// Longest time that sent data may stay unread or unacknowledged. A subscriber on a suspended
/// machine frees its connection after it.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Size of the kernel's send buffer in bytes: some seconds of events. The default grows to
/// megabytes.
const SEND_BUFFER_BYTES: usize = 256 << 10;

const METRICS_TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT_PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const TEXT_CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const TEXT_JAVASCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const TEXT_HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/jsonl");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Path prefix of kube-apiserver's dumps of API Priority and Fairness.
const APF_DEBUG_PREFIX: &str = "/debug/api_priority_and_fairness/";

/// The clients that rate limits rejected most.
const RATE_LIMITS_PATH: &str = "/debug/rate_limits";

/// The slots for requests to the API server, by holder.
const PLACES_PATH: &str = "/debug/places";

/// The top talkers.
const TOP_TALKERS_PATH: &str = "/debug/top_talkers";

/// A record of what passes from now on.
pub(crate) const RECORD_PATH: &str = "/debug/record";

/// The status page's data as they change.
const EVENTS_PATH: &str = "/status/events";

/// The response body for another method.
const ONLY_GET_TEXT: &str = "only GET is served here\n";

/// The response body for an unknown path.
const NOT_FOUND_TEXT: &str = "served here: /livez /readyz /metrics, the page / (/status), its data /status.json and /status/events, \
                       and under /debug/api_priority_and_fairness/ dump_priority_levels, dump_queues, dump_requests and objects; \
                       /debug/rate_limits /debug/places /debug/top_talkers /debug/record /debug/log_level; /configz /flagz /statusz\n";

/// The response body for a request to a loopback listener by a foreign host name.
const FOREIGN_HOST_TEXT: &str =
    "this listener is on the loopback interface: use its address or localhost as Host\n";

/// The response body for a change on a listener that is not on the loopback.
const READ_ONLY_TEXT: &str = "this listener is not on the loopback: nothing can be changed here\n";

/// Whether only this machine can reach a listener at `address`.
#[must_use]
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The response body for a change that a page of another site requests.
const CROSS_SITE_TEXT: &str = "nothing is changed here for a page of another site\n";

/// The endpoints of a listener and their data. A `None` field disables its endpoint.
/// What a reload replaces is read from `configured` for each request.
#[derive(Debug)]
pub(crate) struct AdminServer {
    /// The sources of `/readyz`.
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) alarms: Arc<AlarmBoard>,
    /// The source of `/metrics`.
    pub(crate) metrics: Registry,
    /// The turns for `/metrics`.
    pub(crate) render_turns: RenderTurns,
    /// The limits in force, for the dumps and `/configz`, and whether probes' listener serves
    /// metrics.
    pub(crate) configured: Arc<ArcSwap<ConfiguredSources>>,
    /// Whether the listener is that of operators. The other one serves probes and perhaps metrics.
    pub(crate) is_for_operators: bool,
    /// Which requests are answered.
    pub(crate) access: Arc<ArcSwap<AdminAccess>>,
    /// Limits the log lines about requests that are not.
    pub(crate) rejection_log: LogLimiter,
    /// The source of `/debug/places`: the slots for requests to the API server.
    pub(crate) connection_budget: Option<ConnectionBudget>,
    /// The log filter, if it can be changed.
    pub(crate) log_level: Option<Arc<LogLevel>>,
    /// The source of `/debug/record`.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The source of `/debug/top_talkers`.
    pub(crate) top_talkers: Option<Arc<TopTalkers>>,
    /// The data of the status page.
    pub(crate) status: Option<Arc<StatusFeed>>,
    /// The configuration in force, for `/configz`, `/flagz` and `/statusz`.
    pub(crate) zpages: Option<Arc<Zpages>>,
}

/// The body of a response.
type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

impl AdminServer {
    /// Accepts connections until `handed_over` completes; another process serves then.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener. Open connections continue until they end.
    pub(crate) async fn run(
        self: Arc<Self>,
        listener: Arc<TcpListener>,
        handed_over: impl Future<Output = ()>,
    ) {
        let mut handed_over = std::pin::pin!(handed_over);
        let is_local = listener.local_addr().is_ok_and(is_loopback);
        let mut connections = AdminConnections::default();
        let mut handshakes = tokio::time::interval(HANDSHAKE_INTERVAL);
        handshakes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let handshakes = Arc::new(tokio::sync::Mutex::new(handshakes));
        let log = LogLimiter::default();
        for connection_id in 0_u64.. {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = handed_over.as_mut() => break,
            };
            let (tcp, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(why) => {
                    if let Some(more) = log.try_log(Clock.now()) {
                        warn!(%why, more, "cannot accept connections of operators");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            limit_socket_buffers(&tcp);
            let tls = self.access.load().tls.clone();
            let handshakes = Arc::clone(&handshakes);
            let source = ClientSource {
                address: peer.ip(),
                connection_id,
            };
            let admin = Arc::clone(&self);
            connections.spawn(peer.ip(), |requests| async move {
                match tls {
                    Some(tls) => {
                        // At most as many tasks wait for it as connections may be open.
                        handshakes.lock().await.tick().await;
                        admin.serve_tls(tcp, tls, source, is_local, requests).await;
                    }
                    None => {
                        let client = AdminClient {
                            source,
                            is_tls: false,
                            certificate: None,
                        };
                        admin.serve(tcp, client, is_local, requests).await;
                    }
                }
            });
        }
        connections.close().await;
    }

    async fn serve_tls(
        &self,
        tcp: TcpStream,
        tls: Arc<ServerConfig>,
        source: ClientSource,
        is_local: bool,
        requests: Arc<RequestCount>,
    ) {
        let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(tcp));
        let stream = match handshake.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => return debug!(%why, "an operator's TLS handshake failed"),
            Err(_) => return debug!("an operator's TLS handshake took too long"),
        };
        let (_, connection) = stream.get_ref();
        let client = AdminClient {
            source,
            is_tls: true,
            certificate: PeerCertificate::new(connection.peer_certificates()),
        };
        self.serve(stream, client, is_local, requests).await;
    }

    async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        client: AdminClient,
        is_local: bool,
        requests: Arc<RequestCount>,
    ) {
        let client = Arc::new(client);
        let service = service_fn(|request| {
            let guard = requests.start();
            let response = self.handle(request, &client, is_local);
            async move { response.await.inspect(|_| drop(guard)) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(why) = served {
            debug!(%why, "an operator's connection ended");
        }
    }

    /// The response to a request that may not be answered; `None` for others.
    async fn reject_unauthorized(
        &self,
        request: &Request<Incoming>,
        client: &AdminClient,
    ) -> Option<Response<AdminBody>> {
        let verb = request.method().as_str().to_ascii_lowercase();
        let attributes = PathAttributes {
            verb: &verb,
            path: request.uri().path(),
        };
        let access = self.access.load_full();
        let checked = access.check(client, attributes, request.headers()).await;
        let why = checked.err()?;
        if let Some(more) = self.rejection_log.try_log(Clock.now()) {
            let address = client.source.address;
            warn!(client = %address, why = why.text(), more, "a request to the admin address was rejected");
        }
        let mut rejection = response(why.code(), format!("{}\n", why.text()));
        if matches!(why, AccessError::Unauthenticated(_)) {
            let headers = rejection.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, BEARER);
        }
        Some(rejection)
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        client: &Arc<AdminClient>,
        is_local: bool,
    ) -> Result<Response<AdminBody>, Infallible> {
        // A client may send many at once: between two of them all else has a turn.
        tokio::task::yield_now().await;
        if is_local && !client.is_tls && !has_loopback_host(request.headers()) {
            return Ok(response(StatusCode::FORBIDDEN, FOREIGN_HOST_TEXT));
        }
        // First, since a review would keep the method, which may be long.
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::PUT) {
            return Ok(response(StatusCode::METHOD_NOT_ALLOWED, ONLY_GET_TEXT));
        }
        if let Some(rejection) = self.reject_unauthorized(&request, client).await {
            return Ok(rejection);
        }
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if !is_read && is_cross_origin(request.headers()) {
            return Ok(response(StatusCode::FORBIDDEN, CROSS_SITE_TEXT));
        }
        if let (log_level::PATH, Some(level)) = (request.uri().path(), &self.log_level) {
            if !is_local && !is_read {
                return Ok(response(StatusCode::FORBIDDEN, READ_ONLY_TEXT));
            }
            return Ok(handle_log_level(level, request).await);
        }
        if !is_read {
            return Ok(response(StatusCode::METHOD_NOT_ALLOWED, ONLY_GET_TEXT));
        }
        if let Some(dump) = request.uri().path().strip_prefix(APF_DEBUG_PREFIX) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(self.handle_apf_dump(dump, query));
        }
        if request.uri().path() == RATE_LIMITS_PATH && self.is_for_operators {
            let text = self.configured.load().rate_limits.dump_top_keys();
            return Ok(response(StatusCode::OK, text));
        }
        if let (PLACES_PATH, Some(budget)) = (request.uri().path(), &self.connection_budget) {
            return Ok(response(StatusCode::OK, budget.dump()));
        }
        if let (TOP_TALKERS_PATH, Some(talkers)) = (request.uri().path(), &self.top_talkers) {
            let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
            return Ok(handle_top_talkers(talkers, query));
        }
        if let (RECORD_PATH, Some(recorder)) = (request.uri().path(), &self.recorder) {
            let stream = handle_record(recorder, &request);
            return Ok(self.while_allowed(stream, &request, client));
        }
        if let Some(status) = &self.status
            && let Some(response) = handle_status(status, &request).await
        {
            let is_stream = request.uri().path() == EVENTS_PATH;
            return Ok(match is_stream {
                true => self.while_allowed(response, &request, client),
                false => response,
            });
        }
        if let Some(zpages) = &self.zpages
            && let Some(response) = self.handle_zpage(zpages, &request)
        {
            return Ok(response);
        }
        Ok(self.handle_probe_or_metrics(&request, client).await)
    }

    /// Ends a stream when its client may no longer read it. One that the API server does not answer
    /// about goes on: in an outage operators look.
    fn while_allowed(
        &self,
        stream: Response<AdminBody>,
        request: &Request<Incoming>,
        client: &Arc<AdminClient>,
    ) -> Response<AdminBody> {
        let (access, client) = (Arc::clone(&self.access), Arc::clone(client));
        let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
        let ended = async move {
            loop {
                tokio::time::sleep(RECHECK_INTERVAL).await;
                let attributes = PathAttributes {
                    verb: "get",
                    path: &path,
                };
                let access = access.load_full();
                match access.check(&client, attributes, &headers).await {
                    Ok(()) | Err(AccessError::Unanswered) => {}
                    Err(why) => return debug!(why = why.text(), "an operator's stream ended"),
                }
            }
        };
        stream.map(|body| {
            let frames = BodyStream::new(body).take_until(Box::pin(ended));
            StreamBody::new(frames).boxed_unsync()
        })
    }

    /// Responds to probes and scrapes, and with 404 to any other path. Operators, who add
    /// `?verbose`, get the last known state at once; a program that acts on readiness gets a fresh
    /// one, if the API server responds in time.
    async fn handle_probe_or_metrics(
        &self,
        request: &Request<Incoming>,
        client: &AdminClient,
    ) -> Response<AdminBody> {
        match request.uri().path() {
            "/livez" => response(StatusCode::OK, "ok"),
            "/readyz" => {
                let query = request.uri().query().unwrap_or_default();
                if Query::new(query.as_bytes()).first("verbose").is_none() {
                    self.readiness.refreshed().await;
                }
                let reasons = self.may_read_reasons(request, client).await;
                let (ready, text) = self.alarms.report(reasons);
                let code = if ready {
                    StatusCode::OK
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                response(code, text)
            }
            "/metrics" if self.is_for_operators || self.configured.load().health_metrics => {
                let text = self.render_turns.make(|| self.metrics.render()).await;
                let mut metrics = response(StatusCode::OK, text);
                metrics
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, METRICS_TEXT);
                metrics
            }
            _ => response(StatusCode::NOT_FOUND, NOT_FOUND_TEXT),
        }
    }

    /// Whether a client may read why a check of `/readyz` fails. Probes, which need no credential, may
    /// not, as those of kube-apiserver (`healthz.handleRootHealth`, 1.36): reasons have addresses and
    /// names of files.
    async fn may_read_reasons(&self, request: &Request<Incoming>, client: &AdminClient) -> bool {
        let attributes = PathAttributes {
            verb: "get",
            path: request.uri().path(),
        };
        let access = self.access.load_full();
        let authorized = access.authorize(client, attributes, request.headers());
        let authorized = timeout(REASONS_PATIENCE, authorized).await;
        self.is_for_operators && authorized.is_ok_and(|authorized| authorized.is_ok())
    }

    /// Responds to `/configz`, `/flagz` and `/statusz`. `None` for any other path.
    fn handle_zpage(
        &self,
        zpages: &Zpages,
        request: &Request<Incoming>,
    ) -> Option<Response<AdminBody>> {
        let path = request.uri().path();
        if path == "/configz" {
            let objects = self.configured.load();
            let objects = objects.flowcontrol.as_ref().map(|live| live.summary());
            return Some(json_response(&zpages.configz(objects)));
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

    /// Responds with the flow schemas and priority levels in force, and where each comes from.
    fn handle_objects(&self) -> Response<AdminBody> {
        match &self.configured.load().flowcontrol {
            Some(live) => json_response(&live.dump().to_string()),
            None => response(StatusCode::NOT_FOUND, NOT_FOUND_TEXT),
        }
    }

    /// Responds with a dump of kube-apiserver's format (`apf_controller_debug.go`).
    fn handle_apf_dump(&self, which: &str, query: Query<'_>) -> Response<AdminBody> {
        let configured = self.configured.load();
        let (Admission::Fairness(controller), true) =
            (&configured.admission, self.is_for_operators)
        else {
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
            "objects" => return self.handle_objects(),
            _ => return response(StatusCode::NOT_FOUND, NOT_FOUND_TEXT),
        };
        response(StatusCode::OK, text)
    }
}

/// Whether the `Host` header names the loopback. This prevents DNS rebinding: a page of another
/// site whose name resolves to the loopback would otherwise be same-origin for a browser on this
/// machine.
fn has_loopback_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => true, // the client is no browser
        (Some(host), None) => host.to_str().is_ok_and(is_loopback_host),
        (Some(_), Some(_)) => false,
    }
}

/// Accepts an IP address or `localhost`, with or without a port.
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

/// Whether a browser reports that a page of another site sent the request (`Sec-Fetch-Site`,
/// `Origin`).
fn is_cross_origin(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let is_own = |origin: &HeaderValue| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        origin
            .zip(host)
            .is_some_and(|((_, authority), host)| authority.eq_ignore_ascii_case(host))
    };
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| site != "same-origin" && site != "none")
        || !headers.get_all(header::ORIGIN).iter().all(is_own)
}

async fn handle_log_level(level: &LogLevel, request: Request<Incoming>) -> Response<AdminBody> {
    let result = timeout(BODY_TIMEOUT, level.handle(request)).await;
    let (code, text) = result.unwrap_or_else(|_| {
        let why = "no filter came\n".to_owned();
        (StatusCode::REQUEST_TIMEOUT, why)
    });
    response(code, text)
}

fn handle_top_talkers(talkers: &TopTalkers, query: Query<'_>) -> Response<AdminBody> {
    let query = match TopTalkersQuery::parse(query) {
        Ok(query) => query,
        Err(errors) => return response(StatusCode::BAD_REQUEST, errors.to_string()),
    };
    match serde_json::to_string(&talkers.top(&query)) {
        Ok(text) => json_response(&text),
        Err(why) => response(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

/// Responds with the status page and its data. `None` for any other path.
async fn handle_status(
    status: &Arc<StatusFeed>,
    request: &Request<Incoming>,
) -> Option<Response<AdminBody>> {
    let chosen = chosen_replica(request.uri().query());
    let mut response = match request.uri().path() {
        "/" | "/status" => {
            let mut response = typed_response(TEXT_HTML, page::PAGE);
            let headers = response.headers_mut();
            headers.insert(
                header::CONTENT_SECURITY_POLICY,
                page::CONTENT_SECURITY_POLICY,
            );
            headers.insert(
                header::REFERRER_POLICY,
                HeaderValue::from_static("no-referrer"),
            );
            response
        }
        "/page.js" => typed_response(TEXT_JAVASCRIPT, page::SCRIPT),
        "/page.css" => typed_response(TEXT_CSS, page::STYLE),
        "/status.json" => match chosen {
            Ok(chosen) => typed_response(APPLICATION_JSON, status.json(chosen.as_deref()).await),
            Err(why) => response(StatusCode::BAD_REQUEST, why),
        },
        EVENTS_PATH => match chosen {
            Ok(chosen) => handle_events(status, request, chosen.as_deref()).await,
            Err(why) => response(StatusCode::BAD_REQUEST, why),
        },
        _ => return None,
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    Some(response)
}

/// The replica of the parameter `replicas`, or all of them.
fn chosen_replica(query: Option<&str>) -> Result<Option<String>, String> {
    let query = Query::new(query.unwrap_or_default().as_bytes());
    let Some(chosen) = query.first("replicas") else {
        return Ok(None);
    };
    let chosen = String::from_utf8_lossy(&chosen).into_owned();
    match check_name(&chosen) {
        Ok(()) => Ok(Some(chosen)),
        Err(why) => Err(format!("replicas: {ALL_REPLICAS} or a name; {why}\n")),
    }
}

/// Responds with the event stream. Requests from pages of other origins are rejected: they could not
/// read the stream, but would take a subscriber's permit.
async fn handle_events(
    status: &Arc<StatusFeed>,
    request: &Request<Incoming>,
    chosen: Option<&str>,
) -> Response<AdminBody> {
    if is_cross_origin(request.headers()) {
        return response(StatusCode::FORBIDDEN, "events are for weir's own page\n");
    }
    if request.method() == Method::HEAD {
        return typed_response(EVENT_STREAM, "");
    }
    let Some(events) = status.subscribe(chosen).await else {
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many listen already as may; /status.json is there for everybody\n",
        );
    };
    let mut response = Response::new(StreamBody::new(events).boxed_unsync());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, EVENT_STREAM);
    response
}

/// Responds with the requests that end from now on. Requests from pages of other origins are rejected,
/// as for [`handle_events`].
fn handle_record(recorder: &Recorder, request: &Request<Incoming>) -> Response<AdminBody> {
    if is_cross_origin(request.headers()) {
        return response(StatusCode::FORBIDDEN, CROSS_SITE_TEXT);
    }
    if request.method() == Method::HEAD {
        return typed_response(JSON_LINES, "");
    }
    let query = Query::new(request.uri().query().unwrap_or_default().as_bytes());
    let source_addresses = query
        .first("sourceAddresses")
        .is_some_and(|value| *value == *b"true");
    let Some(lines) = recorder.subscribe(source_addresses) else {
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many record already as may\n",
        );
    };
    let frames = stream::unfold(lines, |mut lines| async {
        let batch = lines.recv().await?;
        Some((Ok(Frame::data(batch)), lines))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, JSON_LINES);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    response
}

/// Bounds the memory and the time that a connection can hold. If the system does not support an
/// option, its default stays.
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

fn json_response(text: &str) -> Response<AdminBody> {
    typed_response(APPLICATION_JSON, escape_json(text).into_owned())
}

fn response(code: StatusCode, text: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, TEXT_PLAIN);
    // A page of another site must not run a text as its script.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    response
}
