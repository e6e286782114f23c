//! Reads DER as strictly as Go does (`cryptobyte.String`): tags of one byte, lengths and integers of
//! the least number of bytes, no bits in the padding of a bit string. Pure.

use std::time::{Duration, SystemTime};

/// DER tags.
pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const NULL: u8 = 0x05;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// The tag of a context-specific element with simple contents.
pub(crate) const fn context(number: u8) -> u8 {
    0x80 | number
}

/// The tag of a context-specific element that contains others.
pub(crate) const fn constructed(number: u8) -> u8 {
    0xa0 | number
}

/// What is left to read. Each method takes an element from the front. `None` if there is none of
/// that kind, or if it is not DER.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Der<'a>(&'a [u8]);

/// One element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) contents: &'a [u8],
    /// With tag and length.
    pub(crate) whole: &'a [u8],
}

/// A bit string: bytes, of whose last one some bits do not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitString<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) unused_bits: u8,
}

impl BitString<'_> {
    /// The bit with this number; 0 is the first. Bits that are not there are zero.
    pub(crate) fn bit(self, number: usize) -> bool {
        let byte = self.bytes.get(number / 8).copied().unwrap_or_default();
        byte & (0x80 >> (number % 8)) != 0
    }
}

impl<'a> Der<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Whether the next element has this tag.
    pub(crate) fn is_next(self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The next element, whatever its tag.
    pub(crate) fn any(&mut self) -> Option<Element<'a>> {
        let whole = self.0;
        let (&tag, rest) = whole
            .split_first()
            .filter(|(tag, _)| **tag & 0x1f != 0x1f)?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                let least = bytes.first().is_some_and(|byte| *byte != 0);
                let length = bytes
                    .iter()
                    .fold(0, |length, byte| (length << 8) | usize::from(*byte));
                (least && length >= 0x80).then_some((length, rest))?
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        let (whole, _) = whole.split_at_checked(whole.len() - rest.len())?;
        Some(Element {
            tag,
            contents,
            whole,
        })
    }

    /// The next element, which has this tag.
    pub(crate) fn element(&mut self, tag: u8) -> Option<Element<'a>> {
        self.any().filter(|element| element.tag == tag)
    }

    /// The contents of the next element, which has this tag.
    pub(crate) fn read(&mut self, tag: u8) -> Option<Self> {
        self.element(tag).map(|element| Self(element.contents))
    }

    /// The contents of the next element, if it has this tag.
    #[expect(
        clippy::option_option,
        reason = "the outer one is for what is not DER, as everywhere here"
    )]
    pub(crate) fn optional(&mut self, tag: u8) -> Option<Option<Self>> {
        if self.is_next(tag) {
            self.read(tag).map(Some)
        } else {
            Some(None)
        }
    }

    pub(crate) fn boolean(&mut self) -> Option<bool> {
        match self.read(BOOLEAN)?.0 {
            [0] => Some(false),
            [0xff] => Some(true),
            _ => None,
        }
    }

    /// An integer, as big-endian bytes.
    pub(crate) fn integer(&mut self) -> Option<&'a [u8]> {
        self.integer_with_tag(INTEGER)
    }

    /// An integer with another tag.
    pub(crate) fn integer_with_tag(&mut self, tag: u8) -> Option<&'a [u8]> {
        match self.read(tag)?.0 {
            [] | [0, 0..0x80, ..] | [0xff, 0x80..=0xff, ..] => None,
            bytes => Some(bytes),
        }
    }

    /// An object identifier whose numbers Go can keep (below 2^31).
    pub(crate) fn object_identifier(&mut self) -> Option<&'a [u8]> {
        let bytes = self.read(OBJECT_IDENTIFIER)?.0;
        let numbers = is_object_identifier(bytes).then_some(bytes)?;
        let fits = |number: &[u8]| match number {
            [first, _, _, _, _] => *first < 0x88,
            shorter => shorter.len() < 5,
        };
        let mut numbers = numbers.split_inclusive(|byte| byte & 0x80 == 0);
        numbers.all(fits).then_some(bytes)
    }

    pub(crate) fn bit_string(&mut self) -> Option<BitString<'a>> {
        let (&unused_bits, bytes) = self.read(BIT_STRING)?.0.split_first()?;
        let mask = 1_u8.checked_shl(u32::from(unused_bits))?.wrapping_sub(1);
        let last = bytes.last();
        let valid = last.map_or(unused_bits == 0, |last| last & mask == 0);
        valid.then_some(BitString { bytes, unused_bits })
    }

    /// A time of either type (`ReadASN1UTCTime`, `ReadASN1GeneralizedTime`).
    pub(crate) fn time(&mut self) -> Option<SystemTime> {
        let element = self.any()?;
        let text = element.contents;
        match element.tag {
            UTC_TIME => {
                let (year, rest) = two_digits(text)?;
                let century = if year >= 50 { 1900 } else { 2000 };
                time_in_year(century + year, rest, true)
            }
            GENERALIZED_TIME => {
                let (century, rest) = two_digits(text)?;
                let (year, rest) = two_digits(rest)?;
                time_in_year(century * 100 + year, rest, false)
            }
            _ => None,
        }
    }

    /// The bytes that are left.
    pub(crate) const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Whether the contents of an object identifier are DER (`newOIDFromDER`).
pub(crate) fn is_object_identifier(bytes: &[u8]) -> bool {
    let ends = bytes.last().is_some_and(|last| last & 0x80 == 0);
    let mut numbers = bytes.split_inclusive(|byte| byte & 0x80 == 0);
    ends && numbers.all(|number| number.first() != Some(&0x80))
}

fn two_digits(text: &[u8]) -> Option<(i64, &[u8])> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', rest @ ..] => {
            Some((i64::from(a - b'0') * 10 + i64::from(b - b'0'), rest))
        }
        _ => None,
    }
}

/// Month, day and time of day, then `Z` or an offset. Go accepts a UTC time without seconds.
fn time_in_year(year: i64, text: &[u8], seconds_may_lack: bool) -> Option<SystemTime> {
    let (month, rest) = two_digits(text)?;
    let (day, rest) = two_digits(rest)?;
    let (hour, rest) = two_digits(rest)?;
    let (minute, rest) = two_digits(rest)?;
    let (second, rest) = match two_digits(rest) {
        None if seconds_may_lack => (0, rest),
        second => second?,
    };
    let offset = match rest {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), rest @ ..] => {
            let (hours, rest) = two_digits(rest)?;
            let (minutes, []) = two_digits(rest)? else {
                return None;
            };
            let offset = hours * 60 + minutes;
            // Go writes `Z` for no offset, and accepts only what it would write.
            let valid = offset != 0 && hours < 24 && minutes < 60;
            valid.then_some(if *sign == b'+' { offset } else { -offset })?
        }
        _ => return None,
    };
    let valid = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let days = days_since_epoch(year, month, day);
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    let from_epoch = Duration::from_secs(seconds.unsigned_abs());
    if !valid {
        None
    } else if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(from_epoch)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(from_epoch)
    }
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// In the proleptic Gregorian calendar, for years from 0 on.
const fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    // A year that begins in March ends with the leap day.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 719_469
}

/// The DER of an element of up to 64 KiB.
#[cfg(test)]
pub(crate) fn encode(tag: u8, contents: &[u8]) -> Vec<u8> {
    let mut der = vec![tag];
    match u8::try_from(contents.len()) {
        Ok(length @ 0..0x80) => der.push(length),
        Ok(length) => der.extend([0x81, length]),
        Err(_) => {
            der.push(0x82);
            der.extend(u16::try_from(contents.len()).unwrap().to_be_bytes());
        }
    }
    der.extend(contents);
    der
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lengths_of_the_least_number_of_bytes_are_read() {
        let contents = [7; 128];
        let long = [&[4, 0x81, 0x80][..], &contents].concat();
        assert_eq!(Der::new(&long).read(4).unwrap().bytes(), contents);
        for bad in [
            &[&[4, 0x82, 0, 0x80][..], &contents].concat()[..],
            &[4, 0x81, 1, 7],
            &[4, 0x80, 0, 0],
            &[4, 0x85, 0, 0, 0, 0, 1, 7],
            &[4, 2, 7],
            &[0x1f, 4, 0],
            &[4],
            &[],
        ] {
            assert!(Der::new(bad).any().is_none(), "{bad:?}");
        }
    }

    #[test]
    fn integers_and_booleans_are_minimal() {
        let integer = |bytes: &[u8]| Der::new(bytes).integer().is_some();
        assert!(integer(&[2, 1, 0]) && integer(&[2, 2, 0, 0x80]) && integer(&[2, 2, 0xff, 0x7f]));
        assert!(!integer(&[2, 0]) && !integer(&[2, 2, 0, 1]) && !integer(&[2, 2, 0xff, 0x80]));
        assert_eq!(Der::new(&[1, 1, 0xff]).boolean(), Some(true));
        assert_eq!(Der::new(&[1, 1, 1]).boolean(), None);
    }

    #[test]
    fn bit_strings_have_no_bits_in_their_padding() {
        let read = |bytes: &[u8]| Der::new(bytes).bit_string().map(|bits| bits.unused_bits);
        assert_eq!(read(&[3, 2, 3, 0b1000]), Some(3));
        assert_eq!(read(&[3, 1, 0]), Some(0));
        for bad in [&[3, 2, 3, 0b100][..], &[3, 1, 1], &[3, 2, 8, 0], &[3, 0]] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        let bits = Der::new(&[3, 3, 7, 0b100, 0x80]).bit_string().unwrap();
        assert!(bits.bit(5) && !bits.bit(4) && bits.bit(8) && !bits.bit(70));
    }

    #[test]
    fn object_identifiers_have_numbers_that_go_can_keep() {
        let read = |bytes: &[u8]| {
            let der = [&[6, u8::try_from(bytes.len()).unwrap()], bytes].concat();
            Der::new(&der).object_identifier().is_some()
        };
        assert!(read(&[0x2b, 6, 1]) && read(&[0x2b, 0x87, 0xff, 0xff, 0xff, 0x7f]));
        assert!(!read(&[]) && !read(&[0x2b, 0x81]) && !read(&[0x2b, 0x80, 1]));
        assert!(!read(&[0x2b, 0x88, 0x80, 0x80, 0x80, 0]));
    }

    #[test]
    fn times_are_read_as_go_reads_them() {
        let seconds = |tag: u8, text: &str| {
            let der = [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            let time = Der::new(&der).time()?;
            let after = time.duration_since(SystemTime::UNIX_EPOCH);
            Some(match after {
                Ok(after) => i64::try_from(after.as_secs()).unwrap(),
                Err(before) => -i64::try_from(before.duration().as_secs()).unwrap(),
            })
        };
        for (text, expected) in [
            ("700101000000Z", Some(0)),
            ("491231235959Z", Some(2_524_607_999)),
            ("500101000000Z", Some(-631_152_000)),
            ("7001010000Z", Some(0)),
            ("700101010000+0100", Some(0)),
            ("700101000000+0000", None),
            ("700101000000", None),
            ("700101000000.0Z", None),
            ("700230000000Z", None),
            ("701301000000Z", None),
            ("700101240000Z", None),
            ("700101000060Z", None),
        ] {
            assert_eq!(seconds(UTC_TIME, text), expected, "{text}");
        }
        for (text, expected) in [
            ("99991231235959Z", Some(253_402_300_799)),
            ("00000101000000Z", Some(-62_167_219_200)),
            ("20240229120000Z", Some(1_709_208_000)),
            ("20230229120000Z", None),
            ("197001010000Z", None),
        ] {
            assert_eq!(seconds(GENERALIZED_TIME, text), expected, "{text}");
        }
    }
}
