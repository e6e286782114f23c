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
use weir_kubernetes::api::gunzip::Gunzip;
use weir_kubernetes::api::list_scan::ListScan;
use weir_kubernetes::api::media_type::MediaType;
use weir_kubernetes::api::watch_scan::WatchScan;
use weir_kubernetes::request_info::RequestInfo;

/// Maximum of inflated event bytes of one watch. kube-apiserver does not compress them; a proxy
/// before it may.
const MAX_INFLATED_EVENT_BYTES: usize = 4 << 20;

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

/// The initial events of a watch.
pub(crate) struct InitialEventsObserver {
    /// Boxed, since a watch outlives its initial events by far.
    scan: Option<Box<WatchScan>>,
    gunzip: Option<Box<Gunzip>>,
    /// The media type, if it can be parsed, and whether the events are compressed.
    coding: Option<(MediaType, bool)>,
    observed_list: Option<ObservedList>,
}

/// How the initial events ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialEventsEnd {
    /// A bookmark marked the end: they were all.
    Bookmark,
    /// No data arrived for a while: there may be more.
    Idle,
}

/// The object of the last event of a watch so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastObject {
    /// An event has begun and not ended.
    Incomplete,
    /// The last event has ended. Its object has this many bytes.
    Complete(u64),
    /// No event has begun, or the stream cannot be read.
    Unknown,
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

impl InitialEventsObserver {
    /// Of this response to a watch; the initial events are recorded if there is an `observed_list`.
    pub(crate) fn for_response<B>(
        response: &Response<B>,
        observed_list: Option<ObservedList>,
    ) -> Self {
        Self {
            scan: None,
            gunzip: None,
            coding: response_coding(response).zip(is_gzip(response.headers())),
            observed_list,
        }
    }

    /// Starts scanning the events if they are to be recorded, or if their ends are needed.
    pub(crate) fn with_scan(mut self, needs_ends: bool) -> Self {
        if let Some((coding, gzip)) = self.coding
            && (needs_ends || self.observed_list.is_some())
        {
            self.scan = Some(Box::new(WatchScan::new(coding)));
            self.gunzip = gzip.then(|| Box::new(Gunzip::new(MAX_INFLATED_EVENT_BYTES)));
        }
        self
    }

    /// Observes these bytes. Returns whether the bookmark has arrived.
    pub(crate) fn feed(&mut self, data: &[u8]) -> bool {
        let Some(scan) = &mut self.scan else {
            return false;
        };
        let mut has_bookmark = false;
        match &mut self.gunzip {
            None => has_bookmark = scan.feed(data),
            Some(gunzip) => gunzip.feed(data, |piece| has_bookmark |= scan.feed(piece)),
        }
        has_bookmark
    }

    /// Whether the initial events are recorded at their end.
    pub(crate) const fn is_recording(&self) -> bool {
        self.scan.is_some() && self.observed_list.is_some()
    }

    /// The object of the last event.
    pub(crate) fn last_object(&self) -> LastObject {
        match &self.scan {
            Some(scan) if !scan.is_malformed() => match scan.last_object() {
                _ if !scan.is_between_events() => LastObject::Incomplete,
                Some(bytes) => LastObject::Complete(bytes),
                None => LastObject::Unknown,
            },
            Some(_) | None => LastObject::Unknown,
        }
    }

    /// Records the initial events at their end.
    pub(crate) fn finish(&mut self, end: InitialEventsEnd) {
        self.gunzip = None;
        let (Some(scan), Some((coding, _)), Some(listing)) =
            (self.scan.take(), self.coding, self.observed_list.take())
        else {
            return;
        };
        if !scan.is_malformed() {
            let complete = end == InitialEventsEnd::Bookmark;
            let events = scan.initial_events();
            listing
                .controller
                .record_initial_events(&listing.request, events, coding, complete);
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
