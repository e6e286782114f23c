//! Tokens with valid signatures, and tokens with invalid ones.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaKeyPair,
};
use serde_json::json;

use super::*;

const NOW: f64 = 1_800_000_000.0;
const ISSUER: &str = "https://kubernetes.default.svc";

fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

struct RsaSigner(RsaKeyPair);
struct EcSigner(EcdsaKeyPair);

impl RsaSigner {
    fn new() -> Self {
        Self(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn sign(&self, alg: &str, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.0.public_modulus_len()];
        let encoding = if alg.starts_with("PS") {
            &RSA_PSS_SHA256
        } else {
            &RSA_PKCS1_SHA256
        };
        let random = SystemRandom::new();
        self.0
            .sign(encoding, &random, message, &mut signature)
            .unwrap();
        signature
    }

    fn jwk(&self, kid: &str) -> Value {
        let key = self.0.public_key();
        json!({"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256",
               "n": base64(key.modulus().big_endian_without_leading_zero()),
               "e": base64(key.exponent().big_endian_without_leading_zero())})
    }
}

impl EcSigner {
    fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signed = self.0.sign(&SystemRandom::new(), message).unwrap();
        signed.as_ref().to_vec()
    }

    fn jwk(&self, kid: &str) -> Value {
        let point = self.0.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "kid": kid,
               "x": base64(&point[1..33]), "y": base64(&point[33..])})
    }

    fn pem(&self) -> String {
        let der: PublicKeyX509Der<'_> = self.0.public_key().as_der().unwrap();
        let text = base64::prelude::BASE64_STANDARD.encode(der.as_ref());
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }
}

fn sign_token(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!(
        "{}.{}",
        base64(header.to_string()),
        base64(claims.to_string())
    );
    let signature = sign(message.as_bytes());
    format!("{message}.{}", base64(signature))
}

fn key_set(jwks: &[Value]) -> KeySet {
    KeySet::from_jwks(json!({"keys": jwks}).to_string().as_bytes()).unwrap()
}

fn service_account_claims() -> Value {
    json!({
        "iss": ISSUER, "aud": [ISSUER], "exp": NOW + 3600.0, "nbf": NOW, "iat": NOW, "jti": "j-1",
        "sub": "system:serviceaccount:team:builder",
        "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": "builder", "uid": "u-1"},
                          "pod": {"name": "p", "uid": "u-2"}, "node": {"name": "n", "uid": "u-3"}},
    })
}

fn with_claim(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn validate(token: &str, keys: &KeySet) -> Option<Result<ValidatedUser, ClaimError>> {
    let jwt = Jwt::parse(token.as_bytes())?;
    let claims = jwt.verify_signature(keys)?;
    Some(ServiceAccountValidator.validate(claims, &[ISSUER.to_owned()], NOW))
}

#[test]
fn a_service_account_token_yields_the_user_that_upstream_derives() {
    let (rsa, ec) = (RsaSigner::new(), EcSigner::new());
    let keys = key_set(&[rsa.jwk("r"), ec.jwk("e")]);
    let by_rsa = sign_token(
        &json!({"alg": "RS256", "kid": "r"}),
        &service_account_claims(),
        |m| rsa.sign("RS256", m),
    );
    let by_ec = sign_token(
        &json!({"alg": "ES256", "kid": "e"}),
        &service_account_claims(),
        |m| ec.sign(m),
    );
    let unnamed = sign_token(&json!({"alg": "ES256"}), &service_account_claims(), |m| {
        ec.sign(m)
    });
    for token in [by_rsa, by_ec, unnamed] {
        let ValidatedUser {
            user,
            expires_at: expires,
        } = validate(&token, &keys).unwrap().unwrap();
        assert_eq!(expires, NOW + 3600.0);
        assert_eq!(user.name, "system:serviceaccount:team:builder");
        assert_eq!(user.uid, "u-1");
        assert_eq!(
            user.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:team",
                "system:authenticated"
            ]
        );
        let assert_extra = |key: &str, value: &str| {
            let key = format!("authentication.kubernetes.io/{key}");
            assert!(
                user.extra.contains(&(key, vec![value.to_owned()])),
                "{user:?}"
            );
        };
        assert_extra("credential-id", "JTI=j-1");
        assert_extra("pod-name", "p");
        assert_extra("pod-uid", "u-2");
        assert_extra("node-name", "n");
        assert_extra("node-uid", "u-3");
    }
}

#[test]
fn keys_from_pem_have_the_key_ids_of_kube_apiserver() {
    let ec = EcSigner::new();
    let keys = KeySet::from_pem(ec.pem().as_bytes()).unwrap();
    let der: PublicKeyX509Der<'_> = ec.0.public_key().as_der().unwrap();
    let kid = base64(<sha2::Sha256 as sha2::Digest>::digest(der.as_ref()));
    let named = sign_token(
        &json!({"alg": "ES256", "kid": kid}),
        &service_account_claims(),
        |m| ec.sign(m),
    );
    assert!(validate(&named, &keys).unwrap().is_ok());
    let private = rcgen::KeyPair::generate().unwrap().serialize_pem();
    assert!(
        KeySet::from_pem(private.as_bytes())
            .unwrap_err()
            .contains("public key")
    );
    assert!(
        KeySet::from_pem(b"nothing")
            .unwrap_err()
            .contains("no public key")
    );
}

/// Tokens with invalid signatures, and the reason for each.
fn forged_tokens(rsa: &RsaSigner, ec: &EcSigner, other: &EcSigner) -> Vec<(&'static str, String)> {
    let public = rsa.0.public_key().as_ref().to_vec();
    let hmac = |m: &[u8]| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &public);
        hmac::sign(&key, m).as_ref().to_vec()
    };
    let header = |alg: &str, kid: &str| json!({"alg": alg, "kid": kid});
    vec![
        (
            "none",
            sign_token(&header("none", "r"), &service_account_claims(), |_| {
                Vec::new()
            }),
        ),
        (
            "None",
            sign_token(&header("None", "r"), &service_account_claims(), |_| {
                Vec::new()
            }),
        ),
        (
            "no alg",
            sign_token(&json!({"kid": "r"}), &service_account_claims(), |m| {
                rsa.sign("RS256", m)
            }),
        ),
        (
            "HMAC with the public key",
            sign_token(&header("HS256", "r"), &service_account_claims(), hmac),
        ),
        (
            "another key",
            sign_token(&header("ES256", "e"), &service_account_claims(), |m| {
                other.sign(m)
            }),
        ),
        (
            "another key, unnamed",
            sign_token(&json!({"alg": "ES256"}), &service_account_claims(), |m| {
                other.sign(m)
            }),
        ),
        (
            "no such key",
            sign_token(&header("ES256", "x"), &service_account_claims(), |m| {
                ec.sign(m)
            }),
        ),
        (
            "the other's name",
            sign_token(&header("ES256", "r"), &service_account_claims(), |m| {
                ec.sign(m)
            }),
        ),
        (
            "another curve",
            sign_token(&header("ES384", "e"), &service_account_claims(), |m| {
                ec.sign(m)
            }),
        ),
        (
            "not the key's algorithm",
            sign_token(&header("PS256", "r"), &service_account_claims(), |m| {
                rsa.sign("PS256", m)
            }),
        ),
        (
            "crit",
            sign_token(
                &json!({"alg": "ES256", "kid": "e", "crit": ["b64"]}),
                &service_account_claims(),
                |m| ec.sign(m),
            ),
        ),
        (
            "an empty signature",
            sign_token(&header("ES256", "e"), &service_account_claims(), |_| {
                Vec::new()
            }),
        ),
        (
            "zeros",
            sign_token(&header("ES256", "e"), &service_account_claims(), |_| {
                vec![0; 64]
            }),
        ),
        (
            "a key in the token",
            sign_token(
                &json!({"alg": "ES256", "jwk": other.jwk("e")}),
                &service_account_claims(),
                |m| other.sign(m),
            ),
        ),
    ]
}

#[test]
fn a_signature_is_valid_only_with_the_right_key_and_algorithm() {
    let (rsa, ec, other) = (RsaSigner::new(), EcSigner::new(), EcSigner::new());
    let keys = key_set(&[rsa.jwk("r"), ec.jwk("e")]);
    let forged = forged_tokens(&rsa, &ec, &other);
    for (what, token) in forged {
        assert_eq!(validate(&token, &keys), None, "{what}");
    }
}

#[test]
fn a_token_that_was_changed_after_signing_is_rejected() {
    let ec = EcSigner::new();
    let keys = key_set(&[ec.jwk("e")]);
    let valid = sign_token(
        &json!({"alg": "ES256", "kid": "e"}),
        &service_account_claims(),
        |m| ec.sign(m),
    );
    assert!(validate(&valid, &keys).unwrap().is_ok());
    let parts: Vec<&str> = valid.split('.').collect();
    let other =
        base64(with_claim(service_account_claims(), "sub", json!("system:masters")).to_string());
    for forged in [
        format!("{}.{other}.{}", parts[0], parts[2]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{valid}.{}", parts[2]),
        format!("{valid}="),
        format!("{}.{}.", parts[0], parts[1]),
        String::new(),
        "..".to_owned(),
        "a.b.c".to_owned(),
    ] {
        assert_eq!(validate(&forged, &keys), None, "{forged}");
    }
}

#[test]
fn claims_must_be_valid_now_and_for_this_cluster() {
    let ec = EcSigner::new();
    let keys = key_set(&[ec.jwk("e")]);
    let of = |claims: Value| {
        let token = sign_token(&json!({"alg": "ES256", "kid": "e"}), &claims, |m| {
            ec.sign(m)
        });
        validate(&token, &keys)
            .unwrap()
            .map(|valid| valid.user.name)
    };
    let named = Ok("system:serviceaccount:team:builder".to_owned());
    for (name, value, expected) in [
        ("exp", json!(NOW + 0.5), named.clone()),
        ("exp", json!(NOW), Err(ClaimError::Expired)),
        ("exp", json!(NOW - 1.0), Err(ClaimError::Expired)),
        ("exp", json!("never"), Err(ClaimError::Malformed)),
        ("exp", Value::Null, Err(ClaimError::Malformed)),
        ("nbf", json!(NOW + 60.0), named.clone()),
        ("nbf", json!(NOW + 61.0), Err(ClaimError::NotYetValid)),
        ("iat", json!(NOW + 60.0), named.clone()),
        ("iat", json!(NOW + 3600.0), Err(ClaimError::NotYetValid)),
        (
            "aud",
            json!("https://kubernetes.default.svc"),
            named.clone(),
        ),
        ("aud", json!(["vault", ISSUER]), named),
        ("aud", json!(["vault"]), Err(ClaimError::WrongAudience)),
        ("aud", json!([]), Err(ClaimError::WrongAudience)),
        ("aud", Value::Null, Err(ClaimError::WrongAudience)),
        (
            "sub",
            json!("system:serviceaccount:kube-system:admin"),
            Err(ClaimError::Malformed),
        ),
        ("sub", json!("system:masters"), Err(ClaimError::Malformed)),
        ("kubernetes.io", json!({}), Err(ClaimError::Malformed)),
        (
            "kubernetes.io",
            json!({"namespace": "", "serviceaccount": {"name": "x"}}),
            Err(ClaimError::Malformed),
        ),
    ] {
        assert_eq!(
            of(with_claim(service_account_claims(), name, value.clone())),
            expected,
            "{name} {value}"
        );
    }
}

fn oidc_issuer() -> JwtIssuer {
    JwtIssuer {
        url: "https://login.example".to_owned(),
        audiences: vec!["kubernetes".to_owned()],
        username: ClaimMapping {
            claim: "email".to_owned(),
            prefix: "oidc:".to_owned(),
        },
        groups: Some(ClaimMapping {
            claim: "roles".to_owned(),
            prefix: String::new(),
        }),
        uid: Some("sub".to_owned()),
        required_claims: vec![RequiredClaim {
            claim: "hd".to_owned(),
            value: "example.com".to_owned(),
        }],
    }
}

#[test]
fn an_oidc_user_is_mapped_from_its_claims_and_has_no_system_name() {
    let ec = EcSigner::new();
    let keys = key_set(&[ec.jwk("e")]);
    let claims = json!({"iss": "https://login.example", "aud": "kubernetes", "exp": NOW + 60.0,
        "email": "alice@example.com", "email_verified": true, "hd": "example.com", "sub": "7",
        "roles": ["dev", "", "ops"]});
    let of = |issuer: &JwtIssuer, claims: Value| {
        let token = sign_token(&json!({"alg": "ES256", "kid": "e"}), &claims, |m| {
            ec.sign(m)
        });
        let jwt = Jwt::parse(token.as_bytes()).unwrap();
        issuer
            .validate(jwt.verify_signature(&keys).unwrap(), NOW)
            .map(|valid| valid.user)
    };
    let user = of(&oidc_issuer(), claims.clone()).unwrap();
    assert_eq!(
        (user.name.as_str(), user.uid.as_str()),
        ("oidc:alice@example.com", "7")
    );
    assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
    for (name, value, expected) in [
        ("email_verified", json!(false), ClaimError::Rejected),
        ("email_verified", json!("true"), ClaimError::Rejected),
        ("email", json!(""), ClaimError::Malformed),
        ("email", json!(7), ClaimError::Malformed),
        ("hd", json!("evil.example"), ClaimError::Rejected),
        ("hd", Value::Null, ClaimError::Rejected),
        ("aud", json!("other"), ClaimError::WrongAudience),
        ("exp", json!(NOW - 1.0), ClaimError::Expired),
        ("roles", json!(["system:masters"]), ClaimError::Rejected),
        ("roles", json!("system:masters"), ClaimError::Rejected),
        ("roles", json!({"a": 1}), ClaimError::Malformed),
    ] {
        let result = of(
            &oidc_issuer(),
            with_claim(claims.clone(), name, value.clone()),
        );
        assert_eq!(result, Err(expected), "{name} {value}");
    }
    let mut bare = oidc_issuer();
    bare.username = ClaimMapping {
        claim: "sub".to_owned(),
        prefix: String::new(),
    };
    let result = of(
        &bare,
        with_claim(claims, "sub", json!("system:kube-scheduler")),
    );
    assert_eq!(result, Err(ClaimError::Rejected));
}

#[test]
fn a_key_set_is_bounded_and_skips_unusable_keys() {
    let ec = EcSigner::new();
    let of = |keys: Vec<Value>| KeySet::from_jwks(json!({"keys": keys}).to_string().as_bytes());
    let encryption = with_claim(ec.jwk("e"), "use", json!("enc"));
    let secret = json!({"kty": "oct", "k": "c2VjcmV0"});
    assert!(of(vec![encryption.clone(), secret]).is_err());
    assert!(
        of(vec![encryption, ec.jwk("e")])
            .unwrap()
            .has_key(Some("e"))
    );
    assert!(of(vec![ec.jwk("e"); 65]).is_err());
    assert!(KeySet::from_jwks(b"{}").is_err());
}

/// Changes the unused bits of the last character, if it has any.
fn respell(part: &str) -> String {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (rest, last) = part.split_at(part.len() - 1);
    assert_ne!(part.len() % 4, 0, "no bits to spare");
    let at = ALPHABET.find(last).unwrap();
    format!("{rest}{}", &ALPHABET[at + 1..at + 2])
}

/// A token of `rsa` whose parts all have unused bits.
fn token_with_spare_bits(rsa: &RsaSigner) -> String {
    let spare = |value: &Value| !base64(value.to_string()).len().is_multiple_of(4);
    let grown = |value: Value, name: &str| {
        let longer = format!("{}x", value[name].as_str().unwrap());
        with_claim(value, name, json!(longer))
    };
    let (mut claims, mut header) = (
        service_account_claims(),
        json!({"alg": "RS256", "kid": "r", "typ": "JWT"}),
    );
    while !spare(&claims) {
        claims = grown(claims, "jti");
    }
    while !spare(&header) {
        header = grown(header, "typ");
    }
    sign_token(&header, &claims, |m| rsa.sign("RS256", m))
}

#[test]
fn every_encoding_that_the_api_server_accepts_is_accepted_and_no_other() {
    let rsa = RsaSigner::new();
    let keys = key_set(&[rsa.jwk("r")]);
    let token = token_with_spare_bits(&rsa);
    let [header, claims, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts");
    };
    let user = |h: &str, c: &str, s: &str| validate(&format!("{h}.{c}.{s}"), &keys);
    let is_valid = |h: &str, c: &str, s: &str| matches!(user(h, c, s), Some(Ok(_)));
    assert!(is_valid(header, claims, signature));
    assert!(is_valid(header, claims, &respell(signature)));
    assert!(is_valid(header, &respell(claims), signature));
    assert!(is_valid(&respell(header), claims, signature));
    assert!(is_valid(&format!("\t{header}"), claims, signature));
    assert!(is_valid(header, claims, &format!("\u{a0}{signature}")));

    assert_eq!(user(header, claims, &format!("{signature}=")), None);
    assert_eq!(user(header, claims, &format!("{signature}+")), None);
    assert_eq!(user(header, claims, &signature[1..]), None);
    let admin = with_claim(
        service_account_claims(),
        "sub",
        json!("system:serviceaccount:team:admin"),
    );
    let admin = format!(" {}", base64(admin.to_string()));
    assert_eq!(user(header, &admin, signature), None);
}
