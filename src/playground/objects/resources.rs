//! The kinds that are served, and what is asked about them: group, version, names, verbs.
//!
//! One kind may be served by two resources: events stand under `v1` and `events.k8s.io/v1`, and are
//! one set of objects. Reviews are served and never stored.

use crate::playground::status::Subject;

/// A kind of object that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ConfigMap,
    Event,
    Lease,
    Namespace,
    Node,
    Pod,
    Secret,
    Service,
    ServiceAccount,
}

/// A question about identity or rights, asked by POST and answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    SelfSubject,
    SelfSubjectAccess,
    SubjectAccess,
    Token,
}

/// What a resource's requests are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Objects(Kind),
    Review(Review),
}

/// One line of discovery.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) served: Served,
}

/// A part of an object with a path of its own.
#[derive(Debug)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// The group and version of its kind, where they are not the resource's own.
    pub(crate) kind_of: Option<(&'static str, &'static str)>,
    pub(crate) kind: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

const fn part(
    name: &'static str,
    kind: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource {
        name,
        kind_of: None,
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

/// As upstream: a namespace is deleted one by one only.
const NAMESPACE_VERBS: &[&str] = &[
    "create", "delete", "get", "list", "patch", "update", "watch",
];

const STREAM_VERBS: &[&str] = &["create", "get"];

const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// Group and version pairs, in the order discovery lists them.
pub(crate) const GROUPS: &[(&str, &str)] = &[
    ("", "v1"),
    ("events.k8s.io", "v1"),
    ("authentication.k8s.io", "v1"),
    ("authorization.k8s.io", "v1"),
    ("coordination.k8s.io", "v1"),
    // Has no resources of its own; `kubectl drain` looks for it before it evicts.
    ("policy", "v1"),
];

const fn core(
    plural: &'static str,
    singular: &'static str,
    name: &'static str,
    short_names: &'static [&'static str],
    kind: Kind,
) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind: name,
        short_names,
        categories: if matches!(kind, Kind::Pod | Kind::Service) {
            &["all"]
        } else {
            &[]
        },
        namespaced: !matches!(kind, Kind::Namespace | Kind::Node),
        served: Served::Objects(kind),
    }
}

const fn review(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    name: &'static str,
    review: Review,
) -> Resource {
    Resource {
        group,
        version: "v1",
        plural,
        singular,
        kind: name,
        short_names: &[],
        categories: &[],
        namespaced: false,
        served: Served::Review(review),
    }
}

/// Everything that is served, as discovery lists it.
pub(crate) static RESOURCES: &[Resource] = &[
    core(
        "configmaps",
        "configmap",
        "ConfigMap",
        &["cm"],
        Kind::ConfigMap,
    ),
    core("events", "event", "Event", &["ev"], Kind::Event),
    core(
        "namespaces",
        "namespace",
        "Namespace",
        &["ns"],
        Kind::Namespace,
    ),
    core("nodes", "node", "Node", &["no"], Kind::Node),
    core("pods", "pod", "Pod", &["po"], Kind::Pod),
    core("secrets", "secret", "Secret", &[], Kind::Secret),
    core(
        "serviceaccounts",
        "serviceaccount",
        "ServiceAccount",
        &["sa"],
        Kind::ServiceAccount,
    ),
    core("services", "service", "Service", &["svc"], Kind::Service),
    Resource {
        group: "events.k8s.io",
        ..core("events", "event", "Event", &["ev"], Kind::Event)
    },
    review(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "selfsubjectreview",
        "SelfSubjectReview",
        Review::SelfSubject,
    ),
    review(
        "authentication.k8s.io",
        "tokenreviews",
        "tokenreview",
        "TokenReview",
        Review::Token,
    ),
    review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
        Review::SelfSubjectAccess,
    ),
    review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "subjectaccessreview",
        "SubjectAccessReview",
        Review::SubjectAccess,
    ),
    Resource {
        group: "coordination.k8s.io",
        ..core("leases", "lease", "Lease", &[], Kind::Lease)
    },
];

impl Kind {
    /// Every kind, in the order of [`Kind::index`].
    pub(crate) const ALL: [Self; 9] = [
        Self::ConfigMap,
        Self::Event,
        Self::Lease,
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Secret,
        Self::Service,
        Self::ServiceAccount,
    ];

    /// The place of this kind in arrays with one entry a kind.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::ConfigMap => 0,
            Self::Event => 1,
            Self::Lease => 2,
            Self::Namespace => 3,
            Self::Node => 4,
            Self::Pod => 5,
            Self::Secret => 6,
            Self::Service => 7,
            Self::ServiceAccount => 8,
        }
    }

    /// Whether a PUT of an absent object makes it, as upstream allows for these two.
    pub(crate) const fn created_by_update(self) -> bool {
        matches!(self, Self::Event | Self::Lease)
    }

    /// Whether `status` is written through its own path only.
    pub(crate) const fn has_status(self) -> bool {
        matches!(
            self,
            Self::Namespace | Self::Node | Self::Pod | Self::Service
        )
    }

    /// The parts of this kind that have a path of their own.
    pub(crate) const fn subresources(self) -> &'static [Subresource] {
        match self {
            Self::ConfigMap | Self::Event | Self::Lease | Self::Secret | Self::ServiceAccount => {
                &[]
            }
            Self::Namespace => NAMESPACE_PARTS,
            Self::Node => NODE_PARTS,
            Self::Pod => POD_PARTS,
            Self::Service => SERVICE_PARTS,
        }
    }
}

const NAMESPACE_PARTS: &[Subresource] = &[part("status", "Namespace", STATUS_VERBS)];
const NODE_PARTS: &[Subresource] = &[part("status", "Node", STATUS_VERBS)];
const SERVICE_PARTS: &[Subresource] = &[part("status", "Service", STATUS_VERBS)];
const POD_PARTS: &[Subresource] = &[
    part("attach", "PodAttachOptions", STREAM_VERBS),
    Subresource {
        kind_of: Some(("policy", "v1")),
        ..part("eviction", "Eviction", &["create"])
    },
    part("exec", "PodExecOptions", STREAM_VERBS),
    part("log", "Pod", &["get"]),
    part("portforward", "PodPortForwardOptions", STREAM_VERBS),
    part("status", "Pod", STATUS_VERBS),
];

impl Resource {
    /// The resource that a path names.
    pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES
            .iter()
            .find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// `v1`, or `coordination.k8s.io/v1`.
    pub(crate) fn group_version(&self) -> String {
        group_version(self.group, self.version)
    }

    pub(crate) const fn verbs(&self) -> &'static [&'static str] {
        match self.served {
            Served::Objects(Kind::Namespace) => NAMESPACE_VERBS,
            Served::Objects(_) => ALL_VERBS,
            Served::Review(_) => &["create"],
        }
    }

    pub(crate) const fn subresources(&self) -> &'static [Subresource] {
        match self.served {
            Served::Objects(kind) => kind.subresources(),
            Served::Review(_) => &[],
        }
    }

    /// Whether objects of this resource are spelled differently from how they are stored.
    pub(crate) fn converts(&self) -> bool {
        self.group == "events.k8s.io"
    }

    /// What a refusal about the object `name` is about.
    pub(crate) const fn subject<'a>(&self, name: &'a str) -> Subject<'a> {
        Subject {
            group: self.group,
            resource: self.plural,
            kind: self.kind,
            name,
        }
    }
}

/// How `apiVersion` spells a group and a version.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

#[cfg(test)]
mod tests {
    use super::GROUPS;
    use super::Kind;
    use super::RESOURCES;

    #[test]
    fn a_kind_stands_where_its_index_says() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), place);
        }
    }

    #[test]
    fn every_resource_belongs_to_a_listed_group() {
        for resource in RESOURCES {
            assert!(GROUPS.contains(&(resource.group, resource.version)));
        }
    }
}
