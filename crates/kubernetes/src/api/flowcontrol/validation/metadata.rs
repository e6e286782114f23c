//! Validation of the metadata: `ValidateObjectMeta` of `pkg/apis/core/validation` and of
//! `k8s.io/apimachinery/pkg/api/validation` (1.36).

use super::super::field_error::FieldErrors;
use super::super::names;
use super::super::types::{ObjectMeta, OwnerReference};
use crate::encoding::go_text;

/// `TotalAnnotationSizeLimitB`, keys and values together, in bytes.
const ANNOTATIONS_MAX: usize = 256 * 1024;

const OWNER_REFERENCES: &str = "metadata.ownerReferences";

/// `metav1.FinalizerOrphanDependents` and `metav1.FinalizerDeleteDependents`.
const ORPHAN: &str = "orphan";
const FOREGROUND_DELETION: &str = "foregroundDeletion";

/// Finalizers whose names need no domain (`IsStandardFinalizerName`).
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND_DELETION];

pub(super) fn validate(metadata: &ObjectMeta, errors: &mut FieldErrors) {
    validate_name(metadata, errors);
    for (key, value) in &metadata.labels {
        errors.invalid_string("metadata.labels", key, names::check_label_key(key));
        errors.invalid_string("metadata.labels", value, names::check_label_value(value));
    }
    for (key, _) in &metadata.annotations {
        let broken = names::check_label_key(&key.to_lowercase());
        errors.invalid_string("metadata.annotations", key, broken);
    }
    let size: usize = metadata
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > ANNOTATIONS_MAX {
        errors.too_long("metadata.annotations".to_owned(), ANNOTATIONS_MAX);
    }
    validate_owner_references(&metadata.owner_references, errors);
    validate_finalizers(&metadata.finalizers, errors);
}

/// A name that is still to be generated is valid.
fn validate_name(metadata: &ObjectMeta, errors: &mut FieldErrors) {
    let ObjectMeta {
        name,
        generate_name,
        ..
    } = metadata;
    if !generate_name.is_empty() {
        let broken = names::check_dns_subdomain(&names::mask_trailing_dash(generate_name));
        errors.invalid_string("metadata.generateName", generate_name, broken);
    }
    if !name.is_empty() {
        errors.invalid_string("metadata.name", name, names::check_dns_subdomain(name));
    } else if generate_name.is_empty() {
        errors.required(
            "metadata.name".to_owned(),
            "name or generateName is required",
        );
    }
}

fn validate_owner_references(references: &[OwnerReference], errors: &mut FieldErrors) {
    let mut controller: Option<String> = None;
    for reference in references {
        validate_owner_reference(reference, errors);
        if !reference.controller {
            continue;
        }
        let current = format!("{}/{}", reference.kind, reference.name);
        match &controller {
            Some(first) => errors.invalid_whole(
                OWNER_REFERENCES.to_owned(),
                format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {current}"
                ),
            ),
            None => controller = Some(current),
        }
    }
}

/// Upstream's paths have no index.
fn validate_owner_reference(reference: &OwnerReference, errors: &mut FieldErrors) {
    let OwnerReference {
        api_version,
        kind,
        name,
        uid,
        ..
    } = reference;
    let (version, group) = split_api_version(api_version);
    if version.is_empty() {
        let field = format!("{OWNER_REFERENCES}.apiVersion");
        errors.invalid(
            field,
            go_text::quote(api_version.as_bytes()),
            "version must not be empty",
        );
    }
    for (field, text) in [("kind", kind), ("name", name), ("uid", uid)] {
        if text.is_empty() {
            let field = format!("{OWNER_REFERENCES}.{field}");
            errors.invalid(field, go_text::quote(text.as_bytes()), "must not be empty");
        }
    }
    if (group, version, kind.as_str()) == ("", "v1", "Event") {
        let detail = "/v1, Kind=Event is disallowed from being an owner".to_owned();
        errors.invalid_whole(OWNER_REFERENCES.to_owned(), detail);
    }
}

/// Group and version of an `apiVersion`; both are empty if it is malformed
/// (`schema.ParseGroupVersion`).
fn split_api_version(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => (api_version, ""),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some((group, version)) => (version, group),
    }
}

fn validate_finalizers(finalizers: &[String], errors: &mut FieldErrors) {
    const FIELD: &str = "metadata.finalizers";
    for finalizer in finalizers {
        errors.invalid_string(FIELD, finalizer, names::check_label_key(finalizer));
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has(ORPHAN) && has(FOREGROUND_DELETION) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND_DELETION} cannot be both set");
        errors.invalid_whole(FIELD.to_owned(), detail);
    }
    for (n, finalizer) in finalizers.iter().enumerate() {
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer.as_str()) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(
                format!("{FIELD}[{n}]"),
                go_text::quote(finalizer.as_bytes()),
                detail,
            );
        }
    }
}
