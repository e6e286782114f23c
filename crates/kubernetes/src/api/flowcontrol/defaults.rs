//! Defaults of omitted fields: `pkg/apis/flowcontrol/v1/defaults.go` of Kubernetes 1.36 and its
//! counterparts of older versions.
//!
//! An omitted member struct stays absent. Only the fields of a struct that is present get defaults.

use super::types::{FlowSchemaSpec, Version};

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
    /// An empty spec with the default precedence.
    fn default() -> Self {
        Self {
            priority_level_configuration: String::new(),
            matching_precedence: MATCHING_PRECEDENCE,
            distinguisher_method: None,
            rules: Vec::new(),
        }
    }
}

pub(super) fn matching_precedence(value: Option<i32>) -> i32 {
    unless_zero(value, MATCHING_PRECEDENCE)
}

pub(super) fn queues(value: Option<i32>) -> i32 {
    unless_zero(value, QUEUES)
}

pub(super) fn hand_size(value: Option<i32>) -> i32 {
    unless_zero(value, HAND_SIZE)
}

pub(super) fn queue_length_limit(value: Option<i32>) -> i32 {
    unless_zero(value, QUEUE_LENGTH_LIMIT)
}

/// The shares of a limited level. Before v1 the field is not a pointer, so zero and absent are the
/// same. In v1beta3 an annotation (`preserve_zero`) marks a zero that is meant.
pub(super) fn shares(value: Option<i32>, version: Version, preserve_zero: bool) -> i32 {
    match version {
        Version::V1 => value.unwrap_or(SHARES),
        Version::V1Beta3 if preserve_zero => value.unwrap_or(0),
        Version::V1Beta1 | Version::V1Beta2 | Version::V1Beta3 => unless_zero(value, SHARES),
    }
}

fn unless_zero(value: Option<i32>, default: i32) -> i32 {
    value.filter(|value| *value != 0).unwrap_or(default)
}
