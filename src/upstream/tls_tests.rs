use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

use super::*;

/// A self-signed certificate and its key, both in PEM.
pub(crate) fn self_signed_pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

pub(crate) fn ca_pem() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
}

fn error_text<T>(result: Result<T, PemError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn every_certificate_of_a_bundle_becomes_a_root() {
    let bundle = format!("# a comment\n{}\n{}", ca_pem(), ca_pem());
    assert_eq!(parse_roots("ca.crt", bundle.as_bytes()).unwrap().len(), 2);
}

#[test]
fn roots_that_cannot_be_parsed_are_left_out_of_the_api_servers_ca_only() {
    let broken = "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n";
    let bundle = format!("{broken}{}", ca_pem());
    let roots = parse_upstream_roots("ca.crt", bundle.as_bytes());
    assert_eq!(roots.unwrap().len(), 1);
    let expected = "ca.crt: certificate 1 cannot be a root: x509: malformed certificate";
    for none_left in [
        parse_upstream_roots("ca.crt", broken.as_bytes()),
        parse_roots("ca.crt", bundle.as_bytes()),
    ] {
        assert_eq!(error_text(none_left), expected);
    }
}

#[test]
fn errors_name_the_file_and_quote_nothing_of_it() {
    let (certificate, key) = self_signed_pair("weir");
    let (_, other) = self_signed_pair("other");
    let roots = |text: &str| error_text(parse_roots("ca.crt", text.as_bytes()));
    let certified = |certificate: &str, key: &str| {
        let (certificate, key) = (certificate.as_bytes(), key.as_bytes());
        error_text(parse_certified_key(
            PemInput::new("tls.crt", certificate),
            PemInput::new("tls.key", key),
        ))
    };
    let broken = "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n";
    let open = "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n";
    let no_base64 = "-----BEGIN PRIVATE KEY-----\nsecret!\n-----END PRIVATE KEY-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    let cases = [
        (roots(""), "ca.crt: no certificate in it (PEM)"),
        (roots(&key), "ca.crt: no certificate in it (PEM)"),
        (
            roots(&format!("{}{broken}", ca_pem())),
            "ca.crt: certificate 2 cannot be a root: ",
        ),
        (roots(open), "ca.crt: not PEM: a section does not end"),
        (
            certified(&certificate, &certificate),
            "tls.key: no private key in it",
        ),
        (
            certified(&certificate, no_base64),
            "tls.key: not PEM: a section is not base64",
        ),
        (
            certified(&certificate, no_key),
            "tls.key: not a usable key: ",
        ),
        (certified(&key, &key), "tls.crt: no certificate in it (PEM)"),
        (
            certified(broken, &key),
            "tls.crt: not a usable certificate: ",
        ),
        (
            certified(&certificate, &other),
            "tls.key: the key does not belong to the certificate in tls.crt",
        ),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with(expected), "{message}");
        assert!(
            !message.contains("c2Vjc") && !message.contains("secret"),
            "{message}"
        );
    }
}

#[test]
fn a_certificate_and_its_key_may_be_in_one_file() {
    let (certificate, key) = self_signed_pair("weir");
    let both = format!("{key}{certificate}");
    let file = PemInput::new("both.pem", both.as_bytes());
    assert_eq!(parse_certified_key(file, file).unwrap().cert.len(), 1);
}

#[test]
fn debug_output_hides_pem_data() {
    let data = Pem::Data {
        location: SourceLocation {
            file: "k".into(),
            line: 1,
            column: 2,
        },
        field: "users[0]".to_owned(),
        bytes: b"secret".to_vec(),
    };
    assert_eq!(format!("{data:?}"), "Pem(k:1:2: users[0])");
    assert_eq!(
        format!("{:?}", Pem::File("/etc/ca.crt".into())),
        "Pem(/etc/ca.crt)"
    );
}

#[tokio::test]
async fn a_ca_file_is_read_and_a_missing_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = Pem::File(dir.path().join("ca.crt"));
    let missing = error_text(file.read().await);
    assert!(missing.contains("ca.crt: No such file"), "{missing}");
    std::fs::write(dir.path().join("ca.crt"), ca_pem()).unwrap();
    let text = file.read().await.unwrap();
    assert_eq!(parse_roots(&file.origin(), &text).unwrap().len(), 1);
}
