//! Public keys and the algorithms of signatures, as Go reads them. Pure.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1,
    EcdsaVerificationAlgorithm, ParsedPublicKey,
};
use rustls_pki_types::{AlgorithmIdentifier, alg_id};

use crate::der::{Der, NULL, OBJECT_IDENTIFIER, SEQUENCE, constructed};

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

/// The only element in the next one, which has this context-specific tag.
fn explicit<'a>(der: &mut Der<'a>, number: u8) -> Option<Der<'a>> {
    let contents = der.read(constructed(number))?;
    let mut rest = contents;
    rest.any().filter(|_| rest.is_empty()).map(|_| contents)
}

/// PSS whose hash is that of the mask, with a salt as long as the hash.
fn pss_algorithm(parameters: &[u8]) -> Option<AlgorithmIdentifier> {
    let is_plain = |algorithm: Algorithm<'_>| {
        algorithm.parameters.is_empty() || algorithm.parameters == NULL_PARAMETERS
    };
    let mut outer = Der::new(parameters);
    let mut der = outer.read(SEQUENCE).filter(|_| outer.is_empty())?;
    let hash = parse_algorithm(explicit(&mut der, 0)?.read(SEQUENCE)?)?;
    let mask = parse_algorithm(explicit(&mut der, 1)?.read(SEQUENCE)?)?;
    let mask_hash = parse_algorithm(Der::new(mask.parameters).read(SEQUENCE)?)?;
    let salt = explicit(&mut der, 2)?.integer()?;
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

/// A public key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublicKey<'a> {
    pub(super) bytes: &'a [u8],
    /// In the library's terms. `None` if it verifies no signatures by such keys.
    pub(super) algorithm: Option<AlgorithmIdentifier>,
}

/// Parses the contents of a `SubjectPublicKeyInfo`. `None` if Go does not accept the key.
pub(super) fn parse_public_key(info: &[u8]) -> Option<PublicKey<'_>> {
    let mut der = Der::new(info);
    let Algorithm { kind, parameters } = parse_algorithm(der.read(SEQUENCE)?)?;
    let bits = der.bit_string().filter(|bits| bits.unused_bits == 0)?;
    let bytes = bits.bytes;
    let is_bare = parameters.is_empty() && bytes.len() == 32;
    let algorithm = match kind {
        RSA_ENCRYPTION if parameters == NULL_PARAMETERS => {
            is_supported_rsa(bytes)?.then_some(alg_id::RSA_ENCRYPTION)
        }
        EC_PUBLIC_KEY => {
            let (length, library) = parse_curve(parameters)?;
            let is_point =
                library.is_none_or(|(verifies, _)| ParsedPublicKey::new(verifies, bytes).is_ok());
            // Neither compressed nor hybrid.
            if bytes.first() != Some(&4) || bytes.len() != length || !is_point {
                return None;
            }
            library.map(|(_, algorithm)| algorithm)
        }
        ED25519 if is_bare => Some(alg_id::ED25519),
        X25519 if is_bare => None,
        DSA if is_dsa_key(parameters, bytes) => None,
        DSA | ED25519 | RSA_ENCRYPTION | X25519 => return None,
        _ => None,
    };
    Some(PublicKey { bytes, algorithm })
}

type LibraryCurve = (&'static EcdsaVerificationAlgorithm, AlgorithmIdentifier);

/// The length of a curve's points, and the curve in the library's terms, which lacks P-224. `None` if
/// Go does not know it.
fn parse_curve(parameters: &[u8]) -> Option<(usize, Option<LibraryCurve>)> {
    match Der::new(parameters).read(OBJECT_IDENTIFIER)?.bytes() {
        P224 => Some((57, None)),
        P256 => Some((65, Some((&ECDSA_P256_SHA256_ASN1, alg_id::ECDSA_P256)))),
        P384 => Some((97, Some((&ECDSA_P384_SHA384_ASN1, alg_id::ECDSA_P384)))),
        P521 => Some((133, Some((&ECDSA_P521_SHA512_ASN1, alg_id::ECDSA_P521)))),
        _ => None,
    }
}

fn is_positive(integer: &[u8]) -> bool {
    integer.first().is_some_and(|first| *first < 0x80) && integer != [0]
}

/// Whether signatures by an RSA key are verified: by the library, if it has 2048 to 8192 bits, and by
/// Go, if its exponent is below 2^31. `None` if Go does not parse the key.
fn is_supported_rsa(key: &[u8]) -> Option<bool> {
    let mut der = Der::new(key).read(SEQUENCE)?;
    let modulus = der.integer().filter(|bytes| is_positive(bytes))?;
    let exponent = der.integer().filter(|bytes| is_positive(bytes))?;
    let bits = u32::try_from(modulus.len() * 8).ok()? - modulus.first()?.leading_zeros();
    let is_supported = (2048..=8192).contains(&bits) && exponent.len() <= 4;
    (exponent.len() <= 8).then_some(is_supported)
}

fn is_dsa_key(parameters: &[u8], key: &[u8]) -> bool {
    let Some(mut der) = Der::new(parameters).read(SEQUENCE) else {
        return false;
    };
    Der::new(key).integer().is_some_and(is_positive)
        && (0..3).all(|_| der.integer().is_some_and(is_positive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::der::encode as der;
    use crate::der::{BIT_STRING, INTEGER};

    /// The contents of the `SubjectPublicKeyInfo`.
    fn rsa_key(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
        let kind = der(OBJECT_IDENTIFIER, RSA_ENCRYPTION);
        let algorithm = der(SEQUENCE, &[&kind, NULL_PARAMETERS].concat());
        let numbers = [modulus, exponent].map(|number| der(INTEGER, number));
        let key = der(SEQUENCE, &numbers.concat());
        [algorithm, der(BIT_STRING, &[&[0], &*key].concat())].concat()
    }

    #[test]
    fn rsa_keys_are_supported_from_2048_to_8192_bits_with_exponents_of_31() {
        let modulus = |first: &[u8], zeros| [first, &vec![0; zeros]].concat();
        let of_2048_bits = modulus(&[0, 0x80], 255);
        let f4 = &[1, 0, 1][..];
        for (modulus, exponent, expected) in [
            (&of_2048_bits, f4, Some(true)),
            (&modulus(&[0x7f], 255), f4, Some(false)),
            (&modulus(&[0, 0x80], 1023), f4, Some(true)),
            (&modulus(&[1], 1024), f4, Some(false)),
            (&of_2048_bits, &[0x7f, 0xff, 0xff, 0xff], Some(true)),
            (&of_2048_bits, &[0, 0x80, 0, 0, 1], Some(false)),
            (&of_2048_bits, &[1, 0, 0, 0, 1], Some(false)),
            (&of_2048_bits, &[1, 0, 0, 0, 0, 0, 0, 0, 1], None),
            (&of_2048_bits, &[0], None),
            (&vec![0x80], f4, None),
        ] {
            let key = rsa_key(modulus, exponent);
            let found = parse_public_key(&key).map(|key| key.algorithm.is_some());
            assert_eq!(found, expected, "{} bytes, {exponent:?}", modulus.len());
        }
    }
}
