//! Many requests: a line of JSON in, a line of JSON out.

use std::io;
use std::io::{BufRead, Read, Write};

use serde::Serialize;

use crate::explainer::{Explainer, Explanation, ResolvedRequest};
use crate::now::{LevelsNow, Now};
use crate::request::ExplainRequest;
use weir_kubernetes::encoding::printable::escape_json;

/// The longest line in bytes. A request body is at most 3 MiB, and escapes make it longer.
const MAX_LINE_BYTES: u64 = 32 << 20;

/// The lines of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// The lines that were explained.
    pub explained: u64,
    /// The lines that are not a request.
    pub failed: u64,
}

/// An explanation, and the state of a running weir if that is known.
#[derive(Debug, Serialize)]
pub struct ExplanationLine<'e> {
    /// The explanation.
    #[serde(flatten)]
    pub explanation: &'e Explanation<'e>,
    /// What would become of the request now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Now<'e>>,
}

/// A line that is not a request.
#[derive(Debug, Serialize)]
struct ErrorLine {
    line: u64,
    error: String,
}

/// Explains each line of `input` with a line of `output`, in order. A line that is not a request
/// gets an object with its number (from 1) and the error. Empty lines are skipped.
///
/// # Errors
/// `input` cannot be read, or `output` cannot be written.
pub fn explain_lines(
    explainer: &Explainer,
    now: Option<&LevelsNow>,
    mut input: impl BufRead,
    mut output: impl Write,
) -> io::Result<BatchCounts> {
    let mut counts = BatchCounts::default();
    let (mut line, mut number) = (Vec::new(), 0);
    while read_line(&mut input, &mut line)? {
        number += 1;
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match explain_line(explainer, now, text, &mut output)? {
            Ok(()) => counts.explained += 1,
            Err(error) => {
                counts.failed += 1;
                let line = number;
                write_line(&ErrorLine { line, error }, &mut output)?;
            }
        }
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(counts)
}

/// The inner error is that of the line.
fn explain_line(
    explainer: &Explainer,
    now: Option<&LevelsNow>,
    text: &[u8],
    output: &mut impl Write,
) -> io::Result<Result<(), String>> {
    if text.len() > usize::try_from(MAX_LINE_BYTES).unwrap_or(usize::MAX) {
        return Ok(Err(format!("longer than {MAX_LINE_BYTES} bytes")));
    }
    let request: ExplainRequest<'_> = match serde_json::from_slice(text) {
        Ok(request) => request,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let resolved = match ResolvedRequest::new(&request) {
        Ok(resolved) => resolved,
        Err(why) => return Ok(Err(why.to_owned())),
    };
    let explanation = explainer.explain(&resolved);
    let now = now.map(|levels| levels.explain(&explanation));
    match now {
        // Without the flattened field, which serde buffers.
        None => write_line(&explanation, output)?,
        Some(now) => {
            let line = ExplanationLine {
                explanation: &explanation,
                now: Some(now),
            };
            write_line(&line, output)?;
        }
    }
    Ok(Ok(()))
}

fn write_line(line: &impl Serialize, output: &mut impl Write) -> io::Result<()> {
    let text = serde_json::to_string(line)?;
    output.write_all(escape_json(&text).as_bytes())
}

/// Reads a line without its end. Of a longer line than allowed, one byte more than allowed. `false`
/// at the end of the input.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = input
        .by_ref()
        .take(MAX_LINE_BYTES + 1)
        .read_until(b'\n', line)?;
    if read == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > usize::try_from(MAX_LINE_BYTES).unwrap_or(usize::MAX) {
        input.skip_until(b'\n')?;
    }
    Ok(true)
}
