//! The encodings of objects in request and response bodies.

/// The encoding of objects in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`; kube-apiserver also stores built-in resources in it.
    Protobuf,
}

impl MediaType {
    /// The encoding that a `Content-Type` names; its parameters are ignored. `None` for any other
    /// type.
    #[must_use]
    pub fn from_content_type(content_type: &[u8]) -> Option<Self> {
        let media_type = content_type
            .split(|byte| *byte == b';')
            .next()?
            .trim_ascii();
        let is = |name: &[u8]| media_type.eq_ignore_ascii_case(name);
        if is(b"application/json") {
            Some(Self::Json)
        } else if is(b"application/vnd.kubernetes.protobuf") {
            Some(Self::Protobuf)
        } else if is(b"application/cbor") || is(b"application/cbor-seq") {
            Some(Self::Cbor)
        } else {
            None
        }
    }
}
