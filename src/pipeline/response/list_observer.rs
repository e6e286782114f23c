//! What answers tell of how many objects there are, and how large: lists, and the initial events of watches. Later requests'
//! seats are estimated by that.
//!
//! Bytes are looked at as they go by and never held up. Of an answer that can tell nothing (of one namespace, of a selection,
//! a page after the first, as long as the size of the objects is known) nothing is made.

use std::sync::Arc;

use http::HeaderMap;
use http::Response;
use http::StatusCode;
use http::header;
use http::request;

use crate::api::gunzip::Gunzip;
use crate::api::list_scan::ListScan;
use crate::api::list_scan::MediaType;
use crate::api::watch_scan::WatchScan;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::work_estimator::list_samples::ListRequest;
use crate::flowcontrol::work_estimator::list_samples::ListSampleBuilder;
use crate::flowcontrol::work_estimator::object_counts::lists_all_objects;
use crate::request_info::RequestInfo;

/// What is inflated of the events of one watch. kube-apiserver does not compress them; what stands before it may.
const MAX_INFLATED_EVENT_BYTES: usize = 4 << 20;

/// A list, or a watch that begins with one, from whose answer something can be learned.
pub(in crate::pipeline) struct ObservedList {
    controller: Arc<Controller>,
    request: ListRequest,
}

/// An answer that goes by.
pub(in crate::pipeline) enum ListObserver {
    /// Looked at as it is.
    Plain {
        scan: ListScan,
        listing: ObservedList,
    },
    /// Copied in part, and looked at beside its way.
    Compressed(ListSampleBuilder),
}

/// The initial events of a watch.
pub(in crate::pipeline) struct InitialEventsObserver {
    /// In boxes, for a watch outlives its initial events by far.
    scan: Option<Box<WatchScan>>,
    gunzip: Option<Box<Gunzip>>,
    /// How they are written, if they can be read, and whether they are compressed.
    coding: Option<(MediaType, bool)>,
    observed_list: Option<ObservedList>,
}

/// How the initial events came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum InitialEventsEnd {
    /// There was a bookmark that says so: they were all.
    Bookmark,
    /// Nothing came for a while: there may be more.
    Idle,
}

impl ObservedList {
    /// Of this request, unless its answer tells nothing. Of a part of the objects only their size is
    /// taken, where it is not known.
    pub(in crate::pipeline) fn new(
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

    /// Of this answer to it, if it is one that can be read.
    pub(in crate::pipeline) fn observer_for<B>(
        self,
        response: &Response<B>,
    ) -> Option<Box<ListObserver>> {
        let coding = response_coding(response)?;
        let observer = if is_gzip(response.headers())? {
            ListObserver::Compressed(self.controller.start_list_sample(self.request, coding))
        } else {
            ListObserver::Plain {
                scan: ListScan::new(coding),
                listing: self,
            }
        };
        Some(Box::new(observer))
    }
}

impl ListObserver {
    /// These bytes go by.
    pub(in crate::pipeline) fn feed(&mut self, data: &[u8]) {
        match self {
            Self::Plain { scan, .. } => scan.feed(data),
            Self::Compressed(sampling) => sampling.feed(data),
        }
    }

    /// It has come to its end.
    pub(in crate::pipeline) fn finish(self) {
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
    /// Of this answer to a watch; what there was when it began is learned where there is a `listing`.
    pub(in crate::pipeline) fn for_response<B>(
        response: &Response<B>,
        listing: Option<ObservedList>,
    ) -> Self {
        Self {
            scan: None,
            gunzip: None,
            coding: response_coding(response).zip(is_gzip(response.headers())),
            observed_list: listing,
        }
    }

    /// Reads them if there is something to learn, or if the mark is wanted.
    pub(in crate::pipeline) fn with_scan(mut self, mark: bool) -> Self {
        if let Some((coding, gzip)) = self.coding
            && (mark || self.observed_list.is_some())
        {
            self.scan = Some(Box::new(WatchScan::new(coding)));
            self.gunzip = gzip.then(|| Box::new(Gunzip::new(MAX_INFLATED_EVENT_BYTES)));
        }
        self
    }

    /// These bytes go by. Returns whether the mark has come.
    pub(in crate::pipeline) fn feed(&mut self, data: &[u8]) -> bool {
        let Some(scan) = &mut self.scan else {
            return false;
        };
        let mut marked = false;
        match &mut self.gunzip {
            None => marked = scan.feed(data),
            Some(gunzip) => gunzip.feed(data, |piece| marked |= scan.feed(piece)),
        }
        marked
    }

    /// They have come to their end.
    pub(in crate::pipeline) fn finish(&mut self, end: InitialEventsEnd) {
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

/// Whether the objects themselves may be the answer: one of the media types that are accepted has no `as`.
fn asks_for_objects(headers: &HeaderMap) -> bool {
    let mut accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .peekable();
    accepted.peek().is_none() || accepted.any(|media_type| !is_transformed(media_type))
}

/// Whether it asks for a table or for metadata.
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

/// Whether it is compressed; none if in a way that cannot be undone here.
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
        // As client-go and kubectl ask.
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
