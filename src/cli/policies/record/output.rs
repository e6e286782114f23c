//! The output of `weir record`: whole lines, within a size, perhaps compressed.

use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::observe::logging::recording::line::{LinePseudonymizer, note_line};
use crate::observe::logging::recording::sinks::{
    MEMBER_BYTES, gzip_member, is_gzip_name, max_member_bytes,
};
use weir_kubernetes::numeric::saturating_u64;

/// Only the owner may read the record: it names users and their requests.
const FILE_MODE: u32 = 0o600;

/// Room for the last line, in bytes.
const END_BYTES: u64 = 256;

/// The error of a file with something in it.
const EXISTS: &str = "exists and is not empty: give another name, or remove it";

const MEGABYTE: u64 = 1 << 20;

/// Longest line, in bytes. Longer ones are left out: heads of requests are shorter.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Why a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// weir closed the connection.
    Closed,
    /// `--for`.
    MaxDuration,
    /// `--max-size`.
    MaxSize,
    /// The reader of the standard output is gone.
    ReaderGone,
    /// SIGINT or SIGTERM.
    Stopped,
}

/// Where lines are written.
pub(super) struct RecordOutput {
    output: Box<dyn Write>,
    pseudonyms: Option<LinePseudonymizer>,
    max_bytes: u64,
    written: u64,
    arrivals: u64,
    dropped: u64,
    /// A line without its end.
    partial: Vec<u8>,
    /// Lines that are not compressed yet. `None` if lines are not compressed.
    uncompressed: Option<Vec<u8>>,
}

impl RecordOutput {
    /// Opens the file, or the standard output for `-`. A record is neither replaced nor continued: the
    /// names of two may be replaced by different pseudonyms.
    ///
    /// # Errors
    /// The file cannot be created, or there is something in it.
    pub(super) fn open(
        path: &Path,
        max_megabytes: u32,
        pseudonyms: Option<LinePseudonymizer>,
    ) -> io::Result<Self> {
        let output: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).mode(FILE_MODE);
            let file = options.open(path)?;
            let found = file.metadata()?;
            if found.is_file() && found.len() > 0 {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, EXISTS));
            }
            Box::new(file)
        };
        let max_bytes = u64::from(max_megabytes) * MEGABYTE;
        Ok(Self {
            uncompressed: is_gzip_name(path).then(Vec::new),
            ..Self::new(output, max_bytes, pseudonyms)
        })
    }

    fn new(output: Box<dyn Write>, max_bytes: u64, pseudonyms: Option<LinePseudonymizer>) -> Self {
        Self {
            output,
            pseudonyms,
            max_bytes,
            written: 0,
            arrivals: 0,
            dropped: 0,
            partial: Vec::new(),
            uncompressed: None,
        }
    }

    /// Writes the lines that are complete with these bytes. Returns why the record ends with them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<Option<StreamEnd>> {
        let mut lines = Vec::new();
        let mut end = None;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.last() != Some(&b'\n') {
                break;
            }
            let line = std::mem::take(&mut self.partial);
            let Some(line) = self.render(line) else {
                continue;
            };
            if !self.has_room(lines.len() + line.len()) {
                // Lines that are compressed take less.
                end = self.write(&std::mem::take(&mut lines))?.or(end);
                end = self.compress()?.or(end);
                if end.is_none() && !self.has_room(line.len()) {
                    end = Some(StreamEnd::MaxSize);
                }
                if end.is_some() {
                    break;
                }
            }
            self.count(&line);
            lines.extend(line);
        }
        if self.partial.len() > MAX_LINE_BYTES {
            self.partial.clear();
        }
        Ok(self.write(&lines)?.or(end))
    }

    /// Writes the last line, and returns a summary.
    pub(super) fn end(&mut self, end: StreamEnd) -> io::Result<String> {
        let (arrivals, dropped) = (self.arrivals, self.dropped);
        let reason = match end {
            StreamEnd::Closed => "closed",
            StreamEnd::MaxDuration => "max-duration",
            StreamEnd::MaxSize => "max-size",
            StreamEnd::ReaderGone | StreamEnd::Stopped => "stopped",
        };
        let note = json!({"end": reason, "lines": arrivals, "dropped": dropped});
        if end != StreamEnd::ReaderGone {
            self.compress()?;
            self.write(&note_line(&note))?;
            self.compress()?;
        }
        Ok(format!(
            "{arrivals} requests recorded, {dropped} missing, {} bytes ({reason})",
            self.written
        ))
    }

    fn render(&mut self, line: Vec<u8>) -> Option<Vec<u8>> {
        match &mut self.pseudonyms {
            None => Some(line),
            Some(pseudonyms) => pseudonyms.replace(str::from_utf8(&line).ok()?),
        }
    }

    fn count(&mut self, line: &[u8]) {
        if !line.starts_with(b"{\"record\":") {
            self.arrivals += 1;
            return;
        }
        let note: Value = serde_json::from_slice(line).unwrap_or_default();
        let dropped = note.pointer("/record/dropped").and_then(Value::as_u64);
        self.dropped += dropped.unwrap_or_default();
    }

    /// Whether lines of this many bytes fit, and the end after them.
    fn has_room(&self, bytes: usize) -> bool {
        let bytes = match &self.uncompressed {
            Some(waiting) => max_member_bytes(waiting.len() + bytes),
            None => bytes,
        };
        let total = saturating_u64(bytes).saturating_add(self.written);
        total.saturating_add(END_BYTES) <= self.max_bytes
    }

    /// Writes lines, those that are compressed once there are enough of them.
    fn write(&mut self, lines: &[u8]) -> io::Result<Option<StreamEnd>> {
        let Some(waiting) = &mut self.uncompressed else {
            return self.write_bytes(lines);
        };
        waiting.extend_from_slice(lines);
        if waiting.len() < MEMBER_BYTES {
            return Ok(None);
        }
        self.compress()
    }

    /// Writes the lines that are not compressed yet.
    fn compress(&mut self) -> io::Result<Option<StreamEnd>> {
        let member = match &mut self.uncompressed {
            Some(lines) => gzip_member(&std::mem::take(lines)),
            None => return Ok(None),
        };
        self.write_bytes(&member)
    }

    fn write_bytes(&mut self, lines: &[u8]) -> io::Result<Option<StreamEnd>> {
        match self
            .output
            .write_all(lines)
            .and_then(|()| self.output.flush())
        {
            Ok(()) => {
                self.written += saturating_u64(lines.len());
                Ok(None)
            }
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(Some(StreamEnd::ReaderGone)),
            Err(why) => Err(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::observe::logging::recording::PseudonymKey;

    const HEADER: &str = r#"{"record":{"version":1,"pseudonyms":false,"kept":{"users":[],"groups":["dev"],"namespaces":["kube-system"],"paths":[]}}}"#;
    const ARRIVAL: &str = r#"{"at_ms":1795460688029.862345,"method":"GET","url":"/api/v1/namespaces/shop/pods","user":"alice","groups":["dev","ops"],"service_ms":1.5,"secret":"hidden"}"#;

    /// What was written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn key() -> PseudonymKey {
        PseudonymKey::parse(b"0123456789abcdef").unwrap()
    }

    #[test]
    fn lines_are_written_whole_from_chunks_of_any_size() {
        let text = format!("{HEADER}\n{ARRIVAL}\n{{\"record\":{{\"dropped\":7}}}}\n{ARRIVAL}\n");
        for size in [1, 7, 64, text.len()] {
            let written = Written::default();
            let mut output = RecordOutput::new(Box::new(written.clone()), 1 << 20, None);
            for chunk in text.as_bytes().chunks(size) {
                assert_eq!(output.push(chunk).unwrap(), None);
            }
            output.push(b"{\"at_ms\":1,\"meth").unwrap();
            let summary = output.end(StreamEnd::Stopped).unwrap();
            assert!(
                summary.starts_with("2 requests recorded, 7 missing, "),
                "{summary}"
            );
            let end = "{\"record\":{\"dropped\":7,\"end\":\"stopped\",\"lines\":2}}\n";
            assert_eq!(written.text(), format!("{text}{end}"));
        }
    }

    #[test]
    fn a_record_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.jsonl");
        std::fs::write(&path, "").unwrap();
        let mut output = RecordOutput::open(&path, 1, None).unwrap();
        output.end(StreamEnd::Stopped).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(!before.is_empty());
        let why = RecordOutput::open(&path, 1, None).err().unwrap();
        assert_eq!(why.to_string(), EXISTS);
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert!(RecordOutput::open(Path::new("/dev/null"), 1, None).is_ok());
    }

    #[test]
    fn a_record_ends_within_its_size() {
        let written = Written::default();
        let mut output = RecordOutput::new(Box::new(written.clone()), 1000, None);
        let lines = format!("{ARRIVAL}\n").repeat(10);
        assert_eq!(
            output.push(lines.as_bytes()).unwrap(),
            Some(StreamEnd::MaxSize)
        );
        output.end(StreamEnd::MaxSize).unwrap();
        let text = written.text();
        assert!(text.len() <= 1000, "{}", text.len());
        assert!(
            text.lines()
                .last()
                .unwrap()
                .contains("\"end\":\"max-size\""),
            "{text}"
        );
        assert!(text.lines().count() > 2);
    }

    #[test]
    fn a_compressed_record_has_more_lines_within_its_size() {
        use std::io::Read;

        let written = Written::default();
        let mut output = RecordOutput {
            uncompressed: Some(Vec::new()),
            ..RecordOutput::new(Box::new(written.clone()), 2000, None)
        };
        let lines = format!("{ARRIVAL}\n").repeat(1000);
        let end = output.push(lines.as_bytes()).unwrap();
        assert_eq!(end, Some(StreamEnd::MaxSize));
        output.end(StreamEnd::MaxSize).unwrap();
        let bytes = written.0.lock().clone();
        assert!(bytes.len() <= 2000, "{}", bytes.len());
        let mut text = String::new();
        let mut decoder = flate2::read::MultiGzDecoder::new(&*bytes);
        decoder.read_to_string(&mut text).unwrap();
        assert!(text.len() > 4000, "{text}");
        assert!(text.lines().last().unwrap().contains("max-size"), "{text}");
    }

    #[test]
    fn names_are_replaced_and_nothing_unknown_passes() {
        let written = Written::default();
        let pseudonyms = Some(LinePseudonymizer::new(key()));
        let mut output = RecordOutput::new(Box::new(written.clone()), 1 << 20, pseudonyms);
        output.push(format!("{ARRIVAL}\n").as_bytes()).unwrap();
        assert_eq!(
            written.text(),
            "",
            "before it is known which names are kept"
        );
        let text = format!("{HEADER}\n{ARRIVAL}\nhidden\n{{\"hidden\":1}}\n");
        output.push(text.as_bytes()).unwrap();
        let text = written.text();
        for hidden in ["alice", "shop", "ops", "hidden", "kept"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        let arrival: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(arrival["groups"][0], "dev");
        assert!(text.contains("{\"at_ms\":1795460688029.862345,"), "{text}");
        assert!(
            text.starts_with("{\"record\":{\"pseudonyms\":true"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 2);
    }
}
