//! The attributes of a request that limits use.

use std::net::IpAddr;

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

/// The source of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestSource<'r> {
    /// The source address of the connection.
    pub address: IpAddr,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
}
