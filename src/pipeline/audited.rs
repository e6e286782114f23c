//! What an audit log needs to know of a request besides its record: the id that it shares with the API server's log, and whom
//! the client wants to be taken for.
//!
//! As kube-apiserver does (`endpoints/filters/audit_init.go`, 1.36): a client's own `Audit-ID` is kept as it is, others get one,
//! and the answer says which.

use std::fmt::Write as _;
use std::sync::Arc;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

use crate::api::UserInfo;
use crate::api::user::ANONYMOUS;
use crate::api::user::GROUP_UNAUTHENTICATED;
use crate::identity::request_header::IdentityHeaders;
use crate::pipeline::trace::Trace;

/// The id of a request, in both directions.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// A client's own id may have so many bytes, several times what a UUID has; one that is longer is replaced.
const LONGEST_ID: usize = 256;

/// Gives requests their ids.
#[derive(Debug)]
pub struct Auditing {
    /// The headers of impersonation.
    impersonated: IdentityHeaders,
}

/// What an audit log needs to know besides.
#[derive(Clone, Debug)]
pub struct Audited {
    /// The request's id, here and at the API server.
    pub id: HeaderValue,
    /// Whom it asks to be taken for; whether it may, the API server knows.
    pub impersonated: Option<Arc<UserInfo>>,
    /// Whether the witnesses were told that its answer has begun.
    pub began: bool,
}

impl Default for Auditing {
    fn default() -> Self {
        let impersonated = IdentityHeaders {
            username: vec![HeaderName::from_static("impersonate-user")],
            uid: vec![HeaderName::from_static("impersonate-uid")],
            group: vec![HeaderName::from_static("impersonate-group")],
            extra_prefix: vec!["impersonate-extra-".to_owned()],
        };
        Self { impersonated }
    }
}

impl Auditing {
    /// Of a request that came with these headers.
    pub(super) fn begin(&self, headers: &HeaderMap) -> Audited {
        let own = headers
            .get(AUDIT_ID)
            .filter(|id| (1..=LONGEST_ID).contains(&id.len()));
        Audited {
            id: own.cloned().unwrap_or_else(new_id),
            impersonated: None,
            began: false,
        }
    }

    /// Writes the id into what goes on, once what is the connection's own has been removed.
    pub(super) fn go_on(&self, audited: &mut Audited, headers: &mut HeaderMap) {
        headers.insert(AUDIT_ID, audited.id.clone());
        let whom = self.impersonated.user(headers);
        audited.impersonated = whom.map(|user| Arc::new(complete(user)));
    }
}

impl Audited {
    /// The answer says the id; what the API server says itself wins.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        headers.entry(AUDIT_ID).or_insert_with(|| self.id.clone());
    }
}

impl Trace {
    /// An audit log wants to know more of it.
    pub(super) fn begin_audit(&mut self, auditing: Option<&Auditing>, headers: &HeaderMap) {
        if let (Some(recorded), Some(auditing)) = (&mut self.recorded, auditing) {
            recorded.record.audited = Some(Box::new(auditing.begin(headers)));
        }
    }

    /// What is the connection's own has been removed from the headers.
    pub(super) fn go_on(&mut self, auditing: Option<&Auditing>, headers: &mut HeaderMap) {
        if let (Some(audited), Some(auditing)) = (self.audited(), auditing) {
            auditing.go_on(audited, headers);
        }
    }

    /// The answer to it says its id.
    pub(super) fn tell_id(&mut self, headers: &mut HeaderMap) {
        if let Some(audited) = self.audited() {
            audited.tell(headers);
        }
    }

    fn audited(&mut self) -> Option<&mut Audited> {
        self.recorded.as_mut()?.record.audited.as_deref_mut()
    }
}

/// The groups that go with a name (`endpoints/filters/impersonation.go`).
fn complete(mut user: UserInfo) -> UserInfo {
    let account = user.name.strip_prefix("system:serviceaccount:");
    if let (Some((namespace, _)), true) = (
        account.and_then(|a| a.split_once(':')),
        user.groups.is_empty(),
    ) {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if user.name == ANONYMOUS && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_UNAUTHENTICATED.to_owned());
    }
    user.authenticated()
}

/// A random UUID (RFC 9562, version 4). Told apart from others by chance, which is enough for looking things up.
fn new_id() -> HeaderValue {
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
        let (one, other) = (new_id(), new_id());
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
    fn a_client_s_own_id_is_kept_unless_it_is_endless() {
        let auditing = Auditing::default();
        let long = "x".repeat(LONGEST_ID + 1);
        for (given, kept) in [("mine", true), ("", false), (&long, false)] {
            let audited = auditing.begin(&headers(&[("audit-id", given)]));
            assert_eq!(audited.id == given, kept, "{given}");
            assert!(audited.id.len() <= LONGEST_ID);
        }
    }

    #[test]
    fn what_goes_on_and_what_comes_back_carry_the_id() {
        let auditing = Auditing::default();
        let mut sent = headers(&[("audit-id", ""), ("audit-id", "second")]);
        let mut audited = auditing.begin(&sent);
        auditing.go_on(&mut audited, &mut sent);
        let all: Vec<_> = sent.get_all(AUDIT_ID).iter().collect();
        assert_eq!(all, [&audited.id]);
        assert_eq!(audited.impersonated, None);

        let mut answer = HeaderMap::new();
        audited.tell(&mut answer);
        assert_eq!(answer[AUDIT_ID], audited.id);
        let mut answer = headers(&[("audit-id", "upstream's")]);
        audited.tell(&mut answer);
        assert_eq!(answer[AUDIT_ID], "upstream's");
    }

    #[test]
    fn whom_a_client_wants_to_be_is_read_as_upstream_reads_it() {
        let auditing = Auditing::default();
        let of = |pairs| {
            let mut headers = headers(pairs);
            let mut audited = auditing.begin(&headers);
            auditing.go_on(&mut audited, &mut headers);
            audited.impersonated.map(|user| (*user).clone())
        };
        let bob = of(&[
            ("impersonate-user", "bob"),
            ("impersonate-uid", "u-1"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-extra-a%2fb", "1"),
        ]);
        let expected = UserInfo {
            name: "bob".to_owned(),
            uid: "u-1".to_owned(),
            groups: ["dev", "ops", "system:authenticated"]
                .map(str::to_owned)
                .into(),
            extra: vec![("a/b".to_owned(), vec!["1".to_owned()])],
        };
        assert_eq!(bob, Some(expected));
        let account = of(&[("impersonate-user", "system:serviceaccount:team:ci")]).unwrap();
        assert_eq!(
            account.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:team",
                "system:authenticated"
            ]
        );
        let nobody = of(&[("impersonate-user", "system:anonymous")]).unwrap();
        assert_eq!(nobody.groups, ["system:unauthenticated"]);
        assert_eq!(of(&[("impersonate-group", "dev")]), None);
    }
}
