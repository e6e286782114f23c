//! Builds the access to the admin listener.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::config::{AdminAccessConfig, AdminAuthorizationMode, Config};
use crate::identity::CertificateVerifier;
use crate::observe::admin::access::AdminAccess;
use crate::observe::admin::is_loopback;
use crate::server;
use crate::server::tls::ListenerTlsConfig;

/// Checks that a listener that others can reach is not open. The command line has looked at the address
/// of the configuration; the service manager's socket, or that of before a reload, may be another one.
///
/// # Errors
/// It is open.
pub(super) fn check_exposure(
    listener: SocketAddr,
    access: &AdminAccessConfig,
) -> Result<(), StartError> {
    if is_loopback(listener) || !access.is_open() || access.may_be_open {
        return Ok(());
    }
    Err(StartError::new(
        "the admin address would be open to others",
        format!("{listener} is not a loopback address, and needs no credential"),
    ))
}

/// The access to the admin listener that `config` describes.
///
/// # Errors
/// TLS cannot be set up.
pub(super) fn admin_access(
    config: &Config,
    permanent: &Permanent,
) -> Result<AdminAccess, StartError> {
    let (admin, provider) = (&config.admin, &config.crypto_provider);
    let AdminAccessConfig {
        certificate,
        client_ca,
        tokens,
        authorization,
        may_be_open: _,
    } = admin.access.clone();
    let tls = certificate.map(|certificate| {
        let tls = ListenerTlsConfig {
            certificate,
            client_ca: client_ca.clone(),
            named_certificates: Vec::new(),
            ..config.serving.tls.clone()
        };
        // Sessions hold client certificates, which another CA may not have signed.
        let mut tls = server::tls::server_config(tls, Arc::clone(provider), None)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok::<_, rustls::Error>(Arc::new(tls))
    });
    let verifier = client_ca.map(|roots| CertificateVerifier::new(roots, Arc::clone(provider)));
    let is_delegated = authorization == AdminAuthorizationMode::Webhook;
    Ok(AdminAccess {
        tls: tls
            .transpose()
            .map_err(|why| StartError::new("TLS at the admin address", why))?,
        client_ca: verifier
            .transpose()
            .map_err(|why| StartError::new("--admin-client-ca-file", why))?,
        tokens,
        delegated: is_delegated.then(|| Arc::clone(&permanent.delegated_auth)),
    })
}
