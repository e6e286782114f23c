//! What is exchanged with a credential plugin: an `ExecCredential` each way (`client.authentication.k8s.io`, versions v1 and
//! v1beta1, which differ in name only). Pure.
//!
//! Promises: nothing of an answer gets into a fault but the version it claims, for it holds secrets. Follows client-go 1.36
//! (`plugin/pkg/client/auth/exec/exec.go`).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::document;
use crate::document::Content;
use crate::document::Diagnostics;
use crate::document::Node;
use crate::document::SourceLocation;
use crate::upstream::credentials::bearer::UnencodableToken;
use crate::upstream::credentials::bearer::bearer_header;
use crate::upstream::tls::Pem;
use crate::upstream::tls::PemError;
use crate::upstream::tls::parse_certified_key;

/// The version of the exchange with the plugin; the answer has to be of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecApiVersion {
    /// `client.authentication.k8s.io/v1`
    V1,
    /// `client.authentication.k8s.io/v1beta1`
    V1Beta1,
}

impl ExecApiVersion {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }
}

/// A cluster as a plugin is told about it. Its `Debug` leaves out what can hold secrets.
#[derive(Clone, PartialEq)]
pub struct ClusterInfo {
    /// The API server's URL.
    pub server: String,
    /// The name that its certificate is checked against, if not the URL's.
    pub tls_server_name: Option<String>,
    /// Its CA; always handed over as data.
    pub ca: Option<Pem>,
    /// The proxy on the way there.
    pub proxy_url: Option<String>,
    /// Whether clients should not ask for compression.
    pub disable_compression: bool,
    /// What the cluster's extension `client.authentication.k8s.io/exec` holds, or null.
    pub config: Value,
}

impl fmt::Debug for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterInfo({})", self.server)
    }
}

/// What a plugin gave.
pub(super) struct PluginCredential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    pub(super) expires: Option<SystemTime>,
}

/// Why an answer is no credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecCredentialError {
    /// It is in another version.
    ApiVersion {
        /// The one it was asked in.
        asked: ExecApiVersion,
        /// The one it claims, shortened.
        answered: String,
    },
    /// The certificate or the key is not one.
    Certificate(PemError),
    /// There is a certificate and no key.
    CertificateWithoutKey,
    /// There is no answer.
    Empty,
    /// The expiration is not a time.
    Expiration,
    /// There is a key and no certificate.
    KeyWithoutCertificate,
    /// It says that it is something else.
    Kind,
    /// There is neither a token nor a certificate.
    NoCredential,
    /// The token cannot be sent.
    Token(UnencodableToken),
    /// It is neither JSON nor YAML, or a field has another type.
    Malformed {
        /// Where, from 1; 0 for the answer as a whole.
        line: u32,
        /// Where in the line, likewise.
        column: u32,
    },
}

impl ExecCredentialError {
    fn malformed(place: &SourceLocation) -> Self {
        Self::Malformed {
            line: place.line,
            column: place.column,
        }
    }
}

impl fmt::Display for ExecCredentialError {
    /// In words that follow the plugin's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiVersion { asked, answered } => {
                write!(
                    f,
                    "is configured for {}, but answered in {answered:?}",
                    asked.as_str()
                )
            }
            Self::Certificate(fault) => write!(f, "gave no usable certificate: {fault}"),
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

/// What a plugin is asked; it may be told about a cluster, whose CA has been read.
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
        let given = optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let always = [
            ("server", self.server.clone().into()),
            ("config", self.config.clone()),
        ];
        always
            .into_iter()
            .chain(given)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Reads what a plugin printed, in JSON or YAML; what weir has no use for is passed over.
pub(super) fn parse_output(
    output: &[u8],
    asked: ExecApiVersion,
) -> Result<PluginCredential, ExecCredentialError> {
    let text = str::from_utf8(output)
        .map_err(|_| ExecCredentialError::Malformed { line: 0, column: 0 })?;
    let mut faults = Diagnostics::default();
    let found = document::parse_all("", text, &mut faults);
    if let Some(fault) = faults.iter().next() {
        return Err(ExecCredentialError::malformed(&fault.location));
    }
    let Some(answer) = found.first() else {
        return Err(ExecCredentialError::Empty);
    };
    let answered = text_field(answer, "apiVersion")?;
    let kind = text_field(answer, "kind")?.unwrap_or("ExecCredential");
    let (Some(answered), "ExecCredential") = (answered, kind) else {
        return Err(ExecCredentialError::Kind);
    };
    if answered != asked.as_str() {
        let answered = answered.chars().take(80).collect();
        return Err(ExecCredentialError::ApiVersion { asked, answered });
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

/// A string; the empty one is the same as none, as in Go.
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
            ("clientCertificateData", certificate.as_bytes()),
            ("clientKeyData", key.as_bytes()),
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
