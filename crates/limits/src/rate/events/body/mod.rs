//! Reads what the limits need from the body of an event, without decoding the object.
//!
//! A body is read as kube-apiserver's decoders (1.36.2) read it, as far as the limits need it: the
//! fields that name the source and the object, the name, type, kind and version of the event.
//! Everything else must be well-formed and have the types of an event's fields.
//!
//! Each format but protobuf is a pull parser (`event_parser`). The fields, their types and the
//! handling of duplicates are common to these formats (`event_fields`).

mod cbor;
mod event_fields;
mod event_parser;
mod field_types;
mod json;
#[cfg(all(fuzzing, not(test)))]
pub mod model_tests;
#[cfg(test)]
mod model_tests;
mod protobuf;
#[cfg(test)]
mod tests;
mod yaml;

use crate::rate::events::body::event_fields::read_event;

pub use event_fields::EventBody;
pub use event_fields::EventSchema;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEncoding {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
    /// `application/yaml`.
    Yaml,
}

impl EventEncoding {
    /// The encoding for a `Content-Type`; JSON if there is none. `None` for types that
    /// kube-apiserver rejects with 415.
    #[must_use]
    pub fn from_content_type(content_type: Option<&[u8]>) -> Option<Self> {
        match &*media_type(content_type) {
            b"" | b"application/json" => Some(Self::Json),
            b"application/cbor" => Some(Self::Cbor),
            b"application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            b"application/yaml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// The encoding for the `Content-Type` of a patch that contains the whole object: server-side
    /// apply.
    #[must_use]
    pub fn from_patch_content_type(content_type: Option<&[u8]>) -> Option<Self> {
        match &*media_type(content_type) {
            b"application/apply-patch+cbor" => Some(Self::Cbor),
            b"application/apply-patch+yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

fn media_type(content_type: Option<&[u8]>) -> Vec<u8> {
    let media = content_type
        .unwrap_or_default()
        .split(|byte| *byte == b';')
        .next();
    media.unwrap_or_default().trim_ascii().to_ascii_lowercase()
}

/// Reads a body that was sent to an endpoint of `group_version`. `None` if it is not an event.
#[must_use]
pub fn parse<'b>(
    encoding: EventEncoding,
    group_version: &[u8],
    body: &'b [u8],
) -> Option<EventBody<'b>> {
    let found = match encoding {
        EventEncoding::Cbor => read_event(&mut cbor::CborEventParser::new(body)),
        EventEncoding::Json => read_event(&mut json::JsonEventParser::new(body)),
        EventEncoding::Protobuf => protobuf::parse(body),
        EventEncoding::Yaml => yaml::parse(body),
    };
    found?.into_event_body(group_version)
}
