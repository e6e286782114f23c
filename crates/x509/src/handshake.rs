//! What the TLS of clients' connections and that of connections between replicas share: the part of a
//! certificate verifier that checks the peer's signature of a handshake.
//!
//! rustls asks each verifier for it. Every verifier that decides by itself which certificates it
//! accepts has the same one: what the crypto provider supports, by keys of certificates that Go accepts.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, ProtocolVersion,
    SignatureScheme,
};
use rustls_pki_types::CertificateDer;

use crate::certificate::Certificate;

/// Checks the peer's signature of a handshake of this version, by the key of its certificate.
///
/// rustls has functions for it, which do not parse every certificate that Go accepts.
///
/// # Errors
/// The signature is not valid, or the certificate cannot be parsed.
pub fn verify_handshake_signature(
    version: ProtocolVersion,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    supported: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let certificate = Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let scheme = signature.scheme;
    let mut schemes = supported.mapping.iter();
    let found = schemes.find(|(supported, _)| *supported == scheme);
    // In TLS 1.3, a scheme has one algorithm, the first, and PKCS #1 is not allowed.
    let algorithms = match (found, version) {
        (Some((_, [first, ..])), ProtocolVersion::TLSv1_3) if !is_pkcs1(scheme) => {
            std::slice::from_ref(first)
        }
        (Some((_, all)), ProtocolVersion::TLSv1_2) => *all,
        _ => return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()),
    };
    certificate
        .verify_signature(algorithms, message, signature.signature())
        .map(|()| HandshakeSignatureValid::assertion())
        .map_err(|_| CertificateError::BadSignature.into())
}

const fn is_pkcs1(scheme: SignatureScheme) -> bool {
    matches!(
        scheme,
        SignatureScheme::RSA_PKCS1_SHA1
            | SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512
    )
}

/// The methods of `ClientCertVerifier` or `ServerCertVerifier` for signatures. The verifier has its
/// provider's algorithms in the field `algorithms`.
#[macro_export]
macro_rules! verify_handshake_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let version = rustls::ProtocolVersion::TLSv1_2;
            let algorithms = &self.algorithms;
            $crate::verify_handshake_signature(version, message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let version = rustls::ProtocolVersion::TLSv1_3;
            let algorithms = &self.algorithms;
            $crate::verify_handshake_signature(version, message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}
