//! What is asked: method and request target, in Kubernetes' terms.
//!
//! [`RequestInfo`] follows `RequestInfoFactory.NewRequestInfo` (Kubernetes 1.36, `endpoints/request/requestinfo.go`) as
//! kube-apiserver configures it, on top of what Go's HTTP server makes of a request target: weir must see each request as
//! the server behind it will. Limits, flow schemas, seats and metrics all go by it.
//!
//! Promises: pure, no panic on any input, and no allocation unless the target holds percent-escapes that matter or the
//! method is one that nobody uses. Paths are bytes and need not be UTF-8. Nothing is normalized, and nothing here is
//! meant to be sent on: the upstream gets the target as it came.
//!
//! Not here: the body (a POST has no name), whether the resource exists, and what OpenShift adds to the long-running
//! requests.

mod error;
mod escape;
pub mod go_duration;
mod list_options;
mod metric_labels;
mod path;
mod query;
mod request_kind;
mod target;
#[cfg(test)]
mod tests;
mod verb;

use std::borrow::Cow;
use std::time::Duration;

use list_options::ListOptions;
use list_options::SelectorNameSpan;
use list_options::field_selector;
use path::ByteSpan;
use path::ParsedPath;
use path::PathVerb;
use target::RequestTarget;

pub use error::TargetError;
pub use error::TimeoutError;
pub use error::Unresolvable;
pub use metric_labels::MetricLabels;
pub use query::Parameter;
pub use query::Query;
pub use request_kind::RequestKind;
pub use target::MalformedTarget;
pub use verb::Verb;

/// A request, resolved. What it does not have is empty.
#[derive(Clone, Debug)]
pub struct RequestInfo<'a> {
    path: Cow<'a, [u8]>,
    query: Query<'a>,
    verb: Verb,
    parsed_path: ParsedPath,
    selector_name: Option<SelectorName>,
    field_selector: Cow<'a, [u8]>,
    label_selector: Cow<'a, [u8]>,
}

/// The name that a field selector demands, where the path has none.
#[derive(Clone, Debug)]
enum SelectorName {
    /// Somewhere in the field selector.
    AsWritten(ByteSpan),
    /// It was written with backslashes.
    Unescaped(Box<[u8]>),
}

impl<'a> RequestInfo<'a> {
    /// Resolves a request from its method and the target of its request line (HTTP/2: `:path`).
    ///
    /// # Errors
    /// [`TargetError::Malformed`] where Go's server answers 400 by itself, [`TargetError::Unresolvable`] where
    /// kube-apiserver answers 500.
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
            path: parsed.path,
            verb,
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

    /// A get without a name is a list or a watch, a delete that of a collection. All of them may have selectors.
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

    /// Whether an API object or a collection of them is addressed, rather than a path such as `/healthz`.
    #[must_use]
    pub const fn is_resource_request(&self) -> bool {
        self.parsed_path.is_resource_request
    }

    /// The path with its percent-escapes resolved and nothing else done to it.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// What is done.
    #[must_use]
    pub const fn verb(&self) -> &Verb {
        &self.verb
    }

    /// `api` or `apis`, at the beginning of a path of at least three segments.
    #[must_use]
    pub fn api_prefix(&self) -> &[u8] {
        self.parsed_path.api_prefix.slice(&self.path)
    }

    /// Empty for the core group.
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

    /// Whatever follows the name.
    #[must_use]
    pub fn subresource(&self) -> &[u8] {
        self.parsed_path.subresource.slice(&self.path)
    }

    /// The object's name, from the path or demanded by the field selector of a list or watch.
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

    /// The field selector of a list, watch or deletecollection, as written and not necessarily understood.
    #[must_use]
    pub fn field_selector(&self) -> &[u8] {
        &self.field_selector
    }

    /// The label selector of a list, watch or deletecollection, as written and not necessarily understood.
    #[must_use]
    pub fn label_selector(&self) -> &[u8] {
        &self.label_selector
    }

    /// The value that `field` must have in all that the query's field selector selects, if it demands one and the list
    /// options decode: `RequiresExactMatch`. Unlike [`field_selector`](Self::field_selector), it is read for any request.
    #[must_use]
    pub fn requires_exact_match(&self, field: &str) -> Option<Vec<u8>> {
        let options = ListOptions::read(self.query);
        let value = options.exact_match(field.as_bytes()).ok()??;
        let selector = options.field_selector.as_deref()?;
        Some(field_selector::unescape(value.slice(selector)).into_owned())
    }

    /// The parameters.
    #[must_use]
    pub const fn query(&self) -> Query<'a> {
        self.query
    }

    /// Whether the request may take as long as it likes: `BasicLongRunningRequestCheck` with the verbs and subresources
    /// of kube-apiserver. No limit on requests in flight and no deadline applies to it.
    #[must_use]
    pub fn long_running(&self) -> bool {
        matches!(self.verb, Verb::Proxy | Verb::Watch)
            || self.connects()
            || (!self.is_resource_request() && self.path.starts_with(b"/debug/pprof/"))
    }

    /// Whether the subresource is one of those that open a stream to a pod, a service or a node.
    fn connects(&self) -> bool {
        matches!(
            self.subresource(),
            b"attach" | b"exec" | b"log" | b"portforward" | b"proxy"
        )
    }

    /// Whether the request counts as one that only reads.
    #[must_use]
    pub const fn read_only(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::List | Verb::Watch)
    }

    /// Whether the request counts as one that changes something: all but get, list and watch, so that the HEAD of a path
    /// such as `/healthz` does as well.
    #[must_use]
    pub const fn mutating(&self) -> bool {
        !self.read_only()
    }

    /// The time that the client allows (`?timeout=`), if it is less than `maximum`; where there is none, `maximum`
    /// applies. A long-running request has no deadline, and what it says of one is not read.
    ///
    /// Follows `WithRequestDeadline` (Kubernetes 1.36, `endpoints/filters/request_deadline.go`).
    ///
    /// # Errors
    /// The parameter is not a duration: the answer is 400.
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
