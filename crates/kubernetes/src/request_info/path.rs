//! The position of each part of a Kubernetes request in its path.
//!
//! This is the part of `RequestInfoFactory.NewRequestInfo` (Kubernetes 1.36,
//! `endpoints/request/requestinfo.go`) that reads only the path. Results are offsets into the
//! decoded path, so that the owner of the path can store them beside it.

/// API prefixes of kube-apiserver; the legacy one has no group in the path.
const LEGACY_PREFIX: &[u8] = b"api";
const GROUP_PREFIX: &[u8] = b"apis";

/// A range of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSpan {
    start: usize,
    end: usize,
}

impl ByteSpan {
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    pub(super) const fn end(self) -> usize {
        self.end
    }

    pub(super) const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes of the range in `text`.
    pub(super) fn slice(self, text: &[u8]) -> &[u8] {
        text.get(self.start..self.end).unwrap_or_default()
    }
}

/// A verb in the path instead of the method, an older form for these two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PathVerb {
    /// The path has no verb.
    #[default]
    Absent,
    /// The path has a verb without an operand.
    Dangling,
    Proxy,
    Watch,
}

/// The parts of a path. Parts that it does not have are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedPath {
    pub(super) is_resource_request: bool,
    pub(super) verb: PathVerb,
    pub(super) api_prefix: ByteSpan,
    pub(super) api_group: ByteSpan,
    pub(super) api_version: ByteSpan,
    pub(super) namespace: ByteSpan,
    pub(super) resource: ByteSpan,
    pub(super) name: ByteSpan,
    pub(super) subresource: ByteSpan,
    /// From the resource to the end, without trailing slashes.
    pub(super) parts: Option<ByteSpan>,
}

impl ParsedPath {
    pub(super) fn parse(path: &[u8]) -> Self {
        let mut located = Self::default();
        let segments = Segments::split(path);
        let [prefix, after_prefix @ ..] = segments.as_slice() else {
            return located;
        };
        if after_prefix.len() < 2 {
            return located;
        }
        let from_version = match prefix.slice(path) {
            LEGACY_PREFIX => after_prefix,
            GROUP_PREFIX => match after_prefix {
                [group, rest @ ..] if rest.len() >= 2 => {
                    located.api_group = *group;
                    rest
                }
                _ => {
                    located.api_prefix = *prefix;
                    return located;
                }
            },
            _ => return located,
        };
        located.api_prefix = *prefix;
        if let [version, rest @ ..] = from_version {
            located.is_resource_request = true;
            located.api_version = *version;
            located.parse_object(path, rest, segments.end);
        }
        located
    }

    /// Whether the subresource opens a stream to a pod, a service or a node.
    pub(super) fn connects(&self, path: &[u8]) -> bool {
        matches!(
            self.subresource.slice(path),
            b"attach" | b"exec" | b"log" | b"portforward" | b"proxy"
        )
    }

    fn parse_object(&mut self, path: &[u8], segments: &[ByteSpan], end: usize) {
        let (verb, segments) = match segments {
            [first, rest @ ..] => match first.slice(path) {
                b"proxy" | b"watch" if rest.is_empty() => (PathVerb::Dangling, rest),
                b"proxy" => (PathVerb::Proxy, rest),
                b"watch" => (PathVerb::Watch, rest),
                _ => (PathVerb::Absent, segments),
            },
            [] => return,
        };
        self.verb = verb;
        let parts = match segments {
            [first, namespace, rest @ ..] if first.slice(path) == b"namespaces" => {
                self.namespace = *namespace;
                match rest {
                    // The request is for the namespace itself.
                    [] => segments,
                    [third, ..] if matches!(third.slice(path), b"finalize" | b"status") => segments,
                    _ => rest,
                }
            }
            _ => segments,
        };
        let mut parts = parts.iter().copied();
        if let Some(resource) = parts.next() {
            self.parts = Some(ByteSpan::new(resource.start, end));
            self.resource = resource;
        }
        self.name = parts.next().unwrap_or_default();
        if verb != PathVerb::Proxy {
            self.subresource = parts.next().unwrap_or_default();
        }
    }
}

/// Maximum number of segments that are read: prefix, group, version, verb, `namespaces`, a
/// namespace, resource, name, subresource.
const MAX_SEGMENTS: usize = 9;

/// The first segments of a path, between its leading and trailing slashes. Inner segments may be
/// empty.
struct Segments {
    spans: [ByteSpan; MAX_SEGMENTS],
    count: usize,
    /// Offset of the trailing slashes.
    end: usize,
}

impl Segments {
    fn split(path: &[u8]) -> Self {
        let is_no_slash = |&b: &u8| b != b'/';
        let end = path
            .iter()
            .rposition(is_no_slash)
            .map_or(0, |last| last + 1);
        let mut start = path.iter().position(is_no_slash).unwrap_or(end);
        let mut spans = [ByteSpan::default(); MAX_SEGMENTS];
        let mut count = 0;
        for span in &mut spans {
            if start >= end {
                break;
            }
            let rest = ByteSpan::new(start, end).slice(path);
            let length = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            *span = ByteSpan::new(start, start + length);
            count += 1;
            start += length + 1;
        }
        Self { spans, count, end }
    }

    fn as_slice(&self) -> &[ByteSpan] {
        self.spans.get(..self.count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(path: &str) -> Vec<&str> {
        let segments = Segments::split(path.as_bytes());
        let text = |span: &ByteSpan| &path[span.start..span.end];
        segments.as_slice().iter().map(text).collect()
    }

    #[test]
    fn outer_slashes_are_trimmed_and_inner_ones_kept() {
        assert_eq!(segments(""), Vec::<&str>::new());
        assert_eq!(segments("///"), Vec::<&str>::new());
        assert_eq!(segments("a"), ["a"]);
        assert_eq!(segments("//a//b/c///"), ["a", "", "b", "c"]);
    }

    #[test]
    fn segments_past_the_ninth_are_ignored() {
        assert_eq!(segments("/1/2/3/4/5/6/7/8/9/10/11").len(), MAX_SEGMENTS);
    }

    #[test]
    fn parts_reach_to_the_end_of_a_path_of_any_length() {
        let path = b"/apis/g/v/watch/namespaces/n/r/name/sub/a/b/";
        let located = ParsedPath::parse(path);
        assert_eq!(located.parts.unwrap().slice(path), b"r/name/sub/a/b");
        assert_eq!(located.subresource.slice(path), b"sub");
    }
}
