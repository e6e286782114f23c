//! Read-only or mutating: the two kinds that kube-apiserver counts apart.

use super::RequestInfo;

/// The kind of a request, by its verb alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Everything but get, list and watch.
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
