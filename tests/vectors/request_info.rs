//! `RequestInfo` of request targets as sent on the request line.

#![expect(clippy::unwrap_used, reason = "a case of another form fails the test")]

use serde_json::Value;
use weir_kubernetes::request_info::{RequestInfo, TargetError};

use crate::support;

/// Bytes: text in a case, or hexadecimal if they are not text.
fn bytes(value: &Value) -> Vec<u8> {
    if let Some(text) = value.as_str() {
        return text.as_bytes().to_vec();
    }
    let digits = value["hex"].as_str().unwrap();
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn assert_fields(info: &RequestInfo<'_>, expected: &Value, input: &Value) {
    let fields = [
        ("path", info.path()),
        ("verb", info.verb().as_str().as_bytes()),
        ("api_prefix", info.api_prefix()),
        ("api_group", info.api_group()),
        ("api_version", info.api_version()),
        ("namespace", info.namespace()),
        ("resource", info.resource()),
        ("subresource", info.subresource()),
        ("name", info.name()),
        ("field_selector", info.field_selector()),
        ("label_selector", info.label_selector()),
    ];
    for (field, found) in fields {
        assert_eq!(found, bytes(&expected[field]), "{field} of {input}");
    }
    let flags = [
        ("is_resource_request", info.is_resource_request()),
        ("long_running", info.long_running()),
        ("mutating", info.mutating()),
    ];
    for (flag, found) in flags {
        assert_eq!(Some(found), expected[flag].as_bool(), "{flag} of {input}");
    }
    let parts: Vec<_> = expected["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(bytes)
        .collect();
    assert!(
        info.parts().eq(parts.iter().map(Vec::as_slice)),
        "parts of {input}"
    );
}

#[test]
fn requests_are_resolved_as_by_kubernetes() {
    for case in support::cases("request_info") {
        let (input, expected) = (&case["input"], &case["expected"]);
        let target = bytes(&input["url"]);
        let found = RequestInfo::parse(input["method"].as_str().unwrap(), &target);
        let http_error = expected["http_error"] == true;
        match found {
            Ok(info) => {
                assert!(
                    !http_error && expected["error"] != true,
                    "not refused: {input}"
                );
                assert_fields(&info, expected, input);
            }
            Err(TargetError::Malformed(error)) => assert!(http_error, "{error}: {input}"),
            Err(TargetError::Unresolvable(found)) => {
                assert_eq!(
                    found.message(),
                    bytes(&expected["error_message"]),
                    "{input}"
                );
                assert_fields(found.info(), expected, input);
            }
        }
    }
}
