//! TLS as in kube-apiserver: HTTP/2 and HTTP/1.1, and an optional client certificate.
//!
//! `authentication` verifies the certificate later, so that a bad one gets a response instead of a
//! failed handshake.

use crate::auth::authentication::PlaygroundAuthenticator;
use crate::auth::pki::CertificateAndKey;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use std::sync::Arc;

/// The TLS configuration of the server. The error describes what is wrong with the certificate.
pub(crate) fn server_config(
    serving: &CertificateAndKey,
    authenticator: &PlaygroundAuthenticator,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, String> {
    let wrong = |error: &dyn std::error::Error| error.to_string();
    let certificate = CertificateDer::from_pem_slice(serving.certificate.as_bytes())
        .map_err(|error| wrong(&error))?;
    let key =
        PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).map_err(|error| wrong(&error))?;
    let hints = authenticator
        .verifiers()
        .iter()
        .flat_map(|verifier| verifier.root_hint_subjects().to_vec())
        .collect();
    let verifier = AcceptAnyCertificate {
        provider: Arc::clone(&provider),
        root_hints: hints,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate], key)
        .map_err(|error| wrong(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Requests a client certificate and accepts any whose key the client has, and none.
#[derive(Debug)]
struct AcceptAnyCertificate {
    provider: Arc<CryptoProvider>,
    root_hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AcceptAnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.root_hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
