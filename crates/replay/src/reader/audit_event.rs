//! An audit event (`audit.k8s.io/v1`), as far as a replay needs it. Pure.
//!
//! What is not needed at once is kept as it is written: a user's groups are read once for each
//! user, not once for each event.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::arrival::Text;

/// An event. Fields that it does not have are empty.
#[derive(Debug, Default)]
pub(super) struct ParsedEvent<'l> {
    pub(super) audit_id: Text<'l>,
    pub(super) stage: Text<'l>,
    pub(super) request_uri: Text<'l>,
    pub(super) verb: Text<'l>,
    pub(super) user: Option<&'l RawValue>,
    pub(super) impersonated_user: Option<&'l RawValue>,
    pub(super) source_ips: Option<&'l RawValue>,
    pub(super) user_agent: Text<'l>,
    pub(super) object_ref: Option<&'l RawValue>,
    pub(super) code: Option<u16>,
    pub(super) received: Text<'l>,
    pub(super) staged: Text<'l>,
    pub(super) annotations: Option<&'l RawValue>,
    pub(super) unknown_fields: u32,
}

/// A user of an event. Programs that write events again may write `null` for what is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ParsedUser {
    pub(super) username: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) groups: Option<Vec<String>>,
    pub(super) extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// The object of an event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuditObject<'l> {
    #[serde(borrow)]
    pub(super) resource: Text<'l>,
    #[serde(borrow)]
    pub(super) name: Text<'l>,
    #[serde(borrow)]
    pub(super) subresource: Text<'l>,
}

/// The annotations that say what a limit did.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Annotations<'l> {
    #[serde(borrow, rename = "apiserver.latency.k8s.io/apf-queue-wait")]
    pub(super) apf_queue_wait: Text<'l>,
    #[serde(borrow, rename = "weir/queue-wait")]
    pub(super) weir_queue_wait: Text<'l>,
    #[serde(borrow, rename = "weir/rejected-by")]
    pub(super) rejected_by: Text<'l>,
    #[serde(borrow, rename = "weir/flow-schema")]
    pub(super) flow_schema: Text<'l>,
    #[serde(borrow, rename = "weir/priority-level")]
    pub(super) priority_level: Text<'l>,
    #[serde(borrow, rename = "weir/seats")]
    pub(super) seats: Text<'l>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ParsedStatus {
    code: Option<u16>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum AuditField {
    Kind,
    ApiVersion,
    #[serde(rename = "auditID")]
    AuditId,
    Stage,
    #[serde(rename = "requestURI")]
    RequestUri,
    Verb,
    User,
    ImpersonatedUser,
    #[serde(rename = "sourceIPs")]
    SourceIps,
    UserAgent,
    ObjectRef,
    ResponseStatus,
    RequestReceivedTimestamp,
    StageTimestamp,
    Annotations,
    #[serde(alias = "authenticationMetadata", alias = "metadata")]
    #[serde(alias = "requestObject", alias = "responseObject")]
    Level,
    #[serde(other)]
    Unknown,
}

impl<'de: 'l, 'l> Deserialize<'de> for ParsedEvent<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EventVisitor)
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = ParsedEvent<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of audit.k8s.io")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut event = ParsedEvent::default();
        let (mut kind, mut version) = (Text::default(), Text::default());
        while let Some(field) = fields.next_key()? {
            match field {
                AuditField::Kind => kind = fields.next_value()?,
                AuditField::ApiVersion => version = fields.next_value()?,
                AuditField::AuditId => event.audit_id = fields.next_value()?,
                AuditField::Stage => event.stage = fields.next_value()?,
                AuditField::RequestUri => event.request_uri = fields.next_value()?,
                AuditField::Verb => event.verb = fields.next_value()?,
                AuditField::User => event.user = fields.next_value()?,
                AuditField::ImpersonatedUser => event.impersonated_user = fields.next_value()?,
                AuditField::SourceIps => event.source_ips = fields.next_value()?,
                AuditField::UserAgent => event.user_agent = fields.next_value()?,
                AuditField::ObjectRef => event.object_ref = fields.next_value()?,
                AuditField::ResponseStatus => {
                    event.code = fields
                        .next_value::<Option<ParsedStatus>>()?
                        .and_then(|s| s.code);
                }
                AuditField::RequestReceivedTimestamp => event.received = fields.next_value()?,
                AuditField::StageTimestamp => event.staged = fields.next_value()?,
                AuditField::Annotations => event.annotations = fields.next_value()?,
                AuditField::Level => drop(fields.next_value::<IgnoredAny>()?),
                AuditField::Unknown => {
                    fields.next_value::<IgnoredAny>()?;
                    event.unknown_fields = event.unknown_fields.saturating_add(1);
                }
            }
        }
        if kind.as_ref() != "Event" || !version.as_ref().starts_with("audit.k8s.io/") {
            return Err(A::Error::custom("not an event of audit.k8s.io"));
        }
        Ok(event)
    }
}

/// The method of a verb: what `RequestInfo` would make the verb of.
#[must_use]
pub(super) fn method_of(verb: &str) -> std::borrow::Cow<'static, str> {
    let method = match verb {
        "get" | "list" | "watch" | "proxy" => "GET",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        "head" => "HEAD",
        "options" => "OPTIONS",
        "connect" => "CONNECT",
        other => return other.to_ascii_uppercase().into(),
    };
    method.into()
}

/// Parses a time as `metav1.MicroTime` has it, to microseconds since the Unix epoch.
#[must_use]
pub(super) fn parse_time(text: &str) -> Option<i64> {
    parse_micro_time(text.as_bytes()).or_else(|| {
        let time: jiff::Timestamp = text.parse().ok()?;
        Some(time.as_microsecond())
    })
}

/// `2026-11-21T03:43:48.029862Z`, which is what API servers write, without the cost of all else.
fn parse_micro_time(text: &[u8]) -> Option<i64> {
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1, b'T', rest @ ..] = text else {
        return None;
    };
    let [
        h0,
        h1,
        b':',
        n0,
        n1,
        b':',
        s0,
        s1,
        b'.',
        fraction @ ..,
        b'Z',
    ] = rest
    else {
        return None;
    };
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0_i64, |number, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            Some(number * 10 + i64::from(digit))
        })
    };
    if fraction.len() != 6 {
        return None;
    }
    let (year, month, day) = (
        number(&[*y0, *y1, *y2, *y3])?,
        number(&[*m0, *m1])?,
        number(&[*d0, *d1])?,
    );
    let (hour, minute, second) = (
        number(&[*h0, *h1])?,
        number(&[*n0, *n1])?,
        number(&[*s0, *s1])?,
    );
    // Days that a month does not have, and leap seconds, are left to the general parser.
    if !(1..=12).contains(&month)
        || !(1..=28).contains(&day)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let seconds = ((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000 + number(fraction)?)
}

/// Days from 1970-01-01 in the Gregorian calendar. Years begin in March, so that the day that some
/// years lack is the last one.
const fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::request_info::RequestInfo;

    #[test]
    fn the_quick_parser_of_times_agrees_with_the_general_one() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..10_000 {
            let microseconds = random.i64(-2_000_000_000_000_000..4_000_000_000_000_000);
            let text = format!(
                "{:.6}",
                jiff::Timestamp::from_microsecond(microseconds).unwrap()
            );
            assert_eq!(parse_time(&text), Some(microseconds), "{text}");
            if let Some(quick) = parse_micro_time(text.as_bytes()) {
                assert_eq!(quick, microseconds, "{text}");
            }
        }
        assert_eq!(
            parse_time("2026-11-21T03:43:48Z"),
            Some(1_795_232_628_000_000)
        );
        assert_eq!(
            parse_time("2026-11-21T04:43:48.5+01:00"),
            Some(1_795_232_628_500_000)
        );
        for wrong in [
            "",
            "2026-13-21T03:43:48.029862Z",
            "2026-11-21T03:43:48.02986xZ",
            "yesterday",
        ] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_method_of_a_verb_gives_the_verb_again() {
        for (verb, url) in [
            ("get", "/api/v1/namespaces/a/pods/b"),
            ("get", "/healthz"),
            ("list", "/api/v1/pods"),
            ("watch", "/api/v1/pods?watch=true"),
            ("watch", "/api/v1/watch/pods"),
            ("create", "/api/v1/namespaces/a/pods"),
            ("update", "/api/v1/namespaces/a/pods/b/status"),
            ("patch", "/api/v1/namespaces/a/pods/b"),
            ("delete", "/api/v1/namespaces/a/pods/b"),
            ("deletecollection", "/api/v1/namespaces/a/pods"),
            ("post", "/somewhere"),
            ("put", "/somewhere"),
            ("head", "/healthz"),
            ("options", "/healthz"),
            ("report", "/healthz"),
        ] {
            let method = method_of(verb);
            let info = RequestInfo::parse(&method, url.as_bytes()).unwrap();
            assert_eq!(info.verb().as_str(), verb, "{method} {url}");
        }
    }
}
