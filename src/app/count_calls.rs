//! Asks the API server how many objects there are of what its metrics do not tell: by lists of one object, where weir may.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::HeaderValue;
use http::StatusCode;
use http::uri::PathAndQuery;
use serde_json::json;
use tracing::debug;
use tracing::info;

use crate::api::list_scan::Coding;
use crate::api::list_scan::ListScan;
use crate::api::list_scan::Summary;
use crate::app::own_rights::Verdict;
use crate::app::own_rights::review;
use crate::app::own_rights::verdict;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::count_schedule::Call;
use crate::flowcontrol::count_schedule::Countable;
use crate::flowcontrol::count_schedule::Next;
use crate::flowcontrol::count_schedule::Outcome;
use crate::identity::remote::ApiServer;
use crate::upstream::own_calls::OwnCalls;

/// Metadata alone. Nothing else is accepted: a server that has no such form answers 406 and sends no object.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");

/// The metadata of one object, which etcd bounds to 1.5 MB, in JSON. A server that ignores the limit sends more.
const MOST_BYTES: usize = 4 << 20;

/// Asks for counts.
#[derive(Clone, Debug)]
pub(super) struct CountCalls {
    calls: OwnCalls,
    controller: Arc<Controller>,
}

impl CountCalls {
    pub(super) const fn new(calls: OwnCalls, controller: Arc<Controller>) -> Self {
        Self { calls, controller }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(&self) {
        let mut told = false;
        loop {
            let call = match self.controller.next_count_call() {
                Next::Call(call) => call,
                Next::Wait(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => {}
                        () = self.controller.newly_listed() => {}
                    }
                    continue;
                }
            };
            let outcome = match &call {
                Call::Review(of) => self.review(of).await,
                Call::List(of) => self.list(of).await,
            };
            if outcome == Outcome::Counted && !std::mem::replace(&mut told, true) {
                info!(
                    "objects that the API server's metrics do not count are counted by lists of one object (limit=1)"
                );
            }
            debug!(?call, ?outcome, "object counts");
            self.controller.count_call_ended(&call, outcome);
        }
    }

    /// Whether weir may list it, in all namespaces.
    async fn review(&self, of: &Countable) -> Outcome {
        let Countable {
            group,
            version,
            resource,
        } = of;
        let attributes =
            json!({"verb": "list", "group": group, "version": version, "resource": resource});
        let call = review(&json!({"resourceAttributes": attributes}));
        match self.calls.ask(call).await.map(|reply| verdict(&reply)) {
            Ok(Verdict::Allowed) => Outcome::Allowed,
            Ok(Verdict::Denied) => Outcome::Denied,
            Ok(Verdict::NotServed(_)) => Outcome::NoReviews,
            Ok(Verdict::Unanswered) | Err(_) => Outcome::Failed,
        }
    }

    /// The list of one object.
    async fn list(&self, of: &Countable) -> Outcome {
        let Ok(target) = of.target().parse::<PathAndQuery>() else {
            return Outcome::Uncountable;
        };
        let mut scan = ListScan::new(Coding::Json);
        let mut left = MOST_BYTES;
        let read = self.calls.stream(target, Some(METADATA), |piece| {
            scan.feed(piece);
            match left.checked_sub(piece.len()) {
                Some(rest) => {
                    left = rest;
                    ControlFlow::Continue(())
                }
                None => ControlFlow::Break(()),
            }
        });
        match read.await {
            Ok((StatusCode::OK, ControlFlow::Continue(()))) => {
                let Some(count) = scan.finish().and_then(total) else {
                    return Outcome::Uncountable;
                };
                self.controller.learn_asked(of, count);
                Outcome::Counted
            }
            Ok((StatusCode::OK, ControlFlow::Break(()))) => Outcome::Uncountable,
            Ok((StatusCode::FORBIDDEN, _)) => Outcome::Denied,
            Ok((code, _)) if is_final(code) => Outcome::Uncountable,
            Ok(_) | Err(_) => Outcome::Failed,
        }
    }
}

/// Whether the API server will answer the same list like that again.
fn is_final(code: StatusCode) -> bool {
    code.is_client_error()
        && ![
            StatusCode::UNAUTHORIZED,
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&code)
}

/// How many objects there are, as a list of one tells; none if it does not, as where the server ignores the limit.
fn total(list: Summary) -> Option<u64> {
    match (list.items, list.remaining_items) {
        (0, None) if !list.continues => Some(0),
        (1, None) if !list.continues => Some(1),
        (1, Some(remaining)) => remaining.checked_add(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_item_and_what_remains_make_the_count() {
        let told = |metadata: &str, items: &str| {
            let kind = r#""kind":"PartialObjectMetadataList""#;
            let list = format!(r#"{{{kind},"metadata":{{{metadata}}},"items":[{items}]}}"#);
            let mut scan = ListScan::new(Coding::Json);
            scan.feed(list.as_bytes());
            total(scan.finish().unwrap())
        };
        let item = r#"{"metadata":{"name":"a"}}"#;
        let more = r#""continue":"x","remainingItemCount":498"#;
        assert_eq!(told(more, item), Some(499));
        assert_eq!(told(r#""resourceVersion":"7""#, item), Some(1));
        assert_eq!(told("", ""), Some(0));
        assert_eq!(told(r#""continue":"x""#, item), None, "not told");
        let ignored = format!("{item},{item}");
        assert_eq!(told("", &ignored), None, "the limit was ignored");
        let many = format!(r#""continue":"x","remainingItemCount":{}"#, i64::MAX);
        assert_eq!(told(&many, item), Some(1 << 63));
    }

    #[test]
    fn an_overloaded_server_is_asked_again_soon_and_one_without_the_resource_is_not() {
        for (code, last) in [
            (400, true),
            (404, true),
            (405, true),
            (406, true),
            (401, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let code = StatusCode::from_u16(code).unwrap();
            assert_eq!(is_final(code), last, "{code}");
        }
    }
}
