//! Learns the length of lists, and the initial events of watches. The seats of later requests are
//! estimated by them.
//!
//! Bytes are counted as they pass. The length of a response in gzip is at its end. A response of
//! one namespace, of a selection, or of a page after the first is not observed.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode, header, request};

use crate::flowcontrol::controller::Controller;
use crate::limits::list_bytes::BodyLength;
use weir_flowcontrol::work_estimator::object_counts::{FullList, ListResponse, SizeAccuracy};
use weir_kubernetes::api::watch_frames::{InitialEvents, MediaType};
use weir_kubernetes::request_info::RequestInfo;

/// A list, or a watch that begins with one, whose response is worth observing.
pub(crate) struct ObservedList {
    controller: Arc<Controller>,
    list: FullList,
    /// Whether the response may contain tables or metadata instead of the objects.
    is_abridged: bool,
}

/// The length of a response to a list.
pub(crate) struct ListLength {
    list: ObservedList,
    media_type: MediaType,
    length: BodyLength,
}

impl ObservedList {
    /// The list of this request, unless its response shows nothing.
    pub(crate) fn new(
        controller: &Arc<Controller>,
        info: &RequestInfo<'_>,
        head: &request::Parts,
    ) -> Option<Self> {
        Some(Self {
            list: FullList::of(info)?,
            controller: Arc::clone(controller),
            is_abridged: accepts_abridged(&head.headers),
        })
    }

    /// The length of this response, if it has objects.
    pub(crate) fn length_of<B>(self, response: &Response<B>) -> Option<Box<ListLength>> {
        Some(Box::new(ListLength {
            media_type: media_type(response)?,
            length: BodyLength::of_coding(is_gzip(response.headers())?),
            list: self,
        }))
    }

    /// Records the initial events of a watch: all objects.
    pub(crate) fn record_initial_events(self, events: InitialEvents, media_type: MediaType) {
        self.record(Some(events.objects), events.bytes, media_type);
    }

    fn record(&self, objects: Option<u64>, bytes: u64, media_type: MediaType) {
        let accuracy = match media_type {
            _ if self.is_abridged => SizeAccuracy::Abridged,
            MediaType::Json | MediaType::Cbor => SizeAccuracy::Text,
            MediaType::Protobuf => SizeAccuracy::Protobuf,
        };
        let response = ListResponse {
            objects,
            bytes,
            accuracy,
        };
        self.controller.record_list_response(&self.list, response);
    }
}

impl ListLength {
    /// Counts these bytes.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        self.length.feed(data);
    }

    /// Records the length at the response's end.
    pub(crate) fn finish(self) {
        let bytes = self.length.uncompressed();
        self.list.record(None, bytes, self.media_type);
    }
}

/// Whether the response may contain tables or metadata. A client that accepts them
/// prefers them to objects.
fn accepts_abridged(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(is_transformed)
}

/// Whether it requests a table or metadata.
fn is_transformed(media_type: &[u8]) -> bool {
    media_type
        .split(|byte| *byte == b';')
        .skip(1)
        .any(|parameter| {
            parameter
                .trim_ascii()
                .to_ascii_lowercase()
                .starts_with(b"as=")
        })
}

/// The media type of a response that is not compressed. kube-apiserver compresses no watch.
pub(crate) fn plain_media_type<B>(response: &Response<B>) -> Option<MediaType> {
    media_type(response).filter(|_| is_gzip(response.headers()) == Some(false))
}

fn media_type<B>(response: &Response<B>) -> Option<MediaType> {
    let content_type = response.headers().get(header::CONTENT_TYPE)?;
    MediaType::from_content_type(content_type.as_bytes())
        .filter(|_| response.status() == StatusCode::OK)
}

/// Whether the body is compressed with gzip; `None` for any other coding.
pub(crate) fn is_gzip(headers: &HeaderMap) -> Option<bool> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Some(false),
        Some(coding) if coding.as_bytes().eq_ignore_ascii_case(b"gzip") => Some(true),
        Some(coding) if coding.as_bytes().eq_ignore_ascii_case(b"identity") => Some(false),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_that_accepts_tables_or_metadata_gets_no_objects() {
        let is_abridged = |accepted: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for accepted in accepted {
                headers.append(header::ACCEPT, HeaderValue::from_static(accepted));
            }
            accepts_abridged(&headers)
        };
        // As client-go requests.
        for accepted in [
            "application/json, */*",
            "application/vnd.kubernetes.protobuf,application/json",
        ] {
            assert!(!is_abridged(&[accepted]), "{accepted}");
        }
        assert!(!is_abridged(&[]));
        // As kubectl and metadata informers request.
        for accepted in [
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            "application/json;v=v1; As=Table",
        ] {
            assert!(is_abridged(&[accepted]), "{accepted}");
            assert!(is_abridged(&["application/json", accepted]), "{accepted}");
        }
    }
}
