//! What an audit log needs to know of a request besides its record: the id that it shares with the API server's log, and whom
//! the client wants to be taken for.
//!
//! As kube-apiserver does (`endpoints/filters/audit_init.go`, 1.36): a client's own `Audit-ID` is kept as it is, others get one,
//! and the answer says which.

use std::fmt::Write as _;
use std::sync::Arc;

use http::HeaderMap;
use http::HeaderValue;
use http::StatusCode;

use crate::api::UserInfo;
use crate::identity::impersonation::target;
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::record::RequestOutcome;
use crate::upstream::headers::AUDIT_ID;

/// A client's own id may have so many bytes, several times what a UUID has; one that is longer is replaced.
const MAX_AUDIT_ID_LENGTH: usize = 256;

/// What an audit log needs to know besides.
#[derive(Clone, Debug)]
pub struct AuditContext {
    /// The request's id, here and at the API server.
    pub id: HeaderValue,
    /// Whom it asks to be taken for.
    pub impersonation_target: Option<Arc<UserInfo>>,
    /// weir has had it judged that it may.
    pub impersonation_allowed: bool,
    /// Whether the witnesses were told that its answer has begun.
    pub response_started: bool,
}

impl AuditContext {
    /// Of a request that came with these headers.
    pub(in crate::pipeline) fn from_headers(headers: &HeaderMap) -> Self {
        let own = headers
            .get(AUDIT_ID)
            .filter(|id| (1..=MAX_AUDIT_ID_LENGTH).contains(&id.len()));
        let mut id = own.cloned().unwrap_or_else(new_audit_id);
        id.set_sensitive(true); // see `headers::keep_unindexed`
        Self {
            id,
            impersonation_target: None,
            impersonation_allowed: false,
            response_started: false,
        }
    }

    /// Writes the id into what goes on, once what is the connection's own has been removed.
    fn propagate(&mut self, headers: &mut HeaderMap) {
        headers.insert(AUDIT_ID, self.id.clone());
        let wish = target::impersonation_target(headers).ok().flatten();
        self.impersonation_target = wish.map(|wish| wish.user);
    }

    /// The answer says the id; what the API server says itself wins.
    fn annotate(&self, headers: &mut HeaderMap) {
        headers.entry(AUDIT_ID).or_insert_with(|| self.id.clone());
    }

    /// Whom the request was taken for, once it is known that it may be: weir has had it judged, or the API server has given an
    /// answer that comes after its own judgement. kube-apiserver notes nobody before that (`impersonation.WithImpersonation`).
    #[must_use]
    pub fn impersonated_user(&self, outcome: RequestOutcome) -> Option<&Arc<UserInfo>> {
        let may = self.impersonation_allowed
            || matches!(outcome, RequestOutcome::Responded(code) if is_after_impersonation(code));
        self.impersonation_target.as_ref().filter(|_| may)
    }
}

/// Whether an answer shows that the request may impersonate. Those that kube-apiserver may give before it knows, or because it
/// may not, do not.
fn is_after_impersonation(code: StatusCode) -> bool {
    let open = [
        StatusCode::BAD_REQUEST,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
    ];
    !open.contains(&code) && !code.is_server_error()
}

impl Trace {
    /// Somebody wants to know more of it.
    pub(in crate::pipeline) fn start_audit(&mut self, wanted: bool, headers: &HeaderMap) {
        if let (Some(recorded), true) = (&mut self.record, wanted) {
            recorded.record.audit = Some(Box::new(AuditContext::from_headers(headers)));
        }
    }

    /// What is the connection's own has been removed from the headers.
    pub(in crate::pipeline) fn propagate_audit_id(&mut self, headers: &mut HeaderMap) {
        if let Some(audited) = self.audit_mut() {
            audited.propagate(headers);
        }
    }

    /// It is known for whom it counts, and that it may impersonate whom it wants to: `judged`.
    pub(in crate::pipeline) fn record_effective_user(
        &mut self,
        counted: Option<&Arc<UserInfo>>,
        judged: bool,
    ) {
        if let Some(audited) = self.audit_mut() {
            audited.impersonation_allowed = judged;
        }
        if let Some(recorded) = &mut self.record {
            recorded.record.counted_as = counted.cloned();
        }
    }

    /// The answer to it says its id.
    pub(in crate::pipeline) fn annotate_audit_id(&mut self, headers: &mut HeaderMap) {
        if let Some(audited) = self.audit_mut() {
            audited.annotate(headers);
        }
    }

    fn audit_mut(&mut self) -> Option<&mut AuditContext> {
        self.record.as_mut()?.record.audit.as_deref_mut()
    }
}

/// A random UUID (RFC 9562, version 4). Told apart from others by chance, which is enough for looking things up.
fn new_audit_id() -> HeaderValue {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0b11 << 62;
    let random = fastrand::u128(..) & !VERSION & !VARIANT | 0x4 << 76 | 0b10 << 62;
    let digits = format!("{random:032x}");
    let mut id = String::with_capacity(36);
    for (n, digit) in digits.chars().enumerate() {
        if matches!(n, 8 | 12 | 16 | 20) {
            id.push('-');
        }
        let _ = id.write_char(digit); // a string takes anything
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
            let audited = AuditContext::from_headers(&headers(&[("audit-id", given)]));
            assert_eq!(audited.id == given, kept, "{given}");
            assert!(audited.id.len() <= MAX_AUDIT_ID_LENGTH);
        }
    }

    #[test]
    fn request_and_response_carry_the_audit_id() {
        let mut sent = headers(&[("audit-id", ""), ("audit-id", "second")]);
        let mut audited = AuditContext::from_headers(&sent);
        audited.propagate(&mut sent);
        let all: Vec<_> = sent.get_all(AUDIT_ID).iter().collect();
        assert_eq!(all, [&audited.id]);
        assert_eq!(audited.impersonation_target, None);

        let mut answer = HeaderMap::new();
        audited.annotate(&mut answer);
        assert_eq!(answer[AUDIT_ID], audited.id);
        let mut answer = headers(&[("audit-id", "upstream's")]);
        audited.annotate(&mut answer);
        assert_eq!(answer[AUDIT_ID], "upstream's");
    }

    fn propagated(pairs: &[(&'static str, &str)]) -> AuditContext {
        let mut headers = headers(pairs);
        let mut audited = AuditContext::from_headers(&headers);
        audited.propagate(&mut headers);
        audited
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
