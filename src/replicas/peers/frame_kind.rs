//! The kinds of frames between replicas, all of them JSON objects. Pure.
//!
//! A frame without a `kind` is a [message](weir_agreement::message). A frame of another kind or
//! version than those below is of a later weir, and is skipped: replicas of several versions run
//! together during an upgrade.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use weir_agreement::message::check_name;
use weir_limits::levers::LeverRecord;

/// The largest frame with a snapshot, in bytes: twenty talkers for each measure of all 18 tables,
/// and a thousand priority levels.
pub(crate) const MAX_SNAPSHOT_BYTES: usize = 256 << 10;

/// The beginning of a frame with a snapshot, before its content.
const SNAPSHOT_HEAD: &str = r#"{"kind":"snapshot","version":1,"content":"#;

/// Bytes of a frame with a snapshot that are not its content.
pub(crate) const SNAPSHOT_FRAME_OVERHEAD: usize = SNAPSHOT_HEAD.len() + 1;

/// The version of frames that have a kind.
const VERSION: u32 = 1;

/// The frame that asks for a snapshot.
const SNAPSHOT_REQUEST: &[u8] = br#"{"kind":"snapshot-request","version":1}"#;

/// The frame that asks for a snapshot with the history before it.
const HISTORY_REQUEST: &[u8] = br#"{"kind":"snapshot-request","version":1,"history":true}"#;

/// The largest frame with a lever, in bytes: 64 values of a target, and JSON around them.
pub(super) const MAX_LEVER_BYTES: usize = 512 << 10;

/// The longest reason in bytes why a lever is refused.
const MAX_REFUSAL_BYTES: usize = 1024;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A lever, or its end.
    Lever,
    /// Whether a lever is in force there now.
    LeverAnswer,
    /// What a replica needs and holds.
    Message,
    /// The state of a replica, for the status page.
    Snapshot,
    /// Asks for a snapshot.
    SnapshotRequest {
        /// Whether it includes the history.
        with_history: bool,
    },
    /// Of a later version.
    Unknown,
}

#[derive(Deserialize)]
struct KindField {
    #[serde(default)]
    kind: Option<Value>,
    #[serde(default)]
    version: Option<Value>,
    #[serde(default)]
    history: Option<Value>,
}

#[derive(Deserialize)]
struct SnapshotFrame<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

impl FrameKind {
    /// The kind of a frame.
    ///
    /// # Errors
    /// The frame is not a JSON object.
    pub(super) fn of(frame: &[u8]) -> Result<Self, String> {
        let fields: KindField = serde_json::from_slice(frame).map_err(|why| why.to_string())?;
        let Some(kind) = fields.kind else {
            return Ok(Self::Message);
        };
        let known = match kind.as_str() {
            Some("lever") => Self::Lever,
            Some("lever-answer") => Self::LeverAnswer,
            Some("snapshot") => Self::Snapshot,
            Some("snapshot-request") => Self::SnapshotRequest {
                with_history: fields.history == Some(Value::Bool(true)),
            },
            _ => return Ok(Self::Unknown),
        };
        let version = fields.version.and_then(|version| version.as_u64());
        Ok(match version == Some(VERSION.into()) {
            true => known,
            false => Self::Unknown,
        })
    }
}

/// The frame that asks for a snapshot.
#[must_use]
pub(super) const fn snapshot_request(with_history: bool) -> &'static [u8] {
    match with_history {
        true => HISTORY_REQUEST,
        false => SNAPSHOT_REQUEST,
    }
}

/// The frame with a snapshot, which is JSON.
#[must_use]
pub(super) fn snapshot_frame(content: &[u8]) -> Bytes {
    [SNAPSHOT_HEAD.as_bytes(), content, b"}"].concat().into()
}

/// The snapshot in a frame.
///
/// # Errors
/// The frame has none.
pub(super) fn snapshot_content(frame: &[u8]) -> Result<Bytes, String> {
    let frame: SnapshotFrame<'_> = serde_json::from_slice(frame).map_err(|why| why.to_string())?;
    Ok(Bytes::copy_from_slice(frame.content.get().as_bytes()))
}

#[derive(Serialize)]
struct LeverFrame<'a> {
    kind: &'static str,
    version: u32,
    from: &'a str,
    record: &'a LeverRecord,
}

#[derive(Deserialize)]
struct ReceivedLever {
    from: String,
    record: LeverRecord,
}

#[derive(Serialize)]
struct LeverAnswerFrame {
    kind: &'static str,
    version: u32,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct ReceivedAnswer {
    refused: Option<String>,
}

/// The frame with a lever of the replica `from`.
#[must_use]
pub(super) fn lever_frame(from: &str, record: &LeverRecord) -> Vec<u8> {
    let frame = LeverFrame {
        kind: "lever",
        version: VERSION,
        from,
        record,
    };
    serde_json::to_vec(&frame).unwrap_or_default() // strings and numbers are always valid
}

/// The lever in a frame, and the replica that has sent it.
///
/// # Errors
/// The frame has none, or one of a later version.
pub(super) fn lever_content(frame: &[u8]) -> Result<(String, LeverRecord), String> {
    let lever: ReceivedLever = serde_json::from_slice(frame).map_err(|why| why.to_string())?;
    check_name(&lever.from)?;
    Ok((lever.from, lever.record))
}

/// The frame that says whether a lever is in force now.
#[must_use]
pub(super) fn lever_answer(result: Result<(), String>) -> Vec<u8> {
    let refused = result.err().map(|mut why| {
        why.truncate(why.floor_char_boundary(MAX_REFUSAL_BYTES));
        why
    });
    let frame = LeverAnswerFrame {
        kind: "lever-answer",
        version: VERSION,
        refused,
    };
    serde_json::to_vec(&frame).unwrap_or_default() // strings and numbers are always valid
}

/// Why a lever is refused. `None`: it is in force.
///
/// # Errors
/// The frame is no answer.
pub(super) fn lever_refusal(frame: &[u8]) -> Result<Option<String>, String> {
    let answer: ReceivedAnswer = serde_json::from_slice(frame).map_err(|why| why.to_string())?;
    Ok(answer.refused)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use weir_agreement::message::{POOLS, PoolClaim, ReplicaId, ReplicaMessage};
    use weir_limits::levers::LeverKey;

    #[test]
    fn a_message_of_every_version_so_far_is_one() {
        let id = ReplicaId {
            name: "weir-0".to_owned(),
            instance: "a1".to_owned(),
        };
        let claims = [PoolClaim::default(); POOLS];
        let message = ReplicaMessage::new(id, 1, claims, [].into(), false, None).to_text();
        assert_eq!(FrameKind::of(message.as_bytes()), Ok(FrameKind::Message));
        // As weir wrote it before there were snapshots.
        let older = message.replace(r#","snapshots":true,"levers":true"#, "");
        assert_ne!(older, message);
        assert_eq!(FrameKind::of(older.as_bytes()), Ok(FrameKind::Message));
        let older = ReplicaMessage::parse(older.as_bytes()).unwrap();
        assert!(!older.snapshots && !older.levers);
    }

    #[test]
    fn frames_of_later_versions_are_unknown_and_no_error() {
        for frame in [
            r#"{"kind":"news","version":1}"#,
            r#"{"kind":"snapshot","version":2,"content":[]}"#,
            r#"{"kind":"snapshot-request"}"#,
            r#"{"kind":"snapshot-request","version":"1"}"#,
            r#"{"kind":{"of":["a","kind"]},"version":-1}"#,
            r#"{"kind":7}"#,
        ] {
            assert_eq!(
                FrameKind::of(frame.as_bytes()),
                Ok(FrameKind::Unknown),
                "{frame}"
            );
        }
        for with_history in [false, true] {
            let kind = FrameKind::of(snapshot_request(with_history));
            assert_eq!(kind, Ok(FrameKind::SnapshotRequest { with_history }));
        }
    }

    #[test]
    fn a_lever_and_its_answer_are_read_as_they_were_written() {
        let key = LeverKey {
            id: 7,
            origin: "a1".to_owned(),
        };
        let remaining = Duration::from_millis(1500);
        let record = LeverRecord::Ended { key, remaining };
        let frame = lever_frame("weir-0", &record);
        assert_eq!(FrameKind::of(&frame), Ok(FrameKind::Lever));
        assert_eq!(lever_content(&frame), Ok(("weir-0".to_owned(), record)));
        let text = String::from_utf8(frame).unwrap();
        for (from, to) in [("weir-0", "../x"), ("\"ended\"", "\"moved\"")] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            assert!(lever_content(changed.as_bytes()).is_err());
        }
        for answer in [Ok(()), Err("a".repeat(MAX_REFUSAL_BYTES))] {
            let longer = answer.clone().map_err(|why| why + "é");
            let frame = lever_answer(longer);
            assert_eq!(FrameKind::of(&frame), Ok(FrameKind::LeverAnswer));
            assert_eq!(lever_refusal(&frame), Ok(answer.err()));
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        let deep = "[".repeat(10_000);
        for frame in ["", "7", "\"snapshot\"", "{", "{\"kind\":", "\u{0}", &deep] {
            assert!(FrameKind::of(frame.as_bytes()).is_err(), "{frame:?}");
        }
        assert!(FrameKind::of(b"{\"kind\":\"\xff\"}").is_err());
    }

    #[test]
    fn a_snapshot_comes_out_of_its_frame_as_it_went_in() {
        let content = br#"{"a":[1,"\u001b",{"b":null}]}"#;
        let frame = snapshot_frame(content);
        assert_eq!(frame.len(), content.len() + SNAPSHOT_FRAME_OVERHEAD);
        assert_eq!(FrameKind::of(&frame), Ok(FrameKind::Snapshot));
        assert_eq!(snapshot_content(&frame).unwrap(), &content[..]);
        for broken in [
            &frame[..frame.len() - 1],
            SNAPSHOT_REQUEST,
            b"",
            b"{\"content\":",
        ] {
            assert!(snapshot_content(broken).is_err());
        }
    }
}
