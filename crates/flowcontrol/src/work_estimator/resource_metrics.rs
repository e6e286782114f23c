//! The number and size of objects that kube-apiserver reports, parsed from its metrics as they
//! stream.
//!
//! | family | since | value |
//! |---|---|---|
//! | `apiserver_resource_objects{group, resource}` | 1.34 | the number of objects |
//! | `apiserver_resource_size_estimate_bytes{group, resource}` | 1.34 | of all of them together |
//! | `apiserver_storage_objects{resource}` | gone after 1.36 | the same, by `resource.group` |
//! | `apiserver_flowcontrol_nominal_limit_seats{priority_level}` | 1.26 | the seats of a level |
//! | `process_resident_memory_bytes` | | what the server's process uses |
//!
//! kube-apiserver's own estimates use these values. Each is -1 where it is unknown. A large server
//! has tens of MB of metrics. The parser keeps no more than a line that begins like one of these.

use std::collections::HashMap;

/// The longest of these lines that is parsed: names have up to 253 bytes each.
const MAX_LINE_LENGTH: usize = 1024;
/// More resources than any API server has.
const MAX_RESOURCES: usize = 4096;

const OBJECTS_PREFIX: &str = "apiserver_resource_objects{";
const SIZES_PREFIX: &str = "apiserver_resource_size_estimate_bytes{";
const STORAGE_OBJECTS_PREFIX: &str = "apiserver_storage_objects{";
const NOMINAL_SEATS_PREFIX: &str = "apiserver_flowcontrol_nominal_limit_seats{";
const QUEUED_REQUESTS_PREFIX: &str = "apiserver_flowcontrol_current_inqueue_requests{";
const RESIDENT_MEMORY_PREFIX: &str = "process_resident_memory_bytes ";
const PREFIXES: [&str; 6] = [
    OBJECTS_PREFIX,
    SIZES_PREFIX,
    STORAGE_OBJECTS_PREFIX,
    NOMINAL_SEATS_PREFIX,
    QUEUED_REQUESTS_PREFIX,
    RESIDENT_MEMORY_PREFIX,
];

/// The count and size of one resource by kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerCount {
    /// The number of objects. `None` if the metrics contain the resource without a count.
    pub count: Option<u64>,
    /// Bytes, as stored. 0 if the server does not know it, `None` if the metrics do not contain it.
    pub average_size: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ResourceSeries {
    count: Option<u64>,
    size: Option<TotalSize>,
}

#[derive(Clone, Copy, Debug)]
enum TotalSize {
    Unknown,
    Bytes(u64),
}

/// Parses an exposition, chunk by chunk.
#[derive(Debug, Default)]
pub struct ResourceMetrics {
    /// By `resource.group`, as `GroupResource.String` writes it.
    resources: HashMap<Box<str>, ResourceSeries>,
    nominal_seats: Option<u64>,
    queued_requests: u64,
    resident_memory: Option<u64>,
    line: Vec<u8>,
    /// Whether the current line is skipped, because it does not begin like one of these.
    skips_line: bool,
}

impl ResourceMetrics {
    /// Parses the next part, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let (line, after) = match memchr::memchr(b'\n', rest) {
                Some(end) => (rest.get(..end), rest.get(end + 1..)),
                None => (Some(rest), None),
            };
            self.feed_line_part(line.unwrap_or_default());
            if after.is_some() {
                self.finish_line();
            }
            rest = after.unwrap_or_default();
        }
    }

    /// The server's counts, by `resource.group`.
    pub fn counts(&self) -> impl Iterator<Item = (&str, ServerCount)> {
        self.resources.iter().map(|(key, series)| {
            let average = |count| {
                move |size| match size {
                    TotalSize::Unknown => 0,
                    TotalSize::Bytes(bytes) => u64::checked_div(bytes, count).unwrap_or_default(),
                }
            };
            let counted = ServerCount {
                count: series.count,
                average_size: series
                    .count
                    .and_then(|count| series.size.map(average(count))),
            };
            (&**key, counted)
        })
    }

    /// The nominal seats of all levels of the server together. `None` if it reports none.
    #[must_use]
    pub const fn nominal_seats(&self) -> Option<u64> {
        self.nominal_seats
    }

    /// The requests in the queues of all levels of the server together.
    #[must_use]
    pub const fn queued_requests(&self) -> u64 {
        self.queued_requests
    }

    /// The memory that the server's process uses, in bytes, if it reports that.
    #[must_use]
    pub const fn resident_memory(&self) -> Option<u64> {
        self.resident_memory
    }

    fn feed_line_part(&mut self, part: &[u8]) {
        if self.skips_line {
            return;
        }
        let room = MAX_LINE_LENGTH.saturating_sub(self.line.len());
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
        let begins = |name: &str| {
            let length = name.len().min(self.line.len());
            self.line.get(..length) == name.as_bytes().get(..length)
        };
        self.skips_line = part.len() > room || !PREFIXES.into_iter().any(begins);
        if self.skips_line {
            self.line.clear();
        }
    }

    fn finish_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.skips_line) {
            let _ = str::from_utf8(&line)
                .ok()
                .and_then(|line| self.parse_line(line));
        }
        self.line = line; // reuses its memory
        self.line.clear();
    }

    /// `None` if the line is malformed.
    fn parse_line(&mut self, line: &str) -> Option<()> {
        if let Some(value) = line.strip_prefix(RESIDENT_MEMORY_PREFIX) {
            self.resident_memory = to_count(value.trim().parse().ok()?);
            return Some(());
        }
        let (labels, value) = line.rsplit_once("} ")?;
        let value = value.split_ascii_whitespace().next()?;
        let value: f64 = value.parse().ok()?;
        if let Some(labels) = labels.strip_prefix(STORAGE_OBJECTS_PREFIX) {
            let (_, resource) = parse_labels(labels)?;
            let count = &mut self.series_mut(resource.to_owned())?.count;
            *count = count.or(to_count(value));
            return Some(());
        }
        if labels.starts_with(NOMINAL_SEATS_PREFIX) {
            let seats = self.nominal_seats.get_or_insert_default();
            *seats = seats.saturating_add(to_count(value)?);
            return Some(());
        }
        if labels.starts_with(QUEUED_REQUESTS_PREFIX) {
            self.queued_requests = self.queued_requests.saturating_add(to_count(value)?);
            return Some(());
        }
        let is_count = labels.starts_with(OBJECTS_PREFIX);
        let labels = labels
            .strip_prefix(OBJECTS_PREFIX)
            .or_else(|| labels.strip_prefix(SIZES_PREFIX))?;
        let (group, resource) = parse_labels(labels)?;
        let dot = if group.is_empty() { "" } else { "." };
        let series = self.series_mut(format!("{resource}{dot}{group}"))?;
        if is_count {
            series.count = to_count(value);
        } else {
            series.size = Some(to_count(value).map_or(TotalSize::Unknown, TotalSize::Bytes));
        }
        Some(())
    }

    fn series_mut(&mut self, key: String) -> Option<&mut ResourceSeries> {
        let key = key.into_boxed_str();
        if self.resources.len() >= MAX_RESOURCES && !self.resources.contains_key(&key) {
            return None;
        }
        Some(self.resources.entry(key).or_default())
    }
}

/// The group (empty if absent) and the resource. `None` without a resource.
fn parse_labels(labels: &str) -> Option<(&str, &str)> {
    let (mut group, mut resource) = ("", None);
    for label in labels.split(',') {
        let (name, value) = label.split_once('=')?;
        let value = value.strip_prefix('"')?.strip_suffix('"')?;
        match name {
            "group" => group = value,
            "resource" => resource = Some(value),
            _ => {}
        }
    }
    Some((group, resource?))
}

/// A number as Go writes it (`1e+06`). `None` if it is negative.
#[expect(
    clippy::as_conversions,
    reason = "there is no other conversion; it saturates, and what is negative was left out"
)]
fn to_count(value: f64) -> Option<u64> {
    (value >= 0.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nominal_seats_and_queued_requests_of_all_levels_are_added_up() {
        let text = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"a\",priority_level=\"system\"} 3\n\
                    apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"b\",priority_level=\"system\"} 4\n\
                    apiserver_flowcontrol_nominal_limit_seats{priority_level=\"system\"} 73\n\
                    apiserver_flowcontrol_nominal_limit_seats{priority_level=\"exempt\"} 0\n\
                    apiserver_flowcontrol_current_limit_seats{priority_level=\"system\"} 99\n\
                    process_resident_memory_bytes 1.5e+09\n\
                    apiserver_flowcontrol_nominal_limit_seats{priority_level=\"catch-all\"} 1.3e+01\n";
        let mut metrics = ResourceMetrics::default();
        assert_eq!(metrics.nominal_seats(), None);
        for piece in text.as_bytes().chunks(7) {
            metrics.feed(piece);
        }
        assert_eq!(metrics.nominal_seats(), Some(86));
        assert_eq!(metrics.queued_requests(), 7);
        assert_eq!(metrics.resident_memory(), Some(1_500_000_000));
    }

    const METRICS: &str = r#"# HELP apiserver_resource_objects [ALPHA] Number of stored objects
# TYPE apiserver_resource_objects gauge
apiserver_resource_objects{group="",resource="events"} 401
apiserver_resource_objects{group="",resource="pods"} 1.2e+06
apiserver_resource_objects{group="apps",resource="deployments"} 7
apiserver_resource_objects{group="apps",resource="daemonsets"} -1
apiserver_resource_objects_other{group="",resource="x"} 7
# TYPE apiserver_resource_size_estimate_bytes gauge
apiserver_resource_size_estimate_bytes{group="",resource="events"} -1
apiserver_resource_size_estimate_bytes{group="",resource="pods"} 6e+09
apiserver_resource_size_estimate_bytes{group="apps",resource="daemonsets"} -1
# TYPE apiserver_storage_objects gauge
apiserver_storage_objects{resource="deployments.apps"} 8
apiserver_storage_objects{resource="secrets"} 9
apiserver_storage_objects{resource=broken} 9
apiserver_storage_objects{other="x"} 9
apiserver_request_total{code="200"} 3
"#;

    fn parse(chunks: &[&[u8]]) -> Vec<(String, Option<u64>, Option<u64>)> {
        let mut metrics = ResourceMetrics::default();
        for chunk in chunks {
            metrics.feed(chunk);
        }
        let counted = metrics.counts();
        let mut counted: Vec<_> = counted
            .map(|(key, counted)| (key.to_owned(), counted.count, counted.average_size))
            .collect();
        counted.sort();
        counted
    }

    #[test]
    fn counts_and_sizes_are_parsed_wherever_the_exposition_is_split() {
        let expected = [
            ("daemonsets.apps", None, None),
            ("deployments.apps", Some(7), None),
            ("events", Some(401), Some(0)),
            ("pods", Some(1_200_000), Some(5000)),
            ("secrets", Some(9), None),
        ]
        .map(|(key, count, size)| (key.to_owned(), count, size));
        for at in 0..METRICS.len() {
            let (head, tail) = METRICS.as_bytes().split_at(at);
            assert_eq!(parse(&[head, tail]), expected, "cut at {at}");
        }
        let bytes: Vec<_> = METRICS.as_bytes().chunks(1).collect();
        assert_eq!(parse(&bytes), expected);
    }

    #[test]
    fn a_line_without_end_uses_bounded_memory() {
        let mut metrics = ResourceMetrics::default();
        metrics.feed(b"apiserver_resource_objects{group=\"");
        for _ in 0..1000 {
            metrics.feed(&[b'a'; 4096]);
        }
        assert!(metrics.line.capacity() <= 2 * MAX_LINE_LENGTH);
        metrics.feed(
            b"\",resource=\"x\"} 7\napiserver_resource_objects{group=\"\",resource=\"y\"} 7\n",
        );
        assert_eq!(metrics.counts().count(), 1);
    }
}
