//! Public keys and the algorithms of signatures, as Go reads them. Pure.

use aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1;
use aws_lc_rs::signature::ECDSA_P384_SHA384_ASN1;
use aws_lc_rs::signature::ECDSA_P521_SHA512_ASN1;
use aws_lc_rs::signature::ParsedPublicKey;
use rustls_pki_types::AlgorithmIdentifier;
use rustls_pki_types::alg_id;

use crate::x509::der::Der;
use crate::x509::der::NULL;
use crate::x509::der::OBJECT_IDENTIFIER;
use crate::x509::der::SEQUENCE;
use crate::x509::der::constructed;

/// Object identifiers, in DER.
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1];
const MGF1: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 8];
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 10];
const SHA256_WITH_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 11];
const SHA384_WITH_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 12];
const SHA512_WITH_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 13];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_WITH_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
const ECDSA_WITH_SHA512: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4];
const DSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1];
const P224: &[u8] = &[0x2b, 0x81, 4, 0, 33];
const P384: &[u8] = &[0x2b, 0x81, 4, 0, 34];
const P521: &[u8] = &[0x2b, 0x81, 4, 0, 35];
const X25519: &[u8] = &[0x2b, 0x65, 110];
const ED25519: &[u8] = &[0x2b, 0x65, 112];
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];
const SHA384: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 2];
const SHA512: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 3];

/// The DER of the parameters NULL.
const NULL_PARAMETERS: &[u8] = &[NULL, 0];

/// An algorithm with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Algorithm<'a> {
    kind: &'a [u8],
    /// Their DER. Empty if there are none.
    parameters: &'a [u8],
}

/// Parses the contents of an `AlgorithmIdentifier`. Like Go, what follows the parameters is ignored.
pub(super) fn parse_algorithm(mut der: Der<'_>) -> Option<Algorithm<'_>> {
    let kind = der.object_identifier()?;
    let parameters = if der.is_empty() {
        &[]
    } else {
        der.any()?.whole
    };
    Some(Algorithm { kind, parameters })
}

/// The algorithm of a signature in the library's terms. `None` if Go or the library does not verify
/// it: SHA-1, MD5, DSA. Like in Go, parameters count for Ed25519 and PSS only.
pub(super) fn signature_algorithm(algorithm: Algorithm<'_>) -> Option<AlgorithmIdentifier> {
    match algorithm.kind {
        SHA256_WITH_RSA => Some(alg_id::RSA_PKCS1_SHA256),
        SHA384_WITH_RSA => Some(alg_id::RSA_PKCS1_SHA384),
        SHA512_WITH_RSA => Some(alg_id::RSA_PKCS1_SHA512),
        ECDSA_WITH_SHA256 => Some(alg_id::ECDSA_SHA256),
        ECDSA_WITH_SHA384 => Some(alg_id::ECDSA_SHA384),
        ECDSA_WITH_SHA512 => Some(alg_id::ECDSA_SHA512),
        ED25519 => algorithm.parameters.is_empty().then_some(alg_id::ED25519),
        RSA_PSS => pss_algorithm(algorithm.parameters),
        _ => None,
    }
}

/// PSS whose hash is that of the mask, with a salt as long as the hash.
fn pss_algorithm(parameters: &[u8]) -> Option<AlgorithmIdentifier> {
    let is_plain = |algorithm: Algorithm<'_>| {
        algorithm.parameters.is_empty() || algorithm.parameters == NULL_PARAMETERS
    };
    let mut outer = Der::new(parameters);
    let mut der = outer.read(SEQUENCE).filter(|_| outer.is_empty())?;
    let hash = parse_algorithm(der.read(constructed(0))?.read(SEQUENCE)?)?;
    let mask = parse_algorithm(der.read(constructed(1))?.read(SEQUENCE)?)?;
    let mask_hash = parse_algorithm(Der::new(mask.parameters).read(SEQUENCE)?)?;
    let salt = der.read(constructed(2))?.integer()?;
    let trailer = match der.optional(constructed(3))? {
        Some(mut trailer) => trailer.integer()?,
        None => &[1],
    };
    let is_usual = mask.kind == MGF1
        && mask_hash.kind == hash.kind
        && is_plain(hash)
        && is_plain(mask_hash)
        && trailer == [1]
        && der.is_empty();
    let algorithm = match (hash.kind, salt) {
        (SHA256, [32]) => alg_id::RSA_PSS_SHA256,
        (SHA384, [48]) => alg_id::RSA_PSS_SHA384,
        (SHA512, [64]) => alg_id::RSA_PSS_SHA512,
        _ => return None,
    };
    is_usual.then_some(algorithm)
}

/// Parses the contents of a `SubjectPublicKeyInfo`: the bytes of the key, and its algorithm in the
/// library's terms, if it verifies signatures by such keys. `None` if Go does not accept the key.
pub(super) fn parse_public_key(info: &[u8]) -> Option<(&[u8], Option<AlgorithmIdentifier>)> {
    let mut der = Der::new(info);
    let algorithm = parse_algorithm(der.read(SEQUENCE)?)?;
    let bits = der.bit_string()?;
    let key = bits.bytes;
    let without_parameters = algorithm.parameters.is_empty();
    let kind = match algorithm.kind {
        RSA_ENCRYPTION => {
            let valid = algorithm.parameters == NULL_PARAMETERS && is_rsa_key(key);
            valid.then_some(Some(alg_id::RSA_ENCRYPTION))?
        }
        EC_PUBLIC_KEY => parse_curve(algorithm.parameters, key)?,
        ED25519 => (without_parameters && key.len() == 32).then_some(Some(alg_id::ED25519))?,
        X25519 => (without_parameters && key.len() == 32).then_some(None)?,
        DSA => is_dsa_key(algorithm.parameters, key).then_some(None)?,
        _ => None,
    };
    (bits.unused_bits == 0).then_some((key, kind))
}

/// The algorithm of a key on a curve that Go knows: a point on it that is not compressed.
fn parse_curve(parameters: &[u8], key: &[u8]) -> Option<Option<AlgorithmIdentifier>> {
    let (verifies, length, kind) = match Der::new(parameters).read(OBJECT_IDENTIFIER)?.bytes() {
        // The library does not verify by such keys.
        P224 => return (key.first() == Some(&4) && key.len() == 57).then_some(None),
        P256 => (&ECDSA_P256_SHA256_ASN1, 65, alg_id::ECDSA_P256),
        P384 => (&ECDSA_P384_SHA384_ASN1, 97, alg_id::ECDSA_P384),
        P521 => (&ECDSA_P521_SHA512_ASN1, 133, alg_id::ECDSA_P521),
        _ => return None,
    };
    let is_point = key.len() == length && ParsedPublicKey::new(verifies, key).is_ok();
    is_point.then_some(Some(kind))
}

fn is_positive(integer: Option<&[u8]>) -> bool {
    integer.is_some_and(|bytes| bytes.first().is_some_and(|first| *first < 0x80) && bytes != [0])
}

fn is_rsa_key(key: &[u8]) -> bool {
    let Some(mut der) = Der::new(key).read(SEQUENCE) else {
        return false;
    };
    let modulus = der.integer();
    let exponent = der.integer().filter(|bytes| bytes.len() <= 8);
    is_positive(modulus) && is_positive(exponent)
}

fn is_dsa_key(parameters: &[u8], key: &[u8]) -> bool {
    let Some(mut der) = Der::new(parameters).read(SEQUENCE) else {
        return false;
    };
    is_positive(Der::new(key).integer()) && (0..3).all(|_| is_positive(der.integer()))
}
