//! Queries of the top talkers and their reports.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::weights::Weights;
use weir_kubernetes::request_info;

/// The period that a query covers.
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

/// The kind of name that usage is grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Dimension {
    /// Flow schema and flow distinguisher: `SCHEMA/DISTINGUISHER`. Only requests that a priority
    /// level decided on have one.
    Flow,
    /// The namespace of the request.
    Namespace,
    /// Verb and resource: `list deployments.apps`, `get nodes/status`, `get /version`.
    Resource,
    /// The source address of the connection, without its port.
    SourceAddress,
    /// The tags that policies give it, joined by commas. Few requests have any.
    Tag,
    /// The name of the user.
    #[default]
    User,
    /// The `User-Agent` header.
    UserAgent,
}

/// The kind of usage that rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UsageMeasure {
    /// Bytes of response bodies.
    Bytes,
    /// Time spent in queues.
    QueueWait,
    /// Requests that a limit rejected.
    Rejections,
    /// All requests.
    #[default]
    Requests,
    /// Seats × time that they were occupied.
    SeatSeconds,
    /// Rejections by limits that only count.
    WouldBeRejections,
}

impl Window {
    /// All windows, shortest first.
    pub const ALL: [Self; 3] = [Self::OneMinute, Self::FiveMinutes, Self::SixtyMinutes];

    /// The length of the window.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::OneMinute => 60,
            Self::FiveMinutes => 300,
            Self::SixtyMinutes => 3600,
        })
    }

    /// The value of the query parameter `window`.
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
    /// All dimensions, by name.
    pub const ALL: [Self; 7] = [
        Self::Flow,
        Self::Namespace,
        Self::Resource,
        Self::SourceAddress,
        Self::Tag,
        Self::User,
        Self::UserAgent,
    ];

    /// All dimensions in display order: those that identify the client come first.
    pub const DISPLAY_ORDER: [Self; 7] = [
        Self::User,
        Self::UserAgent,
        Self::SourceAddress,
        Self::Namespace,
        Self::Resource,
        Self::Flow,
        Self::Tag,
    ];

    /// The value of the query parameter `by`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Namespace => "namespace",
            Self::Resource => "resource",
            Self::SourceAddress => "sourceAddress",
            Self::Tag => "tag",
            Self::User => "user",
            Self::UserAgent => "userAgent",
        }
    }
}

impl UsageMeasure {
    /// All measures, by name.
    pub const ALL: [Self; 6] = [
        Self::Bytes,
        Self::QueueWait,
        Self::Rejections,
        Self::Requests,
        Self::SeatSeconds,
        Self::WouldBeRejections,
    ];

    /// All measures in the order of the displayed columns.
    pub const DISPLAY_ORDER: [Self; 6] = [
        Self::Requests,
        Self::SeatSeconds,
        Self::QueueWait,
        Self::Bytes,
        Self::Rejections,
        Self::WouldBeRejections,
    ];

    /// The value of the query parameter `sort`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::QueueWait => "queueWait",
            Self::Rejections => "rejections",
            Self::Requests => "requests",
            Self::SeatSeconds => "seatSeconds",
            Self::WouldBeRejections => "wouldBeRejections",
        }
    }

    /// The index of this measure in [`Weights`].
    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().take_while(|sort| **sort != self).count()
    }
}

/// A query. The default asks for the ten users with the most requests in the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopTalkersQuery {
    /// The period to cover.
    pub window: Window,
    /// The kind of name to group by.
    pub by: Dimension,
    /// The measure to sort by, largest first.
    pub sort: UsageMeasure,
    /// Most rows: 1 to [`Self::MAX_LIMIT`].
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

/// All errors in a query, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError(String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TopTalkersQuery {
    /// The largest `limit`: so many entries are kept for each measure.
    pub const MAX_LIMIT: usize = super::heavy_hitters::MIN_KEPT_PER_MEASURE;

    /// Parses the parameters of a URL.
    ///
    /// # Errors
    /// All invalid parameters, each with what is expected.
    pub fn parse(parameters: request_info::Query<'_>) -> Result<Self, QueryError> {
        let mut errors = String::new();
        let mut query = Self::default();
        for parameter in parameters.parameters() {
            let Some((name, value)) = parameter else {
                errors.push_str("a parameter cannot be decoded: must be NAME=VALUE, with %XX for what is special in a URL\n");
                continue;
            };
            let value = String::from_utf8_lossy(&value);
            match &*name {
                b"by" => parse_choice(
                    &mut query.by,
                    &Dimension::ALL,
                    Dimension::name,
                    "by",
                    &value,
                    &mut errors,
                ),
                b"limit" => match value.parse() {
                    Ok(limit @ 1..=Self::MAX_LIMIT) => query.limit = limit,
                    _ => errors.push_str(&invalid_parameter(
                        "limit",
                        &value,
                        &format!("a number from 1 to {}", Self::MAX_LIMIT),
                    )),
                },
                b"sort" => parse_choice(
                    &mut query.sort,
                    &UsageMeasure::ALL,
                    UsageMeasure::name,
                    "sort",
                    &value,
                    &mut errors,
                ),
                b"window" => parse_choice(
                    &mut query.window,
                    &Window::ALL,
                    Window::name,
                    "window",
                    &value,
                    &mut errors,
                ),
                other => {
                    let other = String::from_utf8_lossy(other);
                    errors.push_str(&format!(
                        "{}: unknown; there are by, limit, sort and window\n",
                        excerpt(&other)
                    ));
                }
            }
        }
        if errors.is_empty() {
            Ok(query)
        } else {
            Err(QueryError(errors))
        }
    }
}

fn parse_choice<T: Copy>(
    chosen: &mut T,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    parameter: &str,
    value: &str,
    errors: &mut String,
) {
    match all.iter().find(|one| name(**one) == value) {
        Some(one) => *chosen = *one,
        None => {
            let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
            errors.push_str(&invalid_parameter(
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

/// The beginning of an invalid value, for the error text.
fn excerpt(value: &str) -> String {
    value
        .chars()
        .take(60)
        .flat_map(char::escape_debug)
        .collect()
}

/// Usage of one name or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Number of requests. A request counts when it has ended, a long-running one when its response
    /// has started.
    pub requests: u64,
    /// Seats × seconds that they were occupied.
    pub seat_seconds: f64,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Requests that a limit rejected.
    pub rejections: u64,
    /// Seconds spent in queues.
    pub queue_wait_seconds: f64,
    /// Rejections by limits that only count.
    pub would_be_rejections: u64,
}

impl From<Weights> for Usage {
    fn from(weights: Weights) -> Self {
        let [bytes, queue_wait, rejections, requests, seats, would_be] = weights.0;
        Self {
            requests,
            seat_seconds: Duration::from_nanos(seats).as_secs_f64(),
            bytes,
            rejections,
            queue_wait_seconds: Duration::from_nanos(queue_wait).as_secs_f64(),
            would_be_rejections: would_be,
        }
    }
}

/// One name with its usage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TalkerRow {
    /// The name, truncated if it is long.
    pub name: String,
    /// Lower bound of the usage.
    #[serde(flatten)]
    pub usage: Usage,
    /// The usage is at most `usage` + `error`. Zero in most clusters.
    pub error: Usage,
}

/// The top talkers for a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopTalkersReport {
    /// The query.
    #[serde(flatten)]
    pub query: TopTalkersQuery,
    /// The time that the report covers, in seconds: at most a tenth more than the window, or the
    /// time since weir started.
    pub covered_seconds: f64,
    /// Usage of all names together, displayed or not. Exact.
    pub total: Usage,
    /// Upper bound of the usage of any name that has no entry. No count is too low by more than
    /// this.
    pub max_error: Usage,
    /// The rows, largest first.
    pub rows: Vec<TalkerRow>,
}
