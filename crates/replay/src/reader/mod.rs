//! Reads logs: audit logs of kube-apiserver and of weir, and arrivals. Plain, or compressed with
//! gzip or zstd; many files, of several servers.

mod audit_event;
mod compressed;
pub mod input;
mod line;
pub mod merge;
pub mod pool;
#[cfg(test)]
mod tests;
pub mod window;
