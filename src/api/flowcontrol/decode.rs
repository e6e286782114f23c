//! Reads the fields of either kind, in any version.

use super::ExemptPriorityLevelConfiguration;
use super::FlowSchema;
use super::FlowSchemaSpec;
use super::LimitResponse;
use super::LimitedPriorityLevelConfiguration;
use super::NonResourcePolicyRule;
use super::ObjectMeta;
use super::OwnerReference;
use super::PolicyRulesWithSubjects;
use super::PriorityLevelConfiguration;
use super::PriorityLevelConfigurationSpec;
use super::QueuingConfiguration;
use super::ResourcePolicyRule;
use super::ServiceAccountSubject;
use super::Subject;
use super::defaults;
use super::manifest::Version;
use crate::api::time::is_time;
use crate::document::Fields;

/// With it, a zero in `nominalConcurrencyShares` of a v1beta3 object is meant (Kubernetes 1.29,
/// `PriorityLevelPreserveZeroConcurrencySharesKey`).
pub(super) const PRESERVE_ZERO_SHARES: &str =
    "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

fn int32(fields: &mut Fields<'_>, name: &'static str) -> Option<i32> {
    fields.integer(name, i32::MIN..=i32::MAX)
}

fn string(fields: &mut Fields<'_>, name: &'static str) -> String {
    fields.string(name).unwrap_or_default()
}

fn strings(fields: &mut Fields<'_>, name: &'static str) -> Vec<String> {
    fields.strings(name).unwrap_or_default()
}

/// Fields that are of no interest but for their type, of which a wrong one is a fault.
fn texts(fields: &mut Fields<'_>, names: &[&'static str]) {
    for name in names {
        fields.string(name);
    }
}

/// Likewise of a `metav1.Time`.
fn time(fields: &mut Fields<'_>, name: &'static str) {
    fields.parsed(name, |text| {
        let expected = "expected a time as 2006-01-02T15:04:05Z";
        is_time(text.as_bytes()).then_some(()).ok_or(expected)
    });
}

/// The fields of every object; `metadata.namespace` counts for nothing, as kube-apiserver clears it
/// here.
fn metadata(fields: &mut Fields<'_>) -> ObjectMeta {
    fields.known(&["apiVersion", "kind"]);
    let read = |fields: &mut Fields<'_>| {
        texts(fields, &["namespace", "selfLink"]);
        time(fields, "creationTimestamp");
        time(fields, "deletionTimestamp");
        for name in ["deletionGracePeriodSeconds", "generation"] {
            fields.integer(name, i64::MIN..=i64::MAX);
        }
        fields.objects("managedFields", |fields| {
            let strings = [
                "apiVersion",
                "fieldsType",
                "manager",
                "operation",
                "subresource",
            ];
            texts(fields, &strings);
            time(fields, "time");
            fields.known(&["fieldsV1"]);
        });
        ObjectMeta {
            name: string(fields, "name"),
            generate_name: string(fields, "generateName"),
            uid: string(fields, "uid"),
            resource_version: string(fields, "resourceVersion"),
            labels: fields
                .map("labels", |value| value.string())
                .unwrap_or_default(),
            annotations: fields
                .map("annotations", |value| value.string())
                .unwrap_or_default(),
            owner_references: fields
                .objects("ownerReferences", owner_reference)
                .unwrap_or_default(),
            finalizers: strings(fields, "finalizers"),
        }
    };
    fields.object("metadata", read).unwrap_or_default()
}

fn owner_reference(fields: &mut Fields<'_>) -> OwnerReference {
    fields.boolean("blockOwnerDeletion");
    OwnerReference {
        api_version: string(fields, "apiVersion"),
        kind: string(fields, "kind"),
        name: string(fields, "name"),
        uid: string(fields, "uid"),
        controller: fields.boolean("controller").unwrap_or_default(),
    }
}

fn condition_types(fields: &mut Fields<'_>) -> Vec<String> {
    let condition = |fields: &mut Fields<'_>| {
        texts(fields, &["message", "reason", "status"]);
        time(fields, "lastTransitionTime");
        string(fields, "type")
    };
    let conditions = |fields: &mut Fields<'_>| fields.objects("conditions", condition);
    fields
        .object("status", conditions)
        .flatten()
        .unwrap_or_default()
}

pub(super) fn flow_schema(fields: &mut Fields<'_>) -> FlowSchema {
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

pub(super) fn rule(fields: &mut Fields<'_>) -> PolicyRulesWithSubjects {
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

pub(super) fn priority_level(
    fields: &mut Fields<'_>,
    version: Version,
) -> PriorityLevelConfiguration {
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
