//! The settings of a configuration that a suggestion keeps. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::advice::variants::InFlightFlags;
use weir_limits::rate::events::buckets::LimitedEventGroups;

/// The settings by which a replay decides, besides the total and the objects. A suggestion keeps them,
/// so that a replay with its file is the replay that it was made from.
const KEPT: [&str; 10] = [
    "admissionControlConfigFile",
    "clientLimits",
    "enablePriorityAndFairness",
    "eventRateLimitConfig",
    "eventRateLimitGroups",
    "eventRateLimitRetryAfter",
    "flowcontrolEnforcement",
    "flowcontrolSource",
    "rejectionHold",
    "requestTimeout",
];

/// The settings of a configuration that a suggestion keeps.
#[derive(Clone, Debug)]
pub struct KeptSettings {
    /// The total concurrency.
    pub flags: InFlightFlags,
    /// `--event-rate-limit-groups`.
    pub event_groups: LimitedEventGroups,
    /// Those of [`KEPT`] that are given, by their names in a `--config` file.
    given: BTreeMap<String, Value>,
}

impl KeptSettings {
    /// The settings of a configuration with this total, whose event limits apply to all events.
    #[must_use]
    pub const fn new(flags: InFlightFlags) -> Self {
        Self {
            flags,
            event_groups: LimitedEventGroups::All,
            given: BTreeMap::new(),
        }
    }

    /// Adds those of the given settings that are kept.
    pub fn keep(&mut self, given: impl IntoIterator<Item = (String, Value)>) {
        let given = given.into_iter();
        let kept = given.filter(|(name, _)| KEPT.contains(&name.as_str()));
        self.given.extend(kept);
    }

    /// Whether one of those that are kept names this file.
    #[must_use]
    pub fn names_file(&self, path: &str) -> bool {
        self.given
            .values()
            .any(|value| value.as_str() == Some(path))
    }

    /// Those that are kept, by their names in a `--config` file.
    pub(super) const fn given(&self) -> &BTreeMap<String, Value> {
        &self.given
    }
}
