//! `flow_schema_match`: the flow schema, priority level and flow of a request, for many
//! configurations.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use serde_json::{Value, json};
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Strictness};
use weir_kubernetes::request_info::{RequestInfo, Verb};

use crate::support;

#[test]
fn every_request_is_classified_as_upstream() {
    for case in support::cases("flow_schema_match") {
        let (input, expected) = (&case["input"], &case["expected"]);
        let matcher = Matcher::new(&objects(input));
        let order: Vec<_> = matcher
            .schemas()
            .iter()
            .map(|schema| &schema.name)
            .collect();
        assert_eq!(json!(order), expected["matching_order"], "{}", case["name"]);
        let mut dangling = matcher.dangling().to_vec();
        dangling.sort();
        assert_eq!(json!(dangling), expected["dangling"], "{}", case["name"]);
        let (requests, matches) = (list(&input["requests"]), list(&expected["matches"]));
        assert_eq!(requests.len(), matches.len(), "{}", case["name"]);
        for (request, expected) in requests.iter().zip(matches) {
            assert_eq!(
                &classify(&matcher, request),
                expected,
                "{request} of {}",
                case["name"]
            );
        }
    }
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The objects of a case, with kind and version where they are missing.
pub(crate) fn objects(input: &Value) -> Vec<Object> {
    let kinds = [
        ("flow_schemas", "FlowSchema"),
        ("priority_levels", "PriorityLevelConfiguration"),
    ];
    let mut objects = Vec::new();
    for (key, kind) in kinds {
        for object in list(&input[key]) {
            let mut object = object.clone();
            object["apiVersion"] = json!(format!("{}/v1", flowcontrol::GROUP));
            object["kind"] = json!(kind);
            let mut errors = Diagnostics::default();
            let documents = document::parse_all("case", &object.to_string(), &mut errors);
            let read = flowcontrol::decode(&documents[0], Strictness::Strict, &mut errors);
            assert_eq!(errors.to_string(), "", "{object}");
            objects.extend(read.into_iter().map(|manifest| manifest.object));
        }
    }
    objects
}

fn classify(matcher: &Matcher, request: &Value) -> Value {
    let groups = list(&request["groups"]).iter();
    let user = UserInfo {
        name: text(&request["user"]).to_owned(),
        groups: groups.map(|group| text(group).to_owned()).collect(),
        ..UserInfo::default()
    };
    let info = &request["request_info"];
    let bytes = |key: &str| text(&info[key]).as_bytes();
    let verb = verb(text(&info["verb"]));
    let digest = RequestDigest {
        is_resource_request: info["is_resource_request"] == true,
        verb: &verb,
        path: bytes("path"),
        api_group: bytes("api_group"),
        resource: bytes("resource"),
        subresource: bytes("subresource"),
        namespace: bytes("namespace"),
        user: &user,
    };
    let found = matcher.classify(&digest);
    json!({
        "flow_schema": found.schema.name,
        "priority_level": found.level.spec.name,
        "exempt": found.level.is_exempt(),
        "flow_distinguisher": str::from_utf8(found.flow_distinguisher).unwrap(),
        "queues": match found.level.spec.queuing {
            Queuing::Exempt | Queuing::Reject => 0,
            Queuing::Queue { dealer, .. } => dealer.deck_size(),
        },
        "hash": found.flow_hash.to_string(),
    })
}

/// For non-resource requests the verb is the method in lower case.
fn verb(text: &str) -> Verb {
    if text.is_empty() {
        return Verb::None;
    }
    let method = text.to_uppercase();
    RequestInfo::parse(&method, b"/").unwrap().verb().clone()
}
