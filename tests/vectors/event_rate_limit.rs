//! `event_rate_limit_config`, `event_rate_limit_sequences`, `event_bodies`: the meaning of the
//! plugin's configuration, the events that it rejects with their messages, and the key of an event.

#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test; the clock is only a beginning"
)]

use std::borrow::Cow;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::events::body::{EventEncoding, EventSchema};
use weir_limits::rate::events::buckets::{
    EventBucketKeys, EventLimits, EventWrite, LimitedEvent, LimitedEventGroups, rejection_message,
};
use weir_limits::rate::events::config::{EventLimitConfig, LimitType};
use weir_limits::rate::events::{body, config};
use weir_limits::rate::lru_key::LruKeyHasher;

use crate::support;

const CACHE_SIZE: u64 = 4096;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn u32_of(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn limit_json(limit: &EventLimitConfig) -> Value {
    let mut json = serde_json::json!({
        "type": limit.limit_type.name(), "qps": limit.qps, "burst": limit.burst
    });
    if limit.limit_type != LimitType::Server {
        json["cache_size"] = limit.cache_size.into();
    }
    json
}

/// An error as upstream prints it, without the field.
fn upstream_error_text(error: &Value) -> String {
    let value = match text(&error["type"]) {
        "FieldValueNotSupported" => format!("{:?}", text(&error["bad_value"])),
        _ => text(&error["bad_value"]).to_owned(),
    };
    format!(
        "{}: {value}: {}",
        text(&error["type_text"]),
        text(&error["detail"])
    )
}

#[test]
fn configurations_are_read_as_upstream() {
    for case in support::cases("event_rate_limit_config") {
        let (name, expected) = (&case["name"], &case["expected"]);
        let Some(document) = case["input"]["document"].as_str() else {
            // No document: the program reports this itself.
            assert_eq!(expected["accepted"], false);
            continue;
        };
        let mut faults = Diagnostics::default();
        let read = config::parse_configuration("f", document, &mut faults);
        assert_eq!(expected["accepted"], read.is_some(), "{name}: {faults}");
        match read {
            Some(limits) => {
                let decoded: Vec<_> = limits.iter().map(limit_json).collect();
                assert_eq!(expected["effective"], Value::from(decoded), "{name}");
                assert!(!faults.has_errors(), "{name}: {faults}");
            }
            None if expected.get("load_error").is_some() => assert!(faults.has_errors(), "{name}"),
            None => {
                let messages: Vec<_> = faults
                    .errors()
                    .map(|fault| (fault.field.clone(), fault.message.clone()))
                    .collect();
                let errors = expected["errors"].as_array().unwrap().iter();
                let errors: Vec<_> = errors
                    .map(|error| (text(&error["field"]).to_owned(), upstream_error_text(error)))
                    .collect();
                assert_eq!(messages, errors, "{name}");
            }
        }
    }
}

fn limits_of(given: &Value) -> Vec<EventLimitConfig> {
    let limit = |given: &Value| EventLimitConfig {
        limit_type: match text(&given["type"]) {
            "Namespace" => LimitType::Namespace,
            "Server" => LimitType::Server,
            "SourceAndObject" => LimitType::SourceAndObject,
            "User" => LimitType::User,
            other => panic!("{other}"),
        },
        qps: u32_of(&given["qps"]),
        burst: u32_of(&given["burst"]),
        cache_size: match given["cache_size"].as_u64() {
            None | Some(0) => u32::try_from(CACHE_SIZE).unwrap(),
            Some(size) => u32::try_from(size).unwrap(),
        },
        warning_reserve_percent: 0,
    };
    given.as_array().unwrap().iter().map(limit).collect()
}

/// The request that carries such an event.
fn request(event: &Value) -> (&'static str, String) {
    let group = match text(&event["kind_group"]) {
        "" => "api/v1".to_owned(),
        group => format!("apis/{group}/v1"),
    };
    let resource = format!("{}s", text(&event["kind"]).to_lowercase());
    let collection = format!(
        "/{group}/namespaces/{}/{resource}",
        text(&event["namespace"])
    );
    let (method, mut target) = match text(&event["operation"]) {
        "CONNECT" => ("POST", format!("{collection}/x/proxy")),
        "CREATE" => ("POST", collection),
        "DELETE" => ("DELETE", format!("{collection}/x")),
        "UPDATE" => ("PUT", format!("{collection}/x")),
        other => panic!("{other}"),
    };
    if event["dry_run"] == true {
        target.push_str("?dryRun=All");
    }
    (method, target)
}

fn source_and_object(event: &Value) -> Vec<u8> {
    if event["no_object"] == true {
        return Vec::new();
    }
    let parts = [
        "source_component",
        "source_host",
        "involved_kind",
        "involved_namespace",
        "involved_name",
        "involved_uid",
        "involved_api_version",
    ];
    parts.map(|part| text(&event[part]).as_bytes()).concat()
}

#[test]
fn every_event_is_decided_as_upstream() {
    let base = Instant::now() + Duration::from_secs(3600);
    for case in support::cases("event_rate_limit_sequences") {
        let (name, input) = (&case["name"], &case["input"]);
        let given = limits_of(&input["limits"]);
        let (keys, mut limits) = (LruKeyHasher::default(), EventLimits::default());
        let ids: Vec<_> = given.iter().map(|limit| limits.add(limit)).collect();
        let expected = case["expected"].as_array().unwrap();
        let events = input["events"].as_array().unwrap();
        assert_eq!(expected.len(), events.len());
        for (n, (event, expected)) in events.iter().zip(expected).enumerate() {
            let (method, target) = request(event);
            let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
            let mut rejected = Vec::new();
            let described = LimitedEvent {
                namespace: info.namespace(),
                user: text(&event["user"]).as_bytes(),
                source_and_object: Cow::Owned(source_and_object(event)),
                warning: false,
            };
            if EventWrite::from_request(&info, LimitedEventGroups::Core).is_some() {
                let now = base + Duration::from_nanos(event["t_ns"].as_u64().unwrap());
                let charge = EventBucketKeys::from_event(&described, &keys);
                limits.charge(&ids, &charge, now, |n, response| {
                    if response.token.is_err() {
                        rejected.push(given[n].limit_type);
                    }
                });
            }
            let decision = if rejected.is_empty() {
                Value::Bool(true)
            } else {
                rejection_message(&described, rejected).into()
            };
            assert_eq!(decision, *expected, "{name}, event {n}: {event}");
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

#[test]
fn every_body_has_the_key_of_upstream() {
    for case in support::cases("event_bodies") {
        let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
        let body = match input["body_hex"].as_str() {
            Some(digits) => hex(digits),
            None => text(&input["body"]).as_bytes().to_vec(),
        };
        let encoding =
            EventEncoding::from_content_type(input["content_type"].as_str().map(str::as_bytes))
                .unwrap();
        let found = body::parse(encoding, text(&input["group_version"]).as_bytes(), &body);
        assert_eq!(
            found.is_none(),
            expected.get("decode_error").is_some(),
            "{name}: {found:?}"
        );
        let Some(found) = found else { continue };
        let parts = found
            .key
            .map(|part| String::from_utf8(part.into_owned()).unwrap());
        assert_eq!(expected["parts"], serde_json::json!(parts), "{name}");
        assert_eq!(expected["source_and_object_key"], parts.concat(), "{name}");
        assert_eq!(
            expected["body_version_accepted"], found.version_accepted,
            "{name}"
        );
        let kind = match found.schema {
            EventSchema::Core => "/v1, Kind=Event",
            EventSchema::Events => "events.k8s.io/v1, Kind=Event",
        };
        assert_eq!(expected["decoded_kind"], kind, "{name}");
    }
}
