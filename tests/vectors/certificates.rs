//! Which certificates Go accepts: `generate/` writes the cases, with the verdict of the Go that it
//! runs with (1.19). Where Kubernetes' newer Go decides differently, `by` is `hand`, and `why` says
//! since when.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use weir::identity::client_certificate::{CertificateVerifier, PeerCertificate};
use weir::upstream::tls::ServerVerifier;
use weir_x509::CertificatePool;

use crate::support;

fn certificates(list: &Value) -> Vec<CertificateDer<'static>> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| {
        let der = BASE64_STANDARD.decode(text.as_str().unwrap_or_default());
        CertificateDer::from(der.unwrap_or_else(|why| panic!("{text}: {why}")))
    })
    .collect()
}

/// Compares the results of all cases, and names those that differ.
fn compare(cases: &[Value], decide: impl Fn(&Value, Duration) -> Result<Value, String>) {
    let mut differ = Vec::new();
    for case in cases {
        let expected = &case["expected"];
        let at = case.pointer("/input/at").and_then(Value::as_u64);
        let at = Duration::from_secs(at.unwrap_or_default());
        let found = decide(&case["input"], at);
        let same = match &found {
            Ok(user) => {
                expected["accepted"] == json!(true)
                    && ["name", "groups", "uid"]
                        .iter()
                        .all(|field| user[field] == expected[field])
            }
            Err(_) => expected["accepted"] == json!(false),
        };
        if !same {
            differ.push(format!("{}: {found:?}, not {expected}", case["name"]));
        }
    }
    assert!(
        differ.is_empty(),
        "{} differ:\n{}",
        differ.len(),
        differ.join("\n")
    );
}

/// Leaves out what is empty, as the cases do.
fn text_or_null(text: &str) -> Value {
    if text.is_empty() {
        Value::Null
    } else {
        json!(text)
    }
}

#[test]
fn clients_are_who_go_says_they_are() {
    let cases = support::cases("client_certificates");
    compare(&cases, |input, at| {
        let roots = CertificatePool::of_parsable(certificates(&input["roots"]));
        let verifier = CertificateVerifier::new(roots, Arc::new(aws_lc_rs::default_provider()))
            .map_err(|why| why.to_string())?;
        let chain = certificates(&input["chain"]);
        let certificate = PeerCertificate::new(Some(&chain)).ok_or("no certificate")?;
        let user = certificate.user(&verifier, SystemTime::UNIX_EPOCH + at);
        let user = user.map_err(|why| why.to_string())?;
        let mut groups = user.groups.clone();
        if groups
            .last()
            .is_some_and(|last| last == "system:authenticated")
        {
            groups.pop();
        }
        Ok(json!({
            "name": user.name,
            "groups": if groups.is_empty() { Value::Null } else { json!(groups) },
            "uid": text_or_null(&user.uid),
        }))
    });
}

#[test]
fn servers_are_accepted_if_kubectl_accepts_them() {
    let cases = support::cases("server_certificates");
    compare(&cases, |input, at| {
        let roots = CertificatePool::of_parsable(certificates(&input["roots"]));
        let chain = certificates(&input["chain"]);
        let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
        let host = input["host"].as_str().unwrap_or_default();
        let server = match host.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(host).map_err(|why| why.to_string())?,
        };
        let now = UnixTime::since_unix_epoch(at);
        ServerVerifier::new(roots)
            .verify_server_cert(leaf, intermediates, &server, &[], now)
            .map(|_| json!({}))
            .map_err(|why| why.to_string())
    });
}
