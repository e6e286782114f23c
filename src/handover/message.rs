//! The messages of a hand-over, and their bytes. Pure.
//!
//! A frame is the length of a JSON text in four bytes, most significant first, and the text.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::handover::listeners::ListenerId;

/// The version of the offer and of the order of messages. A process that receives another one ends,
/// and the old process keeps serving.
pub(crate) const PROTOCOL: u32 = 1;

/// The longest text in bytes. The state of a weir whose tables are full is a third of it.
pub(crate) const MAX_FRAME_BYTES: usize = 48 << 20;

/// The bytes before the text of a frame.
pub(crate) const LENGTH_BYTES: usize = 4;

/// What the old process offers: its listening sockets come with it, in the same order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// [`PROTOCOL`].
    pub(crate) protocol: u32,
    /// The listeners of the sockets.
    pub(crate) listeners: Vec<ListenerId>,
}

/// What follows the offer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "camelCase")]
pub(crate) enum Message {
    /// From the new process: its configuration is valid, and it is ready to serve.
    Prepared,
    /// From the old process: what it has learned. Its reader knows the version or ignores it.
    State {
        /// The version of `state`.
        version: u32,
        /// The state.
        state: Value,
    },
    /// From the new process: it accepts connections.
    Serving,
    /// From the old process: the service manager follows the new process from now on.
    Main,
    /// From the old process: what it still holds.
    Held(HeldSeats),
    /// A message of a later version, which is ignored.
    #[serde(other)]
    Unknown,
}

/// What requests of a process hold of the limits of concurrency.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct HeldSeats {
    /// With priority and fairness: the seats in use, by priority level. Exempt levels have none.
    pub(crate) levels: BTreeMap<String, u32>,
    /// With max-in-flight: read-only requests.
    pub(crate) read_only: u32,
    /// With max-in-flight: mutating requests.
    pub(crate) mutating: u32,
}

/// The bytes of a frame. `None` if it is too long.
#[must_use]
pub(crate) fn encode_frame(message: &impl Serialize) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(message).ok()?;
    if text.len() > MAX_FRAME_BYTES {
        return None;
    }
    let length = u32::try_from(text.len()).ok()?;
    Some([&length.to_be_bytes()[..], &text].concat())
}

/// The length of the text of a frame. `None` if it is too long.
#[must_use]
pub(crate) fn text_length(bytes: [u8; LENGTH_BYTES]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(bytes)).ok()?;
    Some(length).filter(|length| *length <= MAX_FRAME_BYTES)
}

/// The message of a text.
///
/// # Errors
/// The text is none.
pub(crate) fn decode_text<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(frame: &[u8]) -> Message {
        let (length, text) = frame.split_first_chunk().unwrap();
        assert_eq!(text_length(*length), Some(text.len()));
        decode_text(text).unwrap()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let held = HeldSeats {
            levels: [("system".to_owned(), 3)].into(),
            read_only: 1,
            mutating: 2,
        };
        let state = Message::State {
            version: 7,
            state: json!({"history": {"unixMs": [1, 2]}, "rate": 0.1}),
        };
        for message in [
            Message::Prepared,
            state,
            Message::Serving,
            Message::Main,
            Message::Held(held),
        ] {
            assert_eq!(decode(&encode_frame(&message).unwrap()), message);
        }
    }

    #[test]
    fn a_message_of_a_later_version_is_unknown_and_not_an_error() {
        let text = br#"{"message": "seatsByUser", "users": {"a": 1}}"#;
        assert_eq!(decode_text::<Message>(text), Ok(Message::Unknown));
        let text = br#"{"message": "held", "levels": {"a": 1}, "bytes": 7}"#;
        let held = decode_text::<Message>(text).unwrap();
        assert!(matches!(held, Message::Held(held) if held.levels["a"] == 1));
    }

    #[test]
    fn a_frame_that_is_too_long_is_neither_written_nor_read() {
        assert_eq!(encode_frame(&"a".repeat(MAX_FRAME_BYTES)), None);
        assert_eq!(text_length([0xff; LENGTH_BYTES]), None);
        assert!(decode_text::<Message>(b"{").is_err());
    }
}
