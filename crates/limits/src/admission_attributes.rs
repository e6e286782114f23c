//! The attributes of a request that limits use.

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

/// The attributes of a request that limits use.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionAttributes<'a> {
    /// The parsed request line.
    pub info: &'a RequestInfo<'a>,
    /// The user of the request.
    pub user: &'a UserInfo,
}
