//! All error responses as `metav1.Status`, worded as by kube-apiserver 1.36.
//!
//! Pure: independent of HTTP and of users. `endpoints` converts a status into a response.

use serde::Serialize;

/// An error response: `kubectl` prints it after `Error from server (<reason>): `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusError {
    /// The HTTP status code.
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Box<StatusDetails>>,
    /// The token with which an expired list may be continued inconsistently; only on 410.
    pub(crate) continue_token: Option<String>,
}

/// `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) causes: Vec<StatusCause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) retry_after_seconds: u32,
}

/// `metav1.StatusCause`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StatusCause {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) field: String,
}

/// The object of a request, for the details of an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceRef<'a> {
    pub(crate) group: &'static str,
    /// The plural, as in the path.
    pub(crate) resource: &'static str,
    /// The kind, as in the object.
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The encoded form; fields are in Kubernetes' order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: StatusJsonMeta<'a>,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a StatusDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

#[derive(Serialize)]
struct StatusJsonMeta<'a> {
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    continue_token: Option<&'a str>,
}

fn encode(wire: &StatusJson<'_>) -> Vec<u8> {
    serde_json::to_vec(wire).unwrap_or_default()
}

/// The JSON of the Status of a success without an object, such as a deletion.
pub(crate) fn success_json(details: &StatusDetails) -> Vec<u8> {
    encode(&StatusJson {
        kind: "Status",
        api_version: "v1",
        metadata: StatusJsonMeta {
            continue_token: None,
        },
        status: "Success",
        message: "",
        reason: "",
        details: Some(details),
        code: None,
    })
}

impl ResourceRef<'_> {
    fn status_details(&self) -> StatusDetails {
        StatusDetails {
            name: self.name.to_owned(),
            group: self.group,
            kind: self.resource,
            ..StatusDetails::default()
        }
    }

    /// `configmaps`, or `leases.coordination.k8s.io` outside the core group.
    fn qualified_name(&self) -> String {
        qualify(self.resource, self.group)
    }
}

fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

impl StatusError {
    /// The JSON of the status.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        encode(&StatusJson {
            kind: "Status",
            api_version: "v1",
            metadata: StatusJsonMeta {
                continue_token: self.continue_token.as_deref(),
            },
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: self.details.as_deref(),
            code: Some(self.code),
        })
    }

    /// Seconds after which to retry.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        let seconds = self.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then_some(seconds)
    }

    const fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self {
            code,
            reason,
            message,
            details: None,
            continue_token: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(crate) fn internal_error(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message.into())
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    /// A 403; `message` names the user and the access, `details` the object.
    pub(crate) fn forbidden(message: String, details: StatusDetails) -> Self {
        Self {
            details: Some(Box::new(details)),
            ..Self::new(403, "Forbidden", message)
        }
    }

    pub(crate) fn not_found(subject: ResourceRef<'_>) -> Self {
        let message = format!("{} {:?} not found", subject.qualified_name(), subject.name);
        Self {
            details: Some(Box::new(subject.status_details())),
            ..Self::new(404, "NotFound", message)
        }
    }

    /// The path has the form of a resource, but no such resource is served.
    pub(crate) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self {
            details: Some(Box::default()),
            ..Self::new(404, "NotFound", message)
        }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self {
            details: Some(Box::default()),
            ..Self::new(405, "MethodNotAllowed", message)
        }
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, \
                       application/yaml";
        Self::new(406, "NotAcceptable", message.to_owned())
    }

    pub(crate) fn already_exists(subject: ResourceRef<'_>) -> Self {
        let message = format!(
            "{} {:?} already exists",
            subject.qualified_name(),
            subject.name
        );
        Self {
            details: Some(Box::new(subject.status_details())),
            ..Self::new(409, "AlreadyExists", message)
        }
    }

    /// Another write came in between.
    pub(crate) fn conflict(subject: ResourceRef<'_>) -> Self {
        Self::conflict_with_reason(
            subject,
            "the object has been modified; please apply your changes to the latest version and \
             try again",
        )
    }

    pub(crate) fn conflict_with_reason(subject: ResourceRef<'_>, why: &str) -> Self {
        let (resource, name) = (subject.qualified_name(), subject.name);
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self {
            details: Some(Box::new(subject.status_details())),
            ..Self::new(409, "Conflict", message)
        }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// A field of the object (or of the options) is invalid: `field: what: why`.
    pub(crate) fn invalid(subject: ResourceRef<'_>, cause: StatusCause) -> Self {
        let kind = qualify(subject.kind, subject.group);
        let StatusCause { message, field, .. } = &cause;
        let message = format!("{kind} {:?} is invalid: {field}: {message}", subject.name);
        Self {
            details: Some(Box::new(StatusDetails {
                name: subject.name.to_owned(),
                group: subject.group,
                kind: subject.kind,
                causes: vec![cause],
                ..StatusDetails::default()
            })),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// Several fields of the object are invalid.
    pub(crate) fn invalid_fields(subject: ResourceRef<'_>, causes: Vec<StatusCause>) -> Self {
        let described = causes
            .iter()
            .map(|StatusCause { field, message, .. }| format!("{field}: {message}"));
        let described: Vec<String> = described.collect();
        let kind = qualify(subject.kind, subject.group);
        let list = match &*described {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{kind} {:?} is invalid: {list}", subject.name);
        Self {
            details: Some(Box::new(StatusDetails {
                name: subject.name.to_owned(),
                group: subject.group,
                kind: subject.kind,
                causes,
                ..StatusDetails::default()
            })),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// The patch is well-formed and cannot be applied.
    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Self {
            details: Some(Box::default()),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// A list at a version that does not exist yet.
    pub(crate) fn too_large_version(requested: u64, current: u64) -> Self {
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        Self {
            details: Some(Box::new(StatusDetails {
                causes: vec![StatusCause {
                    reason: "ResourceVersionTooLarge",
                    message: "Too large resource version".to_owned(),
                    field: String::new(),
                }],
                retry_after_seconds: 1,
                ..StatusDetails::default()
            })),
            ..Self::new(504, "Timeout", message)
        }
    }
}

impl StatusCause {
    pub(crate) fn required(field: &str, why: &str) -> Self {
        Self {
            reason: "FieldValueRequired",
            message: format!("Required value: {why}"),
            field: field.to_owned(),
        }
    }

    /// `value` is printed as in JSON.
    pub(crate) fn invalid(field: &str, value: &str, why: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value:?}: {why}"),
            field: field.to_owned(),
        }
    }

    pub(crate) fn forbidden(field: &str, why: &str) -> Self {
        Self {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
            field: field.to_owned(),
        }
    }

    pub(crate) fn unsupported(field: &str, value: &str, supported: &str) -> Self {
        Self {
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {value:?}: supported values: {supported:?}"),
            field: field.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ResourceRef, StatusCause, StatusDetails, StatusError, success_json};

    const CONFIG_MAP: ResourceRef<'_> = ResourceRef {
        group: "",
        resource: "configmaps",
        kind: "ConfigMap",
        name: "cap",
    };

    #[test]
    fn an_error_status_is_written_as_by_kube_apiserver() {
        assert_eq!(
            String::from_utf8(StatusError::not_found(CONFIG_MAP).to_json()).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"cap\" not found","reason":"NotFound","details":{"name":"cap","kind":"configmaps"},"code":404}"#
        );
        assert_eq!(
            String::from_utf8(StatusError::unauthorized().to_json()).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#
        );
    }

    #[test]
    fn the_status_of_a_deletion_has_the_uid() {
        let details = StatusDetails {
            name: "cap".into(),
            kind: "configmaps",
            uid: "a718e525".into(),
            ..StatusDetails::default()
        };
        assert_eq!(
            String::from_utf8(success_json(&details)).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"cap","kind":"configmaps","uid":"a718e525"}}"#
        );
    }

    #[test]
    fn an_invalid_object_names_the_field_and_the_kind() {
        let status = StatusError::invalid(
            ResourceRef {
                group: "coordination.k8s.io",
                resource: "leases",
                kind: "Lease",
                name: "",
            },
            StatusCause::required("metadata.name", "name or generateName is required"),
        );
        assert_eq!(
            status.message,
            "Lease.coordination.k8s.io \"\" is invalid: metadata.name: Required value: name or \
             generateName is required"
        );
        assert_eq!(status.code, 422);
    }
}
