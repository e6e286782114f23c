//! Why a request got no response from the API server.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use http::StatusCode;

use crate::upstream::credentials::CredentialExpired;
use crate::upstream::requester::SlotHolder;

/// Why a request got no response.
#[derive(Clone, Debug)]
pub(crate) enum ForwardError {
    /// The connection was closed before the request could be sent.
    Closed,
    /// The TCP connection failed.
    Connect(Arc<io::Error>),
    /// No connection was established within this time.
    ConnectTimeout(Duration),
    /// weir's own credential has expired.
    NoCredential(Arc<CredentialExpired>),
    /// The API server does not accept weir's front-proxy certificate, or it has expired.
    FrontProxy(Arc<str>),
    /// The API server answers 401 to weir's own credential.
    OwnCredentialRejected,
    /// The budget of this many connections has none left for such a request.
    ConnectionLimit(usize),
    /// No address leads to an API server: each leads to a weir, or was not probed yet.
    NoServer,
    /// The API server has just started, or weir has, and its `/readyz` has not passed.
    NotReady(Arc<str>),
    /// No stream came free within this time.
    StreamTimeout(Duration),
    /// This user or network holds its share of the slots for such requests.
    ShareExceeded(SlotHolder),
    /// The CONNECT proxy failed.
    Proxy(Arc<hyper::Error>),
    /// The CONNECT proxy rejected the tunnel with this status.
    ProxyRejected(StatusCode),
    /// The API server did not process the request, and said so (`REFUSED_STREAM` or GOAWAY).
    Refused(Arc<dyn Error + Send + Sync>),
    /// The connection broke after the request may have been sent.
    Reset(Arc<dyn Error + Send + Sync>),
    /// TLS failed: the handshake broke, or the certificate is not the upstream's.
    Tls(Arc<io::Error>),
    /// This many requests wait for a stream already.
    TooManyWaiting(usize),
    /// The API server switched to a protocol that was not requested.
    UnexpectedUpgrade,
}

impl ForwardError {
    pub(crate) fn reset(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Reset(Arc::new(error))
    }

    pub(crate) fn refused(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Refused(Arc::new(error))
    }

    pub(crate) fn not_ready(why: impl fmt::Display) -> Self {
        Self::NotReady(why.to_string().into())
    }

    /// The error as the result of a probe.
    #[must_use]
    pub(crate) fn probe_failure(&self) -> String {
        if let Self::NotReady(why) = self {
            return why.to_string();
        }
        self.to_string()
    }

    /// The value of the cause in the client's Status, and of `reason` in the log.
    #[must_use]
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Closed => "weir/upstream-closed",
            Self::Connect(_) => "weir/upstream-connect",
            Self::ConnectTimeout(_) => "weir/upstream-connect-timeout",
            Self::FrontProxy(_) => "weir/front-proxy",
            Self::NoCredential(_) | Self::OwnCredentialRejected => "weir/own-credentials",
            Self::NoServer => "weir/upstream-no-server",
            Self::NotReady(_) => "weir/upstream-not-ready",
            Self::Proxy(_) | Self::ProxyRejected(_) => "weir/upstream-proxy",
            Self::Refused(_) => "weir/upstream-refused",
            Self::Reset(_) => "weir/upstream-reset",
            Self::Tls(_) => "weir/upstream-tls",
            Self::ConnectionLimit(_) => "weir/upstream-connections",
            Self::ShareExceeded(_) => "weir/long-running-share",
            Self::StreamTimeout(_) | Self::TooManyWaiting(_) => "weir/upstream-streams",
            Self::UnexpectedUpgrade => "weir/upstream-protocol",
        }
    }

    /// Whether the request cannot have reached the API server, so that the client can safely retry.
    #[must_use]
    pub(crate) const fn is_unsent(&self) -> bool {
        match self {
            Self::Closed
            | Self::Connect(_)
            | Self::ConnectTimeout(_)
            | Self::FrontProxy(_)
            | Self::NoCredential(_)
            | Self::NoServer
            | Self::NotReady(_)
            | Self::OwnCredentialRejected
            | Self::ConnectionLimit(_)
            | Self::StreamTimeout(_)
            | Self::Proxy(_)
            | Self::ProxyRejected(_)
            | Self::Refused(_)
            | Self::ShareExceeded(_)
            | Self::Tls(_)
            | Self::TooManyWaiting(_) => true,
            Self::Reset(_) | Self::UnexpectedUpgrade => false,
        }
    }
}

impl ForwardError {
    /// Whether a retry in a moment can succeed. Requests that were not sent can be retried, except
    /// after a certificate that failed verification: it will not verify a second later, and a
    /// client that retries ten times would only seem to hang.
    #[must_use]
    pub(crate) fn is_transient(&self) -> bool {
        // rustls reports an error in the peer's handshake, rather than in the connection, as
        // invalid data.
        let untrusted = matches!(self, Self::Tls(why) if why.kind() == io::ErrorKind::InvalidData);
        self.is_unsent() && !untrusted
    }
}

impl From<hyper::Error> for ForwardError {
    fn from(error: hyper::Error) -> Self {
        Self::reset(error)
    }
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the connection was closing"),
            Self::Connect(why) => write!(f, "cannot connect: {why}"),
            Self::ConnectTimeout(limit) => write!(f, "no connection within {}s", limit.as_secs()),
            Self::FrontProxy(why) => write!(
                f,
                "it does not accept the front-proxy certificate by which weir asserts users: {why}"
            ),
            Self::NoCredential(why) => why.fmt(f),
            Self::OwnCredentialRejected => {
                f.write_str("it answers 401 to weir's own credential, which asserts users")
            }
            Self::NoServer => f.write_str("no address is known to lead to an API server"),
            Self::NotReady(why) => write!(f, "it is not ready yet: {why}"),
            Self::Proxy(why) => write!(f, "the proxy on the way failed: {why}"),
            Self::ProxyRejected(status) => {
                write!(f, "the HTTP proxy rejected the tunnel: {status}")
            }
            Self::Refused(why) => {
                write!(
                    f,
                    "it did not begin with the request: {}",
                    ErrorChain(&**why)
                )
            }
            Self::Reset(why) => write!(
                f,
                "the connection broke before a response: {}",
                ErrorChain(&**why)
            ),
            Self::Tls(why) => write!(f, "TLS failed: {why}"),
            Self::ConnectionLimit(most) => write!(
                f,
                "of {most} connections to the API server there is none left for such a request"
            ),
            Self::ShareExceeded(holder) => write!(
                f,
                "{holder} has its share of the connections to the API server for such requests"
            ),
            Self::StreamTimeout(limit) => {
                write!(f, "no stream came free within {}s", limit.as_secs())
            }
            Self::UnexpectedUpgrade => {
                write!(f, "it switched to a protocol that was not requested")
            }
            Self::TooManyWaiting(most) => {
                write!(f, "{most} requests wait for a free stream already")
            }
        }
    }
}

/// An error and its sources, in one line.
struct ErrorChain<'a>(&'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}
