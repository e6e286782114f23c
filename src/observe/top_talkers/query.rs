//! What can be asked of the top talkers, and what the answer looks like.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;

use super::weights::Weights;
use crate::request_info;

/// How far back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Window {
    /// `1m`
    #[default]
    #[serde(rename = "1m")]
    OneMinute,
    /// `5m`
    #[serde(rename = "5m")]
    FiveMinutes,
    /// `60m`
    #[serde(rename = "60m")]
    SixtyMinutes,
}

/// Who or what is told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Dimension {
    /// Flow schema and flow distinguisher: `SCHEMA/DISTINGUISHER`. Of what a priority level decided on.
    Flow,
    /// The namespace of what is asked.
    Namespace,
    /// Verb and resource: `list deployments.apps`, `get nodes/status`, `get /version`.
    Resource,
    /// Where the connection is from.
    SourceAddress,
    /// The user's name.
    #[default]
    User,
    /// What the client calls itself.
    UserAgent,
}

/// Which of them are the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UsageMeasure {
    /// Bytes of the answers' bodies.
    Bytes,
    /// Time spent in queues.
    QueueWait,
    /// Requests that a limit refused.
    Rejections,
    /// All requests.
    #[default]
    Requests,
    /// Seats × time that they were held.
    SeatSeconds,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OneMinute, Self::FiveMinutes, Self::SixtyMinutes];

    /// How far back it goes.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::OneMinute => 60,
            Self::FiveMinutes => 300,
            Self::SixtyMinutes => 3600,
        })
    }

    /// As it is asked for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneMinute => "1m",
            Self::FiveMinutes => "5m",
            Self::SixtyMinutes => "60m",
        }
    }
}

impl Dimension {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Flow,
        Self::Namespace,
        Self::Resource,
        Self::SourceAddress,
        Self::User,
        Self::UserAgent,
    ];

    /// All of them, in the order of the question "which client is it?".
    pub const DISPLAY_ORDER: [Self; 6] = [
        Self::User,
        Self::UserAgent,
        Self::SourceAddress,
        Self::Namespace,
        Self::Resource,
        Self::Flow,
    ];

    /// As it is asked for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Namespace => "namespace",
            Self::Resource => "resource",
            Self::SourceAddress => "sourceAddress",
            Self::User => "user",
            Self::UserAgent => "userAgent",
        }
    }
}

impl UsageMeasure {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Bytes,
        Self::QueueWait,
        Self::Rejections,
        Self::Requests,
        Self::SeatSeconds,
    ];

    /// All of them, in the order of the columns that are shown.
    pub const DISPLAY_ORDER: [Self; 5] = [
        Self::Requests,
        Self::SeatSeconds,
        Self::QueueWait,
        Self::Bytes,
        Self::Rejections,
    ];

    /// As it is asked for.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::QueueWait => "queueWait",
            Self::Rejections => "rejections",
            Self::Requests => "requests",
            Self::SeatSeconds => "seatSeconds",
        }
    }

    /// Its place among the [`Weights`].
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().take_while(|sort| **sort != self).count()
    }
}

/// A question. By default: the ten users with the most requests of the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopTalkersQuery {
    /// How far back.
    pub window: Window,
    /// Who or what is told apart.
    pub by: Dimension,
    /// Which of them are the first.
    pub sort: UsageMeasure,
    /// Most rows; 1 to [`Self::MOST`].
    pub limit: usize,
}

impl Default for TopTalkersQuery {
    fn default() -> Self {
        Self {
            window: Window::default(),
            by: Dimension::default(),
            sort: UsageMeasure::default(),
            limit: 10,
        }
    }
}

/// Everything that is wrong with a question, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError(String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TopTalkersQuery {
    /// Most rows that can be asked for: so many of each are kept.
    pub const MAX_LIMIT: usize = super::heavy_hitters::MIN_KEPT_PER_MEASURE;

    /// From the parameters of a URL.
    ///
    /// # Errors
    /// All that is wrong, with what would be right.
    pub fn parse(parameters: request_info::Query<'_>) -> Result<Self, QueryError> {
        let mut faults = String::new();
        let mut query = Self::default();
        for parameter in parameters.parameters() {
            let Some((name, value)) = parameter else {
                faults.push_str("a parameter cannot be decoded: must be NAME=VALUE, with %XX for what is special in a URL\n");
                continue;
            };
            let value = String::from_utf8_lossy(&value);
            match &*name {
                b"by" => parse_choice(
                    &mut query.by,
                    &Dimension::ALL,
                    Dimension::name,
                    ("by", &value),
                    &mut faults,
                ),
                b"limit" => match value.parse() {
                    Ok(limit @ 1..=Self::MAX_LIMIT) => query.limit = limit,
                    _ => faults.push_str(&invalid_parameter(
                        "limit",
                        &value,
                        &format!("a number from 1 to {}", Self::MAX_LIMIT),
                    )),
                },
                b"sort" => parse_choice(
                    &mut query.sort,
                    &UsageMeasure::ALL,
                    UsageMeasure::name,
                    ("sort", &value),
                    &mut faults,
                ),
                b"window" => parse_choice(
                    &mut query.window,
                    &Window::ALL,
                    Window::name,
                    ("window", &value),
                    &mut faults,
                ),
                other => {
                    let other = String::from_utf8_lossy(other);
                    faults.push_str(&format!(
                        "{}: unknown; there are by, limit, sort and window\n",
                        excerpt(&other)
                    ));
                }
            }
        }
        if faults.is_empty() {
            Ok(query)
        } else {
            Err(QueryError(faults))
        }
    }
}

fn parse_choice<T: Copy>(
    chosen: &mut T,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    (parameter, value): (&str, &str),
    faults: &mut String,
) {
    match all.iter().find(|one| name(**one) == value) {
        Some(one) => *chosen = *one,
        None => {
            let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
            faults.push_str(&invalid_parameter(
                parameter,
                value,
                &format!("one of {}", names.join(", ")),
            ));
        }
    }
}

fn invalid_parameter(parameter: &str, value: &str, right: &str) -> String {
    format!("{parameter}={}: must be {right}\n", excerpt(value))
}

/// Nobody needs the whole of a long mistake.
fn excerpt(value: &str) -> String {
    value
        .chars()
        .take(60)
        .flat_map(char::escape_debug)
        .collect()
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// All requests: when they have ended, long-running ones when their answer has begun.
    pub requests: u64,
    /// Seats × seconds that they were held.
    pub seat_seconds: f64,
    /// Bytes of the answers' bodies.
    pub bytes: u64,
    /// Requests that a limit refused.
    pub rejections: u64,
    /// Seconds spent in queues.
    pub queue_wait_seconds: f64,
}

impl From<Weights> for Usage {
    fn from(weights: Weights) -> Self {
        let [bytes, queue_wait, rejections, requests, seats] = weights.0;
        Self {
            requests,
            seat_seconds: Duration::from_nanos(seats).as_secs_f64(),
            bytes,
            rejections,
            queue_wait_seconds: Duration::from_nanos(queue_wait).as_secs_f64(),
        }
    }
}

/// One of those who did most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TalkerRow {
    /// Who or what; the beginning of it, if it is long.
    pub name: String,
    /// What was done at least.
    #[serde(flatten)]
    pub usage: Usage,
    /// So much more may have been done, at most; mostly nothing.
    pub error: Usage,
}

/// Those who did most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopTalkersReport {
    /// What was asked.
    #[serde(flatten)]
    pub query: TopTalkersQuery,
    /// How far back it goes in truth, in seconds: at most a tenth more than was asked for, or since weir started.
    pub covered_seconds: f64,
    /// What all have done together, whether they are shown or not. Exact.
    pub total: Usage,
    /// What anybody who is not known any more can have done at most. By it, no count is too low by more than this.
    pub max_error: Usage,
    /// Who did most, the first first.
    pub rows: Vec<TalkerRow>,
}
