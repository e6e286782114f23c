//! weir's own questions: to the API server with weir's own credentials, to issuers of tokens with none.
//!
//! Promises: an answer within [`ANSWER_WITHIN`] or an error; an answer's body is bounded; without a credential that is in force
//! nothing is asked of the API server; what goes elsewhere carries nothing of anybody's.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::Method;
use http::Response;
use http::StatusCode;
use http::Uri;
use http::uri::PathAndQuery;
use http_body_util::BodyExt;
use http_body_util::Limited;
use rustls::RootCertStore;
use tokio::time::timeout;

use crate::identity::transport::ApiTransport;
use crate::identity::transport::RemoteError;
use crate::identity::transport::RemoteFuture;
use crate::identity::transport::RemoteRequest;
use crate::identity::transport::RemoteResponse;
use crate::identity::transport::UrlFetcher;
use crate::upstream::ForwardError;
use crate::upstream::UpstreamMetrics;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::address;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::connection::connector::ServerAddress;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::external_pool;
use crate::upstream::forward::SendContext;
use crate::upstream::forward::StreamGuard;
use crate::upstream::headers;
use crate::upstream::headers::Internal;
use crate::upstream::headers::RequestHead;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;

/// The request timeout that kube-apiserver's delegating authentication has for a `TokenReview`.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A large API server takes seconds to write its metrics.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// A user with ten thousand groups, or a key set with a hundred keys, takes less.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The API server, by weir's own credentials.
#[derive(Clone, Debug)]
pub struct ApiServerClient {
    pool: Arc<Pool<Internal>>,
    credentials: Arc<OwnCredentials>,
}

impl ApiServerClient {
    /// Asks by way of `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool<Internal>>, own: Arc<OwnCredentials>) -> Self {
        Self {
            pool,
            credentials: own,
        }
    }

    /// Gets what stands at `target`, in a form that `accept` names if it is given, and hands it to `sink` piece by piece as it
    /// comes, if it is answered 200: within 30 seconds, until it ends or `sink` breaks it off. Returns what `sink` returned last.
    ///
    /// # Errors
    /// There was no answer, or not all of it.
    ///
    /// # Cancel safety
    /// The connection is left to others.
    pub async fn stream(
        &self,
        target: PathAndQuery,
        accept: Option<HeaderValue>,
        sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        timeout(STREAM_TIMEOUT, self.stream_inner(target, accept, sink))
            .await
            .unwrap_or_else(|_| {
                let limit = STREAM_TIMEOUT.as_secs();
                Err(RemoteError(format!("no whole answer within {limit}s")))
            })
    }

    async fn stream_inner(
        &self,
        target: PathAndQuery,
        accept: Option<HeaderValue>,
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        let authorization = self
            .credentials
            .authorization()
            .map_err(|why| RemoteError(why.to_string()))?;
        let mut request = headers::internal_head(Method::GET, target, authorization);
        if let Some(accept) = accept {
            request = request.with_accept(accept);
        }
        let sent = self.pool.send_internal(request, RequestBody::empty()).await;
        let (response, mut turn) = sent.map_err(|why| RemoteError(why.to_string()))?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            self.credentials.request_refresh();
        }
        if status != StatusCode::OK {
            return Ok((status, ControlFlow::Continue(())));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|why| RemoteError(format!("the answer broke off: {why}")))?;
            if let Some(data) = frame.data_ref()
                && sink(data).is_break()
            {
                return Ok((status, ControlFlow::Break(())));
            }
        }
        if let Some(turn) = &mut turn {
            turn.complete();
        }
        Ok((status, ControlFlow::Continue(())))
    }

    async fn call(self, call: RemoteRequest) -> Result<RemoteResponse, RemoteError> {
        let RemoteRequest { path, body } = call;
        let authorization = self
            .credentials
            .authorization()
            .map_err(|why| RemoteError(why.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let reply = match body {
            Some(body) => {
                let request = headers::internal_head(Method::POST, path, authorization).with_json();
                collect_response(
                    self.pool
                        .send_internal(request, RequestBody::internal(body))
                        .await,
                )
                .await
            }
            None => {
                let request = headers::internal_head(Method::GET, path, authorization);
                collect_response(self.pool.send_internal(request, RequestBody::empty()).await).await
            }
        }?;
        self.credentials.record_response(reply.status);
        Ok(reply)
    }
}

impl ApiTransport for ApiServerClient {
    fn send(&self, call: RemoteRequest) -> RemoteFuture {
        let calls = self.clone();
        Box::pin(async move { with_timeout(calls.call(call)).await })
    }
}

/// Whatever can be reached by HTTPS.
#[derive(Clone, Debug)]
pub struct ExternalClient {
    roots: RootCertStore,
    metrics: Arc<UpstreamMetrics>,
}

impl ExternalClient {
    /// Believes whom `roots` vouch for.
    #[must_use]
    pub fn new(roots: RootCertStore, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { roots, metrics }
    }

    /// On a connection of its own: keys are fetched every few minutes.
    async fn fetch(self, url: String) -> Result<RemoteResponse, RemoteError> {
        let uri: Uri = url.parse().map_err(|_| RemoteError("no URL".to_owned()))?;
        let path = uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let server = uri.authority().map(|host| format!("https://{host}"));
        let (authority, server_name) = match (uri.scheme_str(), server) {
            (Some("https"), Some(server)) => address::parse_server(&server).map_err(RemoteError)?,
            _ => return Err(RemoteError("expected https://HOST[:PORT]/PATH".to_owned())),
        };
        let target = ServerAddress {
            authority,
            server_name,
            proxy: None,
        };
        let pool = external_pool(target, self.roots, &self.metrics);
        let (head, mut turn) = (headers::external_head(path), None);
        let errand = SendContext {
            requester: &Requester::default(),
            guard: &mut turn,
            sent_at: &mut None,
        };
        let sent = pool.send(head, RequestBody::empty(), ConnectionClass::Shared, errand);
        let reply = collect_response(sent.await.map(|response| (response, turn))).await;
        pool.retire_all();
        reply
    }
}

impl UrlFetcher for ExternalClient {
    fn get(&self, url: &str) -> RemoteFuture {
        let (elsewhere, url) = (self.clone(), url.to_owned());
        Box::pin(async move { with_timeout(elsewhere.fetch(url)).await })
    }
}

async fn with_timeout(
    reply: impl Future<Output = Result<RemoteResponse, RemoteError>>,
) -> Result<RemoteResponse, RemoteError> {
    timeout(RESPONSE_TIMEOUT, reply).await.unwrap_or_else(|_| {
        let limit = RESPONSE_TIMEOUT.as_secs();
        Err(RemoteError(format!("no answer within {limit}s")))
    })
}

/// A beginning of an answer, or why there is none.
type InternalResponse =
    Result<(Response<ResponseBody>, Option<Box<dyn StreamGuard>>), ForwardError>;

impl Pool<Internal> {
    /// Sends a request of weir's own, and counts it as client-go counts its.
    ///
    /// # Errors
    /// What went wrong.
    ///
    /// # Cancel safety
    /// The request may have been executed; it is not counted.
    pub async fn send_internal(
        self: &Arc<Self>,
        request: RequestHead<Internal>,
        body: RequestBody,
    ) -> InternalResponse {
        let method = request.method().clone();
        let mut turn = None;
        let errand = SendContext {
            requester: &Requester::default(),
            guard: &mut turn,
            sent_at: &mut None,
        };
        let sent = self
            .send(request, body, ConnectionClass::Shared, errand)
            .await;
        let code = sent.as_ref().map(Response::status);
        let code = code.as_ref().map_or("<error>", StatusCode::as_str);
        self.metrics()
            .internal_requests
            .with_label_values(&[code, self.authority(), method.as_str()])
            .inc();
        sent.map(|response| (response, turn))
    }
}

async fn collect_response(sent: InternalResponse) -> Result<RemoteResponse, RemoteError> {
    let (response, mut turn) = sent.map_err(|why| RemoteError(why.to_string()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
        .collect()
        .await
        .map_err(|why| RemoteError(format!("the answer broke off: {why}")))?
        .to_bytes();
    if let Some(turn) = &mut turn {
        turn.complete();
    }
    Ok(RemoteResponse { status, body })
}
