//! Writes objects as manifests of v1: with every default filled in, and without their status.

use serde_json::{Map, Value, json};

use super::types::{
    FlowSchemaSpec, GROUP, Object, ObjectMeta, PolicyRulesWithSubjects,
    PriorityLevelConfigurationSpec, Subject,
};

/// The object as a manifest of v1. [`decode`](super::decode) reads the same object from it, but for
/// the status and the owners.
#[must_use]
pub fn to_manifest(object: &Object) -> Value {
    let spec = match object {
        Object::FlowSchema(schema) => flow_schema_spec(&schema.spec),
        Object::PriorityLevelConfiguration(level) => priority_level_spec(&level.spec),
    };
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": object.kind(),
        "metadata": metadata(object.metadata()),
        "spec": spec,
    })
}

fn metadata(metadata: &ObjectMeta) -> Value {
    let mut fields = Map::new();
    for (key, text) in [
        ("name", &metadata.name),
        ("uid", &metadata.uid),
        ("resourceVersion", &metadata.resource_version),
    ] {
        if !text.is_empty() {
            fields.insert(key.to_owned(), text.as_str().into());
        }
    }
    for (key, pairs) in [
        ("labels", &metadata.labels),
        ("annotations", &metadata.annotations),
    ] {
        if !pairs.is_empty() {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| (name.clone(), value.as_str().into()));
            fields.insert(key.to_owned(), Value::Object(pairs.collect()));
        }
    }
    Value::Object(fields)
}

fn flow_schema_spec(spec: &FlowSchemaSpec) -> Value {
    let mut fields = json!({
        "priorityLevelConfiguration": {"name": spec.priority_level_configuration},
        "matchingPrecedence": spec.matching_precedence,
    });
    if let Some(method) = &spec.distinguisher_method {
        insert(
            &mut fields,
            "distinguisherMethod",
            json!({"type": method.as_str()}),
        );
    }
    if !spec.rules.is_empty() {
        insert(
            &mut fields,
            "rules",
            spec.rules.iter().map(rule).collect::<Value>(),
        );
    }
    fields
}

fn rule(rule: &PolicyRulesWithSubjects) -> Value {
    let mut fields = json!({"subjects": rule.subjects.iter().map(subject).collect::<Value>()});
    if !rule.resource_rules.is_empty() {
        let rules = rule.resource_rules.iter().map(|rule| {
            let mut fields = json!({
                "verbs": rule.verbs,
                "apiGroups": rule.api_groups,
                "resources": rule.resources,
            });
            if rule.cluster_scope {
                insert(&mut fields, "clusterScope", true.into());
            }
            if !rule.namespaces.is_empty() {
                insert(&mut fields, "namespaces", json!(rule.namespaces));
            }
            fields
        });
        insert(&mut fields, "resourceRules", rules.collect::<Value>());
    }
    if !rule.non_resource_rules.is_empty() {
        let rules = rule.non_resource_rules.iter();
        let rules = rules
            .map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        insert(&mut fields, "nonResourceRules", rules.collect::<Value>());
    }
    fields
}

fn subject(subject: &Subject) -> Value {
    let mut fields = json!({"kind": subject.kind.as_str()});
    for (key, name) in [("user", &subject.user), ("group", &subject.group)] {
        if let Some(name) = name {
            insert(&mut fields, key, json!({"name": name}));
        }
    }
    if let Some(account) = &subject.service_account {
        let account = json!({"namespace": account.namespace, "name": account.name});
        insert(&mut fields, "serviceAccount", account);
    }
    fields
}

fn priority_level_spec(spec: &PriorityLevelConfigurationSpec) -> Value {
    let mut fields = json!({"type": spec.enablement.as_str()});
    if let Some(limited) = &spec.limited {
        let response = &limited.limit_response;
        let mut limit_response = json!({"type": response.kind.as_str()});
        if let Some(queuing) = response.queuing {
            let queuing = json!({
                "queues": queuing.queues,
                "handSize": queuing.hand_size,
                "queueLengthLimit": queuing.queue_length_limit,
            });
            insert(&mut limit_response, "queuing", queuing);
        }
        let mut value = json!({
            "nominalConcurrencyShares": limited.nominal_concurrency_shares,
            "limitResponse": limit_response,
            "lendablePercent": limited.lendable_percent,
        });
        if let Some(limit) = limited.borrowing_limit_percent {
            insert(&mut value, "borrowingLimitPercent", limit.into());
        }
        insert(&mut fields, "limited", value);
    }
    if let Some(exempt) = spec.exempt {
        let exempt = json!({
            "nominalConcurrencyShares": exempt.nominal_concurrency_shares,
            "lendablePercent": exempt.lendable_percent,
        });
        insert(&mut fields, "exempt", exempt);
    }
    fields
}

fn insert(fields: &mut Value, key: &str, value: Value) {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert(key.to_owned(), value);
    }
}
