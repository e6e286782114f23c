//! Request targets that contain a `#`.
//!
//! Go's server treats `#` as a character of the path. The HTTP library here treats it as the start
//! of a fragment and silently truncates the target. weir must forward what was sent, so it rejects
//! such a request. To detect it, weir scans the bytes of an HTTP/1.1 connection as they arrive and
//! records each line that ends like a request line truncated by a `#`. The request with the same
//! method and the truncated target is the one. The scan does not know where a body ends, so the
//! last bytes of a body may precede the method, and a line inside a body may be mistaken for a
//! request line. (HTTP/2 has no text to scan. There the target goes without its fragment to weir's
//! limits and to the upstream alike.)

use parking_lot::Mutex;
use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use http::Uri;
use memchr::memchr;
use memchr::memchr_iter;
use memchr::memrchr;

/// The longest target that is followed over several reads; the HTTP library rejects longer ones.
const MAX_TARGET_LENGTH: usize = 64 << 10;

/// The longest scheme that the HTTP library accepts.
const MAX_SCHEME_LENGTH: usize = 64;

/// The length of a method that is compared: all of every common one.
const MAX_METHOD_LENGTH: usize = 32;

/// The maximum allocation between two lines, in bytes: enough for a usual body.
const MAX_RETAINED_CAPACITY: usize = 4 << 10;

/// Maximum number of recorded truncated lines; the newest stay. No ordinary client pipelines more.
const MAX_TRUNCATED_LINES: usize = 16;

/// The truncated request lines of one connection.
#[derive(Default)]
pub struct TargetFragments {
    /// Set with the first record, so that requests of an ordinary connection take no lock.
    any_truncated: AtomicBool,
    hasher: RandomState,
    /// Locked while bytes are scanned or a record is removed.
    state: Mutex<ScanState>,
}

#[derive(Default)]
struct ScanState {
    /// The part of the current line that may belong to a request line. It may begin with the end of
    /// a body, which ends by its length and not with a newline.
    line: Vec<u8>,
    truncated: VecDeque<TruncatedRequestLine>,
}

/// A request line that was truncated.
struct TruncatedRequestLine {
    /// The method's characters, at most [`MAX_METHOD_LENGTH`], with preceding characters that could
    /// belong to a method.
    method: Vec<u8>,
    /// A keyed hash of the target up to the `#`, since a target may be long.
    target: u64,
}

impl TargetFragments {
    /// Scans the bytes that were read next.
    pub(crate) fn scan(&self, bytes: &[u8]) {
        let mut state = self.state();
        let mut rest = bytes;
        if let Some(end) = memrchr(b'\n', bytes) {
            let (lines, last) = bytes.split_at(end);
            // Nearly always only the unfinished line matters.
            if memchr(b'#', &state.line).is_some() || memchr(b'#', lines).is_some() {
                self.record_truncated_lines(&mut state, lines);
            }
            state.line.clear();
            rest = last.get(1..).unwrap_or_default();
        }
        state.append(rest);
    }

    /// Records those of the lines that are truncated request lines.
    fn record_truncated_lines(&self, state: &mut ScanState, lines: &[u8]) {
        let mut begin = 0;
        for end in memchr_iter(b'\n', lines).chain([lines.len()]) {
            let line = lines.get(begin..end).unwrap_or_default();
            if begin == 0 {
                state.append(line); // joins what came before
                let line = std::mem::take(&mut state.line);
                state.push_truncated(self.parse_truncated(&line));
            } else {
                state.push_truncated(self.parse_truncated(line));
            }
            begin = end + 1;
        }
        self.any_truncated
            .store(!state.truncated.is_empty(), Ordering::Release);
    }

    /// Parses a line that ends like a request line truncated by a `#`.
    fn parse_truncated(&self, line: &[u8]) -> Option<TruncatedRequestLine> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line
            .strip_suffix(b" HTTP/1.1")
            .or_else(|| line.strip_suffix(b" HTTP/1.0"))?;
        let (before, target) = split_last_token(line)?;
        let method = trailing_method(before);
        if method.is_empty() || memchr(b'#', target).is_none() {
            return None;
        }
        // Parsed as the HTTP library does: it may be absolute.
        let target = Uri::try_from(target).ok()?;
        Some(TruncatedRequestLine {
            method: method.to_vec(),
            target: self.hasher.hash_one(target.path_and_query()?.as_str()),
        })
    }

    /// Whether a `#` truncated the target of this request. Removes the record.
    pub(crate) fn take_truncated(&self, method: &str, target: &str) -> bool {
        if !self.any_truncated.load(Ordering::Acquire) {
            return false;
        }
        let target = self.hasher.hash_one(target);
        let mut state = self.state();
        let found = state
            .truncated
            .iter()
            .position(|line| line.target == target && line.matches_method(method.as_bytes()));
        found.and_then(|at| state.truncated.remove(at)).is_some()
    }

    fn state(&self) -> MutexGuard<'_, ScanState> {
        self.state.lock()
    }
}

impl ScanState {
    /// Appends to the current line and keeps only what is needed of it.
    fn append(&mut self, bytes: &[u8]) {
        self.line.extend_from_slice(bytes);
        let over = self.line.len() - possible_request_line(&self.line).len();
        self.line.drain(..over);
        if self.line.capacity() > MAX_RETAINED_CAPACITY.max(4 * self.line.len()) {
            self.line.shrink_to(MAX_RETAINED_CAPACITY);
        }
    }

    fn push_truncated(&mut self, line: Option<TruncatedRequestLine>) {
        let Some(line) = line else { return };
        // A body may be full of such lines; the request follows it.
        if self.truncated.len() == MAX_TRUNCATED_LINES {
            self.truncated.pop_front();
        }
        self.truncated.push_back(line);
    }
}

impl TruncatedRequestLine {
    fn matches_method(&self, method: &[u8]) -> bool {
        let is_whole = self.method.len() < MAX_METHOD_LENGTH;
        self.method.ends_with(method) || !is_whole && method.ends_with(&self.method)
    }
}

/// The end of an unfinished line that may start a request line: a method; a method and (a part of)
/// a target; or both and (a part of) the version.
fn possible_request_line(line: &[u8]) -> &[u8] {
    let Some((before, word)) = split_last_token(line) else {
        return from_method(line, line.len());
    };
    let is_version = b"HTTP/1.1\r".starts_with(word) || b"HTTP/1.0\r".starts_with(word);
    if is_version
        && let Some((before, target)) = split_last_token(before)
        && could_be_target(target)
    {
        return from_method(line, before.len());
    }
    if could_be_target(word) {
        return from_method(line, before.len());
    }
    from_method(line, line.len())
}

/// Splits at the last space.
fn split_last_token(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, word) = line.split_at(memrchr(b' ', line)?);
    Some((before, word.get(1..)?))
}

/// Whether this is a path, an absolute target, or a prefix of either.
fn could_be_target(word: &[u8]) -> bool {
    let is_of_scheme = |b: &&u8| b.is_ascii_alphanumeric() || b"+-.".contains(*b);
    let scheme = word.iter().take_while(is_of_scheme).count();
    let rest = word.get(scheme..).unwrap_or_default();
    let is_absolute =
        rest.starts_with(b"://") || scheme <= MAX_SCHEME_LENGTH && b"://".starts_with(rest);
    word.len() <= MAX_TARGET_LENGTH && (is_absolute || word.starts_with(b"/"))
}

/// The line from the method that may end at `end`.
fn from_method(line: &[u8], end: usize) -> &[u8] {
    let before = line.get(..end).unwrap_or_default();
    line.get(end - trailing_method(before).len()..)
        .unwrap_or_default()
}

/// The trailing characters that may be those of a method.
fn trailing_method(text: &[u8]) -> &[u8] {
    let is_of_method = |b: &&u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(*b);
    let method = text.iter().rev().take_while(is_of_method);
    let length = method.take(MAX_METHOD_LENGTH).count();
    text.get(text.len() - length..).unwrap_or_default()
}

impl fmt::Debug for TargetFragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TargetFragments({} truncated)",
            self.state().truncated.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_target_is_found_by_its_method_and_remaining_path() {
        let fragments = TargetFragments::default();
        fragments.scan(b"GET /api/v1/pods?x=1#y HTTP/1.1\r\nhost: a#b\r\n\r\n");
        assert!(!fragments.take_truncated("GET", "/api/v1/pods"));
        assert!(fragments.take_truncated("GET", "/api/v1/pods?x=1"));
        assert!(
            !fragments.take_truncated("GET", "/api/v1/pods?x=1"),
            "a note is for one request"
        );
    }

    #[test]
    fn reads_may_break_anywhere() {
        let text = b"POST / HTTP/1.1\r\n\r\nGET /a#b#c HTTP/1.1\r\n\r\nGET /d HTTP/1.1\r\n\r\n";
        for at in 0..text.len() {
            let fragments = TargetFragments::default();
            fragments.scan(&text[..at]);
            fragments.scan(&text[at..]);
            assert!(fragments.take_truncated("GET", "/a"), "broken at {at}");
            assert!(
                !fragments.take_truncated("GET", "/d") && !fragments.take_truncated("POST", "/")
            );
        }
    }

    /// Scans these bytes at once and split in two at every position.
    fn scanned(text: &[u8], mut then: impl FnMut(&TargetFragments)) {
        for at in 0..text.len() {
            let fragments = TargetFragments::default();
            fragments.scan(&text[..at]);
            fragments.scan(&text[at..]);
            then(&fragments);
        }
        let fragments = TargetFragments::default();
        text.chunks(1).for_each(|byte| fragments.scan(byte));
        then(&fragments);
    }

    #[test]
    fn a_body_without_a_newline_may_precede_the_method() {
        const CUT: &str = "DELETE /api/v1/namespaces/a/pods#x HTTP/1.1\r\n";
        for body in [
            "{\"a\":1}",
            "{\"a\": \"b c\"}",
            "\"#\"",
            "a: #fff ",
            "GET /x#y ",
            "GET /x#y HTTP/1.1",
            "word",
            "\u{e9}\0",
            "two\nlines",
        ] {
            scanned(format!("{body}{CUT}").as_bytes(), |fragments| {
                assert!(!fragments.take_truncated("DELETE", "/api/v1/namespaces/a/pods/b"));
                assert!(!fragments.take_truncated("PATCH", "/api/v1/namespaces/a/pods"));
                assert!(!fragments.take_truncated("GET", "/x"), "{body:?}");
                assert!(
                    fragments.take_truncated("DELETE", "/api/v1/namespaces/a/pods"),
                    "{body:?}"
                );
            });
        }
        for length in [
            MAX_TARGET_LENGTH - 1,
            MAX_TARGET_LENGTH,
            10 * MAX_TARGET_LENGTH,
        ] {
            for filling in ["x", " ", "/", "{", "a /"] {
                let fragments = TargetFragments::default();
                let body = filling.repeat(length);
                let parts = body.as_bytes().chunks(16 << 10);
                parts.for_each(|part| fragments.scan(part));
                fragments.scan(CUT.as_bytes());
                assert!(fragments.take_truncated("DELETE", "/api/v1/namespaces/a/pods"));
            }
        }
    }

    #[test]
    fn no_body_and_no_read_boundary_hides_a_truncated_target() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let parts = [
            " ", "/", "#", "\r", "\n", "x", "http", "://", "{", "GET", "HTTP/1.1",
        ];
        for _ in 0..20_000 {
            let body: Vec<_> = (0..random.usize(..12))
                .map(|_| parts[random.usize(..parts.len())])
                .collect();
            let text = format!("{}PUT /a?b#c/d HTTP/1.1\r\nhost: weir\r\n", body.concat());
            let fragments = TargetFragments::default();
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(random.usize(1..=rest.len()));
                fragments.scan(now);
                rest = later;
            }
            assert!(fragments.take_truncated("PUT", "/a?b"), "{text:?}");
        }
    }

    #[test]
    fn methods_of_any_length_and_absolute_targets_are_recognized() {
        for (method, target, path) in [
            ("A", "/#", "/"),
            ("M-SEARCH", "https://weir/a?b#c?d", "/a?b"),
            ("GET", "http://weir#/a", "/"),
            (&"X".repeat(MAX_METHOD_LENGTH), "/a#", "/a"),
            (&"X".repeat(3 * MAX_METHOD_LENGTH), "/a#", "/a"),
        ] {
            let line = format!("{{}}{method} {target} HTTP/1.0\n");
            scanned(line.as_bytes(), |fragments| {
                let other = format!("Y{method}");
                assert!(
                    method.len() >= MAX_METHOD_LENGTH || !fragments.take_truncated(&other, path),
                    "{line}"
                );
                assert!(fragments.take_truncated(method, path), "{line}");
            });
        }
    }

    #[test]
    fn text_that_quotes_a_request_line_is_not_one() {
        scanned(
            b"{\"a\": \"GET /x#y HTTP/1.1\"}\nGET /x#y\nGET /x #y HTTP/1.1\nreferer: /x#y HTTP/1.1\n\
              GET /x#y HTTP/1.1 \nGET /x#y HTTP/1.10\n /x#y HTTP/1.1\n\"/x#y HTTP/1.1\n",
            |fragments| assert!(!fragments.take_truncated("GET", "/x") && !fragments.take_truncated("", "/x")),
        );
    }

    #[test]
    fn bodies_and_headers_are_not_request_lines_and_memory_stays_bounded() {
        let fragments = TargetFragments::default();
        for _ in 0..100 {
            fragments.scan(&[b'x'; 32 << 10]);
            fragments.scan(b"#\ncolour: #fff\n{\"a\": \"GET /#\"}\n");
        }
        assert_eq!(fragments.state().truncated.len(), 0);
        for n in 0..100 {
            fragments.scan(format!("GET /{n}# HTTP/1.1\n").as_bytes());
        }
        assert_eq!(fragments.state().truncated.len(), MAX_TRUNCATED_LINES);
        assert!(
            !fragments.take_truncated("GET", "/0") && fragments.take_truncated("GET", "/99"),
            "the newest"
        );
    }

    #[test]
    fn a_line_retains_only_what_is_needed() {
        let fragments = TargetFragments::default();
        let kept = || fragments.state().line.capacity();
        for text in [
            "{\"a\":\"b c\"}",
            "x",
            "GET /a HTTP/1.1 ",
            "a {",
            "c\"}",
            "\n",
        ] {
            for _ in 0..MAX_TARGET_LENGTH / 64 {
                fragments.scan(text.repeat(100).as_bytes());
                assert!(
                    kept() <= MAX_RETAINED_CAPACITY,
                    "{text:?}: {} bytes",
                    kept()
                );
            }
        }
        for length in [MAX_TARGET_LENGTH / 2, 20 * MAX_TARGET_LENGTH] {
            for n in 0..MAX_TRUNCATED_LINES {
                let line = format!("GET /{n}/{}#x HTTP/1.1\r\n", "x".repeat(length));
                for part in line.as_bytes().chunks(1 << 10) {
                    fragments.scan(part);
                    assert!(kept() <= 3 * MAX_TARGET_LENGTH, "{} bytes", kept());
                }
                assert!(kept() <= MAX_RETAINED_CAPACITY, "{} bytes", kept());
            }
        }
        let left = "x".repeat(MAX_TARGET_LENGTH / 2);
        assert!(
            fragments.take_truncated("GET", &format!("/0/{left}")),
            "of the short ones"
        );
    }
}
