//! Counts objects that the API server's metrics do not count, by lists of one object, if weir may
//! list.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::{debug, info};

use crate::app::access_review::{SelfAccessDecision, parse_decision, self_access_review};
use crate::flowcontrol::controller::Controller;
use crate::identity::transport::ApiTransport;
use crate::upstream::forward::api_server_client::ApiServerClient;
use weir_flowcontrol::work_estimator::count_schedule::{
    CountCall, CountOutcome, CountableResource, NextCountCall,
};

/// Metadata only. Nothing else is accepted: a server without this form responds 406 and sends no
/// object.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");

/// Maximum response in bytes: the JSON metadata of one object, which etcd limits to 1.5 MB. A
/// server that ignores the list's limit sends more.
const MAX_BYTES: usize = 4 << 20;

/// A list, as far as it is read.
#[derive(Deserialize)]
struct ListOfOne {
    metadata: ListMeta,
    items: Vec<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    #[serde(rename = "continue")]
    continue_token: String,
    remaining_item_count: Option<u64>,
}

/// Counts objects by lists.
#[derive(Clone, Debug)]
pub(super) struct ListCounter {
    calls: ApiServerClient,
    controller: Arc<Controller>,
}

impl ListCounter {
    pub(super) const fn new(calls: ApiServerClient, controller: Arc<Controller>) -> Self {
        Self { calls, controller }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(&self) {
        let mut is_logged = false;
        loop {
            let call = match self.controller.next_count_call() {
                NextCountCall::Call(call) => call,
                NextCountCall::Wait(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => {}
                        () = self.controller.wait_for_new_resource() => {}
                    }
                    continue;
                }
            };
            let outcome = match &call {
                CountCall::Review(of) => self.review(of).await,
                CountCall::List(of) => self.list(of).await,
            };
            if outcome == CountOutcome::Counted && !std::mem::replace(&mut is_logged, true) {
                info!(
                    "objects that the API server's metrics do not count are counted by lists of one object (limit=1)"
                );
            }
            debug!(?call, ?outcome, "object counts");
            self.controller.finish_count_call(&call, outcome);
        }
    }

    /// Whether weir may list the resource in all namespaces.
    async fn review(&self, countable: &CountableResource) -> CountOutcome {
        let CountableResource {
            group,
            version,
            resource,
        } = countable;
        let attributes =
            json!({"verb": "list", "group": group, "version": version, "resource": resource});
        let call = self_access_review(&json!({"resourceAttributes": attributes}));
        match self
            .calls
            .send(call)
            .await
            .map(|reply| parse_decision(&reply))
        {
            Ok(SelfAccessDecision::Allowed) => CountOutcome::Allowed,
            Ok(SelfAccessDecision::Denied) => CountOutcome::Denied,
            Ok(SelfAccessDecision::NotServed(_)) => CountOutcome::NoReviews,
            Ok(SelfAccessDecision::NoDecision) | Err(_) => CountOutcome::Failed,
        }
    }

    /// Lists one object.
    async fn list(&self, countable: &CountableResource) -> CountOutcome {
        let Ok(target) = countable.target().parse::<PathAndQuery>() else {
            return CountOutcome::Uncountable;
        };
        let mut body = Vec::new();
        let read = self.calls.stream(target, Some(METADATA_ONLY), |piece| {
            body.extend_from_slice(piece);
            if body.len() > MAX_BYTES {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        match read.await {
            Ok((StatusCode::OK, ControlFlow::Continue(()))) => {
                let Some(count) = object_count(&body) else {
                    return CountOutcome::Uncountable;
                };
                self.controller.record_polled_count(countable, count);
                CountOutcome::Counted
            }
            Ok((StatusCode::OK, ControlFlow::Break(()))) => CountOutcome::Uncountable,
            Ok((StatusCode::FORBIDDEN, _)) => CountOutcome::Denied,
            Ok((code, _)) if is_final(code) => CountOutcome::Uncountable,
            Ok(_) | Err(_) => CountOutcome::Failed,
        }
    }
}

/// Whether the API server would respond the same to another such list.
fn is_final(code: StatusCode) -> bool {
    code.is_client_error()
        && ![
            StatusCode::UNAUTHORIZED,
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&code)
}

/// The number of objects according to a list of one; `None` if the list does not show it, as when
/// the server ignores the limit.
fn object_count(body: &[u8]) -> Option<u64> {
    let ListOfOne { metadata, items } = serde_json::from_slice(body).ok()?;
    match (items.len(), metadata.remaining_item_count) {
        (0, None) if metadata.continue_token.is_empty() => Some(0),
        (1, None) if metadata.continue_token.is_empty() => Some(1),
        (1, Some(remaining)) => remaining.checked_add(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_item_plus_the_remaining_item_count() {
        let list = |metadata: &str, items: &str| {
            let kind = r#""kind":"PartialObjectMetadataList""#;
            let list = format!(r#"{{{kind},"metadata":{{{metadata}}},"items":[{items}]}}"#);
            object_count(list.as_bytes())
        };
        let item = r#"{"metadata":{"name":"a"}}"#;
        let more = r#""continue":"x","remainingItemCount":498"#;
        assert_eq!(list(more, item), Some(499));
        assert_eq!(list(r#""resourceVersion":"7""#, item), Some(1));
        assert_eq!(list("", ""), Some(0));
        assert_eq!(list(r#""continue":"x""#, item), None, "not told");
        let ignored = format!("{item},{item}");
        assert_eq!(list("", &ignored), None, "the limit was ignored");
        let many = format!(r#""continue":"x","remainingItemCount":{}"#, i64::MAX);
        assert_eq!(list(&many, item), Some(1 << 63));
        for other in [
            &b"{}"[..],
            b"[]",
            b"",
            br#"{"kind":"Status","metadata":{}}"#,
        ] {
            assert_eq!(object_count(other), None, "not a list");
        }
    }

    #[test]
    fn an_overload_is_retried_and_a_missing_resource_is_not() {
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
