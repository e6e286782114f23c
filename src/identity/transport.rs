//! What identity asks of others: the API server by weir's own credentials, an issuer by none. The asking itself is `upstream`'s.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::StatusCode;

/// What is asked of the API server.
#[derive(Clone, Debug)]
pub struct RemoteRequest {
    /// The path.
    pub path: &'static str,
    /// The object that is posted; a `GET` without one.
    pub body: Option<Bytes>,
}

/// An answer, whatever it says.
#[derive(Clone, Debug)]
pub struct RemoteResponse {
    /// The status code.
    pub status: StatusCode,
    /// All of the body.
    pub body: Bytes,
}

impl RemoteResponse {
    /// Whether it is the answer to a review.
    ///
    /// # Errors
    /// It says nothing about what was asked.
    pub fn check_review_status(&self) -> Result<(), ReviewError> {
        match self.status {
            StatusCode::OK | StatusCode::CREATED => Ok(()),
            code @ (StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED) => Err(ReviewError::NotPermitted(code)),
            code => Err(ReviewError::Failed(format!("it answered {code}"))),
        }
    }
}

/// A review without a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewError {
    /// weir may not ask at all: its credentials are not good, or lack the right (`system:auth-delegator`), or the API server
    /// has no such thing.
    NotPermitted(StatusCode),
    /// Not this time.
    Failed(String),
}

/// An answer that is still to come, or why there is none.
pub type RemoteFuture = Pin<Box<dyn Future<Output = Result<RemoteResponse, RemoteError>> + Send>>;

/// No answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError(pub String);

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The API server, asked by weir itself.
pub trait ApiTransport: fmt::Debug + Send + Sync {
    /// Asks. The answer comes within seconds, or an error does.
    fn send(&self, call: RemoteRequest) -> RemoteFuture;
}

/// Those who publish keys.
pub trait UrlFetcher: fmt::Debug + Send + Sync {
    /// Gets what stands at `url`, without any credential. The answer comes within seconds, or an error does.
    fn get(&self, url: &str) -> RemoteFuture;
}
