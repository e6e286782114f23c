//! The two kinds of requests that kube-apiserver counts separately: read-only and mutating.

use super::info::RequestInfo;

/// The kind of a request, which depends only on its verb.
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
