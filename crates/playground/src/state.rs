//! The state that all connections and requests share.

use crate::auth::authentication::PlaygroundAuthenticator;
use crate::auth::authorization;
use crate::auth::authorization::{AccessAttributes, PolicyChanges};
use crate::auth::user::ApiUser;
use crate::objects::resources::{ApiResource, ObjectKind};
use crate::objects::storage::object::string_at;
use crate::objects::storage::selector::Selection;
use crate::objects::storage::shared_store::SharedStore;
use crate::objects::storage::store::{ListScope, Store};
use crate::objects::strategy;
use crate::serving::capacity::Capacity;
use crate::serving::fairness::{Fairness, ObjectError};
use crate::serving::fault::FaultState;
use crate::serving::list_memory::ListMemory;
use crate::serving::request_log::RequestLog;
use crate::settings::PlaygroundSettings;
use crate::status::{StatusCause, StatusError};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::watch;

/// The shared state of a server.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) settings: PlaygroundSettings,
    pub(crate) storage: SharedStore,
    pub(crate) request_log: Arc<RequestLog>,
    pub(crate) authenticator: PlaygroundAuthenticator,
    /// The grants and denials since the start.
    pub(crate) policy: RwLock<PolicyChanges>,
    /// `None`: no priority and fairness.
    pub(crate) fairness: Option<Arc<dyn Fairness>>,
    /// Held while the objects of priority and fairness are applied, so that the last ones stay.
    pub(crate) flowcontrol_changes: Mutex<()>,
    /// `None`: a service time of zero.
    pub(crate) capacity: Option<Arc<Capacity>>,
    /// What lists take while they are served.
    pub(crate) list_memory: Arc<ListMemory>,
    /// The fault in force.
    pub(crate) fault: watch::Sender<FaultState>,
    /// Whether the server stops, or has shut down as a fault.
    pub(crate) stopping: watch::Sender<bool>,
}

impl ServerState {
    /// Whether `user` is allowed this access.
    pub(crate) fn allows(&self, user: &ApiUser, attributes: &AccessAttributes) -> bool {
        let policy = self.policy.read();
        authorization::is_allowed(user, attributes, &policy)
    }

    /// Validates and defaults a FlowSchema or PriorityLevelConfiguration. Other objects stay as they
    /// are. `old` is the object that it replaces.
    pub(crate) fn check_flowcontrol(
        &self,
        kind: ObjectKind,
        value: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        if !kind.is_flowcontrol() {
            return Ok(());
        }
        let typed = with_type(kind, value.clone());
        let checked = self
            .fairness
            .as_ref()
            .map(|fairness| fairness.check_object(&typed));
        let spec = checked.transpose().map_err(|error| match error {
            ObjectError::Malformed(why) => StatusError::bad_request(why),
            ObjectError::Invalid(fields) => {
                let causes = fields.into_iter().map(|invalid| StatusCause {
                    reason: invalid.reason,
                    message: invalid.message,
                    field: invalid.field,
                });
                let name = string_at(value, &["metadata", "name"]);
                let subject = ApiResource::of_kind(kind).map(|one| one.resource_ref(name));
                subject.map_or_else(StatusError::no_such_resource, |subject| {
                    StatusError::invalid_fields(subject, causes.collect())
                })
            }
        })?;
        if let (Some(spec), Some(object)) = (spec, value.as_object_mut()) {
            object.insert("spec".to_owned(), spec);
        }
        if let Some(old) = old {
            strategy::set_generation(value, old);
        }
        Ok(())
    }

    /// Lets the server's priority and fairness follow its objects.
    pub(crate) fn apply_flowcontrol(&self) {
        let Some(fairness) = &self.fairness else {
            return;
        };
        let _changes = self.flowcontrol_changes.lock();
        let kinds = [
            ObjectKind::PriorityLevelConfiguration,
            ObjectKind::FlowSchema,
        ];
        let objects = {
            let store = self.storage.lock();
            kinds.map(|kind| stored(&store, kind)).concat()
        };
        fairness.configure(&objects);
    }
}

/// All objects of a kind, as manifests.
fn stored(store: &Store, kind: ObjectKind) -> Vec<Value> {
    let scope = ListScope {
        kind,
        namespace: None,
        selection: Selection::default(),
    };
    let page = store.list(&scope, None, None, 0).into_iter();
    let objects = page.flat_map(|page| page.objects);
    objects
        .map(|object| with_type(kind, object.value()))
        .collect()
}

/// The object with its type.
fn with_type(kind: ObjectKind, mut value: Value) -> Value {
    if let (Some(resource), Some(object)) = (ApiResource::of_kind(kind), value.as_object_mut()) {
        object.insert("apiVersion".to_owned(), resource.group_version().into());
        object.insert("kind".to_owned(), resource.kind.into());
    }
    value
}
