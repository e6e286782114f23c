//! Bearer tokens: where a request [carries](bearer) one, what is [kept](hash) of them, [lists](list) of
//! them, and [JWTs](jwt). Pure.

pub mod bearer;
pub mod hash;
pub mod jwt;
pub mod list;
