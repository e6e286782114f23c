//! What the schema of SARIF 2.1.0 (OASIS, `sarif-schema-2.1.0.json`) requires of the objects that
//! `weir check -o sarif` writes: their properties, the required ones, and the form of each. The schema
//! forbids all other properties.

use serde_json::Value;

/// The form of a property.
#[derive(Clone, Copy, Debug)]
enum Form {
    Text,
    /// A URI, or a reference to one: without spaces and other characters that a URI escapes.
    Uri,
    OneOf(&'static [&'static str]),
    /// At least this.
    Integer(i64),
    Object(&'static Definition),
    List(&'static Definition),
    /// A list in which nothing is twice.
    Set(&'static Definition),
}

/// A definition of the schema.
#[derive(Debug)]
struct Definition {
    name: &'static str,
    required: &'static [&'static str],
    /// At least one of these is required. Nothing if empty.
    any_of: &'static [&'static str],
    /// Those that weir writes. Others of the schema are unknown here, so that a new one is looked up
    /// there.
    properties: &'static [(&'static str, Form)],
}

const LEVELS: Form = Form::OneOf(&["none", "note", "warning", "error"]);

const LOG: Definition = Definition {
    name: "sarifLog",
    required: &["version", "runs"],
    any_of: &[],
    properties: &[
        ("$schema", Form::Uri),
        ("version", Form::OneOf(&["2.1.0"])),
        ("runs", Form::List(&RUN)),
    ],
};

const RUN: Definition = Definition {
    name: "run",
    required: &["tool"],
    any_of: &[],
    properties: &[
        ("tool", Form::Object(&TOOL)),
        (
            "columnKind",
            Form::OneOf(&["utf16CodeUnits", "unicodeCodePoints"]),
        ),
        ("results", Form::List(&RESULT)),
    ],
};

const TOOL: Definition = Definition {
    name: "tool",
    required: &["driver"],
    any_of: &[],
    properties: &[("driver", Form::Object(&TOOL_COMPONENT))],
};

const TOOL_COMPONENT: Definition = Definition {
    name: "toolComponent",
    required: &["name"],
    any_of: &[],
    properties: &[
        ("name", Form::Text),
        ("version", Form::Text),
        ("informationUri", Form::Uri),
        ("rules", Form::Set(&REPORTING_DESCRIPTOR)),
    ],
};

const REPORTING_DESCRIPTOR: Definition = Definition {
    name: "reportingDescriptor",
    required: &["id"],
    any_of: &[],
    properties: &[
        ("id", Form::Text),
        ("shortDescription", Form::Object(&MULTIFORMAT_MESSAGE)),
        ("help", Form::Object(&MULTIFORMAT_MESSAGE)),
        ("helpUri", Form::Uri),
        ("defaultConfiguration", Form::Object(&CONFIGURATION)),
    ],
};

const MULTIFORMAT_MESSAGE: Definition = Definition {
    name: "multiformatMessageString",
    required: &["text"],
    any_of: &[],
    properties: &[("text", Form::Text), ("markdown", Form::Text)],
};

const CONFIGURATION: Definition = Definition {
    name: "reportingConfiguration",
    required: &[],
    any_of: &[],
    properties: &[("level", LEVELS)],
};

const RESULT: Definition = Definition {
    name: "result",
    required: &["message"],
    any_of: &[],
    properties: &[
        ("ruleId", Form::Text),
        ("ruleIndex", Form::Integer(-1)),
        ("level", LEVELS),
        ("message", Form::Object(&MESSAGE)),
        ("locations", Form::List(&LOCATION)),
    ],
};

const MESSAGE: Definition = Definition {
    name: "message",
    required: &[],
    any_of: &["text", "id"],
    properties: &[("text", Form::Text), ("id", Form::Text)],
};

const LOCATION: Definition = Definition {
    name: "location",
    required: &[],
    any_of: &[],
    properties: &[
        ("physicalLocation", Form::Object(&PHYSICAL_LOCATION)),
        ("logicalLocations", Form::Set(&LOGICAL_LOCATION)),
    ],
};

const PHYSICAL_LOCATION: Definition = Definition {
    name: "physicalLocation",
    required: &[],
    any_of: &["address", "artifactLocation"],
    properties: &[
        ("artifactLocation", Form::Object(&ARTIFACT_LOCATION)),
        ("region", Form::Object(&REGION)),
    ],
};

const ARTIFACT_LOCATION: Definition = Definition {
    name: "artifactLocation",
    required: &[],
    any_of: &[],
    properties: &[("uri", Form::Uri)],
};

const REGION: Definition = Definition {
    name: "region",
    required: &[],
    any_of: &[],
    properties: &[
        ("startLine", Form::Integer(1)),
        ("startColumn", Form::Integer(1)),
        ("endLine", Form::Integer(1)),
        ("endColumn", Form::Integer(1)),
    ],
};

const LOGICAL_LOCATION: Definition = Definition {
    name: "logicalLocation",
    required: &[],
    any_of: &[],
    properties: &[("fullyQualifiedName", Form::Text)],
};

/// What of a report is not as the schema has it.
pub(crate) fn violations(report: &Value) -> Vec<String> {
    let mut found = Vec::new();
    validate_object(report, &LOG, "", &mut found);
    let results = report["runs"][0]["results"].as_array();
    let rules = report["runs"][0]["tool"]["driver"]["rules"].as_array();
    // Not in the schema, but in the text of the standard (3.27.6): the index is that of the rule.
    for result in results.into_iter().flatten() {
        let index = result["ruleIndex"].as_u64().map(usize::try_from);
        let rule = index.zip(rules).and_then(|(n, rules)| rules.get(n.ok()?));
        if rule.is_none_or(|rule| rule["id"] != result["ruleId"]) {
            found.push(format!("the rule of {result}"));
        }
    }
    found
}

fn validate_object(value: &Value, definition: &Definition, path: &str, found: &mut Vec<String>) {
    let Some(object) = value.as_object() else {
        found.push(format!("{path}: not an object ({})", definition.name));
        return;
    };
    for name in definition.required {
        if !object.contains_key(*name) {
            found.push(format!("{path}/{name}: missing ({})", definition.name));
        }
    }
    let any = definition.any_of;
    if !any.is_empty() && !any.iter().any(|name| object.contains_key(*name)) {
        found.push(format!("{path}: none of {any:?} ({})", definition.name));
    }
    for (name, value) in object {
        let path = format!("{path}/{name}");
        match definition
            .properties
            .iter()
            .find(|(known, _)| known == name)
        {
            Some((_, form)) => validate(value, *form, &path, found),
            None => found.push(format!("{path}: not a property of {}", definition.name)),
        }
    }
}

fn validate(value: &Value, form: Form, path: &str, found: &mut Vec<String>) {
    let is_valid = match form {
        Form::Text => value.is_string(),
        Form::Uri => value.as_str().is_some_and(is_uri_reference),
        Form::OneOf(values) => value.as_str().is_some_and(|text| values.contains(&text)),
        Form::Integer(least) => value.as_i64().is_some_and(|number| number >= least),
        Form::Object(definition) => return validate_object(value, definition, path, found),
        Form::List(definition) | Form::Set(definition) => {
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            for (n, item) in items.iter().enumerate() {
                validate_object(item, definition, &format!("{path}/{n}"), found);
            }
            let is_set = matches!(form, Form::Set(_));
            let repeats = |(n, item): (usize, &Value)| items.iter().take(n).any(|one| one == item);
            value.is_array() && !(is_set && items.iter().enumerate().any(repeats))
        }
    };
    if !is_valid {
        found.push(format!("{path}: {value} is not {form:?}"));
    }
}

/// The characters of RFC 3986, and no `%` without two digits.
fn is_uri_reference(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_escape = |at: usize| {
        let digits = bytes.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    !bytes.is_empty()
        && bytes.iter().enumerate().all(|(at, byte)| match byte {
            b'%' => is_escape(at),
            _ => byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(byte),
        })
}

#[test]
fn what_the_schema_forbids_is_found() {
    let valid = serde_json::json!({
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "weir", "rules": [{"id": "r"}]}}, "results": [{
            "ruleId": "r", "ruleIndex": 0, "level": "error", "message": {"text": "m"},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": "a%20b.yaml"}, "region": {"startLine": 1},
            }}],
        }]}],
    });
    assert_eq!(violations(&valid), [""; 0]);
    let result = "/runs/0/results/0";
    for (pointer, value) in [
        ("/version", Value::from("2.0.0")),
        ("/runs/0/tool", serde_json::json!({})),
        ("/runs/0/tool/driver/rules/0/id", 1.into()),
        (&*format!("{result}/level"), "fatal".into()),
        (&*format!("{result}/ruleIndex"), 1.into()),
        (&*format!("{result}/message"), serde_json::json!({})),
        (
            &*format!("{result}/locations/0/physicalLocation/region/startLine"),
            0.into(),
        ),
        (
            &*format!("{result}/locations/0/physicalLocation/artifactLocation/uri"),
            "a b.yaml".into(),
        ),
        (
            &*format!("{result}/locations/0"),
            serde_json::json!({"line": 1}),
        ),
    ] {
        let mut report = valid.clone();
        *report.pointer_mut(pointer).unwrap() = value;
        assert!(!violations(&report).is_empty(), "{pointer}");
    }
}
