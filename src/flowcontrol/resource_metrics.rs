//! How many objects kube-apiserver says that there are, and how large they are, read from its
//! metrics as they pass.
//!
//! | family | since | value |
//! |---|---|---|
//! | `apiserver_resource_objects{group, resource}` | 1.34 | the number of objects |
//! | `apiserver_resource_size_estimate_bytes{group, resource}` | 1.34 | of all of them together |
//! | `apiserver_storage_objects{resource}` | gone after 1.36 | the number of objects, by `resource.group` |
//!
//! These are what its own estimates go by. Each is -1 where it is not known. Of the tens of MB that
//! a large server has nothing is kept but a line that begins like one of these.

use std::collections::HashMap;

/// The longest line of these that is read: names have up to 253 bytes each.
const LONGEST_LINE: usize = 1024;
/// More resources than any API server has.
const MOST_RESOURCES: usize = 4096;

const OBJECTS: &str = "apiserver_resource_objects{";
const SIZES: &str = "apiserver_resource_size_estimate_bytes{";
const STORAGE_OBJECTS: &str = "apiserver_storage_objects{";

/// What kube-apiserver has counted of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedByServer {
    /// How many there are; none if the server names the resource and could not count it.
    pub count: Option<u64>,
    /// Bytes, as stored; 0 if the server does not know, none if it does not say.
    pub average_size: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    count: Option<u64>,
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Unknown,
    Bytes(u64),
}

/// Reads an exposition, chunk by chunk.
#[derive(Debug, Default)]
pub struct ResourceMetrics {
    /// By `resource.group`, as `GroupResource.String` writes it.
    resources: HashMap<Box<str>, Series>,
    line: Vec<u8>,
    /// The line is none of these.
    skips: bool,
}

impl ResourceMetrics {
    /// Takes in the next part, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let (line, after) = match memchr::memchr(b'\n', rest) {
                Some(end) => (rest.get(..end), rest.get(end + 1..)),
                None => (Some(rest), None),
            };
            self.part(line.unwrap_or_default());
            if after.is_some() {
                self.line_ended();
            }
            rest = after.unwrap_or_default();
        }
    }

    /// What the server has counted, by `resource.group`.
    pub fn counted(&self) -> impl Iterator<Item = (&str, CountedByServer)> {
        self.resources.iter().map(|(key, series)| {
            let of = |count| {
                move |size| match size {
                    Size::Unknown => 0,
                    Size::Bytes(bytes) => u64::checked_div(bytes, count).unwrap_or_default(),
                }
            };
            let counted = CountedByServer {
                count: series.count,
                average_size: series.count.and_then(|count| series.size.map(of(count))),
            };
            (&**key, counted)
        })
    }

    fn part(&mut self, part: &[u8]) {
        if self.skips {
            return;
        }
        let room = LONGEST_LINE.saturating_sub(self.line.len());
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
        let begins = |name: &str| {
            let length = name.len().min(self.line.len());
            self.line.get(..length) == name.as_bytes().get(..length)
        };
        self.skips =
            part.len() > room || ![OBJECTS, SIZES, STORAGE_OBJECTS].into_iter().any(begins);
        if self.skips {
            self.line.clear();
        }
    }

    fn line_ended(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.skips) {
            let _ = str::from_utf8(&line).ok().and_then(|line| self.read(line));
        }
        self.line = line; // its memory
        self.line.clear();
    }

    /// None if it is not as it should be.
    fn read(&mut self, line: &str) -> Option<()> {
        let (labels, value) = line.rsplit_once("} ")?;
        let value = value.split_ascii_whitespace().next()?;
        let value: f64 = value.parse().ok()?;
        if let Some(labels) = labels.strip_prefix(STORAGE_OBJECTS) {
            let (_, resource) = labels_of(labels)?;
            let count = &mut self.series(resource.to_owned())?.count;
            *count = count.or(whole(value));
            return Some(());
        }
        let is_count = labels.starts_with(OBJECTS);
        let labels = labels
            .strip_prefix(OBJECTS)
            .or_else(|| labels.strip_prefix(SIZES))?;
        let (group, resource) = labels_of(labels)?;
        let dot = if group.is_empty() { "" } else { "." };
        let series = self.series(format!("{resource}{dot}{group}"))?;
        if is_count {
            series.count = whole(value);
        } else {
            series.size = Some(whole(value).map_or(Size::Unknown, Size::Bytes));
        }
        Some(())
    }

    fn series(&mut self, key: String) -> Option<&mut Series> {
        let key = key.into_boxed_str();
        if self.resources.len() >= MOST_RESOURCES && !self.resources.contains_key(&key) {
            return None;
        }
        Some(self.resources.entry(key).or_default())
    }
}

/// The group, if there is one, and the resource; none if there is no resource.
fn labels_of(labels: &str) -> Option<(&str, &str)> {
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

/// A number as Go writes it (`1e+06`); none if it is negative.
#[expect(
    clippy::as_conversions,
    reason = "there is no other conversion; it saturates, and what is negative was left out"
)]
fn whole(value: f64) -> Option<u64> {
    (value >= 0.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn counted(chunks: &[&[u8]]) -> Vec<(String, Option<u64>, Option<u64>)> {
        let mut metrics = ResourceMetrics::default();
        for chunk in chunks {
            metrics.feed(chunk);
        }
        let counted = metrics.counted();
        let mut counted: Vec<_> = counted
            .map(|(key, counted)| (key.to_owned(), counted.count, counted.average_size))
            .collect();
        counted.sort();
        counted
    }

    #[test]
    fn counts_and_sizes_are_found_wherever_the_exposition_is_cut() {
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
            assert_eq!(counted(&[head, tail]), expected, "cut at {at}");
        }
        let bytes: Vec<_> = METRICS.as_bytes().chunks(1).collect();
        assert_eq!(counted(&bytes), expected);
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut metrics = ResourceMetrics::default();
        metrics.feed(b"apiserver_resource_objects{group=\"");
        for _ in 0..1000 {
            metrics.feed(&[b'a'; 4096]);
        }
        assert!(metrics.line.capacity() <= 2 * LONGEST_LINE);
        metrics.feed(
            b"\",resource=\"x\"} 7\napiserver_resource_objects{group=\"\",resource=\"y\"} 7\n",
        );
        assert_eq!(metrics.counted().count(), 1);
    }
}
