//! Certificates and tokens, generated at the start and stored in a directory for the next start.
//!
//! There are three users: `admin` (group `system:masters`), `alice` and `bob` (group `dev`), each
//! with a client certificate and a bearer token. A second CA signs the front proxy's certificate,
//! for kube-apiserver's `--requestheader-client-ca-file`. Keys are ECDSA P-256.

use crate::auth::error::PkiError;
use crate::auth::service_account_tokens::ServiceAccountTokenIssuer as AccountIssuer;
use crate::time;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::ToSpan;
use jiff::tz::TimeZone;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::aws_lc_rs;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

/// The common name of the front proxy's certificate, the only accepted one.
pub(crate) const FRONT_PROXY_NAME: &str = "front-proxy-client";

/// Lifetime of the certificates, in days.
const VALID_DAYS: i64 = 365;

/// Minimum remaining validity of certificates that are used again.
const MIN_VALIDITY: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// The files of the API server's certificate that has expired, and of that by another CA, without
/// their ends.
const EXPIRED: &str = "apiserver-expired";
const OF_CHANGED_CA: &str = "apiserver-changed-ca";

/// The name of the file of tokens.
const TOKENS_FILE: &str = "tokens.csv";

/// Lifetime of the service account token that is written to a file: that of the certificates.
const ACCOUNT_TOKEN_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The users: name, uid, group.
const USERS: [(&str, &str, &str); 3] = [
    ("admin", "u-admin", "system:masters"),
    ("alice", "u-alice", "dev"),
    ("bob", "u-bob", "dev"),
];

/// A certificate and its private key, both PEM.
#[derive(Clone)]
pub struct CertificateAndKey {
    /// The certificate, PEM.
    pub certificate: String,
    /// The private key, PEM (PKCS#8).
    pub key: String,
}

/// A user of the playground with its credentials.
#[derive(Clone)]
pub struct PlaygroundUser {
    /// The user name.
    pub name: &'static str,
    /// The uid of the user.
    pub uid: &'static str,
    /// The only group of the user.
    pub group: &'static str,
    /// The client certificate.
    pub client_certificate: CertificateAndKey,
    /// The bearer token, random.
    pub token: String,
}

/// All certificates, keys and tokens of a playground, for the proxy and for the API server.
#[derive(Clone)]
pub struct Certificates {
    /// The CA of all serving and client certificates except the front proxy's, PEM.
    pub ca: String,
    /// The CA of the front proxy's certificate, PEM.
    pub(crate) front_proxy_ca: String,
    /// The client certificate with which a proxy asserts identities.
    pub front_proxy_client: CertificateAndKey,
    /// The API server's serving certificate.
    pub(crate) apiserver: CertificateAndKey,
    /// Another one of it, which has expired.
    pub(crate) apiserver_expired: CertificateAndKey,
    /// Another one of it, by [`changed_ca`](Self::changed_ca).
    pub(crate) apiserver_of_changed_ca: CertificateAndKey,
    /// The CA of the API server's serving certificate after a change of CAs, PEM.
    pub(crate) changed_ca: String,
    /// The proxy's serving certificate.
    pub(crate) tls: CertificateAndKey,
    /// `admin`, `alice` and `bob`.
    pub users: Vec<PlaygroundUser>,
    /// The issuer of service account tokens.
    pub service_account_issuer: AccountIssuer,
}

/// The purpose of a certificate.
enum CertificateUsage<'a> {
    Authority,
    Client { organization: Option<&'a str> },
    ExpiredServer,
    Server,
}

impl Certificates {
    /// Generates all certificates, keys and tokens.
    pub fn generate() -> Result<Self, PkiError> {
        let (ca, ca_issuer) = create_ca("weir-playground-ca")?;
        let (front_proxy_ca, front_proxy_issuer) = create_ca("weir-playground-front-proxy-ca")?;
        let (changed_ca, changed_issuer) = create_ca("weir-playground-changed-ca")?;
        let apiserver = |usage, issuer| issue_certificate("kube-apiserver", &usage, issuer);
        let front_proxy = CertificateUsage::Client { organization: None };
        let mut users = Vec::with_capacity(USERS.len());
        for (name, uid, group) in USERS {
            let purpose = CertificateUsage::Client {
                organization: Some(group),
            };
            users.push(PlaygroundUser {
                name,
                uid,
                group,
                client_certificate: issue_certificate(name, &purpose, &ca_issuer)?,
                token: random_token()?,
            });
        }
        Ok(Self {
            front_proxy_client: issue_certificate(
                FRONT_PROXY_NAME,
                &front_proxy,
                &front_proxy_issuer,
            )?,
            apiserver: apiserver(CertificateUsage::Server, &ca_issuer)?,
            apiserver_expired: apiserver(CertificateUsage::ExpiredServer, &ca_issuer)?,
            apiserver_of_changed_ca: apiserver(CertificateUsage::Server, &changed_issuer)?,
            changed_ca,
            tls: issue_certificate("weir", &CertificateUsage::Server, &ca_issuer)?,
            ca,
            front_proxy_ca,
            users,
            service_account_issuer: AccountIssuer::generate()?,
        })
    }

    /// Reads the files that [`write_to`](Self::write_to) wrote to `directory`, so that the clients
    /// of a restarted playground, and a weir in another process, need no new files. `None` if a
    /// file is missing, unreadable or about to expire.
    pub fn read_from(directory: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let credential = |name: &str| {
            Some(CertificateAndKey {
                certificate: read(&format!("{name}.crt"))?,
                key: read(&format!("{name}.key"))?,
            })
        };
        let tokens = read(TOKENS_FILE)?;
        let user = |(name, uid, group)| {
            let mut lines = tokens.lines().filter_map(|line| line.split_once(','));
            let (token, _) = lines.find(|(_, rest)| rest.split(',').next() == Some(name))?;
            Some(PlaygroundUser {
                name,
                uid,
                group,
                client_certificate: credential(name)?,
                token: token.to_owned(),
            })
        };
        let ca = read("ca.crt")?;
        // All certificates are made at the same time, with the same lifetime.
        if !has_min_validity(&ca) {
            return None;
        }
        let account_key = read("service-account.pub")?;
        let service_accounts = AccountIssuer::from_pem(&read("service-account.key")?);
        read("service-account.token")?;
        Some(Self {
            front_proxy_ca: read("front-proxy-ca.crt")?,
            front_proxy_client: credential(FRONT_PROXY_NAME)?,
            apiserver: credential("apiserver")?,
            apiserver_expired: credential(EXPIRED)?,
            apiserver_of_changed_ca: credential(OF_CHANGED_CA)?,
            changed_ca: read("changed-ca.crt")?,
            tls: credential("tls")?,
            users: USERS.into_iter().map(user).collect::<Option<_>>()?,
            service_account_issuer: service_accounts
                .filter(|issuer| issuer.public_key_pem == account_key)?,
            ca,
        })
    }

    /// Writes all files to `directory`, which must exist: `ca.crt`, `front-proxy-ca.crt`,
    /// `changed-ca.crt`, `<name>.crt` and `<name>.key` for `admin`, `alice`, `bob`,
    /// `front-proxy-client`, `apiserver`, its two other certificates and `tls`, `tokens.csv` for kube-apiserver's `--token-auth-file`, `service-account.pub` for
    /// its `--service-account-key-file`, `service-account.key`, and `service-account.token`, a
    /// token of the account `default` in `default`. Keys and tokens are readable by their owner
    /// only.
    ///
    /// # Errors
    /// A file cannot be written; the files after it are not written.
    pub fn write_to(&self, directory: &Path) -> io::Result<()> {
        // This file is written last and marks the set as complete: an incomplete set is not read
        // again.
        match fs::remove_file(directory.join(TOKENS_FILE)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        write_public(&directory.join("ca.crt"), &self.ca)?;
        write_public(&directory.join("front-proxy-ca.crt"), &self.front_proxy_ca)?;
        write_public(&directory.join("changed-ca.crt"), &self.changed_ca)?;
        let users = self
            .users
            .iter()
            .map(|user| (user.name, &user.client_certificate));
        let others = [
            (FRONT_PROXY_NAME, &self.front_proxy_client),
            ("apiserver", &self.apiserver),
            (EXPIRED, &self.apiserver_expired),
            (OF_CHANGED_CA, &self.apiserver_of_changed_ca),
            ("tls", &self.tls),
        ];
        for (name, credential) in users.chain(others) {
            let certificate = directory.join(format!("{name}.crt"));
            write_public(&certificate, &credential.certificate)?;
            write_private(&directory.join(format!("{name}.key")), &credential.key)?;
        }
        let issuer = &self.service_account_issuer;
        write_public(
            &directory.join("service-account.pub"),
            &issuer.public_key_pem,
        )?;
        write_private(
            &directory.join("service-account.key"),
            &issuer.private_key_pem,
        )?;
        let token = issuer
            .issue_token("default", "default", ACCOUNT_TOKEN_LIFETIME)
            .map_err(|why| io::Error::other(why.to_string()))?;
        write_private(&directory.join("service-account.token"), &token)?;
        write_private(&directory.join(TOKENS_FILE), &self.tokens_csv())
    }

    /// `token,user,uid,"group"` lines.
    fn tokens_csv(&self) -> String {
        self.users
            .iter()
            .map(|user| {
                let PlaygroundUser {
                    name,
                    uid,
                    group,
                    token,
                    ..
                } = user;
                format!("{token},{name},{uid},\"{group}\"\n")
            })
            .collect()
    }
}

/// Whether a certificate is valid for at least [`MIN_VALIDITY`].
fn has_min_validity(pem: &str) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else {
        return false;
    };
    let remaining = pem.parse_x509().ok();
    let remaining = remaining.and_then(|certificate| certificate.validity().time_to_expiration());
    remaining.is_some_and(|remaining| remaining > MIN_VALIDITY)
}

fn create_ca(name: &str) -> Result<(String, Issuer<'static, KeyPair>), PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let params = certificate_params(name, &CertificateUsage::Authority)?;
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, Issuer::new(params, key)))
}

fn issue_certificate(
    name: &str,
    purpose: &CertificateUsage<'_>,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<CertificateAndKey, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = certificate_params(name, purpose)?.signed_by(&key, issuer)?;
    Ok(CertificateAndKey {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn certificate_params(
    name: &str,
    purpose: &CertificateUsage<'_>,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    // Valid from the day before, for clocks that differ.
    let (from, to) = match purpose {
        CertificateUsage::ExpiredServer => (-VALID_DAYS, -1),
        CertificateUsage::Authority
        | CertificateUsage::Client { .. }
        | CertificateUsage::Server => (-1, VALID_DAYS),
    };
    let ((y, m, d), (end_y, end_m, end_d)) = (date_from_today(from), date_from_today(to));
    params.not_before = rcgen::date_time_ymd(y, m, d);
    params.not_after = rcgen::date_time_ymd(end_y, end_m, end_d);
    match purpose {
        CertificateUsage::Authority => {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![
                KeyUsagePurpose::KeyCertSign,
                KeyUsagePurpose::DigitalSignature,
            ];
        }
        CertificateUsage::Client { organization } => {
            if let Some(organization) = organization {
                params
                    .distinguished_name
                    .push(DnType::OrganizationName, *organization);
            }
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        }
        CertificateUsage::ExpiredServer | CertificateUsage::Server => {
            // `kubernetes` as in kubeadm's certificates.
            let names = ["localhost", "kubernetes", "127.0.0.1", "::1"].map(str::to_owned);
            params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }
    }
    params.use_authority_key_identifier_extension = !matches!(purpose, CertificateUsage::Authority);
    Ok(params)
}

/// Year, month and day of the date `days` from today.
fn date_from_today(days: i64) -> (i32, u8, u8) {
    let today = time::wall_time().to_zoned(TimeZone::UTC).date();
    let date = today.saturating_add(days.days());
    let part = |part: i8| u8::try_from(part).unwrap_or(1);
    (i32::from(date.year()), part(date.month()), part(date.day()))
}

fn random_token() -> Result<String, PkiError> {
    let mut bytes = [0_u8; 24];
    aws_lc_rs::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| PkiError::Random)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn write_public(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
}

/// Writes a file that only its owner may read, even if the existing file has wider permissions.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    const OWNER_ONLY: u32 = 0o600;
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(OWNER_ONLY)
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(OWNER_ONLY))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::Certificates;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_file_is_written_and_secrets_are_readable_by_the_owner_only() {
        let certificates = Certificates::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        certificates.write_to(directory.path()).unwrap();
        let mode = |name: &str| {
            let metadata = std::fs::metadata(directory.path().join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        for name in [
            "admin",
            "alice",
            "bob",
            "front-proxy-client",
            "apiserver",
            "tls",
        ] {
            assert_eq!(mode(&format!("{name}.key")), 0o600);
            assert_ne!(mode(&format!("{name}.crt")) & 0o400, 0);
        }
        assert_eq!(mode("tokens.csv"), 0o600);
        let tokens = std::fs::read_to_string(directory.path().join("tokens.csv")).unwrap();
        let alice = tokens
            .lines()
            .find(|line| line.contains(",alice,"))
            .unwrap();
        assert!(alice.ends_with(",alice,u-alice,\"dev\""));
    }

    #[test]
    fn written_certificates_are_read_back_completely_or_not_at_all() {
        let certificates = Certificates::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        assert!(Certificates::read_from(directory.path()).is_none());
        certificates.write_to(directory.path()).unwrap();
        let again = Certificates::read_from(directory.path()).unwrap();
        assert_eq!(again.ca, certificates.ca);
        assert_eq!(again.front_proxy_ca, certificates.front_proxy_ca);
        for (a, b) in [
            (&again.front_proxy_client, &certificates.front_proxy_client),
            (&again.apiserver, &certificates.apiserver),
            (&again.tls, &certificates.tls),
        ] {
            assert_eq!((&a.certificate, &a.key), (&b.certificate, &b.key));
        }
        for (a, b) in again.users.iter().zip(&certificates.users) {
            assert_eq!((a.name, a.uid, a.group), (b.name, b.uid, b.group));
            assert_eq!(
                (&a.token, &a.client_certificate.key),
                (&b.token, &b.client_certificate.key)
            );
        }
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert!(
                Certificates::read_from(directory.path()).is_none(),
                "{path:?}"
            );
            std::fs::write(&path, text).unwrap();
        }
        assert!(Certificates::read_from(directory.path()).is_some());
    }

    #[test]
    fn two_playgrounds_share_no_token() {
        let first = Certificates::generate().unwrap();
        let second = Certificates::generate().unwrap();
        for (a, b) in first.users.iter().zip(&second.users) {
            assert_ne!(a.token, b.token);
            assert_eq!(a.token.len(), 32);
        }
    }
}
