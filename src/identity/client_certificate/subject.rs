//! Parses the subject of a client certificate like Go's `crypto/x509`. Pure.
//!
//! kube-apiserver takes the user name from the last common name, and the groups from all
//! organizations, whatever their string types. If a value were skipped, the certificate would
//! authenticate another user. Therefore a subject with a value that cannot be read is an error. The
//! accepted strings are those that all versions of Go read alike (`parseASN1String`, 1.19 to 1.26):
//! ASCII in a T61String, and no surrogates or noncharacters in a BMPString. The name is parsed here
//! because the certificate parser stops at an attribute that it cannot read, and drops the rest of
//! its set.

use std::borrow::Cow;

/// The DER of object identifiers: 2.5.4.3, 2.5.4.10, and the attribute with the uid,
/// 1.3.6.1.4.1.57683.2 (feature gate `AllowParsingUserUIDFromCertAuth`, on since 1.33).
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

/// DER tags.
const OBJECT_IDENTIFIER: u8 = 6;
const UTF8_STRING: u8 = 12;
const NUMERIC_STRING: u8 = 18;
const PRINTABLE_STRING: u8 = 19;
const T61_STRING: u8 = 20;
const IA5_STRING: u8 = 22;
const BMP_STRING: u8 = 30;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// The part of a subject that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubjectError(pub(super) &'static str);

/// The attributes of a subject that Kubernetes uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CertificateSubject<'c> {
    /// The last common name. Empty if there is none.
    pub(super) common_name: Cow<'c, str>,
    /// All organizations, in order.
    pub(super) organizations: Vec<Cow<'c, str>>,
    /// All uids. `None` for one that is not a string.
    pub(super) uids: Vec<Option<Cow<'c, str>>>,
}

impl<'c> CertificateSubject<'c> {
    /// Parses the DER of a `Name`.
    ///
    /// # Errors
    /// The structure is invalid, or a common name or an organization cannot be read.
    pub(super) fn parse(name: &'c [u8]) -> Result<Self, SubjectError> {
        const STRUCTURE: SubjectError = SubjectError("structure");
        let mut subject = Self::default();
        let (mut sets, []) = read_tagged(name, SEQUENCE).ok_or(STRUCTURE)? else {
            return Err(STRUCTURE);
        };
        while !sets.is_empty() {
            let (mut set, rest) = read_tagged(sets, SET).ok_or(STRUCTURE)?;
            sets = rest;
            while !set.is_empty() {
                let (attribute, rest) = read_tagged(set, SEQUENCE).ok_or(STRUCTURE)?;
                set = rest;
                let (kind, value) = read_tagged(attribute, OBJECT_IDENTIFIER).ok_or(STRUCTURE)?;
                let (tag, value, []) = read_element(value).ok_or(STRUCTURE)? else {
                    return Err(STRUCTURE);
                };
                subject.add_attribute(kind, decode_string(tag, value))?;
            }
        }
        Ok(subject)
    }

    fn add_attribute(
        &mut self,
        kind: &[u8],
        text: Option<Cow<'c, str>>,
    ) -> Result<(), SubjectError> {
        match kind {
            COMMON_NAME => self.common_name = text.ok_or(SubjectError("common name"))?,
            ORGANIZATION => {
                let text = text.ok_or(SubjectError("organization"))?;
                self.organizations.push(text);
            }
            UID => self.uids.push(text),
            _ => {}
        }
        Ok(())
    }
}

/// The contents of the first element of `der`, if it has this tag, and the rest.
fn read_tagged(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = read_element(der)?;
    (found == tag).then_some((contents, rest))
}

/// The tag and the contents of the first element of `der`, and the rest.
fn read_element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first().filter(|(tag, _)| **tag & 0x1f != 0x1f)?; // one-byte tags only
    let (&first, rest) = rest.split_first()?;
    let (bytes, rest) = match first {
        0..=0x7f => (&[][..], rest),
        0x81..=0x83 => rest.split_at_checked(usize::from(first - 0x80))?,
        _ => return None,
    };
    let length = match bytes {
        [] => usize::from(first),
        bytes => bytes
            .iter()
            .fold(0, |length, byte| (length << 8) | usize::from(*byte)),
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// A string of the types that Go reads. `None` for another type, or for a value that Go's versions
/// do not read alike.
fn decode_string(tag: u8, value: &[u8]) -> Option<Cow<'_, str>> {
    let read = match tag {
        UTF8_STRING => true,
        PRINTABLE_STRING => value.iter().all(|byte| is_printable(*byte)),
        NUMERIC_STRING => value
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b' '),
        T61_STRING | IA5_STRING => value.is_ascii(),
        BMP_STRING => return decode_ucs2(value).map(Cow::Owned),
        _ => false,
    };
    str::from_utf8(value)
        .ok()
        .filter(|_| read)
        .map(Cow::Borrowed)
}

/// Go's `isPrintable`, which accepts `*` and `&`.
const fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\''..=b')' | b'+'..=b'/' | b' ' | b':' | b'=' | b'?' | b'*' | b'&')
}

/// Big-endian UCS-2, with an optional terminator, which is dropped.
fn decode_ucs2(value: &[u8]) -> Option<String> {
    let value = value
        .strip_suffix(&[0, 0])
        .filter(|rest| rest.len() % 2 == 0)
        .unwrap_or(value);
    let (units, []) = value.as_chunks::<2>() else {
        return None;
    };
    units
        .iter()
        .map(|unit| match u32::from(u16::from_be_bytes(*unit)) {
            0xfffe | 0xffff | 0xfdd0..=0xfdef => None,
            point => char::from_u32(point), // `None` for a surrogate
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T61: u8 = T61_STRING;
    const UNIVERSAL_STRING: u8 = 28;

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
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

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let kind = der(OBJECT_IDENTIFIER, kind);
        der(SEQUENCE, &[kind, der(tag, value)].concat())
    }

    /// A name with these attributes, each in a set of its own.
    fn distinguished_name(attributes: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
        let sets = attributes
            .iter()
            .flat_map(|(kind, tag, value)| der(SET, &attribute(kind, *tag, value)));
        der(SEQUENCE, &sets.collect::<Vec<_>>())
    }

    fn parse_common_name(values: &[(u8, &[u8])]) -> Result<String, SubjectError> {
        let attributes: Vec<_> = values
            .iter()
            .map(|(tag, value)| (COMMON_NAME, *tag, *value))
            .collect();
        CertificateSubject::parse(&distinguished_name(&attributes))
            .map(|subject| subject.common_name.into_owned())
    }

    const ADMIN: (u8, &[u8]) = (UTF8_STRING, b"kubernetes-admin");
    const ALICE: &[u8] = b"alice";
    const ALICE_BMP: &[u8] = b"\0a\0l\0i\0c\0e";

    #[test]
    fn the_last_common_name_counts_in_every_string_type() {
        for last in [
            (UTF8_STRING, ALICE),
            (PRINTABLE_STRING, ALICE),
            (IA5_STRING, ALICE),
            (T61, ALICE),
            (BMP_STRING, ALICE_BMP),
            (BMP_STRING, b"\0a\0l\0i\0c\0e\0\0"),
        ] {
            assert_eq!(
                parse_common_name(&[ADMIN, last]),
                Ok("alice".to_owned()),
                "{last:?}"
            );
        }
        assert_eq!(
            parse_common_name(&[ADMIN, (NUMERIC_STRING, b"12 3")]),
            Ok("12 3".to_owned())
        );
        assert_eq!(
            parse_common_name(&[ADMIN, (UTF8_STRING, b"")]),
            Ok(String::new())
        );
        assert_eq!(
            parse_common_name(&[(T61, ALICE), ADMIN]),
            Ok("kubernetes-admin".to_owned())
        );
        assert_eq!(parse_common_name(&[]), Ok(String::new()));
        assert_eq!(
            parse_common_name(&[(BMP_STRING, b"\x20\xac")]),
            Ok("€".to_owned())
        );
        assert_eq!(
            parse_common_name(&[(PRINTABLE_STRING, b"*.a&b")]),
            Ok("*.a&b".to_owned())
        );
    }

    #[test]
    fn an_unreadable_common_name_is_an_error_at_every_position() {
        for bad in [
            (UTF8_STRING, &b"al\xffce"[..]),
            (PRINTABLE_STRING, b"al@ce"),
            (IA5_STRING, b"al\xefce"),
            (T61, b"al\xefce"), // Latin-1 or raw bytes, depending on Go's version
            (NUMERIC_STRING, b"alice"),
            (BMP_STRING, b"\0a\0"),
            (BMP_STRING, b"\0a\xd8\x3d\xde\0"),
            (BMP_STRING, b"\xff\xfe"),
            (BMP_STRING, b"\xfd\xd0"),
            (UNIVERSAL_STRING, b"\0\0\0a"),
            (4, ALICE),
            (26, ALICE),
            (0x80 | UTF8_STRING, ALICE),
            (0x20 | T61, ALICE),
        ] {
            let unreadable = Err(SubjectError("common name"));
            assert_eq!(parse_common_name(&[ADMIN, bad]), unreadable, "{bad:?}");
            assert_eq!(parse_common_name(&[bad, ADMIN]), unreadable, "{bad:?}");
        }
    }

    #[test]
    fn an_unreadable_organization_is_an_error() {
        let read = |last: (u8, &'static [u8])| {
            let attributes = [
                (ORGANIZATION, PRINTABLE_STRING, &b"dev"[..]),
                (&[0x55, 4, 11], 4, b"no string, and no group"),
                (ORGANIZATION, last.0, last.1),
            ];
            CertificateSubject::parse(&distinguished_name(&attributes))
                .map(|subject| subject.organizations.concat())
        };
        assert_eq!(read((BMP_STRING, b"\0o\0p\0s")), Ok("devops".to_owned()));
        assert_eq!(read((T61, b"ops")), Ok("devops".to_owned()));
        assert_eq!(read((T61, b"\xf6ps")), Err(SubjectError("organization")));
        assert_eq!(read((4, b"ops")), Err(SubjectError("organization")));
    }

    #[test]
    fn every_attribute_of_a_set_counts() {
        let both = [
            attribute(COMMON_NAME, UTF8_STRING, b"kubernetes-admin"),
            attribute(COMMON_NAME, BMP_STRING, ALICE_BMP),
        ];
        let subject = |set: &[u8]| {
            let name = der(SEQUENCE, &der(SET, set));
            CertificateSubject::parse(&name).map(|subject| subject.common_name.into_owned())
        };
        assert_eq!(subject(&both.concat()), Ok("alice".to_owned()));
        let [admin, alice] = both;
        let cut = &alice[..alice.len() - 1];
        assert_eq!(
            subject(&[&admin, cut].concat()),
            Err(SubjectError("structure"))
        );
        let long = der(
            SEQUENCE,
            &[der(OBJECT_IDENTIFIER, COMMON_NAME), vec![0x1f, 0x1e, 0]].concat(),
        );
        assert_eq!(
            subject(&[admin, long].concat()),
            Err(SubjectError("structure"))
        );
    }

    #[test]
    fn long_names_are_parsed_and_invalid_der_is_an_error() {
        let long = vec![b'a'; 40_000];
        assert_eq!(
            parse_common_name(&[(UTF8_STRING, &long)]).unwrap().len(),
            40_000
        );
        let short = vec![b'a'; 200];
        assert_eq!(
            parse_common_name(&[(UTF8_STRING, &short)]).unwrap().len(),
            200
        );
        for bad in [
            &b""[..],
            b"\x31\0",
            b"\x30\x80\0\0",
            b"\x30\x01",
            b"\x30\0\0",
        ] {
            assert_eq!(
                CertificateSubject::parse(bad),
                Err(SubjectError("structure")),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic() {
        let seed = 20_261_123;
        let mut random = fastrand::Rng::with_seed(seed);
        let whole = distinguished_name(&[
            (COMMON_NAME, BMP_STRING, ALICE_BMP),
            (ORGANIZATION, T61, b"ops"),
            (UID, UTF8_STRING, b"u"),
        ]);
        assert_eq!(
            CertificateSubject::parse(&whole).unwrap().uids,
            [Some(Cow::Borrowed("u"))]
        );
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            let _ = CertificateSubject::parse(&bytes);
        }
    }
}
