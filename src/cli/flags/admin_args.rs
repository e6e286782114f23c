//! The flags of the access to the admin address.

use std::path::PathBuf;

use clap::Args;

use crate::config::AdminAuthorizationMode;

/// Access to the admin address.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AdminArgs {
    /// Certificate of the admin address, with its intermediates (PEM), which then speaks TLS and no plain HTTP. Versions and cipher
    /// suites are those of the address for clients.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_tls_cert_file: Option<PathBuf>,
    /// Key of --admin-tls-cert-file, required with it.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_tls_private_key_file: Option<PathBuf>,
    /// CA of the client certificates (PEM) that the admin address accepts: any of that CA, or with --admin-authorization-mode=Webhook
    /// those whose user may get the path. Needs --admin-tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_client_ca_file: Option<PathBuf>,
    /// File of the bearer tokens that the admin address accepts, one a line, of 16 bytes at least. They may read every page, also while the
    /// API server is away. Needs --admin-tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// AlwaysAllow: each client with a certificate or a token of the two flags above may read the admin address. Webhook: the API server
    /// authenticates other tokens (TokenReview), too, and decides about each path (SubjectAccessReview for nonResourceURLs; an answer counts for
    /// 10 seconds; system:masters may read everything). Webhook needs --admin-tls-cert-file, and a --kubeconfig whose user may create both
    /// reviews (ClusterRole system:auth-delegator).
    #[arg(long, value_name = "MODE", value_enum, default_value_t = AdminAuthorizationMode::AlwaysAllow)]
    pub(crate) admin_authorization_mode: AdminAuthorizationMode,
    /// Whether an address beyond the loopback may be open: for a playground, whose data are made up.
    #[arg(skip)]
    pub(crate) may_be_open: bool,
}
