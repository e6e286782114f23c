//! Malformed requests. They are rejected before they have a RequestInfo, so no series of requests
//! counts them and no request log has them. They have a counter of their own, and one log line a
//! second with the client's address.
//!
//! kube-apiserver does the same: its `RequestInfo` filter runs before metrics and audit
//! (`DefaultBuildHandlerChain`, 1.36), and no filter sees what Go's server rejects.

use std::time::Instant;

use http::uri::PathAndQuery;
use http::{Method, request};

use crate::pipeline::connection::peer::Peer;
use crate::pipeline::reject::invalid_head;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::RequestMetrics;
use crate::upstream::headers;
use crate::upstream::headers::InvalidHeaders;
use weir_kubernetes::request_info::{RequestInfo, TargetError};

/// Why a request is malformed.
#[derive(Debug)]
pub(crate) enum MalformedRequest<'a> {
    /// `CONNECT`, which has no target on the API server.
    Connect,
    /// The headers would break the connection to the API server for other requests.
    Headers(InvalidHeaders),
    /// Go's server would respond before any handler.
    InvalidHead(InvalidHead),
    /// The request has no target.
    NoTarget,
    /// Kubernetes cannot parse the target.
    Target(TargetError<'a>),
}

impl MalformedRequest<'_> {
    /// One of `malformed_metrics::CAUSES`.
    const fn cause(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Headers(_) => "headers",
            Self::InvalidHead(why) => why.cause(),
            Self::NoTarget => "no-target",
            Self::Target(TargetError::Malformed(_)) => "target",
            Self::Target(TargetError::Unresolvable(_)) => "unresolvable",
        }
    }

    fn into_rejection(self) -> RequestRejection {
        match self {
            Self::Connect => RequestRejection::Connect,
            Self::Headers(InvalidHeaders::TooLong) => RequestRejection::HeadersTooLong,
            Self::Headers(InvalidHeaders::InvalidName) => RequestRejection::BadRequest(
                "a header's name holds a \", which no name may".to_owned(),
            ),
            Self::InvalidHead(why) => RequestRejection::InvalidHead(why),
            Self::NoTarget => RequestRejection::BadRequest("the request has no target".to_owned()),
            Self::Target(why) => why.into(),
        }
    }
}

/// The request's target, byte for byte as the upstream will receive it. The HTTP library has removed
/// its fragment.
pub(crate) fn request_target(
    head: &request::Parts,
) -> Result<PathAndQuery, MalformedRequest<'static>> {
    if head.method == Method::CONNECT {
        return Err(MalformedRequest::Connect);
    }
    invalid_head::check(head).map_err(MalformedRequest::InvalidHead)?;
    let Some(target) = head.uri.path_and_query() else {
        return Err(MalformedRequest::NoTarget);
    };
    headers::validate(&head.headers, target.as_str().len()).map_err(MalformedRequest::Headers)?;
    Ok(target.clone())
}

/// Parses the request's RequestInfo.
pub(crate) fn parse_info<'a>(
    method: &Method,
    target: &'a PathAndQuery,
) -> Result<RequestInfo<'a>, MalformedRequest<'a>> {
    RequestInfo::parse(method.as_str(), target.as_str().as_bytes())
        .map_err(MalformedRequest::Target)
}

/// Counts a malformed request and returns its rejection.
pub(crate) fn reject_malformed(
    metrics: &RequestMetrics,
    peer: &Peer,
    malformed: MalformedRequest<'_>,
    now: Instant,
) -> RequestRejection {
    metrics
        .malformed
        .record(peer.address, malformed.cause(), now);
    malformed.into_rejection()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::trace::malformed_metrics::CAUSES;

    #[test]
    fn every_malformed_request_has_one_of_the_causes() {
        let read = |target: &'static str| RequestInfo::parse("GET", target.as_bytes());
        for (why, cause) in [
            (MalformedRequest::Connect, "connect"),
            (
                MalformedRequest::Headers(InvalidHeaders::TooLong),
                "headers",
            ),
            (
                MalformedRequest::InvalidHead(InvalidHead::Expectation),
                "expect",
            ),
            (
                MalformedRequest::InvalidHead(InvalidHead::MissingHost),
                "host",
            ),
            (
                MalformedRequest::InvalidHead(InvalidHead::from_parse_error(String::new())),
                "syntax",
            ),
            (
                MalformedRequest::InvalidHead(InvalidHead::TransferEncoding),
                "transfer-encoding",
            ),
            (MalformedRequest::NoTarget, "no-target"),
            (
                MalformedRequest::Target(read("/api/%2").unwrap_err()),
                "target",
            ),
            (
                MalformedRequest::Target(read("/api/v1/watch").unwrap_err()),
                "unresolvable",
            ),
        ] {
            assert_eq!(why.cause(), cause);
            assert!(CAUSES.contains(&cause), "{cause}");
        }
    }
}
