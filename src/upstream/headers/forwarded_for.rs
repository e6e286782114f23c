//! What the upstream learns of the client's connection: `X-Forwarded-For`, the client's address, as
//! the upstream's audit log records it; and for a proxied application, whose redirects and checks of
//! `Origin` need it, the `Host` that the client addressed. Pure.

use std::net::IpAddr;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, header, request};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The address of a client, as the upstream's audit log records it, and what it has addressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress<'a> {
    /// The address that the connection came from: an [`address_value`].
    pub(crate) peer: &'a HeaderValue,
    /// Whether it is one of `--trusted-proxies`, whose list of earlier hops is kept.
    pub(crate) trusted: bool,
    /// The [`requested_host`] of a request that the upstream passes on to an application.
    pub(crate) app_host: Option<&'a Authority>,
}

/// The host that a request addresses, by Go's rules (`net/http.Request.Host`): that of the target,
/// otherwise the `Host` header. `None` if there is none, or none that HTTP/2 could name.
#[must_use]
pub(crate) fn requested_host(head: &request::Parts) -> Option<Authority> {
    let host = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get(header::HOST)?.as_bytes(),
    };
    // Go leaves out the user information of a target.
    let host = host.rsplit(|byte| *byte == b'@').next()?;
    Authority::try_from(host).ok()
}

/// The host as HTTP/1.1 has it.
pub(super) fn host_value(host: &Authority) -> Option<HeaderValue> {
    HeaderValue::from_str(host.as_str()).ok()
}

/// Writes `X-Forwarded-Host` and `X-Forwarded-Proto` of a request for an application.
/// kube-apiserver passes them on.
pub(super) fn set_forwarded_host(headers: &mut HeaderMap, client: ClientAddress<'_>) {
    let Some(host) = client.app_host.and_then(host_value) else {
        return;
    };
    let https = HeaderValue::from_static("https");
    for (name, value) in [(X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, https)] {
        if !client.trusted || !headers.contains_key(&name) {
            headers.insert(name, value);
        }
    }
}

/// The address as a header has it. To format it takes longer than all else that these headers need,
/// so a connection does it once.
#[must_use]
pub(crate) fn address_value(peer: IpAddr) -> HeaderValue {
    // An address consists of characters that a header value may have.
    HeaderValue::from_str(&peer.to_canonical().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

pub(super) fn append_forwarded_for(headers: &mut HeaderMap, client: ClientAddress<'_>) {
    let mut value = client.peer.clone();
    if client.trusted {
        let mut list: Vec<u8> = Vec::new();
        for earlier in headers.get_all(&X_FORWARDED_FOR) {
            list.extend_from_slice(earlier.as_bytes());
            list.extend_from_slice(b", ");
        }
        list.extend_from_slice(value.as_bytes());
        // A list of header values is one.
        value = HeaderValue::from_maybe_shared(Bytes::from(list)).unwrap_or(value);
    } else {
        headers.remove(X_REAL_IP);
    }
    headers.insert(X_FORWARDED_FOR, value);
}
