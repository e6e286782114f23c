//! `X-Forwarded-For`: the client's address, as the upstream's audit log records it. Pure.

use std::net::IpAddr;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The address of a client, as the upstream's audit log records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress {
    /// The address that the connection came from.
    pub(crate) peer: IpAddr,
    /// Whether it is one of `--trusted-proxies`, whose list of earlier hops is kept.
    pub(crate) trusted: bool,
}

pub(super) fn append_forwarded_for(headers: &mut HeaderMap, client: ClientAddress) {
    let peer = client.peer.to_canonical();
    if !client.trusted {
        headers.remove(X_FORWARDED_FOR);
        headers.remove(X_REAL_IP);
    }
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&X_FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(peer.to_string().as_bytes());
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(list)) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}
