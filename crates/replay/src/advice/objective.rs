//! Objectives: `rejected(schema=system-nodes) = 0`, `wait_p99(level=workload-low) < 100ms`. Pure.
//!
//! ```text
//! objective  = measure [ "(" selector ")" ] comparison value
//! measure    = "rejected" | "wait_p50" | "wait_p90" | "wait_p99" | "wait_max"
//! selector   = ( "level" | "schema" | "user" | "group" | "user-agent" ) "=" name
//! comparison = "=" | "<=" | "<"
//! value      = a count or a percentage of the requests (rejected), a duration (waits)
//! ```
//!
//! A name ends with the last `)`, so it may have any characters. Without a selector an objective is
//! about all requests.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::simulation::Measured;
use crate::simulation::measure::{GroupKind, GroupSelector};
use weir_kubernetes::numeric::to_f64;
use weir_kubernetes::request_info::go_duration;

/// What is wanted of a group of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    text: String,
    selector: Option<GroupSelector>,
    comparison: Comparison,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    AtMost,
    Below,
}

/// What is measured, and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Rejected(u64),
    RejectedPercent(f64),
    /// The wait that so many of 1000 requests do not exceed.
    Wait {
        per_mille: u64,
        limit: Duration,
    },
}

/// Whether an objective holds in a run, and what was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Whether it holds.
    pub holds: bool,
    /// What was measured, in words.
    pub value: String,
}

/// The measures: of waits, the part of 1000 requests.
const MEASURES: [(&str, Option<u64>); 5] = [
    ("rejected", None),
    ("wait_p50", Some(500)),
    ("wait_p90", Some(900)),
    ("wait_p99", Some(990)),
    ("wait_max", Some(1000)),
];

/// The comparisons, longer signs first.
const COMPARISONS: [(&str, Comparison); 3] = [
    ("<=", Comparison::AtMost),
    ("<", Comparison::Below),
    ("=", Comparison::Equal),
];

impl Objective {
    /// Reads an objective.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (measured, condition) = split_condition(text)?;
        let (per_mille, selector) = parse_measured(measured)?;
        let found = COMPARISONS
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, condition.strip_prefix(sign)?)));
        let Some((comparison, value)) = found else {
            return Err(format!(
                "expected =, <= or < after {measured:?}, found {condition:?}"
            ));
        };
        let value = value.trim();
        Ok(Self {
            text: text.trim().to_owned(),
            selector,
            comparison,
            limit: match per_mille {
                None => parse_rejected(value)?,
                Some(per_mille) => parse_wait(per_mille, value)?,
            },
        })
    }

    /// The requests that it is about. `None`: all.
    #[must_use]
    pub const fn selector(&self) -> Option<&GroupSelector> {
        self.selector.as_ref()
    }

    /// Whether it holds for what was measured of its requests.
    #[must_use]
    pub fn judge(&self, measured: &Measured) -> Judgement {
        let Measured {
            arrivals, rejected, ..
        } = *measured;
        let (measured, limit, value) = match self.limit {
            Limit::Rejected(limit) => {
                let value = format!("{rejected} of {arrivals}");
                (to_f64(rejected), to_f64(limit), value)
            }
            Limit::RejectedPercent(limit) => {
                let percent = 100.0 * to_f64(rejected) / to_f64(arrivals.max(1));
                let value = format!("{rejected} of {arrivals} ({percent:.3}%)");
                (percent, limit, value)
            }
            Limit::Wait { per_mille, limit } => match measured.wait_quantile(per_mille) {
                Some(wait) => {
                    let value = format!("{:.3} ms", wait.as_secs_f64() * 1e3);
                    (wait.as_secs_f64(), limit.as_secs_f64(), value)
                }
                None => (f64::INFINITY, limit.as_secs_f64(), "rejected".to_owned()),
            },
        };
        let holds = match self.comparison {
            // Fewer are no better than what was asked for: = 0 is the use of this.
            Comparison::Equal => measured == limit,
            Comparison::AtMost => measured <= limit,
            Comparison::Below => measured < limit,
        };
        Judgement { holds, value }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is measured, and the rest.
fn split_condition(text: &str) -> Result<(&str, &str), String> {
    let text = text.trim();
    let opened = text.find('(');
    let split = match (opened, text.rfind(')')) {
        (Some(open), Some(close)) if open < close => close + 1,
        (Some(_), _) => return Err(format!("expected ) after the selector of {text:?}")),
        (None, Some(_)) => return Err(format!("expected ( before the ) of {text:?}")),
        (None, None) => text.find(['<', '=', '>']).unwrap_or(text.len()),
    };
    let (measured, condition) = text.split_at(split);
    Ok((measured.trim(), condition.trim()))
}

fn parse_measured(text: &str) -> Result<(Option<u64>, Option<GroupSelector>), String> {
    let (name, selector) = match text.split_once('(') {
        Some((name, rest)) => (name.trim(), Some(rest.strip_suffix(')').unwrap_or(rest))),
        None => (text, None),
    };
    let Some((_, measure)) = MEASURES.iter().find(|(known, _)| *known == name) else {
        let known = MEASURES.map(|(known, _)| known).join(", ");
        return Err(format!("{name:?} is no measure: expected one of {known}"));
    };
    let selector = selector.map(parse_selector).transpose()?;
    Ok((*measure, selector))
}

fn parse_selector(text: &str) -> Result<GroupSelector, String> {
    let kinds = GroupKind::ALL.map(GroupKind::name).join("=NAME, ");
    let Some((kind, name)) = text.split_once('=') else {
        return Err(format!(
            "{text:?} selects no requests: expected {kinds}=NAME"
        ));
    };
    let (kind, name) = (kind.trim(), name.trim());
    let found = GroupKind::ALL.into_iter().find(|one| one.name() == kind);
    let Some(found) = found else {
        return Err(format!("{kind:?} is no selector: expected {kinds}=NAME"));
    };
    if name.is_empty() {
        return Err(format!("expected a name after {kind}="));
    }
    Ok(GroupSelector {
        kind: found,
        name: name.to_owned(),
    })
}

fn parse_rejected(text: &str) -> Result<Limit, String> {
    let limit = match text.strip_suffix('%') {
        Some(percent) => {
            let percent = percent.trim().parse().ok();
            let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
            percent.map(Limit::RejectedPercent)
        }
        None => text.parse().ok().map(Limit::Rejected),
    };
    let what = "expected a count of requests (0) or a percentage of them (0.1%)";
    limit.ok_or_else(|| format!("{text:?} is no limit for rejected: {what}"))
}

fn parse_wait(per_mille: u64, text: &str) -> Result<Limit, String> {
    let nanoseconds = go_duration::parse(text.as_bytes());
    let nanoseconds = nanoseconds.ok().and_then(|ns| u64::try_from(ns).ok());
    let limit = nanoseconds.map(Duration::from_nanos);
    let limit = limit.map(|limit| Limit::Wait { per_mille, limit });
    limit.ok_or_else(|| {
        format!("{text:?} is no limit for a wait: expected a duration such as 100ms or 1.5s")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(waits_ms: &[u64], rejected: u64) -> Measured {
        let mut measured = Measured {
            arrivals: rejected + u64::try_from(waits_ms.len()).unwrap(),
            rejected,
            ..Measured::default()
        };
        waits_ms
            .iter()
            .for_each(|ms| measured.waits.record(ms * 1_000_000));
        measured
    }

    #[test]
    fn objectives_are_read_with_their_selectors() {
        let objective = Objective::parse(" rejected( schema = system-nodes )=0 ").unwrap();
        assert_eq!(objective.to_string(), "rejected( schema = system-nodes )=0");
        let selector = objective.selector().unwrap();
        assert_eq!(
            (selector.kind, selector.name.as_str()),
            (GroupKind::Schema, "system-nodes")
        );
        for (text, kind, name) in [
            (
                "wait_p99(user=system:node:n1) < 1m30s",
                GroupKind::User,
                "system:node:n1",
            ),
            (
                "wait_max(user-agent=kubectl/v1 (linux/amd64) a=b) <= 100ms",
                GroupKind::UserAgent,
                "kubectl/v1 (linux/amd64) a=b",
            ),
            ("rejected(level=a) <= 0.5%", GroupKind::Level, "a"),
            (
                "rejected(group=system:nodes) = 0",
                GroupKind::Group,
                "system:nodes",
            ),
        ] {
            let objective = Objective::parse(text).unwrap();
            let selector = objective.selector().unwrap();
            assert_eq!((selector.kind, selector.name.as_str()), (kind, name));
        }
        assert_eq!(Objective::parse("rejected=0").unwrap().selector(), None);
        assert_eq!(Objective::parse("wait_p50<1s").unwrap().selector(), None);
    }

    #[test]
    fn errors_name_what_is_wrong_and_what_would_be_right() {
        for (text, why) in [
            (
                "reject(user=a) = 0",
                "\"reject\" is no measure: expected one of rejected, wait_p50, wait_p90, wait_p99, wait_max",
            ),
            ("", "\"\" is no measure: expected one of"),
            (
                "rejected(host=a) = 0",
                "\"host\" is no selector: expected level=NAME, schema=NAME, user=NAME, group=NAME, user-agent=NAME",
            ),
            (
                "rejected(alice) = 0",
                "\"alice\" selects no requests: expected level=NAME",
            ),
            ("rejected(user=) = 0", "expected a name after user="),
            ("rejected(user=a = 0", "expected ) after the selector"),
            ("rejected user=a) = 0", "expected ( before the )"),
            (
                "rejected(user=a)",
                "expected =, <= or < after \"rejected(user=a)\", found \"\"",
            ),
            (
                "rejected(user=a) > 1",
                "expected =, <= or < after \"rejected(user=a)\", found \"> 1\"",
            ),
            (
                "rejected = 5ms",
                "\"5ms\" is no limit for rejected: expected a count",
            ),
            ("rejected < 101%", "\"101%\" is no limit for rejected"),
            ("rejected < -1", "\"-1\" is no limit for rejected"),
            ("rejected < NaN%", "\"NaN%\" is no limit for rejected"),
            (
                "wait_p99 < 5",
                "\"5\" is no limit for a wait: expected a duration such as 100ms",
            ),
            ("wait_p99 < -5s", "\"-5s\" is no limit for a wait"),
            ("wait_p99 <", "\"\" is no limit for a wait"),
        ] {
            let error = Objective::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn objectives_hold_up_to_their_limits() {
        for (text, measured, holds) in [
            ("rejected = 0", measured(&[1], 0), true),
            ("rejected = 0", measured(&[1], 1), false),
            ("rejected <= 1", measured(&[1], 1), true),
            ("rejected < 1", measured(&[1], 1), false),
            ("rejected <= 25%", measured(&[1, 1, 1], 1), true),
            ("rejected < 25%", measured(&[1, 1, 1], 1), false),
            ("wait_p50 <= 10ms", measured(&[9, 9, 99], 0), true),
            ("wait_p50 < 9ms", measured(&[9, 9, 99], 0), false),
            // Rejected requests wait for ever.
            ("wait_p50 < 1h", measured(&[1], 1), true),
            ("wait_p99 < 1h", measured(&[1], 1), false),
            ("wait_max < 1h", measured(&[], 1), false),
            ("wait_max < 1h", measured(&[], 0), true),
        ] {
            let judgement = Objective::parse(text).unwrap().judge(&measured);
            assert_eq!(judgement.holds, holds, "{text}: {judgement:?}");
        }
    }

    #[test]
    fn what_was_measured_is_shown() {
        let shown = |text, measured| Objective::parse(text).unwrap().judge(&measured).value;
        assert_eq!(shown("rejected = 0", measured(&[1], 3)), "3 of 4");
        assert_eq!(
            shown("rejected <= 1%", measured(&[1], 3)),
            "3 of 4 (75.000%)"
        );
        assert_eq!(shown("wait_max < 1s", measured(&[12], 0)), "12.000 ms");
        assert_eq!(shown("wait_max < 1s", measured(&[12], 1)), "rejected");
    }
}
