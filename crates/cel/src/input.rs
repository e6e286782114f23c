//! What a condition looks at.

use std::net::IpAddr;

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

/// What a condition looks at.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'r> {
    /// The parsed request line.
    pub info: &'r RequestInfo<'r>,
    /// The user that limits count.
    pub user: &'r UserInfo,
    /// Whether the user is proven.
    pub is_verified: bool,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
    /// The address of the client.
    pub source_address: IpAddr,
}
