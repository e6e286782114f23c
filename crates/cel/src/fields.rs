//! What a condition looks at, and its variables. Names are those of a SubjectAccessReview, as in the
//! `matchConditions` of an authorizer, and of ListOptions; `userAgent` is that of an audit event.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::error::EvaluationError;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

/// What a condition looks at.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'r> {
    /// The parsed request line.
    pub info: &'r RequestInfo<'r>,
    /// The user that limits count.
    pub user: &'r UserInfo,
    /// Whether the user is proven.
    pub is_verified: bool,
    /// The header `User-Agent`.
    pub user_agent: &'r [u8],
    /// The address of the client.
    pub source_address: IpAddr,
}

/// A field with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextField {
    User,
    Uid,
    UserAgent,
    SourceAddress,
    Namespace,
    Verb,
    Group,
    Version,
    Resource,
    Subresource,
    Name,
    Path,
    NonResourceVerb,
    /// A parameter of the query.
    Option(&'static str),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Object(&'static ObjectType),
    Text(TextField),
    /// A number among the parameters of the query.
    Number(&'static str),
    Groups,
    Extra,
    Verified,
}

/// An object and its fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectType {
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [(&'static str, Field)],
    pub(crate) presence: Presence,
}

/// When an object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Always,
    ForResources,
    ForNonResources,
}

/// The variables.
pub(crate) static VARIABLES: ObjectType = ObjectType {
    name: "",
    fields: &[
        ("request", Field::Object(&REQUEST)),
        ("user", Field::Object(&USER)),
    ],
    presence: Presence::Always,
};

static USER: ObjectType = ObjectType {
    name: "user",
    fields: &[("verified", Field::Verified)],
    presence: Presence::Always,
};

static REQUEST: ObjectType = ObjectType {
    name: "request",
    fields: &[
        ("user", Field::Text(TextField::User)),
        ("groups", Field::Groups),
        ("uid", Field::Text(TextField::Uid)),
        ("extra", Field::Extra),
        ("resourceAttributes", Field::Object(&RESOURCE)),
        ("nonResourceAttributes", Field::Object(&NON_RESOURCE)),
        ("options", Field::Object(&OPTIONS)),
        ("userAgent", Field::Text(TextField::UserAgent)),
        ("sourceAddress", Field::Text(TextField::SourceAddress)),
    ],
    presence: Presence::Always,
};

static RESOURCE: ObjectType = ObjectType {
    name: "request.resourceAttributes",
    fields: &[
        ("namespace", Field::Text(TextField::Namespace)),
        ("verb", Field::Text(TextField::Verb)),
        ("group", Field::Text(TextField::Group)),
        ("version", Field::Text(TextField::Version)),
        ("resource", Field::Text(TextField::Resource)),
        ("subresource", Field::Text(TextField::Subresource)),
        ("name", Field::Text(TextField::Name)),
    ],
    presence: Presence::ForResources,
};

static NON_RESOURCE: ObjectType = ObjectType {
    name: "request.nonResourceAttributes",
    fields: &[
        ("path", Field::Text(TextField::Path)),
        ("verb", Field::Text(TextField::NonResourceVerb)),
    ],
    presence: Presence::ForNonResources,
};

static OPTIONS: ObjectType = ObjectType {
    name: "request.options",
    fields: &[
        ("limit", Field::Number("limit")),
        ("continue", Field::Text(TextField::Option("continue"))),
        (
            "resourceVersion",
            Field::Text(TextField::Option("resourceVersion")),
        ),
        (
            "resourceVersionMatch",
            Field::Text(TextField::Option("resourceVersionMatch")),
        ),
        (
            "labelSelector",
            Field::Text(TextField::Option("labelSelector")),
        ),
        (
            "fieldSelector",
            Field::Text(TextField::Option("fieldSelector")),
        ),
        ("timeoutSeconds", Field::Number("timeoutSeconds")),
        ("dryRun", Field::Text(TextField::Option("dryRun"))),
        (
            "propagationPolicy",
            Field::Text(TextField::Option("propagationPolicy")),
        ),
        ("container", Field::Text(TextField::Option("container"))),
        ("command", Field::Text(TextField::Option("command"))),
    ],
    presence: Presence::Always,
};

impl ObjectType {
    /// The field of this name.
    ///
    /// # Errors
    /// There is none; the text lists all.
    pub(crate) fn field(&self, name: &str) -> Result<Field, String> {
        let found = self.fields.iter().find(|(of, _)| *of == name);
        found.map(|(_, field)| *field).ok_or_else(|| {
            let names: Vec<_> = self.fields.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            match self.name {
                "" => format!("there is no variable {name}; expected {names}"),
                of => format!("{of} has no field {name}; expected {names}"),
            }
        })
    }

    /// Whether it is there.
    pub(crate) const fn is_present(&self, input: &ConditionInput<'_>) -> bool {
        match self.presence {
            Presence::Always => true,
            Presence::ForResources => input.info.is_resource_request(),
            Presence::ForNonResources => !input.info.is_resource_request(),
        }
    }
}

impl TextField {
    /// Its value; empty if there is none.
    pub(crate) fn value<'r>(
        self,
        input: &ConditionInput<'r>,
    ) -> Result<Cow<'r, [u8]>, EvaluationError> {
        let ConditionInput { info, user, .. } = *input;
        let is_resource = info.is_resource_request();
        let of_resource = |text: &'r [u8]| match is_resource {
            true => Ok(Cow::Borrowed(text)),
            false => Err(EvaluationError::NoResource),
        };
        let of_path = |text: &'r [u8]| match is_resource {
            false => Ok(Cow::Borrowed(text)),
            true => Err(EvaluationError::Resource),
        };
        match self {
            Self::User => Ok(user.name.as_bytes().into()),
            Self::Uid => Ok(user.uid.as_bytes().into()),
            Self::UserAgent => Ok(input.user_agent.into()),
            Self::SourceAddress => {
                let address = input.source_address.to_canonical();
                Ok(address.to_string().into_bytes().into())
            }
            Self::Namespace => of_resource(info.namespace()),
            Self::Verb => of_resource(info.verb().as_str().as_bytes()),
            Self::Group => of_resource(info.api_group()),
            Self::Version => of_resource(info.api_version()),
            Self::Resource => of_resource(info.resource()),
            Self::Subresource => of_resource(info.subresource()),
            Self::Name => of_resource(info.name()),
            Self::Path => of_path(info.path()),
            Self::NonResourceVerb => of_path(info.verb().as_str().as_bytes()),
            Self::Option(name) => Ok(info.query().first(name).unwrap_or_default()),
        }
    }
}

/// The number among the parameters of the query; 0 if there is none, as in Go's options.
pub(crate) fn number(name: &str, input: &ConditionInput<'_>) -> Result<i64, EvaluationError> {
    let Some(text) = input.info.query().first(name) else {
        return Ok(0);
    };
    if text.is_empty() {
        return Ok(0);
    }
    let number = std::str::from_utf8(&text).ok();
    let number = number.and_then(|text| text.parse().ok());
    number.ok_or(EvaluationError::NoNumber)
}

/// Whether a field has a value, for `has()`.
pub(crate) fn is_set(field: Field, input: &ConditionInput<'_>) -> Result<bool, EvaluationError> {
    match field {
        Field::Object(object) => Ok(object.is_present(input)),
        Field::Text(TextField::Option(name)) | Field::Number(name) => {
            Ok(input.info.query().first(name).is_some())
        }
        Field::Text(field) => Ok(!field.value(input)?.is_empty()),
        Field::Groups => Ok(!input.user.groups.is_empty()),
        Field::Extra => Ok(!input.user.extra.is_empty()),
        Field::Verified => Ok(true),
    }
}
