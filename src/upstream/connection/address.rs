//! Addresses as operators write them: the URL of the API server and of its proxy. Pure, but for what
//! a name led to last.
//!
//! Promises: what weir could not honour (a path prefix, an invalid port, another kind of proxy) is
//! an error and is not dropped. No error quotes a password.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::uri::Authority;
use http::{HeaderValue, Uri};
use parking_lot::Mutex;
use rustls_pki_types::ServerName;

use weir_kubernetes::encoding::percent;
use weir_kubernetes::encoding::percent::PlusMode;

/// The address of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host and port to connect to.
    pub authority: Authority,
    /// The name that its certificate is verified against.
    pub server_name: ServerName<'static>,
    /// The proxy that connects there by CONNECT.
    pub proxy: Option<ProxyAddress>,
    /// One of the addresses of `authority`'s host. `None`: the system resolves the host, or the
    /// proxy does, for each connection.
    pub(crate) socket: Option<SocketAddr>,
    /// Where its name led last.
    pub(crate) last_socket: LastSocket,
}

/// The address to which the last connection by a name was opened, for the time in which the name
/// does not resolve. Clones share it. It is no part of what makes two addresses equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSocket(Arc<Mutex<Option<SocketAddr>>>);

impl LastSocket {
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        *self.0.lock()
    }

    pub(crate) fn set(&self, socket: SocketAddr) {
        *self.0.lock() = Some(socket);
    }
}

impl PartialEq for LastSocket {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastSocket {}

/// An HTTP proxy (`proxy-url`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Host and port.
    pub authority: Authority,
    /// The `Proxy-Authorization` header, if the URL had a user.
    pub(crate) authorization: Option<HeaderValue>,
}

impl ServerAddress {
    /// The server at HOST:PORT, whose certificate names `server_name`.
    #[must_use]
    pub fn new(authority: Authority, server_name: ServerName<'static>) -> Self {
        Self {
            authority,
            server_name,
            proxy: None,
            socket: None,
            last_socket: LastSocket::default(),
        }
    }

    /// The same server at one address.
    #[must_use]
    pub(crate) fn at(&self, socket: SocketAddr) -> Self {
        Self {
            socket: Some(socket),
            ..self.clone()
        }
    }

    /// The port, 443 where the authority has none.
    pub(crate) fn port(authority: &Authority) -> u16 {
        authority.port_u16().unwrap_or(443)
    }
}

/// Host and port of the API server's URL, and the host as a certificate names it.
///
/// # Errors
/// The URL is not `https://HOST[:PORT]`. The error says why, without the URL itself.
pub(crate) fn parse_server(url: &str) -> Result<(Authority, ServerName<'static>), String> {
    let given = url;
    let url: Uri = url
        .parse()
        .map_err(|_| "not a URL; expected https://HOST[:PORT]")?;
    match scheme(&url).as_deref() {
        Some("https") => {}
        Some("http") => return Err("credentials go by https only".to_owned()),
        _ => return Err("expected https://HOST[:PORT]".to_owned()),
    }
    if !matches!(url.path(), "" | "/") {
        return Err(format!(
            "weir forwards request targets byte for byte, so it cannot add the path prefix {:?}; give \
             the address of the API server itself",
            url.path()
        ));
    }
    let authority = url
        .authority()
        .ok_or("the host is missing; expected https://HOST[:PORT]")?;
    if url.query().is_some() || given.contains('#') || authority.as_str().contains('@') {
        return Err("only host and port can be given; expected https://HOST[:PORT]".to_owned());
    }
    check_port(authority)?;
    let host = authority.host();
    let name = parse_server_name(host.trim_start_matches('[').trim_end_matches(']'))?;
    Ok((authority.clone(), name))
}

fn scheme(url: &Uri) -> Option<String> {
    url.scheme_str().map(str::to_ascii_lowercase)
}

fn check_port(authority: &Authority) -> Result<(), &'static str> {
    let without = authority.as_str().rsplit('@').next() == Some(authority.host());
    let digits = authority
        .port()
        .is_some_and(|port| port.as_str().bytes().all(|b| b.is_ascii_digit()));
    match authority.port_u16() {
        Some(1..) if digits => Ok(()),
        None if without => Ok(()),
        Some(_) | None => Err("the port must be a number from 1 to 65535"),
    }
}

/// A server name as a certificate names it.
///
/// # Errors
/// `name` is neither a host name nor an IP address.
pub(crate) fn parse_server_name(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| format!("{name:?} is neither a host name nor an IP address"))
}

/// The proxy of a `proxy-url`, which may hold a user and a password.
///
/// # Errors
/// The URL is not `http://[USER[:PASSWORD]@]HOST[:PORT]`. The error says why, without the URL
/// itself.
pub(crate) fn parse_proxy(url: &str) -> Result<ProxyAddress, String> {
    const EXPECTED: &str = "expected http://HOST[:PORT]";
    let url: Uri = url.parse().map_err(|_| EXPECTED)?;
    match scheme(&url).as_deref() {
        Some("http") => {}
        Some(scheme) => {
            return Err(format!(
                "only http:// proxies are supported (by CONNECT), not {scheme}://"
            ));
        }
        None => return Err(EXPECTED.to_owned()),
    }
    let authority = url.authority().ok_or(EXPECTED)?;
    check_port(authority)?;
    if authority.host().is_empty() || !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(EXPECTED.to_owned());
    }
    let authorization = authority
        .as_str()
        .rsplit_once('@')
        .map(|(user, _)| basic_auth(user));
    let port = authority.port_u16().unwrap_or(80);
    let authority = format!("{}:{port}", authority.host())
        .parse()
        .map_err(|_| EXPECTED)?;
    Ok(ProxyAddress {
        authority,
        authorization: authorization.transpose()?,
    })
}

/// `Proxy-Authorization` for the user part of a URL.
fn basic_auth(user: &str) -> Result<HeaderValue, String> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let plain = [&decode_user(name)?, &b":"[..], &decode_user(password)?].concat();
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(plain)))
        .map_err(|_| "the proxy's user cannot stand in a header")?;
    value.set_sensitive(true);
    Ok(value)
}

fn decode_user(text: &str) -> Result<Cow<'_, [u8]>, &'static str> {
    percent::decode(text.as_bytes(), PlusMode::Literal)
        .ok_or("a % in the proxy's user is not followed by two digits")
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
