//! The served resources: group, version, names, verbs.
//!
//! Two resources may serve one kind: events are served in `v1` and `events.k8s.io/v1`, and are one
//! set of objects. Events are stored as `v1`. The forms differ only in the names of a few fields, so the
//! conversion is lossless in both directions. Reviews are served and never stored.

use crate::status::ResourceRef;
use serde_json::{Map, Value};

/// A kind of stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    ConfigMap,
    Event,
    FlowSchema,
    Lease,
    Namespace,
    Node,
    Pod,
    PriorityLevelConfiguration,
    Secret,
    Service,
    ServiceAccount,
}

/// A kind of review: a POST about identity or access, answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReviewKind {
    SelfSubject,
    SelfSubjectAccess,
    SubjectAccess,
    Token,
}

/// What serves a resource's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceBackend {
    Objects(ObjectKind),
    Review(ReviewKind),
}

/// A resource, as in discovery.
#[derive(Debug)]
pub(crate) struct ApiResource {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) backend: ResourceBackend,
}

/// A subresource of an object.
#[derive(Debug)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// The group and version of its kind, if they differ from the resource's.
    pub(crate) kind_group_version: Option<(&'static str, &'static str)>,
    pub(crate) kind: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

const fn subresource(
    name: &'static str,
    kind: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource {
        name,
        kind_group_version: None,
        kind,
        verbs,
    }
}

const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// As upstream: namespaces have no deletecollection.
const NAMESPACE_VERBS: &[&str] = &[
    "create", "delete", "get", "list", "patch", "update", "watch",
];

const STREAM_VERBS: &[&str] = &["create", "get"];

const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// Pairs of group and version, in the order of discovery.
pub(crate) const GROUPS: &[(&str, &str)] = &[
    ("", "v1"),
    ("events.k8s.io", "v1"),
    ("authentication.k8s.io", "v1"),
    ("authorization.k8s.io", "v1"),
    ("coordination.k8s.io", "v1"),
    ("flowcontrol.apiserver.k8s.io", "v1"),
    // Has no resources of its own; `kubectl drain` looks for the group before it evicts.
    ("policy", "v1"),
];

const fn core_resource(
    plural: &'static str,
    singular: &'static str,
    name: &'static str,
    short_names: &'static [&'static str],
    kind: ObjectKind,
) -> ApiResource {
    ApiResource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind: name,
        short_names,
        categories: if matches!(kind, ObjectKind::Pod | ObjectKind::Service) {
            &["all"]
        } else {
            &[]
        },
        namespaced: !matches!(kind, ObjectKind::Namespace | ObjectKind::Node),
        backend: ResourceBackend::Objects(kind),
    }
}

const fn flowcontrol_resource(
    plural: &'static str,
    singular: &'static str,
    name: &'static str,
    kind: ObjectKind,
) -> ApiResource {
    ApiResource {
        group: "flowcontrol.apiserver.k8s.io",
        namespaced: false,
        ..core_resource(plural, singular, name, &[], kind)
    }
}

const fn review_resource(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    name: &'static str,
    review: ReviewKind,
) -> ApiResource {
    ApiResource {
        group,
        version: "v1",
        plural,
        singular,
        kind: name,
        short_names: &[],
        categories: &[],
        namespaced: false,
        backend: ResourceBackend::Review(review),
    }
}

/// All served resources, in the order of discovery.
pub(crate) static RESOURCES: &[ApiResource] = &[
    core_resource(
        "configmaps",
        "configmap",
        "ConfigMap",
        &["cm"],
        ObjectKind::ConfigMap,
    ),
    core_resource("events", "event", "Event", &["ev"], ObjectKind::Event),
    core_resource(
        "namespaces",
        "namespace",
        "Namespace",
        &["ns"],
        ObjectKind::Namespace,
    ),
    core_resource("nodes", "node", "Node", &["no"], ObjectKind::Node),
    core_resource("pods", "pod", "Pod", &["po"], ObjectKind::Pod),
    core_resource("secrets", "secret", "Secret", &[], ObjectKind::Secret),
    core_resource(
        "serviceaccounts",
        "serviceaccount",
        "ServiceAccount",
        &["sa"],
        ObjectKind::ServiceAccount,
    ),
    core_resource(
        "services",
        "service",
        "Service",
        &["svc"],
        ObjectKind::Service,
    ),
    ApiResource {
        group: "events.k8s.io",
        ..core_resource("events", "event", "Event", &["ev"], ObjectKind::Event)
    },
    review_resource(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
        ReviewKind::SelfSubject,
    ),
    review_resource(
        "authentication.k8s.io",
        "tokenreviews",
        "tokenreview",
        "TokenReview",
        ReviewKind::Token,
    ),
    review_resource(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
        ReviewKind::SelfSubjectAccess,
    ),
    review_resource(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
        ReviewKind::SubjectAccess,
    ),
    ApiResource {
        group: "coordination.k8s.io",
        ..core_resource("leases", "lease", "Lease", &[], ObjectKind::Lease)
    },
    flowcontrol_resource(
        "flowschemas",
        "flowschema",
        "FlowSchema",
        ObjectKind::FlowSchema,
    ),
    flowcontrol_resource(
        "prioritylevelconfigurations",
        "prioritylevelconfiguration",
        "PriorityLevelConfiguration",
        ObjectKind::PriorityLevelConfiguration,
    ),
];

impl ObjectKind {
    /// Every kind, in the order of [`ObjectKind::index`].
    pub(crate) const ALL: [Self; 11] = [
        Self::ConfigMap,
        Self::Event,
        Self::FlowSchema,
        Self::Lease,
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::PriorityLevelConfiguration,
        Self::Secret,
        Self::Service,
        Self::ServiceAccount,
    ];

    /// The index of this kind in arrays with one entry per kind.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::ConfigMap => 0,
            Self::Event => 1,
            Self::FlowSchema => 2,
            Self::Lease => 3,
            Self::Namespace => 4,
            Self::Node => 5,
            Self::Pod => 6,
            Self::PriorityLevelConfiguration => 7,
            Self::Secret => 8,
            Self::Service => 9,
            Self::ServiceAccount => 10,
        }
    }

    /// Whether a PUT of an absent object creates it, as upstream allows for these two kinds.
    pub(crate) const fn allows_create_on_update(self) -> bool {
        matches!(self, Self::Event | Self::Lease)
    }

    /// Whether `status` is only written through its subresource.
    pub(crate) const fn has_status(self) -> bool {
        matches!(
            self,
            Self::FlowSchema
                | Self::Namespace
                | Self::Node
                | Self::Pod
                | Self::PriorityLevelConfiguration
                | Self::Service
        )
    }

    /// Whether priority and fairness is configured by objects of this kind.
    pub(crate) const fn is_flowcontrol(self) -> bool {
        matches!(self, Self::FlowSchema | Self::PriorityLevelConfiguration)
    }

    /// The subresources of this kind.
    pub(crate) const fn subresources(self) -> &'static [Subresource] {
        match self {
            Self::ConfigMap | Self::Event | Self::Lease | Self::Secret | Self::ServiceAccount => {
                &[]
            }
            Self::FlowSchema => FLOW_SCHEMA_SUBRESOURCES,
            Self::PriorityLevelConfiguration => PRIORITY_LEVEL_SUBRESOURCES,
            Self::Namespace => NAMESPACE_SUBRESOURCES,
            Self::Node => NODE_SUBRESOURCES,
            Self::Pod => POD_SUBRESOURCES,
            Self::Service => SERVICE_SUBRESOURCES,
        }
    }

    /// The selectable fields of a kind, besides the name and the namespace.
    pub(crate) const fn selectable_fields(self) -> &'static [&'static str] {
        match self {
            Self::ConfigMap
            | Self::FlowSchema
            | Self::Lease
            | Self::PriorityLevelConfiguration
            | Self::ServiceAccount => &[],
            Self::Event => &[
                "involvedObject.apiVersion",
                "involvedObject.fieldPath",
                "involvedObject.kind",
                "involvedObject.name",
                "involvedObject.namespace",
                "involvedObject.resourceVersion",
                "involvedObject.uid",
                "reason",
                "reportingComponent",
                "source",
                "type",
            ],
            Self::Namespace => &["status.phase"],
            Self::Node => &["spec.unschedulable"],
            Self::Pod => &[
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "status.nominatedNodeName",
                "status.phase",
                "status.podIP",
            ],
            Self::Secret => &["type"],
            Self::Service => &["spec.clusterIP", "spec.type"],
        }
    }
}

const FLOW_SCHEMA_SUBRESOURCES: &[Subresource] =
    &[subresource("status", "FlowSchema", STATUS_VERBS)];
const PRIORITY_LEVEL_SUBRESOURCES: &[Subresource] = &[subresource(
    "status",
    "PriorityLevelConfiguration",
    STATUS_VERBS,
)];
const NAMESPACE_SUBRESOURCES: &[Subresource] = &[subresource("status", "Namespace", STATUS_VERBS)];
const NODE_SUBRESOURCES: &[Subresource] = &[subresource("status", "Node", STATUS_VERBS)];
const SERVICE_SUBRESOURCES: &[Subresource] = &[subresource("status", "Service", STATUS_VERBS)];
const POD_SUBRESOURCES: &[Subresource] = &[
    subresource("attach", "PodAttachOptions", STREAM_VERBS),
    Subresource {
        kind_group_version: Some(("policy", "v1")),
        ..subresource("eviction", "Eviction", &["create"])
    },
    subresource("exec", "PodExecOptions", STREAM_VERBS),
    subresource("log", "Pod", &["get"]),
    subresource("portforward", "PodPortForwardOptions", STREAM_VERBS),
    subresource("status", "Pod", STATUS_VERBS),
];

impl ApiResource {
    /// The resource of a path.
    pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES
            .iter()
            .find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// The first resource that serves a kind.
    pub(crate) fn of_kind(kind: ObjectKind) -> Option<&'static Self> {
        let backend = ResourceBackend::Objects(kind);
        RESOURCES
            .iter()
            .find(|resource| resource.backend == backend)
    }

    /// `v1`, or `coordination.k8s.io/v1`.
    pub(crate) fn group_version(&self) -> String {
        group_version(self.group, self.version)
    }

    pub(crate) const fn verbs(&self) -> &'static [&'static str] {
        match self.backend {
            ResourceBackend::Objects(ObjectKind::Namespace) => NAMESPACE_VERBS,
            ResourceBackend::Objects(_) => ALL_VERBS,
            ResourceBackend::Review(_) => &["create"],
        }
    }

    pub(crate) const fn subresources(&self) -> &'static [Subresource] {
        match self.backend {
            ResourceBackend::Objects(kind) => kind.subresources(),
            ResourceBackend::Review(_) => &[],
        }
    }

    /// Whether objects of this resource differ from their stored form.
    pub(crate) fn is_converted(&self) -> bool {
        self.group == "events.k8s.io"
    }

    /// A reference to the object `name`, for error details.
    pub(crate) const fn resource_ref<'a>(&self, name: &'a str) -> ResourceRef<'a> {
        ResourceRef {
            group: self.group,
            resource: self.plural,
            kind: self.kind,
            name,
        }
    }
}

/// The `apiVersion` of a group and a version.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// The fields of an event that differ: `v1` name, `events.k8s.io/v1` name.
const RENAMED_EVENT_FIELDS: &[(&str, &str)] = &[
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("involvedObject", "regarding"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
];

/// Converts a stored event to `events.k8s.io/v1`.
pub(crate) fn to_events_v1(object: &mut Map<String, Value>) {
    for (core, events) in RENAMED_EVENT_FIELDS {
        if let Some(value) = object.remove(*core) {
            object.insert((*events).to_owned(), value);
        }
    }
}

/// Converts an event of `events.k8s.io/v1` to the stored form.
pub(crate) fn to_core_v1(object: &mut Map<String, Value>) {
    for (core, events) in RENAMED_EVENT_FIELDS {
        if let Some(value) = object.remove(*events) {
            object.insert((*core).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, ObjectKind, RESOURCES, to_core_v1, to_events_v1};
    use serde_json::json;

    #[test]
    fn the_index_of_a_kind_is_its_position() {
        for (place, kind) in ObjectKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), place);
        }
    }

    #[test]
    fn every_resource_belongs_to_a_listed_group() {
        for resource in RESOURCES {
            assert!(GROUPS.contains(&(resource.group, resource.version)));
        }
    }

    #[test]
    fn an_event_round_trips_through_both_api_groups() {
        let event = json!({"message": "m", "involvedObject": {"kind": "Pod"}, "count": 2});
        let stored = event.as_object().cloned().unwrap_or_default();
        let mut converted = stored.clone();
        to_events_v1(&mut converted);
        assert_eq!(converted["note"], "m");
        assert_eq!(converted["regarding"]["kind"], "Pod");
        assert!(!converted.contains_key("message"));
        to_core_v1(&mut converted);
        assert_eq!(converted, stored);
    }
}
