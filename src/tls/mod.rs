//! What the TLS of clients' connections and that of connections between replicas share: the part of a
//! certificate verifier that checks the peer's signature of a handshake.
//!
//! rustls asks each verifier for it. Every verifier that decides by itself which certificates it
//! accepts has the same one: what the crypto provider supports.

/// The methods of `ClientCertVerifier` or `ServerCertVerifier` for signatures. The verifier has its
/// provider's algorithms in the field `algorithms`.
macro_rules! verify_handshake_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

pub(crate) use verify_handshake_signatures;
