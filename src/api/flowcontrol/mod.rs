//! FlowSchema and PriorityLevelConfiguration, the objects of API Priority and Fairness.
//!
//! All served versions (v1, v1beta3, v1beta2, v1beta1) are read into one form: that of v1, spelled
//! as Kubernetes spells it, with every default filled in. [`read`] takes manifests as an operator
//! writes or kubectl prints them and reports what Kubernetes 1.36 would refuse, in its own words;
//! [`fields`] reads without judging, for objects that an API server has accepted already. What
//! follows from the objects is the business of `flowcontrol`; nothing here writes them.

mod defaults;
mod field_error;
mod fields;
pub mod mandatory;
mod manifest;
mod names;
mod rules;
#[cfg(test)]
mod tests;
mod validation;

pub use field_error::ErrorType;
pub use field_error::FieldError;
pub use manifest::Manifest;
pub use manifest::Version;
pub use manifest::decode;
pub use manifest::read;
pub use manifest::read_with_locations;
pub(crate) use names::check_dns_subdomain;
pub use rules::read_rules;

/// The API group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// The name of the mandatory level that is never queued or refused, and of the schema that leads
/// there.
pub const EXEMPT: &str = "exempt";
/// The name of the mandatory level for what nothing else matches, and of the schema that leads
/// there.
pub const CATCH_ALL: &str = "catch-all";

/// A string that should be one of a few, each spelled like its variant.
macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// Anything else, which validation refuses.
            Other(String),
        }

        impl $name {
            /// What Kubernetes allows, in the order of its messages.
            pub(crate) const ALLOWED: &[&str] = &[$(stringify!($variant)),+];

            /// As written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                match text.as_str() {
                    $(stringify!($variant) => Self::$variant,)+
                    _ => Self::Other(text),
                }
            }
        }

        impl Default for $name {
            /// What an object has that does not say.
            fn default() -> Self {
                Self::Other(String::new())
            }
        }
    };
}

/// Either kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// Which requests go to which level.
    FlowSchema(FlowSchema),
    /// How a level treats its requests.
    PriorityLevelConfiguration(PriorityLevelConfiguration),
}

impl Object {
    /// The kind, as in a manifest.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::FlowSchema(_) => "FlowSchema",
            Self::PriorityLevelConfiguration(_) => "PriorityLevelConfiguration",
        }
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::FlowSchema(schema) => &schema.metadata,
            Self::PriorityLevelConfiguration(level) => &level.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::FlowSchema(schema) => &mut schema.metadata,
            Self::PriorityLevelConfiguration(level) => &mut level.metadata,
        }
    }
}

/// What weir uses or validates of an object's metadata. The rest is read over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The name; objects of both kinds stand outside namespaces.
    pub name: String,
    /// What the name begins with where the manifest gives none.
    pub generate_name: String,
    /// Given by the API server; empty in a manifest.
    pub uid: String,
    /// Likewise.
    pub resource_version: String,
    /// In the order written.
    pub labels: Vec<(String, String)>,
    /// In the order written, without the annotation that only carries a zero through v1beta3.
    pub annotations: Vec<(String, String)>,
    /// Only validated.
    pub owner_references: Vec<OwnerReference>,
    /// Only validated.
    pub finalizers: Vec<String>,
}

/// An owner of an object (`metav1.OwnerReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain data, named as in a manifest")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: bool,
}

/// Says which requests go to which priority level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSchema {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: FlowSchemaSpec,
    /// The types of `status.conditions`, which is all that validation looks at.
    pub condition_types: Vec<String>,
}

/// The spec of a [`FlowSchema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchemaSpec {
    /// The name of the level.
    pub priority_level_configuration: String,
    /// Of the schemas that match, the one with the lowest wins. From 1 to 10000.
    pub matching_precedence: i32,
    /// What tells one flow of this schema from another; without it all requests are one flow.
    pub distinguisher_method: Option<FlowDistinguisherMethodType>,
    /// The schema matches what any rule matches.
    pub rules: Vec<PolicyRulesWithSubjects>,
}

spelled! {
    /// What the flows of a schema are told apart by.
    FlowDistinguisherMethodType {
        /// The namespace of the request.
        ByNamespace,
        /// The name of the user.
        ByUser,
    }
}

/// Matches requests that any of the subjects makes and any of the rules describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRulesWithSubjects {
    /// Who.
    pub subjects: Vec<Subject>,
    /// Which requests for resources.
    pub resource_rules: Vec<ResourcePolicyRule>,
    /// Which other requests.
    pub non_resource_rules: Vec<NonResourcePolicyRule>,
}

/// Some users. Valid if exactly the member that `kind` names is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Which member counts.
    pub kind: SubjectKind,
    /// The name of a user, or `*`.
    pub user: Option<String>,
    /// The name of a group, or `*`.
    pub group: Option<String>,
    /// One or all service accounts of a namespace.
    pub service_account: Option<ServiceAccountSubject>,
}

spelled! {
    /// What a [`Subject`] names.
    SubjectKind {
        /// The members of a group.
        Group,
        /// Service accounts.
        ServiceAccount,
        /// A user.
        User,
    }
}

/// One or all service accounts of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountSubject {
    /// The namespace; `*` has no meaning here.
    pub namespace: String,
    /// The name, or `*`.
    pub name: String,
}

/// Describes requests for resources. In each list `*` stands for everything, and then stands alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePolicyRule {
    /// Verbs of RequestInfo.
    pub verbs: Vec<String>,
    /// API groups; the empty string is the core group.
    pub api_groups: Vec<String>,
    /// Resources, as `pods` or `pods/log`.
    pub resources: Vec<String>,
    /// Whether requests without a namespace match.
    pub cluster_scope: bool,
    /// In which namespaces the others match.
    pub namespaces: Vec<String>,
}

/// Describes requests for anything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonResourcePolicyRule {
    /// Verbs of RequestInfo, or `*`.
    pub verbs: Vec<String>,
    /// Paths, each with all that is below it; `*` for every path.
    pub non_resource_urls: Vec<String>,
}

/// Says how a level treats its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevelConfiguration {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: PriorityLevelConfigurationSpec,
    /// The types of `status.conditions`, which is all that validation looks at.
    pub condition_types: Vec<String>,
}

/// The spec of a [`PriorityLevelConfiguration`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevelConfigurationSpec {
    /// Whether the level has a limit.
    pub enablement: PriorityLevelEnablement,
    /// There if and only if it has.
    pub limited: Option<LimitedPriorityLevelConfiguration>,
    /// May be there if it has none. An API server accepts an exempt level without it, and then acts
    /// as if it had no such object.
    pub exempt: Option<ExemptPriorityLevelConfiguration>,
}

spelled! {
    /// The field `type` of a level.
    PriorityLevelEnablement {
        /// Requests are never queued or refused.
        Exempt,
        /// Requests are limited.
        Limited,
    }
}

/// The limit of a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitedPriorityLevelConfiguration {
    /// Its part of the server's seats, in relation to the shares of all levels. 0 is legal: a jail.
    /// In older versions `assuredConcurrencyShares`.
    pub nominal_concurrency_shares: i32,
    /// What becomes of requests above the limit.
    pub limit_response: LimitResponse,
    /// The part of its seats that other levels may borrow, in percent.
    pub lendable_percent: i32,
    /// How many seats it may borrow, in percent of its own; without it no bound but the server's
    /// limit.
    pub borrowing_limit_percent: Option<i32>,
}

/// What becomes of requests above the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitResponse {
    /// The field `type`.
    pub kind: LimitResponseType,
    /// There if and only if requests wait.
    pub queuing: Option<QueuingConfiguration>,
}

spelled! {
    /// The field `type` of a [`LimitResponse`].
    LimitResponseType {
        /// They wait.
        Queue,
        /// They are refused.
        Reject,
    }
}

/// How requests wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuingConfiguration {
    /// The number of queues.
    pub queues: i32,
    /// How many queues a flow may use.
    pub hand_size: i32,
    /// How many requests may wait in one queue.
    pub queue_length_limit: i32,
}

/// What an exempt level lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExemptPriorityLevelConfiguration {
    /// As for a limited level, but as a basis for lending only.
    pub nominal_concurrency_shares: i32,
    /// The part of its seats that other levels may borrow, in percent.
    pub lendable_percent: i32,
}
