use super::*;
use crate::upstream::tls::tests::self_signed_pair;

/// A plugin output with the given status.
pub(crate) fn exec_credential(status: &Value) -> String {
    let version = ExecApiVersion::V1.as_str();
    json!({ "apiVersion": version, "kind": "ExecCredential", "status": status }).to_string()
}

fn parse(output: &str) -> Result<PluginCredential, String> {
    parse_output(output.as_bytes(), ExecApiVersion::V1).map_err(|fault| fault.to_string())
}

#[test]
fn the_output_holds_a_token_or_a_certificate_or_both() {
    let (certificate, key) = self_signed_pair("weir");
    let token = parse(&exec_credential(
        &json!({ "token": "t", "expirationTimestamp": null }),
    ))
    .unwrap();
    assert_eq!(token.authorization.unwrap(), "Bearer t");
    assert!(token.certificate.is_none() && token.expires.is_none());
    let yaml = "apiVersion: client.authentication.k8s.io/v1\nstatus: {token: t}\n";
    assert_eq!(parse(yaml).unwrap().authorization.unwrap(), "Bearer t");
    let status = json!({
        "token": "t",
        "clientCertificateData": certificate,
        "clientKeyData": key,
        "expirationTimestamp": "2026-11-21T04:05:06+01:00",
        "later": { "fields": "are ignored" },
    });
    let both = parse(&exec_credential(&status)).unwrap();
    assert!(both.authorization.is_some() && both.certificate.is_some());
    let since = both
        .expires
        .unwrap()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(since.as_secs(), 1_795_230_306);
}

#[test]
fn errors_for_unusable_output_do_not_quote_it() {
    let (certificate, key) = self_signed_pair("weir");
    let (other, _) = self_signed_pair("other");
    let status = |status: Value| exec_credential(&status);
    let cases = [
        (" \n".to_owned(), "printed nothing"),
        ("[secret".to_owned(), "printed what is not an ExecCredential (line "),
        (status(json!("secret")), "printed what is not an ExecCredential (line 1, column "),
        (format!("{} secret", status(json!({ "token": "t" }))), "printed what is not an ExecCredential"),
        (status(json!({ "token": 5 })), "printed what is not an ExecCredential (line 1, column "),
        ("secret".to_owned(), "printed what is not an ExecCredential (line 1, column 1)"),
        ("no: secret".to_owned(), "printed an object that is not of the kind ExecCredential"),
        ("{\"kind\": \"Secret\"}".to_owned(), "printed an object that is not of the kind ExecCredential"),
        (
            "{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1beta1\"}".to_owned(),
            "is configured for client.authentication.k8s.io/v1, but answered in \"client.authentication.k8s.io/v1beta1\"",
        ),
        (status(Value::Null), "gave neither a token nor a certificate"),
        (status(json!({ "token": "" })), "gave neither a token nor a certificate"),
        (status(json!({ "token": "secret\n" })), "gave a token with characters that no HTTP header"),
        (status(json!({ "clientCertificateData": certificate })), "gave a certificate without its key"),
        (status(json!({ "clientKeyData": key })), "gave a key without its certificate"),
        (
            status(json!({ "clientCertificateData": other, "clientKeyData": key })),
            "gave no usable certificate: clientKeyData: the key does not belong",
        ),
        (status(json!({ "clientCertificateData": "secret", "clientKeyData": key })), "gave no usable certificate"),
        (
            status(json!({ "token": "secret", "expirationTimestamp": "tomorrow" })),
            "gave an expirationTimestamp that is not a time",
        ),
    ];
    for (output, expected) in cases {
        let message = parse(&output).err().unwrap();
        assert!(
            message.starts_with(expected),
            "{message}\nexpected {expected}"
        );
        assert!(
            !message.contains("secret") && !message.contains("PRIVATE KEY"),
            "{message}"
        );
    }
}
