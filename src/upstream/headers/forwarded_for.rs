//! `X-Forwarded-For`: the client's address, as the upstream's audit log records it. Pure.

use std::net::IpAddr;

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The address of a client, as the upstream's audit log records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress<'a> {
    /// The address that the connection came from: an [`address_value`].
    pub(crate) peer: &'a HeaderValue,
    /// Whether it is one of `--trusted-proxies`, whose list of earlier hops is kept.
    pub(crate) trusted: bool,
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
