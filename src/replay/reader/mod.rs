//! Reads logs: audit logs of kube-apiserver and of weir, and arrivals. Plain, or compressed with
//! gzip or zstd; many files, of several servers.

mod audit_event;
mod compressed;
pub(crate) mod input;
mod line;
pub(crate) mod merge;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod window;
