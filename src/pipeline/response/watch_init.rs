//! Detects when a watch has sent its initial events: it releases its seats then.
//!
//! kube-apiserver releases them once its watch cache has queued the initial events
//! (`cacheWatcher.processInterval`, `utilflowcontrol.WatchInitialized`), which is not visible from
//! outside. What is visible depends on the request ([`SeatsEnd`]).

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use http::{Response, Version};
use tokio::time::Sleep;

use crate::pipeline::response::deadlines::DeadlineGuard;
use crate::pipeline::response::list_length::{ObservedList, plain_media_type};
use weir_kubernetes::api::watch_frames::{MediaType, WatchFrames};
use weir_kubernetes::request_info::RequestInfo;

/// In the middle of an event, seats are held for this long without data: many times what
/// kube-apiserver needs to continue.
const INCOMPLETE_EVENT_SILENCE: Duration = Duration::from_millis(100);

/// How long a watch without data holds its seats: as long as the response head took, within these
/// bounds. A healthy server sends the head in one to three milliseconds, and events that are at
/// hand follow each other faster.
const MIN_SILENCE: Duration = Duration::from_micros(500);
const MAX_SILENCE: Duration = Duration::from_millis(5);

/// The runtime's timers end up to a millisecond late, half of one on average: a silence of half a
/// millisecond would take three times as long.
const TIMER_LATENESS: Duration = Duration::from_micros(500);

/// An event in Go's write buffer (`http2responseWriter`, 4 KiB; HTTP/1.1: 2 KiB) is sent only if
/// the server flushes it, which it does when no further event is queued (`WatchServer.HandleHTTP`).
/// A larger event passes the buffer by.
const HTTP2_WRITE_BUFFER: u64 = 4096;
const HTTP1_WRITE_BUFFER: u64 = 2048;

/// A watch releases its seats after this time at the latest, whatever its stream contains.
pub(crate) const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// A watch whose initial events are observed: until its seats are released, or until the bookmark.
pub(crate) struct WatchInitialization {
    /// `None` once the seats are released.
    seats_end: Option<SeatsEnd>,
    ends_with_bookmark: bool,
    /// `None` if the stream cannot be read.
    frames: Option<WatchFrames>,
    /// What the initial events are counted as, if they end with the bookmark.
    observed_list: Option<(ObservedList, MediaType)>,
    /// Of the current silence.
    timer: Option<Pin<Box<Sleep>>>,
    /// Of the time-out that releases the seats when the initialization takes too long.
    timeout_guard: Option<DeadlineGuard>,
}

/// What has ended with the data or the silence that was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InitializationEnd {
    /// The seats are to be released.
    pub(super) seats: bool,
    /// The bookmark has arrived.
    pub(super) bookmark: bool,
    /// Nothing is left to be observed.
    pub(super) observation: bool,
}

/// What releases the seats of a watch with a successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeatsEnd {
    /// The bookmark at the end of the initial events.
    Bookmark,
    /// A silence.
    Silence {
        /// How long it is.
        length: Duration,
        /// The last event before it may have this many bytes to end the initial events at once.
        flushed_event: u64,
    },
}

/// The parameters of a watch that decide about its initial events.
struct WatchForm {
    starts_with_objects: bool,
    ends_with_bookmark: bool,
    /// The watch cache queues the initial events before, or as soon as, it sends the head.
    is_ready_with_head: bool,
    /// Objects are selected: the server may need time between two events.
    selects: bool,
}

impl WatchForm {
    /// Follows `watchCache.getAllEventsSinceLocked` and
    /// `Cacher.setInitialEventsEndBookmarkIfRequested`.
    fn of_watch(info: &RequestInfo<'_>) -> Self {
        let query = info.query();
        let flag = |name| query.first(name).map(|value| is_true(&value));
        let requested = flag("sendInitialEvents");
        let starts_with_objects = requested.unwrap_or_else(|| {
            query
                .first("resourceVersion")
                .is_none_or(|version| version.iter().all(|digit| *digit == b'0'))
        });
        // At most one object fits into the queue of any watch. Without a namespace, the name may be
        // that of objects in several.
        let is_single = !info.name().is_empty() && !info.namespace().is_empty();
        // Events have no watch cache, and etcd's watcher signals at once (`etcd3.watchChan.run`).
        let is_uncached =
            info.resource() == b"events" && matches!(info.api_group(), b"" | b"events.k8s.io");
        let has = |name| query.first(name).is_some_and(|value| !value.is_empty());
        Self {
            starts_with_objects,
            ends_with_bookmark: requested == Some(true)
                && flag("allowWatchBookmarks") == Some(true),
            is_ready_with_head: !starts_with_objects || is_single || is_uncached,
            selects: has("labelSelector") || has("fieldSelector"),
        }
    }
}

/// Converts a boolean parameter as upstream does: everything but `0` and `false` is true.
fn is_true(value: &[u8]) -> bool {
    !(value == b"0" || value.eq_ignore_ascii_case(b"false"))
}

impl WatchInitialization {
    /// The initialization of a watch that has been admitted and has a successful response, whose
    /// head took this long; `None` if it ends with the head, or if nothing depends on its end.
    pub(crate) fn start<B>(
        info: &RequestInfo<'_>,
        response: &Response<B>,
        observed_list: Option<ObservedList>,
        head_took: Duration,
        holds_concurrency: bool,
    ) -> Option<Box<Self>> {
        let form = WatchForm::of_watch(info);
        if !form.starts_with_objects {
            return None;
        }
        let media_type = plain_media_type(response);
        let ends_with_bookmark = form.ends_with_bookmark && media_type.is_some();
        let seats_end = if form.is_ready_with_head || !holds_concurrency {
            None
        } else if ends_with_bookmark {
            Some(SeatsEnd::Bookmark)
        } else {
            let buffer = match response.version() {
                Version::HTTP_2 => HTTP2_WRITE_BUFFER,
                _ => HTTP1_WRITE_BUFFER,
            };
            Some(SeatsEnd::Silence {
                length: head_took.clamp(MIN_SILENCE, MAX_SILENCE),
                flushed_event: if form.selects { 0 } else { buffer },
            })
        };
        // The bookmark is detected in any case: the time until it arrives is measured.
        (seats_end.is_some() || ends_with_bookmark).then(|| {
            Box::new(Self {
                seats_end,
                ends_with_bookmark,
                frames: media_type.map(WatchFrames::new),
                observed_list: observed_list.zip(media_type),
                timer: None,
                timeout_guard: None,
            })
        })
    }

    /// Whether the watch still holds its seats.
    pub(crate) const fn holds_seats(&self) -> bool {
        self.seats_end.is_some()
    }

    /// Keeps the guard of the time-out until the seats are released.
    pub(crate) fn set_timeout_guard(&mut self, timeout_guard: DeadlineGuard) {
        self.timeout_guard = Some(timeout_guard);
    }

    /// Observes these bytes.
    pub(super) fn feed(&mut self, data: &[u8]) -> InitializationEnd {
        self.timer = None;
        let Some(frames) = &mut self.frames else {
            return InitializationEnd::default();
        };
        if !(frames.feed(data) && self.ends_with_bookmark) {
            return InitializationEnd::default();
        }
        if let Some((list, media_type)) = self.observed_list.take() {
            list.record_initial_events(frames.initial_events(), media_type);
        }
        InitializationEnd {
            seats: self.release_seats(),
            bookmark: true,
            observation: true,
        }
    }

    /// Polled while there is no data.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> InitializationEnd {
        if !self.poll_silence(cx) {
            return InitializationEnd::default();
        }
        InitializationEnd {
            seats: self.release_seats(),
            bookmark: false,
            observation: true,
        }
    }

    /// Polls whether the silence is long enough to release the seats.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(SeatsEnd::Silence {
            length,
            flushed_event,
        }) = self.seats_end
        else {
            return false; // the bookmark, however long that takes
        };
        let frames = self.frames.as_ref().filter(|frames| !frames.is_malformed());
        let silence = match frames {
            Some(frames) if !frames.is_between_events() => INCOMPLETE_EVENT_SILENCE,
            Some(frames)
                if frames
                    .last_event()
                    .is_some_and(|event| event <= flushed_event) =>
            {
                return true;
            }
            Some(_) | None => length,
        };
        let timer = self.timer.get_or_insert_with(|| {
            Box::pin(tokio::time::sleep(silence.saturating_sub(TIMER_LATENESS)))
        });
        timer.as_mut().poll(cx).is_ready()
    }

    /// Returns whether the watch has held seats until now.
    fn release_seats(&mut self) -> bool {
        drop(self.timeout_guard.take());
        self.seats_end.take().is_some()
    }
}

#[cfg(test)]
#[path = "watch_init_tests.rs"]
mod tests;
