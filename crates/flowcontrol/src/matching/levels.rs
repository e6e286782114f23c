//! Compiles priority level objects to the specs of queue sets and seat allocation.
//!
//! This is the part of `digestNewPLsLocked` and `imaginePL` (Kubernetes 1.36, `apf_controller.go`)
//! that only reads objects. The controller decides about removed
//! levels, which may still have requests.

use std::collections::BTreeMap;

use crate::concurrency::level_limits::LevelSpec;
use crate::fairqueuing::queue_set::Queuing;
use crate::fairqueuing::shuffle_sharding::Dealer;
use weir_kubernetes::api::flowcontrol::{
    CATCH_ALL, EXEMPT, LimitResponse, LimitResponseType, PriorityLevelConfiguration,
    PriorityLevelEnablement, mandatory,
};

/// A priority level that schemas lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledLevel {
    /// The spec from the object.
    pub spec: LevelSpec,
    /// The UID of the object. Empty if the level is imagined.
    pub uid: String,
    /// There is no object, but the level must exist. A controller that has had an object keeps its
    /// spec.
    pub imagined: bool,
    /// Whether [an annotation](weir_kubernetes::api::flowcontrol::ObjectMeta::is_dry_run) says that it only counts.
    pub is_dry_run: bool,
}

impl CompiledLevel {
    /// Whether the level neither queues nor rejects requests.
    #[must_use]
    pub fn is_exempt(&self) -> bool {
        self.spec.queuing == Queuing::Exempt
    }

    /// Whether the level distinguishes flows. With one queue there is no choice.
    pub(super) const fn has_many_queues(&self) -> bool {
        matches!(self.spec.queuing, Queuing::Queue { dealer, .. } if dealer.deck_size() > 1)
    }
}

/// The levels that the objects define, by name. An inconsistent object defines no level.
pub(super) fn valid_levels<'o>(
    objects: impl IntoIterator<Item = &'o PriorityLevelConfiguration>,
) -> BTreeMap<String, CompiledLevel> {
    let levels = objects.into_iter().filter_map(|object| {
        let level = CompiledLevel {
            spec: level_spec(object)?,
            uid: object.metadata.uid.clone(),
            imagined: false,
            is_dry_run: object.metadata.is_dry_run(),
        };
        Some((level.spec.name.clone(), level))
    });
    levels.collect()
}

/// Adds the mandatory levels that are missing.
pub(super) fn imagine_missing(levels: &mut BTreeMap<String, CompiledLevel>) {
    for name in [EXEMPT, CATCH_ALL] {
        let spec = mandatory::priority_level(name).and_then(level_spec);
        if let (false, Some(spec)) = (levels.contains_key(name), spec) {
            let level = CompiledLevel {
                spec,
                uid: String::new(),
                imagined: true,
                is_dry_run: false,
            };
            levels.insert(name.to_owned(), level);
        }
    }
}

/// The spec from an object. `None` if the object is inconsistent.
fn level_spec(object: &PriorityLevelConfiguration) -> Option<LevelSpec> {
    let name = object.metadata.name.clone();
    let spec = &object.spec;
    match (&spec.enablement, &spec.limited, spec.exempt) {
        (PriorityLevelEnablement::Exempt, None, Some(exempt)) if name == EXEMPT => {
            Some(LevelSpec {
                name,
                queuing: Queuing::Exempt,
                nominal_concurrency_shares: clamp_negative(exempt.nominal_concurrency_shares),
                lendable_percent: clamp_negative(exempt.lendable_percent),
                borrowing_limit_percent: None,
            })
        }
        (PriorityLevelEnablement::Limited, Some(limited), None) if name != EXEMPT => {
            Some(LevelSpec {
                name,
                queuing: queuing(&limited.limit_response)?,
                nominal_concurrency_shares: clamp_negative(limited.nominal_concurrency_shares),
                lendable_percent: clamp_negative(limited.lendable_percent),
                borrowing_limit_percent: limited.borrowing_limit_percent.map(clamp_negative),
            })
        }
        _ => None,
    }
}

fn queuing(response: &LimitResponse) -> Option<Queuing> {
    match (&response.kind, response.queuing) {
        (LimitResponseType::Reject, None) => Some(Queuing::Reject),
        (LimitResponseType::Queue, Some(queuing)) => Some(Queuing::Queue {
            dealer: Dealer::new(queuing.queues, queuing.hand_size).ok()?,
            queue_length_limit: usize::try_from(queuing.queue_length_limit).unwrap_or_default(),
        }),
        _ => None,
    }
}

/// Validation rejects negative numbers before.
fn clamp_negative(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::api::flowcontrol::{
        ExemptPriorityLevelConfiguration, LimitedPriorityLevelConfiguration, ObjectMeta,
        PriorityLevelConfigurationSpec, QueuingConfiguration,
    };

    fn limited(name: &str) -> PriorityLevelConfiguration {
        PriorityLevelConfiguration {
            metadata: ObjectMeta {
                name: name.to_owned(),
                uid: "u-1".to_owned(),
                ..ObjectMeta::default()
            },
            spec: PriorityLevelConfigurationSpec {
                enablement: PriorityLevelEnablement::Limited,
                limited: Some(LimitedPriorityLevelConfiguration {
                    nominal_concurrency_shares: 30,
                    limit_response: LimitResponse {
                        kind: LimitResponseType::Queue,
                        queuing: Some(QueuingConfiguration {
                            queues: 64,
                            hand_size: 6,
                            queue_length_limit: 50,
                        }),
                    },
                    lendable_percent: 33,
                    borrowing_limit_percent: Some(200),
                }),
                exempt: None,
            },
            ..PriorityLevelConfiguration::default()
        }
    }

    fn is_valid(object: PriorityLevelConfiguration) -> bool {
        valid_levels([&object]).len() == 1
    }

    #[test]
    fn a_valid_object_is_used_unchanged() {
        let level = valid_levels([&limited("a")]).remove("a").unwrap();
        let expected = LevelSpec {
            name: "a".to_owned(),
            queuing: Queuing::Queue {
                dealer: Dealer::new(64, 6).unwrap(),
                queue_length_limit: 50,
            },
            nominal_concurrency_shares: 30,
            lendable_percent: 33,
            borrowing_limit_percent: Some(200),
        };
        assert_eq!(
            (level.spec, level.uid.as_str(), level.imagined),
            (expected, "u-1", false)
        );
    }

    #[test]
    fn an_inconsistent_object_is_ignored() {
        let changed = |change: fn(&mut PriorityLevelConfigurationSpec)| {
            let mut object = limited("a");
            change(&mut object.spec);
            object
        };
        assert!(!is_valid(limited(EXEMPT)));
        assert!(!is_valid(changed(|spec| spec.limited = None)));
        assert!(!is_valid(changed(|spec| {
            spec.exempt = Some(ExemptPriorityLevelConfiguration::default());
        })));
        let response = |change: fn(&mut LimitResponse)| {
            let mut object = limited("a");
            change(&mut object.spec.limited.as_mut().unwrap().limit_response);
            object
        };
        assert!(!is_valid(response(|r| r.queuing = None)));
        assert!(!is_valid(response(|r| r.kind = LimitResponseType::Reject)));
        assert!(!is_valid(response(|r| r
            .queuing
            .as_mut()
            .unwrap()
            .hand_size = 65)));
        assert!(is_valid(response(|r| r
            .queuing
            .as_mut()
            .unwrap()
            .hand_size = 10)));
    }

    #[test]
    fn an_exempt_level_without_an_exempt_spec_is_imagined_instead() {
        let mut object = limited(EXEMPT);
        object.spec = PriorityLevelConfigurationSpec {
            enablement: PriorityLevelEnablement::Exempt,
            limited: None,
            exempt: None,
        };
        let mut levels = valid_levels([&object]);
        assert!(levels.is_empty());
        imagine_missing(&mut levels);
        assert!(
            levels[EXEMPT].imagined && levels[EXEMPT].is_exempt() && levels[EXEMPT].uid.is_empty()
        );
        assert_eq!(levels[CATCH_ALL].spec.nominal_concurrency_shares, 5);

        object.spec.exempt = Some(ExemptPriorityLevelConfiguration::default());
        let mut levels = valid_levels([&object]);
        imagine_missing(&mut levels);
        assert!(!levels[EXEMPT].imagined && levels[CATCH_ALL].imagined);
    }
}
