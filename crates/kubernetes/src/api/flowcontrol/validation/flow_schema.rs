//! Validation of a FlowSchema.

use serde_json::json;

use crate::api::flowcontrol::field_error::FieldErrors;
use crate::api::flowcontrol::types::{
    EXEMPT, FlowDistinguisherMethodType, FlowSchema, FlowSchemaSpec, NonResourcePolicyRule,
    PolicyRulesWithSubjects, ResourcePolicyRule, ServiceAccountSubject, Subject, SubjectKind,
};
use crate::api::flowcontrol::{mandatory, names};
use crate::encoding::go_text;

/// `FlowSchemaMaxMatchingPrecedence`
const MAX_MATCHING_PRECEDENCE: i32 = 10_000;

/// The verbs that a rule may name, for resources and non-resources. Only `*` matches any other HTTP
/// method.
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];

/// The wildcard, which every list except the subjects accepts.
const WILDCARD: &str = "*";

pub(super) fn validate(schema: &FlowSchema, errors: &mut FieldErrors) {
    let name = schema.metadata.name.as_str();
    validate_spec(name, &schema.spec, errors);
    if mandatory::flow_schema(name).is_some_and(|fixed| fixed.spec != schema.spec) {
        let detail = format!("spec of '{name}' must equal the fixed value");
        errors.invalid_whole("spec".to_owned(), detail);
    }
}

fn validate_spec(name: &str, spec: &FlowSchemaSpec, errors: &mut FieldErrors) {
    let precedence = spec.matching_precedence;
    let mut misplaced = |detail: &str| {
        errors.invalid(
            "spec.matchingPrecedence".to_owned(),
            precedence.to_string(),
            detail,
        );
    };
    if precedence <= 0 {
        misplaced("must be a positive value");
    }
    if precedence > MAX_MATCHING_PRECEDENCE {
        misplaced(&format!(
            "must not be greater than {MAX_MATCHING_PRECEDENCE}"
        ));
    }
    if precedence == 1 && name != EXEMPT {
        misplaced("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    if let Some(FlowDistinguisherMethodType::Other(text)) = &spec.distinguisher_method {
        let field = "spec.distinguisherMethod.type".to_owned();
        let value = go_text::json(&json!({ "Type": text }));
        errors.not_supported(field, value, FlowDistinguisherMethodType::ALLOWED);
    }
    let level = &spec.priority_level_configuration;
    let field = "spec.priorityLevelConfiguration.name";
    if level.is_empty() {
        errors.required(field.to_owned(), "must reference a priority level");
    } else {
        errors.invalid_string(field, level, names::check_dns_subdomain(level));
    }
    for (n, rule) in spec.rules.iter().enumerate() {
        validate_rule(&format!("spec.rules[{n}]"), rule, errors);
    }
}

pub(crate) fn validate_rule(path: &str, rule: &PolicyRulesWithSubjects, errors: &mut FieldErrors) {
    if rule.subjects.is_empty() {
        let detail = "subjects must contain at least one value";
        errors.required(format!("{path}.subjects"), detail);
    }
    for (n, subject) in rule.subjects.iter().enumerate() {
        validate_subject(&format!("{path}.subjects[{n}]"), subject, errors);
    }
    if rule.resource_rules.is_empty() && rule.non_resource_rules.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(path.to_owned(), detail);
    }
    for (n, rule) in rule.resource_rules.iter().enumerate() {
        validate_resource_rule(&format!("{path}.resourceRules[{n}]"), rule, errors);
    }
    for (n, rule) in rule.non_resource_rules.iter().enumerate() {
        validate_non_resource_rule(&format!("{path}.nonResourceRules[{n}]"), rule, errors);
    }
}

fn validate_subject(path: &str, subject: &Subject, errors: &mut FieldErrors) {
    let Subject {
        kind,
        user,
        group,
        service_account,
    } = subject;
    match kind {
        SubjectKind::Group => {
            validate_named_member(path, "group", "Group", group.as_deref(), errors);
            forbid_service_account(path, subject, errors);
            forbid_user(path, subject, errors);
        }
        SubjectKind::ServiceAccount => {
            validate_service_account(path, service_account.as_ref(), errors);
            forbid_user(path, subject, errors);
            forbid_group(path, subject, errors);
        }
        SubjectKind::User => {
            validate_named_member(path, "user", "User", user.as_deref(), errors);
            forbid_service_account(path, subject, errors);
            forbid_group(path, subject, errors);
        }
        SubjectKind::Other(text) => {
            errors.not_supported(
                format!("{path}.kind"),
                go_text::quote(text.as_bytes()),
                SubjectKind::ALLOWED,
            );
        }
    }
}

fn validate_named_member(
    path: &str,
    member: &str,
    kind: &str,
    name: Option<&str>,
    errors: &mut FieldErrors,
) {
    match name {
        None => require_member(path, member, kind, errors),
        Some("") => errors.required(format!("{path}.{member}.name"), ""),
        Some(_) => {}
    }
}

fn validate_service_account(
    path: &str,
    account: Option<&ServiceAccountSubject>,
    errors: &mut FieldErrors,
) {
    let Some(ServiceAccountSubject { namespace, name }) = account else {
        return require_member(path, "serviceAccount", "ServiceAccount", errors);
    };
    let field = format!("{path}.serviceAccount.name");
    if name.is_empty() {
        errors.required(field, "");
    } else if name != WILDCARD {
        errors.invalid_string(&field, name, names::check_dns_subdomain(name));
    }
    let field = format!("{path}.serviceAccount.namespace");
    if namespace.is_empty() {
        errors.required(field, "must specify namespace for service account");
    } else {
        errors.invalid_string(&field, namespace, names::check_dns_label(namespace));
    }
}

fn require_member(path: &str, member: &str, kind: &str, errors: &mut FieldErrors) {
    let detail = format!("{member} is required when subject kind is '{kind}'");
    errors.required(format!("{path}.{member}"), detail);
}

fn forbid_user(path: &str, subject: &Subject, errors: &mut FieldErrors) {
    forbid(path, "user", "User", subject.user.is_some(), errors);
}

fn forbid_group(path: &str, subject: &Subject, errors: &mut FieldErrors) {
    forbid(path, "group", "Group", subject.group.is_some(), errors);
}

fn forbid_service_account(path: &str, subject: &Subject, errors: &mut FieldErrors) {
    let there = subject.service_account.is_some();
    forbid(path, "serviceAccount", "ServiceAccount", there, errors);
}

fn forbid(path: &str, member: &str, kind: &str, there: bool, errors: &mut FieldErrors) {
    if there {
        let detail = format!("{member} is forbidden when subject kind is not '{kind}'");
        errors.forbidden(format!("{path}.{member}"), detail);
    }
}

fn validate_resource_rule(path: &str, rule: &ResourcePolicyRule, errors: &mut FieldErrors) {
    validate_verbs(path, &rule.verbs, errors);

    let field = format!("{path}.apiGroups");
    if rule.api_groups.is_empty() {
        errors.required(field, "resource rules must supply at least one api group");
    } else {
        check_wildcard(field, &rule.api_groups, "api groups", errors);
    }

    let field = format!("{path}.resources");
    if rule.resources.is_empty() {
        errors.required(field, "resource rules must supply at least one resource");
    } else {
        check_wildcard(field, &rule.resources, "resources", errors);
    }

    let field = format!("{path}.namespaces");
    if rule.namespaces.is_empty() && !rule.cluster_scope {
        let detail =
            "resource rules that are not cluster scoped must supply at least one namespace";
        errors.required(field, detail);
    } else if !check_wildcard(field, &rule.namespaces, "namespaces", errors) {
        for (n, namespace) in rule.namespaces.iter().enumerate() {
            let start = "each member of this list must be '*' or a DNS-1123 label; ";
            let broken = names::check_dns_label(namespace)
                .into_iter()
                .map(|rule| format!("{start}{rule}"));
            let field = format!("{path}.namespaces[{n}]");
            errors.invalid_string(&field, namespace, broken.collect());
        }
    }
}

fn validate_non_resource_rule(path: &str, rule: &NonResourcePolicyRule, errors: &mut FieldErrors) {
    validate_verbs(path, &rule.verbs, errors);

    let field = format!("{path}.nonResourceURLs");
    let urls = &rule.non_resource_urls;
    if urls.is_empty() {
        errors.required(field, "nonResourceURLs must contain at least one value");
    } else if !check_wildcard(field, urls, "non-resource URLs", errors) {
        for (n, url) in urls.iter().enumerate() {
            let broken = broken_url_rule(url).map(str::to_owned);
            let field = format!("{path}.nonResourceURLs[{n}]");
            errors.invalid_string(&field, url, broken.into_iter().collect());
        }
    }
}

fn validate_verbs(path: &str, verbs: &[String], errors: &mut FieldErrors) {
    let field = format!("{path}.verbs");
    if verbs.is_empty() {
        errors.required(field, "verbs must contain at least one value");
    } else if !check_wildcard(field.clone(), verbs, "verbs", errors)
        && !verbs.iter().all(|verb| VERBS.contains(&verb.as_str()))
    {
        errors.not_supported(field, go_text::json(&verbs), VERBS);
    }
}

/// Reports a wildcard that is not the only entry. Returns whether the list contains a wildcard.
fn check_wildcard(field: String, list: &[String], what: &str, errors: &mut FieldErrors) -> bool {
    let there = list.iter().any(|text| text == WILDCARD);
    if there && list.len() > 1 {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.invalid(field, go_text::json(&list), detail);
    }
    there
}

/// The first rule that a path breaks.
fn broken_url_rule(url: &str) -> Option<&'static str> {
    let wildcards = url.matches('*').count();
    if url.is_empty() {
        Some("must not be empty")
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else if wildcards > 1 || wildcards == 1 && !url.ends_with("/*") {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}
