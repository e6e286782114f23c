//! What identity asks of others: the API server by weir's own credentials, an issuer by none. The asking itself is `upstream`'s.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::StatusCode;

/// What is asked of the API server.
#[derive(Clone, Debug)]
pub struct Call {
    /// The path.
    pub path: &'static str,
    /// The object that is posted; a `GET` without one.
    pub body: Option<Bytes>,
}

/// An answer, whatever it says.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: StatusCode,
    /// All of the body.
    pub body: Bytes,
}

impl Reply {
    /// Whether it is the answer to a review.
    ///
    /// # Errors
    /// It says nothing about what was asked.
    pub fn reviewed(&self) -> Result<(), NoVerdict> {
        match self.status {
            StatusCode::OK | StatusCode::CREATED => Ok(()),
            code @ (StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED) => Err(NoVerdict::MayNotAsk(code)),
            code => Err(NoVerdict::Failed(format!("it answered {code}"))),
        }
    }
}

/// A review without a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoVerdict {
    /// weir may not ask at all: its credentials are not good, or lack the right (`system:auth-delegator`), or the API server
    /// has no such thing.
    MayNotAsk(StatusCode),
    /// Not this time.
    Failed(String),
}

/// An answer that is still to come, or why there is none.
pub type Replying = Pin<Box<dyn Future<Output = Result<Reply, Unanswered>> + Send>>;

/// No answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered(pub String);

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The API server, asked by weir itself.
pub trait ApiServer: fmt::Debug + Send + Sync {
    /// Asks. The answer comes within seconds, or an error does.
    fn ask(&self, call: Call) -> Replying;
}

/// Those who publish keys.
pub trait Web: fmt::Debug + Send + Sync {
    /// Gets what stands at `url`, without any credential. The answer comes within seconds, or an error does.
    fn get(&self, url: &str) -> Replying;
}
