//! The tables of `kubectl get`: columns and cells as kube-apiserver's printers choose them.
//!
//! Pure: the time for ages is an argument.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::object::string_at;
use jiff::Timestamp;
use serde_json::{Value, json};

/// A column: its name, and whether only `-o wide` prints it.
pub(crate) type Column = (&'static str, bool);

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

const FLOW_SCHEMA_COLUMNS: &[Column] = &[
    ("Name", false),
    ("PriorityLevel", false),
    ("MatchingPrecedence", false),
    ("DistinguisherMethod", false),
    ("Age", false),
    ("MissingPL", false),
];

const PRIORITY_LEVEL_COLUMNS: &[Column] = &[
    ("Name", false),
    ("Type", false),
    ("NominalConcurrencyShares", false),
    ("Queues", false),
    ("HandSize", false),
    ("QueueLengthLimit", false),
    ("Age", false),
];

/// The columns of a kind.
pub(crate) const fn columns(kind: ObjectKind) -> &'static [Column] {
    match kind {
        ObjectKind::ConfigMap => &[("Name", false), ("Data", false), ("Age", false)],
        ObjectKind::Event => &[
            ("Last Seen", false),
            ("Type", false),
            ("Reason", false),
            ("Object", false),
            ("Subobject", true),
            ("Source", true),
            ("Message", false),
            ("First Seen", true),
            ("Count", true),
            ("Name", true),
        ],
        ObjectKind::FlowSchema => FLOW_SCHEMA_COLUMNS,
        ObjectKind::PriorityLevelConfiguration => PRIORITY_LEVEL_COLUMNS,
        ObjectKind::Lease => &[("Name", false), ("Holder", false), ("Age", false)],
        ObjectKind::Namespace => &[("Name", false), ("Status", false), ("Age", false)],
        ObjectKind::Node => &[
            ("Name", false),
            ("Status", false),
            ("Roles", false),
            ("Age", false),
            ("Version", false),
            ("Internal-IP", true),
            ("External-IP", true),
            ("OS-Image", true),
            ("Kernel-Version", true),
            ("Container-Runtime", true),
        ],
        ObjectKind::Pod => &[
            ("Name", false),
            ("Ready", false),
            ("Status", false),
            ("Restarts", false),
            ("Age", false),
            ("IP", true),
            ("Node", true),
            ("Nominated Node", true),
            ("Readiness Gates", true),
        ],
        ObjectKind::Secret => &[
            ("Name", false),
            ("Type", false),
            ("Data", false),
            ("Age", false),
        ],
        ObjectKind::Service => &[
            ("Name", false),
            ("Type", false),
            ("Cluster-IP", false),
            ("External-IP", false),
            ("Port(s)", false),
            ("Age", false),
            ("Selector", true),
        ],
        ObjectKind::ServiceAccount => &[("Name", false), ("Age", false)],
    }
}

fn flow_schema_cells(object: &Value, name: &str, age: String) -> Vec<Value> {
    let level = string_at(object, &["spec", "priorityLevelConfiguration", "name"]);
    let method = string_at(object, &["spec", "distinguisherMethod", "type"]);
    let precedence = object.pointer("/spec/matchingPrecedence").cloned();
    vec![
        name.into(),
        level.into(),
        precedence.unwrap_or_default(),
        if method.is_empty() { NONE } else { method }.into(),
        age.into(),
        "False".into(), // no controller computes it
    ]
}

fn priority_level_cells(object: &Value, name: &str, age: String) -> Vec<Value> {
    let number = |path: &str| match object.pointer(path) {
        Some(number) => number.clone(),
        None => NONE.into(),
    };
    let shares = object.pointer("/spec/limited/nominalConcurrencyShares");
    let queuing = "/spec/limited/limitResponse/queuing";
    vec![
        name.into(),
        string_at(object, &["spec", "type"]).into(),
        match shares {
            Some(shares) => shares.clone(),
            None => number("/spec/exempt/nominalConcurrencyShares"),
        },
        number(&format!("{queuing}/queues")),
        number(&format!("{queuing}/handSize")),
        number(&format!("{queuing}/queueLengthLimit")),
        age.into(),
    ]
}

/// `metav1.TableColumnDefinition`s of a kind.
pub(crate) fn column_definitions(kind: ObjectKind) -> Value {
    columns(kind)
        .iter()
        .map(|(name, wide)| {
            json!({
                "name": name,
                "type": if matches!(*name, "Data" | "Count") { "integer" } else { "string" },
                "format": if *name == "Name" { "name" } else { "" },
                "description": "",
                "priority": u8::from(*wide),
            })
        })
        .collect()
}

/// The cells of one object, one per column.
pub(crate) fn cells(kind: ObjectKind, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = string_at(object, &["metadata", "name"]);
    let age = format_age(string_at(object, &["metadata", "creationTimestamp"]), now);
    match kind {
        ObjectKind::ConfigMap => {
            let count = map_length(object, "data") + map_length(object, "binaryData");
            vec![name.into(), count.into(), age.into()]
        }
        ObjectKind::Event => event_cells(object, now),
        ObjectKind::FlowSchema => flow_schema_cells(object, name, age),
        ObjectKind::PriorityLevelConfiguration => priority_level_cells(object, name, age),
        ObjectKind::Lease => {
            let holder = string_at(object, &["spec", "holderIdentity"]);
            vec![name.into(), holder.into(), age.into()]
        }
        ObjectKind::Namespace => {
            let phase = string_at(object, &["status", "phase"]);
            vec![name.into(), phase.into(), age.into()]
        }
        ObjectKind::Node => node_cells(object, name, age),
        ObjectKind::Pod => pod_cells(object, name, age),
        ObjectKind::Secret => {
            let kind = string_at(object, &["type"]);
            vec![
                name.into(),
                kind.into(),
                map_length(object, "data").into(),
                age.into(),
            ]
        }
        ObjectKind::Service => service_cells(object, name, age),
        ObjectKind::ServiceAccount => vec![name.into(), age.into()],
    }
}

fn map_length(object: &Value, key: &str) -> usize {
    let map = object.get(key).and_then(Value::as_object);
    map.map_or(0, serde_json::Map::len)
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { NONE } else { text }.into()
}

fn list_at<'v>(object: &'v Value, path: &[&str]) -> impl Iterator<Item = &'v Value> {
    path.iter()
        .try_fold(object, |value, key| value.get(*key))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn pod_cells(object: &Value, name: &str, age: String) -> Vec<Value> {
    let statuses = || list_at(object, &["status", "containerStatuses"]);
    let ready = statuses()
        .filter(|status| status.get("ready") == Some(&Value::Bool(true)))
        .count();
    let restarts: u64 = statuses()
        .filter_map(|status| status.get("restartCount")?.as_u64())
        .sum();
    let reason = string_at(object, &["status", "reason"]);
    let status = if object.pointer("/metadata/deletionTimestamp").is_some() {
        "Terminating"
    } else if reason.is_empty() {
        string_at(object, &["status", "phase"])
    } else {
        reason
    };
    vec![
        name.into(),
        format!(
            "{ready}/{}",
            list_at(object, &["spec", "containers"]).count()
        )
        .into(),
        status.into(),
        restarts.to_string().into(),
        age.into(),
        or_none(string_at(object, &["status", "podIP"])),
        or_none(string_at(object, &["spec", "nodeName"])),
        or_none(string_at(object, &["status", "nominatedNodeName"])),
        NONE.into(),
    ]
}

fn node_cells(object: &Value, name: &str, age: String) -> Vec<Value> {
    let ready = list_at(object, &["status", "conditions"])
        .find(|condition| string_at(condition, &["type"]) == "Ready")
        .map_or("Unknown", |condition| {
            match string_at(condition, &["status"]) {
                "True" => "Ready",
                _ => "NotReady",
            }
        });
    let cordoned = object.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    let status = if cordoned {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    };
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |kind: &str| {
        let found = list_at(object, &["status", "addresses"])
            .find(|address| string_at(address, &["type"]) == kind);
        or_none(found.map_or("", |address| string_at(address, &["address"])))
    };
    let info = |key: &str| string_at(object, &["status", "nodeInfo", key]).to_owned();
    let kernel = match (info("kernelVersion"), info("architecture")) {
        (kernel, arch) if !kernel.is_empty() && !arch.is_empty() => format!("{kernel} ({arch})"),
        (kernel, _) => kernel,
    };
    vec![
        name.into(),
        status.into(),
        or_none(&roles.join(",")),
        age.into(),
        info("kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage").into(),
        kernel.into(),
        info("containerRuntimeVersion").into(),
    ]
}

fn service_cells(object: &Value, name: &str, age: String) -> Vec<Value> {
    let ports: Vec<String> = list_at(object, &["spec", "ports"])
        .map(|port| {
            let number = port.get("port").map(Value::to_string).unwrap_or_default();
            format!("{number}/{}", string_at(port, &["protocol"]))
        })
        .collect();
    let selector: Vec<String> = object
        .pointer("/spec/selector")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    vec![
        name.into(),
        string_at(object, &["spec", "type"]).into(),
        or_none(string_at(object, &["spec", "clusterIP"])),
        NONE.into(),
        or_none(&ports.join(",")),
        age.into(),
        or_none(&selector.join(",")),
    ]
}

fn event_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let first_of = |paths: &[&[&str]]| {
        let mut texts = paths.iter().map(|path| string_at(object, path));
        texts.find(|text| !text.is_empty()).unwrap_or_default()
    };
    let created: &[&str] = &["metadata", "creationTimestamp"];
    let last = first_of(&[
        &["series", "lastObservedTime"],
        &["lastTimestamp"],
        &["eventTime"],
        created,
    ]);
    let first = first_of(&[&["firstTimestamp"], &["eventTime"], created]);
    let about = |key: &str| string_at(object, &["involvedObject", key]);
    let count = object
        .pointer("/series/count")
        .or_else(|| object.get("count"))
        .and_then(Value::as_u64)
        .unwrap_or(1);
    vec![
        format_age(last, now).into(),
        string_at(object, &["type"]).into(),
        string_at(object, &["reason"]).into(),
        format!("{}/{}", about("kind").to_lowercase(), about("name")).into(),
        about("fieldPath").into(),
        first_of(&[&["reportingComponent"], &["source", "component"]]).into(),
        string_at(object, &["message"]).trim().into(),
        format_age(first, now).into(),
        count.into(),
        string_at(object, &["metadata", "name"]).into(),
    ]
}

fn format_age(then: &str, now: Timestamp) -> String {
    then.parse::<Timestamp>().map_or_else(
        |_| UNKNOWN.to_owned(),
        |then| human_duration(now.as_second() - then.as_second()),
    )
}

/// `duration.HumanDuration`: at most two units, fewer for longer spans.
fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |unit: i64, name: &str, part: i64, part_name: &str| {
        let (whole, rest) = (seconds / unit, seconds % unit / part);
        if rest == 0 {
            format!("{whole}{name}")
        } else {
            format!("{whole}{name}{rest}{part_name}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, "d", HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(YEAR, "y", DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::{ObjectKind, cells, columns, human_duration};
    use jiff::Timestamp;
    use serde_json::json;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn every_kind_has_as_many_cells_as_columns() {
        for kind in ObjectKind::ALL {
            let cells = cells(kind, &json!({}), at("2026-11-21T00:00:00Z"));
            assert_eq!(cells.len(), columns(kind).len(), "{kind:?}");
        }
    }

    #[test]
    fn the_row_of_a_pod_has_its_containers_and_its_age() {
        let pod = json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-11-21T03:43:51Z"},
            "spec": {"nodeName": "node-0101", "containers": [{}, {}]},
            "status": {"phase": "Running", "podIP": "10.100.101.7", "containerStatuses": [
                {"ready": true, "restartCount": 2}, {"ready": false, "restartCount": 1},
            ]},
        });
        assert_eq!(
            cells(ObjectKind::Pod, &pod, at("2026-11-21T03:43:54Z")),
            [
                "web",
                "1/2",
                "Running",
                "3",
                "3s",
                "10.100.101.7",
                "node-0101",
                "<none>",
                "<none>"
            ]
        );
    }

    #[test]
    fn ages_are_rounded_as_kubectl_rounds_them() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (315_360_000, "10y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
