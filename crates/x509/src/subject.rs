//! The user that the subject of a client certificate names. Pure.
//!
//! kube-apiserver takes the user name from the last common name, and the groups from all
//! organizations, whatever their string types. If a value were skipped, the certificate would
//! authenticate another user. Therefore a common name or an organization that is no string is an
//! error, and one that Go's versions do not read alike: beyond ASCII in a T61String.

use std::borrow::Cow;

use crate::name::parse_name;

/// The DER of object identifiers: 2.5.4.3, 2.5.4.10, and the attribute with the uid,
/// 1.3.6.1.4.1.57683.2 (feature gate `AllowParsingUserUIDFromCertAuth`, on since 1.33).
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

/// The part of a subject that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectError(pub &'static str);

/// The attributes of a subject that Kubernetes uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject<'c> {
    /// The last common name. Empty if there is none.
    pub common_name: Cow<'c, str>,
    /// All organizations, in order.
    pub organizations: Vec<Cow<'c, str>>,
    /// All uids. `None` for one that is not a string.
    pub uids: Vec<Option<Cow<'c, str>>>,
}

impl<'c> CertificateSubject<'c> {
    /// Parses the DER of a `Name`.
    ///
    /// # Errors
    /// The structure is invalid, or a common name or an organization cannot be read.
    pub fn parse(name: &'c [u8]) -> Result<Self, SubjectError> {
        let mut subject = Self::default();
        for attribute in parse_name(name).ok_or(SubjectError("structure"))? {
            subject.add_attribute(attribute.kind, attribute.text())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::der::encode as der;
    use crate::der::{OBJECT_IDENTIFIER, SEQUENCE, SET};
    use crate::name::{
        BMP_STRING, IA5_STRING, NUMERIC_STRING, PRINTABLE_STRING, T61_STRING, UTF8_STRING,
    };

    const T61: u8 = T61_STRING;
    const UNIVERSAL_STRING: u8 = 28;

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
            assert!(parse_common_name(&[ADMIN, bad]).is_err(), "{bad:?}");
            assert!(parse_common_name(&[bad, ADMIN]).is_err(), "{bad:?}");
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
