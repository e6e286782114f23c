//! FlowSchema and PriorityLevelConfiguration, the objects of API Priority and Fairness.
//!
//! All served versions (v1, v1beta3, v1beta2, v1beta1) are decoded into one form: that of v1, with
//! Kubernetes' names and with every default filled in. [`read()`] takes manifests as an operator
//! writes or kubectl prints them, and reports what Kubernetes 1.36 would reject, in its own words.
//! [`decode`] does not validate: it is for objects that an API server has already accepted. The
//! module `flowcontrol` acts on the objects; nothing here writes them.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `field_error` `names` `types` |
//! | 1 | `defaults` `write` |
//! | 2 | `fields` |
//! | 3 | `manifest` |
//! | 4 | `mandatory` `read` |
//! | 5 | `validation` |
//! | 6 | `rules` |

mod defaults;
mod field_error;
mod fields;
pub(crate) mod mandatory;
mod manifest;
mod names;
mod read;
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod validation;
mod write;

pub use field_error::FieldError;
pub use manifest::Manifest;
pub use manifest::decode;
pub(crate) use names::check_dns_label;
pub(crate) use names::check_dns_subdomain;
pub(crate) use read::LocatedObject;
pub use read::read;
pub(crate) use read::read_located;
pub(crate) use read::read_with_locations;
pub(crate) use rules::read_rules;
pub(crate) use types::CATCH_ALL;
pub(crate) use types::EXEMPT;
#[cfg(test)]
pub(crate) use types::ExemptPriorityLevelConfiguration;
pub(crate) use types::FlowDistinguisherMethodType;
pub use types::FlowSchema;
pub use types::FlowSchemaSpec;
pub use types::GROUP;
pub(crate) use types::LimitResponse;
pub(crate) use types::LimitResponseType;
pub use types::LimitedPriorityLevelConfiguration;
pub(crate) use types::NonResourcePolicyRule;
pub use types::Object;
pub(crate) use types::ObjectMeta;
pub use types::PolicyRulesWithSubjects;
pub(crate) use types::PriorityLevelConfiguration;
pub use types::PriorityLevelConfigurationSpec;
pub(crate) use types::PriorityLevelEnablement;
pub use types::QueuingConfiguration;
pub(crate) use types::ResourcePolicyRule;
pub(crate) use types::ServiceAccountSubject;
pub use types::Subject;
pub(crate) use types::SubjectKind;
pub use types::Version;
pub use write::to_manifest;
