//! YAML as JSON, as kubectl reads it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "what is not expected fails the test"
)]

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// The documents of a text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let mut parser = Parser::new_from_str(text);
    let mut next = || parser.next_event().map(|event| event.unwrap().0);
    let mut documents = Vec::new();
    while let Some(event) = next() {
        if let Event::DocumentStart(_) = event {
            let first = next().unwrap();
            documents.push(value(first, &mut next));
        }
    }
    documents
}

/// The value that begins with `event`.
fn value<'t>(event: Event<'t>, next: &mut impl FnMut() -> Option<Event<'t>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => scalar(&text),
        Event::Scalar(text, ..) => Value::from(text.as_ref()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match next().unwrap() {
                    Event::SequenceEnd => return Value::Array(list),
                    event => list.push(value(event, next)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                match next().unwrap() {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(key, ..) => {
                        let event = next().unwrap();
                        let earlier = map.insert(key.into_owned(), value(event, next));
                        assert_eq!(earlier, None, "a key stands there twice");
                    }
                    other => panic!("unexpected in a mapping: {other:?}"),
                }
            }
        }
        other => panic!("unexpected in a document: {other:?}"),
    }
}

fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" => return Value::Null,
        "true" => return true.into(),
        "false" => return false.into(),
        _ => {}
    }
    // YAML 1.1: 0440 is octal.
    let octal = text.strip_prefix('0').filter(|rest| !rest.is_empty());
    let number = match octal {
        Some(digits) => i64::from_str_radix(digits, 8).ok().map(Value::from),
        None => {
            let float = || text.parse::<f64>().ok().map(Value::from);
            text.parse::<i64>().ok().map(Value::from).or_else(float)
        }
    };
    number.unwrap_or_else(|| text.into())
}
