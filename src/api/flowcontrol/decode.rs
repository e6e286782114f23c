//! Reads the objects from documents, whatever their version and however they are wrapped.

use std::collections::HashMap;

use super::ExemptPriorityLevelConfiguration;
use super::FlowSchema;
use super::FlowSchemaSpec;
use super::GROUP;
use super::LimitResponse;
use super::LimitedPriorityLevelConfiguration;
use super::NonResourcePolicyRule;
use super::Object;
use super::ObjectMeta;
use super::PolicyRulesWithSubjects;
use super::PriorityLevelConfiguration;
use super::PriorityLevelConfigurationSpec;
use super::QueuingConfiguration;
use super::ResourcePolicyRule;
use super::ServiceAccountSubject;
use super::Subject;
use super::defaults;
use crate::document::Content;
use crate::document::Faults;
use crate::document::Fields;
use crate::document::Node;
use crate::document::Place;
use crate::document::Strictness;

/// With it, a zero in `nominalConcurrencyShares` of a v1beta3 object is meant (Kubernetes 1.29,
/// `PriorityLevelPreserveZeroConcurrencySharesKey`).
pub(super) const PRESERVE_ZERO_SHARES: &str =
    "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

/// The versions of the API group, all that were ever served in beta or better.
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
    /// The version of an `apiVersion`, if it is of this group.
    fn of(api_version: &str) -> Option<Self> {
        match api_version.strip_prefix(GROUP)? {
            "/v1" => Some(Self::V1),
            "/v1beta1" => Some(Self::V1Beta1),
            "/v1beta2" => Some(Self::V1Beta2),
            "/v1beta3" => Some(Self::V1Beta3),
            _ => None,
        }
    }

    /// What the shares of a limited level are called.
    pub(super) fn shares_field(self) -> &'static str {
        match self {
            Self::V1 | Self::V1Beta3 => "nominalConcurrencyShares",
            Self::V1Beta1 | Self::V1Beta2 => "assuredConcurrencyShares",
        }
    }
}

/// An object that has been read, and where it was read from.
#[derive(Clone, Debug)]
pub struct Manifest<'n> {
    /// The object.
    pub object: Object,
    /// The version that it was written in.
    pub version: Version,
    node: &'n Node,
    path: String,
}

impl Manifest<'_> {
    /// Reports what Kubernetes would refuse in a manifest, at the places of the fields. Whether it would accept.
    fn check(&self, faults: &mut Faults) -> bool {
        let errors = self.validate();
        for error in &errors {
            let field = join(&self.path, &error.field);
            faults.error(self.node.locate(&error.field), &field, error.body());
        }
        errors.is_empty()
    }
}

/// Reads manifests as the API server would with `fieldValidation=Warn`, and reports whatever it would refuse or warn of. Objects
/// with errors are left out, and so is the second of two with the same kind and name.
pub fn read(documents: &[Node], faults: &mut Faults) -> Vec<Object> {
    let mut first: HashMap<(&'static str, String), Place> = HashMap::new();
    let mut objects = Vec::new();
    let decoded = documents
        .iter()
        .flat_map(|node| decode(node, Strictness::Warn, faults));
    for manifest in decoded.collect::<Vec<_>>() {
        let sound = manifest.check(faults);
        let name = (
            manifest.object.kind(),
            manifest.object.metadata().name.clone(),
        );
        if let Some(place) = first.get(&name) {
            let message = format!("{} {:?} is given twice, first at {place}", name.0, name.1);
            let field = join(&manifest.path, "metadata.name");
            faults.error(manifest.node.locate("metadata.name"), &field, message);
        } else {
            first.insert(name, manifest.node.place.clone());
            objects.extend(sound.then_some(manifest.object));
        }
    }
    objects
}

/// Reads one object, or the objects of a list (`List`, as kubectl prints it, or the API's own), with defaults filled in but
/// without judging. An object that cannot be read, as kube-apiserver would answer 400, is a fault and left out.
pub fn decode<'n>(
    node: &'n Node,
    strictness: Strictness,
    faults: &mut Faults,
) -> Vec<Manifest<'n>> {
    let mut found = Vec::new();
    unwrap(node, "", None, &mut found, faults);
    let read = |(node, path, kind, version): (&'n Node, String, Kind, Version)| {
        let before = faults.errors().count();
        let object = node.decode(faults, &path, strictness, |fields| match kind {
            Kind::FlowSchema => Object::FlowSchema(flow_schema(fields)),
            Kind::PriorityLevelConfiguration => {
                Object::PriorityLevelConfiguration(priority_level(fields, version))
            }
        })?;
        let sound = faults.errors().count() == before;
        sound.then_some(Manifest {
            object,
            version,
            node,
            path,
        })
    };
    found.into_iter().filter_map(read).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    FlowSchema,
    PriorityLevelConfiguration,
}

/// Finds the objects in lists. Items of the API's own lists do not say what they are, so they take it from the list.
fn unwrap<'n>(
    node: &'n Node,
    path: &str,
    inherited: Option<(Kind, Version)>,
    found: &mut Vec<(&'n Node, String, Kind, Version)>,
    faults: &mut Faults,
) {
    let api_version = node.field("apiVersion").and_then(Node::as_str);
    let kind = node.field("kind").and_then(Node::as_str);
    let given = (api_version.and_then(Version::of), kind);
    let (items, inherited) = match (given, inherited) {
        ((Some(version), Some("FlowSchema")), _) => {
            return found.push((node, path.to_owned(), Kind::FlowSchema, version));
        }
        ((Some(version), Some("PriorityLevelConfiguration")), _) => {
            return found.push((
                node,
                path.to_owned(),
                Kind::PriorityLevelConfiguration,
                version,
            ));
        }
        ((None, None), Some((kind, version))) if api_version.is_none() => {
            return found.push((node, path.to_owned(), kind, version));
        }
        ((Some(version), Some("FlowSchemaList")), None) => {
            (node.field("items"), Some((Kind::FlowSchema, version)))
        }
        ((Some(version), Some("PriorityLevelConfigurationList")), None) => (
            node.field("items"),
            Some((Kind::PriorityLevelConfiguration, version)),
        ),
        ((None, Some("List")), None) if api_version == Some("v1") => (node.field("items"), None),
        _ => return unexpected(node, path, faults),
    };
    match items.map(|items| (items, &items.content)) {
        Some((_, Content::Sequence(items))) => {
            for (n, item) in items.iter().enumerate() {
                unwrap(
                    item,
                    &join(path, &format!("items[{n}]")),
                    inherited,
                    found,
                    faults,
                );
            }
        }
        Some((items, _)) if !items.is_null() => {
            let message = format!("expected a list, got {}", items.describe());
            faults.error(&items.place, &join(path, "items"), message);
        }
        Some(_) | None => {}
    }
}

/// Reports that a document is not one of those that are read here.
fn unexpected(node: &Node, path: &str, faults: &mut Faults) {
    let field = |name| {
        node.field(name)
            .map_or_else(|| "nothing".to_owned(), Node::describe)
    };
    let message = match node.content {
        Content::Mapping(_) => format!(
            "expected a FlowSchema or PriorityLevelConfiguration of {GROUP}/v1 (or v1beta1 to v1beta3) or a list of them, \
             got for kind {} and for apiVersion {}",
            field("kind"),
            field("apiVersion"),
        ),
        Content::Scalar(_) | Content::Sequence(_) => {
            format!("expected a mapping, got {}", node.describe())
        }
    };
    faults.error(node.locate("kind"), path, message);
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

fn int32(fields: &mut Fields<'_>, name: &'static str) -> Option<i32> {
    fields.integer(name, i32::MIN..=i32::MAX)
}

fn string(fields: &mut Fields<'_>, name: &'static str) -> String {
    fields.string(name).unwrap_or_default()
}

fn strings(fields: &mut Fields<'_>, name: &'static str) -> Vec<String> {
    fields.strings(name).unwrap_or_default()
}

/// The fields of every object; `metadata.namespace` counts for nothing, as kube-apiserver clears it here.
fn metadata(fields: &mut Fields<'_>) -> ObjectMeta {
    fields.known(&["apiVersion", "kind"]);
    let read = |fields: &mut Fields<'_>| {
        fields.known(&[
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "finalizers",
            "generateName",
            "generation",
            "managedFields",
            "namespace",
            "ownerReferences",
            "selfLink",
        ]);
        ObjectMeta {
            name: string(fields, "name"),
            uid: string(fields, "uid"),
            resource_version: string(fields, "resourceVersion"),
            labels: fields
                .map("labels", |value| value.string())
                .unwrap_or_default(),
            annotations: fields
                .map("annotations", |value| value.string())
                .unwrap_or_default(),
        }
    };
    fields.object("metadata", read).unwrap_or_default()
}

fn condition_types(fields: &mut Fields<'_>) -> Vec<String> {
    let condition = |fields: &mut Fields<'_>| {
        fields.known(&["lastTransitionTime", "message", "reason", "status"]);
        string(fields, "type")
    };
    let conditions = |fields: &mut Fields<'_>| fields.objects("conditions", condition);
    fields
        .object("status", conditions)
        .flatten()
        .unwrap_or_default()
}

fn flow_schema(fields: &mut Fields<'_>) -> FlowSchema {
    FlowSchema {
        metadata: metadata(fields),
        spec: fields.object("spec", flow_schema_spec).unwrap_or_default(),
        condition_types: condition_types(fields),
    }
}

fn flow_schema_spec(fields: &mut Fields<'_>) -> FlowSchemaSpec {
    FlowSchemaSpec {
        priority_level_configuration: fields
            .object("priorityLevelConfiguration", |fields| {
                string(fields, "name")
            })
            .unwrap_or_default(),
        matching_precedence: defaults::matching_precedence(int32(fields, "matchingPrecedence")),
        distinguisher_method: fields.object("distinguisherMethod", |fields| {
            string(fields, "type").into()
        }),
        rules: fields.objects("rules", rule).unwrap_or_default(),
    }
}

fn rule(fields: &mut Fields<'_>) -> PolicyRulesWithSubjects {
    PolicyRulesWithSubjects {
        subjects: fields.objects("subjects", subject).unwrap_or_default(),
        resource_rules: fields
            .objects("resourceRules", resource_rule)
            .unwrap_or_default(),
        non_resource_rules: fields
            .objects("nonResourceRules", non_resource_rule)
            .unwrap_or_default(),
    }
}

fn subject(fields: &mut Fields<'_>) -> Subject {
    Subject {
        kind: string(fields, "kind").into(),
        user: fields.object("user", |fields| string(fields, "name")),
        group: fields.object("group", |fields| string(fields, "name")),
        service_account: fields.object("serviceAccount", |fields| ServiceAccountSubject {
            namespace: string(fields, "namespace"),
            name: string(fields, "name"),
        }),
    }
}

fn resource_rule(fields: &mut Fields<'_>) -> ResourcePolicyRule {
    ResourcePolicyRule {
        verbs: strings(fields, "verbs"),
        api_groups: strings(fields, "apiGroups"),
        resources: strings(fields, "resources"),
        cluster_scope: fields.boolean("clusterScope").unwrap_or_default(),
        namespaces: strings(fields, "namespaces"),
    }
}

fn non_resource_rule(fields: &mut Fields<'_>) -> NonResourcePolicyRule {
    NonResourcePolicyRule {
        verbs: strings(fields, "verbs"),
        non_resource_urls: strings(fields, "nonResourceURLs"),
    }
}

fn priority_level(fields: &mut Fields<'_>, version: Version) -> PriorityLevelConfiguration {
    let mut metadata = metadata(fields);
    let mut preserve_zero = false;
    if version == Version::V1Beta3 {
        let before = metadata.annotations.len();
        metadata
            .annotations
            .retain(|(key, _)| key != PRESERVE_ZERO_SHARES);
        preserve_zero = metadata.annotations.len() < before;
    }
    let spec = |fields: &mut Fields<'_>| PriorityLevelConfigurationSpec {
        enablement: string(fields, "type").into(),
        limited: fields.object("limited", |fields| limited(fields, version, preserve_zero)),
        exempt: fields.object("exempt", |fields| ExemptPriorityLevelConfiguration {
            nominal_concurrency_shares: int32(fields, "nominalConcurrencyShares")
                .unwrap_or_default(),
            lendable_percent: int32(fields, "lendablePercent").unwrap_or_default(),
        }),
    };
    let spec = fields.object("spec", spec).unwrap_or_default();
    PriorityLevelConfiguration {
        metadata,
        spec,
        condition_types: condition_types(fields),
    }
}

fn limited(
    fields: &mut Fields<'_>,
    version: Version,
    preserve_zero: bool,
) -> LimitedPriorityLevelConfiguration {
    let shares = int32(fields, version.shares_field());
    let limit_response = |fields: &mut Fields<'_>| LimitResponse {
        kind: string(fields, "type").into(),
        queuing: fields.object("queuing", |fields| QueuingConfiguration {
            queues: defaults::queues(int32(fields, "queues")),
            hand_size: defaults::hand_size(int32(fields, "handSize")),
            queue_length_limit: defaults::queue_length_limit(int32(fields, "queueLengthLimit")),
        }),
    };
    LimitedPriorityLevelConfiguration {
        nominal_concurrency_shares: defaults::shares(shares, version, preserve_zero),
        limit_response: fields
            .object("limitResponse", limit_response)
            .unwrap_or_default(),
        lendable_percent: int32(fields, "lendablePercent").unwrap_or_default(),
        borrowing_limit_percent: int32(fields, "borrowingLimitPercent"),
    }
}
