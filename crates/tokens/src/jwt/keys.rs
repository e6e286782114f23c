//! Public keys that verify tokens, from a JWKS or from PEM files. Pure.
//!
//! The key alone determines the permitted algorithms, never the token. A token's `alg` has to be
//! one of them, so `none`, HMAC with a public key, or another curve verify nothing.

use std::fmt;

use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature;
use aws_lc_rs::signature::{UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

/// The most keys of one issuer. A rotation needs two or three. A token without a `kid` is tried
/// with all of them.
const MAX_KEYS: usize = 64;

/// The keys of one issuer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeySet(Vec<VerificationKey>);

#[derive(Clone, PartialEq)]
struct VerificationKey {
    id: String,
    /// The key's `alg` in the JWKS: the only algorithm that it may be used with.
    required_alg: Option<String>,
    material: KeyMaterial,
}

#[derive(Clone)]
enum KeyMaterial {
    Rsa(PublicKeyComponents<Vec<u8>>),
    /// The DER of a SubjectPublicKeyInfo.
    RsaDer(Vec<u8>),
    Ec(Curve, Vec<u8>),
}

impl PartialEq for KeyMaterial {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rsa(key), Self::Rsa(other)) => key.n == other.n && key.e == other.e,
            (Self::RsaDer(key), Self::RsaDer(other)) => key == other,
            (Self::Ec(curve, key), Self::Ec(other_curve, other)) => {
                curve == other_curve && key == other
            }
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerificationKey({})", self.id)
    }
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a JSON Web Key Set. Keys of unsupported types are skipped, as RFC 7517 requires.
    ///
    /// # Errors
    /// The text is not a key set, or it contains no usable key.
    pub fn from_jwks(json: &[u8]) -> Result<Self, String> {
        let jwks: Jwks =
            serde_json::from_slice(json).map_err(|error| format!("no JWKS: {error}"))?;
        let keys: Vec<VerificationKey> = jwks
            .keys
            .into_iter()
            .filter_map(VerificationKey::from_jwk)
            .collect();
        Self::from_keys(keys)
    }

    /// Parses public keys and certificates in PEM.
    ///
    /// # Errors
    /// A section is neither a public key nor a certificate, or there are no keys.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut keys = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(|error| format!("no PEM: {error}"))?;
            keys.push(VerificationKey::from_der(kind, der)?);
        }
        Self::from_keys(keys)
    }

    fn from_keys(keys: Vec<VerificationKey>) -> Result<Self, String> {
        if keys.is_empty() {
            return Err("it holds no public key for signatures (RSA or EC)".to_owned());
        }
        if keys.len() > MAX_KEYS {
            return Err(format!("it holds more than {MAX_KEYS} keys"));
        }
        Ok(Self(keys))
    }

    /// Adds the keys of `other`, up to `MAX_KEYS` in all.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self.0.truncate(MAX_KEYS);
        self
    }

    /// Whether every key of `other` is in this set, too.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        other.0.iter().all(|key| self.0.contains(key))
    }

    /// Whether there is a key with this id. True without an id, since any key may fit.
    #[must_use]
    pub fn has_key(&self, id: Option<&str>) -> bool {
        id.is_none_or(|id| self.0.iter().any(|key| key.id == id))
    }

    /// Whether a key with this `id` (any key, without one) signed `message`.
    #[must_use]
    pub fn verify(&self, id: Option<&str>, alg: &str, message: &[u8], signature: &[u8]) -> bool {
        self.0
            .iter()
            .filter(|key| id.is_none_or(|id| key.id == id))
            .any(|key| key.verify(alg, message, signature))
    }
}

impl VerificationKey {
    fn from_jwk(jwk: Jwk) -> Option<Self> {
        if jwk
            .purpose
            .as_deref()
            .is_some_and(|purpose| purpose != "sig")
        {
            return None;
        }
        let decoded = |text: Option<String>| BASE64_URL_SAFE_NO_PAD.decode(text?).ok();
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => KeyMaterial::Rsa(PublicKeyComponents {
                n: strip_leading_zeros(decoded(jwk.n)?),
                e: strip_leading_zeros(decoded(jwk.e)?),
            }),
            ("EC", Some(curve)) => {
                let curve = Curve::from_name(curve)?;
                let (x, y) = (decoded(jwk.x)?, decoded(jwk.y)?);
                if x.len() != curve.coordinate_len() || y.len() != curve.coordinate_len() {
                    return None;
                }
                let mut point = vec![4]; // an uncompressed point (SEC 1, 2.3.3)
                point.extend(x);
                point.extend(y);
                KeyMaterial::Ec(curve, point)
            }
            _ => return None,
        };
        Some(Self {
            id: jwk.kid.unwrap_or_default(),
            required_alg: jwk.alg,
            material,
        })
    }

    fn from_der(kind: SectionKind, der: Vec<u8>) -> Result<Self, String> {
        let spki = if kind == SectionKind::PublicKey {
            der
        } else if kind == SectionKind::Certificate {
            let (_, certificate) =
                X509Certificate::from_der(&der).map_err(|error| error.to_string())?;
            certificate.public_key().raw.to_vec()
        } else {
            return Err(format!(
                "it holds a {kind:?}; give the public key (openssl pkey -pubout)"
            ));
        };
        let (_, parsed) =
            SubjectPublicKeyInfo::from_der(&spki).map_err(|error| error.to_string())?;
        let material = match parsed.algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => KeyMaterial::RsaDer(spki.clone()),
            "1.2.840.10045.2.1" => {
                let curve = parsed
                    .algorithm
                    .parameters
                    .as_ref()
                    .and_then(|parameters| parameters.as_oid().ok())
                    .and_then(|oid| Curve::from_oid(&oid.to_id_string()))
                    .ok_or("it holds a key on a curve that signs no token")?;
                KeyMaterial::Ec(curve, spki.clone())
            }
            other => return Err(format!("it holds a key of kind {other}, not RSA or EC")),
        };
        // kube-apiserver derives the ids of the keys in its key files the same way
        // (`serviceaccount.keyIDFromPublicKey`).
        let id = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&spki));
        Ok(Self {
            id,
            required_alg: None,
            material,
        })
    }

    fn verify(&self, alg: &str, message: &[u8], signature: &[u8]) -> bool {
        if self
            .required_alg
            .as_deref()
            .is_some_and(|required| required != alg)
        {
            return false;
        }
        let verified = match &self.material {
            KeyMaterial::Rsa(components) => {
                rsa_algorithm(alg).map(|algorithm| components.verify(algorithm, message, signature))
            }
            KeyMaterial::RsaDer(der) => rsa_algorithm(alg)
                .map(|algorithm| UnparsedPublicKey::new(algorithm, der).verify(message, signature)),
            KeyMaterial::Ec(curve, key) => curve
                .algorithm(alg)
                .map(|algorithm| UnparsedPublicKey::new(algorithm, key).verify(message, signature)),
        };
        matches!(verified, Some(Ok(())))
    }
}

fn rsa_algorithm(alg: &str) -> Option<&'static signature::RsaParameters> {
    Some(match alg {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

impl Curve {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "P-256" => Self::P256,
            "P-384" => Self::P384,
            "P-521" => Self::P521,
            _ => return None,
        })
    }

    fn from_oid(oid: &str) -> Option<Self> {
        Some(match oid {
            "1.2.840.10045.3.1.7" => Self::P256,
            "1.3.132.0.34" => Self::P384,
            "1.3.132.0.35" => Self::P521,
            _ => return None,
        })
    }

    /// The length of a coordinate in bytes (RFC 7518, 6.2.1.2).
    const fn coordinate_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    fn algorithm(self, alg: &str) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match (self, alg) {
            (Self::P256, "ES256") => &signature::ECDSA_P256_SHA256_FIXED,
            (Self::P384, "ES384") => &signature::ECDSA_P384_SHA384_FIXED,
            (Self::P521, "ES512") => &signature::ECDSA_P521_SHA512_FIXED,
            _ => return None,
        })
    }
}

/// aws-lc-rs accepts only numbers without leading zeros.
fn strip_leading_zeros(bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.into_iter().skip(zeros).collect()
}
