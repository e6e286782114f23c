//! The arrivals format: a JSON object a line for each request, as `weir record` writes it and `weir
//! replay` reads it. Pure.
//!
//! A line says when the request arrived, what it was, whose, and how long the API server worked on
//! it. It holds neither bodies nor credentials. `at_ms`, `method` and `url` are required:
//!
//! ```json
//! {"at_ms":1795460688029.862,"method":"GET","url":"/api/v1/pods","user":"alice","groups":["devs"],"service_ms":12.5}
//! ```
//!
//! Lines may be in the order of arrivals, or in the order in which requests ended.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A text that borrows from its line where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Text<'l>(pub Cow<'l, str>);

/// A request, as a line describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ArrivalLine<'l> {
    /// Milliseconds since the Unix epoch, or since any other moment.
    pub at_ms: f64,
    /// The method, as `GET`.
    pub method: Text<'l>,
    /// The target of the request line.
    pub url: Text<'l>,
    /// The name of the user. Anonymous if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Text<'l>>,
    /// The groups of the user. If not given, those that kube-apiserver adds by the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<Text<'l>>>,
    /// The uid of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Text<'l>>,
    /// The further attributes of the user.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
    /// The header `User-Agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<Text<'l>>,
    /// The address of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Text<'l>>,
    /// Milliseconds from the dispatch to the release of the seats: for a watch, to the end of its
    /// initial events. Not given if the request was not executed: then it is estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_ms: Option<f64>,
    /// Milliseconds that the request waited in queues and for rate limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<f64>,
    /// The bytes of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The status code of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The limit that rejected the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_by: Option<Text<'l>>,
    /// The rule of `clientLimits` that rejected the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Text<'l>>,
    /// Whether the client went away before a response.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// The flow schema that matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_schema: Option<Text<'l>>,
    /// The priority level of the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_level: Option<Text<'l>>,
    /// The seats that the request was estimated at. One if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// The seats that lingered after the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_seats: Option<u32>,
    /// For how long they lingered, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_ms: Option<f64>,
    /// Of an event: its source and object, or a pseudonym of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_key: Option<Text<'l>>,
    /// Of an event: whether it is a warning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub event_warning: bool,
    /// In place of all others: a line about the record itself.
    #[serde(skip)]
    pub record: Option<RecordNote>,
    /// The fields that are none of these.
    #[serde(skip)]
    pub unknown_fields: u32,
}

/// What a line says about the record itself: `{"record":{"dropped":12}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RecordNote {
    /// The version of the format, on the first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The version of weir, on the first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weir: Option<String>,
    /// The time of the first line, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Whether names are pseudonyms, on the first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pseudonyms: Option<bool>,
    /// Arrivals that are missing before this line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Why the record ends, on the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// The arrivals that were written, on the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
}

/// A line with a note.
#[cfg(test)]
#[derive(Serialize)]
struct NoteLine<'n> {
    record: &'n RecordNote,
}

#[cfg(test)]
impl RecordNote {
    /// Appends the line, with its end, to `lines`.
    pub fn append_to(&self, lines: &mut Vec<u8>) {
        append_json(&NoteLine { record: self }, lines);
    }
}

impl<'l> ArrivalLine<'l> {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not such an object, or it lacks a required field.
    pub fn parse(line: &'l [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Appends the line, with its end, to `lines`.
    #[cfg(test)]
    pub fn append_to(&self, lines: &mut Vec<u8>) {
        append_json(self, lines);
    }
}

#[cfg(test)]
fn append_json(line: &impl Serialize, lines: &mut Vec<u8>) {
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, line) {
        Ok(()) => lines.push(b'\n'),
        Err(_) => lines.truncate(before), // unreachable: a vector takes everything, and keys are text
    }
}

impl<'l> From<&'l str> for Text<'l> {
    fn from(text: &'l str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Text<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

/// The names of the fields.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ArrivalField {
    AtMs,
    Method,
    Url,
    User,
    Groups,
    Uid,
    Extra,
    UserAgent,
    Source,
    ServiceMs,
    WaitMs,
    Bytes,
    Code,
    RejectedBy,
    Rule,
    Cancelled,
    FlowSchema,
    PriorityLevel,
    Seats,
    FinalSeats,
    FinalMs,
    EventKey,
    EventWarning,
    Record,
    /// Earlier versions of weir recorded the order of their decisions.
    #[serde(alias = "adjusted_ms", alias = "adjusted_order", alias = "lingered_ms")]
    Order,
    #[serde(other)]
    Unknown,
}

impl<'de: 'l, 'l> Deserialize<'de> for ArrivalLine<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(LineVisitor)
    }
}

struct LineVisitor;

impl<'de> Visitor<'de> for LineVisitor {
    type Value = ArrivalLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an arrival: {\"at_ms\": …, \"method\": …, \"url\": …}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut line = ArrivalLine::default();
        let (mut at, mut method, mut url) = (None, None, None);
        while let Some(field) = fields.next_key()? {
            match field {
                ArrivalField::AtMs => at = Some(fields.next_value()?),
                ArrivalField::Method => method = Some(fields.next_value()?),
                ArrivalField::Url => url = Some(fields.next_value()?),
                ArrivalField::User => line.user = fields.next_value()?,
                ArrivalField::Groups => line.groups = fields.next_value()?,
                ArrivalField::Uid => line.uid = fields.next_value()?,
                ArrivalField::Extra => line.extra = fields.next_value()?,
                ArrivalField::UserAgent => line.user_agent = fields.next_value()?,
                ArrivalField::Source => line.source = fields.next_value()?,
                ArrivalField::ServiceMs => line.service_ms = fields.next_value()?,
                ArrivalField::WaitMs => line.wait_ms = fields.next_value()?,
                ArrivalField::Bytes => line.bytes = fields.next_value()?,
                ArrivalField::Code => line.code = fields.next_value()?,
                ArrivalField::RejectedBy => line.rejected_by = fields.next_value()?,
                ArrivalField::Rule => line.rule = fields.next_value()?,
                ArrivalField::Cancelled => line.cancelled = fields.next_value()?,
                ArrivalField::FlowSchema => line.flow_schema = fields.next_value()?,
                ArrivalField::PriorityLevel => line.priority_level = fields.next_value()?,
                ArrivalField::Seats => line.seats = fields.next_value()?,
                ArrivalField::FinalSeats => line.final_seats = fields.next_value()?,
                ArrivalField::FinalMs => line.final_ms = fields.next_value()?,
                ArrivalField::Record => line.record = Some(fields.next_value()?),
                ArrivalField::EventKey => line.event_key = fields.next_value()?,
                ArrivalField::EventWarning => line.event_warning = fields.next_value()?,
                ArrivalField::Order => drop(fields.next_value::<IgnoredAny>()?),
                ArrivalField::Unknown => {
                    fields.next_value::<IgnoredAny>()?;
                    line.unknown_fields = line.unknown_fields.saturating_add(1);
                }
            }
        }
        if line.record.is_some() {
            return Ok(line);
        }
        line.at_ms = at.ok_or_else(|| A::Error::missing_field("at_ms"))?;
        line.method = method.ok_or_else(|| A::Error::missing_field("method"))?;
        line.url = url.ok_or_else(|| A::Error::missing_field("url"))?;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let line = ArrivalLine {
            at_ms: 1_795_460_688_029.862,
            method: "GET".into(),
            url: "/api/v1/pods?limit=500".into(),
            user: Some("alice".into()),
            groups: Some(vec!["devs".into(), "system:authenticated".into()]),
            extra: BTreeMap::from([("scopes".to_owned(), vec!["a\"b".to_owned()])]),
            user_agent: Some("kubectl/v1.36.0".into()),
            source: Some("192.0.2.1".into()),
            service_ms: Some(12.5),
            wait_ms: Some(0.0),
            bytes: Some(1 << 40),
            code: Some(200),
            seats: Some(3),
            event_key: Some("é\u{1}".into()),
            event_warning: true,
            ..ArrivalLine::default()
        };
        let mut lines = Vec::new();
        line.append_to(&mut lines);
        assert_eq!(lines.pop(), Some(b'\n'));
        assert_eq!(ArrivalLine::parse(&lines).unwrap(), line);
    }

    #[test]
    fn the_format_of_the_documentation_is_read_and_unknown_fields_are_counted() {
        let text = r#"{"at_ms":5,"method":"GET","url":"/api/v1/p\u006fds","user":"alice","groups":["devs"],"service_ms":12,"bytes":7,"colour":{"a":[1]}}"#;
        let line = ArrivalLine::parse(text.as_bytes()).unwrap();
        assert_eq!((line.at_ms, line.service_ms), (5.0, Some(12.0)));
        assert_eq!(line.url.as_ref(), "/api/v1/pods");
        assert!(matches!(line.user, Some(Text(Cow::Borrowed("alice")))));
        assert_eq!((line.bytes, line.unknown_fields), (Some(7), 1));
    }

    #[test]
    fn the_order_of_decisions_in_records_of_earlier_versions_is_ignored() {
        let text = r#"{"at_ms":5.000001,"method":"GET","url":"/","order":[7,null,7],"adjusted_order":0,"adjusted_ms":9459.25,"lingered_ms":5}"#;
        let line = ArrivalLine::parse(text.as_bytes()).unwrap();
        assert_eq!((line.at_ms, line.unknown_fields), (5.000_001, 0));
    }

    #[test]
    fn a_line_without_a_time_a_method_or_a_url_is_an_error() {
        for text in [
            r#"{"method":"GET","url":"/"}"#,
            r#"{"at_ms":1,"url":"/"}"#,
            r#"{"at_ms":1,"method":"GET"}"#,
            "{}",
            "[]",
            "1",
            r#"{"at_ms":1,"method":"GET","url":"/""#,
        ] {
            assert!(ArrivalLine::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_line_about_the_record_has_no_request() {
        let note = RecordNote {
            dropped: Some(12),
            ..RecordNote::default()
        };
        let mut lines = Vec::new();
        note.append_to(&mut lines);
        assert_eq!(lines, b"{\"record\":{\"dropped\":12}}\n");
        let line = ArrivalLine::parse(lines.trim_ascii_end()).unwrap();
        assert_eq!(line.record, Some(note));
    }
}
