//! The types of both kinds, as in `k8s.io/api/flowcontrol/v1` (`types.go`).

/// The API group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// The name of the mandatory level whose requests are never queued or rejected, and of the flow
/// schema that selects it.
pub const EXEMPT: &str = "exempt";
/// The annotation by which weir lets a flow schema or a priority level only count; kube-apiserver ignores it.
pub const ENFORCEMENT_ANNOTATION: &str = "weir/enforcement";
/// Its values: the default, and the one that only counts.
pub const ENFORCEMENT_VALUES: [&str; 2] = ["Enforce", "DryRun"];
/// The name of the mandatory level for requests that no other flow schema matches, and of its flow
/// schema.
pub const CATCH_ALL: &str = "catch-all";

/// Defines a string that should have one of a few values, each spelled like its variant.
macro_rules! string_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// Any other value; validation rejects it.
            Other(String),
        }

        impl $name {
            /// The values that Kubernetes allows, in the order of its messages.
            pub const ALLOWED: &[&str] = &[$(stringify!($variant)),+];

            /// The value as written in a manifest.
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
            /// The value of an omitted field.
            fn default() -> Self {
                Self::Other(String::new())
            }
        }
    };
}

/// An object of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// Selects the priority level of requests.
    FlowSchema(FlowSchema),
    /// Defines how a priority level treats its requests.
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

    /// Takes the UID of `other`, if the object has none.
    pub fn adopt_uid(&mut self, other: &Self) {
        let metadata = self.metadata_mut();
        if metadata.uid.is_empty() {
            metadata.uid.clone_from(&other.metadata().uid);
        }
    }

    /// Whether weir would treat requests alike with either object: only status, version and other
    /// metadata differ.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let (own, others) = (self.metadata(), other.metadata());
        (&own.name, &own.uid, own.is_dry_run()) == (&others.name, &others.uid, others.is_dry_run())
            && self.has_equal_spec(other)
    }

    /// Whether both are of one kind and have the same spec.
    #[must_use]
    pub fn has_equal_spec(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::FlowSchema(a), Self::FlowSchema(b)) => a.spec == b.spec,
            (Self::PriorityLevelConfiguration(a), Self::PriorityLevelConfiguration(b)) => {
                a.spec == b.spec
            }
            _ => false,
        }
    }

    /// Its metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::FlowSchema(schema) => &mut schema.metadata,
            Self::PriorityLevelConfiguration(level) => &mut level.metadata,
        }
    }
}

/// The part of an object's metadata that weir uses or validates. The rest is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The name; objects of both kinds are cluster-scoped.
    pub name: String,
    /// The prefix of the generated name, for a manifest without a name.
    pub generate_name: String,
    /// Set by the API server; empty in a manifest.
    pub uid: String,
    /// Set by the API server; empty in a manifest.
    pub resource_version: String,
    /// Labels, in the order written.
    pub labels: Vec<(String, String)>,
    /// Annotations, in the order written, without the annotation that marks a zero in v1beta3.
    pub annotations: Vec<(String, String)>,
    /// Only validated.
    pub owner_references: Vec<OwnerReference>,
    /// Only validated.
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// Whether [`ENFORCEMENT_ANNOTATION`] says that the object only counts.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        let [_, dry_run] = ENFORCEMENT_VALUES;
        self.annotations
            .iter()
            .any(|(name, value)| name == ENFORCEMENT_ANNOTATION && value == dry_run)
    }
}

/// An owner of an object (`metav1.OwnerReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: bool,
}

/// Selects the priority level of the requests that it matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSchema {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec.
    pub spec: FlowSchemaSpec,
    /// The types of `status.conditions`, the only part of the status that is validated.
    pub condition_types: Vec<String>,
}

/// The spec of a [`FlowSchema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchemaSpec {
    /// The name of the priority level.
    pub priority_level_configuration: String,
    /// Of the matching schemas, the one with the lowest precedence wins. From 1 to 10000.
    pub matching_precedence: i32,
    /// How the requests of this schema are divided into flows; without a method all requests are
    /// one flow.
    pub distinguisher_method: Option<FlowDistinguisherMethodType>,
    /// The schema matches a request if any rule does.
    pub rules: Vec<PolicyRulesWithSubjects>,
}

string_enum! {
    /// The attribute that separates the flows of a schema.
    FlowDistinguisherMethodType {
        /// The namespace of the request.
        ByNamespace,
        /// The name of the user.
        ByUser,
    }
}

/// Matches a request if any of the subjects makes it and any of the rules describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRulesWithSubjects {
    /// The users that the rules apply to.
    pub subjects: Vec<Subject>,
    /// The resource requests that match.
    pub resource_rules: Vec<ResourcePolicyRule>,
    /// The non-resource requests that match.
    pub non_resource_rules: Vec<NonResourcePolicyRule>,
}

/// A set of users. Valid if exactly the member that `kind` names is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Which of the members applies.
    pub kind: SubjectKind,
    /// The name of a user, or `*`.
    pub user: Option<String>,
    /// The name of a group, or `*`.
    pub group: Option<String>,
    /// One or all service accounts of a namespace.
    pub service_account: Option<ServiceAccountSubject>,
}

string_enum! {
    /// The kind of a [`Subject`].
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

/// Matches requests for resources. In each list `*` matches everything, and must be the only entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePolicyRule {
    /// Verbs of RequestInfo.
    pub verbs: Vec<String>,
    /// API groups; the empty string is the core group.
    pub api_groups: Vec<String>,
    /// Resources, e.g. `pods` or `pods/log`.
    pub resources: Vec<String>,
    /// Whether requests without a namespace match.
    pub cluster_scope: bool,
    /// The namespaces in which the other requests match.
    pub namespaces: Vec<String>,
}

/// Matches all other requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonResourcePolicyRule {
    /// Verbs of RequestInfo, or `*`.
    pub verbs: Vec<String>,
    /// Paths, each with everything below it; `*` for every path.
    pub non_resource_urls: Vec<String>,
}

/// Defines how a priority level treats its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevelConfiguration {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec.
    pub spec: PriorityLevelConfigurationSpec,
    /// The types of `status.conditions`, the only part of the status that is validated.
    pub condition_types: Vec<String>,
}

/// The spec of a [`PriorityLevelConfiguration`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevelConfigurationSpec {
    /// Whether the level has a limit.
    pub enablement: PriorityLevelEnablement,
    /// Set if and only if the level has a limit.
    pub limited: Option<LimitedPriorityLevelConfiguration>,
    /// May be set if the level has no limit. An API server accepts an exempt level without it, and
    /// then behaves as if the object did not exist.
    pub exempt: Option<ExemptPriorityLevelConfiguration>,
}

string_enum! {
    /// The field `type` of a level.
    PriorityLevelEnablement {
        /// Requests are never queued or rejected.
        Exempt,
        /// Requests are limited.
        Limited,
    }
}

/// The limit of a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitedPriorityLevelConfiguration {
    /// The level's part of the server's seats, in proportion to the shares of all levels. 0 is
    /// valid: such a level has no seats of its own. Called `assuredConcurrencyShares` in older
    /// versions.
    pub nominal_concurrency_shares: i32,
    /// What happens to requests above the limit.
    pub limit_response: LimitResponse,
    /// Percentage of the level's seats that other levels may borrow.
    pub lendable_percent: i32,
    /// Maximum number of seats that the level may borrow, as a percentage of its own; `None` if
    /// only the server's limit applies.
    pub borrowing_limit_percent: Option<i32>,
}

/// What happens to requests above the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitResponse {
    /// The field `type`.
    pub kind: LimitResponseType,
    /// Set if and only if requests are queued.
    pub queuing: Option<QueuingConfiguration>,
}

string_enum! {
    /// The field `type` of a [`LimitResponse`].
    LimitResponseType {
        /// Requests are queued.
        Queue,
        /// Requests are rejected.
        Reject,
    }
}

/// The queues of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuingConfiguration {
    /// The number of queues.
    pub queues: i32,
    /// Number of queues that one flow may use.
    pub hand_size: i32,
    /// Maximum number of requests in one queue.
    pub queue_length_limit: i32,
}

/// The seats that an exempt level lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExemptPriorityLevelConfiguration {
    /// As for a limited level, but only as the basis for lending.
    pub nominal_concurrency_shares: i32,
    /// Percentage of the level's seats that other levels may borrow.
    pub lendable_percent: i32,
}

/// The versions of the API group, as far as they were served in beta or better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `v1`, since Kubernetes 1.29.
    V1,
    /// `v1beta1`, from 1.20 to 1.25.
    V1Beta1,
    /// `v1beta2`, from 1.23 to 1.28.
    V1Beta2,
    /// `v1beta3`, from 1.26 to 1.31.
    V1Beta3,
}

impl Version {
    /// The version in an `apiVersion`, if it is of this group.
    pub(super) fn from_api_version(api_version: &str) -> Option<Self> {
        match api_version.strip_prefix(GROUP)? {
            "/v1" => Some(Self::V1),
            "/v1beta1" => Some(Self::V1Beta1),
            "/v1beta2" => Some(Self::V1Beta2),
            "/v1beta3" => Some(Self::V1Beta3),
            _ => None,
        }
    }

    /// The name of the shares field of a limited level.
    pub(super) fn shares_field(self) -> &'static str {
        match self {
            Self::V1 | Self::V1Beta3 => "nominalConcurrencyShares",
            Self::V1Beta1 | Self::V1Beta2 => "assuredConcurrencyShares",
        }
    }
}
