//! [`RequestInfo`], and the errors of requests that cannot be resolved, in upstream's words.
//!
//! Error messages are bytes where they repeat the client's input: a query need not be UTF-8, and Go
//! copies it unchanged.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::go_duration;
use super::go_duration::DurationError;
use super::list_options::{ListOptions, SelectorNameSpan, field_selector};
use super::path::{ByteSpan, ParsedPath, PathVerb};
use super::query::Query;
use super::target::{MalformedTarget, RequestTarget};
use super::verb::Verb;
use crate::encoding::go_text;

/// The attributes of a request. Attributes that it does not have are empty.
#[derive(Clone, Debug)]
pub struct RequestInfo<'a> {
    pub(super) path: Cow<'a, [u8]>,
    query: Query<'a>,
    verb: Verb,
    parsed_path: ParsedPath,
    /// Whether the subresource opens a stream to a pod, a service or a node.
    pub(super) connects: bool,
    pub(super) selector_name: Option<SelectorName>,
    pub(super) field_selector: Cow<'a, [u8]>,
    label_selector: Cow<'a, [u8]>,
}

/// The name that a field selector requires, if the path has none.
#[derive(Clone, Debug)]
pub(super) enum SelectorName {
    /// A part of the field selector, as written.
    AsWritten(ByteSpan),
    /// The selector escapes the name with backslashes; this is the name without them.
    Unescaped(Box<[u8]>),
}

impl<'a> RequestInfo<'a> {
    /// Resolves a request from its method and the target of its request line (HTTP/2: `:path`).
    ///
    /// # Errors
    /// [`TargetError::Malformed`] if Go's server itself answers 400, [`TargetError::Unresolvable`]
    /// if kube-apiserver answers 500.
    pub fn parse(method: &str, target: &'a [u8]) -> Result<Self, TargetError<'a>> {
        let parsed = RequestTarget::parse(method, target)?;
        let located = ParsedPath::parse(&parsed.path);
        let verb = match located.verb {
            PathVerb::Absent if located.is_resource_request => Verb::for_resource(method),
            PathVerb::Absent | PathVerb::Dangling => Verb::for_non_resource(method),
            PathVerb::Proxy => Verb::Proxy,
            PathVerb::Watch => Verb::Watch,
        };
        let url = (located.verb == PathVerb::Dangling).then(|| parsed.url());
        let mut info = Self {
            query: Query::new(parsed.query()),
            verb,
            connects: located.connects(&parsed.path),
            path: parsed.path,
            parsed_path: located,
            selector_name: None,
            field_selector: Cow::default(),
            label_selector: Cow::default(),
        };
        if let Some(url) = url {
            return Err(TargetError::Unresolvable(Box::new(Unresolvable {
                info,
                target,
                url,
            })));
        }
        if located.is_resource_request
            && located.verb == PathVerb::Absent
            && located.name.is_empty()
        {
            info.resolve_collection();
        }
        Ok(info)
    }

    /// Resolves a GET or DELETE without a name: a list or a watch, or the deletion of a collection.
    /// All of them may have selectors.
    fn resolve_collection(&mut self) {
        if !matches!(self.verb, Verb::Delete | Verb::Get) {
            return;
        }
        let options = ListOptions::read(self.query);
        if self.verb == Verb::Delete {
            self.verb = Verb::DeleteCollection;
        } else {
            let (watch, name) = options.decode();
            self.verb = if watch { Verb::Watch } else { Verb::List };
            self.selector_name = name.and_then(|SelectorNameSpan(written)| {
                let selector = options.field_selector.as_deref().unwrap_or_default();
                match field_selector::unescape(written.slice(selector)) {
                    name if !is_path_segment(&name) => None,
                    Cow::Borrowed(_) => Some(SelectorName::AsWritten(written)),
                    Cow::Owned(name) => Some(SelectorName::Unescaped(name.into_boxed_slice())),
                }
            });
        }
        self.field_selector = options.field_selector.unwrap_or_default();
        self.label_selector = options.label_selector.unwrap_or_default();
    }

    /// Whether the request is for an API object or a collection of them, rather than for a path
    /// such as `/healthz`.
    #[must_use]
    pub const fn is_resource_request(&self) -> bool {
        self.parsed_path.is_resource_request
    }

    /// The path with its percent-escapes decoded and otherwise unchanged.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The verb.
    #[must_use]
    pub const fn verb(&self) -> &Verb {
        &self.verb
    }

    /// `api` or `apis`, if the path begins with it and has at least three segments.
    #[must_use]
    pub fn api_prefix(&self) -> &[u8] {
        self.parsed_path.api_prefix.slice(&self.path)
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub fn api_group(&self) -> &[u8] {
        self.parsed_path.api_group.slice(&self.path)
    }

    /// The version of the group.
    #[must_use]
    pub fn api_version(&self) -> &[u8] {
        self.parsed_path.api_version.slice(&self.path)
    }

    /// The namespace, also of a request for a Namespace itself.
    #[must_use]
    pub fn namespace(&self) -> &[u8] {
        self.parsed_path.namespace.slice(&self.path)
    }

    /// The resource, in the plural of its URL.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        self.parsed_path.resource.slice(&self.path)
    }

    /// The segment after the name.
    #[must_use]
    pub fn subresource(&self) -> &[u8] {
        self.parsed_path.subresource.slice(&self.path)
    }

    /// The object's name, from the path, or required by the field selector of a list or watch.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match &self.selector_name {
            None => self.parsed_path.name.slice(&self.path),
            Some(SelectorName::AsWritten(span)) => span.slice(&self.field_selector),
            Some(SelectorName::Unescaped(name)) => name,
        }
    }

    /// The segments of the path from the resource on.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.parsed_path.parts.map(|span| span.slice(&self.path));
        parts
            .into_iter()
            .flat_map(|parts| parts.split(|&b| b == b'/'))
    }

    /// The field selector of a list, watch or deletecollection, as written and not necessarily
    /// valid.
    #[must_use]
    pub fn field_selector(&self) -> &[u8] {
        &self.field_selector
    }

    /// The label selector of a list, watch or deletecollection, as written and not necessarily
    /// valid.
    #[must_use]
    pub fn label_selector(&self) -> &[u8] {
        &self.label_selector
    }

    /// The value that the query's field selector requires of `field`, if it requires one and the
    /// list options decode: `RequiresExactMatch`. Unlike [`field_selector`](Self::field_selector),
    /// it is read for any request.
    #[must_use]
    pub fn requires_exact_match(&self, field: &str) -> Option<Vec<u8>> {
        let options = ListOptions::read(self.query);
        let value = options.exact_match(field.as_bytes()).ok()??;
        let selector = options.field_selector.as_deref()?;
        Some(field_selector::unescape(value.slice(selector)).into_owned())
    }

    /// The query.
    #[must_use]
    pub const fn query(&self) -> Query<'a> {
        self.query
    }

    /// Whether the request is long-running: `BasicLongRunningRequestCheck` with the verbs and
    /// subresources of kube-apiserver. Limits on requests in flight and deadlines do not apply to
    /// such a request.
    #[must_use]
    pub fn long_running(&self) -> bool {
        matches!(self.verb, Verb::Proxy | Verb::Watch)
            || self.connects
            || (!self.is_resource_request() && self.path.starts_with(b"/debug/pprof/"))
    }

    /// Whether kube-apiserver passes the request on to an application (or a kubelet) with the `Host`
    /// that it received: the subresource `proxy` of a pod, a service or a node
    /// (`UpgradeAwareHandler` without `UseLocationHost`, `pkg/registry/core`). An aggregated API server
    /// gets its own host.
    #[must_use]
    pub fn proxies_to_app(&self) -> bool {
        self.subresource() == b"proxy"
            && self.api_prefix() == b"api"
            && matches!(self.resource(), b"nodes" | b"pods" | b"services")
    }

    /// Whether the request counts as read-only.
    #[must_use]
    pub const fn read_only(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::List | Verb::Watch)
    }

    /// Whether the request counts as mutating: everything except get, list and watch, so the HEAD
    /// of a path such as `/healthz` is mutating too.
    #[must_use]
    pub const fn mutating(&self) -> bool {
        !self.read_only()
    }

    /// The timeout that the client requests (`?timeout=`), if it is less than `maximum`; `None`
    /// means that `maximum` applies. A long-running request has no deadline, and its parameter is
    /// not read.
    ///
    /// Follows `WithRequestDeadline` (Kubernetes 1.36, `endpoints/filters/request_deadline.go`).
    ///
    /// # Errors
    /// The parameter is not a duration: the response is 400.
    pub fn timeout(&self, maximum: Duration) -> Result<Option<Duration>, TimeoutError> {
        if self.long_running() {
            return Ok(None);
        }
        let Some(text) = self.query.first("timeout").filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let nanoseconds = go_duration::parse(&text).map_err(TimeoutError)?;
        let timeout = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
        Ok(Some(timeout).filter(|&timeout| !timeout.is_zero() && timeout < maximum))
    }
}

/// `path.IsValidPathSegmentName`.
fn is_path_segment(name: &[u8]) -> bool {
    !matches!(name, b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | b'%'))
}

/// A request target that cannot be served.
#[derive(Clone, Debug)]
pub enum TargetError<'a> {
    /// Go's server answers 400 `Bad Request`; no handler sees the request.
    Malformed(MalformedTarget),
    /// The RequestInfo filter answers 500.
    Unresolvable(Box<Unresolvable<'a>>),
}

impl fmt::Display for TargetError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Unresolvable(found) => f.write_str(&String::from_utf8_lossy(&found.message())),
        }
    }
}

impl Error for TargetError<'_> {}

impl From<MalformedTarget> for TargetError<'_> {
    fn from(malformed: MalformedTarget) -> Self {
        Self::Malformed(malformed)
    }
}

/// A path that ends where its verb needs an operand, such as `/api/v1/watch`.
#[derive(Clone, Debug)]
pub struct Unresolvable<'a> {
    info: RequestInfo<'a>,
    target: &'a [u8],
    /// The target as a Go `url.URL` prints it.
    url: Vec<u8>,
}

impl<'a> Unresolvable<'a> {
    /// The attributes that were resolved before the error. The verb is still the lower-cased
    /// method.
    #[must_use]
    pub const fn info(&self) -> &RequestInfo<'a> {
        &self.info
    }

    /// The error of `NewRequestInfo`.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        [
            b"unable to determine kind and namespace from url, ",
            self.url.as_slice(),
        ]
        .concat()
    }

    /// The body of the 500 with its newline: what `responsewriters.InternalError` (Kubernetes 1.36)
    /// writes, as `text/plain; charset=utf-8` and with `X-Content-Type-Options: nosniff`.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let quoted = go_text::quote(self.target);
        let prefix = format!("Internal Server Error: {quoted}: failed to create RequestInfo: ");
        let mut body = Vec::with_capacity(prefix.len() + self.url.len() + 64);
        for &byte in prefix.as_bytes().iter().chain(&self.message()) {
            // Escaped so that no browser finds HTML in it.
            match byte {
                b'&' => body.extend_from_slice(b"&amp;"),
                b'<' => body.extend_from_slice(b"&lt;"),
                b'>' => body.extend_from_slice(b"&gt;"),
                other => body.push(other),
            }
        }
        body.push(b'\n');
        body
    }
}

/// The value of `?timeout=` is not a duration. kube-apiserver answers 400 with a Status that has
/// this as its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid timeout specified in the request URL - {0}")]
pub struct TimeoutError(#[source] DurationError);

/// The two kinds of requests that kube-apiserver counts separately. The kind depends only on the
/// verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Everything except get, list and watch.
    Mutating,
    /// get, list, watch.
    ReadOnly,
}

impl RequestKind {
    /// Both, in the order of their labels.
    pub const ALL: [Self; 2] = [Self::Mutating, Self::ReadOnly];

    /// The kind of `info`'s verb.
    #[must_use]
    pub const fn from_request_info(info: &RequestInfo<'_>) -> Self {
        if info.mutating() {
            Self::Mutating
        } else {
            Self::ReadOnly
        }
    }

    /// The value of the metric label `request_kind`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Mutating => "mutating",
            Self::ReadOnly => "readOnly",
        }
    }
}
