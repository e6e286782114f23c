//! Samples compressed responses to lists, outside of the request path.
//!
//! kube-apiserver compresses responses longer than 128 KiB for clients that accept gzip, as
//! client-go does. Large lists are therefore compressed. A worker only copies the beginning of such
//! a response. The control runtime inflates it, in slices and at a bounded rate. If the copy is not
//! the whole response, its uncompressed length is in the gzip trailer. The number of items follows
//! from their average length so far, or from the limit of the request.
//!
//! These are bounded: one copy, all copies together, their number, the inflated bytes of one copy,
//! and the inflated bytes per second. A response that exceeds the bounds is not sampled. The next
//! list of that resource is.
//!
//! To inflate on the request's path would delay a worker's other requests by tens of milliseconds.
//! To inflate everything would cost more than forwarding it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use http::uri::PathAndQuery;
use tokio::sync::Notify;
use tokio::task::yield_now;

use weir_kubernetes::api::gunzip::Gunzip;
use weir_kubernetes::api::list_scan::{ListScan, ListSummary};
use weir_kubernetes::api::media_type::MediaType;
use weir_kubernetes::numeric::saturating_u32;
use weir_kubernetes::request_info::RequestInfo;

/// The most bytes to copy of one response: some 2 MiB of objects.
const MAX_SAMPLE_BYTES: usize = 256 << 10;
/// The most bytes to copy of all responses that are in progress or queued.
const MAX_TOTAL_BYTES: usize = 16 << 20;
/// The most samples in the queue.
const MAX_QUEUED_SAMPLES: usize = 64;
/// The most bytes to inflate of one sample.
const MAX_INFLATED_BYTES: usize = 8 << 20;
/// The compressed bytes that are inflated before the task yields.
const INFLATE_SLICE_BYTES: usize = 16 << 10;
/// The bytes to inflate per second: a twentieth of a core.
const INFLATED_BYTES_PER_SECOND: u32 = 16 << 20;

/// A list request.
#[derive(Clone, Debug)]
pub(crate) struct ListRequest {
    /// The HTTP method.
    pub(crate) method: Method,
    /// The path and query.
    pub(crate) target: PathAndQuery,
    /// Whether the response may contain whole objects: the client accepts more than tables and
    /// metadata.
    pub(crate) whole_objects: bool,
}

impl ListRequest {
    /// The parsed request. `None` if it is invalid.
    #[must_use]
    pub(crate) fn info(&self) -> Option<RequestInfo<'_>> {
        RequestInfo::parse(self.method.as_str(), self.target.as_str().as_bytes()).ok()
    }
}

/// A queue of samples.
#[derive(Debug, Default)]
pub(crate) struct ListSampleQueue {
    queue: Mutex<VecDeque<ListSample>>,
    sample_added: Notify,
    reserved: AtomicUsize,
}

/// Copies the beginning and the end of a compressed response.
#[derive(Debug)]
pub(crate) struct ListSampleBuilder {
    queue: Arc<ListSampleQueue>,
    list: ListRequest,
    coding: MediaType,
    head: Vec<u8>,
    /// The bytes reserved of [`MAX_TOTAL_BYTES`].
    reserved: usize,
    /// The last four bytes.
    tail: u32,
    length: usize,
}

/// The sample of a complete compressed response.
#[derive(Debug)]
pub(crate) struct ListSample(ListSampleBuilder);

impl ListSampleQueue {
    /// Starts to sample a compressed response.
    pub(crate) fn start_sample(
        self: &Arc<Self>,
        list: ListRequest,
        coding: MediaType,
    ) -> ListSampleBuilder {
        ListSampleBuilder {
            queue: Arc::clone(self),
            list,
            coding,
            head: Vec::new(),
            reserved: 0,
            tail: 0,
            length: 0,
        }
    }

    /// Waits for the next sample.
    ///
    /// # Cancel safety
    /// No sample is lost.
    pub(crate) async fn next(&self) -> ListSample {
        loop {
            if let Some(sample) = self.lock_queue().pop_front() {
                return sample;
            }
            self.sample_added.notified().await;
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<ListSample>> {
        self.queue.lock()
    }

    fn try_reserve(&self, more: usize) -> bool {
        // Relaxed: a sum that orders nothing else.
        let reserved = self
            .reserved
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                reserved
                    .checked_add(more)
                    .filter(|reserved| *reserved <= MAX_TOTAL_BYTES)
            });
        reserved.is_ok()
    }
}

impl ListSampleBuilder {
    /// Adds the next part of the body, of any length.
    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        // A copy with a gap is not continued.
        let whole = self.head.len() == self.length;
        let room = MAX_SAMPLE_BYTES.saturating_sub(self.head.len());
        let copied = chunk.get(..room).unwrap_or(chunk);
        if whole && !copied.is_empty() && self.queue.try_reserve(copied.len()) {
            self.reserved = self.reserved.saturating_add(copied.len());
            self.head.extend_from_slice(copied);
        }
        self.length = self.length.saturating_add(chunk.len());
        let last = chunk
            .get(chunk.len().saturating_sub(size_of::<u32>())..)
            .unwrap_or_default();
        for byte in last {
            self.tail = self.tail >> 8 | u32::from(*byte) << 24;
        }
    }

    /// Queues the sample of the complete body.
    pub(crate) fn finish(self) {
        let samples = Arc::clone(&self.queue);
        let mut waiting = samples.lock_queue();
        if !self.head.is_empty() && waiting.len() < MAX_QUEUED_SAMPLES {
            waiting.push_back(ListSample(self));
            drop(waiting);
            samples.sample_added.notify_one();
        }
    }
}

impl Drop for ListSampleBuilder {
    fn drop(&mut self) {
        self.queue
            .reserved
            .fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

impl ListSample {
    pub(crate) const fn list(&self) -> &ListRequest {
        &self.0.list
    }

    /// The content of the list, and the time to wait afterwards.
    ///
    /// # Cancel safety
    /// Only the work so far is lost.
    pub(crate) async fn scan(&self) -> (Option<ListSummary>, Duration) {
        let mut gunzip = Gunzip::new(MAX_INFLATED_BYTES);
        let mut scan = ListScan::new(self.0.coding);
        let mut inflated = 0_usize;
        for slice in self.0.head.chunks(INFLATE_SLICE_BYTES) {
            gunzip.feed(slice, |piece| {
                inflated = inflated.saturating_add(piece.len());
                scan.feed(piece);
            });
            yield_now().await;
        }
        let is_cut = self.0.head.len() < self.0.length && !gunzip.is_done();
        let summary = if gunzip.is_complete() {
            scan.finish()
        } else if is_cut || inflated >= MAX_INFLATED_BYTES {
            self.extrapolate(scan, inflated)
        } else {
            None // malformed
        };
        let inflated = saturating_u32(inflated);
        let rest = Duration::from_secs(1) * inflated / INFLATED_BYTES_PER_SECOND;
        (summary, rest)
    }

    fn extrapolate(&self, scan: ListScan, inflated: usize) -> Option<ListSummary> {
        // The length modulo 2³². Longer lists are only estimated from their pages.
        let length = usize::try_from(self.0.tail).ok()?;
        if length < inflated.max(self.0.length) {
            return None;
        }
        let summary = scan.extrapolate(self.0.tail.into())?;
        let items = self.limit().filter(|_| summary.has_continue_token);
        Some(ListSummary {
            // A page that others follow is full.
            items: items.unwrap_or(summary.items),
            ..summary
        })
    }

    fn limit(&self) -> Option<u64> {
        let info = self.0.list.info()?;
        let limit = info.query().first("limit")?;
        let limit = str::from_utf8(&limit).ok()?.parse().ok()?;
        (limit > 0).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use fastrand::Rng;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A list of items that gzip compresses well, and its length in bytes.
    fn list(items: usize, metadata: &str) -> (Vec<u8>, u64) {
        let mut rng = Rng::with_seed(7);
        let mut list = format!(r#"{{"kind":"PodList","metadata":{{{metadata}}},"items":["#);
        for item in 0..items {
            let noise: String = (0..rng.usize(400..600))
                .map(|_| rng.alphanumeric())
                .collect();
            list += if item > 0 { "," } else { "" };
            list += &format!(r#"{{"metadata":{{"name":"{noise}"}}}}"#);
        }
        list += "]}";
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(list.as_bytes()).unwrap();
        (encoder.finish().unwrap(), list.len().try_into().unwrap())
    }

    fn start_sample(samples: &Arc<ListSampleQueue>, target: &'static str) -> ListSampleBuilder {
        let list = ListRequest {
            method: Method::GET,
            target: PathAndQuery::from_static(target),
            whole_objects: true,
        };
        samples.start_sample(list, MediaType::Json)
    }

    async fn scan_body(target: &'static str, body: &[u8]) -> Option<ListSummary> {
        let samples = Arc::<ListSampleQueue>::default();
        let mut sampling = start_sample(&samples, target);
        body.chunks(10_001).for_each(|chunk| sampling.feed(chunk));
        assert!(sampling.head.len() <= MAX_SAMPLE_BYTES);
        sampling.finish();
        let sample = samples.next().await;
        let summary = sample.scan().await.0;
        drop(sample);
        assert_eq!(samples.reserved.load(Ordering::Relaxed), 0);
        summary
    }

    #[tokio::test]
    async fn a_small_list_is_counted_and_a_large_one_is_extrapolated() {
        let (body, bytes) = list(300, "");
        assert!(body.len() < MAX_SAMPLE_BYTES);
        let summary = scan_body("/api/v1/pods", &body).await.unwrap();
        assert_eq!((summary.items, summary.bytes), (300, bytes));

        let (body, bytes) = list(3000, r#""remainingItemCount":70,"continue":"x""#);
        assert!(body.len() > 3 * MAX_SAMPLE_BYTES);
        let summary = scan_body("/api/v1/pods", &body).await.unwrap();
        assert!(summary.items.abs_diff(3000) < 60, "{summary:?}");
        assert_eq!((summary.remaining_items, summary.bytes), (Some(70), bytes));
        let page = scan_body("/api/v1/pods?limit=3000", &body).await.unwrap();
        assert_eq!(page.items, 3000, "a page that others follow is full");
    }

    #[tokio::test]
    async fn a_malformed_gzip_body_yields_no_summary() {
        assert_eq!(scan_body("/api/v1/pods", b"{\"items\":[]}").await, None);
        let (mut body, _) = list(300, "");
        body.truncate(body.len() / 2);
        assert_eq!(scan_body("/api/v1/pods", &body).await, None);
    }

    #[test]
    fn samples_are_bounded_in_total_size_and_in_number() {
        let samples = Arc::<ListSampleQueue>::default();
        let all = MAX_TOTAL_BYTES / MAX_SAMPLE_BYTES + 7;
        let mut under_way = Vec::new();
        for _ in 0..all {
            let mut sampling = start_sample(&samples, "/api/v1/pods");
            (0..30).for_each(|_| sampling.feed(&[7; 20_000]));
            assert!(sampling.head.len() <= MAX_SAMPLE_BYTES);
            under_way.push(sampling);
        }
        let copied: usize = under_way.iter().map(|sampling| sampling.head.len()).sum();
        assert!(
            copied <= MAX_TOTAL_BYTES && copied > MAX_TOTAL_BYTES - 20_000,
            "{copied}"
        );
        assert_eq!(samples.reserved.load(Ordering::Relaxed), copied);
        under_way.into_iter().for_each(ListSampleBuilder::finish);
        assert_eq!(samples.lock_queue().len(), MAX_QUEUED_SAMPLES);
        samples.lock_queue().clear();
        assert_eq!(samples.reserved.load(Ordering::Relaxed), 0);
    }
}
