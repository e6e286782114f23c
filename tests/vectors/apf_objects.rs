//! FlowSchema and PriorityLevelConfiguration: decoding, defaults, validation.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a case without the expected form has to fail"
)]

use std::collections::HashSet;

use serde_json::{Value, json};
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::{
    FieldError, FlowSchemaSpec, LimitedPriorityLevelConfiguration, Manifest, Object,
    PolicyRulesWithSubjects, PriorityLevelConfigurationSpec, QueuingConfiguration, Subject,
    Version,
};
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Strictness};

use crate::support;

#[test]
fn objects_are_accepted_and_rejected_as_by_kubernetes() {
    let mut failed = Vec::new();
    for case in support::cases("apf_objects") {
        // Once as kubectl sends it, once as a file may have it.
        for text in [
            case["input"]["manifest"].to_string(),
            to_yaml(&case["input"]["manifest"]),
        ] {
            if let Err(difference) = check_case(&case, &text) {
                failed.push(format!("{}: {difference}\n{text}", case["name"]));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} differ:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

fn check_case(case: &Value, text: &str) -> Result<(), String> {
    let expected = &case["expected"];
    let mut faults = Diagnostics::default();
    let documents = document::parse_all("case", text, &mut faults);
    let decoded = flowcontrol::decode(&documents[0], Strictness::Warn, &mut faults);
    let decode_error = expected.get("decode_error").is_some();
    expect_equal(
        "a decode error",
        &json!(faults.has_errors()),
        &json!(decode_error),
    )?;
    let Some(manifest) = decoded.first() else {
        return expect_equal("a decode error", &json!(true), &json!(decode_error));
    };

    let update_status = case["input"]["operation"] == "update_status";
    let errors = if update_status {
        manifest.validate_status()
    } else {
        manifest.validate()
    };
    expect_equal("accepted", &json!(errors.is_empty()), &expected["accepted"])?;
    let causes: Vec<Value> = errors
        .iter()
        .map(|e| {
            let message = comparable_message(&e.field, &e.body());
            json!([e.error_type.reason(), e.field, message])
        })
        .collect();
    let list = expected["errors"].as_array().cloned().unwrap_or_default();
    let field = |e: &Value| e["field"].as_str().unwrap_or_default().to_owned();
    let wanted: Vec<Value> = list
        .iter()
        .map(|e| {
            let message = comparable_message(&field(e), e["message"].as_str().unwrap());
            json!([e["type"], e["field"], message])
        })
        .collect();
    expect_equal("errors", &json!(causes), &json!(wanted))?;
    if let (Some(message), false) = (expected["status_message"].as_str(), has_whole_spec(&list)) {
        expect_equal(
            "message",
            &json!(status_message(manifest, &errors)),
            &json!(message),
        )?;
    }

    let warnings: Vec<String> = faults
        .warnings()
        .map(|w| format!("unknown field \"{}\"", w.field))
        .collect();
    let strict = expected
        .get("strict_decoding_errors")
        .cloned()
        .unwrap_or_else(|| json!([]));
    expect_equal("warnings", &json!(warnings), &strict)?;

    match expected.get("object") {
        Some(object) => expect_equal("object", &to_json(manifest), &without_server_fields(object)),
        None => Ok(()),
    }
}

fn has_whole_spec(errors: &[Value]) -> bool {
    errors.iter().any(|e| e["field"] == "spec")
}

/// The message of a 422, which has each error only once.
fn status_message(manifest: &Manifest<'_>, errors: &[FieldError]) -> String {
    let mut lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let mut seen = HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    let (kind, name) = (manifest.object.kind(), &manifest.object.metadata().name);
    let list = lines.join(", ");
    let list = if lines.len() > 1 {
        format!("[{list}]")
    } else {
        list
    };
    format!("{kind}.{} {name:?} is invalid: {list}", flowcontrol::GROUP)
}

fn expect_equal(what: &str, got: &Value, expected: &Value) -> Result<(), String> {
    if got == expected {
        Ok(())
    } else {
        Err(format!("{what}:\n   got {got}\n  want {expected}"))
    }
}

/// Upstream prints whole specs in Go's internal form, which weir does not imitate.
fn comparable_message(field: &str, body: &str) -> String {
    if field == "spec" {
        body.rsplit(": ").next().unwrap().to_owned()
    } else {
        body.to_owned()
    }
}

/// Generation and the empty status are set by the server. A list that is null stays null.
fn without_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    assert_eq!(object["status"], json!({}));
    object.as_object_mut().unwrap().remove("status");
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("generation");
    without_nulls(object)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => value,
    }
}

/// Block style throughout.
fn to_yaml(value: &Value) -> String {
    fn write(value: &Value, indent: usize, to: &mut String) {
        let pad = " ".repeat(indent);
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (key, value) in fields {
                    to.push_str(&format!("\n{pad}{}:", json!(key)));
                    write(value, indent + 2, to);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    to.push_str(&format!("\n{pad}-"));
                    write(item, indent + 2, to);
                }
            }
            Value::String(text) if text.starts_with("By") => to.push_str(&format!(" {text}")),
            Value::Array(_)
            | Value::Bool(_)
            | Value::Null
            | Value::Number(_)
            | Value::Object(_)
            | Value::String(_) => to.push_str(&format!(" {value}")),
        }
    }
    let mut text = "---".to_owned();
    write(value, 0, &mut text);
    text + "\n"
}

/// As the API server would print it, in the version of the input.
fn to_json(manifest: &Manifest<'_>) -> Value {
    let metadata = manifest.object.metadata();
    let pairs = |pairs: &[(String, String)]| -> Value {
        pairs
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect()
    };
    let mut meta = json!({
        "name": metadata.name,
        "labels": pairs(&metadata.labels),
        "annotations": pairs(&metadata.annotations),
    });
    let spec = match &manifest.object {
        Object::FlowSchema(schema) => flow_schema_json(&schema.spec),
        Object::PriorityLevelConfiguration(level) => {
            let zero = level
                .spec
                .limited
                .as_ref()
                .map(|l| l.nominal_concurrency_shares)
                == Some(0);
            if zero && manifest.version == Version::V1Beta3 {
                let key = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
                meta["annotations"][key] = json!("");
            }
            priority_level_json(&level.spec)
        }
    };
    let version = match manifest.version {
        Version::V1 => "v1",
        Version::V1Beta1 => "v1beta1",
        Version::V1Beta2 => "v1beta2",
        Version::V1Beta3 => "v1beta3",
    };
    json!({
        "apiVersion": format!("{}/{version}", flowcontrol::GROUP),
        "kind": manifest.object.kind(),
        "metadata": omit_empty(meta),
        "spec": spec,
    })
}

/// Without null and empty values, as with `omitempty`.
fn omit_empty(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let empty = |v: &Value| v.is_null() || *v == json!([]) || *v == json!({}) || *v == json!(false);
    fields
        .into_iter()
        .filter(|(_, value)| !empty(value))
        .collect()
}

fn flow_schema_json(spec: &FlowSchemaSpec) -> Value {
    omit_empty(json!({
        "priorityLevelConfiguration": { "name": spec.priority_level_configuration },
        "matchingPrecedence": spec.matching_precedence,
        "distinguisherMethod": spec.distinguisher_method.as_ref().map(|d| json!({ "type": d.as_str() })),
        "rules": spec.rules.iter().map(rule_json).collect::<Vec<_>>(),
    }))
}

fn rule_json(rule: &PolicyRulesWithSubjects) -> Value {
    let resource_rules: Vec<Value> = rule
        .resource_rules
        .iter()
        .map(|rule| {
            omit_empty(json!({
                "verbs": rule.verbs,
                "apiGroups": rule.api_groups,
                "resources": rule.resources,
                "clusterScope": rule.cluster_scope,
                "namespaces": rule.namespaces,
            }))
        })
        .collect();
    let non_resource_rules: Vec<Value> = rule
        .non_resource_rules
        .iter()
        .map(|rule| json!({ "verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls }))
        .collect();
    omit_empty(json!({
        "subjects": rule.subjects.iter().map(subject_json).collect::<Vec<_>>(),
        "resourceRules": resource_rules,
        "nonResourceRules": non_resource_rules,
    }))
}

fn subject_json(subject: &Subject) -> Value {
    let named = |name: &String| json!({ "name": name });
    omit_empty(json!({
        "kind": subject.kind.as_str(),
        "user": subject.user.as_ref().map(named),
        "group": subject.group.as_ref().map(named),
        "serviceAccount": subject
            .service_account
            .as_ref()
            .map(|account| json!({ "namespace": account.namespace, "name": account.name })),
    }))
}

fn priority_level_json(spec: &PriorityLevelConfigurationSpec) -> Value {
    omit_empty(json!({
        "type": spec.enablement.as_str(),
        "limited": spec.limited.as_ref().map(limited_json),
        "exempt": spec.exempt.map(|exempt| json!({
            "nominalConcurrencyShares": exempt.nominal_concurrency_shares,
            "lendablePercent": exempt.lendable_percent,
        })),
    }))
}

fn limited_json(limited: &LimitedPriorityLevelConfiguration) -> Value {
    let queuing = |q: QueuingConfiguration| {
        json!({
            "queues": q.queues,
            "handSize": q.hand_size,
            "queueLengthLimit": q.queue_length_limit,
        })
    };
    omit_empty(json!({
        "nominalConcurrencyShares": limited.nominal_concurrency_shares,
        "limitResponse": omit_empty(json!({
            "type": limited.limit_response.kind.as_str(),
            "queuing": limited.limit_response.queuing.map(queuing),
        })),
        "lendablePercent": limited.lendable_percent,
        "borrowingLimitPercent": limited.borrowing_limit_percent,
    }))
}
