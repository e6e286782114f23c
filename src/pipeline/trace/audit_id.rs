//! What an audit log needs besides the record: the id that weir's log shares with the API server's,
//! and the impersonated user.
//!
//! As in kube-apiserver (`endpoints/filters/audit_init.go`, 1.36), a client's `Audit-ID` is kept,
//! other requests get a new one, and the response carries it.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};

use crate::identity::impersonation::target;
use crate::identity::impersonation::target::HeaderRules;
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::upstream::headers::AUDIT_ID;
use weir_kubernetes::api::UserInfo;

/// Maximum length of a client's id in bytes, several times that of a UUID; a longer one is
/// replaced.
const MAX_AUDIT_ID_LENGTH: usize = 256;

/// What an audit log needs besides the record.
#[derive(Clone, Debug)]
pub struct AuditContext {
    /// The request's id, here and at the API server.
    pub(crate) id: HeaderValue,
    /// The user that the request impersonates.
    pub(crate) impersonation_target: Option<Arc<UserInfo>>,
    /// weir has authorized the impersonation.
    pub(crate) impersonation_allowed: bool,
    /// Whether the observers got the start of the response.
    pub(crate) response_started: bool,
}

impl AuditContext {
    /// The context of a request with these headers.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let client_id = headers
            .get(AUDIT_ID)
            .filter(|id| (1..=MAX_AUDIT_ID_LENGTH).contains(&id.len()));
        let mut id = client_id.cloned().unwrap_or_else(new_audit_id);
        id.set_sensitive(true); // see `headers::keep_unindexed`
        Self {
            id,
            impersonation_target: None,
            impersonation_allowed: false,
            response_started: false,
        }
    }

    /// Sets the id in the forwarded headers; the connection's own have been removed.
    pub(super) fn propagate(&mut self, headers: &mut HeaderMap) {
        headers.insert(AUDIT_ID, self.id.clone());
        let target = target::impersonation_target(headers, HeaderRules::Forwarded)
            .ok()
            .flatten();
        self.impersonation_target = target.map(|target| target.user);
    }

    /// Sets the id in the response unless the API server has set it.
    pub(super) fn annotate(&self, headers: &mut HeaderMap) {
        headers.entry(AUDIT_ID).or_insert_with(|| self.id.clone());
    }

    /// The impersonated user, once the impersonation is known to be allowed: weir has authorized
    /// it, or the API server has sent a response that follows its own authorization. kube-apiserver
    /// records no impersonated user before that (`impersonation.WithImpersonation`).
    #[must_use]
    pub(crate) fn impersonated_user(&self, outcome: RequestOutcome) -> Option<&Arc<UserInfo>> {
        let is_allowed = self.impersonation_allowed
            || matches!(outcome, RequestOutcome::Responded(code) if is_after_impersonation(code));
        self.impersonation_target.as_ref().filter(|_| is_allowed)
    }
}

/// Whether a response shows that the impersonation is allowed. Responses that kube-apiserver may
/// send before it knows, or because it is forbidden, do not.
fn is_after_impersonation(code: StatusCode) -> bool {
    let open = [
        StatusCode::BAD_REQUEST,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
    ];
    !open.contains(&code) && !code.is_server_error()
}

/// A random UUID (RFC 9562, version 4). Random is unique enough for lookups.
pub(crate) fn new_audit_id() -> HeaderValue {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0b11 << 62;
    let random = fastrand::u128(..) & !VERSION & !VARIANT | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{random:032x}");
    let mut id = String::with_capacity(36);
    for (n, digit) in digits.chars().enumerate() {
        if matches!(n, 8 | 12 | 16 | 20) {
            id.push('-');
        }
        let _ = id.write_char(digit); // infallible for a string
    }
    HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    #[test]
    fn ids_are_random_uuids() {
        let (one, other) = (new_audit_id(), new_audit_id());
        assert_ne!(one, other);
        for id in [one, other] {
            let id = id.to_str().unwrap().to_owned();
            let shape: String = id
                .chars()
                .map(|c| if c.is_ascii_hexdigit() { 'x' } else { c })
                .collect();
            assert_eq!(shape, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "{id}");
            assert_eq!(&id[14..15], "4", "{id}");
            assert!("89ab".contains(&id[19..20]), "{id}");
        }
    }

    #[test]
    fn a_client_s_audit_id_is_kept_unless_it_is_too_long() {
        let long = "x".repeat(MAX_AUDIT_ID_LENGTH + 1);
        for (given, kept) in [("mine", true), ("", false), (&long, false)] {
            let audit = AuditContext::from_headers(&headers(&[("audit-id", given)]));
            assert_eq!(audit.id == given, kept, "{given}");
            assert!(audit.id.len() <= MAX_AUDIT_ID_LENGTH);
        }
    }

    #[test]
    fn request_and_response_carry_the_audit_id() {
        let mut sent = headers(&[("audit-id", ""), ("audit-id", "second")]);
        let mut audit = AuditContext::from_headers(&sent);
        audit.propagate(&mut sent);
        let all: Vec<_> = sent.get_all(AUDIT_ID).iter().collect();
        assert_eq!(all, [&audit.id]);
        assert_eq!(audit.impersonation_target, None);

        let mut answer = HeaderMap::new();
        audit.annotate(&mut answer);
        assert_eq!(answer[AUDIT_ID], audit.id);
        let mut answer = headers(&[("audit-id", "upstream's")]);
        audit.annotate(&mut answer);
        assert_eq!(answer[AUDIT_ID], "upstream's");
    }

    fn propagated(pairs: &[(&'static str, &str)]) -> AuditContext {
        let mut headers = headers(pairs);
        let mut audit = AuditContext::from_headers(&headers);
        audit.propagate(&mut headers);
        audit
    }

    #[test]
    fn the_impersonation_target_is_read_as_the_authorizer_reads_it() {
        let bob = propagated(&[("impersonate-user", "bob"), ("impersonate-group", "dev")]);
        let expected = UserInfo {
            name: "bob".to_owned(),
            groups: ["dev", "system:authenticated"].map(str::to_owned).into(),
            ..UserInfo::default()
        };
        assert_eq!(bob.impersonation_target.as_deref(), Some(&expected));
        let unclear = [("impersonate-user", "bob"), ("impersonate-user", "carol")];
        for nobody in [&unclear[..], &[("impersonate-group", "dev")], &[]] {
            assert_eq!(propagated(nobody).impersonation_target, None, "{nobody:?}");
        }
    }

    #[test]
    fn an_impersonated_user_is_recorded_only_once_allowed() {
        let mut bob = propagated(&[("impersonate-user", "bob")]);
        let answered = |code| RequestOutcome::Responded(StatusCode::from_u16(code).unwrap());
        for code in [101, 200, 201, 304, 404, 409, 422, 429] {
            assert!(bob.impersonated_user(answered(code)).is_some(), "{code}");
        }
        let open = [
            answered(400),
            answered(401),
            answered(403),
            answered(500),
            answered(503),
            RequestOutcome::Failed(StatusCode::FORBIDDEN),
            RequestOutcome::Rejected("max-in-flight"),
            RequestOutcome::NoResponse,
            RequestOutcome::Panicked,
        ];
        for outcome in open {
            assert_eq!(bob.impersonated_user(outcome), None, "{outcome:?}");
        }
        bob.impersonation_allowed = true;
        assert!(
            open.iter()
                .all(|outcome| bob.impersonated_user(*outcome).is_some())
        );
    }
}
