//! The attributes of a request that rules match.

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// The attributes of a request that rules and subjects match. Strings are bytes, as in
/// [`RequestInfo`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as the methods of the same names explain")]
pub struct RequestDigest<'r> {
    pub is_resource_request: bool,
    pub verb: &'r Verb,
    pub path: &'r [u8],
    pub api_group: &'r [u8],
    pub resource: &'r [u8],
    pub subresource: &'r [u8],
    pub namespace: &'r [u8],
    pub user: &'r UserInfo,
}

impl<'r> RequestDigest<'r> {
    /// The digest of a request and its user.
    #[must_use]
    pub fn new(info: &'r RequestInfo<'_>, user: &'r UserInfo) -> Self {
        Self {
            is_resource_request: info.is_resource_request(),
            verb: info.verb(),
            path: info.path(),
            api_group: info.api_group(),
            resource: info.resource(),
            subresource: info.subresource(),
            namespace: info.namespace(),
            user,
        }
    }
}
