//! The heads of requests for the upstream, and the identity that they carry. Pure.
//!
//! `RequestHead::new` is private: only the functions of this module decide which headers go with
//! which [`AuthMode`].

use std::fmt;
use std::marker::PhantomData;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Version, header, request};

use crate::identity::impersonation::target::is_impersonation_header;
use crate::identity::request_header::IdentityHeaders;
use crate::upstream::headers::auth_mode::{
    AuthMode, External, FrontProxy, Impersonating, Internal, PassThrough, Unverified,
};
use crate::upstream::headers::forwarded_for::{
    ClientAddress, append_forwarded_for, host_value, set_forwarded_host,
};
use crate::upstream::loop_detection::cdn_loop;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};
use weir_tokens::bearer::WEBSOCKET_BEARER_PREFIX;

/// The head of a request that may be sent on connections of the [`AuthMode`] `M`, and on no other.
///
/// The parts are boxed: a head is moved from step to step, and futures keep several of them.
pub(crate) struct RequestHead<M> {
    parts: Box<request::Parts>,
    /// The host of a request that the upstream passes on to an application; otherwise it is the
    /// upstream's.
    app_host: Option<Authority>,
    mode: PhantomData<M>,
}

impl<M> fmt::Debug for RequestHead<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers contain credentials: they are not shown.
        write!(
            f,
            "RequestHead({} {})",
            self.parts.method,
            self.parts.uri.path()
        )
    }
}

impl<M: AuthMode> RequestHead<M> {
    fn new(parts: Box<request::Parts>) -> Self {
        Self {
            parts,
            app_host: None,
            mode: PhantomData,
        }
    }

    fn with_app_host(mut self, host: Option<Authority>) -> Self {
        self.app_host = host;
        self
    }

    /// The head of a client's request.
    fn for_client(parts: Box<request::Parts>, client: ClientAddress<'_>) -> Self {
        Self::new(parts).with_app_host(client.app_host.cloned())
    }

    /// The host that is not the upstream's, for [`from_unsent`](Self::from_unsent).
    pub(crate) fn app_host(&self) -> Option<Authority> {
        self.app_host.clone()
    }

    /// The method.
    pub(crate) const fn method(&self) -> &http::Method {
        &self.parts.method
    }

    /// The path.
    pub(crate) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// A copy, for another attempt.
    pub(crate) fn duplicate(&self) -> Self {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.method = self.parts.method.clone();
        parts.uri = self.parts.uri.clone();
        parts.version = self.parts.version;
        parts.headers = self.parts.headers.clone();
        Self::new(Box::new(parts)).with_app_host(self.app_host())
    }

    /// Restores a head with this [`app_host`](Self::app_host) that a connection of the same mode
    /// returned unsent.
    pub(crate) fn from_unsent(parts: request::Parts, app_host: Option<Authority>) -> Self {
        Self::new(Box::new(parts)).with_app_host(app_host)
    }

    /// Appends `id` to `CDN-Loop`.
    pub(crate) fn append_cdn_loop(&mut self, id: &InstanceId) {
        cdn_loop::append(&mut self.parts.headers, id);
    }

    /// Requests an upgrade to `protocol`, after the client's `Upgrade` was removed as hop-by-hop.
    pub(crate) fn with_upgrade(mut self, protocol: HeaderValue) -> Self {
        self.parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        self.parts.headers.insert(header::UPGRADE, protocol);
        self
    }

    /// The request in HTTP/1.1 form: the path as the target, the host as `Host`.
    pub(crate) fn into_http1<B>(mut self, body: B, upstream: &HeaderValue) -> http::Request<B> {
        if self.parts.uri.authority().is_some()
            && let Some(path) = self.parts.uri.path_and_query()
        {
            // An empty path (`https://host#x`) would be written as an empty target.
            self.parts.uri = match path.as_str() {
                "/" => http::Uri::from_static("/"),
                _ => http::Uri::from(path.clone()),
            };
        }
        let host = self.app_host.as_ref().and_then(host_value);
        let host = host.unwrap_or_else(|| upstream.clone());
        self.parts.headers.insert(header::HOST, host);
        join_cookies(&mut self.parts.headers);
        self.parts.version = Version::HTTP_11;
        http::Request::from_parts(*self.parts, body)
    }

    /// The request in HTTP/2 form: the host in the target, no `Host`.
    pub(crate) fn into_http2<B>(mut self, body: B, upstream: &Authority) -> http::Request<B> {
        self.parts.headers.remove(header::HOST);
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTPS);
        uri.authority = Some(self.app_host.unwrap_or_else(|| upstream.clone()));
        uri.path_and_query = self.parts.uri.path_and_query().cloned();
        // All three parts are set, which an absolute target requires.
        self.parts.uri = http::Uri::from_parts(uri).unwrap_or_default();
        self.parts.version = Version::HTTP_2;
        http::Request::from_parts(*self.parts, body)
    }
}

/// A request whose own credential is forwarded unchanged.
#[must_use]
pub(crate) fn pass_through_head(
    parts: Box<request::Parts>,
    client: ClientAddress<'_>,
    names: &IdentityHeaders,
) -> RequestHead<PassThrough> {
    RequestHead::for_client(prepare_client_parts(parts, client, names), client)
}

/// A request without a credential, or with one that was not verified.
#[must_use]
pub(crate) fn unverified_head(
    parts: Box<request::Parts>,
    client: ClientAddress<'_>,
    names: &IdentityHeaders,
) -> RequestHead<Unverified> {
    RequestHead::for_client(prepare_client_parts(parts, client, names), client)
}

/// A request of weir's own.
#[must_use]
pub(crate) fn internal_head(
    method: http::Method,
    path: PathAndQuery,
    authorization: Option<HeaderValue>,
) -> RequestHead<Internal> {
    let mut parts = internal_parts(method, path);
    if let Some(value) = authorization {
        parts.headers.insert(header::AUTHORIZATION, value);
    }
    RequestHead::new(Box::new(parts))
}

impl RequestHead<Internal> {
    /// Sets `Accept`.
    #[must_use]
    pub(crate) fn with_accept(mut self, form: HeaderValue) -> Self {
        self.parts.headers.insert(header::ACCEPT, form);
        self
    }

    /// Sets `CDN-Loop` to this first entry.
    #[must_use]
    pub(crate) fn with_cdn_loop(mut self, entry: HeaderValue) -> Self {
        self.parts.headers.insert(cdn_loop::CDN_LOOP, entry);
        self
    }

    /// Sends and accepts JSON.
    #[must_use]
    pub(crate) fn with_json(mut self) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.parts
            .headers
            .insert(header::CONTENT_TYPE, json.clone());
        self.parts.headers.insert(header::ACCEPT, json);
        self
    }
}

/// A request for public data, without a credential.
#[must_use]
pub(crate) fn external_head(path: PathAndQuery) -> RequestHead<External> {
    RequestHead::new(Box::new(internal_parts(http::Method::GET, path)))
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
    mut parts: Box<request::Parts>,
    client: ClientAddress<'_>,
    names: &IdentityHeaders,
) -> Box<request::Parts> {
    names.remove_from(&mut parts.headers);
    parts.headers.remove(header::EXPECT);
    append_forwarded_for(&mut parts.headers, client);
    set_forwarded_host(&mut parts.headers, client);
    parts
}

/// Encodes a part of a user so that the upstream reads it unchanged. Go's server trims space around
/// HTTP/1.1 values, so that `system:masters ` would become another group.
fn encode_user_part(what: &'static str, text: &str) -> Result<HeaderValue, UnencodableUser> {
    if text.trim_ascii() != text {
        return Err(UnencodableUser(what));
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnencodableUser(what))
}

/// The groups of a user without those of blanks only, which no header carries: without them the user
/// has fewer rights, and none of another group. The API server also ignores an empty group of a front
/// proxy.
fn transmissible_groups(user: &UserInfo) -> impl Iterator<Item = &String> {
    let groups = user.groups.iter();
    groups.filter(|group| group.is_empty() || !group.trim_ascii().is_empty())
}

/// A request in the name of `user`. The client's own credential is removed.
///
/// # Errors
/// [`UnencodableUser`] if a part of the user cannot be written as a header.
pub(crate) fn front_proxy_head(
    parts: Box<request::Parts>,
    client: ClientAddress<'_>,
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
        for group in transmissible_groups(user) {
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
    Ok(RequestHead::for_client(parts, client))
}

/// A request in the name of `user` by weir's own credentials, of which `authorization` is the
/// header part. The client's own credential is removed, and so are its impersonation headers in any
/// spelling: whether `user` is their target was decided before
/// ([`impersonation_target`](crate::identity::impersonation::target)).
///
/// At least one group is always named: the upstream gives groups to nodes and service accounts that
/// are impersonated without any.
///
/// # Errors
/// [`UnencodableUser`] if a part of the user cannot be written as a header.
pub(crate) fn impersonation_head(
    parts: Box<request::Parts>,
    client: ClientAddress<'_>,
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
    let app_host = client.app_host.filter(|_| authorization.is_none());
    if let Some(value) = authorization {
        headers.insert(header::AUTHORIZATION, value);
    }
    headers.insert("impersonate-user", encode_user_part("name", &user.name)?);
    if !user.uid.is_empty() {
        headers.insert("impersonate-uid", encode_user_part("uid", &user.uid)?);
    }
    let added = upstream_adds_authenticated(user);
    for group in
        transmissible_groups(user).filter(|group| !(added && *group == GROUP_AUTHENTICATED))
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
    Ok(RequestHead::new(parts).with_app_host(app_host.cloned()))
}

/// Whether the upstream adds `system:authenticated` beside other groups by itself; naming it would
/// require a right of its own.
fn upstream_adds_authenticated(user: &UserInfo) -> bool {
    user.name != ANONYMOUS
        && !user.in_group(GROUP_UNAUTHENTICATED)
        && transmissible_groups(user).any(|group| group != GROUP_AUTHENTICATED)
}

/// A user that cannot be written as headers; names the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnencodableUser(pub(crate) &'static str);

impl fmt::Display for UnencodableUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.0;
        write!(
            f,
            "the {part} of the user cannot stand in a header as it is"
        )
    }
}

/// Percent-encodes what a header name may not contain, and `%` itself
/// (`transport.headerKeyEscape`). Capital letters, too: the upstream puts a key in lower case
/// before it decodes it.
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

/// Joins cookies: HTTP/2 may send them in pieces, HTTP/1.1 allows one header only (RFC 9113,
/// 8.2.3).
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
#[path = "request_head_tests.rs"]
mod tests;
