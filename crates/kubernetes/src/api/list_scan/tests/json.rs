//! Lists in JSON.

use fastrand::Rng;
use serde_json::Value;

use super::{JSON, scan, scan_all, scan_in_random_chunks};

pub(super) const PAGE: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1450",
"continue":"eyJ2IjoibWV0YSJ9","remainingItemCount":498},"items":[{"metadata":{"name":"web-01",
"labels":{"items":"a"},"continue":"no","remainingItemCount":3,"managedFields":[{"fieldsV1":{"f:spec":
{"k:{\"name\":\"c0\"}":{".":{},"f:image":{}},"v:\"\\\"":{}}}}]},"spec":{"volumes":[{"configMap":
{"items":[{"key":"ca.crt","path":"]}"}]}}]}},{"metadata":{"name":"web-02"},"rows":[{},{}]}]}
"#;
pub(super) const TABLE: &str = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":
"1450"},"columnDefinitions":[{"name":"Name","description":"Any \"name\".\n\n[more]","priority":0}],
"rows":[{"cells":["node-1",1,null,true],"object":{"kind":"PartialObjectMetadata","metadata":{
"name":"node-1"}}},{"cells":[]},{"cells":["{"]}]}"#;
pub(super) const LATE_METADATA: &str = r#"{"items":[{"metadata":{"continue":"x"}}],"metadata":{"remainingItemCount":7,"continue":""}}"#;

#[test]
fn a_list_in_json_is_summarized() {
    let cases = [
        (PAGE, (2, Some(498), true)),
        (TABLE, (3, None, false)),
        (LATE_METADATA, (1, Some(7), false)),
        (r#"{"items":[]}"#, (0, None, false)),
        (r#"{"items":null,"metadata":null}"#, (0, None, false)),
        (
            " { \"items\" : [ { } , { } ] , \"x\" : -1.5e+3 } \r\n\t",
            (2, None, false),
        ),
        (
            r#"{"metadata":{"continue":null,"remainingItemCount":null},"rows":[{}]}"#,
            (1, None, false),
        ),
        (
            r#"{"metadata":{"continue":"\u0000"},"items":[]}"#,
            (0, None, true),
        ),
        (
            r#"{"metadata":{"remainingItemCount":0},"items":[]}"#,
            (0, Some(0), false),
        ),
        (
            r#"{"metadata":{"remainingItemCount":9223372036854775807},"items":[]}"#,
            (0, Some(9_223_372_036_854_775_807), false),
        ),
        (
            r#"{"\u0069tem\u0073":[{}],"it\u0165ms":1,"item\u0073\n":2}"#,
            (1, None, false),
        ),
        (
            r#"{"metadata":{"items":[{}],"rows":[{}]},"items":[]}"#,
            (0, None, false),
        ),
        (
            r#"{"continue":"x","remainingItemCount":5,"items":[]}"#,
            (0, None, false),
        ),
        (
            r#"{"a":{"metadata":{"continue":"x"}},"items":[]}"#,
            (0, None, false),
        ),
        (
            r#"{"itemsitemsitemsitemsitemsitems":[{}],"items":[]}"#,
            (0, None, false),
        ),
        (
            r#"{"a":true,"b":false,"c":null,"d":"]","e":[1,[{}]],"items":[]}"#,
            (0, None, false),
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(scan_all(JSON, body.as_bytes()), Some(expected), "{body}");
    }
}

#[test]
fn json_that_is_not_a_list_has_no_summary() {
    let bodies = [
        "",
        " ",
        "null",
        "[]",
        "[{}]",
        "\"items\"",
        "{}",
        r#"{"kind":"Pod","metadata":{"name":"a"},"spec":{"items":[{}]}}"#,
        r#"{"kind":"Status","metadata":{},"status":"Failure","code":429}"#,
        r#"{"type":"ADDED","object":{"items":[]}}{"type":"ADDED"}"#,
        r#"{"items":[]} x"#,
        r#"{"items":[]}{"items":[]}"#,
        r#"{"items":[],"rows":[]}"#,
        r#"{"items":[],"items":[]}"#,
        r#"{"metadata":{"continue":"x"},"metadata":{},"items":[]}"#,
        r#"{"items":{}}"#,
        r#"{"items":"a"}"#,
        r#"{"items":0}"#,
        r#"{"items":[1]}"#,
        r#"{"items":[null]}"#,
        r#"{"items":[{}{}]}"#,
        r#"{"items":[{},]}"#,
        r#"{"items":[,{}]}"#,
        r#"{"items":[]],"a":1}"#,
        r#"{"items":[{}}}"#,
        r#"{"items":[],}"#,
        r#"{"items" []}"#,
        r#"{items:[]}"#,
        r#"{"items":[]]"#,
        r#"{"a":tru,"items":[]}"#,
        r#"{"a":01,"items":[]}"#,
        r#"{"a":1 2,"items":[]}"#,
        r#"{"a":,"items":[]}"#,
        r#"{"a":"\x","items":[]}"#,
        r#"{"a":"\u00g0","items":[]}"#,
        "{\"a\":\"\n\",\"items\":[]}",
        r#"{"metadata":[],"items":[]}"#,
        r#"{"metadata":"","items":[]}"#,
        r#"{"metadata":{"continue":1},"items":[]}"#,
        r#"{"metadata":{"continue":{}},"items":[]}"#,
        r#"{"metadata":{"remainingItemCount":-1},"items":[]}"#,
        r#"{"metadata":{"remainingItemCount":1.5},"items":[]}"#,
        r#"{"metadata":{"remainingItemCount":"1"},"items":[]}"#,
        r#"{"metadata":{"remainingItemCount":9223372036854775808},"items":[]}"#,
        r#"{"metadata":{"remainingItemCount":1000000000000000000000000000000},"items":[]}"#,
    ];
    for body in bodies {
        assert_eq!(scan_all(JSON, body.as_bytes()), None, "{body}");
    }
}

/// Strings of all lengths and escapes, brackets inside and outside of them, at all positions of a
/// block.
#[test]
fn every_value_is_skipped_to_its_end() {
    for length in 0..140 {
        for escapes in ["", "\\\\", "\\\"", "\\\\\\\"", "\\u005c"] {
            let text = format!("{}{escapes}", "{".repeat(length));
            let spaces = " ".repeat(length);
            let body = format!(
                r#"{{"items":[{{"{text}":[{spaces}["{text}"],{{}}]}},{{}}{spaces},{{"a":"{text}"}}]}}"#
            );
            assert_eq!(
                scan_all(JSON, body.as_bytes()),
                Some((3, None, false)),
                "{body}"
            );
        }
    }
}

/// Writes JSON without repeated names.
struct JsonWriter<'r> {
    rng: &'r mut Rng,
    text: String,
}

impl JsonWriter<'_> {
    fn space(&mut self) {
        let spaces = ["", "", "", " ", "\n  ", "\t\r"];
        self.text += self.rng.choice(spaces).unwrap();
    }

    fn value(&mut self, depth: usize) {
        match self.rng.usize(0..if depth > 0 { 6 } else { 4 }) {
            0 => self.string(),
            1 => self.text += self.rng.choice(["true", "false", "null"]).unwrap(),
            2 => self.text += &self.rng.i32(-50..5000).to_string(),
            3 => self.text += &(self.rng.f64() * 1e9).to_string(),
            4 => self.array(|writer| writer.value(depth - 1)),
            _ => self.object(&["a", "items", "metadata", "continue", "{", ""], depth - 1),
        }
    }

    fn string(&mut self) {
        let pieces = [
            "a",
            "\\\"",
            "\\\\",
            "{",
            "}",
            "[",
            "]",
            "\\u00e9",
            "é",
            ":",
            ",",
            "long enough",
        ];
        self.text.push('"');
        for _ in 0..self.rng.usize(0..20) {
            self.text += self.rng.choice(pieces).unwrap();
        }
        self.text.push('"');
    }

    fn array(&mut self, element: impl Fn(&mut Self)) {
        self.text.push('[');
        for index in 0..self.rng.usize(0..5) {
            if index > 0 {
                self.text.push(',');
            }
            self.space();
            element(self);
            self.space();
        }
        self.text.push(']');
    }

    fn object(&mut self, names: &[&str], depth: usize) {
        let mut names = names.to_vec();
        self.rng.shuffle(&mut names);
        names.truncate(self.rng.usize(0..=names.len()));
        self.text.push('{');
        for (index, name) in names.into_iter().enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            self.space();
            let name = match self.rng.u8(0..8) {
                0 => name.replace('e', "\\u0065"),
                _ => name.to_owned(),
            };
            self.text += &format!("\"{name}\"");
            self.space();
            self.text.push(':');
            self.space();
            self.member(&name, depth);
            self.space();
        }
        self.text.push('}');
    }

    /// Writes a value, most often one that such a member has in a list.
    fn member(&mut self, name: &str, depth: usize) {
        if self.rng.u8(0..20) == 0 {
            return self.value(depth);
        }
        match name {
            "items" | "rows" => self.array(|writer| writer.object(&["metadata", "b"], 3)),
            "metadata" => self.object(&["continue", "remainingItemCount", "items", "x"], depth),
            "continue" => self.string(),
            "remainingItemCount" => self.text += &self.rng.u32(..).to_string(),
            _ => self.value(depth),
        }
    }
}

/// The totals of a list, according to a JSON parser.
fn summarize_parsed(document: &Value) -> Option<(u64, Option<u64>, bool)> {
    let list = document.as_object()?;
    let ((Some(items), None) | (None, Some(items))) = (list.get("items"), list.get("rows")) else {
        return None;
    };
    let items = if items.is_null() {
        0
    } else {
        let items = items.as_array()?;
        items.iter().all(Value::is_object).then_some(items.len())?
    };
    let given = |member: Option<&Value>| member.filter(|member| !member.is_null()).cloned();
    let (mut remaining_items, mut continues) = (None, false);
    if let Some(metadata) = given(list.get("metadata")) {
        let metadata = metadata.as_object()?;
        if let Some(token) = given(metadata.get("continue")) {
            continues = !token.as_str()?.is_empty();
        }
        if let Some(count) = given(metadata.get("remainingItemCount")) {
            remaining_items = Some(u64::try_from(count.as_i64()?).ok()?);
        }
    }
    Some((items.try_into().unwrap(), remaining_items, continues))
}

#[test]
fn random_documents_are_scanned_as_a_parser_reads_them() {
    let (mut lists, mut spoilt) = (0, 0);
    for seed in 0..4000 {
        let mut rng = Rng::with_seed(seed);
        let mut writer = JsonWriter {
            rng: &mut rng,
            text: String::new(),
        };
        writer.space();
        let name = *writer.rng.choice(&["items", "items", "rows"]).unwrap();
        writer.object(&["kind", name, "metadata", "x"], 4);
        writer.space();
        let mut body = writer.text.into_bytes();
        if rng.u8(0..3) == 0 {
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(0..body.len());
                body[at] = *rng.choice(b"\"\\{}[],: a0-\x00\xff").unwrap();
            }
        }
        let shown = format!("seed {seed}: {}", String::from_utf8_lossy(&body));
        let totals = scan_all(JSON, &body);
        let at_random = scan_in_random_chunks(JSON, &body, &mut rng);
        assert_eq!(at_random, scan(JSON, [&*body]), "{shown}");
        // A list that is broken inside its items may still have totals.
        match serde_json::from_slice(&body) {
            Ok(document) => assert_eq!(totals, summarize_parsed(&document), "{shown}"),
            Err(_) => spoilt += 1,
        }
        lists += u32::from(totals.is_some());
    }
    assert!(
        lists > 1000 && spoilt > 500,
        "{lists} lists, {spoilt} spoilt"
    );
}
