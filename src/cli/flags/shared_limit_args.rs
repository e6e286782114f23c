//! The flags of rate limits that several replicas share.

use std::path::PathBuf;

use clap::Args;

/// How rate limits are shared with other replicas.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Shared limits")]
pub(crate) struct SharedLimitArgs {
    /// The Redis or Valkey server by which all replicas share the buckets of event and client limits: redis://HOST:PORT/DATABASE, or
    /// rediss:// with TLS; redis+sentinel://HOST:PORT,HOST:PORT/NAME for Sentinel and redis+cluster://HOST:PORT,HOST:PORT for
    /// Cluster (rediss+sentinel:// and rediss+cluster:// with TLS). No request waits for it; while it is away, each replica
    /// admits its share of every rate. Needs --shared-key-file.
    #[arg(long, value_name = "URL")]
    pub(crate) shared_limits: Option<String>,
    /// The user of --shared-limits.
    #[arg(long, value_name = "NAME")]
    pub(crate) shared_limits_user: Option<String>,
    /// The password of --shared-limits, read again for each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_password_file: Option<PathBuf>,
    /// CA of the certificate of --shared-limits (PEM), read again for each connection; the system's CAs if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_ca_file: Option<PathBuf>,
    /// Client certificate for --shared-limits (PEM), read again for each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_cert_file: Option<PathBuf>,
    /// Key of --shared-limits-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_key_file: Option<PathBuf>,
    /// The number of replicas that share a rate until --shared-limits has counted them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) shared_limits_replicas: u32,
    /// A random text of at least 32 bytes, the same on every replica: the key of the hashes that users, namespaces and other names
    /// become in what replicas share. A change needs a restart of all replicas.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_key_file: Option<PathBuf>,
}
