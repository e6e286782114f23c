//! Which answers kube-apiserver counts as requests of a handler. Pure.

use http::StatusCode;

/// Whether an answer is one that kube-apiserver counts into `apiserver_request_*`. It does not count what ends before a handler
/// (`InstrumentRouteFunc`) is reached: 401, the authorizer's 403, 404 of no route, 405, 415. Whoever is nobody can have as many of
/// these as he likes, for whatever he makes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum HandlerReached {
    Yes,
    No,
    /// A 403, of whose body this is the beginning: the authorizer's names a user in its own way, that of an admission plugin (quota,
    /// PodSecurity) does not.
    UnlessAuthorizerDenied(Vec<u8>),
}

/// Of a 403's body as much is looked at: where the authorizer's Status has its message, in any encoding.
const INSPECTED_PREFIX: usize = 1024;

impl HandlerReached {
    /// As far as the code tells.
    pub(in crate::pipeline) fn from_code(code: StatusCode) -> Self {
        match code {
            StatusCode::UNAUTHORIZED
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::No,
            StatusCode::FORBIDDEN => Self::UnlessAuthorizerDenied(Vec::new()),
            _ => Self::Yes,
        }
    }

    /// A part of the body has gone by.
    pub(in crate::pipeline) fn inspect(&mut self, data: &[u8]) {
        if let Self::UnlessAuthorizerDenied(seen) = self {
            let room = INSPECTED_PREFIX.saturating_sub(seen.len());
            seen.extend_from_slice(data.get(..room).unwrap_or(data));
        }
    }

    /// What it comes to, at the end.
    pub(in crate::pipeline) fn reached(&self) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            // `responsewriters.Forbidden`: `… is forbidden: User "NAME" cannot …`.
            Self::UnlessAuthorizerDenied(seen) => {
                memchr::memmem::find(seen, b" forbidden: User ").is_none()
            }
        }
    }
}
