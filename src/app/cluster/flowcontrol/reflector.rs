//! Lists and watches one resource, as client-go's reflector does.
//!
//! A watch that the API server ends in order continues from its last version. After any failure the
//! resource is listed again: it is small, and another server may answer now. v1 is tried first, then
//! the versions that older servers have. A failed attempt is repeated as soon as an API server
//! becomes ready.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::app::cluster::denials;
use crate::app::cluster::denials::Denials;
use crate::app::cluster::flowcontrol::persistent_store::PersistentStore;
use crate::flowcontrol::sources::{ClusterResource, WatchEvent, parse_event, parse_list};
use crate::upstream::forward::api_server_client::ApiServerClient;
use weir_base::clock::Clock;

/// The versions of the group, in the order in which they are tried.
const VERSIONS: [&str; 3] = ["v1", "v1beta3", "v1beta2"];

/// Largest list, and largest event, in bytes.
const MAX_BYTES: usize = 32 << 20;

/// The API server ends a watch after this many seconds to twice as many, as client-go requests it.
const WATCH_SECONDS: u64 = 300;

/// A watch that its API server does not end is ended this much later.
const WATCH_MARGIN: Duration = Duration::from_secs(15);

/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause: an API server that is back is read soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Watches one resource.
#[derive(Debug)]
pub(super) struct Reflector {
    pub(super) calls: ApiServerClient,
    pub(super) resource: ClusterResource,
    pub(super) store: Arc<PersistentStore>,
    /// How long to wait if weir may not read the resource, or if no version is served.
    pub(super) retry_after_denial: Duration,
}

/// Why there is no list, or why a watch ended.
#[derive(Debug)]
enum Interruption {
    /// The watch ended as it should; it continues from its last version.
    Ended,
    /// The resource must be listed again.
    Expired,
    /// 403.
    Denied(&'static str),
    /// 404: this version of the group is not served.
    NotServed,
    Failed(String),
}

impl Reflector {
    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut versions = VERSIONS.into_iter().cycle();
        let mut version = VERSIONS.first().copied().unwrap_or_default();
        let mut not_served = 0;
        let mut denials = Denials::default();
        let mut ready = self.calls.ready_events();
        loop {
            ready.mark_unchanged();
            let interruption = self.list_and_watch(version, &mut backoff).await;
            debug!(resource = self.resource.plural(), version, ?interruption);
            let pause = match interruption {
                Interruption::NotServed => {
                    not_served += 1;
                    version = versions
                        .by_ref()
                        .find(|next| *next != version)
                        .unwrap_or(version);
                    if not_served < VERSIONS.len() {
                        continue;
                    }
                    let group = self.resource.path("{v1,v1beta3,v1beta2}");
                    self.fail(format!("the API server does not serve {group}"));
                    self.long_pause()
                }
                Interruption::Denied(verb) => {
                    let is_ready = self.calls.is_server_ready();
                    let grace = denials::GRACE.min(self.retry_after_denial);
                    if denials.record(Clock.now(), is_ready, grace) {
                        self.store.deny(self.resource, verb);
                        self.long_pause()
                    } else {
                        self.fail(self.unexpected(verb, StatusCode::FORBIDDEN));
                        backoff.next_pause(fastrand::f64())
                    }
                }
                Interruption::Failed(why) => {
                    denials.reset();
                    self.fail(why);
                    backoff.next_pause(fastrand::f64())
                }
                Interruption::Expired | Interruption::Ended => {
                    denials.reset();
                    backoff.next_pause(fastrand::f64())
                }
            };
            not_served = 0;
            if became_ready_within(pause, &mut ready).await {
                denials.reset();
                backoff.reset();
            }
        }
    }

    fn fail(&self, why: String) {
        self.store.fail(self.resource, why);
    }

    fn long_pause(&self) -> Duration {
        jittered(self.retry_after_denial, fastrand::f64())
    }

    /// Lists the resource, and watches it until it must be listed again.
    async fn list_and_watch(&self, version: &str, backoff: &mut Backoff) -> Interruption {
        let mut from = match self.list(version).await {
            Ok(from) => from,
            Err(interruption) => return interruption,
        };
        loop {
            let interruption = self.watch(version, &mut from, backoff).await;
            if !matches!(interruption, Interruption::Ended) {
                return interruption; // another server may be there now, with other versions
            }
            tokio::time::sleep(backoff.next_pause(fastrand::f64())).await;
        }
    }

    /// Lists the resource. Returns the version from which a watch continues.
    async fn list(&self, version: &str) -> Result<String, Interruption> {
        let mut body = Vec::new();
        let target = target(&self.resource.path(version))?;
        let response = self.calls.stream(target, None, |piece| {
            body.extend_from_slice(piece);
            match body.len() > MAX_BYTES {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        match response.await {
            Ok((StatusCode::OK, ControlFlow::Continue(()))) => {}
            Ok((StatusCode::OK, ControlFlow::Break(()))) => {
                let limit = MAX_BYTES >> 20;
                return Err(Interruption::Failed(format!(
                    "the list of {} is larger than {limit} MiB",
                    self.resource.plural()
                )));
            }
            Ok((code, _)) => return Err(self.rejected("list", code)),
            Err(why) => return Err(Interruption::Failed(why.to_string())),
        }
        let text = String::from_utf8_lossy(&body);
        let listed = parse_list(self.resource, &text).map_err(Interruption::Failed)?;
        let from = listed.resource_version.clone();
        self.store.replace(self.resource, listed);
        Ok(from)
    }

    /// Watches the resource from version `from`, which moves with each event.
    async fn watch(&self, version: &str, from: &mut String, backoff: &mut Backoff) -> Interruption {
        let seconds = WATCH_SECONDS + fastrand::u64(0..=WATCH_SECONDS);
        let path = self.resource.path(version);
        let target = match target(&format!(
            "{path}?watch=1&allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds={seconds}"
        )) {
            Ok(target) => target,
            Err(interruption) => return interruption,
        };
        let limit = Duration::from_secs(seconds) + WATCH_MARGIN;
        let mut stream = EventStream::default();
        let opened = || {
            backoff.reset();
            self.store.recover(self.resource);
        };
        let response = self.calls.watch(target, limit, opened, |piece| {
            let (events, ended) = stream.read(self.resource, piece, from);
            if !events.is_empty() {
                self.store.apply(self.resource, events);
            }
            match ended {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        match response.await {
            Ok((StatusCode::OK, _)) => stream.end.unwrap_or(Interruption::Ended),
            Ok((StatusCode::GONE, _)) => Interruption::Expired,
            Ok((code, _)) => self.rejected("watch", code),
            Err(why) => Interruption::Failed(why.to_string()),
        }
    }

    fn rejected(&self, verb: &'static str, code: StatusCode) -> Interruption {
        match code {
            StatusCode::FORBIDDEN => Interruption::Denied(verb),
            StatusCode::NOT_FOUND => Interruption::NotServed,
            _ => Interruption::Failed(self.unexpected(verb, code)),
        }
    }

    fn unexpected(&self, verb: &str, code: StatusCode) -> String {
        let resource = self.resource.plural();
        format!("{verb} {resource}: the API server responds {code}")
    }
}

/// Waits for this time, or until an API server becomes ready. Returns whether one has.
async fn became_ready_within(pause: Duration, ready: &mut watch::Receiver<u64>) -> bool {
    timeout(pause, ready.changed()).await.is_ok()
}

/// The lines of a watch that has not ended.
#[derive(Debug, Default)]
struct EventStream {
    /// The begin of a line that is not complete yet.
    line: Vec<u8>,
    /// Why the watch ended.
    end: Option<Interruption>,
}

impl EventStream {
    /// The changes in the lines that are complete with `piece`, and whether the watch has ended.
    /// `from` becomes the version of the last event.
    fn read(
        &mut self,
        resource: ClusterResource,
        piece: &[u8],
        from: &mut String,
    ) -> (Vec<WatchEvent>, bool) {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                self.read_line(resource, &String::from_utf8_lossy(&line), from, &mut events);
            } else if self.line.len() > MAX_BYTES {
                self.end = Some(Interruption::Failed("an event is too large".to_owned()));
            }
            if self.end.is_some() {
                break;
            }
        }
        (events, self.end.is_some())
    }

    fn read_line(
        &mut self,
        resource: ClusterResource,
        line: &str,
        from: &mut String,
        events: &mut Vec<WatchEvent>,
    ) {
        match parse_event(line) {
            Ok(event) => {
                let version = match &event {
                    WatchEvent::Stored(object) | WatchEvent::Deleted(object) => {
                        object.metadata().resource_version.clone()
                    }
                    WatchEvent::Bookmark(version) => version.clone(),
                    WatchEvent::Unreadable(why, version) => {
                        warn!("a change of {} is left out: {why}", resource.plural());
                        version.clone()
                    }
                    WatchEvent::Expired => return self.end = Some(Interruption::Expired),
                    WatchEvent::Failed(why) => {
                        return self.end = Some(Interruption::Failed(why.clone()));
                    }
                };
                if !version.is_empty() {
                    *from = version;
                }
                events.push(event);
            }
            // What follows may depend on it: the resource is listed again.
            Err(why) => {
                warn!("a watch of {} is not readable: {why}", resource.plural());
                self.end = Some(Interruption::Expired);
            }
        }
    }
}

fn target(text: &str) -> Result<PathAndQuery, Interruption> {
    let invalid = |_| Interruption::Failed(format!("not a target: {text}"));
    text.parse().map_err(invalid)
}

/// The pauses between failed attempts: doubles with each failure.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure. `random` is from 0 to 1: several weirs do not come at once.
    fn next_pause(&mut self, random: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE);
        jittered(pause, random)
    }

    /// An attempt succeeded.
    const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Half to one and a half of `pause`.
fn jittered(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.5 + random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMAS: ClusterResource = ClusterResource::FlowSchemas;

    fn line(kind: &str, version: &str) -> String {
        format!(
            r#"{{"type":"{kind}","object":{{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{{"name":"a","resourceVersion":"{version}"}}}}}}"#
        ) + "\n"
    }

    #[test]
    fn events_are_read_however_they_are_cut_into_pieces() {
        let text = line("ADDED", "5") + &line("DELETED", "6") + &line("BOOKMARK", "9");
        for size in [1, 7, 100, text.len()] {
            let (mut stream, mut from) = (EventStream::default(), "4".to_owned());
            let mut events = 0;
            for piece in text.as_bytes().chunks(size) {
                let (read, ended) = stream.read(SCHEMAS, piece, &mut from);
                events += read.len();
                assert!(!ended);
            }
            assert_eq!((events, &*from), (3, "9"), "{size}");
        }
    }

    #[test]
    fn an_expired_version_ends_the_watch_after_the_events_before_it() {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;
        let text = line("ADDED", "5") + gone + "\n" + &line("ADDED", "6");
        let (mut stream, mut from) = (EventStream::default(), "4".to_owned());
        let (events, ended) = stream.read(SCHEMAS, text.as_bytes(), &mut from);
        assert_eq!((events.len(), ended, &*from), (1, true, "5"));
        assert!(matches!(stream.end, Some(Interruption::Expired)));
    }

    #[test]
    fn an_unreadable_line_leads_to_a_new_list() {
        let (mut stream, mut from) = (EventStream::default(), "4".to_owned());
        let (events, ended) = stream.read(SCHEMAS, b"what\n", &mut from);
        assert_eq!((events.len(), ended), (0, true));
        assert!(matches!(stream.end, Some(Interruption::Expired)));
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8).map(|_| backoff.next_pause(0.5)).collect();
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        backoff.reset();
        assert_eq!(backoff.next_pause(0.0), FIRST_PAUSE / 2);
        assert_eq!(backoff.next_pause(1.0), FIRST_PAUSE * 3);
        for _ in 0..100 {
            assert!(backoff.next_pause(1.0) <= LONGEST_PAUSE * 3 / 2);
        }
    }
}
