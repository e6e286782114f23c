//! Name constraints of issuers (RFC 5280, 4.2.1.10), as Go checks them: those for DNS names, e-mail
//! addresses, URIs and IP addresses. Pure.
//!
//! A constraint of another kind is left out; if the extension is critical, its certificate issues
//! none. A mailbox or a URI without a host that constraints can be compared with is refused as soon
//! as an issuer has any constraint, as Go does since 1.26.

use std::net::IpAddr;

use crate::der::{Der, SEQUENCE, constructed, context};

/// How many comparisons are made for one path at most: a certificate may have thousands of names,
/// and an issuer thousands of constraints. Go up to 1.25 makes as many for each issuer
/// (`maxConstraintComparisons`); 1.26 searches sorted constraints instead.
const MAX_COMPARISONS: usize = 250_000;

/// The alternative names of a subject (RFC 5280, 4.2.1.6), of the kinds that Go knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlternativeNames {
    /// The value of the extension.
    pub(super) der: Box<[u8]>,
    pub(crate) dns: Vec<String>,
    pub(super) emails: Vec<String>,
    /// The host of each URI, with its port. Empty if there is none.
    pub(super) uri_hosts: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
}

impl AlternativeNames {
    /// Whether there is none of the kinds that Go knows.
    pub(super) const fn is_empty(&self) -> bool {
        self.dns.is_empty()
            && self.emails.is_empty()
            && self.uri_hosts.is_empty()
            && self.addresses.is_empty()
    }
}

/// The name constraints of an issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameConstraints {
    permitted: Subtrees,
    excluded: Subtrees,
    /// Whether one is of a kind that is not checked.
    pub(super) has_unknown: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Subtrees {
    dns: Vec<String>,
    /// An address, or the name of a domain.
    emails: Vec<String>,
    uris: Vec<String>,
    addresses: Vec<Network>,
    has_unknown: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    address: Vec<u8>,
    mask: Vec<u8>,
}

impl NameConstraints {
    /// Parses the extension (`parseNameConstraintsExtension`). `None` if Go does not accept it.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let mut outer = Der::new(value);
        let mut both = outer.read(SEQUENCE)?;
        let permitted = both.optional(constructed(0))?;
        let excluded = both.optional(constructed(1))?;
        let is_empty = |subtrees: Option<Der<'_>>| subtrees.is_some_and(Der::is_empty);
        if !outer.is_empty()
            || !both.is_empty()
            || permitted.is_none() && excluded.is_none()
            || is_empty(permitted)
            || is_empty(excluded)
        {
            return None;
        }
        let parse = |subtrees: Option<Der<'_>>| {
            subtrees.map_or_else(|| Some(Subtrees::default()), Subtrees::parse)
        };
        let (permitted, excluded) = (parse(permitted)?, parse(excluded)?);
        Some(Self {
            has_unknown: permitted.has_unknown || excluded.has_unknown,
            permitted,
            excluded,
        })
    }

    /// Checks the names of a certificate below this issuer. The error says which is not allowed.
    /// Comparisons are taken from `budget`.
    pub(super) fn check(
        &self,
        names: &AlternativeNames,
        budget: &mut ComparisonBudget,
    ) -> Result<(), String> {
        let (permitted, excluded) = (&self.permitted, &self.excluded);
        for address in &names.addresses {
            let matches = |network: &Network, _: bool| network.contains(*address);
            budget.take(&permitted.addresses, &excluded.addresses)?;
            check(address, &permitted.addresses, &excluded.addresses, matches)?;
        }
        for name in &names.dns {
            if !is_domain(name, false) {
                return Err(format!("cannot parse dnsName {name:?}"));
            }
            budget.take(&permitted.dns, &excluded.dns)?;
            check(name, &permitted.dns, &excluded.dns, |domain, excluded| {
                is_in_domain(name, domain, excluded)
            })?;
        }
        for host in &names.uri_hosts {
            let name = domain_of_host(host)
                .ok_or_else(|| format!("URI with host {host:?} cannot be matched"))?;
            budget.take(&permitted.uris, &excluded.uris)?;
            check(host, &permitted.uris, &excluded.uris, |domain, excluded| {
                is_host_in_domain(name, domain, excluded)
            })?;
        }
        for email in &names.emails {
            let mailbox =
                parse_mailbox(email).ok_or_else(|| format!("cannot parse rfc822Name {email:?}"))?;
            budget.take(&permitted.emails, &excluded.emails)?;
            check(
                email,
                &permitted.emails,
                &excluded.emails,
                |constraint, excluded| mailbox.matches(constraint, excluded),
            )?;
        }
        Ok(())
    }
}

/// The comparisons that may still be made.
#[derive(Debug)]
pub(super) struct ComparisonBudget(usize);

impl ComparisonBudget {
    pub(super) const fn new() -> Self {
        Self(MAX_COMPARISONS)
    }

    fn take<C>(&mut self, permitted: &[C], excluded: &[C]) -> Result<(), String> {
        let left = self.0.checked_sub(permitted.len() + excluded.len());
        self.0 = left.ok_or("too many constraints")?;
        Ok(())
    }
}

/// `matches` gets a constraint, and whether it excludes.
fn check<C>(
    name: &impl std::fmt::Debug,
    permitted: &[C],
    excluded: &[C],
    matches: impl Fn(&C, bool) -> bool,
) -> Result<(), String> {
    if excluded.iter().any(|constraint| matches(constraint, true)) {
        Err(format!("{name:?} is excluded by a constraint"))
    } else if !permitted.is_empty() && !permitted.iter().any(|c| matches(c, false)) {
        Err(format!("{name:?} is not permitted by any constraint"))
    } else {
        Ok(())
    }
}

impl Subtrees {
    fn parse(mut subtrees: Der<'_>) -> Option<Self> {
        const EMAIL: u8 = context(1);
        const DNS: u8 = context(2);
        const URI: u8 = context(6);
        const ADDRESS: u8 = context(7);
        let mut parsed = Self::default();
        while !subtrees.is_empty() {
            let base = subtrees.read(SEQUENCE)?.any()?;
            let text = || ia5_string(base.contents);
            match base.tag {
                DNS => parsed
                    .dns
                    .push(text().filter(|name| is_domain(name, true))?),
                ADDRESS => parsed.addresses.push(Network::parse(base.contents)?),
                EMAIL => parsed.emails.push(text().filter(|constraint| {
                    if constraint.contains('@') {
                        parse_mailbox(constraint).is_some()
                    } else {
                        is_domain(constraint, true)
                    }
                })?),
                URI => parsed.uris.push(
                    text()
                        .filter(|name| name.parse::<IpAddr>().is_err() && is_domain(name, true))?,
                ),
                _ => parsed.has_unknown = true,
            }
        }
        Some(parsed)
    }
}

impl Network {
    fn parse(value: &[u8]) -> Option<Self> {
        let (address, mask) = match value.len() {
            8 | 32 => value.split_at_checked(value.len() / 2)?,
            _ => return None,
        };
        let bits = mask
            .iter()
            .fold(0_u128, |bits, byte| (bits << 8) | u128::from(*byte));
        let bits = bits << (128 - mask.len() * 8);
        let is_prefix = bits.leading_ones() == bits.count_ones();
        (is_prefix && ip_address(address).is_some()).then(|| Self {
            address: address.to_owned(),
            mask: mask.to_owned(),
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let bytes: &[u8] = match &address {
            IpAddr::V4(address) => &address.octets(),
            IpAddr::V6(address) => &address.octets(),
        };
        bytes.len() == self.address.len()
            && bytes
                .iter()
                .zip(&self.address)
                .zip(&self.mask)
                .all(|((a, b), mask)| a & mask == b & mask)
    }
}

/// An address of four or sixteen bytes. Newer versions of Go do not accept an IPv4 address in an
/// IPv6 one.
pub(super) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(bytes));
    }
    let address = IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?);
    (address.to_canonical() == address).then_some(address)
}

/// ASCII.
pub(super) fn ia5_string(bytes: &[u8]) -> Option<String> {
    let ascii = bytes.is_ascii();
    ascii.then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// Go's `domainNameValid`. The empty name is valid; a constraint may begin with a dot.
pub(super) fn is_domain(name: &str, constraint: bool) -> bool {
    let labels = match name.strip_prefix('.') {
        Some(rest) if constraint => rest,
        _ => name,
    };
    name.is_empty()
        || labels
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(|byte| (33..=126).contains(&byte)))
}

/// Whether a name is that of the domain or of one in it; only of one in it, if the domain begins
/// with a dot. An excluding domain also matches a wildcard that stands for it.
fn is_in_domain(name: &str, domain: &str, excluding: bool) -> bool {
    if excluding
        && name.starts_with('*')
        && let Some(((_, rest), (_, end))) = name.split_once('.').zip(domain.split_once('.'))
        && rest.eq_ignore_ascii_case(end)
    {
        return true;
    }
    let Some(at) = name.len().checked_sub(domain.len()) else {
        return false;
    };
    let Some((before, end)) = name.split_at_checked(at) else {
        return false;
    };
    let at_label = before.is_empty() || before.ends_with('.') || domain.starts_with('.');
    domain.is_empty() || at_label && end.eq_ignore_ascii_case(domain)
}

/// Whether the host of a URI or mailbox matches. Later versions than Go 1.26.0 permit only the host
/// itself, unless the domain begins with a dot (CVE-2026-78664, CVE-2026-78665); earlier ones exclude
/// what is below it, too.
fn is_host_in_domain(host: &str, domain: &str, excluding: bool) -> bool {
    let may_be_below = excluding || domain.is_empty() || domain.starts_with('.');
    (may_be_below || host.len() == domain.len()) && is_in_domain(host, domain, excluding)
}

/// The domain of a URI's host. `None` for an IP address, and if there is none.
fn domain_of_host(host: &str) -> Option<&str> {
    let (name, _port) = host.split_once(':').unwrap_or((host, ""));
    let is_name = !name.is_empty()
        && !host.starts_with('[')
        && name.parse::<IpAddr>().is_err()
        && is_domain(name, false);
    is_name.then_some(name)
}

#[derive(Debug, PartialEq, Eq)]
struct Mailbox<'a> {
    local: Vec<u8>,
    domain: &'a str,
}

impl Mailbox<'_> {
    fn matches(&self, constraint: &str, excluding: bool) -> bool {
        if constraint.contains('@') {
            return parse_mailbox(constraint).is_some_and(|other| {
                self.local == other.local && self.domain.eq_ignore_ascii_case(other.domain)
            });
        }
        is_host_in_domain(self.domain, constraint, excluding)
    }
}

/// Parses an address like Go's `parseRFC2821Mailbox`.
fn parse_mailbox(text: &str) -> Option<Mailbox<'_>> {
    let (local, domain) = match text.strip_prefix('"') {
        Some(quoted) => parse_quoted_local_part(quoted)?,
        None => parse_local_part(text)?,
    };
    let domain = domain.strip_prefix('@')?;
    is_domain(domain, false).then_some(Mailbox { local, domain })
}

fn parse_quoted_local_part(text: &str) -> Option<(Vec<u8>, &str)> {
    let mut local = Vec::new();
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((local, text.get(at + 1..)?)),
            b'\\' => {
                let (_, escaped) = bytes.next()?;
                let valid = matches!(escaped, 1..=9 | 11 | 12 | 14..=127);
                local.push(valid.then_some(escaped)?);
            }
            1..=8 | 11 | 12 | 14..=33 | 35..=91 | 93..=127 => local.push(byte),
            _ => return None,
        }
    }
    None
}

fn parse_local_part(text: &str) -> Option<(Vec<u8>, &str)> {
    let mut local = Vec::new();
    let mut bytes = text.bytes().enumerate();
    let mut end = text.len();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            // Like Go, whatever follows.
            b'\\' => local.push(bytes.next()?.1),
            byte if byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte) => {
                local.push(byte);
            }
            _ => {
                end = at;
                break;
            }
        }
    }
    let dots =
        local.starts_with(b".") || local.ends_with(b".") || local.windows(2).any(|w| w == b"..");
    (!local.is_empty() && !dots).then_some((local, text.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_match_at_their_labels() {
        for (name, domain, expected) in [
            ("example.com", "example.com", true),
            ("A.Example.com", "example.COM", true),
            ("badexample.com", "example.com", false),
            ("example.com", ".example.com", false),
            ("a.example.com", ".example.com", true),
            ("com", "example.com", false),
            ("anything", "", true),
        ] {
            for excluding in [false, true] {
                assert_eq!(
                    is_in_domain(name, domain, excluding),
                    expected,
                    "{name} {domain}"
                );
            }
        }
        assert!(is_in_domain("*.Example.com", "a.example.COM", true));
        assert!(!is_in_domain("*.example.com", "a.example.com", false));
        assert!(!is_in_domain("*.example.com", "a.b.example.com", true));
    }

    #[test]
    fn hosts_are_permitted_exactly_and_excluded_with_all_below() {
        for (host, domain, permitted, excluded) in [
            ("Example.com", "example.com", true, true),
            ("a.example.com", "example.com", false, true),
            ("a.example.com", ".example.com", true, true),
            ("example.com", ".example.com", false, false),
            ("anything", "", true, true),
        ] {
            let found = [false, true].map(|excluding| is_host_in_domain(host, domain, excluding));
            assert_eq!(found, [permitted, excluded], "{host} {domain}");
        }
    }

    #[test]
    fn mailboxes_are_parsed_as_go_parses_them() {
        let local = |text| parse_mailbox(text).map(|m| String::from_utf8(m.local).unwrap());
        for (text, expected) in [
            ("foo@example.com", Some("foo")),
            ("foo.bar@example.com", Some("foo.bar")),
            ("foo\\@bar@example.com", Some("foo@bar")),
            ("\"a b\\\"c\"@example.com", Some("a b\"c")),
            ("foo\\~bar@example.com", Some("foo~bar")),
            (".foo@example.com", None),
            ("foo..bar@example.com", None),
            ("@example.com", None),
            ("\"foo@example.com", None),
            ("foo bar@example.com", None),
            ("foo@example.com.", None),
            ("foo@exa mple.com", None),
            ("foo", None),
            ("", None),
        ] {
            assert_eq!(local(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn masks_have_their_ones_first() {
        let network = |mask: [u8; 4]| Network::parse(&[&[10, 0, 0, 0], &mask[..]].concat());
        assert!(network([255, 0, 0, 0]).is_some() && network([255, 240, 0, 0]).is_some());
        assert!(network([255, 0, 255, 0]).is_none() && network([0, 1, 0, 0]).is_none());
        assert!(network([0xf7, 0, 0, 0]).is_none() && network([0x80, 0x80, 0, 0]).is_none());
        let ten = network([255, 0, 0, 0]).unwrap();
        assert!(ten.contains("10.9.8.7".parse().unwrap()));
        assert!(
            !ten.contains("11.0.0.1".parse().unwrap()) && !ten.contains("::1".parse().unwrap())
        );
    }
}
