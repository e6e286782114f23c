//! Traits by which identity reaches the API server (with weir's own credentials) and token issuers
//! (without credentials). `upstream` implements them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::StatusCode;

use weir_x509::CertificatePool;

/// A request to the API server.
#[derive(Clone, Debug)]
pub struct RemoteRequest {
    /// The path of the URL.
    pub(crate) path: &'static str,
    /// The object for a `POST`. `None` makes the request a `GET`.
    pub(crate) body: Option<Bytes>,
}

/// A response of any status.
#[derive(Clone, Debug)]
pub struct RemoteResponse {
    /// The status code.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

impl RemoteResponse {
    /// Checks that the status is that of a successful review.
    ///
    /// # Errors
    /// [`ReviewError`] if the response does not contain the result of a review.
    pub(crate) fn check_review_status(&self) -> Result<(), ReviewError> {
        match self.status {
            StatusCode::OK | StatusCode::CREATED => Ok(()),
            code @ (StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED) => Err(ReviewError::NotPermitted(code)),
            code => Err(ReviewError::Failed(format!("it responded with {code}"))),
        }
    }
}

/// Why a review has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReviewError {
    /// weir may not create reviews: its credentials are not valid, they lack the permission
    /// (`system:auth-delegator`), or the API server does not have the resource.
    NotPermitted(StatusCode),
    /// The review failed this time.
    Failed(String),
}

/// A pending response.
pub type RemoteFuture = Pin<Box<dyn Future<Output = Result<RemoteResponse, RemoteError>> + Send>>;

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError(pub(crate) String);

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<RemoteError> for ReviewError {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error.0)
    }
}

/// Sends requests to the API server with weir's own credentials.
pub trait ApiTransport: fmt::Debug + Send + Sync {
    /// Sends a request. Completes within seconds, with a response or an error.
    fn send(&self, request: RemoteRequest) -> RemoteFuture;
}

/// Fetches the keys that issuers publish.
pub(crate) trait UrlFetcher: fmt::Debug + Send + Sync {
    /// Gets `url` without credentials. Completes within seconds, with a response or an error.
    fn get(&self, url: &str) -> RemoteFuture;

    /// The roots that verify the servers.
    fn roots(&self) -> &CertificatePool;
}
