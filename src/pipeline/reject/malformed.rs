//! What cannot be read as a request. It is refused before it is known what is asked, so that no series of requests counts it
//! and no log of requests has it: it is counted here, and a line a second says where it comes from.
//!
//! kube-apiserver does as much: its `RequestInfo` filter stands before metrics and audit (`DefaultBuildHandlerChain`, 1.36), and
//! what Go's server refuses no filter sees.

use std::time::Instant;

use http::Method;
use http::request;
use http::uri::PathAndQuery;
use prometheus::IntCounter;
use tracing::warn;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::reject::invalid_head;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::request_info::RequestInfo;
use crate::request_info::TargetError;
use crate::upstream::headers;
use crate::upstream::headers::InvalidHeaders;

/// Every cause there is, and so every value of the label.
const CAUSES: [&str; 10] = [
    "connect",
    "expect",
    "fragment",
    "headers",
    "host",
    "no-target",
    "syntax",
    "target",
    "transfer-encoding",
    "unresolvable",
];

/// Why something is no request.
#[derive(Debug)]
pub(in crate::pipeline) enum MalformedRequest<'a> {
    /// `CONNECT`, which has no target of the API server's.
    Connect,
    /// Its target holds a `#`, which would be cut off with what follows.
    Fragment,
    /// Its headers would cost others the connection to the API server.
    Headers(InvalidHeaders),
    /// Go's server would answer it before any handler.
    InvalidHead(InvalidHead),
    /// It has no target.
    NoTarget,
    /// Kubernetes makes nothing of its target.
    Target(TargetError<'a>),
}

impl MalformedRequest<'_> {
    /// One of [`CAUSES`].
    const fn cause(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Fragment => "fragment",
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
            Self::Fragment => RequestRejection::BadRequest(
                "the request's target holds a #, which must be written %23".to_owned(),
            ),
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

/// The request's target, byte for byte what the upstream will get.
pub(in crate::pipeline) fn request_target(
    peer: &Peer,
    head: &request::Parts,
) -> Result<PathAndQuery, MalformedRequest<'static>> {
    if head.method == Method::CONNECT {
        return Err(MalformedRequest::Connect);
    }
    invalid_head::check(head).map_err(MalformedRequest::InvalidHead)?;
    let Some(target) = head.uri.path_and_query() else {
        return Err(MalformedRequest::NoTarget);
    };
    if peer
        .target_fragments
        .take_truncated(head.method.as_str(), target.as_str())
    {
        return Err(MalformedRequest::Fragment);
    }
    headers::validate(&head.headers, target.as_str().len()).map_err(MalformedRequest::Headers)?;
    Ok(target.clone())
}

/// What is asked.
pub(in crate::pipeline) fn parse_info<'a>(
    method: &Method,
    target: &'a PathAndQuery,
) -> Result<RequestInfo<'a>, MalformedRequest<'a>> {
    RequestInfo::parse(method.as_str(), target.as_str().as_bytes())
        .map_err(MalformedRequest::Target)
}

impl Pipeline {
    /// Rejects a request whose head the HTTP library could not parse, and counts it.
    pub fn reject_unparsed(&self, peer: &Peer, why: InvalidHead) -> RequestRejection {
        let why = MalformedRequest::InvalidHead(why);
        self.metrics.malformed.reject(peer, why, Clock.now())
    }
}

/// Counts what cannot be read, by its cause.
#[derive(Debug)]
pub(in crate::pipeline) struct MalformedRequestMetrics {
    counts: [(&'static str, IntCounter); CAUSES.len()],
    log_limiter: LogLimiter,
}

impl MalformedRequestMetrics {
    pub(in crate::pipeline) fn register(registry: &Registry) -> Self {
        let counts = registry.counters(
            "weir_malformed_requests_total",
            "Requests that could not be read and were refused, in no other metric and in no log of requests, by cause: CONNECT (connect), an expectation other than 100-continue (expect), a # in the target (fragment), headers that are too long or have an impossible name (headers), no host, two or a malformed one (host), a head that is not HTTP/1.1 (syntax), a target that is none or too long (no-target, target), an unsupported Transfer-Encoding (transfer-encoding), or a path that ends too early (unresolvable).",
            &["cause"],
        );
        Self {
            counts: CAUSES.map(|cause| (cause, counts.with_label_values(&[cause]))),
            log_limiter: LogLimiter::default(),
        }
    }

    /// Says no to what cannot be read.
    pub(in crate::pipeline) fn reject(
        &self,
        peer: &Peer,
        why: MalformedRequest<'_>,
        now: Instant,
    ) -> RequestRejection {
        let cause = why.cause();
        if let Some((_, count)) = self.counts.iter().find(|(known, _)| *known == cause) {
            count.inc();
        }
        if let Some(more) = self.log_limiter.try_log(now) {
            // Nothing of what was sent: it is the client's to choose.
            warn!(client = %peer.address, cause, more, "a request that cannot be read was refused");
        }
        why.into_rejection()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_malformed_request_has_one_of_the_causes() {
        let read = |target: &'static str| RequestInfo::parse("GET", target.as_bytes());
        for (why, cause) in [
            (MalformedRequest::Connect, "connect"),
            (MalformedRequest::Fragment, "fragment"),
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
