//! The headers of requests and responses that weir forwards. Pure.
//!
//! The only place where a request for the upstream is built: a [`RequestHead`] of an [`AuthMode`]
//! can be built nowhere else. So a request that asserts a user cannot get onto a connection without
//! weir's certificate, nor one that carries its own credential onto a connection with it. The order
//! is fixed: hop-by-hop headers are removed first, then everything that could pass for an identity,
//! and an asserted identity is written last.
//!
//! Only the protocol's own hop-by-hop headers are removed; what else `Connection` names is
//! forwarded, as to kube-apiserver. So a client cannot remove a front proxy's identity headers by
//! naming them there. Trailers lose what could pass for an identity, and all that only a head may
//! say.
//!
//! No asserted value has space around it: Go's HTTP/1.1 would remove it, and `system:masters `
//! would become another group. At least one group is always named: for a node or a service account
//! that is impersonated without a group, the API server adds groups by weir's right and not by the
//! client's.
//!
//! [`AuthMode`]: auth_mode::AuthMode
//! [`RequestHead`]: request_head::RequestHead
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/headerrequest` and
//! `transport.NewAuthProxyRoundTripper` (1.36).

pub(crate) mod auth_mode;
pub(crate) mod forwarded_for;
pub(crate) mod request_head;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::identity::request_header::IdentityHeaders;

pub(crate) use request_head::{
    external_head, front_proxy_head, impersonation_head, internal_head, pass_through_head,
    unverified_head,
};

/// Headers that concern one connection only (RFC 9110, 7.6.1, and older ones that are still in
/// use). Other headers that `Connection` names are forwarded. kube-apiserver does not interpret
/// `Connection` either, and clients cannot remove a front proxy's identity headers
/// (`Impersonate-User`) by naming them in it.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// The audit ID of a request, in requests and responses.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The trace that a request is part of (W3C Trace Context).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Marks values that differ in each message or each second as never indexed (HPACK, RFC 7541,
/// 7.1.3). h2 compares a value with all recent values of its name on the connection, up to sixty
/// dates or IDs, and each new value evicts an entry that one byte could name. On a long-lived
/// connection that is a fifteenth of the cost of a rejection.
pub(crate) fn keep_unindexed(headers: &mut HeaderMap) {
    for (name, value) in headers {
        if matches!(name.as_str(), "audit-id" | "date" | "traceparent") {
            value.set_sensitive(true);
        }
    }
}

/// Prepares the headers of a message for the next hop: removes the hop-by-hop headers that are
/// left, and marks the values that HPACK must not index.
pub(crate) fn prepare_forwarding(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    keep_unindexed(headers);
}

/// Copies the values that HPACK may keep for a connection. Each is a part of the buffer that the whole
/// head was read into, 8 KiB or more, and a table of 4 KiB may keep a hundred of them.
pub(crate) fn detach_values(headers: &mut HeaderMap) {
    for (name, value) in headers {
        if !value.is_sensitive()
            && name != header::CONTENT_LENGTH // h2 never indexes it
            && let Ok(copy) = HeaderValue::from_bytes(value.as_bytes())
        {
            *value = copy;
        }
    }
}

/// Removes the headers that concern the client's connection only. Returns the protocol of an
/// upgrade, if one is requested.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    // Most messages have none of them. To look at each of their few headers costs less than to
    // search for each of these names.
    let names = headers.keys().filter(|name| is_hop_by_hop(name));
    let names: Vec<HeaderName> = names.cloned().collect(); // without any, it allocates nothing
    if names.is_empty() {
        return None;
    }
    let upgrade = requests_upgrade(headers)
        .then(|| headers.get(header::UPGRADE).cloned())
        .flatten();
    let te_trailers = headers.get(header::TE).is_some_and(|te| {
        te.to_str().is_ok_and(|te| {
            te.split(',')
                .any(|t| t.trim().eq_ignore_ascii_case("trailers"))
        })
    });
    for name in names {
        headers.remove(name);
    }
    if te_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// The trailers of a request that are forwarded. Trailers arrive after the headers were cleaned, so
/// names of identity headers are removed here, too. `None` if none are left.
///
/// # Errors
/// What is left is invalid or too long.
pub(crate) fn request_trailers(
    mut trailers: HeaderMap,
    identity_headers: &IdentityHeaders,
) -> Result<Option<HeaderMap>, InvalidHeaders> {
    identity_headers.remove_from(&mut trailers);
    let trailers = forwarded_trailers(trailers);
    trailers
        .iter()
        .try_for_each(|trailers| validate(trailers, 0))?;
    Ok(trailers)
}

/// The trailers that are forwarded, in both directions and over both versions of HTTP: all but
/// those that frame a message, concern one connection, or change what was decided by its head (RFC
/// 9110, 6.5.1). Go's server ignores them on HTTP/1.1 and resets an HTTP/2 stream for them. `None`
/// if none are left.
pub(crate) fn forwarded_trailers(mut trailers: HeaderMap) -> Option<HeaderMap> {
    let names = trailers.keys().filter(|name| !may_be_trailer(name));
    let names: Vec<HeaderName> = names.cloned().collect(); // without any, it allocates nothing
    for name in names {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// Go's `httpguts.ValidTrailerHeader`, without hop-by-hop headers that it does not know.
fn may_be_trailer(name: &HeaderName) -> bool {
    let forbidden = matches!(
        name.as_str(),
        "authorization"
            | "cache-control"
            | "content-encoding"
            | "content-length"
            | "content-range"
            | "content-type"
            | "expect"
            | "host"
            | "max-forwards"
            | "pragma"
            | "range"
            | "realm"
            | "trailer"
            | "www-authenticate"
    );
    !forbidden && !is_hop_by_hop(name) && !name.as_str().starts_with("if-")
}

/// Whether `Connection` names `Upgrade`, without which an `Upgrade` header requests nothing.
fn requests_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// Whether headers may be sent on a shared connection to an API server, beside a target of this
/// length. Go's HTTP/2 closes a whole connection for an invalid name, for more than 1 MiB of
/// headers, and for a value whose compressed form is longer.
///
/// # Errors
/// The headers are invalid or too long.
pub(crate) fn validate(headers: &HeaderMap, target: usize) -> Result<(), InvalidHeaders> {
    let mut length = target;
    for (name, value) in headers {
        // The one character that the `http` crate accepts in a name, and RFC 9110 does not.
        if name.as_str().as_bytes().contains(&b'"') {
            return Err(InvalidHeaders::InvalidName);
        }
        length += name.as_str().len() + value.len() + ENTRY_OVERHEAD;
    }
    let compressed = || headers.values().map(max_compressed_len).sum::<usize>();
    if length > MAX_HEADER_BYTES
        || (length > MAX_HEADER_BYTES / MAX_HUFFMAN_BYTES && compressed() > MAX_HEADER_BYTES)
    {
        return Err(InvalidHeaders::TooLong);
    }
    Ok(())
}

/// Why headers cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidHeaders {
    /// They exceed [`MAX_HEADER_BYTES`].
    #[error("the headers are too long")]
    TooLong,
    /// A name is invalid.
    #[error("a header's name is invalid")]
    InvalidName,
}

/// Most bytes of a request's headers and target, compressed or not: what the API server accepts
/// (`http.DefaultMaxHeaderBytes`), less room for the headers that weir adds.
pub(crate) const MAX_HEADER_BYTES: usize = (1 << 20) - (64 << 10);

/// Bytes that an entry counts for beside its name and its value (RFC 9113, 6.5.2).
const ENTRY_OVERHEAD: usize = 32;

/// Bytes of the longest Huffman code of a byte (30 bits; RFC 7541, appendix B).
const MAX_HUFFMAN_BYTES: usize = 4;

/// An upper bound of a value's length after HPACK compression: the codes of most characters in
/// headers have at most eight bits.
fn max_compressed_len(value: &HeaderValue) -> usize {
    let short = |byte: u8| byte.is_ascii_alphanumeric() || b" %-./=_:&*,;".contains(&byte);
    let length = |byte: &u8| if short(*byte) { 1 } else { MAX_HUFFMAN_BYTES };
    value.as_bytes().iter().map(length).sum()
}
