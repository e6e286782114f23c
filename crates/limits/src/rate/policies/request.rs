//! A request as policies see it, and the fields of it that they name.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use weir_cel::ConditionInput;

/// A request as policies see it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRequest<'r> {
    /// The parsed request line, and the user that limits count.
    pub attributes: AdmissionAttributes<'r>,
    /// Where it comes from.
    pub source: RequestSource<'r>,
    /// Whether the user is proven: weir or the API server has verified the credential.
    pub is_verified: bool,
}

impl<'r> PolicyRequest<'r> {
    pub(super) const fn condition_input(&self) -> ConditionInput<'r> {
        ConditionInput {
            info: self.attributes.info,
            user: self.attributes.user,
            is_verified: self.is_verified,
            user_agent: self.source.user_agent,
            source_address: self.source.address,
        }
    }
}

/// A field that a message or the key of a limit names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// The name of the object.
    Name,
    /// The namespace of the object.
    Namespace,
    /// `pods`, `deployments.apps`, `pods/log`; the path of a non-resource request.
    Resource,
    /// The address of the client.
    SourceAddress,
    /// The name of the user.
    User,
    /// The header `User-Agent`.
    UserAgent,
    /// The verb of Kubernetes.
    Verb,
}

impl RequestField {
    /// All fields.
    pub const ALL: [Self; 7] = [
        Self::Name,
        Self::Namespace,
        Self::Resource,
        Self::SourceAddress,
        Self::User,
        Self::UserAgent,
        Self::Verb,
    ];

    /// The name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Namespace => "namespace",
            Self::Resource => "resource",
            Self::SourceAddress => "sourceAddress",
            Self::User => "user",
            Self::UserAgent => "userAgent",
            Self::Verb => "verb",
        }
    }

    /// The field of this name.
    ///
    /// # Errors
    /// There is none; the text lists all.
    pub fn from_name(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|field| field.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("there is no field {name:?}; expected {}", names.join(", "))
        })
    }

    /// Its value in a request.
    #[must_use]
    pub fn value<'r>(self, request: &PolicyRequest<'r>) -> Cow<'r, [u8]> {
        let AdmissionAttributes { info, user } = request.attributes;
        match self {
            Self::Name => info.name().into(),
            Self::Namespace => info.namespace().into(),
            Self::Resource if !info.is_resource_request() => info.path().into(),
            Self::Resource => {
                let mut text = info.resource().to_vec();
                for (mark, part) in [(b'.', info.api_group()), (b'/', info.subresource())] {
                    if !part.is_empty() {
                        text.push(mark);
                        text.extend_from_slice(part);
                    }
                }
                text.into()
            }
            Self::SourceAddress => {
                let mut text = String::new();
                let _ = write!(text, "{}", request.source.address.to_canonical());
                text.into_bytes().into()
            }
            Self::User => user.name.as_bytes().into(),
            Self::UserAgent => request.source.user_agent.into(),
            Self::Verb => info.verb().as_str().as_bytes().into(),
        }
    }

    /// What a limit counts it by. Unverified users have one name and are told apart by their networks.
    #[must_use]
    pub(super) fn key<'r>(self, request: &PolicyRequest<'r>) -> Cow<'r, [u8]> {
        match self {
            Self::User => request.attributes.user.distinguisher().as_bytes().into(),
            Self::Name
            | Self::Namespace
            | Self::Resource
            | Self::SourceAddress
            | Self::UserAgent
            | Self::Verb => self.value(request),
        }
    }
}
