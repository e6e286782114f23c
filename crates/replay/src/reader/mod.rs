//! Reads logs: audit logs of kube-apiserver and of weir, and arrivals. Plain, or compressed with
//! gzip or zstd; many files, of several servers.

mod audit_event;
mod compressed;
pub mod input;
mod line;
pub mod merge;
pub mod pool;
#[cfg(test)]
mod tests;
pub mod window;

/// Reads the beginning of a log, perhaps compressed, and parses its lines.
#[cfg(fuzzing)]
pub fn parse_bytes(bytes: &[u8]) {
    use std::io::{Cursor, Read};
    use std::sync::Arc;

    const MOST_BYTES: u64 = 1 << 20;
    let Ok(text) = compressed::decompress(Cursor::new(bytes.to_vec())) else {
        return;
    };
    let mut read = Vec::new();
    let _ = text.take(MOST_BYTES).read_to_end(&mut read); // what was read is parsed
    let mut parser = line::LineParser::new(Arc::default());
    for line in read.split(|byte| *byte == b'\n') {
        parser.parse(line);
    }
}
