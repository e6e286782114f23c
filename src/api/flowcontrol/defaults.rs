//! What fields mean that are left out: `pkg/apis/flowcontrol/v1/defaults.go` of Kubernetes 1.36 and
//! its older siblings.
//!
//! A member struct that is left out stays out; only the fields of one that is there are filled in.

use super::FlowSchemaSpec;
use super::manifest::Version;

/// `spec.matchingPrecedence`
const MATCHING_PRECEDENCE: i32 = 1000;
/// `limitResponse.queuing.queues`
const QUEUES: i32 = 64;
/// `limitResponse.queuing.handSize`
const HAND_SIZE: i32 = 8;
/// `limitResponse.queuing.queueLengthLimit`
const QUEUE_LENGTH_LIMIT: i32 = 50;
/// `limited.nominalConcurrencyShares`
const SHARES: i32 = 30;

impl Default for FlowSchemaSpec {
    /// An empty spec.
    fn default() -> Self {
        Self {
            priority_level_configuration: String::new(),
            matching_precedence: MATCHING_PRECEDENCE,
            distinguisher_method: None,
            rules: Vec::new(),
        }
    }
}

pub(super) fn matching_precedence(given: Option<i32>) -> i32 {
    unless_zero(given, MATCHING_PRECEDENCE)
}

pub(super) fn queues(given: Option<i32>) -> i32 {
    unless_zero(given, QUEUES)
}

pub(super) fn hand_size(given: Option<i32>) -> i32 {
    unless_zero(given, HAND_SIZE)
}

pub(super) fn queue_length_limit(given: Option<i32>) -> i32 {
    unless_zero(given, QUEUE_LENGTH_LIMIT)
}

/// The shares of a limited level. Before v1 the field was no pointer, so zero and absent were the
/// same, until v1beta3 got an annotation (`preserve_zero`) to tell that zero is meant.
pub(super) fn shares(given: Option<i32>, version: Version, preserve_zero: bool) -> i32 {
    match version {
        Version::V1 => given.unwrap_or(SHARES),
        Version::V1Beta3 if preserve_zero => given.unwrap_or(0),
        Version::V1Beta1 | Version::V1Beta2 | Version::V1Beta3 => unless_zero(given, SHARES),
    }
}

fn unless_zero(given: Option<i32>, default: i32) -> i32 {
    given.filter(|value| *value != 0).unwrap_or(default)
}
