//! What `weir ctl` and weir send each other: one line of JSON each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use weir_limits::levers::{LeverSnapshot, LeverTarget, TotalOverride};
use weir_talkers::{TopTalkersQuery, TopTalkersReport};

/// The longest request in bytes: 64 values of a target, and JSON around them.
pub(crate) const MAX_REQUEST_BYTES: usize = 256 << 10;

/// The longest answer in bytes: a hundred levers with the longest targets.
pub(crate) const MAX_ANSWER_BYTES: usize = 32 << 20;

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "camelCase")]
pub(crate) enum ControlRequest {
    /// The end of the process, as by SIGTERM.
    #[serde(rename_all = "camelCase")]
    Drain {
        /// The name that the operator claims.
        #[serde(default)]
        claimed_name: Option<String>,
    },
    /// The levers in force.
    List,
    /// A new lever.
    Pull(Box<PullRequest>),
    /// The names that were seen.
    Talkers(TopTalkersQuery),
    /// The end of levers.
    #[serde(rename_all = "camelCase")]
    Undo {
        /// Their ids.
        ids: Vec<u64>,
        /// The name that the operator claims.
        #[serde(default)]
        claimed_name: Option<String>,
    },
}

/// A lever to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct PullRequest {
    /// What it does.
    pub(crate) action: PullAction,
    /// Requests a second, for a limit.
    pub(crate) qps: Option<u32>,
    /// Requests at a time, for a limit.
    pub(crate) in_flight: Option<u32>,
    /// To which requests; empty for a setting.
    pub(crate) target: LeverTarget,
    /// How long, in milliseconds; `None` is ten minutes.
    pub(crate) for_ms: Option<u64>,
    /// Why.
    pub(crate) reason: String,
    /// The name that the operator claims.
    pub(crate) claimed_name: Option<String>,
    /// Whether protected requesters are a part of the target, and a total may be above the API server's.
    pub(crate) force: bool,
    /// Only say what it would hit.
    pub(crate) dry_run: bool,
    /// Whether a block ends requests in flight, too.
    pub(crate) now: bool,
}

/// What a lever does. Those without a target override a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PullAction {
    /// It rejects all.
    #[default]
    Block,
    /// It ends connections.
    Disconnect,
    /// It admits some.
    Limit,
    /// It lifts all limits, or an earlier lever that does so ends.
    Bypass(Switch),
    /// All limits only count, or all are enforced.
    DryRun(Switch),
    /// It sets the total.
    Total(TotalOverride),
}

/// The value of a setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// What weir answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "camelCase")]
pub(crate) enum ControlAnswer {
    /// The process ends once these have ended, or after its time.
    Draining {
        /// Requests that are not long-running.
        requests: usize,
        /// Watches.
        watches: usize,
    },
    /// What a lever would hit.
    DryRun {
        /// Of the last minute.
        estimate: LeverEstimate,
        /// What else there is to know.
        notes: Vec<String>,
    },
    /// Nothing was done.
    Error {
        /// Why, a line each.
        lines: Vec<String>,
    },
    /// The levers in force.
    Levers {
        /// Oldest first.
        levers: Vec<LeverSnapshot>,
    },
    /// A lever is in force.
    Pulled {
        /// It.
        lever: Box<LeverSnapshot>,
        /// What else there is to know.
        notes: Vec<String>,
    },
    /// The names that were seen.
    Talkers(Box<TopTalkersReport>),
    /// Levers have ended.
    Undone {
        /// They.
        levers: Vec<LeverSnapshot>,
        /// The ids of which there are none.
        unknown: Vec<u64>,
        /// What else there is to know.
        #[serde(default)]
        notes: Vec<String>,
    },
}

impl ControlAnswer {
    /// Nothing was done, for one reason.
    pub(crate) fn error(line: impl Into<String>) -> Self {
        Self::Error {
            lines: vec![line.into()],
        }
    }
}

/// What a lever would have hit, as far as top talkers know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeverEstimate {
    /// The time that it covers, in seconds.
    pub(crate) covered_seconds: f64,
    /// Requests. `None`: top talkers do not know what the target is named by.
    pub(crate) requests: Option<u64>,
    /// Whether fewer may match: top talkers count each field of the target apart.
    pub(crate) is_at_most: bool,
    /// The names that match, those with most requests first.
    pub(crate) rows: Vec<EstimateRow>,
}

/// A name that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EstimateRow {
    /// `user`, `userAgent`, …
    pub(crate) by: String,
    /// The name.
    pub(crate) name: String,
    /// Its requests.
    pub(crate) requests: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let pull = PullRequest {
            action: PullAction::Limit,
            qps: Some(5),
            ..PullRequest::default()
        };
        let total = PullRequest {
            action: PullAction::Total(TotalOverride::Seats(50)),
            ..PullRequest::default()
        };
        for request in [
            ControlRequest::Drain {
                claimed_name: Some("carol".to_owned()),
            },
            ControlRequest::List,
            ControlRequest::Pull(Box::new(pull)),
            ControlRequest::Pull(Box::new(total)),
            ControlRequest::Talkers(TopTalkersQuery::default()),
            ControlRequest::Undo {
                ids: vec![3],
                claimed_name: None,
            },
        ] {
            let text = serde_json::to_string(&request).unwrap();
            let read: ControlRequest = serde_json::from_str(&text).unwrap();
            assert_eq!(read, request, "{text}");
        }
    }
}
