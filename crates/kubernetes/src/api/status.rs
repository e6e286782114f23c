//! `metav1.Status`, Kubernetes' error response, in JSON and in Kubernetes' protobuf.
//!
//! `kubectl` prints [`Status::message`]; client-go acts on `code`, `reason` and the `Retry-After`
//! header. weir puts its name and the exceeded limit in the first cause, so that a client's log
//! shows what rejected the request.

use bytes::Bytes;
use prost::Message;
use serde::Serialize;

use crate::encoding::protobuf::KUBERNETES_MAGIC;

/// A rejection or failure, before it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// Kubernetes' reason in one word, e.g. `TooManyRequests`.
    pub reason: &'static str,
    /// The human-readable message.
    pub message: String,
    /// The limit that rejected the request, e.g. `weir/max-requests-inflight`; empty for a Status
    /// without details.
    pub cause: &'static str,
    /// Whole seconds after which the client should retry; `None` if a retry does not help.
    pub retry_after_seconds: Option<u32>,
}

impl Status {
    /// Encodes the Status as JSON with a trailing newline, as kube-apiserver writes it.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        // A struct of strings and numbers always serializes.
        let mut text = serde_json::to_vec(&self.json()).unwrap_or_default();
        text.push(b'\n');
        text.into()
    }

    /// Encodes the Status as indented JSON, which kube-apiserver writes without a newline at its
    /// end.
    #[must_use]
    pub fn to_indented_json(&self) -> Bytes {
        serde_json::to_vec_pretty(&self.json())
            .unwrap_or_default()
            .into()
    }

    fn json(&self) -> json::JsonStatus<'_> {
        json::JsonStatus {
            kind: "Status",
            api_version: "v1",
            metadata: json::JsonListMeta {},
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: (!self.cause.is_empty()).then(|| json::JsonStatusDetails {
                causes: [json::JsonStatusCause {
                    reason: self.cause,
                    message: &self.message,
                }],
                retry_after_seconds: self.retry_after_seconds,
            }),
            code: self.code,
        }
    }

    /// Encodes the Status as `application/vnd.kubernetes.protobuf`: the magic, then
    /// `runtime.Unknown` with the Status inside.
    #[must_use]
    pub fn to_protobuf(&self) -> Bytes {
        let status = protobuf::ProtobufStatus {
            metadata: Some(protobuf::ListMeta {}),
            status: "Failure".to_owned(),
            message: self.message.clone(),
            reason: self.reason.to_owned(),
            details: (!self.cause.is_empty()).then(|| protobuf::ProtobufStatusDetails {
                causes: vec![protobuf::ProtobufStatusCause {
                    reason: self.cause.to_owned(),
                    message: self.message.clone(),
                }],
                retry_after_seconds: i32::try_from(self.retry_after_seconds.unwrap_or(0))
                    .unwrap_or(i32::MAX),
            }),
            code: i32::from(self.code),
        };
        let unknown = protobuf::Unknown {
            type_meta: Some(protobuf::TypeMeta {
                api_version: "v1".to_owned(),
                kind: "Status".to_owned(),
            }),
            raw: status.encode_to_vec(),
        };
        let mut bytes = KUBERNETES_MAGIC.to_vec();
        bytes.extend_from_slice(&unknown.encode_to_vec());
        bytes.into()
    }
}

/// Truncates `message` so that it takes at most `max_bytes` bytes as a JSON string of a Status,
/// with an ellipsis if anything was cut. Quotes and backslashes take two bytes, control characters
/// up to six.
#[must_use]
pub fn truncate_for_json(mut message: String, max_bytes: usize) -> String {
    let mut remaining = max_bytes;
    let end = message.char_indices().find_map(|(at, char)| {
        let in_json = match char {
            '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
            '\0'..='\u{1f}' => 6,
            _ => char.len_utf8(),
        };
        match remaining.checked_sub(in_json) {
            Some(rest) => {
                remaining = rest;
                None
            }
            None => Some(at),
        }
    });
    if let Some(end) = end {
        message.truncate(end);
        message.push('…');
        message.shrink_to_fit();
    }
    message
}

mod json {
    use super::Serialize;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct JsonStatus<'a> {
        pub(super) kind: &'static str,
        pub(super) api_version: &'static str,
        pub(super) metadata: JsonListMeta,
        pub(super) status: &'static str,
        pub(super) message: &'a str,
        pub(super) reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(super) details: Option<JsonStatusDetails<'a>>,
        pub(super) code: u16,
    }

    #[derive(Serialize)]
    pub(super) struct JsonListMeta {}

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct JsonStatusDetails<'a> {
        pub(super) causes: [JsonStatusCause<'a>; 1],
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(super) retry_after_seconds: Option<u32>,
    }

    #[derive(Serialize)]
    pub(super) struct JsonStatusCause<'a> {
        pub(super) reason: &'static str,
        pub(super) message: &'a str,
    }
}

/// The fields and numbers of `k8s.io/apimachinery/pkg/{apis/meta/v1,runtime}/generated.proto` that
/// a Status needs.
mod protobuf {
    use super::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Unknown {
        #[prost(message, optional, tag = "1")]
        pub(super) type_meta: Option<TypeMeta>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) raw: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct TypeMeta {
        #[prost(string, tag = "1")]
        pub(super) api_version: String,
        #[prost(string, tag = "2")]
        pub(super) kind: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProtobufStatus {
        #[prost(message, optional, tag = "1")]
        pub(super) metadata: Option<ListMeta>,
        #[prost(string, tag = "2")]
        pub(super) status: String,
        #[prost(string, tag = "3")]
        pub(super) message: String,
        #[prost(string, tag = "4")]
        pub(super) reason: String,
        #[prost(message, optional, tag = "5")]
        pub(super) details: Option<ProtobufStatusDetails>,
        #[prost(int32, tag = "6")]
        pub(super) code: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ListMeta {}

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProtobufStatusDetails {
        #[prost(message, repeated, tag = "4")]
        pub(super) causes: Vec<ProtobufStatusCause>,
        #[prost(int32, tag = "5")]
        pub(super) retry_after_seconds: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ProtobufStatusCause {
        #[prost(string, tag = "1")]
        pub(super) reason: String,
        #[prost(string, tag = "2")]
        pub(super) message: String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full_status() -> Status {
        Status {
            code: 429,
            reason: "TooManyRequests",
            message: "too many".to_owned(),
            cause: "weir/max-requests-inflight",
            retry_after_seconds: Some(1),
        }
    }

    #[test]
    fn json_has_the_fields_that_kubectl_reads() {
        let value: serde_json::Value = serde_json::from_slice(&full_status().to_json()).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "too many", "reason": "TooManyRequests",
                "details": {
                    "causes": [{"reason": "weir/max-requests-inflight", "message": "too many"}],
                    "retryAfterSeconds": 1,
                },
                "code": 429,
            })
        );
    }

    #[test]
    fn protobuf_has_the_magic_the_type_and_the_same_fields() {
        let bytes = full_status().to_protobuf();
        let unknown =
            protobuf::Unknown::decode(bytes.strip_prefix(KUBERNETES_MAGIC).unwrap()).unwrap();
        assert_eq!(unknown.type_meta.unwrap().kind, "Status");
        let status = protobuf::ProtobufStatus::decode(unknown.raw.as_slice()).unwrap();
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests")
        );
        let details = status.details.unwrap();
        assert_eq!(details.retry_after_seconds, 1);
        assert_eq!(details.causes[0].reason, "weir/max-requests-inflight");
    }
}
