//! Request targets that hold a `#`.
//!
//! To Go's server it is a character of the path; the HTTP library here takes it for the beginning of a fragment and cuts it off
//! in silence. What is forwarded must be what was sent, so such a request is refused, and for that the bytes of an HTTP/1.1
//! connection are looked over as they come. A request line that a `#` cuts is noted; the request that has its method and the
//! target up to there is the one. (HTTP/2 has no text to look at: there the target goes on without its fragment, to weir's
//! limits and to the upstream alike.)

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use memchr::memchr;
use memchr::memchr2;
use memchr::memrchr;

/// The longest request line that is followed over several reads; the HTTP library refuses longer targets.
const LONGEST_LINE: usize = 64 << 10;

/// Most cut request lines that are noted at a time: more are pipelined by nobody but who plays with it.
const MOST_NOTED: usize = 16;

/// What the bytes of one connection told.
#[derive(Default)]
pub struct Fragments {
    /// Set with the first note, so that an ordinary connection's requests ask for no lock.
    any: AtomicBool,
    hasher: RandomState,
    /// Held while bytes are looked over, or a note is taken.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The line so far, if it may be a request line.
    line: Vec<u8>,
    /// The line is longer than any request line.
    too_long: bool,
    /// Keyed hashes of the lines, since a line may be long.
    noted: Vec<u64>,
}

impl Fragments {
    /// Looks over what was read next.
    pub fn look(&self, bytes: &[u8]) {
        let mut state = self.state();
        let rest = if memchr(b'#', bytes).is_some() {
            self.note(&mut state, bytes)
        } else if let Some(end) = memrchr(b'\n', bytes) {
            // As nearly always: only the line that is not over yet is of interest.
            state.line.clear();
            state.too_long = false;
            bytes.get(end + 1..).unwrap_or_default()
        } else {
            bytes
        };
        if state.line.len() + rest.len() > LONGEST_LINE {
            state.too_long = true;
            state.line = Vec::new();
        } else if !state.too_long {
            state.line.extend_from_slice(rest);
        }
    }

    /// Notes the request lines that are cut, and returns what is left of the last line.
    fn note<'b>(&self, state: &mut State, bytes: &'b [u8]) -> &'b [u8] {
        let mut rest = bytes;
        while let Some(end) = memchr2(b'#', b'\n', rest) {
            let (line, ended) = rest.split_at(end);
            if state.line.len() + line.len() > LONGEST_LINE {
                state.too_long = true;
                state.line = Vec::new();
            }
            if ended.first() == Some(&b'#') && !state.too_long {
                state.line.extend_from_slice(line);
                if begins_request(&state.line) && state.noted.len() < MOST_NOTED {
                    let line = self.hasher.hash_one(state.line.as_slice());
                    state.noted.push(line);
                    self.any.store(true, Ordering::Release);
                }
                state.too_long = true; // what follows in this line is fragment
            } else {
                state.too_long &= ended.first() == Some(&b'#');
            }
            state.line.clear();
            rest = ended.get(1..).unwrap_or_default();
        }
        rest
    }

    /// Whether a `#` cut the target of this request; its note is used up by that.
    pub fn cut(&self, method: &str, target: &str) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let line = format!("{method} {target}");
        let line = self.hasher.hash_one(line.as_bytes());
        let mut state = self.state();
        let found = state.noted.iter().position(|cut| *cut == line);
        if let Some(at) = found {
            state.noted.remove(at);
        }
        found.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A method, a space, a slash.
fn begins_request(line: &[u8]) -> bool {
    let method = line.iter().take_while(|b| b.is_ascii_graphic()).count();
    method > 0
        && line
            .get(method..)
            .is_some_and(|rest| rest.starts_with(b" /"))
}

impl fmt::Debug for Fragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fragments({} noted)", self.state().noted.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_target_is_known_by_its_method_and_what_is_left_of_it() {
        let fragments = Fragments::default();
        fragments.look(b"GET /api/v1/pods?x=1#y HTTP/1.1\r\nhost: a#b\r\n\r\n");
        assert!(!fragments.cut("GET", "/api/v1/pods"));
        assert!(fragments.cut("GET", "/api/v1/pods?x=1"));
        assert!(
            !fragments.cut("GET", "/api/v1/pods?x=1"),
            "a note is for one request"
        );
    }

    #[test]
    fn reads_may_break_anywhere() {
        let text = b"POST / HTTP/1.1\r\n\r\nGET /a#b#c HTTP/1.1\r\n\r\nGET /d HTTP/1.1\r\n\r\n";
        for at in 0..text.len() {
            let fragments = Fragments::default();
            fragments.look(&text[..at]);
            fragments.look(&text[at..]);
            assert!(fragments.cut("GET", "/a"), "broken at {at}");
            assert!(!fragments.cut("GET", "/d") && !fragments.cut("POST", "/"));
        }
    }

    #[test]
    fn bodies_and_headers_are_no_request_lines_and_nothing_grows() {
        let fragments = Fragments::default();
        for _ in 0..100 {
            fragments.look(&[b'x'; 32 << 10]);
            fragments.look(b"#\ncolour: #fff\n{\"a\": \"GET /#\"}\n");
        }
        for _ in 0..100 {
            fragments.look(b"GET /#\n");
        }
        let state = fragments.state();
        assert!(state.line.capacity() <= 4 * LONGEST_LINE && state.noted.len() == MOST_NOTED);
    }

    #[test]
    fn long_lines_leave_nothing_behind() {
        let fragments = Fragments::default();
        for length in [LONGEST_LINE / 2, 20 * LONGEST_LINE] {
            for _ in 0..MOST_NOTED {
                let line = format!("GET /{}#x HTTP/1.1\r\n", "x".repeat(length));
                fragments.look(line.as_bytes());
            }
        }
        let state = fragments.state();
        assert_eq!(state.noted.len(), MOST_NOTED, "of the short ones");
        let kept = state.line.capacity() + size_of_val(state.noted.as_slice());
        assert!(kept <= 2 * LONGEST_LINE, "{kept} bytes");
    }
}
