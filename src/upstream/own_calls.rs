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

use crate::identity::remote::ApiServer;
use crate::identity::remote::Call;
use crate::identity::remote::Reply;
use crate::identity::remote::Replying;
use crate::identity::remote::Unanswered;
use crate::identity::remote::Web;
use crate::upstream::ForwardError;
use crate::upstream::Metrics;
use crate::upstream::address;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::connector::Target;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::elsewhere_pool;
use crate::upstream::forward::Errand;
use crate::upstream::forward::Turn;
use crate::upstream::headers;
use crate::upstream::headers::Outbound;
use crate::upstream::headers::Own;
use crate::upstream::lane::Place;
use crate::upstream::pool::Pool;
use crate::upstream::room::Requester;

/// The request timeout that kube-apiserver's delegating authentication has for a `TokenReview`.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A large API server takes seconds to write its metrics.
const STREAMED_WITHIN: Duration = Duration::from_secs(30);

/// A user with ten thousand groups, or a key set with a hundred keys, takes less.
const MOST_BYTES: usize = 1 << 20;

/// The API server, by weir's own credentials.
#[derive(Clone, Debug)]
pub struct OwnCalls {
    pool: Arc<Pool<Own>>,
    own: Arc<OwnCredentials>,
}

impl OwnCalls {
    /// Asks by way of `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool<Own>>, own: Arc<OwnCredentials>) -> Self {
        Self { pool, own }
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
    ) -> Result<(StatusCode, ControlFlow<()>), Unanswered> {
        timeout(STREAMED_WITHIN, self.streamed(target, accept, sink))
            .await
            .unwrap_or_else(|_| {
                let limit = STREAMED_WITHIN.as_secs();
                Err(Unanswered(format!("no whole answer within {limit}s")))
            })
    }

    async fn streamed(
        &self,
        target: PathAndQuery,
        accept: Option<HeaderValue>,
        mut sink: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(StatusCode, ControlFlow<()>), Unanswered> {
        let authorization = self
            .own
            .authorization()
            .map_err(|why| Unanswered(why.to_string()))?;
        let mut request = headers::own(Method::GET, target, authorization);
        if let Some(accept) = accept {
            request = request.accepting(accept);
        }
        let sent = self.pool.ask(request, RequestBody::empty()).await;
        let (response, mut turn) = sent.map_err(|why| Unanswered(why.to_string()))?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            self.own.refused();
        }
        if status != StatusCode::OK {
            return Ok((status, ControlFlow::Continue(())));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|why| Unanswered(format!("the answer broke off: {why}")))?;
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

    async fn call(self, call: Call) -> Result<Reply, Unanswered> {
        let Call { path, body } = call;
        let authorization = self
            .own
            .authorization()
            .map_err(|why| Unanswered(why.to_string()))?;
        let path = PathAndQuery::from_static(path);
        let reply = match body {
            Some(body) => {
                let request = headers::own(Method::POST, path, authorization).with_json();
                exchange(self.pool.ask(request, RequestBody::own(body)).await).await
            }
            None => {
                let request = headers::own(Method::GET, path, authorization);
                exchange(self.pool.ask(request, RequestBody::empty()).await).await
            }
        }?;
        self.own.answered(reply.status);
        Ok(reply)
    }
}

impl ApiServer for OwnCalls {
    fn ask(&self, call: Call) -> Replying {
        let calls = self.clone();
        Box::pin(async move { timely(calls.call(call)).await })
    }
}

/// Whatever can be reached by HTTPS.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    roots: RootCertStore,
    metrics: Arc<Metrics>,
}

impl Elsewhere {
    /// Believes whom `roots` vouch for.
    #[must_use]
    pub fn new(roots: RootCertStore, metrics: Arc<Metrics>) -> Self {
        Self { roots, metrics }
    }

    /// On a connection of its own: keys are fetched every few minutes.
    async fn call(self, url: String) -> Result<Reply, Unanswered> {
        let uri: Uri = url.parse().map_err(|_| Unanswered("no URL".to_owned()))?;
        let path = uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let server = uri.authority().map(|host| format!("https://{host}"));
        let (authority, server_name) = match (uri.scheme_str(), server) {
            (Some("https"), Some(server)) => address::server(&server).map_err(Unanswered)?,
            _ => return Err(Unanswered("expected https://HOST[:PORT]/PATH".to_owned())),
        };
        let target = Target {
            authority,
            server_name,
            proxy: None,
        };
        let pool = elsewhere_pool(target, self.roots, &self.metrics);
        let (head, mut turn) = (headers::elsewhere(path), None);
        let errand = Errand {
            requester: &Requester::default(),
            turn: &mut turn,
            sent: &mut None,
        };
        let sent = pool.send(head, RequestBody::empty(), Place::Shared, errand);
        let reply = exchange(sent.await.map(|response| (response, turn))).await;
        pool.renew();
        reply
    }
}

impl Web for Elsewhere {
    fn get(&self, url: &str) -> Replying {
        let (elsewhere, url) = (self.clone(), url.to_owned());
        Box::pin(async move { timely(elsewhere.call(url)).await })
    }
}

async fn timely(
    reply: impl Future<Output = Result<Reply, Unanswered>>,
) -> Result<Reply, Unanswered> {
    timeout(ANSWER_WITHIN, reply).await.unwrap_or_else(|_| {
        let limit = ANSWER_WITHIN.as_secs();
        Err(Unanswered(format!("no answer within {limit}s")))
    })
}

/// A beginning of an answer, or why there is none.
type Sent = Result<(Response<AnswerBody>, Option<Box<dyn Turn>>), ForwardError>;

impl Pool<Own> {
    /// Sends a request of weir's own, and counts it as client-go counts its.
    ///
    /// # Errors
    /// What went wrong.
    ///
    /// # Cancel safety
    /// The request may have been executed; it is not counted.
    pub async fn ask(self: &Arc<Self>, request: Outbound<Own>, body: RequestBody) -> Sent {
        let method = request.method().clone();
        let mut turn = None;
        let errand = Errand {
            requester: &Requester::default(),
            turn: &mut turn,
            sent: &mut None,
        };
        let sent = self.send(request, body, Place::Shared, errand).await;
        let code = sent.as_ref().map(Response::status);
        let code = code.as_ref().map_or("<error>", StatusCode::as_str);
        self.metrics()
            .own_requests
            .with_label_values(&[code, self.address(), method.as_str()])
            .inc();
        sent.map(|response| (response, turn))
    }
}

async fn exchange(sent: Sent) -> Result<Reply, Unanswered> {
    let (response, mut turn) = sent.map_err(|why| Unanswered(why.to_string()))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_BYTES)
        .collect()
        .await
        .map_err(|why| Unanswered(format!("the answer broke off: {why}")))?
        .to_bytes();
    if let Some(turn) = &mut turn {
        turn.complete();
    }
    Ok(Reply { status, body })
}
