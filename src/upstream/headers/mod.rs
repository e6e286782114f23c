//! What a request and a response carry from one side to the other. Pure.
//!
//! The only place where a request for the upstream is made: an [`RequestHead`] of a [`Way`] can be built nowhere else, so
//! that a request which asserts a user cannot get onto a connection without weir's certificate, nor one that carries
//! its own credential onto a connection with it. The order matters and is fixed: what is hop-by-hop goes first, then whatever could pass for an identity, and an asserted identity is written last.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/headerrequest` and `transport.NewAuthProxyRoundTripper` (1.36).

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Version;
use http::header;
use http::request;
use http::uri::Authority;
use http::uri::PathAndQuery;
use http::uri::Scheme;

use crate::api::UserInfo;
use crate::api::user::ANONYMOUS;
use crate::api::user::GROUP_AUTHENTICATED;
use crate::api::user::GROUP_UNAUTHENTICATED;
use crate::identity::WEBSOCKET_BEARER_PREFIX;
use crate::identity::impersonation::target::is_impersonation_header;
pub use crate::identity::request_header::IdentityHeaders;
use crate::upstream::loop_detection::cdn_loop;
use crate::upstream::loop_detection::cdn_loop::InstanceId;

/// Headers that concern one connection only (RFC 9110, 7.6.1, and the older ones that are still met). What else `Connection` names
/// goes on, as to kube-apiserver, whose server does not look: a client of a proxy before weir could otherwise name away by whom that
/// proxy wants its request to be taken for sent (`Impersonate-User`).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The id of a request, in both directions.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Which trace a request is part of (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A way to the upstream: what a connection proves there, and so which requests may use it.
pub trait AuthMode: Send + Sync + 'static {
    /// The value of the metric label `way`.
    const NAME: &'static str;
    /// Whether HTTP/2 may be spoken on it.
    const HTTP2: bool;
}

/// Connections that carry the front-proxy certificate: the upstream believes the user that they name.
#[derive(Debug)]
pub enum FrontProxy {}
/// Connections that carry no certificate, for requests whose own credential is known to be good.
#[derive(Debug)]
pub enum PassThrough {}
/// Connections that carry no certificate, for requests without a credential or with one that is not known to be good.
/// kube-apiserver closes an HTTP/2 connection after an anonymous request or a 401 (`UnauthenticatedHTTP2DOSMitigation`),
/// so these keep to HTTP/1.1, where it does not, and never share a connection with anybody else's requests.
#[derive(Debug)]
pub enum Unverified {}
/// Connections that carry weir's own credentials, for requests in the name of a certificate's user where there is no front proxy's
/// CA: the upstream believes the user whom they impersonate, as far as weir may. They keep to HTTP/1.1, so that a connection with
/// a certificate that was replaced does not live on.
#[derive(Debug)]
pub enum Impersonating {}
/// Connections for weir's own calls, with weir's own credentials. No client's request can become one.
#[derive(Debug)]
pub enum Internal {}
/// Connections to those who publish the keys that tokens are signed with: nothing of anybody's goes there.
#[derive(Debug)]
pub enum External {}

impl AuthMode for FrontProxy {
    const NAME: &'static str = "asserting";
    const HTTP2: bool = true;
}
impl AuthMode for PassThrough {
    const NAME: &'static str = "pass-through";
    const HTTP2: bool = true;
}
impl AuthMode for Unverified {
    const NAME: &'static str = "stranger";
    const HTTP2: bool = false;
}
impl AuthMode for Impersonating {
    const NAME: &'static str = "impersonating";
    const HTTP2: bool = false;
}
impl AuthMode for Internal {
    const NAME: &'static str = "own";
    const HTTP2: bool = false;
}
impl AuthMode for External {
    const NAME: &'static str = "elsewhere";
    const HTTP2: bool = false;
}

/// The head of a request that may go to the upstream by way `W`, and by no other.
pub struct RequestHead<W> {
    parts: request::Parts,
    mode: PhantomData<W>,
}

impl<W> fmt::Debug for RequestHead<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers hold credentials: they are not shown.
        write!(
            f,
            "Outbound({} {})",
            self.parts.method,
            self.parts.uri.path()
        )
    }
}

impl<W: AuthMode> RequestHead<W> {
    fn new(parts: request::Parts) -> Self {
        Self {
            parts,
            mode: PhantomData,
        }
    }

    /// A second one of the same, for another try.
    pub(super) fn duplicate(&self) -> Self {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.method = self.parts.method.clone();
        parts.uri = self.parts.uri.clone();
        parts.version = self.parts.version;
        parts.headers = self.parts.headers.clone();
        Self::new(parts)
    }

    /// One that came back from a connection of the same way, unsent.
    pub(super) fn from_unsent(parts: request::Parts) -> Self {
        Self::new(parts)
    }

    /// Lists the weir `id` in `CDN-Loop`.
    pub(super) fn append_cdn_loop(&mut self, id: &InstanceId) {
        cdn_loop::append(&mut self.parts.headers, id);
    }

    /// Asks the upstream to change to `protocol`, once the request's own wish was taken off as hop-by-hop.
    pub(super) fn with_upgrade(mut self, protocol: HeaderValue) -> Self {
        self.parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        self.parts.headers.insert(header::UPGRADE, protocol);
        self
    }

    /// The request as HTTP/1.1 has it: the target alone, the authority as `Host`.
    pub(super) fn into_http1<B>(mut self, body: B, upstream: &HeaderValue) -> http::Request<B> {
        if self.parts.uri.authority().is_some()
            && let Some(path) = self.parts.uri.path_and_query()
        {
            self.parts.uri = http::Uri::from(path.clone());
        }
        self.parts.headers.insert(header::HOST, upstream.clone());
        join_cookies(&mut self.parts.headers);
        self.parts.version = Version::HTTP_11;
        http::Request::from_parts(self.parts, body)
    }

    /// The request as HTTP/2 has it: the authority in the target, no `Host`.
    pub(super) fn into_http2<B>(mut self, body: B, upstream: &Authority) -> http::Request<B> {
        self.parts.headers.remove(header::HOST);
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTPS);
        uri.authority = Some(upstream.clone());
        uri.path_and_query = self.parts.uri.path_and_query().cloned();
        // All three parts are there, which is all that is asked of an absolute target.
        self.parts.uri = http::Uri::from_parts(uri).unwrap_or_default();
        self.parts.version = Version::HTTP_2;
        http::Request::from_parts(self.parts, body)
    }
}

/// Marks what is another value in each message or each second as never to be indexed (HPACK, RFC 7541, 7.1.3). The library looks
/// for a value among all of its name that its connection has had lately, up to sixty dates or ids, and each new one pushes out
/// what could be named by a byte: a fifteenth of a refusal's cost, on a connection that lasts.
pub fn keep_unindexed(headers: &mut HeaderMap) {
    for name in [header::DATE, AUDIT_ID, TRACEPARENT] {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
}

/// Makes the headers of a message ready for the next hop: removes the hop-by-hop headers that are left and marks the
/// values that HPACK must not index.
pub fn prepare_forwarding(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    keep_unindexed(headers);
}

/// Takes off what concerns the client's connection only, and tells which protocol it wants to change to, if any.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let upgrade = requests_upgrade(headers)
        .then(|| headers.get(header::UPGRADE).cloned())
        .flatten();
    let te_trailers = headers.get(header::TE).is_some_and(|te| {
        te.to_str().is_ok_and(|te| {
            te.split(',')
                .any(|t| t.trim().eq_ignore_ascii_case("trailers"))
        })
    });
    headers.remove(header::TE);
    if te_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(PROXY_CONNECTION);
    upgrade
}

/// Whether `Connection` names `Upgrade`, without which that header is no wish.
fn requests_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// Whether headers may go to an API server on a connection that others use as well, beside a target of this length. Go's HTTP/2 gives up
/// a whole connection for a name that is none, for more than 1 MiB of them, and for a value whose compressed form is longer.
///
/// # Errors
/// What is wrong with them.
pub fn validate(headers: &HeaderMap, target: usize) -> Result<(), InvalidHeaders> {
    let mut length = target;
    for (name, value) in headers {
        // The one character that the library takes for a part of a name, and RFC 9110 does not.
        if name.as_str().contains('"') {
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

/// Why headers cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidHeaders {
    /// They are more than [`MOST`] bytes.
    TooLong,
    /// One has a name that is none.
    InvalidName,
}

/// Most bytes of a request's headers and target, compressed or not: what the API server takes (`http.DefaultMaxHeaderBytes`), and room
/// for what weir adds.
pub const MAX_HEADER_BYTES: usize = (1 << 20) - (64 << 10);

/// What an entry counts for beside its name and its value (RFC 9113, 6.5.2).
const ENTRY_OVERHEAD: usize = 32;

/// Bytes of the longest code of a byte (30 bits; RFC 7541, appendix B).
const MAX_HUFFMAN_BYTES: usize = 4;

/// How long a value is at most once the library has compressed it: most codes of what headers are made of have at most eight bits.
fn max_compressed_len(value: &HeaderValue) -> usize {
    let short = |byte: u8| byte.is_ascii_alphanumeric() || b" %-./=_:&*,;".contains(&byte);
    let length = |byte: &u8| if short(*byte) { 1 } else { MAX_HUFFMAN_BYTES };
    value.as_bytes().iter().map(length).sum()
}

/// Whose requests come from where, as the upstream's audit log will tell it.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    /// The address that the connection came from.
    pub peer: IpAddr,
    /// Whether it is one of `--trusted-proxies`, whose word about earlier hops is kept.
    pub trusted: bool,
}

fn append_forwarded_for(headers: &mut HeaderMap, client: ClientAddress) {
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

/// A request whose own credential goes on untouched.
#[must_use]
pub fn pass_through_head(
    parts: request::Parts,
    client: ClientAddress,
    names: &IdentityHeaders,
) -> RequestHead<PassThrough> {
    RequestHead::new(prepare_client_parts(parts, client, names))
}

/// A request without a credential, or with one that nobody vouches for.
#[must_use]
pub fn unverified_head(
    parts: request::Parts,
    client: ClientAddress,
    names: &IdentityHeaders,
) -> RequestHead<Unverified> {
    RequestHead::new(prepare_client_parts(parts, client, names))
}

/// A request of weir's own.
#[must_use]
pub fn internal_head(
    method: http::Method,
    path: PathAndQuery,
    authorization: Option<HeaderValue>,
) -> RequestHead<Internal> {
    let mut parts = internal_parts(method, path);
    if let Some(value) = authorization {
        parts.headers.insert(header::AUTHORIZATION, value);
    }
    RequestHead::new(parts)
}

impl RequestHead<Internal> {
    pub(super) fn method(&self) -> &http::Method {
        &self.parts.method
    }

    /// In this form alone.
    #[must_use]
    pub fn with_accept(mut self, form: HeaderValue) -> Self {
        self.parts.headers.insert(header::ACCEPT, form);
        self
    }

    /// With this first entry in `CDN-Loop`.
    pub(super) fn with_cdn_loop(mut self, entry: HeaderValue) -> Self {
        self.parts.headers.insert(cdn_loop::CDN_LOOP, entry);
        self
    }

    /// With a body of JSON.
    #[must_use]
    pub fn with_json(mut self) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.parts
            .headers
            .insert(header::CONTENT_TYPE, json.clone());
        self.parts.headers.insert(header::ACCEPT, json);
        self
    }
}

/// A request for what anybody may read.
#[must_use]
pub fn external_head(path: PathAndQuery) -> RequestHead<External> {
    RequestHead::new(internal_parts(http::Method::GET, path))
}

fn internal_parts(method: http::Method, path: PathAndQuery) -> request::Parts {
    let mut parts = http::Request::new(()).into_parts().0;
    parts.method = method;
    parts.uri = http::Uri::from(path);
    parts.headers.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))),
    );
    parts
}

fn prepare_client_parts(
    mut parts: request::Parts,
    client: ClientAddress,
    names: &IdentityHeaders,
) -> request::Parts {
    names.remove_from(&mut parts.headers);
    parts.headers.remove(header::EXPECT);
    append_forwarded_for(&mut parts.headers, client);
    parts
}

/// What of a user is the same when the upstream reads it: Go's server takes space off around the values of HTTP/1.1, so that
/// `system:masters ` would become another group on the way.
fn encode_user_part(what: &'static str, text: &str) -> Result<HeaderValue, UnencodableUser> {
    if text.trim_ascii() != text {
        return Err(UnencodableUser(what));
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnencodableUser(what))
}

/// A request in the name of `user`, whose own credential ends here.
///
/// # Errors
/// [`Unspeakable`] if a part of the user cannot be written as a header.
pub fn front_proxy_head(
    parts: request::Parts,
    client: ClientAddress,
    names: &IdentityHeaders,
    user: &UserInfo,
) -> Result<RequestHead<FrontProxy>, UnencodableUser> {
    let mut parts = prepare_client_parts(parts, client, names);
    let headers = &mut parts.headers;
    headers.remove(header::AUTHORIZATION);
    remove_websocket_bearer(headers);
    if let Some(name) = names.username.first() {
        headers.append(name, encode_user_part("name", &user.name)?);
    }
    if let Some(name) = names.uid.first().filter(|_| !user.uid.is_empty()) {
        headers.append(name, encode_user_part("uid", &user.uid)?);
    }
    if let Some(name) = names.group.first() {
        for group in &user.groups {
            headers.append(name, encode_user_part("group", group)?);
        }
    }
    if let Some(prefix) = names.extra_prefix.first() {
        for (key, values) in &user.extra {
            let name = format!("{prefix}{}", escape_extra_key(key));
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| UnencodableUser("extra key"))?;
            for text in values {
                headers.append(&name, encode_user_part("extra value", text)?);
            }
        }
    }
    Ok(RequestHead::new(parts))
}

/// A request in the name of `user` by weir's own credentials, of which `authorization` is what stands in a header. The client's own
/// credential ends here, and so does its own wish to be somebody else, in any spelling: whether `user` is that somebody was decided
/// before ([`wish`](crate::identity::impersonation::target::wish)).
///
/// At least one group is named, always: the upstream gives groups to nodes and service accounts that are impersonated without any.
///
/// # Errors
/// [`Unspeakable`] if a part of the user cannot be written as a header.
pub fn impersonation_head(
    parts: request::Parts,
    client: ClientAddress,
    names: &IdentityHeaders,
    user: &UserInfo,
    authorization: Option<HeaderValue>,
) -> Result<RequestHead<Impersonating>, UnencodableUser> {
    let mut parts = prepare_client_parts(parts, client, names);
    let headers = &mut parts.headers;
    headers.remove(header::AUTHORIZATION);
    remove_websocket_bearer(headers);
    let claimed: Vec<HeaderName> = headers
        .keys()
        .filter(|n| is_impersonation_header(n))
        .cloned()
        .collect();
    for name in claimed {
        headers.remove(name);
    }
    if let Some(value) = authorization {
        headers.insert(header::AUTHORIZATION, value);
    }
    headers.insert("impersonate-user", encode_user_part("name", &user.name)?);
    if !user.uid.is_empty() {
        headers.insert("impersonate-uid", encode_user_part("uid", &user.uid)?);
    }
    let added = upstream_adds_authenticated(user);
    for group in user
        .groups
        .iter()
        .filter(|group| !(added && *group == GROUP_AUTHENTICATED))
    {
        headers.append("impersonate-group", encode_user_part("group", group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("impersonate-extra-{}", escape_extra_key(key));
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| UnencodableUser("extra key"))?;
        for text in values {
            headers.append(&name, encode_user_part("extra value", text)?);
        }
    }
    Ok(RequestHead::new(parts))
}

/// Whether the upstream adds `system:authenticated` by itself, beside other groups; to name it would take a right of its own.
fn upstream_adds_authenticated(user: &UserInfo) -> bool {
    user.name != ANONYMOUS
        && !user.in_group(GROUP_UNAUTHENTICATED)
        && user.groups.iter().any(|group| group != GROUP_AUTHENTICATED)
}

/// A user that cannot be named in headers: which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnencodableUser(pub &'static str);

impl fmt::Display for UnencodableUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.0;
        write!(
            f,
            "the {part} of the user cannot stand in a header as it is"
        )
    }
}

/// Percent-encodes what may not stand in a header's name, and `%` itself (`transport.headerKeyEscape`); capitals, too, which the
/// upstream takes for small ones otherwise: it puts a key in lower case before it decodes it.
fn escape_extra_key(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02x}"));
        }
    }
    escaped
}

fn remove_websocket_bearer(headers: &mut HeaderMap) {
    let name = header::SEC_WEBSOCKET_PROTOCOL;
    if !headers.contains_key(&name) {
        return;
    }
    let kept: Vec<String> = headers
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.starts_with(WEBSOCKET_BEARER_PREFIX))
        .map(str::to_owned)
        .collect();
    headers.remove(&name);
    if let Ok(value) = HeaderValue::from_str(&kept.join(", ")) {
        headers.insert(name, value);
    }
}

/// HTTP/2 may send a cookie in pieces; HTTP/1.1 knows one header only (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, value);
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
