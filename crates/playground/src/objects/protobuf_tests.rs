//! Bodies as client-go encodes them, and broken ones.

use super::{MAGIC, ProtobufBodyError, decode};
use serde_json::json;

fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(length < 128);
    [&[number << 3 | 2, length], content].concat()
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    let envelope = [bytes(1, &meta), bytes(2, raw), bytes(3, b""), bytes(4, b"")].concat();
    [MAGIC, &envelope].concat()
}

#[test]
fn a_secret_is_decoded_to_json() {
    let meta = [
        bytes(1, b"s"),
        bytes(2, b""),
        bytes(8, b""),
        vec![7 << 3, 0],
    ]
    .concat();
    let entry = [bytes(1, b"p"), bytes(2, b"q")].concat();
    let raw = [bytes(1, &meta), bytes(2, &entry), bytes(3, b"Opaque")].concat();
    assert_eq!(
        decode(&body("v1", "Secret", &raw)),
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s"}, "data": {"p": "cQ=="}, "type": "Opaque",
        }))
    );
}

#[test]
fn the_times_and_numbers_of_an_event_are_decoded() {
    // 2026-11-21T00:00:00Z is 1795219200 seconds.
    let time = vec![8, 0x80, 0xbe, 0x83, 0xd8, 0x06, 16, 0x80, 0xc2, 0xd7, 0x2f];
    let raw = [bytes(6, &time), vec![8 << 3, 3], bytes(10, &time)].concat();
    let event = decode(&body("v1", "Event", &raw)).unwrap();
    assert_eq!(event["firstTimestamp"], "2026-11-21T00:00:00Z");
    assert_eq!(event["eventTime"], "2026-11-21T00:00:00.100000Z");
    assert_eq!(event["count"], 3);
}

#[test]
fn unknown_kinds_and_fields_are_rejected() {
    assert_eq!(
        decode(&body("v1", "Pod", b"")),
        Err(ProtobufBodyError::UnknownKind)
    );
    let unknown = decode(&body("v1", "ConfigMap", &bytes(9, b"x")));
    assert!(matches!(unknown, Err(ProtobufBodyError::Malformed(_))));
    let whole = body("v1", "ConfigMap", &bytes(2, &bytes(1, b"key")));
    for end in 0..whole.len() {
        // Truncated anywhere, the body is an error or a smaller object, without a panic.
        let _ = decode(&whole[..end]);
    }
}
