//! The issuer of service account tokens: it signs and verifies tokens and publishes its key.
//!
//! The tokens are those of kube-apiserver's `TokenRequest`. Unlike there, a caller with the
//! [`ServiceAccountTokenIssuer`] may issue a token for any account, and the account need not exist.
//! The signatures are ES256, with one key.

use crate::auth::error::PkiError;
use crate::auth::user::ApiUser;
use crate::time;
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The issuer of the tokens and their audience.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The path of the public keys.
pub(crate) const JWKS_PATH: &str = "/openid/v1/jwks";
/// The path of the discovery document.
pub(crate) const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// Signs and verifies tokens. Clones share one key.
#[derive(Clone)]
pub struct ServiceAccountTokenIssuer {
    key: Arc<EcdsaKeyPair>,
    kid: String,
    /// The public key, PEM.
    pub(crate) public_key_pem: String,
    /// The private key, PEM (PKCS#8).
    pub(crate) private_key_pem: String,
}

impl std::fmt::Debug for ServiceAccountTokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceAccountTokenIssuer({})", self.kid)
    }
}

impl ServiceAccountTokenIssuer {
    /// Returns an issuer with a new key.
    pub(crate) fn generate() -> Result<Self, PkiError> {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .map_err(|_| PkiError::Random)
            .and_then(Self::from_key)
    }

    /// Returns the issuer with this private key; `None` if the key cannot be read.
    pub(crate) fn from_pem(pem: &str) -> Option<Self> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).ok()?;
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.secret_pkcs8_der()).ok()?;
        Self::from_key(key).ok()
    }

    fn from_key(key: EcdsaKeyPair) -> Result<Self, PkiError> {
        let private = key.to_pkcs8v1().map_err(|_| PkiError::Random)?;
        let der: PublicKeyX509Der<'_> = key.public_key().as_der().map_err(|_| PkiError::Random)?;
        let pem = |what: &str, der: &[u8]| {
            let text = BASE64_STANDARD.encode(der);
            format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
        };
        let key_pem = pem("PRIVATE KEY", private.as_ref());
        let pem = pem("PUBLIC KEY", der.as_ref());
        Ok(Self {
            kid: BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(der.as_ref())),
            key: Arc::new(key),
            public_key_pem: pem,
            private_key_pem: key_pem,
        })
    }

    /// Issues a token for a service account, valid for `lifetime`.
    ///
    /// # Errors
    /// The system has no randomness for the signature.
    pub fn issue_token(
        &self,
        namespace: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<String, PkiError> {
        let now = time::unix_time().as_secs();
        let account = json!({"name": name, "uid": account_uid(namespace, name)});
        let claims = json!({
            "iss": ISSUER,
            "aud": [ISSUER],
            "iat": now,
            "nbf": now,
            "exp": now.saturating_add(lifetime.as_secs()),
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": account},
        });
        let header = json!({"alg": "ES256", "kid": self.kid});
        let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = self
            .key
            .sign(&SystemRandom::new(), message.as_bytes())
            .map_err(|_| PkiError::Random)?;
        let signature = BASE64_URL_SAFE_NO_PAD.encode(signature);
        Ok(format!("{message}.{signature}"))
    }

    /// The user of a token of this issuer; `None` if the token is foreign, malformed or expired.
    pub(crate) fn verify_token(&self, token: &str) -> Option<ApiUser> {
        let (message, signature) = token.rsplit_once('.')?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key())
            .verify(message.as_bytes(), &signature)
            .ok()?;
        let (_, claims) = message.split_once('.')?;
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let meant = claims.get("aud")?.as_array()?.iter().any(|a| a == ISSUER);
        if !meant || claims.get("exp")?.as_u64()? <= time::unix_time().as_secs() {
            return None;
        }
        let private = claims.get("kubernetes.io")?;
        let namespace = private.get("namespace")?.as_str()?;
        let account = private.get("serviceaccount")?;
        Some(ApiUser {
            name: claims.get("sub")?.as_str()?.to_owned(),
            uid: account.get("uid")?.as_str()?.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            extra: BTreeMap::new(),
        })
    }

    /// The document that is published at `path`.
    pub(crate) fn discovery_document(&self, path: &str) -> Option<Value> {
        match path {
            JWKS_PATH => Some(self.jwks()),
            DISCOVERY_PATH => Some(json!({
                "issuer": ISSUER,
                "jwks_uri": format!("{ISSUER}{JWKS_PATH}"),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            })),
            _ => None,
        }
    }

    fn jwks(&self) -> Value {
        // An uncompressed point: 4, then both coordinates.
        let point = self.key.public_key().as_ref();
        let coordinate = |from: usize| {
            let bytes: Vec<u8> = point.iter().skip(from).take(32).copied().collect();
            BASE64_URL_SAFE_NO_PAD.encode(bytes)
        };
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.kid, "crv": "P-256", "alg": "ES256",
            "x": coordinate(1), "y": coordinate(33),
        }]})
    }
}

/// The same account always has the same uid.
fn account_uid(namespace: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("{namespace}/{name}"));
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
