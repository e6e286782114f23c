use rcgen::string::{BmpString, TeletexString, UniversalString};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
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
    let roots = CertificatePool::new([certificate.der()]).unwrap();
    let issuer = Issuer::new(ca, key);
    let authority =
        CertificateVerifier::new(roots, Arc::new(aws_lc_rs::default_provider())).unwrap();
    let own = KeyPair::generate().unwrap();
    let own = params("alice", years).signed_by(&own, &issuer).unwrap();
    (issuer, authority, vec![own.der().clone()])
}

/// Verifies front proxies with the CA of `authority`.
fn front_proxies(authority: &CertificateVerifier, allowed: &[&str]) -> FrontProxyVerifier {
    let names = allowed.iter().map(|name| (*name).to_owned()).collect();
    FrontProxyVerifier::new(with_same_ca(authority), names)
}

fn with_same_ca(authority: &CertificateVerifier) -> CertificateVerifier {
    CertificateVerifier::new(authority.roots.clone(), Arc::clone(&authority.provider)).unwrap()
}

/// January 1st, approximately.
fn new_year(year: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_556_952)
}

#[test]
fn a_certificate_is_accepted_once_its_validity_period_begins() {
    let (_, authority, chain) = issue_alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    let proxies = front_proxies(&authority, &[]);
    let before = new_year(2100) - Duration::from_secs(172_800);
    for since in [0, 1, 9] {
        let at = before + Duration::from_secs(since);
        assert!(matches!(
            presented.user(&authority, at),
            Err(CertificateError::Untrusted(_))
        ));
        let allowed = presented.verify_front_proxy(&proxies, at);
        assert!(matches!(allowed, Err(CertificateError::Untrusted(_))));
    }
    let within = new_year(2101);
    assert_eq!(presented.user(&authority, within).unwrap().name, "alice");
    assert_eq!(presented.verify_front_proxy(&proxies, within), Ok(()));
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
    let (_, outcome) = presented.user_outcome.lock().clone().last.unwrap();
    assert!(outcome.err().unwrap().is_current(new_year(2109)));

    let (_, authority, early) = issue_alice((2100, 2110));
    let presented = PeerCertificate::new(Some(&early)).unwrap();
    presented.user(&authority, new_year(2099)).unwrap_err();
    let (_, outcome) = presented.user_outcome.lock().clone().last.unwrap();
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
    let (_, outcome) = presented.user_outcome.lock().clone().last.unwrap();
    let expires = outcome.ok().unwrap().chain_not_after;
    assert!(new_year(2109) < expires && expires < new_year(2111));
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
        let proxies = front_proxies(&authority, &["kubernetes-admin"]);
        let front_proxy = presented.verify_front_proxy(&proxies, new_year(2101));
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
        let front_proxy = presented.verify_front_proxy(&front_proxies(&authority, &[]), at);
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

#[test]
fn a_cached_result_counts_for_the_verifier_that_it_is_from() {
    let (_, authority, chain) = issue_alice((2000, 2110));
    let (_, other, _) = issue_alice((2000, 2110));
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    let at = new_year(2050);
    for _ in 0..2 {
        assert_eq!(presented.user(&authority, at).unwrap().name, "alice");
        presented.user(&other, at).unwrap_err();
        let proxies = |ca| presented.verify_front_proxy(&front_proxies(ca, &["alice"]), at);
        assert_eq!(proxies(&authority), Ok(()));
        proxies(&other).unwrap_err();
        presented
            .verify_front_proxy(&front_proxies(&authority, &["bob"]), at)
            .unwrap_err();
    }
}

#[test]
fn a_verifier_of_the_same_ca_is_kept_and_another_replaces_it() {
    let (_, authority, _) = issue_alice((2000, 2110));
    let (_, other, _) = issue_alice((2000, 2110));
    let trust = |ca: &CertificateVerifier, allowed: &[&str]| ClientTrust {
        certificates: Some(Arc::new(with_same_ca(ca))),
        front_proxies: Some(Arc::new(front_proxies(ca, allowed))),
    };
    let first = Arc::new(trust(&authority, &[]));
    let again = trust(&authority, &[]).replacing(&first);
    assert!(Arc::ptr_eq(&again, &first));
    let named = trust(&authority, &["alice"]).replacing(&first);
    let kept = |a: &Option<Arc<_>>, b: &Option<Arc<_>>| {
        Arc::ptr_eq(a.as_ref().unwrap(), b.as_ref().unwrap())
    };
    assert!(kept(&named.certificates, &first.certificates));
    let proxies = |trust: &ClientTrust| trust.front_proxies.as_ref().unwrap().verifier.id;
    assert_ne!(proxies(&named), proxies(&first));
    let changed = trust(&other, &[]).replacing(&first);
    assert!(!kept(&changed.certificates, &first.certificates));
    let none = ClientTrust::default().replacing(&first);
    assert!(none.certificates.is_none() && none.front_proxies.is_none());
}

#[test]
fn only_a_certificate_that_gave_an_identity_loses_trust() {
    let (_, authority, chain) = issue_alice((2000, 2110));
    let (_, other, _) = issue_alice((2000, 2110));
    let at = new_year(2050);
    let of = |ca: &CertificateVerifier| ClientTrust {
        certificates: Some(Arc::new(with_same_ca(ca))),
        front_proxies: None,
    };
    let presented = PeerCertificate::new(Some(&chain)).unwrap();
    assert!(!presented.has_lost_trust(&of(&other), at), "it gave none");
    presented.user(&authority, at).unwrap();
    assert!(!presented.has_lost_trust(&of(&authority), at));
    presented.user(&other, at).unwrap_err(); // a request was faster
    assert!(presented.has_lost_trust(&of(&other), at));
    assert!(presented.has_lost_trust(&ClientTrust::default(), at));

    let proxy = PeerCertificate::new(Some(&chain)).unwrap();
    let verifier = Arc::new(front_proxies(&authority, &[]));
    proxy.verify_front_proxy(&verifier, at).unwrap();
    let trust = ClientTrust {
        certificates: None,
        front_proxies: Some(verifier),
    };
    assert!(!proxy.has_lost_trust(&trust, at));
    let unnamed = ClientTrust {
        certificates: None,
        front_proxies: Some(Arc::new(front_proxies(&authority, &["bob"]))),
    };
    assert!(proxy.has_lost_trust(&unnamed, at));
}

#[tokio::test(start_paused = true)]
async fn a_connection_learns_of_a_removed_ca_in_time_and_others_do_not() {
    let (_, authority, chain) = issue_alice((2000, 2200));
    let (_, other, stranger) = issue_alice((2000, 2200));
    let trust = Arc::new(ClientTrust {
        certificates: Some(Arc::new(authority)),
        front_proxies: None,
    });
    let publisher = trust::TrustPublisher::new(Arc::clone(&trust));
    let observer = publisher.observer();
    let verifier = trust.certificates.as_ref().unwrap();
    let [alice, mallory] =
        [chain, stranger].map(|chain| Arc::new(PeerCertificate::new(Some(&chain)).unwrap()));
    alice.user(verifier, SystemTime::now()).unwrap();
    mallory.user(verifier, SystemTime::now()).unwrap_err();
    let lost = observer.loss(Some(&alice));
    let kept = observer.loss(Some(&mallory));
    let none = observer.loss::<PeerCertificate>(None);
    publisher.publish(&Arc::new(ClientTrust {
        certificates: Some(Arc::new(other)),
        front_proxies: None,
    }));
    // Observed from its start, even if it is polled for the first time now.
    let late = observer.loss(Some(&alice));
    let limit = trust::TRUST_LOSS_TIMEOUT;
    tokio::time::timeout(limit, lost).await.unwrap();
    tokio::time::timeout(limit, late).await.unwrap();
    tokio::time::timeout(limit, kept).await.unwrap_err();
    tokio::time::timeout(limit, none).await.unwrap_err();
}

/// Alice's certificate, and a verifier of its issuer, which is valid in these years and has these
/// usages.
fn issue_below(
    years: (i32, i32),
    usages: &[KeyUsagePurpose],
) -> (CertificateVerifier, PeerCertificate) {
    let key = KeyPair::generate().unwrap();
    let mut ca = params("ca", years);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.extended_key_usages.clear();
    ca.key_usages = usages.to_vec();
    let roots = CertificatePool::new([ca.self_signed(&key).unwrap().der()]).unwrap();
    let issuer = Issuer::new(ca, key);
    let own = KeyPair::generate().unwrap();
    let own = params("alice", (2000, 2200))
        .signed_by(&own, &issuer)
        .unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let presented = PeerCertificate::new(Some(&[own.der().clone()])).unwrap();
    (
        CertificateVerifier::new(roots, provider).unwrap(),
        presented,
    )
}

#[test]
fn a_user_ends_with_its_ca_and_begins_with_it() {
    let (authority, presented) = issue_below((2100, 2110), &[]);
    let proxies = front_proxies(&authority, &[]);
    for (year, accepted) in [
        (2099, false),
        (2101, true),
        (2109, true),
        (2111, false),
        (2105, true),
    ] {
        let at = new_year(year);
        assert_eq!(presented.user(&authority, at).is_ok(), accepted, "{year}");
        let front_proxy = presented.verify_front_proxy(&proxies, at);
        assert_eq!(front_proxy.is_ok(), accepted, "{year}");
    }
}

#[test]
fn a_ca_that_may_not_sign_certificates_authenticates_neither_users_nor_front_proxies() {
    for (usages, accepted) in [
        (&[KeyUsagePurpose::KeyCertSign][..], true),
        (
            &[KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign],
            false,
        ),
    ] {
        let (authority, presented) = issue_below((2000, 2200), usages);
        let at = new_year(2101);
        assert_eq!(presented.user(&authority, at).is_ok(), accepted);
        let front_proxy = presented.verify_front_proxy(&front_proxies(&authority, &[]), at);
        assert_eq!(front_proxy.is_ok(), accepted);
    }
}
