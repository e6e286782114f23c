//! Decoders for the fields of both kinds, in every version.

use super::defaults;
use super::types::{
    ExemptPriorityLevelConfiguration, FlowSchema, FlowSchemaSpec, LimitResponse,
    LimitedPriorityLevelConfiguration, NonResourcePolicyRule, ObjectMeta, OwnerReference,
    PolicyRulesWithSubjects, PriorityLevelConfiguration, PriorityLevelConfigurationSpec,
    QueuingConfiguration, ResourcePolicyRule, ServiceAccountSubject, Subject, Version,
};
use crate::api::time::is_time;
use crate::document::MappingDecoder;

/// The annotation that marks a zero in `nominalConcurrencyShares` of a v1beta3 object as intended
/// (Kubernetes 1.29, `PriorityLevelPreserveZeroConcurrencySharesKey`).
pub(super) const PRESERVE_ZERO_SHARES: &str =
    "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

fn decode_int32(fields: &mut MappingDecoder<'_>, name: &'static str) -> Option<i32> {
    fields.integer(name, i32::MIN..=i32::MAX)
}

fn decode_string(fields: &mut MappingDecoder<'_>, name: &'static str) -> String {
    fields.string(name).unwrap_or_default()
}

fn decode_strings(fields: &mut MappingDecoder<'_>, name: &'static str) -> Vec<String> {
    fields.strings(name).unwrap_or_default()
}

/// Checks the types of string fields whose values are not used; a wrong type is an error.
fn check_strings(fields: &mut MappingDecoder<'_>, names: &[&'static str]) {
    for name in names {
        fields.string(name);
    }
}

/// Checks the type of a `metav1.Time` whose value is not used.
fn check_time(fields: &mut MappingDecoder<'_>, name: &'static str) {
    fields.parse(name, |text| {
        let expected = "expected a time as 2006-01-02T15:04:05Z";
        is_time(text.as_bytes()).then_some(()).ok_or(expected)
    });
}

/// Decodes the metadata of any object. `metadata.namespace` is ignored, because kube-apiserver
/// clears it here.
fn decode_metadata(fields: &mut MappingDecoder<'_>) -> ObjectMeta {
    fields.mark_known(&["apiVersion", "kind"]);
    let read = |fields: &mut MappingDecoder<'_>| {
        check_strings(fields, &["namespace", "selfLink"]);
        check_time(fields, "creationTimestamp");
        check_time(fields, "deletionTimestamp");
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
            check_strings(fields, &strings);
            check_time(fields, "time");
            fields.mark_known(&["fieldsV1"]);
        });
        ObjectMeta {
            name: decode_string(fields, "name"),
            generate_name: decode_string(fields, "generateName"),
            uid: decode_string(fields, "uid"),
            resource_version: decode_string(fields, "resourceVersion"),
            labels: fields
                .map("labels", |value| value.string())
                .unwrap_or_default(),
            annotations: fields
                .map("annotations", |value| value.string())
                .unwrap_or_default(),
            owner_references: fields
                .objects("ownerReferences", decode_owner_reference)
                .unwrap_or_default(),
            finalizers: decode_strings(fields, "finalizers"),
        }
    };
    fields.object("metadata", read).unwrap_or_default()
}

fn decode_owner_reference(fields: &mut MappingDecoder<'_>) -> OwnerReference {
    fields.boolean("blockOwnerDeletion");
    OwnerReference {
        api_version: decode_string(fields, "apiVersion"),
        kind: decode_string(fields, "kind"),
        name: decode_string(fields, "name"),
        uid: decode_string(fields, "uid"),
        controller: fields.boolean("controller").unwrap_or_default(),
    }
}

fn decode_condition_types(fields: &mut MappingDecoder<'_>) -> Vec<String> {
    let condition = |fields: &mut MappingDecoder<'_>| {
        check_strings(fields, &["message", "reason", "status"]);
        check_time(fields, "lastTransitionTime");
        decode_string(fields, "type")
    };
    let conditions = |fields: &mut MappingDecoder<'_>| fields.objects("conditions", condition);
    fields
        .object("status", conditions)
        .flatten()
        .unwrap_or_default()
}

pub(super) fn decode_flow_schema(fields: &mut MappingDecoder<'_>) -> FlowSchema {
    FlowSchema {
        metadata: decode_metadata(fields),
        spec: fields
            .object("spec", decode_flow_schema_spec)
            .unwrap_or_default(),
        condition_types: decode_condition_types(fields),
    }
}

fn decode_flow_schema_spec(fields: &mut MappingDecoder<'_>) -> FlowSchemaSpec {
    FlowSchemaSpec {
        priority_level_configuration: fields
            .object("priorityLevelConfiguration", |fields| {
                decode_string(fields, "name")
            })
            .unwrap_or_default(),
        matching_precedence: defaults::matching_precedence(decode_int32(
            fields,
            "matchingPrecedence",
        )),
        distinguisher_method: fields.object("distinguisherMethod", |fields| {
            decode_string(fields, "type").into()
        }),
        rules: fields.objects("rules", decode_rule).unwrap_or_default(),
    }
}

pub(super) fn decode_rule(fields: &mut MappingDecoder<'_>) -> PolicyRulesWithSubjects {
    PolicyRulesWithSubjects {
        subjects: fields
            .objects("subjects", decode_subject)
            .unwrap_or_default(),
        resource_rules: fields
            .objects("resourceRules", decode_resource_rule)
            .unwrap_or_default(),
        non_resource_rules: fields
            .objects("nonResourceRules", decode_non_resource_rule)
            .unwrap_or_default(),
    }
}

fn decode_subject(fields: &mut MappingDecoder<'_>) -> Subject {
    Subject {
        kind: decode_string(fields, "kind").into(),
        user: fields.object("user", |fields| decode_string(fields, "name")),
        group: fields.object("group", |fields| decode_string(fields, "name")),
        service_account: fields.object("serviceAccount", |fields| ServiceAccountSubject {
            namespace: decode_string(fields, "namespace"),
            name: decode_string(fields, "name"),
        }),
    }
}

fn decode_resource_rule(fields: &mut MappingDecoder<'_>) -> ResourcePolicyRule {
    ResourcePolicyRule {
        verbs: decode_strings(fields, "verbs"),
        api_groups: decode_strings(fields, "apiGroups"),
        resources: decode_strings(fields, "resources"),
        cluster_scope: fields.boolean("clusterScope").unwrap_or_default(),
        namespaces: decode_strings(fields, "namespaces"),
    }
}

fn decode_non_resource_rule(fields: &mut MappingDecoder<'_>) -> NonResourcePolicyRule {
    NonResourcePolicyRule {
        verbs: decode_strings(fields, "verbs"),
        non_resource_urls: decode_strings(fields, "nonResourceURLs"),
    }
}

pub(super) fn decode_priority_level(
    fields: &mut MappingDecoder<'_>,
    version: Version,
) -> PriorityLevelConfiguration {
    let mut metadata = decode_metadata(fields);
    let mut preserve_zero = false;
    if version == Version::V1Beta3 {
        let before = metadata.annotations.len();
        metadata
            .annotations
            .retain(|(key, _)| key != PRESERVE_ZERO_SHARES);
        preserve_zero = metadata.annotations.len() < before;
    }
    let spec = |fields: &mut MappingDecoder<'_>| PriorityLevelConfigurationSpec {
        enablement: decode_string(fields, "type").into(),
        limited: fields.object("limited", |fields| {
            decode_limited(fields, version, preserve_zero)
        }),
        exempt: fields.object("exempt", |fields| ExemptPriorityLevelConfiguration {
            nominal_concurrency_shares: decode_int32(fields, "nominalConcurrencyShares")
                .unwrap_or_default(),
            lendable_percent: decode_int32(fields, "lendablePercent").unwrap_or_default(),
        }),
    };
    let spec = fields.object("spec", spec).unwrap_or_default();
    PriorityLevelConfiguration {
        metadata,
        spec,
        condition_types: decode_condition_types(fields),
    }
}

fn decode_limited(
    fields: &mut MappingDecoder<'_>,
    version: Version,
    preserve_zero: bool,
) -> LimitedPriorityLevelConfiguration {
    let shares = decode_int32(fields, version.shares_field());
    let limit_response = |fields: &mut MappingDecoder<'_>| LimitResponse {
        kind: decode_string(fields, "type").into(),
        queuing: fields.object("queuing", |fields| QueuingConfiguration {
            queues: defaults::queues(decode_int32(fields, "queues")),
            hand_size: defaults::hand_size(decode_int32(fields, "handSize")),
            queue_length_limit: defaults::queue_length_limit(decode_int32(
                fields,
                "queueLengthLimit",
            )),
        }),
    };
    LimitedPriorityLevelConfiguration {
        nominal_concurrency_shares: defaults::shares(shares, version, preserve_zero),
        limit_response: fields
            .object("limitResponse", limit_response)
            .unwrap_or_default(),
        lendable_percent: decode_int32(fields, "lendablePercent").unwrap_or_default(),
        borrowing_limit_percent: decode_int32(fields, "borrowingLimitPercent"),
    }
}
