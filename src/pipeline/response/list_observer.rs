//! Learns from lists and from the initial events of watches how many objects there are and how
//! large they are. The seats of later requests are estimated by it.
//!
//! Bytes are observed as they pass and never delayed. A response that shows nothing (of one
//! namespace, of a selection, or a page after the first, if the size of the objects is known) is
//! not observed.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode, header, request};

use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::list_samples::{ListRequest, ListSampleBuilder};
use weir_flowcontrol::work_estimator::object_counts::lists_all_objects;
use weir_kubernetes::api::list_scan::ListScan;
use weir_kubernetes::api::media_type::MediaType;
use weir_kubernetes::api::watch_frames::InitialEvents;
use weir_kubernetes::request_info::RequestInfo;

/// A list, or a watch that begins with one, whose response is worth observing.
pub(crate) struct ObservedList {
    controller: Arc<Controller>,
    request: ListRequest,
}

/// A response that is observed.
pub(crate) enum ListObserver {
    /// Observed as it is.
    Plain {
        scan: ListScan,
        listing: ObservedList,
    },
    /// Copied in part, and inflated off the hot path.
    Compressed(ListSampleBuilder),
}

impl ObservedList {
    /// The list of this request, unless its response shows nothing. A list of a part of the objects
    /// only shows their size, if it is unknown.
    pub(crate) fn new(
        controller: &Arc<Controller>,
        info: &RequestInfo<'_>,
        head: &request::Parts,
    ) -> Option<Self> {
        let target = head
            .uri
            .path_and_query()
            .filter(|_| lists_all_objects(info) || controller.lacks_size(info))?;
        let request = ListRequest {
            method: head.method.clone(),
            target: target.clone(),
            whole_objects: asks_for_objects(&head.headers),
        };
        Some(Self {
            controller: Arc::clone(controller),
            request,
        })
    }

    /// The observer of this response, if it can be parsed.
    pub(crate) fn observer_for<B>(self, response: &Response<B>) -> Option<Box<ListObserver>> {
        let media_type = response_coding(response)?;
        let observer = if is_gzip(response.headers())? {
            ListObserver::Compressed(self.controller.start_list_sample(self.request, media_type))
        } else {
            ListObserver::Plain {
                scan: ListScan::new(media_type),
                listing: self,
            }
        };
        Some(Box::new(observer))
    }

    /// Records the initial events of a watch: all objects.
    pub(crate) fn record_initial_events(self, events: InitialEvents, media_type: MediaType) {
        self.controller
            .record_initial_events(&self.request, events, media_type);
    }
}

impl ListObserver {
    /// Observes these bytes.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        match self {
            Self::Plain { scan, .. } => scan.feed(data),
            Self::Compressed(sampling) => sampling.feed(data),
        }
    }

    /// Records the observed list at the response's end.
    pub(crate) fn finish(self) {
        match self {
            Self::Plain { scan, listing } => {
                if let Some(summary) = scan.finish() {
                    listing
                        .controller
                        .record_list_response(&listing.request, summary);
                }
            }
            Self::Compressed(sampling) => sampling.finish(),
        }
    }
}

/// Whether the response may contain the objects themselves: one of the accepted media types has no
/// `as`.
fn asks_for_objects(headers: &HeaderMap) -> bool {
    let mut media_types = headers
        .get_all(header::ACCEPT)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .peekable();
    media_types.peek().is_none() || media_types.any(|media_type| !is_transformed(media_type))
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
    response_coding(response).filter(|_| is_gzip(response.headers()) == Some(false))
}

fn response_coding<B>(response: &Response<B>) -> Option<MediaType> {
    let content_type = response.headers().get(header::CONTENT_TYPE)?;
    MediaType::from_content_type(content_type.as_bytes())
        .filter(|_| response.status() == StatusCode::OK)
}

/// Whether the body is compressed with gzip; `None` for any other coding.
fn is_gzip(headers: &HeaderMap) -> Option<bool> {
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
    fn all_accepted_media_types_decide_whether_objects_are_requested() {
        let asks = |accepted: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for accepted in accepted {
                headers.append(header::ACCEPT, HeaderValue::from_static(accepted));
            }
            asks_for_objects(&headers)
        };
        assert!(asks(&[]));
        assert!(asks(&["application/json, */*"]));
        // As client-go and kubectl request.
        assert!(asks(&[
            "application/vnd.kubernetes.protobuf,application/json"
        ]));
        assert!(asks(&[
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        ]));
        let metadata =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert!(!asks(&[metadata]));
        assert!(!asks(&[metadata, "application/json;v=v1; As=Table"]));
        assert!(asks(&[metadata, "application/json"]));
    }
}
