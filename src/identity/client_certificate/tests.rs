use rcgen::BasicConstraints;
use rcgen::CertificateParams;
use rcgen::DnType;
use rcgen::DnValue;
use rcgen::ExtendedKeyUsagePurpose;
use rcgen::IsCa;
use rcgen::Issuer;
use rcgen::KeyPair;
use rcgen::string::BmpString;
use rcgen::string::TeletexString;
use rcgen::string::UniversalString;
use rustls::crypto::aws_lc_rs;

use super::*;

fn params(name: &str, years: (i32, i32)) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = rcgen::DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// An issuer, a verifier that trusts it, and alice's certificate, which is valid in these years.
fn issue_alice(
    years: (i32, i32),
) -> (
    Issuer<'static, KeyPair>,
    CertificateVerifier,
    Vec<CertificateDer<'static>>,
) {
    let key = KeyPair::generate().unwrap();
    let mut ca = params("ca", (2000, 2200));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.extended_key_usages.clear();
    let certificate = ca.self_signed(&key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let issuer = Issuer::new(ca, key);
    let authority =
        CertificateVerifier::new(roots, Arc::new(aws_lc_rs::default_provider())).unwrap();
    let own = KeyPair::generate().unwrap();
    let own = params("alice", years).signed_by(&own, &issuer).unwrap();
    (issuer, authority, vec![own.der().clone()])
}

/// January 1st, approximately.
fn new_year(year: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_556_952)
}

#[test]
fn a_certificate_is_accepted_once_its_validity_period_begins() {
    let (_, authority, chain) = issue_alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    let before = new_year(2100) - Duration::from_secs(172_800);
    for since in [0, 1, 9] {
        let at = before + Duration::from_secs(since);
        assert!(matches!(
            presented.user(&authority, at),
            Err(CertificateError::Untrusted(_))
        ));
        let allowed = presented.verify_front_proxy(&authority, at, |_| true);
        assert!(matches!(allowed, Err(CertificateError::Untrusted(_))));
    }
    let within = new_year(2101);
    assert_eq!(presented.user(&authority, within).unwrap().name, "alice");
    assert_eq!(
        presented.verify_front_proxy(&authority, within, |_| true),
        Ok(())
    );
    let after = new_year(2111);
    presented.user(&authority, after).unwrap_err();
    // The clock was wrong and is corrected.
    assert_eq!(presented.user(&authority, within).unwrap().name, "alice");
}

#[test]
fn a_permanent_error_is_cached_forever_and_a_validity_period_error_for_ten_seconds() {
    let (_, authority, _) = issue_alice((2100, 2110));
    let (_, _, strange) = issue_alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&strange)).unwrap();
    presented.user(&authority, new_year(2101)).unwrap_err();
    let outcome = presented.user_outcome.lock().clone().unwrap();
    assert!(outcome.err().unwrap().is_current(new_year(2109)));

    let (_, authority, early) = issue_alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&early)).unwrap();
    presented.user(&authority, new_year(2099)).unwrap_err();
    let outcome = presented.user_outcome.lock().clone().unwrap();
    let outcome = outcome.err().unwrap();
    assert!(outcome.is_current(new_year(2099) + Duration::from_secs(9)));
    assert!(!outcome.is_current(new_year(2099) + Duration::from_secs(10)));
}

#[test]
fn an_expired_extra_certificate_does_not_defeat_the_cache() {
    let (issuer, authority, mut chain) = issue_alice((2100, 2110));
    let key = KeyPair::generate().unwrap();
    for years in [(2000, 2001), (2100, 2105)] {
        let extra = params("extra", years).signed_by(&key, &issuer).unwrap();
        chain.push(extra.der().clone());
    }
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    presented.user(&authority, new_year(2101)).unwrap();
    let outcome = presented.user_outcome.lock().clone().unwrap();
    let expires = outcome.ok().unwrap().chain_not_after;
    assert!(new_year(2104) < expires && expires < new_year(2106));
}

/// A certificate with the parameters of `change`, and a verifier that trusts its issuer.
fn issue(change: impl FnOnce(&mut CertificateParams)) -> (CertificateVerifier, PeerCertificate) {
    let (issuer, authority, _) = issue_alice((2100, 2110));
    let mut own = params("kubernetes-admin", (2100, 2110));
    change(&mut own);
    let key = KeyPair::generate().unwrap();
    let chain = [own.signed_by(&key, &issuer).unwrap().der().clone()];
    (authority, PeerCertificate::new(Some(&chain)).unwrap())
}

/// Adds a second common name or organization. The library keeps only one of each kind.
fn add_name_attribute(kind: u64, value: DnValue) -> impl FnOnce(&mut CertificateParams) {
    move |params| {
        let kind = DnType::CustomDnType(vec![2, 5, 4, kind]);
        params.distinguished_name.push(kind, value);
    }
}

#[test]
fn the_last_common_name_counts_in_every_string_type() {
    let bmp = || DnValue::BmpString(BmpString::try_from("alice").unwrap());
    let t61 = || DnValue::TeletexString(TeletexString::try_from("alice").unwrap());
    for value in [bmp(), t61()] {
        let (authority, presented) = issue(add_name_attribute(3, value));
        let user = presented.user(&authority, new_year(2101)).unwrap();
        assert_eq!(user.name, "alice");
        let allowed = |name: &str| name == "kubernetes-admin";
        let front_proxy = presented.verify_front_proxy(&authority, new_year(2101), allowed);
        let not_allowed = CertificateError::NotAllowed("alice".to_owned());
        assert_eq!(front_proxy, Err(not_allowed));
    }
}

#[test]
fn an_unreadable_name_or_group_rejects_the_certificate() {
    let universal = || DnValue::UniversalString(UniversalString::try_from("alice").unwrap());
    for (kind, part) in [(3, "common name"), (10, "organization")] {
        let (authority, presented) = issue(add_name_attribute(kind, universal()));
        let unreadable = CertificateError::UnreadableSubject(part);
        let at = new_year(2101);
        assert_eq!(presented.user(&authority, at), Err(unreadable.clone()));
        let front_proxy = presented.verify_front_proxy(&authority, at, |_| true);
        assert_eq!(front_proxy, Err(unreadable));
    }
}

#[test]
fn groups_are_read_in_every_string_type() {
    let bmp = DnValue::BmpString(BmpString::try_from("ops").unwrap());
    let (authority, presented) = issue(add_name_attribute(10, bmp));
    let user = presented.user(&authority, new_year(2101)).unwrap();
    assert_eq!(user.groups, ["ops", "system:authenticated"]);
}

#[test]
fn a_certificate_for_any_purpose_is_valid_for_clients() {
    let purposes = |purposes: &[ExtendedKeyUsagePurpose]| {
        let (authority, presented) = issue(|params| params.extended_key_usages = purposes.to_vec());
        presented.user(&authority, new_year(2101)).is_ok()
    };
    assert!(purposes(&[]));
    assert!(purposes(&[ExtendedKeyUsagePurpose::Any]));
    assert!(purposes(&[
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth
    ]));
    assert!(!purposes(&[ExtendedKeyUsagePurpose::ServerAuth]));
}
