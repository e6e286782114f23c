//! weir's own requests to the API server, with weir's own credentials.
//!
//! Promises: a response within [`RESPONSE_TIMEOUT`] or an error; the body is bounded. Without a
//! valid credential no request is sent to the API server.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::identity::transport::{
    ApiTransport, RemoteError, RemoteFuture, RemoteRequest, RemoteResponse,
};
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::send::SendContext;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::headers;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::stream_guard::StreamGuard;
use crate::upstream::requester::Requester;
use crate::upstream::servers::api_server::ApiServer;

/// The request timeout of kube-apiserver's delegating authentication for a `TokenReview`.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for a streamed response. A large API server takes seconds to write its metrics.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest response body. A user with ten thousand groups, or a key set with a hundred keys, takes
/// less.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Where a request goes.
#[derive(Clone, Copy)]
enum Destination<'a> {
    /// To any server, over a connection of this class.
    Any(ConnectionClass),
    Server(&'a Arc<ApiServer>),
}

/// A client of the API server that uses weir's own credentials.
#[derive(Clone, Debug)]
pub(crate) struct ApiServerClient {
    pools: Arc<ServerPools<Internal>>,
    credentials: Arc<OwnCredentials>,
}

impl ApiServerClient {
    /// Sends requests over `pools`.
    #[must_use]
    pub(crate) const fn new(pools: Arc<ServerPools<Internal>>, own: Arc<OwnCredentials>) -> Self {
        Self {
            pools,
            credentials: own,
        }
    }

    /// Whether an API server has passed its last probe, or needs none.
    #[must_use]
    pub(crate) fn is_server_ready(&self) -> bool {
        self.pools.servers().is_ready()
    }

    /// Reports each time that an API server becomes ready.
    #[must_use]
    pub(crate) fn ready_events(&self) -> watch::Receiver<u64> {
        self.pools.servers().ready_events()
    }

    /// The API servers to which weir sends requests.
    #[must_use]
    pub(crate) fn servers(&self) -> Vec<Arc<ApiServer>> {
        self.pools.servers().others()
    }

    /// Sends GET for `target`, with `accept` in `Accept` if given, to any server. A 200 response is passed to
    /// `sink` piece by piece as it arrives, for at most 30 seconds, until it ends or `sink` breaks.
    /// Returns what `sink` returned last.
    ///
    /// # Errors
    /// The response is missing or incomplete.
    ///
    /// # Cancel safety
    /// Dropping the future affects no other request.
    pub(crate) async fn stream(
        &self,
        target: PathAndQuery,
        accept: Option<HeaderValue>,
        sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        let server = Destination::Any(ConnectionClass::Shared);
        let response = self.stream_inner(server, target, accept, || {}, sink);
        within(STREAM_TIMEOUT, response).await
    }

    /// As [`stream`](Self::stream), of `server` alone.
    ///
    /// # Errors
    /// The response is missing or incomplete.
    ///
    /// # Cancel safety
    /// Dropping the future affects no other request.
    pub(crate) async fn stream_of(
        &self,
        server: &Arc<ApiServer>,
        target: PathAndQuery,
        sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        let server = Destination::Server(server);
        let response = self.stream_inner(server, target, None, || {}, sink);
        within(STREAM_TIMEOUT, response).await
    }

    /// Sends GET for `target`, a watch that the API server ends within `limit`. Calls `opened` once
    /// the response is a 200, whose body is passed to `sink` as for [`stream`](Self::stream).
    ///
    /// # Errors
    /// The response is missing, or did not end in order.
    ///
    /// # Cancel safety
    /// Dropping the future affects no other request.
    pub(crate) async fn watch(
        &self,
        target: PathAndQuery,
        limit: Duration,
        opened: impl FnOnce(),
        sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        let server = Destination::Any(ConnectionClass::SharedWatch);
        let response = self.stream_inner(server, target, None, opened, sink);
        within(limit, response).await
    }

    /// Sends `body`, if there is one, as JSON by `method`, and collects the response.
    ///
    /// # Errors
    /// There is no complete response.
    ///
    /// # Cancel safety
    /// The request may have been executed.
    pub(crate) async fn send_json(
        &self,
        method: Method,
        target: PathAndQuery,
        body: Option<Bytes>,
    ) -> Result<RemoteResponse, RemoteError> {
        let authorization = self
            .credentials
            .authorization()
            .map_err(|error| RemoteError(error.to_string()))?;
        let request = headers::internal_head(method, target, authorization).with_json();
        let body = body.map_or_else(RequestBody::empty, RequestBody::internal);
        let response =
            async { collect_response(self.pools.send_internal(request, body).await).await };
        let response = with_timeout(response).await?;
        self.credentials.record_response(response.status);
        Ok(response)
    }

    async fn stream_inner(
        &self,
        server: Destination<'_>,
        target: PathAndQuery,
        accept: Option<HeaderValue>,
        opened: impl FnOnce(),
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), RemoteError> {
        let authorization = self
            .credentials
            .authorization()
            .map_err(|error| RemoteError(error.to_string()))?;
        let mut request = headers::internal_head(Method::GET, target, authorization);
        if let Some(accept) = accept {
            request = request.with_accept(accept);
        }
        let result = match server {
            Destination::Any(class) => {
                let body = RequestBody::empty();
                self.pools.send_internal_by(class, request, body).await
            }
            Destination::Server(server) => {
                let sent = self.pools.send_to(server, request).await;
                let sent = sent.ok_or_else(|| RemoteError("the server was removed".to_owned()))?;
                sent.result.map(|response| (response, sent.guard))
            }
        };
        let (response, mut guard) = result.map_err(|error| RemoteError(error.to_string()))?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            self.credentials.request_refresh();
        }
        if status != StatusCode::OK {
            return Ok((status, ControlFlow::Continue(())));
        }
        opened();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|why| RemoteError(format!("the response ended early: {why}")))?;
            if let Some(data) = frame.data_ref()
                && sink(data).is_break()
            {
                return Ok((status, ControlFlow::Break(())));
            }
        }
        if let Some(guard) = &mut guard {
            guard.complete();
        }
        Ok((status, ControlFlow::Continue(())))
    }

    async fn call(self, call: RemoteRequest) -> Result<RemoteResponse, RemoteError> {
        let RemoteRequest { path, body } = call;
        let authorization = self
            .credentials
            .authorization()
            .map_err(|error| RemoteError(error.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let response = match body {
            Some(body) => {
                let request = headers::internal_head(Method::POST, path, authorization).with_json();
                collect_response(
                    self.pools
                        .send_internal(request, RequestBody::internal(body))
                        .await,
                )
                .await
            }
            None => {
                let request = headers::internal_head(Method::GET, path, authorization);
                collect_response(
                    self.pools
                        .send_internal(request, RequestBody::empty())
                        .await,
                )
                .await
            }
        }?;
        self.credentials.record_response(response.status);
        Ok(response)
    }
}

impl ApiTransport for ApiServerClient {
    fn send(&self, call: RemoteRequest) -> RemoteFuture {
        let calls = self.clone();
        Box::pin(async move { with_timeout(calls.call(call)).await })
    }
}

async fn within<T>(
    limit: Duration,
    response: impl Future<Output = Result<T, RemoteError>>,
) -> Result<T, RemoteError> {
    timeout(limit, response).await.unwrap_or_else(|_| {
        let limit = limit.as_secs();
        Err(RemoteError(format!("no complete response within {limit}s")))
    })
}

pub(super) async fn with_timeout(
    response: impl Future<Output = Result<RemoteResponse, RemoteError>>,
) -> Result<RemoteResponse, RemoteError> {
    timeout(RESPONSE_TIMEOUT, response)
        .await
        .unwrap_or_else(|_| {
            let limit = RESPONSE_TIMEOUT.as_secs();
            Err(RemoteError(format!("no response within {limit}s")))
        })
}

/// A response head with the guard of its connection, or why there is none.
type InternalResponse =
    Result<(Response<ResponseBody>, Option<Box<dyn StreamGuard>>), ForwardError>;

impl ServerPools<Internal> {
    /// Sends a request of weir's own, and counts it as client-go counts its requests.
    ///
    /// # Errors
    /// The request got no response.
    ///
    /// # Cancel safety
    /// The request may have been executed; it is not counted.
    async fn send_internal(
        &self,
        request: RequestHead<Internal>,
        body: RequestBody,
    ) -> InternalResponse {
        self.send_internal_by(ConnectionClass::Shared, request, body)
            .await
    }

    async fn send_internal_by(
        &self,
        class: ConnectionClass,
        request: RequestHead<Internal>,
        body: RequestBody,
    ) -> InternalResponse {
        let method = request.method().clone();
        let mut guard = None;
        let context = SendContext {
            requester: &Requester::default(),
            guard: &mut guard,
            sent_at: &mut None,
        };
        let result = self.send(request, body, class, context).await;
        let code = result.as_ref().map(Response::status);
        let code = code.as_ref().map_or("<error>", StatusCode::as_str);
        self.count_internal_request(code, method.as_str());
        result.map(|response| (response, guard))
    }
}

pub(super) async fn collect_response(
    result: InternalResponse,
) -> Result<RemoteResponse, RemoteError> {
    let (response, mut guard) = result.map_err(|error| RemoteError(error.to_string()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
        .collect()
        .await
        .map_err(|why| RemoteError(format!("the response ended early: {why}")))?
        .to_bytes();
    if let Some(guard) = &mut guard {
        guard.complete();
    }
    Ok(RemoteResponse { status, body })
}
