//! Client of the control socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use crate::control::message::{ControlAnswer, ControlRequest, MAX_ANSWER_BYTES};

/// The longest wait for an answer: more than weir takes for one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request to the first of `paths` at which a process answers.
///
/// # Errors
/// Why there is no answer, by path.
pub(super) fn ask(paths: &[PathBuf], request: &ControlRequest) -> Result<ControlAnswer, String> {
    let mut failures = Vec::new();
    for path in paths {
        match UnixStream::connect(path) {
            Ok(stream) => return exchange(stream, request).map_err(|why| failure(path, why)),
            Err(why) => failures.push(failure(path, why)),
        }
    }
    Err(format!("weir is not reachable: {}", failures.join("; ")))
}

fn failure(path: &Path, why: impl fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

fn exchange(mut stream: UnixStream, request: &ControlRequest) -> io::Result<ControlAnswer> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    let most = u64::try_from(MAX_ANSWER_BYTES).unwrap_or(u64::MAX);
    BufReader::new(stream.take(most)).read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::other("it closed the connection"));
    }
    Ok(serde_json::from_slice(&answer)?)
}
