//! The attributes of a request that a dump shows.
//!
//! All columns are in one buffer, and a level reuses the buffers of finished requests. Most
//! requests need no allocation.

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

/// A buffer that has grown beyond this many bytes, by a very long path, is not reused.
const MAX_KEPT_BYTES: usize = 1024;

const COLUMNS: usize = 9;

/// The last columns of `dump_requests` and its flow distinguisher, as bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestDetails {
    text: Vec<u8>,
    /// The end of each column in `text`, in the order of [`DetailColumn`].
    ends: [usize; COLUMNS],
}

/// A column of `dump_requests`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DetailColumn {
    FlowDistinguisher,
    UserName,
    Verb,
    ApiPath,
    Namespace,
    Name,
    ApiVersion,
    Resource,
    SubResource,
}

impl RequestDetails {
    pub(super) fn write(
        &mut self,
        flow_distinguisher: &[u8],
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) {
        let group = info.api_group();
        let slash: &[u8] = if group.is_empty() { b"" } else { b"/" };
        let columns: [&[&[u8]]; COLUMNS] = [
            &[flow_distinguisher],
            &[user.name.as_bytes()],
            &[info.verb().as_str().as_bytes()],
            &[info.path()],
            &[info.namespace()],
            &[info.name()],
            &[group, slash, info.api_version()],
            &[info.resource()],
            &[info.subresource()],
        ];
        self.text.clear();
        for (column, end) in columns.into_iter().zip(&mut self.ends) {
            for piece in column {
                self.text.extend_from_slice(piece);
            }
            *end = self.text.len();
        }
    }

    /// A column. It need not be UTF-8.
    #[must_use]
    pub(crate) fn column(&self, column: DetailColumn) -> &[u8] {
        let at = column.index();
        let begin = at.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(at).copied().unwrap_or_default();
        self.text
            .get(begin.copied().unwrap_or_default()..end)
            .unwrap_or_default()
    }

    pub(super) fn is_reusable(&self) -> bool {
        (1..=MAX_KEPT_BYTES).contains(&self.text.capacity())
    }
}

impl DetailColumn {
    #[expect(clippy::as_conversions, reason = "a variant's position")]
    const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(method: &str, target: &str, buffer: RequestDetails) -> RequestDetails {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let user = UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        };
        let mut details = buffer;
        details.write(b"ns", &info, &user);
        details
    }

    #[test]
    fn each_column_is_read_back_from_a_reused_buffer() {
        let target = "/apis/apps/v1/namespaces/ns/deployments/web/scale";
        let scale = details("PUT", target, RequestDetails::default());
        let columns = |details: &RequestDetails, columns: &[DetailColumn]| -> Vec<String> {
            let text = |&column| String::from_utf8(details.column(column).to_vec()).unwrap();
            columns.iter().map(text).collect()
        };
        let all = [
            DetailColumn::FlowDistinguisher,
            DetailColumn::UserName,
            DetailColumn::Verb,
            DetailColumn::ApiPath,
            DetailColumn::Namespace,
            DetailColumn::Name,
            DetailColumn::ApiVersion,
            DetailColumn::Resource,
            DetailColumn::SubResource,
        ];
        let expected = [
            "ns",
            "alice",
            "update",
            target,
            "ns",
            "web",
            "apps/v1",
            "deployments",
            "scale",
        ];
        assert_eq!(columns(&scale, &all), expected);
        let nodes = details("GET", "/api/v1/nodes", scale);
        let expected = [
            "ns",
            "alice",
            "list",
            "/api/v1/nodes",
            "",
            "",
            "v1",
            "nodes",
            "",
        ];
        assert_eq!(columns(&nodes, &all), expected);
        let probe = details("GET", "/livez", nodes);
        let expected = ["ns", "alice", "get", "/livez", "", "", "", "", ""];
        assert_eq!(columns(&probe, &all), expected);
    }
}
