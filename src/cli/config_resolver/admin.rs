//! Access to the admin address.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::AdminArgs;
use crate::config::{AdminAccessConfig, AdminAuthorizationMode};
use crate::observe::admin::is_loopback;
use crate::upstream::tls;
use weir_kubernetes::document::SourceLocation;
use weir_tokens::list::TokenList;

const ADDRESS: &str = "admin-address";
const CERTIFICATE: &str = "admin-tls-cert-file";
const KEY: &str = "admin-tls-private-key-file";
const CLIENT_CA: &str = "admin-client-ca-file";
const TOKENS: &str = "admin-token-file";
const MODE: &str = "admin-authorization-mode";

/// The error, or for a playground the warning, of an open address that others can reach.
const EXPOSED: &str = "not a loopback address: users' names, limits and metrics would be open to each client that reaches it; give --admin-tls-cert-file, and --admin-client-ca-file, --admin-token-file or --admin-authorization-mode=Webhook (for probes and metrics alone: --health-address, --health-metrics)";

const WITHOUT_TLS: &str =
    "only together with --admin-tls-cert-file: credentials are not accepted over plain HTTP";

impl FlagResolver {
    /// The access to `address`. `has_credentials`: weir has some of its own at the API server.
    pub(super) fn resolve_admin_access(
        &mut self,
        args: &AdminArgs,
        address: SocketAddr,
        has_credentials: bool,
    ) -> Option<AdminAccessConfig> {
        let AdminArgs {
            admin_tls_cert_file: certificate,
            admin_tls_private_key_file: key,
            admin_client_ca_file: client_ca,
            admin_token_file: tokens,
            admin_authorization_mode: authorization,
            may_be_open,
        } = args;
        let is_delegated = *authorization == AdminAuthorizationMode::Webhook;
        if certificate.is_none() {
            let given = [
                (CLIENT_CA, client_ca.is_some()),
                (TOKENS, tokens.is_some()),
                (MODE, is_delegated),
            ];
            for (flag, _) in given.iter().filter(|(_, is_given)| *is_given) {
                self.add(flag, WITHOUT_TLS);
            }
        }
        if is_delegated && !has_credentials {
            let why = "Webhook needs a --kubeconfig: weir sends TokenReviews and SubjectAccessReviews with its credentials";
            self.add(MODE, why);
        }
        let is_open = client_ca.is_none() && tokens.is_none() && !is_delegated;
        if is_open && !is_loopback(address) {
            match may_be_open {
                true => self.warn(ADDRESS, EXPOSED),
                false => self.add(ADDRESS, EXPOSED),
            }
        }
        let certificate = self.read_admin_certificate(certificate.as_deref(), key.as_deref());
        let client_ca = client_ca
            .as_ref()
            .map(|file| self.read_root_certificates(CLIENT_CA, file, tls::parse_roots));
        let tokens = match tokens {
            Some(file) => self.read_token_list(file),
            None => Some(TokenList::default()),
        };
        Some(AdminAccessConfig {
            certificate,
            client_ca: match client_ca {
                Some(read) => Some(read?),
                None => None,
            },
            tokens: tokens?,
            authorization: *authorization,
            may_be_open: *may_be_open,
        })
    }

    /// The certificate with its key; `None` without both, and after an error.
    fn read_admin_certificate(
        &mut self,
        certificate: Option<&Path>,
        key: Option<&Path>,
    ) -> Option<Arc<CertifiedKey>> {
        match (certificate, key) {
            (Some(certificate), Some(key)) => self.read_certified_key(
                FlagFile {
                    flag: CERTIFICATE,
                    path: certificate,
                },
                FlagFile {
                    flag: KEY,
                    path: key,
                },
                CertificateUse::Serving,
            ),
            (Some(_), None) => {
                self.add(KEY, "needed: the key of --admin-tls-cert-file (PEM)");
                None
            }
            (None, Some(_)) => {
                self.add(
                    CERTIFICATE,
                    "needed: the certificate of --admin-tls-private-key-file (PEM)",
                );
                None
            }
            (None, None) => None,
        }
    }

    fn read_token_list(&mut self, file: &Path) -> Option<TokenList> {
        let text = self.read_text(TOKENS, file)?;
        match TokenList::parse(&text) {
            Ok(tokens) => Some(tokens),
            Err(lines) => {
                for (line, error) in lines {
                    let location = SourceLocation {
                        line,
                        ..SourceLocation::whole_file(&file.display().to_string())
                    };
                    self.add_at(TOKENS, location, "", error);
                }
                None
            }
        }
    }
}
