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
pub mod mandatory;
mod manifest;
mod names;
mod read;
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod validation;
mod write;

pub use field_error::ErrorType;
pub use field_error::FieldError;
pub use manifest::Manifest;
pub use manifest::decode;
pub(crate) use names::check_dns_subdomain;
pub use read::read;
pub use read::read_with_locations;
pub use rules::read_rules;
pub use types::CATCH_ALL;
pub use types::EXEMPT;
pub use types::ExemptPriorityLevelConfiguration;
pub use types::FlowDistinguisherMethodType;
pub use types::FlowSchema;
pub use types::FlowSchemaSpec;
pub use types::GROUP;
pub use types::LimitResponse;
pub use types::LimitResponseType;
pub use types::LimitedPriorityLevelConfiguration;
pub use types::NonResourcePolicyRule;
pub use types::Object;
pub use types::ObjectMeta;
pub use types::OwnerReference;
pub use types::PolicyRulesWithSubjects;
pub use types::PriorityLevelConfiguration;
pub use types::PriorityLevelConfigurationSpec;
pub use types::PriorityLevelEnablement;
pub use types::QueuingConfiguration;
pub use types::ResourcePolicyRule;
pub use types::ServiceAccountSubject;
pub use types::Subject;
pub use types::SubjectKind;
pub use types::Version;
pub use write::to_manifest;
