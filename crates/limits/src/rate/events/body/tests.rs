//! Bodies as event recorders write them, and malformed ones. `tests/vectors` has many more with
//! upstream's results.

use std::borrow::Cow;

use super::*;

const EVENT: &str = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"web-0.17a","labels":{"a":"b"}},
  "involvedObject":{"kind":"Pod","namespace":"default","name":"web-0","uid":"u","apiVersion":"v1"},
  "source":{"component":"kubelet","host":"node-0"},"count":3,"type":"Warning","series":null}"#;

fn parse_json_key(text: &str) -> Option<String> {
    parse_key(EventEncoding::Json, b"v1", text.as_bytes())
}

fn parse_key(encoding: EventEncoding, group_version: &[u8], body: &[u8]) -> Option<String> {
    let event = parse(encoding, group_version, body)?;
    Some(String::from_utf8_lossy(&event.key.concat()).into_owned())
}

#[test]
fn the_key_is_joined_without_separators() {
    let event = parse(EventEncoding::Json, b"v1", EVENT.as_bytes()).unwrap();
    assert_eq!(event.key.concat(), b"kubeletnode-0Poddefaultweb-0uv1");
    assert_eq!(
        (&*event.name, &*event.event_type),
        (&b"web-0.17a"[..], &b"Warning"[..])
    );
    assert!(event.version_accepted);
    assert!(
        event
            .key
            .iter()
            .all(|part| matches!(part, Cow::Borrowed(_))),
        "nothing is copied"
    );
}

#[test]
fn a_truncated_body_is_rejected() {
    for end in 0..EVENT.len() {
        assert_eq!(parse_json_key(&EVENT[..end]), None, "{}", &EVENT[..end]);
    }
}

#[test]
fn a_field_of_the_wrong_type_is_rejected() {
    for wrong in [
        r#"{"source":"a"}"#,
        r#"{"source":[]}"#,
        r#"{"involvedObject":{"name":5}}"#,
        r#"{"involvedObject":{"fieldPath":{}}}"#,
        r#"{"metadata":{"name":true}}"#,
        r#"{"metadata":[]}"#,
        r#"{"count":"3"}"#,
        r#"{"count":3.0}"#,
        r#"{"count":2147483648}"#,
        r#"{"reason":{}}"#,
        r#"{"series":"x"}"#,
        r#"{"series":{"count":"x"}}"#,
        r#"{"series":{"lastObservedTime":"2024-02-03T04:05:06Z"}}"#,
        r#"{"related":{"name":5}}"#,
        r#"{"firstTimestamp":"yesterday"}"#,
        r#"{"lastTimestamp":""}"#,
        r#"{"eventTime":"x"}"#,
        r#"{"eventTime":{"a":1}}"#,
        r#"{"metadata":{"labels":{"a":5}}}"#,
        r#"{"metadata":{"annotations":[]}}"#,
        r#"{"metadata":{"creationTimestamp":5}}"#,
        r#"{"metadata":{"finalizers":["a",5]}}"#,
        r#"{"metadata":{"finalizers":"a"}}"#,
        r#"{"metadata":{"generation":1.0}}"#,
        r#"{"metadata":{"ownerReferences":[{"controller":"yes"}]}}"#,
        r#"{"metadata":{"managedFields":[{"time":"x"}]}}"#,
        r#"{"metadata":{"managedFields":[{}"#,
        r#"{"metadata":{"finalizers":["a",]}}"#,
        r#"{"metadata":{"finalizers":["a" "b"]}}"#,
        r#"{"type":1}"#,
        r#"{"kind":"Pod"}"#,
        r#"{"apiVersion":"v2"}"#,
        r#"{"apiVersion":1}"#,
    ] {
        assert_eq!(parse_json_key(wrong), None, "{wrong}");
    }
    let right = r#"{"metadata":{"labels":{"a":null,"b":"c"},"creationTimestamp":null,"generation":9007199254740993,
        "finalizers":[null,"a"],"managedFields":[{"fieldsV1":{"a":[1]},"time":"2024-02-03T04:05:06Z"}],
        "ownerReferences":[{"controller":true},null],"other":[5]},"eventTime":"2024-02-03T04:05:06.000000Z",
        "firstTimestamp":"2024-02-03T04:05:06Z","lastTimestamp":null,"series":{"count":null},"related":{"other":5}}"#;
    for encoding in [EventEncoding::Json, EventEncoding::Yaml] {
        let found = parse_key(encoding, b"v1", right.as_bytes());
        assert_eq!(found.as_deref(), Some(""), "{encoding:?}");
    }
    // A field of the other schema is unknown here.
    for other in [
        r#"{"regarding":5}"#,
        r#"{"note":5}"#,
        r#"{"deprecatedCount":"x"}"#,
    ] {
        assert_eq!(parse_json_key(other).as_deref(), Some(""), "{other}");
    }
}

#[test]
fn invalid_json_is_rejected() {
    for wrong in [
        "",
        " ",
        "{",
        "{,}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":-}",
        "{\"a\":1e}",
        "{\"a\":+1}",
        "{\"a\":tru}",
        "{\"a\":[1,]}",
        "{\"a\":[1 2]}",
        "{\"a\":[}",
        "{\"a\":{]}",
        "{\"a\":\"\u{1}\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":[[[1]]}",
        "{} {}",
        "{}x",
        "[]",
        "5",
        "\"\"",
        "{a:1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":NaN}",
        "{\"a\":{\"b\":1,}}",
    ] {
        assert_eq!(parse_json_key(wrong), None, "{wrong}");
    }
    let right =
        r#" {"a":[0,-0.5e+10,1E5,"\u00e9\n",[],{},[{"b":[null,true]}]],"source":{"host":"h"}} "#;
    assert_eq!(parse_json_key(right).as_deref(), Some("h"));
}

#[test]
fn nesting_uses_no_stack_and_is_bounded() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(parse_json_key(&nested(9_999)).as_deref(), Some(""));
    assert_eq!(parse_json_key(&nested(10_000)), None);
    let cbor = |depth: usize| [&b"\xa1\x41a"[..], &b"\x81".repeat(depth), b"\xf6"].concat();
    assert!(parse(EventEncoding::Cbor, b"v1", &cbor(10_000)).is_some());
    assert!(parse(EventEncoding::Cbor, b"v1", &cbor(10_001)).is_none());
    assert!(parse(EventEncoding::Cbor, b"v1", &cbor(3 << 20)).is_none());
}

#[test]
fn invalid_utf8_bytes_are_replaced_one_by_one_as_in_go() {
    let body = b"{\"source\":{\"component\":\"a\xe2\x82b\",\"host\":\"\\ud800\\u0041\\ud83d\\ude00\\udc00\"}}";
    let found = parse_key(EventEncoding::Json, b"v1", body).unwrap();
    assert_eq!(found, "a\u{fffd}\u{fffd}b\u{fffd}A\u{1f600}\u{fffd}");
}

#[test]
fn cbor_allows_indefinite_lengths_but_no_duplicate_keys() {
    let once = b"\xbf\x46source\xbf\x44host\x5f\x41a\x41b\xff\xff\x61x\x9f\x01\xff\xff";
    assert_eq!(
        parse_key(EventEncoding::Cbor, b"v1", once).as_deref(),
        Some("ab")
    );
    for wrong in [
        &b"\xa2\x41a\x01\x41a\x02"[..],
        b"\xa1\x41a\xf9\x7e\x00",
        b"\xa1\x41a\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\xa1\x41a\x61\xff",
        b"\xa1\x01\x02",
        b"\xa0\x00",
        b"\xbf\x41a\xff",
        b"\xa1\x41a\xbf\x01\xff",
        b"\xa1\x41a\xbf\x01\x80\x02\xff",
        b"\xa1\x41a\x7f\x41b\xff",
        b"\xa1\x41a\x1c",
    ] {
        assert_eq!(
            parse_key(EventEncoding::Cbor, b"v1", wrong),
            None,
            "{wrong:02x?}"
        );
    }
}

#[test]
fn cbor_values_are_checked_for_the_same_types_as_json() {
    let metadata = |fields: &[u8]| [&b"\xa1\x48metadata\xa1"[..], fields].concat();
    for right in [
        metadata(b"\x4afinalizers\x82\x41a\xf6"),
        metadata(b"\x4afinalizers\x9f\x61a\xff"),
        metadata(b"\x4ageneration\x1b\x7f\xff\xff\xff\xff\xff\xff\xff"),
        b"\xa1\x4efirstTimestamp\x542024-02-03T04:05:06Z".to_vec(),
        b"\xa1\x45count\x3a\x7f\xff\xff\xff".to_vec(),
    ] {
        let found = parse_key(EventEncoding::Cbor, b"v1", &right);
        assert_eq!(found.as_deref(), Some(""), "{right:02x?}");
    }
    for wrong in [
        metadata(b"\x4afinalizers\x81\x01"),
        metadata(b"\x4afinalizers\x41a"),
        metadata(b"\x4afinalizers\x9f\x61a"),
        metadata(b"\x4ageneration\x1b\x80\x00\x00\x00\x00\x00\x00\x00"),
        metadata(b"\x46labels\xa1\x41a\x05"),
        b"\xa1\x4efirstTimestamp\x49yesterday".to_vec(),
        b"\xa1\x45count\x3a\x80\x00\x00\x00".to_vec(),
    ] {
        assert_eq!(
            parse_key(EventEncoding::Cbor, b"v1", &wrong),
            None,
            "{wrong:02x?}"
        );
    }
}

#[test]
fn protobuf_uses_the_schema_of_its_type_meta_or_else_of_the_url() {
    let string = |number: u8, text: &[u8]| {
        [&[number << 3 | 2, u8::try_from(text.len()).unwrap()], text].concat()
    };
    let core = [
        string(2, &string(3, b"o")),
        string(5, &string(2, b"h")),
        string(9, b"Warning"),
    ]
    .concat();
    let body = |meta: &[u8]| [&b"k8s\0"[..], &string(1, meta), &string(2, &core)].concat();
    let typed = body(&[string(1, b"v1"), string(2, b"Event")].concat());
    assert_eq!(
        parse_key(EventEncoding::Protobuf, b"v1", &typed).as_deref(),
        Some("ho")
    );
    assert_eq!(
        parse_key(EventEncoding::Protobuf, b"v1", &body(b"")).as_deref(),
        Some("ho")
    );
    let event = parse(EventEncoding::Protobuf, b"v1", &typed).unwrap();
    assert_eq!(&*event.event_type, b"Warning");
    // Field 9 of the other schema is `related`, field 2 a time.
    assert_eq!(
        parse_key(EventEncoding::Protobuf, b"events.k8s.io/v1", &body(b"")),
        None
    );
    let other = [&core[..core.len() - 9], &string(9, b"")].concat();
    let other = [&b"k8s\0"[..], &string(2, &other)].concat();
    let event = parse(EventEncoding::Protobuf, b"events.k8s.io/v1", &other).unwrap();
    assert_eq!(
        (&*event.event_type, event.key.concat().len()),
        (&b""[..], 0)
    );
    let event = parse(EventEncoding::Protobuf, b"events.k8s.io/v1", &typed).unwrap();
    assert!(!event.version_accepted);
}

#[test]
fn a_group_is_skipped_and_an_illegal_tag_is_rejected() {
    let body = |raw: &[u8]| [&b"k8s\0\x12"[..], &[u8::try_from(raw.len()).unwrap()], raw].concat();
    let fine = body(b"\x83\x01\x0b\x08\x01\x0c\x84\x01\x2a\x03\x0a\x01c");
    assert_eq!(
        parse_key(EventEncoding::Protobuf, b"v1", &fine).as_deref(),
        Some("c")
    );
    for wrong in [
        &b"\x00"[..],
        b"\x0c",
        b"\x83\x01",
        b"\x2f\x00",
        b"\x28\x01",
        b"\x2a\x05\x0a\x01c",
    ] {
        assert_eq!(
            parse_key(EventEncoding::Protobuf, b"v1", &body(wrong)),
            None,
            "{wrong:02x?}"
        );
    }
}

#[test]
fn nested_messages_are_checked() {
    let message = |number: u8, text: &[u8]| {
        [&[number << 3 | 2, u8::try_from(text.len()).unwrap()], text].concat()
    };
    let body = |raw: &[u8]| [&b"k8s\0"[..], &message(2, raw)].concat();
    let found = |raw: &[u8]| parse_key(EventEncoding::Protobuf, b"v1", &body(raw));
    let label = [message(1, b"a"), message(2, b"b")].concat();
    for right in [
        message(6, b"\x08\x01\x10\x02"),
        message(6, b""),
        message(11, &[&b"\x08\x05"[..], &message(2, b"\x08\x01")].concat()),
        message(13, &message(3, b"n")),
        message(1, &message(11, &label)),
        message(1, &message(11, b"\x08\x01a")), // the wire type of a map's key is ignored
        message(1, b"\x38\x01"),
        message(1, b"\x78\x01"),
        message(
            1,
            &[&b"\x8a\x01\x06"[..], &message(7, &message(1, b"{}"))].concat(),
        ),
    ] {
        assert_eq!(found(&right).as_deref(), Some(""), "{right:02x?}");
    }
    for wrong in [
        message(1, b"\x18\x01"),
        message(1, &message(7, b"")),
        message(1, &message(8, b"\x0a\x00")),
        message(1, &message(11, b"\x0a\x05a")),
        message(1, &message(13, b"\x08\x01")),
        message(1, b"\x8a\x01\x04\x3a\x02\x08\x01"),
        message(6, b"\x08"),
        message(6, b"\x0a\x00"),
        message(10, b"\x15\x00\x00\x00\x00"),
        message(11, &message(1, b"")),
        message(11, &message(2, b"\x0a\x00")),
        message(13, b"\x08\x01"),
    ] {
        assert_eq!(found(&wrong), None, "{wrong:02x?}");
    }
}

#[test]
fn yaml_follows_its_own_rules_and_only_the_first_document_counts() {
    let read = |text: &str| parse_key(EventEncoding::Yaml, b"v1", text.as_bytes());
    for (text, found) in [
        (r#"{"count":3.0,"source":{"host":"h"}}"#, Some("h")),
        ("{\"source\":\t{\n\t\"host\": \"h\"}}\n", Some("h")),
        ("source: {host: h}\n---\n{{{{", Some("h")),
        ("---\n---\nsource: {host: h}\n", Some("")),
        ("---\nsource: {host: h}\n", Some("h")),
        ("null", Some("")),
        ("firstTimestamp: 2024-02-03T04:05:06Z\n", Some("")),
        ("count: 1E400\n", None),
        ("message: 1E400\n", Some("")),
        (r#"{"source":{"host":"\ud83d\ude00"}}"#, None),
        ("source: {host: \"\\ud83d\\ude00\"}\n", None),
        (r#"{"source":{"host":"a\/b"}}"#, None),
        (r#"{"source":{"host":"\\/\u00e9"}}"#, Some("\\/é")),
        ("source: {host: \"h\u{7f}\"}\n", None),
        ("\t{}", None),
        ("{{{{", None),
    ] {
        assert_eq!(read(text).as_deref(), found, "{text}");
    }
}

#[test]
fn oversized_yaml_is_rejected() {
    let long = format!(
        "source: {{host: h}}\nmessage: {}\n",
        "x".repeat(yaml::MAX_BODY_BYTES)
    );
    assert_eq!(parse_key(EventEncoding::Yaml, b"v1", long.as_bytes()), None);
    let short = "source: {host: h}\nmessage: x\n---\nsource: {host: other}\n";
    assert_eq!(
        parse_key(EventEncoding::Yaml, b"v1", short.as_bytes()).as_deref(),
        Some("h")
    );
}

#[test]
fn yaml_aliases_are_allowed_up_to_a_bound() {
    let event = "metadata: &m {name: e, labels: &l {a: b}, annotations: *l}\n\
                 involvedObject: {<<: *m, kind: Pod}\nsource: {host: h}\n";
    assert_eq!(
        parse_key(EventEncoding::Yaml, b"v1", event.as_bytes()).as_deref(),
        Some("hPode")
    );
    let nested = |levels: usize| {
        let (begin, end) = ("[&a ".repeat(levels), "]".repeat(levels));
        let values = "~, ".repeat(1000);
        format!("source: {{host: h}}\nother: {begin}[{values}]{end}\n")
    };
    let read = |levels| parse_key(EventEncoding::Yaml, b"v1", nested(levels).as_bytes());
    assert_eq!(read(5).as_deref(), Some("h"));
    assert_eq!(read(50), None);
}

#[test]
fn random_bytes_cause_no_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let seeds: [&[u8]; 3] = [
        EVENT.as_bytes(),
        b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Event\x12\x0a\x2a\x03\x0a\x01c\x12\x03\x1a\x01o",
        b"\xd9\xd9\xf7\xa2\x46source\xa1\x44host\x41h\x41x\x82\x01\xf6",
    ];
    for round in 0..20_000 {
        let mut body = seeds[round % 3].to_vec();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..body.len());
            match random.u8(..3) {
                0 => body[at] = random.u8(..),
                1 => body.truncate(at + 1),
                _ => body.insert(at, random.u8(..)),
            }
        }
        for encoding in [
            EventEncoding::Cbor,
            EventEncoding::Json,
            EventEncoding::Protobuf,
            EventEncoding::Yaml,
        ] {
            let _ = parse(encoding, b"v1", &body);
        }
    }
}

#[test]
fn the_encoding_follows_the_content_type() {
    let of = |text: &'static str| EventEncoding::from_content_type(Some(text.as_bytes()));
    assert_eq!(
        EventEncoding::from_content_type(None),
        Some(EventEncoding::Json)
    );
    assert_eq!(
        of("Application/JSON; charset=utf-8"),
        Some(EventEncoding::Json)
    );
    assert_eq!(
        of("application/vnd.kubernetes.protobuf"),
        Some(EventEncoding::Protobuf)
    );
    assert_eq!(of("text/plain"), None);
    assert_eq!(
        EventEncoding::from_patch_content_type(Some(b"application/apply-patch+yaml")),
        Some(EventEncoding::Yaml)
    );
    assert_eq!(
        EventEncoding::from_patch_content_type(Some(b"application/merge-patch+json")),
        None
    );
}
