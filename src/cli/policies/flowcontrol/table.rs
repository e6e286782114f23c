//! The table of `weir flowcontrol show`.

use serde_json::Value;

use weir_base::columns;
use weir_kubernetes::encoding::printable::{escape, escape_message};

/// The titles of the columns.
const TITLES: [&str; 4] = ["KIND", "NAME", "ORIGIN", "DETAILS"];

/// Blanks between columns.
const GAP: usize = 3;

/// Renders the response of the admin listener: a line for each object, and one for the cluster if
/// its objects are not up to date.
pub(super) fn render(objects: &Value) -> String {
    let listed = objects.get("objects").and_then(Value::as_array);
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    rows.extend(listed.into_iter().flatten().map(row));
    let mut text = columns::align(&rows, TITLES.len(), GAP);
    let cluster = objects.get("cluster");
    let at = |key| cluster.map_or("", |cluster| text_at(cluster, key));
    if at("state") == "failed" {
        text.push_str(&format!(
            "\nThe cluster's objects are not up to date: {}\n",
            escape_message(at("message"))
        ));
    }
    text
}

fn row(object: &Value) -> Vec<String> {
    let mut origin = match object.get("location").and_then(Value::as_str) {
        Some(location) => location.to_owned(),
        None => text_at(object, "origin").to_owned(),
    };
    if let Some(replaced) = object.get("replaces").and_then(Value::as_str) {
        origin.push_str(&format!(" (replaces {replaced})"));
    }
    vec![
        escape(text_at(object, "kind")).into_owned(),
        escape(text_at(object, "name")).into_owned(),
        escape(&origin).into_owned(),
        escape(&details(object)).into_owned(),
    ]
}

/// What an operator looks for first in a spec.
fn details(object: &Value) -> String {
    let at = |path: &str| {
        let found = object.pointer(&format!("/manifest/spec/{path}"));
        found.map(|value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        })
    };
    if text_at(object, "kind") == "FlowSchema" {
        let level = at("priorityLevelConfiguration/name").unwrap_or_default();
        let precedence = at("matchingPrecedence").unwrap_or_default();
        let dangling = match object.get("dangling") {
            Some(_) => ", left out: there is no such level",
            None => "",
        };
        return format!("precedence {precedence}, level {level}{dangling}");
    }
    let kind = at("limited/limitResponse/type").or_else(|| at("type"));
    let shares = at("limited/nominalConcurrencyShares")
        .or_else(|| at("exempt/nominalConcurrencyShares"))
        .unwrap_or_default();
    format!("{}, {shares} shares", kind.unwrap_or_default())
}

/// The text under a key. Empty if there is none.
fn text_at<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_object_has_a_line_with_its_origin() {
        let objects = json!({
            "cluster": {"state": "failed", "message": "gone\u{1b}[2J"},
            "objects": [
                {"kind": "FlowSchema", "name": "a", "origin": "file", "location": "f.yaml:3:1",
                 "replaces": "cluster", "dangling": true,
                 "manifest": {"spec": {"matchingPrecedence": 5,
                                       "priorityLevelConfiguration": {"name": "x"}}}},
                {"kind": "PriorityLevelConfiguration", "name": "exempt", "origin": "built-in",
                 "manifest": {"spec": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0}}}},
                {"kind": "PriorityLevelConfiguration", "name": "b", "origin": "cluster",
                 "manifest": {"spec": {"type": "Limited", "limited": {
                     "nominalConcurrencyShares": 30, "limitResponse": {"type": "Queue"}}}}},
            ],
        });
        assert_eq!(
            render(&objects),
            "\
KIND                         NAME     ORIGIN                          DETAILS
FlowSchema                   a        f.yaml:3:1 (replaces cluster)   precedence 5, level x, left out: there is no such level
PriorityLevelConfiguration   exempt   built-in                        Exempt, 0 shares
PriorityLevelConfiguration   b        cluster                         Queue, 30 shares

The cluster's objects are not up to date: gone\\x1b[2J
"
        );
    }
}
