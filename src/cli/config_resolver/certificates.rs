//! What is wrong with a certificate that could be read: dates, order of the chain, names, usages.
//! Pure: `now` is an argument.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use weir_lint::rule::Rule;

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A warning is given this long before the end. cert-manager renews a certificate of 90 days 30
/// days before its end.
const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A certificate that lives shorter than 150 days is warned about in the last fifth of its life:
/// some are issued for a day.
const WARN_FRACTION: u32 = 5;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateUse {
    /// Clients verify it and its names.
    Serving,
    /// The API server verifies it.
    Client,
    /// Not known.
    Any,
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Peers reject it, or will within hours.
    Unusable(Rule, String),
    /// It may fail later, or for some peers.
    Doubtful(Rule, String),
}

/// What a certificate is for and how long it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateSummary {
    /// DNS names and addresses.
    pub(crate) names: Vec<String>,
    /// The end of its validity.
    pub(crate) not_after: SystemTime,
}

/// The summary of the first certificate of a chain.
pub(crate) fn summarize(chain: &[CertificateDer<'_>]) -> Option<CertificateSummary> {
    let certificate = parse(chain.first()?)?;
    Some(CertificateSummary {
        names: alternative_names(&certificate),
        not_after: not_after(&certificate),
    })
}

/// The defects of a certificate with its chain.
pub(crate) fn inspect_chain(
    chain: &[CertificateDer<'_>],
    usage: CertificateUse,
    now: SystemTime,
) -> Vec<Defect> {
    let parsed: Vec<_> = chain.iter().filter_map(parse).collect();
    let mut defects = Vec::new();
    for (n, certificate) in parsed.iter().enumerate() {
        let name = match n {
            0 => "the certificate".to_owned(),
            _ => format!("certificate {} (of its chain)", n + 1),
        };
        defects.extend(validity_defect(&name, certificate, now));
    }
    for (n, pair) in parsed.windows(2).enumerate() {
        if let [certificate, issuer] = pair
            && certificate.issuer().as_raw() != issuer.subject().as_raw()
        {
            let message = format!(
                "its chain is incomplete or out of order: certificate {} was issued by {:?}, and {:?} follows; put each \
                 certificate before that of its issuer",
                n + 1,
                certificate.issuer().to_string(),
                issuer.subject().to_string(),
            );
            defects.push(Defect::Doubtful(Rule::CertificateChain, message));
        }
    }
    if let Some(leaf) = parsed.first() {
        defects.extend(usage_defects(leaf, usage));
    }
    defects
}

/// The defects of CA certificates. Like in Go, those that can be parsed are trusted themselves, even
/// if they issue no certificate.
pub(crate) fn inspect_roots(roots: &[CertificateDer<'_>], now: SystemTime) -> Vec<Defect> {
    let mut defects = Vec::new();
    for (n, root) in roots.iter().enumerate() {
        let parsed = match weir_x509::Certificate::parse(root) {
            Ok(parsed) => parsed,
            Err(why) => {
                let message = format!(
                    "certificate {} is left out: {why}; neither it nor what it signed is accepted",
                    n + 1
                );
                defects.push(Defect::Doubtful(Rule::CertificateInvalid, message));
                continue;
            }
        };
        let Some(certificate) = parse(root) else {
            continue;
        };
        let name = format!("certificate {} ({})", n + 1, certificate.subject());
        // A bundle may keep an old CA beside its successor.
        if let Some(Defect::Unusable(rule, why) | Defect::Doubtful(rule, why)) =
            validity_defect(&name, &certificate, now)
        {
            defects.push(Defect::Doubtful(rule, why));
        }
        if let Some(defect) = parsed.issuing_defect() {
            let message = format!(
                "{name} is not a CA: {defect}; only this certificate itself is accepted, and none that it signed; give \
                 the CA"
            );
            defects.push(Defect::Doubtful(Rule::NotACa, message));
        }
    }
    defects
}

/// The numbers, from 1, of those that are no X.509 certificates.
pub(crate) fn malformed(certificates: &[CertificateDer<'_>]) -> impl Iterator<Item = usize> {
    let all = certificates.iter().enumerate();
    all.filter_map(|(n, certificate)| parse(certificate).is_none().then_some(n + 1))
}

/// Whether all of these are CAs.
pub(crate) fn are_roots(certificates: &[CertificateDer<'_>]) -> bool {
    let mut parsed = certificates.iter().map(parse);
    parsed.all(|certificate| certificate.is_some_and(|certificate| is_ca(&certificate)))
}

fn is_ca(certificate: &X509Certificate<'_>) -> bool {
    certificate
        .basic_constraints()
        .is_ok_and(|constraints| constraints.is_some_and(|found| found.value.ca))
}

/// How long something is valid that ends at `end`, if that is soon or past. `lifetime` is how long
/// it was valid in all.
pub(super) fn expiry_defect(
    name: &str,
    end: SystemTime,
    lifetime: Option<Duration>,
    now: SystemTime,
) -> Option<Defect> {
    let Ok(left) = end.duration_since(now) else {
        let ago = now.duration_since(end).unwrap_or_default();
        let message = format!("{name} expired {} ago ({})", in_words(ago), date(end));
        return Some(Defect::Unusable(Rule::CertificateExpired, message));
    };
    let fraction = lifetime.map_or(WARN_BEFORE, |lifetime| lifetime / WARN_FRACTION);
    (left < WARN_BEFORE.min(fraction)).then(|| {
        let message = format!("{name} expires in {} ({})", in_words(left), date(end));
        Defect::Doubtful(Rule::CertificateExpiring, message)
    })
}

fn validity_defect(
    name: &str,
    certificate: &X509Certificate<'_>,
    now: SystemTime,
) -> Option<Defect> {
    let (from, to) = (not_before(certificate), not_after(certificate));
    if let Ok(ahead) = from.duration_since(now)
        && !ahead.is_zero()
    {
        let message = format!(
            "{name} is not valid yet: it begins in {} ({}); is this machine's clock right?",
            in_words(ahead),
            date(from)
        );
        return Some(Defect::Unusable(Rule::CertificateExpired, message));
    }
    expiry_defect(name, to, to.duration_since(from).ok(), now)
}

fn usage_defects(leaf: &X509Certificate<'_>, usage: CertificateUse) -> Vec<Defect> {
    let mut defects = Vec::new();
    if usage == CertificateUse::Serving && alternative_names(leaf).is_empty() {
        defects.push(Defect::Unusable(
            Rule::CertificateInvalid,
            "the certificate has no subject alternative name: clients verify it by these names, and not by its common name"
                .to_owned(),
        ));
    }
    // Without the extension every usage is allowed.
    if usage != CertificateUse::Any
        && let Ok(Some(extension)) = leaf.extended_key_usage()
    {
        let found = extension.value;
        let (allowed, needed) = if usage == CertificateUse::Serving {
            (found.server_auth, "serverAuth")
        } else {
            (found.client_auth, "clientAuth")
        };
        if !allowed && !found.any {
            let message = format!(
                "the certificate's extended key usage leaves out {needed}: the other side rejects it"
            );
            defects.push(Defect::Unusable(Rule::CertificateInvalid, message));
        }
    }
    defects
}

fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| {
            if let GeneralName::DNSName(name) = name {
                Some((*name).to_owned())
            } else if let GeneralName::IPAddress(bytes) = name {
                ip_address(bytes).map(|ip| ip.to_string())
            } else {
                None
            }
        })
        .collect()
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn parse<'d>(der: &'d CertificateDer<'_>) -> Option<X509Certificate<'d>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate)
}

fn not_before(certificate: &X509Certificate<'_>) -> SystemTime {
    system_time(certificate.validity().not_before.timestamp())
}

fn not_after(certificate: &X509Certificate<'_>) -> SystemTime {
    system_time(certificate.validity().not_after.timestamp())
}

/// Times before 1970 become 1970.
fn system_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The time in RFC 3339.
pub(crate) fn date(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "a time out of range".to_owned(), |at| at.to_string())
}

/// The number of days, from two on, or of hours.
fn in_words(duration: Duration) -> String {
    let (days, hours) = (
        duration.as_secs() / DAY.as_secs(),
        duration.as_secs() / HOUR.as_secs(),
    );
    match (days, hours) {
        (2.., _) => format!("{days} days"),
        (_, 1) => "1 hour".to_owned(),
        (_, 0) => "less than an hour".to_owned(),
        _ => format!("{hours} hours"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
        KeyPair, KeyUsagePurpose,
    };

    use super::*;

    /// Noon of 2026-06-01; the certificates are valid from 2026-01-01 to 2027-01-01.
    const NOW: u64 = 1_780_315_200;

    fn at(days: i64) -> SystemTime {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let distance = Duration::from_secs(days.unsigned_abs() * 24 * 60 * 60);
        if days < 0 {
            now - distance
        } else {
            now + distance
        }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["weir.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        params
    }

    fn ca(name: &str) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        (der, Issuer::new(params, key))
    }

    fn issued(
        issuer: &Issuer<'static, KeyPair>,
        params: &CertificateParams,
    ) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, issuer).unwrap().der().clone()
    }

    struct SmallRsaKey;

    impl rcgen::PublicKeyData for SmallRsaKey {
        fn der_bytes(&self) -> &[u8] {
            &[0x30, 8, 2, 3, 0, 0x80, 1, 2, 1, 3]
        }

        fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
            &rcgen::PKCS_RSA_SHA256
        }
    }

    fn texts(defects: &[Defect]) -> Vec<String> {
        defects
            .iter()
            .map(|defect| match defect {
                Defect::Unusable(_, why) => format!("unusable: {why}"),
                Defect::Doubtful(_, why) => format!("doubtful: {why}"),
            })
            .collect()
    }

    /// The only defect, which starts with `expected`.
    fn assert_one(defects: &[Defect], expected: &str) {
        let texts = texts(defects);
        assert!(
            matches!(&*texts, [only] if only.starts_with(expected)),
            "{expected}: {texts:#?}"
        );
    }

    #[test]
    fn a_good_certificate_has_no_defects() {
        let (root, issuer) = ca("root");
        let leaf = issued(&issuer, &params("leaf"));
        for usage in [CertificateUse::Serving, CertificateUse::Client] {
            assert_eq!(
                inspect_chain(&[leaf.clone(), root.clone()], usage, at(0)),
                []
            );
        }
        assert_eq!(inspect_roots(&[root], at(0)), []);
    }

    #[test]
    fn dates_are_judged_by_now() {
        let (_, issuer) = ca("root");
        let leaf = [issued(&issuer, &params("leaf"))];
        let inspect = |days| inspect_chain(&leaf, CertificateUse::Serving, at(days));
        assert_one(
            &inspect(-400),
            "unusable: the certificate is not valid yet: it begins in 248 days (2026-01-01T00:00:00Z)",
        );
        assert_eq!(inspect(180), []);
        assert_one(
            &inspect(190),
            "doubtful: the certificate expires in 23 days (2027-01-01T00:00:00Z)",
        );
        assert_one(
            &inspect(213),
            "doubtful: the certificate expires in 12 hours",
        );
        assert_one(
            &inspect(214),
            "unusable: the certificate expired 12 hours ago",
        );
        assert_one(
            &inspect(220),
            "unusable: the certificate expired 6 days ago",
        );
    }

    #[test]
    fn a_short_lived_certificate_is_warned_about_in_its_last_fifth() {
        let end = at(1);
        let defect = |lifetime| expiry_defect("it", end, Some(lifetime), at(0));
        assert_eq!(defect(DAY * 4), None);
        assert!(matches!(defect(DAY * 6), Some(Defect::Doubtful(..))));
    }

    #[test]
    fn a_chain_out_of_order_is_found() {
        let (root, issuer) = ca("root");
        let (other, _) = ca("other");
        let leaf = issued(&issuer, &params("leaf"));
        assert_one(
            &inspect_chain(&[leaf, other, root], CertificateUse::Serving, at(0))[..1],
            "doubtful: its chain is incomplete or out of order: certificate 1 was issued by",
        );
    }

    #[test]
    fn a_certificate_without_names_is_refused_as_serving_certificate() {
        let (_, issuer) = ca("root");
        let mut nameless = params("leaf");
        nameless.subject_alt_names.clear();
        let chain = [issued(&issuer, &nameless)];
        assert_one(
            &inspect_chain(&chain, CertificateUse::Serving, at(0)),
            "unusable: the certificate has no subject alternative name",
        );
        assert_eq!(inspect_chain(&chain, CertificateUse::Client, at(0)), []);
        let named = [issued(&issuer, &params("leaf"))];
        assert_eq!(summarize(&named).unwrap().names, ["weir.example"]);
    }

    #[test]
    fn the_usage_must_be_that_of_the_certificate() {
        let (_, issuer) = ca("root");
        let mut server_only = params("leaf");
        server_only.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = [issued(&issuer, &server_only)];
        assert_one(
            &inspect_chain(&chain, CertificateUse::Client, at(0)),
            "unusable: the certificate's extended key usage leaves out clientAuth",
        );
        assert_eq!(inspect_chain(&chain, CertificateUse::Serving, at(0)), []);
    }

    #[test]
    fn a_root_that_is_no_ca_is_doubtful() {
        let (root, issuer) = ca("root");
        let leaf = issued(&issuer, &params("leaf"));
        assert_one(
            &inspect_roots(&[root.clone(), leaf], at(0)),
            "doubtful: certificate 2 (CN=leaf) is not a CA",
        );
        let mut own = params("signs data");
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        own.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        assert_one(
            &inspect_roots(&[issued(&issuer, &own)], at(0)),
            "doubtful: certificate 1 (CN=signs data) is not a CA: its key usage does not allow to sign certificates; \
             only this certificate itself is accepted",
        );
        own.key_usages.clear();
        let own = own.signed_by(&SmallRsaKey, &issuer).unwrap().der().clone();
        assert_one(
            &inspect_roots(&[own], at(0)),
            "doubtful: certificate 1 (CN=signs data) is not a CA: signatures by keys of its kind or size are not supported",
        );
        let broken = CertificateDer::from(root[..root.len() - 1].to_vec());
        assert_one(
            &inspect_roots(&[root.clone(), broken], at(0)),
            "doubtful: certificate 2 is left out: x509: malformed certificate; neither it nor what it signed is accepted",
        );
        assert_one(
            &inspect_roots(&[root], at(400)),
            "doubtful: certificate 1 (CN=root) expired 186 days ago",
        );
    }
}
