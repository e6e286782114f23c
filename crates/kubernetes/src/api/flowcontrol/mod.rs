//! FlowSchema and PriorityLevelConfiguration, the objects of API Priority and Fairness.
//!
//! All served versions (v1, v1beta3, v1beta2, v1beta1) are decoded into one form: that of v1, with
//! Kubernetes' names and with every default filled in. [`read()`] takes manifests as an operator
//! writes or kubectl prints them, and reports what Kubernetes 1.36 would reject, in its own words.
//! [`decode`] does not validate: it is for objects that an API server has already accepted. The
//! module `flowcontrol` acts on the objects; nothing here writes them.

mod defaults;
mod field_error;
mod fields;
pub mod mandatory;
mod manifest;
mod names;
mod read;
#[cfg(test)]
mod tests;
mod types;
mod validation;
mod write;

pub use field_error::FieldError;
pub use manifest::{Manifest, decode};
pub use names::{check_dns_label, check_dns_subdomain};
pub use read::{LocatedObject, read, read_located, read_rules, read_with_locations};
pub use types::{CATCH_ALL, ENFORCEMENT_ANNOTATION, ENFORCEMENT_VALUES, EXEMPT};
pub use types::{
    ExemptPriorityLevelConfiguration, FlowDistinguisherMethodType, LimitResponse,
    LimitResponseType, NonResourcePolicyRule, ObjectMeta, PriorityLevelConfiguration,
    PriorityLevelEnablement, ResourcePolicyRule, ServiceAccountSubject, SubjectKind,
};
pub use types::{
    FlowSchema, FlowSchemaSpec, GROUP, LimitedPriorityLevelConfiguration, Object,
    PolicyRulesWithSubjects, PriorityLevelConfigurationSpec, QueuingConfiguration, Subject,
    Version,
};
pub use write::to_manifest;
