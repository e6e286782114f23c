//! How an object is shown: whole, as its metadata alone, or as a row of a table.

use crate::playground::objects::events;
use crate::playground::objects::resources::Kind;
use crate::playground::objects::resources::Resource;
use crate::playground::objects::store::Object;
use crate::playground::objects::table;
use crate::playground::request::Form;
use crate::playground::request::Query;
use crate::playground::time;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use serde_json::json;

/// What a row of a table carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    Metadata,
    Nothing,
    Object,
}

/// A form of the objects of one resource.
#[derive(Clone, Debug)]
pub(crate) struct View {
    resource: &'static Resource,
    kind: Kind,
    form: Form,
    include: Include,
    now: Timestamp,
}

impl View {
    pub(crate) fn new(resource: &'static Resource, kind: Kind, form: Form, query: &Query) -> Self {
        let include = match query.first("includeObject") {
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            Some(_) | None => Include::Metadata,
        };
        Self {
            resource,
            kind,
            form,
            include,
            now: time::wall(),
        }
    }

    /// Ages are counted to now.
    pub(crate) fn at_present(&mut self) {
        self.now = time::wall();
    }

    /// One object, complete with its type. `columns` says whether a table names its columns.
    pub(crate) fn object(&self, object: &Object, columns: bool) -> Vec<u8> {
        match self.form {
            Form::Object | Form::AggregatedDiscovery => self.typed(object),
            Form::Partial => partial(object, "v1"),
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": object.version.to_string()});
                let mut bytes = self.table_head(version, &metadata, columns);
                bytes.extend_from_slice(&self.row(object, version));
                bytes.extend_from_slice(b"]}");
                bytes
            }
        }
    }

    /// The beginning of a list, up to its first item.
    pub(crate) fn list_head(&self, metadata: &Value) -> Vec<u8> {
        let (kind, api_version) = match self.form {
            Form::Object | Form::AggregatedDiscovery => (
                format!("{}List", self.resource.kind),
                self.resource.group_version(),
            ),
            Form::Partial => (
                "PartialObjectMetadataList".to_owned(),
                "meta.k8s.io/v1".to_owned(),
            ),
            Form::Table(version) => return self.table_head(version, metadata, true),
        };
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
            .into_bytes()
    }

    /// One item of a list.
    pub(crate) fn item(&self, object: &Object) -> Bytes {
        match self.form {
            Form::Object | Form::AggregatedDiscovery => self.stored(object),
            Form::Partial => partial(object, "v1").into(),
            Form::Table(version) => self.row(object, version).into(),
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

    fn row(&self, object: &Object, version: &str) -> Vec<u8> {
        let cells = Value::from(table::cells(self.kind, &object.value(), self.now));
        let mut row = format!(r#"{{"cells":{cells},"object":"#).into_bytes();
        match self.include {
            Include::Metadata => row.extend_from_slice(&partial(object, version)),
            Include::Nothing => row.extend_from_slice(b"null"),
            Include::Object => row.extend_from_slice(&self.typed(object)),
        }
        row.push(b'}');
        row
    }

    /// The object in the resource's spelling, without its type.
    fn stored(&self, object: &Object) -> Bytes {
        if !self.resource.converts() {
            return object.json().clone();
        }
        let mut value = object.value();
        if let Some(value) = value.as_object_mut() {
            events::to_events_v1(value);
        }
        serde_json::to_vec(&value).unwrap_or_default().into()
    }

    fn typed(&self, object: &Object) -> Vec<u8> {
        let stored = self.stored(object);
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

fn partial(object: &Object, version: &str) -> Vec<u8> {
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
    use super::View;
    use crate::playground::objects::resources::Kind;
    use crate::playground::objects::resources::Resource;
    use crate::playground::objects::store::Object;
    use crate::playground::request::Form;
    use crate::playground::request::Query;
    use serde_json::Value;
    use serde_json::json;

    fn shown(group: &str, form: Form, query: &str) -> Value {
        let event = json!({"metadata": {"name": "e"}, "message": "m", "reason": "R"});
        let event = Object::new(Kind::Event, event, 7).unwrap();
        let resource = Resource::find(group, "v1", "events").unwrap();
        let view = View::new(resource, Kind::Event, form, &Query::parse(Some(query)));
        serde_json::from_slice(&view.object(&event, true)).unwrap()
    }

    #[test]
    fn one_event_has_two_spellings() {
        let core = shown("", Form::Object, "");
        assert_eq!(
            (&core["apiVersion"], &core["message"]),
            (&json!("v1"), &json!("m"))
        );
        let events = shown("events.k8s.io", Form::Object, "");
        assert_eq!(events["apiVersion"], "events.k8s.io/v1");
        assert_eq!(
            (&events["note"], events.get("message")),
            (&json!("m"), None)
        );
    }

    #[test]
    fn a_row_carries_what_was_asked_for() {
        let metadata = json!({"name": "e", "resourceVersion": "7"});
        let table = shown("", Form::Table("v1beta1"), "");
        assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["object"]["metadata"], metadata);
        let table = shown("", Form::Table("v1"), "includeObject=Object");
        assert_eq!(table["rows"][0]["object"]["reason"], "R");
        let table = shown("", Form::Table("v1"), "includeObject=None");
        assert_eq!(table["rows"][0]["object"], Value::Null);
        assert_eq!(shown("", Form::Partial, "")["metadata"], metadata);
    }
}
