//! Policies that differ from those of a configuration in the total concurrency or in objects. Pure.

use crate::simulation::ReplayedPolicies;
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::numeric::saturating_u32;
use weir_limits::max_in_flight::MaxInFlightConfig;

/// The annotation with which kube-apiserver keeps the specs of its own objects as they were.
pub const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// `--max-requests-inflight` and `--max-mutating-requests-inflight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct InFlightFlags {
    /// `--max-requests-inflight`.
    pub max_requests_inflight: u32,
    /// `--max-mutating-requests-inflight`.
    pub max_mutating_requests_inflight: u32,
}

impl InFlightFlags {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.max_requests_inflight
            .saturating_add(self.max_mutating_requests_inflight)
    }

    /// Flags of this total, divided as these are. Neither becomes 0 that is not 0, unless the total is
    /// 1. With max-in-flight, 0 is no limit, so there a total of 1 is no smaller one.
    #[must_use]
    pub fn with_total(self, total: u32) -> Self {
        let all = u64::from(self.total()).max(1);
        let mutating = u64::from(total) * u64::from(self.max_mutating_requests_inflight) / all;
        let mut mutating = saturating_u32(mutating);
        if mutating == 0 && self.max_mutating_requests_inflight > 0 && total > 1 {
            mutating = 1;
        }
        Self {
            max_requests_inflight: total.saturating_sub(mutating),
            max_mutating_requests_inflight: mutating,
        }
    }
}

/// The policies with another total concurrency.
#[must_use]
pub fn with_total(
    policies: &ReplayedPolicies,
    flags: InFlightFlags,
    name: String,
) -> ReplayedPolicies {
    let mut policies = ReplayedPolicies {
        name,
        auto_total: None,
        ..policies.clone()
    };
    match &mut policies.limits.concurrency {
        ConcurrencyPolicy::Fairness {
            server_concurrency_limit,
            ..
        } => *server_concurrency_limit = flags.total(),
        ConcurrencyPolicy::MaxInFlight(config) => {
            *config = MaxInFlightConfig {
                read_only: flags.max_requests_inflight.into(),
                mutating: flags.max_mutating_requests_inflight.into(),
            };
        }
    }
    policies
}

/// The flow schemas and priority levels. Empty with max-in-flight.
#[must_use]
pub fn objects_of(policies: &ReplayedPolicies) -> &[Object] {
    match &policies.limits.concurrency {
        ConcurrencyPolicy::Fairness { objects, .. } => objects,
        ConcurrencyPolicy::MaxInFlight(_) => &[],
    }
}

/// The objects of `after` that `before` does not have, ready to be applied: kube-apiserver would set a
/// changed object of its own back, unless an annotation says that it is maintained by someone else.
#[must_use]
pub fn changed_objects(before: &ReplayedPolicies, after: &ReplayedPolicies) -> Vec<Object> {
    let before = objects_of(before);
    let changed = objects_of(after).iter().filter(|object| {
        !before
            .iter()
            .find(|other| is_same(other, object))
            .is_some_and(|other| other.is_equivalent(object))
    });
    changed.cloned().map(maintained_by_operator).collect()
}

/// The annotation of the object in a cluster stays where one without it is applied, so it is set even
/// where the configuration has none.
fn maintained_by_operator(object: Object) -> Object {
    let mut object = without_identity(object);
    let mut suggested = bootstrap::objects(BootstrapClass::Suggested).iter();
    if suggested.any(|other| is_same(other, &object)) {
        let annotations = &mut object.metadata_mut().annotations;
        annotations.retain(|(name, _)| name != AUTOUPDATE);
        annotations.push((AUTOUPDATE.to_owned(), "false".to_owned()));
    }
    object
}

/// Whether they are the same object of a cluster.
#[must_use]
pub fn is_same(a: &Object, b: &Object) -> bool {
    a.kind() == b.kind() && a.metadata().name == b.metadata().name
}

/// The object without what belongs to the one in a cluster, so that it can be applied.
#[must_use]
pub fn without_identity(mut object: Object) -> Object {
    let metadata = object.metadata_mut();
    metadata.uid.clear();
    metadata.resource_version.clear();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_is_divided_as_the_flags_are() {
        let flags = |max_requests_inflight, max_mutating_requests_inflight| InFlightFlags {
            max_requests_inflight,
            max_mutating_requests_inflight,
        };
        let today = flags(400, 200);
        assert_eq!(today.with_total(600), today);
        assert_eq!(today.with_total(300), flags(200, 100));
        assert_eq!(today.with_total(2), flags(1, 1));
        assert_eq!(today.with_total(1), flags(1, 0));
        assert_eq!(flags(600, 0).with_total(10), flags(10, 0));
        assert_eq!(flags(0, 600).with_total(10), flags(0, 10));
        for total in 2..1000 {
            let divided = today.with_total(total);
            assert_eq!(divided.total(), total);
            assert!(divided.max_requests_inflight > 0, "{divided:?}");
            assert!(divided.max_mutating_requests_inflight > 0, "{divided:?}");
        }
    }
}
