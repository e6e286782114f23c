//! The frames of an HTTP/2 connection as they are read: whether a header block is incomplete, how
//! large it is, and how much work the frames are. Pure.
//!
//! Between a HEADERS frame without END_HEADERS and the end of its last CONTINUATION no other frame
//! may be sent (RFC 9113, 6.10). An incomplete header block therefore blocks its whole connection.
//! The HTTP library keeps the decoded part of such a block and has no timeout for it. The library
//! validates the frames; the scanner reads only the nine bytes before each payload, and counts the
//! fields of header blocks.
//!
//! An incomplete DATA frame stops its connection as well, but it holds nothing that is not bounded
//! elsewhere, and a slow link may need its time for one.

use weir_kubernetes::encoding::hpack::FieldCounter;
use weir_kubernetes::numeric::{saturating_u64, saturating_usize};
use weir_limits::throttling::read_pacing::{HEADER_BYTE_WORK, HEADER_FIELD_WORK, WORK_PER_POLL};

/// The length of the client connection preface in bytes (RFC 9113, 3.4).
pub const PREFACE_LENGTH: usize = 24;

/// The length of a frame header in bytes: length (24 bits), type, flags, stream id (RFC 9113, 4.1).
const FRAME_HEADER_LENGTH: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// The work of a frame besides its payload: a poll processes 32 frames. A frame may start a request,
/// and a request takes some 20 µs of a worker.
const FRAME_WORK: u64 = WORK_PER_POLL / 32;

/// The most fields in one frame, which the library decodes in one poll: some 0.6 ms. A frame of
/// 16 KiB has room for more only if they have less than eight bytes each. Repetitions of fields in
/// HPACK's table have one or two, a thousand different ones have more.
const MAX_FRAME_FIELDS: u64 = 2048;

/// The bytes that may be read where it is not known which frames they are: 28 of the shortest
/// frames, 25 of the shortest requests.
const UNKNOWN_BYTES: usize = 256;

/// The state of the frames that have been read on a connection.
#[derive(Debug)]
pub struct FrameScanner {
    /// The bytes of the preface that have not been read.
    preface_remaining: usize,
    /// The header of the current frame, of which `header_read` bytes have been read.
    header: [u8; FRAME_HEADER_LENGTH],
    header_read: usize,
    /// The bytes of the current payload that have not been read, once the header is complete.
    payload_remaining: usize,
    /// The bytes behind the fields of the current frame.
    padding: usize,
    /// The fields of the current header block.
    fields: FieldCounter,
    /// The number of fields that begin in the current frame.
    frame_fields: u64,
    /// Whether a frame has more than [`MAX_FRAME_FIELDS`].
    exceeds_fields: bool,
    /// The payload bytes of an incomplete header block's complete frames.
    block_bytes: Option<usize>,
    /// The number of complete frames outside header blocks and of complete header blocks.
    completed_units: u64,
    last_stream_id: u32,
    /// The work of all that has been read, in bytes of request bodies.
    work: u64,
    /// The number of complete frames that have no effect on a request in progress.
    ineffective_frames: u64,
}

/// A header block that is not complete, or a frame that may start one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteBlock {
    /// The payload bytes of the block's complete frames, which the library has decoded.
    pub decoded_bytes: usize,
    /// The payload length of the current frame, for which the library has allocated memory.
    pub frame_length: usize,
}

impl Default for FrameScanner {
    /// The scanner of a new connection.
    fn default() -> Self {
        Self {
            preface_remaining: PREFACE_LENGTH,
            header: [0; FRAME_HEADER_LENGTH],
            header_read: 0,
            payload_remaining: 0,
            padding: 0,
            fields: FieldCounter::default(),
            frame_fields: 0,
            exceeds_fields: false,
            block_bytes: None,
            completed_units: 0,
            last_stream_id: 0,
            work: 0,
            ineffective_frames: 0,
        }
    }
}

impl FrameScanner {
    /// Scans the bytes that were read next.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        let preface = self.preface_remaining.min(bytes.len());
        self.preface_remaining -= preface;
        bytes = bytes.get(preface..).unwrap_or_default();
        while !bytes.is_empty() {
            if self.header_read < FRAME_HEADER_LENGTH {
                bytes = self.read_header(bytes);
            } else {
                let (payload, rest) = bytes
                    .split_at_checked(self.payload_remaining)
                    .unwrap_or((bytes, &[]));
                self.read_payload(payload);
                bytes = rest;
            }
            if self.header_read == FRAME_HEADER_LENGTH && self.payload_remaining == 0 {
                self.finish_frame();
            }
        }
    }

    /// The incomplete header block, if there is one. A frame whose header is incomplete counts,
    /// since it may start one.
    pub fn incomplete(&self) -> Option<IncompleteBlock> {
        let started = self.header_read > 0;
        let is_whole = self.header_read == FRAME_HEADER_LENGTH;
        let in_block =
            self.block_bytes.is_some() || started && (!is_whole || self.is_header_frame());
        in_block.then(|| IncompleteBlock {
            decoded_bytes: self.block_bytes.unwrap_or_default(),
            frame_length: if is_whole { self.payload_length() } else { 0 },
        })
    }

    /// The number of complete units (frames, or whole header blocks). An incomplete block is still
    /// the same one as long as the number has not changed.
    pub const fn completed_units(&self) -> u64 {
        self.completed_units
    }

    /// The highest stream id with a complete header block; 0 if there is none.
    pub const fn last_stream_id(&self) -> u32 {
        self.last_stream_id
    }

    /// The work of all that has been read, in bytes of request bodies.
    pub const fn work(&self) -> u64 {
        self.work
    }

    /// Whether a frame has more header fields than are accepted, be it complete or not.
    pub const fn exceeds_fields(&self) -> bool {
        self.exceeds_fields
    }

    /// The number of complete frames that neither start a request nor belong to one in progress:
    /// resets, PINGs, settings, empty DATA, and what the library ignores. WINDOW_UPDATE is not among
    /// them, since a client sends one for every few frames that it receives.
    pub const fn ineffective_frames(&self) -> u64 {
        self.ineffective_frames
    }

    /// The bytes that may be read before the next frames are known: the rest of the current one, and
    /// a few more.
    pub const fn read_limit(&self) -> usize {
        self.payload_remaining.saturating_add(UNKNOWN_BYTES)
    }

    /// Reads the bytes that belong to the frame header and returns the others.
    fn read_header<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let missing = self.header.get_mut(self.header_read..).unwrap_or_default();
        let taken = missing.len().min(bytes.len());
        let (now, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
        for (slot, byte) in missing.iter_mut().zip(now) {
            *slot = *byte;
        }
        self.header_read += taken;
        if self.header_read == FRAME_HEADER_LENGTH {
            self.payload_remaining = self.payload_length();
            self.padding = 0;
            self.frame_fields = 0;
            if self.kind() == HEADERS {
                self.fields = FieldCounter::default();
            }
        }
        rest
    }

    /// Reads bytes of the current payload.
    fn read_payload(&mut self, bytes: &[u8]) {
        let work = if self.is_header_frame() {
            // A client can send as many heads at once as it may open streams, and the library
            // decodes all that have arrived before it passes on the first: 90 heads of 1 MiB took
            // 270 MiB. With this bound, a poll takes 4 MiB at most.
            let by_bytes = saturating_u64(bytes.len()).saturating_mul(HEADER_BYTE_WORK);
            let fields = self.count_fields(bytes);
            self.frame_fields = self.frame_fields.saturating_add(fields);
            self.exceeds_fields |= self.frame_fields > MAX_FRAME_FIELDS;
            by_bytes.saturating_add(fields.saturating_mul(HEADER_FIELD_WORK))
        } else {
            saturating_u64(bytes.len())
        };
        self.work = self.work.saturating_add(work);
        self.payload_remaining = self.payload_remaining.saturating_sub(bytes.len());
    }

    /// Returns the number of fields that begin in these bytes of the current payload. Around the
    /// fields stand the length of the padding, a priority, and the padding (RFC 9113, 6.2).
    fn count_fields(&mut self, bytes: &[u8]) -> u64 {
        let [_, _, _, kind, flags, ..] = self.header;
        let is_padded = kind == HEADERS && flags & PADDED != 0;
        let has_priority = kind == HEADERS && flags & PRIORITY != 0;
        let length = self.payload_length();
        let at = length.saturating_sub(self.payload_remaining);
        if is_padded && at == 0 {
            self.padding = bytes.first().copied().unwrap_or_default().into();
        }
        let begin = usize::from(is_padded) + 5 * usize::from(has_priority);
        let within = |offset: usize| offset.saturating_sub(at).min(bytes.len());
        let fields = within(begin)..within(length.saturating_sub(self.padding));
        self.fields.count(bytes.get(fields).unwrap_or_default())
    }

    fn payload_length(&self) -> usize {
        let [a, b, c, ..] = self.header;
        saturating_usize(u32::from_be_bytes([0, a, b, c]))
    }

    const fn kind(&self) -> u8 {
        let [_, _, _, kind, ..] = self.header;
        kind
    }

    const fn is_header_frame(&self) -> bool {
        matches!(self.kind(), HEADERS | PUSH_PROMISE | CONTINUATION)
    }

    fn finish_frame(&mut self) {
        let [_, _, _, kind, flags, a, b, c, d] = self.header;
        if self.is_header_frame() {
            if flags & END_HEADERS == 0 {
                let before = self.block_bytes.unwrap_or_default();
                self.block_bytes = Some(before.saturating_add(self.payload_length()));
            } else {
                self.block_bytes = None;
                if kind != PUSH_PROMISE {
                    let stream = u32::from_be_bytes([a, b, c, d]) & (u32::MAX >> 1);
                    self.last_stream_id = self.last_stream_id.max(stream);
                }
            }
        }
        self.work = self.work.saturating_add(FRAME_WORK);
        let has_effect = match kind {
            DATA => flags & END_STREAM != 0 || self.payload_length() > 0,
            HEADERS | CONTINUATION | WINDOW_UPDATE => true,
            _ => false,
        };
        self.ineffective_frames += u64::from(!has_effect);
        if self.block_bytes.is_none() {
            self.completed_units += 1;
        }
        self.header_read = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(vec![0xff; length]);
        bytes
    }

    /// The incomplete block and the last stream after these frames and `cut` bytes of the next one.
    fn expected(
        whole: &[(u8, u8, u32, usize)],
        cut: usize,
        next: Option<(u8, usize)>,
    ) -> (Option<IncompleteBlock>, u32) {
        let (mut block, mut last) = (None, 0);
        for (kind, flags, stream, length) in whole {
            if matches!(*kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
                if flags & END_HEADERS == 0 {
                    block = Some(block.unwrap_or(0) + length);
                } else {
                    block = None;
                    if *kind != PUSH_PROMISE {
                        last = last.max(*stream);
                    }
                }
            }
        }
        let (kind, length) = next.unwrap_or_default();
        let of_block = matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION);
        let is_incomplete = block.is_some() || cut > 0 && (cut < FRAME_HEADER_LENGTH || of_block);
        let incomplete = is_incomplete.then(|| IncompleteBlock {
            decoded_bytes: block.unwrap_or(0),
            frame_length: if cut >= FRAME_HEADER_LENGTH {
                length
            } else {
                0
            },
        });
        (incomplete, last)
    }

    #[test]
    fn an_incomplete_block_is_found_for_random_frames_and_read_boundaries() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let frames: Vec<_> = (0..random.usize(1..12))
                .map(|_| {
                    let kind = [DATA, HEADERS, PUSH_PROMISE, PING, CONTINUATION][random.usize(..5)];
                    let most = [1, 20, 300][random.usize(..3)];
                    let length = random.usize(..most);
                    (kind, random.u8(..), random.u32(..1 << 31), length)
                })
                .collect();
            let bytes: Vec<_> = std::iter::once(vec![b'P'; PREFACE_LENGTH])
                .chain(frames.iter().map(|(k, f, s, l)| frame(*k, *f, *s, *l)))
                .collect();
            let all = bytes.concat();
            let mut scan = FrameScanner::default();
            let mut at = 0;
            while at < all.len() {
                let end = (at + random.usize(1..=40)).min(all.len());
                scan.feed(&all[at..end]);
                at = end;
                // The complete frames, and the bytes that have been read of the next one.
                let (mut whole, mut begins) = (0, PREFACE_LENGTH);
                while let Some(next) = bytes.get(whole + 1).map(Vec::len)
                    && begins + next <= at
                {
                    whole += 1;
                    begins += next;
                }
                let next = frames
                    .get(whole)
                    .map(|(kind, _, _, length)| (*kind, *length));
                let cut = at.saturating_sub(begins);
                let (incomplete, last) = expected(&frames[..whole], cut, next);
                assert_eq!(scan.incomplete(), incomplete, "at {at} of {frames:?}");
                assert_eq!(scan.last_stream_id(), last);
            }
        }
    }

    #[test]
    fn every_split_in_two_gives_the_same_result() {
        let all = [
            vec![b'P'; PREFACE_LENGTH],
            frame(HEADERS, END_HEADERS, 1, 10),
            frame(DATA, 1, 1, 7),
            frame(HEADERS, 0, 3, 12),
            frame(CONTINUATION, 0, 3, 0),
            frame(CONTINUATION, 0, 3, 5),
        ]
        .concat();
        for at in 0..=all.len() {
            let mut scan = FrameScanner::default();
            scan.feed(&all[..at]);
            scan.feed(&all[at..]);
            let incomplete = IncompleteBlock {
                decoded_bytes: 17,
                frame_length: 0,
            };
            assert_eq!(scan.incomplete(), Some(incomplete), "broken at {at}");
            assert_eq!(scan.last_stream_id(), 1, "stream 3 has not begun");
            scan.feed(&frame(CONTINUATION, END_HEADERS, 3, 1));
            assert_eq!((scan.incomplete(), scan.last_stream_id()), (None, 3));
            assert_eq!(
                scan.work(),
                6 * FRAME_WORK + 7 + (10 + 12 + 5 + 1) * HEADER_BYTE_WORK + 2 * HEADER_FIELD_WORK,
                "an index may have more bytes than a frame"
            );
            assert_eq!(scan.ineffective_frames(), 0);
            assert_eq!(scan.completed_units(), 3);
        }
    }

    #[test]
    fn frames_without_effect_are_counted() {
        const RST_STREAM: u8 = 3;
        const UNKNOWN: u8 = 99;
        let mut scan = FrameScanner::default();
        scan.feed(&[b'P'; PREFACE_LENGTH]);
        for (kind, flags, length, counted) in [
            (HEADERS, END_HEADERS, 5, 0),
            (DATA, 0, 1, 0),
            (DATA, END_STREAM, 0, 0),
            (WINDOW_UPDATE, 0, 4, 0),
            (DATA, 0, 0, 1),
            (RST_STREAM, 0, 4, 1),
            (PING, 0, 8, 1),
            (UNKNOWN, 0, 3, 1),
        ] {
            let before = scan.ineffective_frames();
            scan.feed(&frame(kind, flags, 1, length));
            assert_eq!(scan.ineffective_frames() - before, counted, "{kind}");
        }
    }

    /// A header frame with this payload.
    fn fields(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = frame(kind, flags, 1, payload.len());
        bytes.truncate(FRAME_HEADER_LENGTH);
        bytes.extend(payload);
        bytes
    }

    /// Asserts the number of fields of these frames, wherever the reads end.
    fn assert_fields(expected: u64, frames: &[Vec<u8>]) {
        let bytes = [vec![b'P'; PREFACE_LENGTH], frames.concat()].concat();
        let payload: usize = frames.iter().map(|f| f.len() - FRAME_HEADER_LENGTH).sum();
        let others =
            saturating_u64(frames.len()) * FRAME_WORK + saturating_u64(payload) * HEADER_BYTE_WORK;
        for at in 0..=bytes.len() {
            let mut scan = FrameScanner::default();
            scan.feed(&bytes[..at]);
            scan.feed(&bytes[at..]);
            let counted = (scan.work() - others) / HEADER_FIELD_WORK;
            assert_eq!(counted, expected, "read up to {at} of {frames:?}");
        }
    }

    const INDEXED: [u8; 20] = [0x82; 20];

    /// Fields, and the beginning of one more: the length of its value, which has 20 bytes.
    fn begun() -> Vec<u8> {
        [&INDEXED[..], &[0x41, 20]].concat()
    }

    #[test]
    fn the_fields_of_a_frame_are_counted_without_its_padding() {
        let all = END_HEADERS | PADDED | PRIORITY;
        let with_priority = [&[9, 0xff, 0xff, 0xff, 0xff, 0xff][..], &INDEXED, &[0; 9]].concat();
        let padded = [&[3][..], &INDEXED, &[0; 3]].concat();
        for (expected, flags, payload) in [
            (20, END_HEADERS, &INDEXED[..]),
            (20, END_HEADERS | PADDED, &padded),
            (20, all, &with_priority),
            (1, END_HEADERS | PADDED, &[1, 0x82, 0]),
            (0, END_HEADERS | PADDED, &[200, 0x82]),
            (0, all, &[0, 0, 0]),
        ] {
            assert_fields(expected, &[fields(HEADERS, flags, payload)]);
        }
    }

    #[test]
    fn the_fields_of_a_block_are_counted_across_its_frames() {
        let rest = fields(CONTINUATION, END_HEADERS, &INDEXED);
        assert_fields(21, &[fields(HEADERS, 0, &begun()), rest]);
        let padded = [&[2][..], &begun(), &[0; 2]].concat();
        let more = [INDEXED, INDEXED].concat();
        let frames = [
            fields(HEADERS, PADDED, &padded),
            fields(CONTINUATION, 0, &[]),
            fields(CONTINUATION, PADDED | END_HEADERS, &more), // the flag means nothing here
        ];
        assert_fields(41, &frames);
        let next_block = fields(HEADERS, END_HEADERS, &INDEXED);
        assert_fields(41, &[fields(HEADERS, END_HEADERS, &begun()), next_block]);
    }

    #[test]
    fn the_fields_of_each_frame_are_limited() {
        let largest = vec![0x82; 2048];
        let more = [&largest[..], &[0x82]].concat();
        for (frames, exceeds) in [
            (
                vec![
                    fields(HEADERS, 0, &largest),
                    fields(CONTINUATION, 0, &largest),
                ],
                false,
            ),
            (vec![fields(HEADERS, 0, &more)], true),
            (
                vec![
                    fields(HEADERS, 0, &[]),
                    fields(CONTINUATION, END_HEADERS, &more),
                    fields(PING, 0, &[0; 8]),
                ],
                true,
            ),
            (vec![fields(DATA, 0, &more)], false),
        ] {
            let mut scan = FrameScanner::default();
            scan.feed(&[b'P'; PREFACE_LENGTH]);
            for part in frames.concat().chunks(1000) {
                scan.feed(part);
            }
            assert_eq!(scan.exceeds_fields(), exceeds);
        }
    }

    #[test]
    fn a_read_ends_soon_after_the_current_frame() {
        let mut scan = FrameScanner::default();
        assert_eq!(scan.read_limit(), UNKNOWN_BYTES);
        scan.feed(&[b'P'; PREFACE_LENGTH]);
        scan.feed(&frame(DATA, 0, 1, 1000)[..509]);
        assert_eq!(scan.read_limit(), 500 + UNKNOWN_BYTES);
        scan.feed(&[0; 500]);
        assert_eq!(scan.read_limit(), UNKNOWN_BYTES);
        assert_eq!(scan.work(), 1000 + FRAME_WORK);
    }

    #[test]
    fn an_incomplete_data_frame_is_no_incomplete_block() {
        let mut scan = FrameScanner::default();
        scan.feed(&[b'P'; PREFACE_LENGTH]);
        scan.feed(&frame(DATA, 0, 1, 100)[..50]);
        assert_eq!(scan.incomplete(), None);
    }
}
