//! Which flow of its schema a request belongs to.

use super::RequestDigest;
use crate::api::flowcontrol::FlowDistinguisherMethodType;
use crate::flowcontrol::shuffle_sharding::SchemaHash;
use crate::flowcontrol::shuffle_sharding::flow_hash;

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowsBy {
    /// Nothing: all its requests are one flow.
    Nothing,
    /// The namespace that is asked for.
    Namespace,
    /// The user who asks.
    User,
}

/// How the flows of a schema are told apart.
#[derive(Clone, Debug)]
pub(super) enum Flows {
    /// They are not: where there is one queue or none, or where the schema wants it so.
    One {
        hash: u64,
    },
    ByNamespace(SchemaHash),
    ByUser(SchemaHash),
}

impl Flows {
    /// The flows of a schema whose level has more than one queue.
    pub(super) fn of(schema: &str, method: Option<&FlowDistinguisherMethodType>) -> Self {
        match method {
            Some(FlowDistinguisherMethodType::ByNamespace) => {
                Self::ByNamespace(SchemaHash::new(schema))
            }
            Some(FlowDistinguisherMethodType::ByUser) => Self::ByUser(SchemaHash::new(schema)),
            // Others are not valid, and never reach an API server's matching.
            Some(FlowDistinguisherMethodType::Other(_)) | None => Self::One {
                hash: flow_hash(schema, ""),
            },
        }
    }

    /// The same, without the hashes.
    pub(super) const fn by(&self) -> FlowsBy {
        match self {
            Self::One { .. } => FlowsBy::Nothing,
            Self::ByNamespace(_) => FlowsBy::Namespace,
            Self::ByUser(_) => FlowsBy::User,
        }
    }

    /// The distinguisher and the hash of the flow that `request` belongs to.
    pub(super) fn flow_of<'r>(&self, request: &RequestDigest<'r>) -> (&'r [u8], u64) {
        let (schema, distinguisher) = match self {
            Self::One { hash } => return (&[], *hash),
            Self::ByNamespace(schema) => (schema, request.namespace),
            Self::ByUser(schema) => (schema, request.user.distinguisher().as_bytes()),
        };
        (distinguisher, schema.flow(distinguisher))
    }
}
