//! The representations of an object: complete, its metadata, or a row of a table.

use crate::objects::resources::{ApiResource, ObjectKind, to_events_v1};
use crate::objects::storage::object::StoredObject;
use crate::objects::table;
use crate::request::{QueryParameters, ResponseForm};
use crate::time;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The object that a table row contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncludeObject {
    Metadata,
    Omitted,
    Object,
}

/// The representation of the objects of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Representation {
    resource: &'static ApiResource,
    kind: ObjectKind,
    form: ResponseForm,
    include: IncludeObject,
    now: Timestamp,
}

impl Representation {
    pub(crate) fn new(
        resource: &'static ApiResource,
        kind: ObjectKind,
        form: ResponseForm,
        query: &QueryParameters,
    ) -> Self {
        let include = match query.first("includeObject") {
            Some("None") => IncludeObject::Omitted,
            Some("Object") => IncludeObject::Object,
            Some(_) | None => IncludeObject::Metadata,
        };
        Self {
            resource,
            kind,
            form,
            include,
            now: time::wall_time(),
        }
    }

    /// Sets the time to which ages are computed to now.
    pub(crate) fn refresh_now(&mut self) {
        self.now = time::wall_time();
    }

    /// One object with its type. `columns` is whether a table contains its column definitions.
    pub(crate) fn object(&self, object: &StoredObject, columns: bool) -> Vec<u8> {
        match self.form {
            ResponseForm::Object | ResponseForm::AggregatedDiscovery => self.typed(object),
            ResponseForm::PartialMetadata => partial_metadata(object, "v1"),
            ResponseForm::Table(version) => {
                let metadata = json!({"resourceVersion": object.version.to_string()});
                let mut bytes = self.table_head(version, &metadata, columns);
                bytes.extend_from_slice(&self.row(object, version));
                bytes.extend_from_slice(b"]}");
                bytes
            }
        }
    }

    /// The beginning of a list, before its first item.
    pub(crate) fn list_head(&self, metadata: &Value) -> Vec<u8> {
        let (kind, api_version) = match self.form {
            ResponseForm::Object | ResponseForm::AggregatedDiscovery => (
                format!("{}List", self.resource.kind),
                self.resource.group_version(),
            ),
            ResponseForm::PartialMetadata => (
                "PartialObjectMetadataList".to_owned(),
                "meta.k8s.io/v1".to_owned(),
            ),
            ResponseForm::Table(version) => return self.table_head(version, metadata, true),
        };
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
            .into_bytes()
    }

    /// One item of a list.
    pub(crate) fn item(&self, object: &StoredObject) -> Bytes {
        match self.form {
            ResponseForm::Object | ResponseForm::AggregatedDiscovery => self.untyped(object),
            ResponseForm::PartialMetadata => partial_metadata(object, "v1").into(),
            ResponseForm::Table(version) => self.row(object, version).into(),
        }
    }

    fn table_head(&self, version: &str, metadata: &Value, columns: bool) -> Vec<u8> {
        let columns = if columns {
            table::column_definitions(self.kind)
        } else {
            Value::Null
        };
        format!(
            r#"{{"kind":"Table","apiVersion":"meta.k8s.io/{version}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#
        )
        .into_bytes()
    }

    fn row(&self, object: &StoredObject, version: &str) -> Vec<u8> {
        let cells = Value::from(table::cells(self.kind, &object.value(), self.now));
        let mut row = format!(r#"{{"cells":{cells},"object":"#).into_bytes();
        match self.include {
            IncludeObject::Metadata => row.extend_from_slice(&partial_metadata(object, version)),
            IncludeObject::Omitted => row.extend_from_slice(b"null"),
            IncludeObject::Object => row.extend_from_slice(&self.typed(object)),
        }
        row.push(b'}');
        row
    }

    /// The object in the resource's form, without its type.
    fn untyped(&self, object: &StoredObject) -> Bytes {
        if !self.resource.is_converted() {
            return object.json().clone();
        }
        let mut value = object.value();
        if let Some(value) = value.as_object_mut() {
            to_events_v1(value);
        }
        serde_json::to_vec(&value).unwrap_or_default().into()
    }

    fn typed(&self, object: &StoredObject) -> Vec<u8> {
        let stored = self.untyped(object);
        let mut bytes = format!(
            r#"{{"kind":"{}","apiVersion":"{}","#,
            self.resource.kind,
            self.resource.group_version()
        )
        .into_bytes();
        bytes.extend_from_slice(stored.get(1..).unwrap_or_default());
        bytes
    }
}

fn partial_metadata(object: &StoredObject, version: &str) -> Vec<u8> {
    let mut bytes = format!(
        r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version}","metadata":"#
    )
    .into_bytes();
    bytes.extend_from_slice(object.metadata());
    bytes.push(b'}');
    bytes
}

#[cfg(test)]
mod tests {
    use super::Representation;
    use crate::objects::resources::{ApiResource, ObjectKind};
    use crate::objects::storage::object::StoredObject;
    use crate::request::{QueryParameters, ResponseForm};
    use serde_json::{Value, json};

    fn render(group: &str, form: ResponseForm, query: &str) -> Value {
        let event = json!({"metadata": {"name": "e"}, "message": "m", "reason": "R"});
        let event = StoredObject::new(ObjectKind::Event, event, 7).unwrap();
        let resource = ApiResource::find(group, "v1", "events").unwrap();
        let representation = Representation::new(
            resource,
            ObjectKind::Event,
            form,
            &QueryParameters::parse(Some(query)),
        );
        serde_json::from_slice(&representation.object(&event, true)).unwrap()
    }

    #[test]
    fn an_event_is_represented_in_both_api_groups() {
        let core = render("", ResponseForm::Object, "");
        assert_eq!(
            (&core["apiVersion"], &core["message"]),
            (&json!("v1"), &json!("m"))
        );
        let events = render("events.k8s.io", ResponseForm::Object, "");
        assert_eq!(events["apiVersion"], "events.k8s.io/v1");
        assert_eq!(
            (&events["note"], events.get("message")),
            (&json!("m"), None)
        );
    }

    #[test]
    fn a_table_row_includes_the_object_as_requested() {
        let metadata = json!({"name": "e", "resourceVersion": "7"});
        let table = render("", ResponseForm::Table("v1beta1"), "");
        assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"]["metadata"], metadata);
        let table = render("", ResponseForm::Table("v1"), "includeObject=Object");
        assert_eq!(table["rows"][0]["object"]["reason"], "R");
        let table = render("", ResponseForm::Table("v1"), "includeObject=None");
        assert_eq!(table["rows"][0]["object"], Value::Null);
        assert_eq!(
            render("", ResponseForm::PartialMetadata, "")["metadata"],
            metadata
        );
    }
}
