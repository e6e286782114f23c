//! Parses one YAML document as JSON, for request bodies (`application/yaml`, `apply-patch+yaml`).
//!
//! Supports YAML's JSON schema: plain `true`, `null`, numbers, strings. Aliases are rejected
//! because they let a small body grow without bound; anchors and tags have no effect.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Maximum depth of a document, so that its JSON can be read again.
const MAX_DEPTH: usize = 100;

/// An open collection.
enum YamlCollection {
    List(Vec<Value>),
    /// The second field is the key that has no value yet.
    Map(Map<String, Value>, Option<String>),
}

/// Parses one document. The error is the message of a 400.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<YamlCollection> = Vec::new();
    let mut document = None;
    while let Some(event) = parser.next_event() {
        let (event, _) = event.map_err(|error| error.to_string())?;
        let finished = match event {
            Event::Alias(_) => return Err("aliases are not supported".to_owned()),
            Event::DocumentStart(_) if document.is_some() => {
                return Err("more than one document".to_owned());
            }
            Event::SequenceStart(..) => {
                open.push(YamlCollection::List(Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(YamlCollection::Map(Map::new(), None));
                None
            }
            Event::Scalar(text, style, ..) => Some(scalar(&text, style)),
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|open| match open {
                YamlCollection::List(list) => Value::Array(list),
                YamlCollection::Map(map, _) => Value::Object(map),
            }),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => None,
        };
        if open.len() > MAX_DEPTH {
            return Err("nested too deeply".to_owned());
        }
        if let Some(value) = finished {
            match open.last_mut() {
                Some(parent) => add_value(parent, value)?,
                None => document = Some(value),
            }
        }
    }
    document.ok_or_else(|| "no document".to_owned())
}

fn add_value(parent: &mut YamlCollection, value: Value) -> Result<(), String> {
    match parent {
        YamlCollection::List(list) => list.push(value),
        YamlCollection::Map(map, key) => match key.take() {
            Some(key) => {
                if map.insert(key.clone(), value).is_some() {
                    return Err(format!("key {key:?} already set in map"));
                }
            }
            None => *key = Some(map_key(value)?),
        },
    }
    Ok(())
}

/// A key in JSON is a string, whatever its YAML type.
fn map_key(value: Value) -> Result<String, String> {
    match value {
        Value::String(key) => Ok(key),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Array(_) | Value::Null | Value::Object(_) => {
            Err("a key must be a scalar".to_owned())
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::from(text);
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::from(text), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if let Ok(integer) = text.parse::<i64>() {
        return Some(integer.into());
    }
    let plain = digits
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    if !plain {
        return None;
    }
    Number::from_f64(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use serde_json::json;

    #[test]
    fn a_manifest_is_parsed_to_json() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cap\n  labels: {}\ndata:\n  \
                    a: b\n  port: \"80\"\n  text: |\n    one\n    two\n  on: true\n  n: 12\n  f: 1.5\n  \
                    ip: 10.0.0.1\n  list: [1, x]\n  empty:\n";
        assert_eq!(
            parse(text),
            Ok(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "cap", "labels": {}},
                "data": {
                    "a": "b", "port": "80", "text": "one\ntwo\n", "on": true, "n": 12, "f": 1.5,
                    "ip": "10.0.0.1", "list": [1, "x"], "empty": null,
                },
            }))
        );
    }

    #[test]
    fn json_is_yaml_too() {
        assert_eq!(
            parse(r#"{"a":{"b":[1,"2"]}}"#),
            Ok(json!({"a": {"b": [1, "2"]}}))
        );
    }

    #[test]
    fn hostile_documents_are_rejected() {
        assert!(parse("a: &x [1]\nb: *x").is_err());
        assert!(parse(&"[".repeat(10_000)).is_err());
        assert!(parse("a: 1\na: 2").is_err());
        assert!(parse("a: 1\n---\nb: 2").is_err());
        assert!(parse("").is_err());
    }
}
