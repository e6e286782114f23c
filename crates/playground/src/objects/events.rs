//! The two forms of events, `v1` and `events.k8s.io/v1`, of one stored object.
//!
//! Events are stored as `v1`. The forms differ only in the names of a few fields, so the conversion
//! is lossless in both directions.

use serde_json::{Map, Value};

/// `v1` name, `events.k8s.io/v1` name.
const RENAMED_FIELDS: &[(&str, &str)] = &[
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("involvedObject", "regarding"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
];

/// Converts a stored event to `events.k8s.io/v1`.
pub(crate) fn to_events_v1(object: &mut Map<String, Value>) {
    for (core, events) in RENAMED_FIELDS {
        if let Some(value) = object.remove(*core) {
            object.insert((*events).to_owned(), value);
        }
    }
}

/// Converts an event of `events.k8s.io/v1` to the stored form.
pub(crate) fn to_core(object: &mut Map<String, Value>) {
    for (core, events) in RENAMED_FIELDS {
        if let Some(value) = object.remove(*events) {
            object.insert((*core).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{to_core, to_events_v1};
    use serde_json::json;

    #[test]
    fn an_event_round_trips_through_both_api_groups() {
        let event = json!({"message": "m", "involvedObject": {"kind": "Pod"}, "count": 2});
        let stored = event.as_object().cloned().unwrap_or_default();
        let mut converted = stored.clone();
        to_events_v1(&mut converted);
        assert_eq!(converted["note"], "m");
        assert_eq!(converted["regarding"]["kind"], "Pod");
        assert!(!converted.contains_key("message"));
        to_core(&mut converted);
        assert_eq!(converted, stored);
    }
}
