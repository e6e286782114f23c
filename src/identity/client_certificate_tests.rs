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

/// An issuer, what vouches for those it issues, and alice's certificate, which is valid in these years.
fn alice(
    years: (i32, i32),
) -> (
    Issuer<'static, KeyPair>,
    ClientCertificates,
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
        ClientCertificates::new(roots, Arc::new(aws_lc_rs::default_provider())).unwrap();
    let own = KeyPair::generate().unwrap();
    let own = params("alice", years).signed_by(&own, &issuer).unwrap();
    (issuer, authority, vec![own.der().clone()])
}

/// A new year's day, more or less.
fn year(year: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_556_952)
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_once_its_time_has_come() {
    let (_, authority, chain) = alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    let before = year(2100) - Duration::from_secs(172_800);
    for since in [0, 1, 9] {
        let at = before + Duration::from_secs(since);
        assert!(matches!(
            presented.user(&authority, at),
            Err(CertificateFault::Untrusted(_))
        ));
        let allowed = presented.front_proxy(&authority, at, |_| true);
        assert!(matches!(allowed, Err(CertificateFault::Untrusted(_))));
    }
    let within = year(2101);
    assert_eq!(presented.user(&authority, within).unwrap().name, "alice");
    assert_eq!(presented.front_proxy(&authority, within, |_| true), Ok(()));
    let after = year(2111);
    presented.user(&authority, after).unwrap_err();
    // A calendar that was wrong and is set right.
    assert_eq!(presented.user(&authority, within).unwrap().name, "alice");
}

#[test]
fn what_time_does_not_mend_is_not_looked_at_again_and_what_it_may_not_sooner_than_is_said() {
    let (_, authority, _) = alice((2100, 2110));
    let (_, _, strange) = alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&strange)).unwrap();
    presented.user(&authority, year(2101)).unwrap_err();
    let verdict = presented.verdict.lock().unwrap().clone().unwrap();
    assert!(verdict.err().unwrap().holds(year(2109)));

    let (_, authority, early) = alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&early)).unwrap();
    presented.user(&authority, year(2099)).unwrap_err();
    let verdict = presented.verdict.lock().unwrap().clone().unwrap();
    let verdict = verdict.err().unwrap();
    assert!(verdict.holds(year(2099) + Duration::from_secs(9)));
    assert!(!verdict.holds(year(2099) + Duration::from_secs(10)));
}

#[test]
fn an_extra_certificate_that_is_over_is_no_reason_to_verify_at_every_request() {
    let (issuer, authority, mut chain) = alice((2100, 2110));
    let key = KeyPair::generate().unwrap();
    for years in [(2000, 2001), (2100, 2105)] {
        let extra = params("extra", years).signed_by(&key, &issuer).unwrap();
        chain.push(extra.der().clone());
    }
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    presented.user(&authority, year(2101)).unwrap();
    let verdict = presented.verdict.lock().unwrap().clone().unwrap();
    let expires = verdict.ok().unwrap().expires;
    assert!(year(2104) < expires && expires < year(2106));
}

/// A certificate of `change`'s making, and who vouches for it.
fn issued(change: impl FnOnce(&mut CertificateParams)) -> (ClientCertificates, PeerCertificate) {
    let (issuer, authority, _) = alice((2100, 2110));
    let mut own = params("kubernetes-admin", (2100, 2110));
    change(&mut own);
    let key = KeyPair::generate().unwrap();
    let chain = [own.signed_by(&key, &issuer).unwrap().der().clone()];
    (authority, PeerCertificate::new(Some(&chain)).unwrap())
}

/// A second common name or organization, behind the library's back, which keeps one of each kind.
fn second(kind: u64, value: DnValue) -> impl FnOnce(&mut CertificateParams) {
    move |params| {
        let kind = DnType::CustomDnType(vec![2, 5, 4, kind]);
        params.distinguished_name.push(kind, value);
    }
}

#[test]
fn a_second_common_name_in_another_string_type_is_the_user_s_and_the_proxy_s_name() {
    let bmp = || DnValue::BmpString(BmpString::try_from("alice").unwrap());
    let t61 = || DnValue::TeletexString(TeletexString::try_from("alice").unwrap());
    for value in [bmp(), t61()] {
        let (authority, presented) = issued(second(3, value));
        let user = presented.user(&authority, year(2101)).unwrap();
        assert_eq!(user.name, "alice");
        let allowed = |name: &str| name == "kubernetes-admin";
        let front_proxy = presented.front_proxy(&authority, year(2101), allowed);
        let not_allowed = CertificateFault::NotAllowed("alice".to_owned());
        assert_eq!(front_proxy, Err(not_allowed));
    }
}

#[test]
fn a_name_or_a_group_that_cannot_be_read_refuses_the_certificate() {
    let universal = || DnValue::UniversalString(UniversalString::try_from("alice").unwrap());
    for (kind, part) in [(3, "common name"), (10, "organization")] {
        let (authority, presented) = issued(second(kind, universal()));
        let unreadable = CertificateFault::Unreadable(part);
        let at = year(2101);
        assert_eq!(presented.user(&authority, at), Err(unreadable.clone()));
        let front_proxy = presented.front_proxy(&authority, at, |_| true);
        assert_eq!(front_proxy, Err(unreadable));
    }
}

#[test]
fn groups_are_read_in_every_string_type() {
    let bmp = DnValue::BmpString(BmpString::try_from("ops").unwrap());
    let (authority, presented) = issued(second(10, bmp));
    let user = presented.user(&authority, year(2101)).unwrap();
    assert_eq!(user.groups, ["ops", "system:authenticated"]);
}

#[test]
fn a_certificate_for_any_purpose_is_one_for_clients() {
    let purposes = |purposes: &[ExtendedKeyUsagePurpose]| {
        let (authority, presented) =
            issued(|params| params.extended_key_usages = purposes.to_vec());
        presented.user(&authority, year(2101)).is_ok()
    };
    assert!(purposes(&[]));
    assert!(purposes(&[ExtendedKeyUsagePurpose::Any]));
    assert!(purposes(&[
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth
    ]));
    assert!(!purposes(&[ExtendedKeyUsagePurpose::ServerAuth]));
}
