//! Random bodies of events, read by [`parse`] and by slow general decoders.
//!
//! A body is made from a tree in one of the four encodings, and then damaged. What an undamaged body
//! means is known from its tree. Damaged JSON is decoded by `serde_json`, damaged CBOR and protobuf by
//! decoders of their whole grammar, and the result is looked at by the types of Kubernetes' API.
//! Damaged YAML must only cause no panic: there is no second decoder of go-yaml's dialect.

#![expect(
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    reason = "Go's conversions drop bits; what is not named here does not fit"
)]
#![cfg_attr(fuzzing, allow(unused, reason = "the tests themselves are not there"))]

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use fastrand::Rng;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{EventBody, EventEncoding, EventSchema, parse};
use weir_kubernetes::api::time::{is_micro_time, is_time};

/// How many events are made. Each is encoded in four ways.
const EVENTS: usize = 1_500;

/// How many of them are cut off at each of their bytes.
const CUT_EVENTS: usize = 25;

/// A value of any encoding.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Null,
    Bool,
    /// As JSON writes it.
    Number(String),
    Text(Vec<u8>),
    List(Vec<Self>),
    /// A name is `None` if it is not a string, which CBOR has.
    Map(Vec<(Option<Vec<u8>>, Self)>),
    /// A value that fits no field, such as one with a tag of CBOR.
    Other,
}

/// A type of Kubernetes' API.
enum Kind {
    Any,
    Bool,
    Int32,
    Int64,
    Labels,
    List(&'static Self),
    MicroTime,
    Struct(Fields),
    Text,
    Time,
}

/// The fields of a type: name, protobuf's number, type. Name and number are those of
/// `k8s.io/api/core/v1`, `k8s.io/api/events/v1` and `k8s.io/apimachinery/pkg/apis/meta/v1`.
type Fields = &'static [(&'static str, u64, Kind)];

const OWNER: Kind = Kind::Struct(&[
    ("kind", 1, Kind::Text),
    ("name", 3, Kind::Text),
    ("uid", 4, Kind::Text),
    ("apiVersion", 5, Kind::Text),
    ("controller", 6, Kind::Bool),
    ("blockOwnerDeletion", 7, Kind::Bool),
]);

const MANAGED: Kind = Kind::Struct(&[
    ("manager", 1, Kind::Text),
    ("operation", 2, Kind::Text),
    ("apiVersion", 3, Kind::Text),
    ("time", 4, Kind::Time),
    ("fieldsType", 6, Kind::Text),
    ("fieldsV1", 7, Kind::Any),
    ("subresource", 8, Kind::Text),
]);

const META: Kind = Kind::Struct(&[
    ("name", 1, Kind::Text),
    ("generateName", 2, Kind::Text),
    ("namespace", 3, Kind::Text),
    ("selfLink", 4, Kind::Text),
    ("uid", 5, Kind::Text),
    ("resourceVersion", 6, Kind::Text),
    ("generation", 7, Kind::Int64),
    ("creationTimestamp", 8, Kind::Time),
    ("deletionTimestamp", 9, Kind::Time),
    ("deletionGracePeriodSeconds", 10, Kind::Int64),
    ("labels", 11, Kind::Labels),
    ("annotations", 12, Kind::Labels),
    ("ownerReferences", 13, Kind::List(&OWNER)),
    ("finalizers", 14, Kind::List(&Kind::Text)),
    ("managedFields", 17, Kind::List(&MANAGED)),
]);

const REFERENCE: Kind = Kind::Struct(&[
    ("kind", 1, Kind::Text),
    ("namespace", 2, Kind::Text),
    ("name", 3, Kind::Text),
    ("uid", 4, Kind::Text),
    ("apiVersion", 5, Kind::Text),
    ("resourceVersion", 6, Kind::Text),
    ("fieldPath", 7, Kind::Text),
]);

const SOURCE: Kind = Kind::Struct(&[("component", 1, Kind::Text), ("host", 2, Kind::Text)]);

const SERIES: Kind = Kind::Struct(&[
    ("count", 1, Kind::Int32),
    ("lastObservedTime", 2, Kind::MicroTime),
]);

const CORE: Fields = &[
    ("metadata", 1, META),
    ("involvedObject", 2, REFERENCE),
    ("reason", 3, Kind::Text),
    ("message", 4, Kind::Text),
    ("source", 5, SOURCE),
    ("firstTimestamp", 6, Kind::Time),
    ("lastTimestamp", 7, Kind::Time),
    ("count", 8, Kind::Int32),
    ("type", 9, Kind::Text),
    ("eventTime", 10, Kind::MicroTime),
    ("series", 11, SERIES),
    ("action", 12, Kind::Text),
    ("related", 13, REFERENCE),
    ("reportingComponent", 14, Kind::Text),
    ("reportingInstance", 15, Kind::Text),
];

const EVENTS_V1: Fields = &[
    ("metadata", 1, META),
    ("eventTime", 2, Kind::MicroTime),
    ("series", 3, SERIES),
    ("reportingController", 4, Kind::Text),
    ("reportingInstance", 5, Kind::Text),
    ("action", 6, Kind::Text),
    ("reason", 7, Kind::Text),
    ("regarding", 8, REFERENCE),
    ("related", 9, REFERENCE),
    ("note", 10, Kind::Text),
    ("type", 11, Kind::Text),
    ("deprecatedSource", 12, SOURCE),
    ("deprecatedFirstTimestamp", 13, Kind::Time),
    ("deprecatedLastTimestamp", 14, Kind::Time),
    ("deprecatedCount", 15, Kind::Int32),
];

/// `metav1.Timestamp`, as which protobuf has times.
const TIMESTAMP: Kind = Kind::Struct(&[("seconds", 1, Kind::Int64), ("nanos", 2, Kind::Int32)]);

/// `metav1.FieldsV1` in protobuf.
const FIELDS_V1: Kind = Kind::Struct(&[("Raw", 1, Kind::Text)]);

const fn schema_fields(schema: EventSchema) -> Fields {
    match schema {
        EventSchema::Core => CORE,
        EventSchema::Events => EVENTS_V1,
    }
}

/// The paths of the seven parts of the key.
const fn key_paths(schema: EventSchema) -> [[&'static str; 2]; 7] {
    let (source, object) = match schema {
        EventSchema::Core => ("source", "involvedObject"),
        EventSchema::Events => ("deprecatedSource", "regarding"),
    };
    [
        [source, "component"],
        [source, "host"],
        [object, "kind"],
        [object, "namespace"],
        [object, "name"],
        [object, "uid"],
        [object, "apiVersion"],
    ]
}

fn schema_of(api_version: &[u8]) -> Option<EventSchema> {
    match api_version {
        b"v1" => Some(EventSchema::Core),
        b"events.k8s.io/v1" | b"events.k8s.io/v1beta1" => Some(EventSchema::Events),
        _ => None,
    }
}

impl Tree {
    fn text(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }

    fn entries(&self) -> &[(Option<Vec<u8>>, Self)] {
        match self {
            Self::Map(entries) => entries,
            Self::Null
            | Self::Bool
            | Self::Number(_)
            | Self::Text(_)
            | Self::List(_)
            | Self::Other => &[],
        }
    }

    fn children<'t>(&'t self, name: &'t str) -> impl Iterator<Item = &'t Self> {
        let named = move |key: &Option<Vec<u8>>| key.as_deref() == Some(name.as_bytes());
        self.entries()
            .iter()
            .filter(move |(key, _)| named(key))
            .map(|(_, value)| value)
    }

    /// The last text at a path: repeated objects are merged, and null changes nothing.
    fn last_text(&self, path: &[&str]) -> Vec<u8> {
        let mut found = vec![self];
        for name in path {
            found = found.iter().flat_map(|tree| tree.children(name)).collect();
        }
        let mut texts = found.into_iter().filter_map(|tree| match tree {
            Self::Text(text) => Some(text.clone()),
            Self::Null
            | Self::Bool
            | Self::Number(_)
            | Self::List(_)
            | Self::Map(_)
            | Self::Other => None,
        });
        texts.next_back().unwrap_or_default()
    }

    /// Whether Go decodes the value into this type. Without repeated names, if they must be unique.
    fn fits(&self, kind: &Kind, unique: bool) -> bool {
        let integer = |number: &str| number.parse::<i64>().ok();
        match (self, kind) {
            (Self::Null, _) | (_, Kind::Any) => true,
            (Self::Bool, Kind::Bool) | (Self::Text(_), Kind::Text) => true,
            (Self::Number(number), Kind::Int32) => {
                integer(number).is_some_and(|number| i32::try_from(number).is_ok())
            }
            (Self::Number(number), Kind::Int64) => integer(number).is_some(),
            (Self::Text(text), Kind::Time) => is_time(text),
            (Self::Text(text), Kind::MicroTime) => is_micro_time(text),
            (Self::List(items), Kind::List(kind)) => {
                items.iter().all(|item| item.fits(kind, unique))
            }
            (Self::Map(entries), Kind::Labels) => {
                self.has_valid_names(unique)
                    && entries
                        .iter()
                        .all(|(_, value)| value.fits(&Kind::Text, unique))
            }
            (Self::Map(entries), Kind::Struct(fields)) => {
                self.has_valid_names(unique)
                    && entries.iter().all(|(name, value)| {
                        let name = name.as_deref().unwrap_or_default();
                        let field = fields.iter().find(|(key, _, _)| key.as_bytes() == name);
                        field.is_none_or(|(_, _, kind)| value.fits(kind, unique))
                    })
            }
            _ => false,
        }
    }

    fn has_valid_names(&self, unique: bool) -> bool {
        let mut seen = HashSet::new();
        self.entries().iter().all(|(name, _)| {
            let is_first = seen.insert(name);
            name.is_some() && (!unique || is_first)
        })
    }

    /// Whether a map at any depth has a name twice, or one that is not a string.
    fn has_odd_names(&self) -> bool {
        let items: &[Self] = match self {
            Self::List(items) => items,
            Self::Null
            | Self::Bool
            | Self::Number(_)
            | Self::Text(_)
            | Self::Map(_)
            | Self::Other => &[],
        };
        !self.has_valid_names(true)
            || items.iter().any(Self::has_odd_names)
            || self
                .entries()
                .iter()
                .any(|(_, value)| value.has_odd_names())
    }

    /// As YAML has it: of equal names the last one counts, and `3.0` is an integer.
    fn as_yaml(&self) -> Self {
        match self {
            Self::List(items) => Self::List(items.iter().map(Self::as_yaml).collect()),
            Self::Number(number) => {
                Self::Number(number.strip_suffix(".0").unwrap_or(number).to_owned())
            }
            Self::Map(entries) => {
                let last = |at: usize| !entries[at + 1..].iter().any(|e| e.0 == entries[at].0);
                let kept = (0..entries.len()).filter(|at| last(*at));
                Self::Map(
                    kept.map(|at| (entries[at].0.clone(), entries[at].1.as_yaml()))
                        .collect(),
                )
            }
            Self::Null | Self::Bool | Self::Text(_) | Self::Other => self.clone(),
        }
    }
}

/// What an event says, if it is one.
fn read_tree(tree: &Tree, group_version: &[u8], unique: bool) -> Option<EventBody<'static>> {
    let is_text = |name| {
        tree.children(name)
            .all(|tree| tree.fits(&Kind::Text, unique))
    };
    let is_event =
        matches!(tree, Tree::Null | Tree::Map(_)) && is_text("kind") && is_text("apiVersion");
    let is_kind = [&b""[..], b"Event"].contains(&&*tree.last_text(&["kind"]));
    if !is_event || !is_kind {
        return None;
    }
    let declared = tree.last_text(&["apiVersion"]);
    let api_version = if declared.is_empty() {
        group_version.to_vec()
    } else {
        declared
    };
    let schema = schema_of(&api_version)?;
    let text = |path: &[&str]| Cow::Owned(tree.last_text(path));
    tree.fits(&Kind::Struct(schema_fields(schema)), unique)
        .then(|| EventBody {
            schema,
            version_accepted: api_version == group_version,
            name: text(&["metadata", "name"]),
            event_type: text(&["type"]),
            key: key_paths(schema).map(|path| text(&path)),
        })
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

#[rustfmt::skip]
const TEXTS: &[&str] = &[
    "kubelet", "node-0", "default", "web-0", "Pod", "v1", "", "Warning", "Normal", "true", "null", "1",
    "a\"b\\c/d", "\n\t\r\u{8}\u{c}", "\u{1}", "\u{7f}", "\u{e9}\u{4e16}\u{1f600}", "\u{fffd}", "{", "k: v",
];

#[rustfmt::skip]
const TIMES: &[&str] = &[
    "2024-02-03T04:05:06Z", "2024-02-03T04:05:06.123456Z", "2024-02-03T4:05:06,5+01:00", "", "yesterday",
    "2024-02-30T04:05:06Z", "2024-02-03T04:05:06.000000-07:00",
];

#[rustfmt::skip]
const NUMBERS: &[&str] = &[
    "0", "3", "-1", "2147483647", "2147483648", "-2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "3.0", "2.5",
];

fn random_text(random: &mut Rng) -> Tree {
    if random.u8(..20) == 0 {
        return Tree::Text(vec![b'x'; pick(random, &[23, 24, 255, 256, 300])]);
    }
    Tree::text(pick(random, TEXTS))
}

/// A value of no certain type.
fn random_tree(random: &mut Rng, depth: usize) -> Tree {
    let deepest = if depth == 0 { 4 } else { 6 };
    match random.usize(..deepest) {
        0 => Tree::Null,
        1 => Tree::Bool,
        2 => Tree::Number(pick(random, NUMBERS).to_owned()),
        3 => random_text(random),
        4 => Tree::List(
            (0..random.usize(..4))
                .map(|_| random_tree(random, depth - 1))
                .collect(),
        ),
        _ => Tree::Map(
            (0..random.usize(..4))
                .map(|_| {
                    let name = pick(random, &["a", "b", "name", "host", "\u{e9}", ""]);
                    (Some(name.into()), random_tree(random, depth - 1))
                })
                .collect(),
        ),
    }
}

/// A value that fits the type but for one in `odd`.
fn random_value(random: &mut Rng, kind: &Kind, odd: u8) -> Tree {
    if random.u8(..odd) == 0 {
        return random_tree(random, 3);
    }
    if random.u8(..12) == 0 {
        return Tree::Null;
    }
    match kind {
        Kind::Any => random_tree(random, 3),
        Kind::Bool => Tree::Bool,
        Kind::Int32 => Tree::Number(pick(random, &NUMBERS[..4]).to_owned()),
        Kind::Int64 => Tree::Number(pick(random, &NUMBERS[..7]).to_owned()),
        Kind::Text => random_text(random),
        Kind::Time => Tree::text(pick(random, &TIMES[..3])),
        Kind::MicroTime => Tree::text(TIMES[1]),
        Kind::List(kind) => Tree::List(
            (0..random.usize(..3))
                .map(|_| random_value(random, kind, odd))
                .collect(),
        ),
        Kind::Labels => Tree::Map(
            (0..random.usize(..3))
                .map(|_| (Some(pick(random, TEXTS).into()), random_text(random)))
                .collect(),
        ),
        Kind::Struct(fields) => {
            let count = random.usize(..fields.len().min(6));
            Tree::Map(random_fields(random, fields, count, odd))
        }
    }
}

/// Fields in any order. Few are unknown or occur twice.
fn random_fields(
    random: &mut Rng,
    fields: Fields,
    count: usize,
    odd: u8,
) -> Vec<(Option<Vec<u8>>, Tree)> {
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        if random.u8(..8) == 0 {
            let name = pick(
                random,
                &["extra", "Source", "Name", "k\u{131}nd", "s\u{17f}ource"],
            );
            entries.push((Some(name.into()), random_tree(random, 3)));
        }
        let (name, _, kind) = &fields[random.usize(..fields.len())];
        if names.insert(name) || random.u8(..4) == 0 {
            entries.push((Some((*name).into()), random_value(random, kind, odd)));
        }
    }
    entries
}

fn random_event(random: &mut Rng) -> Tree {
    // Most values fit in half of the events, and some do not in the others.
    let odd = pick(random, &[u8::MAX, 24]);
    if random.u8(..100) == 0 {
        return random_tree(random, 3);
    }
    let schema = pick(
        random,
        &[EventSchema::Core, EventSchema::Core, EventSchema::Events],
    );
    let fields = schema_fields(schema);
    let count = random.usize(2..10);
    let mut entries = random_fields(random, fields, count, odd);
    // The fields that are read are more common than others.
    for [parent, child] in key_paths(schema) {
        if random.u8(..3) == 0 {
            let child = (Some(child.into()), random_text(random));
            entries.push((Some(parent.into()), Tree::Map(vec![child])));
        }
    }
    if random.bool() {
        let versions = [
            "v1",
            "v1",
            "events.k8s.io/v1",
            "events.k8s.io/v1beta1",
            "v2",
            "",
        ];
        entries.push((
            Some("apiVersion".into()),
            Tree::text(pick(random, &versions)),
        ));
    }
    if random.bool() {
        let kinds = ["Event", "Event", "Event", "Event", "", "Pod"];
        entries.push((Some("kind".into()), Tree::text(pick(random, &kinds))));
    }
    random.shuffle(&mut entries);
    Tree::Map(entries)
}

fn text_of(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// A line break within brackets. YAML's parser wants the rest further to the right than the block
/// around it, which go-yaml does not.
const INDENTED: &str = "\n                    ";

/// Writes JSON, or the part of it that YAML shares, which has no `\/` and no surrogates.
struct JsonWriter<'r> {
    random: &'r mut Rng,
    is_yaml: bool,
    text: String,
}

impl JsonWriter<'_> {
    fn encode(random: &mut Rng, tree: &Tree, is_yaml: bool) -> Vec<u8> {
        let text = String::new();
        let mut writer = JsonWriter {
            random,
            is_yaml,
            text,
        };
        writer.value(tree);
        writer.text.into_bytes()
    }

    fn space(&mut self) {
        let spaces = if self.is_yaml {
            ["", "", " ", INDENTED]
        } else {
            ["", " ", "\n", "\r\n\t"]
        };
        self.text.push_str(pick(self.random, &spaces));
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            let short = match c {
                '"' | '\\' => Some(c),
                '/' if !self.is_yaml && self.random.bool() => Some(c),
                '\n' => Some('n'),
                '\t' => Some('t'),
                '\r' => Some('r'),
                '\u{8}' => Some('b'),
                '\u{c}' => Some('f'),
                _ => None,
            };
            let must = c < ' ' || c == '"' || c == '\\' || c == '\u{7f}' && self.is_yaml;
            if let Some(short) = short
                && (self.random.bool() || self.is_yaml)
            {
                self.text.extend(['\\', short]);
            } else if must || self.random.u8(..8) == 0 {
                if self.is_yaml && c.len_utf16() == 2 {
                    self.text.push_str(&format!("\\U{:08x}", u32::from(c)));
                } else {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            } else {
                self.text.push(c);
            }
        }
        self.text.push('"');
    }

    fn value(&mut self, tree: &Tree) {
        self.space();
        match tree {
            Tree::Null => self.text.push_str("null"),
            Tree::Bool => self.text.push_str(pick(self.random, &["true", "false"])),
            Tree::Number(number) => self.text.push_str(number),
            Tree::Text(text) => self.string(text_of(text)),
            Tree::List(items) => {
                self.text.push('[');
                for (n, item) in items.iter().enumerate() {
                    self.text.push_str(if n > 0 { "," } else { "" });
                    self.value(item);
                }
                self.text.push(']');
            }
            Tree::Map(entries) => {
                self.text.push('{');
                for (n, (name, value)) in entries.iter().enumerate() {
                    self.text.push_str(if n > 0 { "," } else { "" });
                    self.space();
                    self.string(text_of(name.as_deref().unwrap()));
                    self.text.push_str(": ");
                    self.value(value);
                }
                self.text.push('}');
            }
            Tree::Other => unreachable!("none is made"),
        }
        self.space();
    }
}

/// Words that YAML 1.1 does not read as strings.
#[rustfmt::skip]
const YAML_NULLS: &[&str] = &["~", "null", "Null", "NULL", ""];
const YAML_BOOLS: &[&str] = &[
    "true", "True", "yes", "Yes", "y", "on", "NO", "off", "n", "False",
];

/// YAML in blocks; smaller values as in JSON.
fn encode_yaml(random: &mut Rng, tree: &Tree, indent: usize) -> String {
    let entries = tree.entries();
    if entries.is_empty() || indent > 0 && random.u8(..3) == 0 {
        return match tree {
            Tree::Null => pick(random, YAML_NULLS).to_owned(),
            Tree::Bool => pick(random, YAML_BOOLS).to_owned(),
            Tree::Number(number) if number == "3" => {
                pick(random, &["3", "0x3", "03", "0b11", "+3"]).to_owned()
            }
            Tree::Text(text) if *text == b"web-0" => {
                pick(random, &["web-0", "'web-0'", "!!str web-0"]).to_owned()
            }
            Tree::Text(text) if *text == b"true" => "'true'".to_owned(),
            Tree::Number(_) | Tree::Text(_) | Tree::List(_) | Tree::Map(_) | Tree::Other => {
                String::from_utf8(JsonWriter::encode(random, tree, true))
                    .unwrap()
                    .trim()
                    .to_owned()
            }
        };
    }
    let mut text = String::new();
    for (name, value) in entries {
        let name = text_of(name.as_deref().unwrap());
        let name = match name.chars().all(|c| c.is_ascii_alphabetic()) && name.len() > 4 {
            true => name.to_owned(),
            false => {
                let name = Tree::text(name);
                let name = JsonWriter::encode(random, &name, true);
                text_of(&name).trim().to_owned()
            }
        };
        let value = encode_yaml(random, value, indent + 2);
        text.push_str(&format!("\n{}{name}: {value}", " ".repeat(indent)));
    }
    text
}

/// The first byte of an item of CBOR, and its argument in any width that has room for it.
fn cbor_head(random: &mut Rng, major: u8, argument: u64) -> Vec<u8> {
    let width = random.usize(..5);
    let bytes = argument.to_be_bytes();
    match width {
        1 if argument < 1 << 8 => [&[major << 5 | 24][..], &bytes[7..]].concat(),
        2 if argument < 1 << 16 => [&[major << 5 | 25][..], &bytes[6..]].concat(),
        3 if argument < 1 << 32 => [&[major << 5 | 26][..], &bytes[4..]].concat(),
        _ if argument < 24 => vec![major << 5 | bytes[7]],
        _ => [&[major << 5 | 27][..], &bytes].concat(),
    }
}

fn cbor_string(random: &mut Rng, text: &[u8]) -> Vec<u8> {
    // Parts of text must be UTF-8, so only ASCII is divided.
    let major = pick(random, &[2, 3]);
    if random.u8(..6) > 0 || !text.is_ascii() {
        let head = cbor_head(random, major, text.len().try_into().unwrap());
        return [&head[..], text].concat();
    }
    let mut bytes = vec![major << 5 | 31];
    for part in text.chunks(random.usize(1..9)) {
        bytes.extend(cbor_head(random, major, part.len().try_into().unwrap()));
        bytes.extend_from_slice(part);
    }
    bytes.push(0xff);
    bytes
}

fn encode_cbor(random: &mut Rng, tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (major, count) = match tree {
        Tree::Null => return vec![0xf6],
        Tree::Bool => return vec![pick(random, &[0xf4, 0xf5])],
        Tree::Number(number) => {
            return match (number.parse::<i64>(), number.parse::<u64>()) {
                (Ok(number), _) => {
                    let major = u8::from(number < 0);
                    let argument = number ^ number >> 63; // -1 - n
                    cbor_head(random, major, argument.try_into().unwrap())
                }
                (_, Ok(number)) => cbor_head(random, 0, number),
                _ => {
                    let float: f64 = number.parse().unwrap();
                    [&[0xfb][..], &float.to_be_bytes()].concat()
                }
            };
        }
        Tree::Text(text) => return cbor_string(random, text),
        Tree::List(items) => (4, items.len()),
        Tree::Map(entries) => (5, entries.len()),
        Tree::Other => unreachable!("none is made"),
    };
    let is_open = random.u8(..3) == 0;
    if is_open {
        bytes.push(major << 5 | 31);
    } else {
        bytes.extend(cbor_head(random, major, count.try_into().unwrap()));
    }
    if let Tree::List(items) = tree {
        for item in items {
            bytes.extend(encode_cbor(random, item));
        }
    }
    for (name, value) in tree.entries() {
        bytes.extend(cbor_string(random, name.as_deref().unwrap()));
        bytes.extend(encode_cbor(random, value));
    }
    bytes.extend(is_open.then_some(0xff));
    bytes
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn protobuf_bytes(number: u64, bytes: &[u8]) -> Vec<u8> {
    let length = varint(bytes.len().try_into().unwrap());
    [varint(number << 3 | 2), length, bytes.to_vec()].concat()
}

/// A field; nothing for null. `None` if the value does not fit, which protobuf cannot write.
fn protobuf_field(random: &mut Rng, number: u64, kind: &Kind, tree: &Tree) -> Option<Vec<u8>> {
    if *tree == Tree::Null {
        return Some(Vec::new());
    }
    if !tree.fits(kind, false) {
        return None;
    }
    let field = match (kind, tree) {
        (Kind::List(kind), Tree::List(items)) => {
            let items: Option<Vec<_>> = items
                .iter()
                .map(|item| protobuf_field(random, number, kind, item))
                .collect();
            items?.concat()
        }
        (Kind::Labels, _) => {
            let entries = tree.entries().iter().map(|(name, value)| {
                let name = protobuf_bytes(1, name.as_deref().unwrap());
                let value = protobuf_field(random, 2, &Kind::Text, value)?;
                Some(protobuf_bytes(number, &[name, value].concat()))
            });
            entries.collect::<Option<Vec<_>>>()?.concat()
        }
        (Kind::Struct(fields), _) => {
            protobuf_bytes(number, &protobuf_message(random, fields, tree)?)
        }
        (Kind::Time | Kind::MicroTime, _) => {
            let timestamp = [&[0x08][..], &varint(random.u64(..)), &[0x10, 5]].concat();
            protobuf_bytes(number, &timestamp)
        }
        (Kind::Any, _) => protobuf_bytes(number, &protobuf_bytes(1, b"{}")),
        (Kind::Text, Tree::Text(text)) => protobuf_bytes(number, text),
        (Kind::Bool, _) => [varint(number << 3), vec![1]].concat(),
        (Kind::Int32 | Kind::Int64, Tree::Number(text)) => {
            let value = text.parse::<i64>().unwrap().cast_unsigned();
            [varint(number << 3), varint(value)].concat()
        }
        _ => unreachable!("it fits"),
    };
    Some(field)
}

fn protobuf_message(random: &mut Rng, fields: Fields, tree: &Tree) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, value) in tree.entries() {
        let name = text_of(name.as_deref().unwrap());
        match fields.iter().find(|(key, _, _)| *key == name) {
            Some((_, number, kind)) => bytes.extend(protobuf_field(random, *number, kind, value)?),
            None if ["apiVersion", "kind"].contains(&name) => {} // of the envelope
            None => {
                let number = pick(random, &[16, 99, 1 << 20, (1 << 29) - 1]);
                let unknown: &[u8] = match random.u8(..5) {
                    0 => &[0, 0x80, 1],
                    1 => &[1, 1, 2, 3, 4, 5, 6, 7, 8],
                    2 => &[2, 3, 1, 2, 3],
                    3 => &[5, 1, 2, 3, 4],
                    _ => &[3, 0x08, 1, 0x0b, 0x0c, 0x0c], // a group in a group
                };
                let (wire, rest) = unknown.split_first().unwrap();
                bytes.extend(varint(number << 3 | u64::from(*wire)));
                bytes.extend_from_slice(rest);
            }
        }
    }
    Some(bytes)
}

/// `None` if protobuf has no such value.
fn encode_protobuf(random: &mut Rng, tree: &Tree, group_version: &[u8]) -> Option<Vec<u8>> {
    if !matches!(tree, Tree::Map(_)) {
        return None;
    }
    let meta = [("apiVersion", 1), ("kind", 2)].map(|(name, number)| {
        let texts = tree.children(name).map(|value| match value {
            Tree::Text(text) => Some(protobuf_bytes(number, text)),
            Tree::Null => Some(Vec::new()),
            Tree::Bool | Tree::Number(_) | Tree::List(_) | Tree::Map(_) | Tree::Other => None,
        });
        texts
            .collect::<Option<Vec<_>>>()
            .map(|texts| texts.concat())
    });
    let [api_version, kind] = meta;
    let declared = tree.last_text(&["apiVersion"]);
    let schema = schema_of(&declared).or_else(|| schema_of(group_version))?;
    let raw = protobuf_message(random, schema_fields(schema), tree)?;
    let mut parts = vec![
        protobuf_bytes(1, &[api_version?, kind?].concat()),
        protobuf_bytes(2, &raw),
        protobuf_bytes(3, b""),
        protobuf_bytes(4, b""),
    ];
    random.shuffle(&mut parts);
    Some([b"k8s\0".to_vec(), parts.concat()].concat())
}

/// A JSON object with its order and its repeated names.
struct RawEntries<'j>(Vec<(String, &'j RawValue)>);

impl<'de> Deserialize<'de> for RawEntries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawEntries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RawEntries(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Decodes JSON by `serde_json`.
fn decode_json(body: &[u8]) -> Option<Tree> {
    let text = replace_surrogates(&replace_invalid(body));
    json_tree(serde_json::from_str(&text).ok()?)
}

fn json_tree(raw: &RawValue) -> Option<Tree> {
    let text = raw.get();
    Some(match text.as_bytes()[0] {
        b'n' => Tree::Null,
        b't' | b'f' => Tree::Bool,
        b'"' => Tree::Text(serde_json::from_str::<String>(text).ok()?.into_bytes()),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Tree::List(items.into_iter().map(json_tree).collect::<Option<_>>()?)
        }
        b'{' => {
            let entries: RawEntries<'_> = serde_json::from_str(text).ok()?;
            let entries = entries.0.into_iter();
            let entries =
                entries.map(|(name, raw)| Some((Some(name.into_bytes()), json_tree(raw)?)));
            Tree::Map(entries.collect::<Option<_>>()?)
        }
        _ => Tree::Number(text.to_owned()),
    })
}

/// Go's decoder replaces each byte that is not UTF-8.
fn replace_invalid(mut bytes: &[u8]) -> String {
    if let Ok(valid) = str::from_utf8(bytes) {
        return valid.to_owned();
    }
    let mut text = String::new();
    while !bytes.is_empty() {
        let valid = (1..=bytes.len().min(4)).find_map(|end| str::from_utf8(&bytes[..end]).ok());
        text.push_str(valid.unwrap_or("\u{fffd}"));
        bytes = &bytes[valid.map_or(1, str::len)..];
    }
    text
}

/// Go's decoder replaces a surrogate that has no other half; `serde_json` rejects it.
fn replace_surrogates(text: &str) -> String {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return text.to_owned();
    }
    let all: Vec<char> = text.chars().collect();
    let unit = |at: usize| {
        let escape: String = all.get(at..at + 6)?.iter().collect();
        let digits = escape.strip_prefix("\\u")?;
        let are_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
        are_hex.then(|| u16::from_str_radix(digits, 16).unwrap())
    };
    let mut replaced = String::new();
    let mut at = 0;
    while at < all.len() {
        let length = match (unit(at), unit(at + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                replaced.push('\u{fffd}');
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            (None, _) if all[at] == '\\' => 2,
            (None, _) => 1,
        };
        replaced.extend(&all[at..all.len().min(at + length)]);
        at += length;
    }
    replaced
}

/// Decodes an item of CBOR and advances behind it; RFC 8949, appendix C, with Kubernetes' limits.
fn decode_cbor(bytes: &mut &[u8]) -> Option<Tree> {
    let (major, argument) = cbor_argument(bytes)?;
    Some(match (major, argument) {
        (0 | 1, Some(argument)) => {
            let sign = if major == 0 { 1 } else { -1 };
            let value = i128::from(argument) * sign - i128::from(major);
            Tree::Number(value.to_string())
        }
        (2 | 3, Some(length)) => Tree::Text(cbor_text(major, length, bytes)?),
        (2 | 3, None) => {
            let mut text = Vec::new();
            while bytes.first()? != &0xff {
                let (part, length) = cbor_argument(bytes)?;
                text.extend((part == major).then(|| cbor_text(major, length?, bytes))??);
            }
            *bytes = &bytes[1..];
            Tree::Text(text)
        }
        (4, count) => Tree::List(cbor_items(count, bytes)?),
        (5, count) => {
            let items = cbor_items(
                count.map_or(Some(None), |n| n.checked_mul(2).map(Some))?,
                bytes,
            )?;
            let pairs = items.chunks(2).map(|pair| match pair {
                [Tree::Text(name), value] => Some((Some(name.clone()), value.clone())),
                [_, value] => Some((None, value.clone())),
                _ => None, // a name without a value
            });
            Tree::Map(pairs.collect::<Option<_>>()?)
        }
        (6, Some(_)) => {
            decode_cbor(bytes)?;
            Tree::Other
        }
        (7, Some(_)) => unreachable!("simple values are decoded below"),
        (8, Some(20 | 21)) => Tree::Bool,
        (8, Some(22 | 23)) => Tree::Null,
        (9, Some(_)) => Tree::Number("2.5".to_owned()), // a float, whose value does not matter
        _ => return None,
    })
}

/// The major type of an item and its argument, `None` for an indefinite length. A simple value has
/// the type 8 here, a finite float 9, any other float 10.
fn cbor_argument(bytes: &mut &[u8]) -> Option<(u8, Option<u64>)> {
    let (first, rest) = bytes.split_first()?;
    let (major, info) = (first >> 5, first & 31);
    let width = match info {
        0..=23 => 0,
        24..=27 => 1 << (info - 24),
        31 if (2..=5).contains(&major) => {
            *bytes = rest;
            return Some((major, None));
        }
        _ => return None,
    };
    let (argument, rest) = rest.split_at_checked(width)?;
    *bytes = rest;
    let value = argument
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let value = if width == 0 { u64::from(info) } else { value };
    let major = match (major, width) {
        (7, 0) => 8,
        (7, 1) => return None, // no other simple value has a meaning
        (7, _) => {
            let is_finite = match width {
                2 => value & 0x7c00 != 0x7c00,
                4 => f32::from_bits(value as u32).is_finite(),
                _ => f64::from_bits(value).is_finite(),
            };
            if is_finite { 9 } else { 10 }
        }
        _ => major,
    };
    Some((major, Some(value)))
}

fn cbor_text(major: u8, length: u64, bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (text, rest) = bytes.split_at_checked(length.try_into().ok()?)?;
    *bytes = rest;
    (major == 2 || str::from_utf8(text).is_ok()).then(|| text.to_vec())
}

fn cbor_items(count: Option<u64>, bytes: &mut &[u8]) -> Option<Vec<Tree>> {
    let mut items = Vec::new();
    loop {
        match count {
            Some(count) if u64::try_from(items.len()).ok()? == count => return Some(items),
            None if bytes.first()? == &0xff => {
                *bytes = &bytes[1..];
                return Some(items);
            }
            _ => items.push(decode_cbor(bytes)?),
        }
    }
}

/// A value of protobuf; any that is neither bytes nor a varint is `Other`.
enum Wire<'b> {
    Bytes(&'b [u8]),
    Other,
    Varint,
}

/// Decodes protobuf as gogo's generated code does, with the fields of an event as a tree.
fn decode_protobuf(body: &[u8], group_version: &[u8]) -> Option<Tree> {
    let envelope = body
        .strip_prefix(b"k8s\0")
        .filter(|rest| !rest.is_empty())?;
    let mut raw = &[][..];
    let mut entries = Vec::new();
    for (number, wire) in wire_fields(envelope)? {
        match (number, wire) {
            (1, Wire::Bytes(meta)) => {
                for (number, wire) in wire_fields(meta)? {
                    let name = match number {
                        1 => "apiVersion",
                        2 => "kind",
                        _ => continue,
                    };
                    let Wire::Bytes(text) = wire else { return None };
                    entries.push((Some(name.into()), Tree::Text(text.to_vec())));
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3 | 4, Wire::Bytes(_)) => {}
            (1..=4, _) => return None,
            _ => {}
        }
    }
    let meta = Tree::Map(entries.clone());
    let declared = meta.last_text(&["apiVersion"]);
    let schema = schema_of(if declared.is_empty() {
        group_version
    } else {
        &declared
    })?;
    let event = message_tree(raw, schema_fields(schema))?;
    entries.extend_from_slice(event.entries());
    Some(Tree::Map(entries))
}

/// A message with the values of its known fields.
fn message_tree(bytes: &[u8], fields: Fields) -> Option<Tree> {
    let mut entries = Vec::new();
    for (number, wire) in wire_fields(bytes)? {
        let Some((name, _, mut kind)) = find_field(fields, number) else {
            continue;
        };
        if let Kind::List(item) = kind {
            kind = item;
        }
        let value = match (kind, wire) {
            (Kind::Bool | Kind::Int32 | Kind::Int64, Wire::Varint) => Tree::Null,
            (Kind::Text, Wire::Bytes(text)) => Tree::Text(text.to_vec()),
            (Kind::Labels, Wire::Bytes(entry)) => check_entry(entry).map(|()| Tree::Null)?,
            (Kind::Struct(fields), Wire::Bytes(bytes)) => message_tree(bytes, fields)?,
            (Kind::Time | Kind::MicroTime, Wire::Bytes(bytes)) => {
                check_struct(bytes, &TIMESTAMP).map(|()| Tree::Null)?
            }
            (Kind::Any, Wire::Bytes(bytes)) => {
                check_struct(bytes, &FIELDS_V1).map(|()| Tree::Null)?
            }
            _ => return None,
        };
        if !matches!(find_field(fields, number), Some((_, _, Kind::List(_)))) {
            entries.push((Some(name.as_bytes().to_vec()), value));
        }
    }
    Some(Tree::Map(entries))
}

fn find_field(fields: Fields, number: u64) -> Option<(&'static str, u64, &'static Kind)> {
    let field = fields.iter().find(|(_, known, _)| *known == number);
    field.map(|(name, number, kind)| (*name, *number, kind))
}

fn check_struct(bytes: &[u8], kind: &'static Kind) -> Option<()> {
    match kind {
        Kind::Struct(fields) => message_tree(bytes, fields).map(drop),
        _ => unreachable!("it is a message"),
    }
}

/// An entry of a map: name and value are read by their lengths, whatever their wire type is. (Go
/// reads them even beyond the end of the entry. weir does not, and takes such a body for no event.)
fn check_entry(mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let mut after_tag = bytes;
        let tag = read_number(&mut after_tag)?;
        let number = (tag >> 3) as u32;
        if number == 1 || number == 2 {
            let length = read_number(&mut after_tag)?;
            bytes = after_tag.get(length.try_into().ok()?..)?;
        } else {
            bytes = bytes.get(skip(bytes)?..)?;
        }
    }
    Some(())
}

/// The fields of a message, each with its number.
fn wire_fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let mut value = bytes;
        let tag = read_number(&mut value)?;
        let number = (tag >> 3) as u32 as i32;
        if number <= 0 || tag & 7 == 4 {
            return None;
        }
        let (field, rest) = bytes.split_at_checked(skip(bytes)?)?;
        let mut value = &value[..value.len() - rest.len()];
        let wire = match tag & 7 {
            0 => Wire::Varint,
            2 => {
                read_number(&mut value)?;
                Wire::Bytes(value)
            }
            _ => Wire::Other,
        };
        assert!(!field.is_empty());
        fields.push((number.unsigned_abs().into(), wire));
        bytes = rest;
    }
    Some(fields)
}

/// `skipGenerated`: the length of the field with its tag.
fn skip(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let mut depth = 0_usize;
    loop {
        let length = match read_number(&mut rest)? & 7 {
            0 => {
                read_number(&mut rest)?;
                0
            }
            1 => 8,
            2 => read_number(&mut rest)?.try_into().ok()?,
            3 => {
                depth += 1;
                0
            }
            4 => {
                depth = depth.checked_sub(1)?;
                0
            }
            5 => 4,
            _ => return None,
        };
        rest = rest.get(length..)?;
        if depth == 0 {
            return Some(bytes.len() - rest.len());
        }
    }
}

/// A varint of ten bytes at most. What does not fit in 64 bits is lost.
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let length = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let number = bytes[..length].iter().rev();
    let number = number.fold(0_u128, |sum, byte| sum << 7 | u128::from(byte & 0x7f));
    *bytes = &bytes[length..];
    Some(number as u64)
}

/// Changes a body at a few places.
fn damage(random: &mut Rng, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    for _ in 0..random.usize(1..4) {
        if body.is_empty() {
            break;
        }
        let at = random.usize(..body.len());
        let to = random.usize(at..=body.len().min(at + 20));
        match random.u8(..8) {
            0 => body[at] = random.u8(..),
            1 => body[at] ^= 1 << random.u8(..8),
            2 => body.insert(at, random.u8(..)),
            3 => body.truncate(at),
            4 => drop(body.drain(at..to)),
            5 => {
                let part = body[at..to].to_vec();
                let to = random.usize(..=body.len());
                body.splice(to..to, part);
            }
            6 => body[at] = pick(random, b"\"\\{}[],:0e-\xff\x80\x7f\xf6\x5f\xbf\x9f "),
            _ => body.insert(at, pick(random, b"\"\\{}[],:u0\xff\x80\x00\xf6\xd9\xc1 ")),
        }
    }
    body
}

/// Compares them for a body in the encoding that the first byte chooses.
///
/// # Panics
/// They differ.
#[cfg(fuzzing)]
pub fn compare_bytes(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else {
        return;
    };
    let encoding = match choice % 4 {
        0 => EventEncoding::Json,
        1 => EventEncoding::Cbor,
        2 => EventEncoding::Protobuf,
        _ => EventEncoding::Yaml,
    };
    let group_version: &[u8] = match choice / 4 % 2 {
        0 => b"v1",
        _ => b"events.k8s.io/v1",
    };
    compare(0, encoding, group_version, body);
}

/// Compares what is read of any body with the general decoder's result. Returns whether it is an
/// event.
fn compare(seed: u64, encoding: EventEncoding, group_version: &[u8], body: &[u8]) -> bool {
    let found = parse(encoding, group_version, body);
    let (tree, unique) = match encoding {
        EventEncoding::Cbor => {
            let mut rest = body.strip_prefix(b"\xd9\xd9\xf7").unwrap_or(body);
            let tree = decode_cbor(&mut rest).filter(|_| rest.is_empty());
            (tree, true)
        }
        EventEncoding::Json => (decode_json(body), false),
        EventEncoding::Protobuf => (decode_protobuf(body, group_version), false),
        EventEncoding::Yaml => return found.is_some(),
    };
    let expected = tree
        .as_ref()
        .and_then(|tree| read_tree(tree, group_version, unique));
    if found.is_none() && unique && tree.as_ref().is_some_and(Tree::has_odd_names) {
        // Fields of the other schema are read before the schema is known, and so are their names. Go
        // skips them.
        return false;
    }
    assert_eq!(
        found,
        expected,
        "seed {seed}: {encoding:?} of {}: \"{}\" is {tree:?}",
        text_of(group_version),
        body.escape_ascii()
    );
    found.is_some()
}

/// One event in each encoding that has it, with what must be read.
fn encoded(
    random: &mut Rng,
    tree: &Tree,
    group_version: &[u8],
) -> Vec<(EventEncoding, Vec<u8>, Option<EventBody<'static>>)> {
    let expected = read_tree(tree, group_version, false);
    let mut bodies = vec![(
        EventEncoding::Json,
        JsonWriter::encode(random, tree, false),
        expected.clone(),
    )];
    if !tree.has_odd_names() {
        let prefix: &[u8] = pick(random, &[b"", b"\xd9\xd9\xf7"]);
        let body = [prefix, &encode_cbor(random, tree)].concat();
        bodies.push((EventEncoding::Cbor, body, expected.clone()));
    }
    if let Some(body) = encode_protobuf(random, tree, group_version) {
        bodies.push((EventEncoding::Protobuf, body, expected));
    }
    let expected = read_tree(&tree.as_yaml(), group_version, false);
    let body = match random.bool() {
        true => encode_yaml(random, tree, 0).into_bytes(),
        false => JsonWriter::encode(random, tree, true),
    };
    bodies.push((EventEncoding::Yaml, body, expected));
    bodies
}

#[test]
fn random_events_are_read_as_by_general_decoders() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let (mut bodies, mut events, mut damaged, mut surviving) = (0, 0, 0, 0);
    for n in 0..EVENTS {
        let tree = random_event(&mut random);
        let group_version = pick(&mut random, &[&b"v1"[..], b"v1", b"events.k8s.io/v1"]);
        for (encoding, body, expected) in encoded(&mut random, &tree, group_version) {
            assert_eq!(
                parse(encoding, group_version, &body),
                expected,
                "seed {seed}: {encoding:?} of {}: \"{}\"",
                text_of(group_version),
                body.escape_ascii()
            );
            compare(seed, encoding, group_version, &body);
            bodies += 1;
            events += usize::from(expected.is_some());
            let is_compared = encoding != EventEncoding::Yaml;
            for _ in 0..if is_compared { 8 } else { 1 } {
                let body = damage(&mut random, &body);
                damaged += 1;
                surviving += usize::from(compare(seed, encoding, group_version, &body));
            }
            if n < CUT_EVENTS {
                for end in 0..body.len() {
                    compare(seed, encoding, group_version, &body[..end]);
                }
            }
        }
    }
    // Both outcomes must be common, or little is proven.
    println!("{events} events in {bodies} bodies; {surviving} in {damaged} that were damaged");
    assert!(events > bodies / 4 && events < bodies * 9 / 10);
    assert!(surviving > damaged / 50 && surviving < damaged / 2);
}
