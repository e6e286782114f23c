//! The input and output of a credential plugin: an `ExecCredential` each
//! (`client.authentication.k8s.io`, versions v1 and v1beta1, which differ in name only). Pure.
//!
//! Promises: an error contains nothing of the output but the version that it claims, for it
//! contains secrets. Follows client-go 1.36 (`plugin/pkg/client/auth/exec/exec.go`).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use serde_json::{Map, Value, json};

use crate::upstream::tls::{Pem, PemError, PemInput, parse_certified_key};
use weir_kubernetes::document;
use weir_kubernetes::document::{Content, Diagnostics, Node, SourceLocation};
use weir_tokens::bearer::{UnencodableToken, bearer_header};

/// The version of the input; the output has to be of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecApiVersion {
    /// `client.authentication.k8s.io/v1`
    V1,
    /// `client.authentication.k8s.io/v1beta1`
    V1Beta1,
}

impl ExecApiVersion {
    /// The value of `apiVersion`.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }
}

/// The cluster as a plugin's input describes it. Its `Debug` leaves out what can contain secrets.
#[derive(Clone, PartialEq)]
pub(crate) struct ClusterInfo {
    /// The API server's URL.
    pub(crate) server: String,
    /// The name that its certificate is verified against, if not the URL's.
    pub(crate) tls_server_name: Option<String>,
    /// Its CA; always passed as data.
    pub(crate) ca: Option<Pem>,
    /// The proxy to it.
    pub(crate) proxy_url: Option<String>,
    /// Whether clients should not request compression.
    pub(crate) disable_compression: bool,
    /// The content of the cluster's extension `client.authentication.k8s.io/exec`, or null.
    pub(crate) config: Value,
}

impl fmt::Debug for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterInfo({})", self.server)
    }
}

/// The credential in a plugin's output.
pub(super) struct PluginCredential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    pub(super) expires: Option<SystemTime>,
}

/// Why a plugin's output is not a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecCredentialError {
    /// It has another version.
    ApiVersion {
        /// The version of the input.
        expected: ExecApiVersion,
        /// The version that it claims, shortened.
        actual: String,
    },
    /// The certificate or the key is invalid.
    Certificate(PemError),
    /// There is a certificate and no key.
    CertificateWithoutKey,
    /// The output is empty.
    Empty,
    /// The expiration is not a time.
    Expiration,
    /// There is a key and no certificate.
    KeyWithoutCertificate,
    /// It claims another kind.
    Kind,
    /// There is neither a token nor a certificate.
    NoCredential,
    /// The token cannot be sent.
    Token(UnencodableToken),
    /// It is neither JSON nor YAML, or a field has another type.
    Malformed {
        /// The line, from 1; 0 for the output as a whole.
        line: u32,
        /// The column, likewise.
        column: u32,
    },
}

impl ExecCredentialError {
    fn malformed(location: &SourceLocation) -> Self {
        Self::Malformed {
            line: location.line,
            column: location.column,
        }
    }
}

impl fmt::Display for ExecCredentialError {
    /// The text follows the plugin's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiVersion { expected, actual } => {
                write!(
                    f,
                    "is configured for {}, but answered in {actual:?}",
                    expected.as_str()
                )
            }
            Self::Certificate(error) => write!(f, "gave no usable certificate: {error}"),
            Self::CertificateWithoutKey => f.write_str("gave a certificate without its key"),
            Self::Empty => f.write_str("printed nothing"),
            Self::Expiration => {
                f.write_str("gave an expirationTimestamp that is not a time as RFC 3339 has it")
            }
            Self::KeyWithoutCertificate => f.write_str("gave a key without its certificate"),
            Self::Kind => f.write_str("printed an object that is not of the kind ExecCredential"),
            Self::NoCredential => f.write_str("gave neither a token nor a certificate"),
            Self::Token(why) => write!(f, "gave {why}"),
            Self::Malformed { line, column } => {
                write!(
                    f,
                    "printed what is not an ExecCredential (line {line}, column {column})"
                )
            }
        }
    }
}

/// The input of a plugin; it may describe a cluster, whose CA has been read.
pub(super) fn encode_exec_info(
    version: ExecApiVersion,
    cluster: Option<(&ClusterInfo, &[u8])>,
) -> String {
    let mut spec = Map::new();
    spec.insert("interactive".to_owned(), false.into());
    if let Some((cluster, ca)) = cluster {
        spec.insert("cluster".to_owned(), cluster.to_json(ca));
    }
    json!({ "apiVersion": version.as_str(), "kind": "ExecCredential", "spec": spec }).to_string()
}

impl ClusterInfo {
    fn to_json(&self, ca: &[u8]) -> Value {
        let ca = (!ca.is_empty()).then(|| BASE64_STANDARD.encode(ca));
        let compression = self.disable_compression.then_some(Value::from(true));
        let optional = [
            (
                "tls-server-name",
                self.tls_server_name.clone().map(Value::from),
            ),
            ("proxy-url", self.proxy_url.clone().map(Value::from)),
            ("disable-compression", compression),
            ("certificate-authority-data", ca.map(Value::from)),
        ];
        let present = optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let always = [
            ("server", self.server.clone().into()),
            ("config", self.config.clone()),
        ];
        always
            .into_iter()
            .chain(present)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Parses a plugin's output, in JSON or YAML; fields that weir does not use are ignored.
pub(super) fn parse_output(
    output: &[u8],
    expected: ExecApiVersion,
) -> Result<PluginCredential, ExecCredentialError> {
    let text = str::from_utf8(output)
        .map_err(|_| ExecCredentialError::Malformed { line: 0, column: 0 })?;
    let mut diagnostics = Diagnostics::default();
    let documents = document::parse_all("", text, &mut diagnostics);
    if let Some(error) = diagnostics.iter().next() {
        return Err(ExecCredentialError::malformed(&error.location));
    }
    let Some(answer) = documents.first() else {
        return Err(ExecCredentialError::Empty);
    };
    let actual = text_field(answer, "apiVersion")?;
    let kind = text_field(answer, "kind")?.unwrap_or("ExecCredential");
    let (Some(actual), "ExecCredential") = (actual, kind) else {
        return Err(ExecCredentialError::Kind);
    };
    if actual != expected.as_str() {
        let actual = actual.chars().take(80).collect();
        return Err(ExecCredentialError::ApiVersion { expected, actual });
    }
    let Some(status) = answer.field("status").filter(|status| !status.is_null()) else {
        return Err(ExecCredentialError::NoCredential);
    };
    let authorization = text_field(status, "token")?
        .map(|token| bearer_header(token).map_err(ExecCredentialError::Token))
        .transpose()?;
    let certificate = parse_certificate(
        text_field(status, "clientCertificateData")?,
        text_field(status, "clientKeyData")?,
    )?;
    if authorization.is_none() && certificate.is_none() {
        return Err(ExecCredentialError::NoCredential);
    }
    let expires = text_field(status, "expirationTimestamp")?
        .map(|text| {
            text.parse::<Timestamp>()
                .map_err(|_| ExecCredentialError::Expiration)
        })
        .transpose()?;
    Ok(PluginCredential {
        authorization,
        certificate,
        expires: expires.map(SystemTime::from),
    })
}

/// A string; an empty one counts as absent, as in Go.
fn text_field<'n>(node: &'n Node, name: &str) -> Result<Option<&'n str>, ExecCredentialError> {
    if !matches!(node.content, Content::Mapping(_)) {
        return Err(ExecCredentialError::malformed(&node.location));
    }
    let Some(value) = node.field(name).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let text = value
        .as_str()
        .ok_or_else(|| ExecCredentialError::malformed(&value.location))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn parse_certificate(
    certificate: Option<&str>,
    key: Option<&str>,
) -> Result<Option<Arc<CertifiedKey>>, ExecCredentialError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => parse_certified_key(
            PemInput::new("clientCertificateData", certificate.as_bytes()),
            PemInput::new("clientKeyData", key.as_bytes()),
        )
        .map(Some)
        .map_err(ExecCredentialError::Certificate),
        (Some(_), None) => Err(ExecCredentialError::CertificateWithoutKey),
        (None, Some(_)) => Err(ExecCredentialError::KeyWithoutCertificate),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
#[path = "exec_credential_tests.rs"]
pub(crate) mod tests;
