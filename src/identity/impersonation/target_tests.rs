//! Parsing of impersonation headers.

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn parse(
    pairs: &[(&'static str, &str)],
) -> Result<Option<ImpersonationTarget>, InvalidImpersonation> {
    impersonation_target(&headers(pairs), HeaderRules::Asserted)
}

fn target(pairs: &[(&'static str, &str)]) -> ImpersonationTarget {
    parse(pairs).unwrap().unwrap()
}

fn permissions(parsed: &ImpersonationTarget) -> Vec<String> {
    let describe = |permission: &ImpersonationPermission| {
        let ImpersonationPermission {
            group,
            resource,
            subresource,
            namespace,
            name,
        } = permission;
        format!("{group}/{resource}/{subresource} {namespace}/{name}")
    };
    parsed.required_permissions.iter().map(describe).collect()
}

#[test]
fn every_impersonated_value_requires_a_permission_in_the_api_server_s_order() {
    let parsed = target(&[
        ("impersonate-extra-scopes%2fof", "a"),
        ("impersonate-group", "dev"),
        ("Impersonate-Uid", "u-1"),
        ("impersonate-group", ""),
        ("IMPERSONATE-USER", "carol"),
        ("impersonate-extra-scopes%2Fof", "b"),
    ]);
    assert_eq!(
        permissions(&parsed),
        [
            "/users/ /carol",
            "authentication.k8s.io/uids/ /u-1",
            "/groups/ /dev",
            "/groups/ /",
            "authentication.k8s.io/userextras/scopes/of /a",
            "authentication.k8s.io/userextras/scopes/of /b",
        ]
    );
    let user = UserInfo {
        name: "carol".to_owned(),
        uid: "u-1".to_owned(),
        groups: ["dev", "", "system:authenticated"]
            .map(str::to_owned)
            .to_vec(),
        extra: vec![("scopes/of".to_owned(), vec!["a".to_owned(), "b".to_owned()])],
    };
    assert_eq!(*parsed.user, user);
}

#[test]
fn groups_are_added_as_the_api_server_adds_them() {
    for (name, groups, expected) in [
        ("carol", &[][..], &["system:authenticated"][..]),
        (
            "carol",
            &["system:authenticated", "dev"],
            &["system:authenticated", "dev"],
        ),
        (
            "carol",
            &["system:unauthenticated"],
            &["system:unauthenticated"],
        ),
        ("system:anonymous", &[], &["system:unauthenticated"]),
        (
            "system:anonymous",
            &["system:authenticated"],
            &["system:authenticated", "system:unauthenticated"],
        ),
        ("system:node:n1", &[], &["system:authenticated"]),
        (
            "system:serviceaccount:team:builder",
            &[],
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:team",
                "system:authenticated",
            ],
        ),
        (
            "system:serviceaccount:team:builder",
            &["dev"],
            &["dev", "system:authenticated"],
        ),
    ] {
        let mut pairs = vec![("impersonate-user", name)];
        pairs.extend(groups.iter().map(|group| ("impersonate-group", *group)));
        assert_eq!(target(&pairs).user.groups, expected, "{name} {groups:?}");
    }
}

#[test]
fn a_valid_service_account_name_requires_a_service_account_permission() {
    let account = target(&[("impersonate-user", "system:serviceaccount:team:a.b-c")]);
    assert_eq!(permissions(&account), ["/serviceaccounts/ team/a.b-c"]);
    for name in [
        "system:serviceaccount:team",
        "system:serviceaccount:team:a:b",
        "system:serviceaccount::a",
        "system:serviceaccount:team:",
        "system:serviceaccount:Team:a",
        "system:serviceaccount:te.am:a",
        "system:serviceaccount:team:-a",
        "system:serviceaccount:team:a..b",
    ] {
        let parsed = target(&[("impersonate-user", name)]);
        assert_eq!(permissions(&parsed), [format!("/users/ /{name}")]);
        assert_eq!(parsed.user.groups, ["system:authenticated"]);
    }
}

#[test]
fn without_a_user_name_there_is_no_target_or_an_error() {
    for pairs in [
        &[][..],
        &[("impersonate-user", "")],
        &[("impersonate-uid", "")],
        &[("x-impersonate-user", "carol")],
    ] {
        assert_eq!(parse(pairs), Ok(None), "{pairs:?}");
    }
    for pairs in [
        &[("impersonate-group", "dev")][..],
        &[("impersonate-group", "")],
        &[("impersonate-uid", "u")],
        &[("impersonate-extra-a", "b"), ("impersonate-user", "")],
    ] {
        assert_eq!(
            parse(pairs),
            Err(InvalidImpersonation::MissingUser),
            "{pairs:?}"
        );
    }
}

#[test]
fn ambiguous_headers_are_rejected() {
    let carol = ("impersonate-user", "carol");
    for (other, name) in [
        (("impersonate_user", "admin"), "unknown"),
        (("Impersonate_Group", "system:masters"), "unknown"),
        (("impersonate-extra_scopes", "a"), "unknown"),
        (("impersonate-", "a"), "unknown"),
        (("impersonate-users", "a"), "unknown"),
        (("impersonate-user", "admin"), "repeated"),
        (("impersonate-user", ""), "repeated"),
        (("impersonate-group", "system:masters "), "value"),
        (("impersonate-group", "\tsystem:masters"), "value"),
        (("impersonate-extra-", "a"), "key"),
        (("impersonate-extra-%41", "a"), "key"),
        (("impersonate-extra-%2541", "a"), "key"),
        (("impersonate-extra-a%", "a"), "key"),
        (("impersonate-extra-a%zz", "a"), "key"),
        (("impersonate-extra-%ff", "a"), "key"),
        (("impersonate-extra-a%0a", "a"), "key"),
    ] {
        let error = parse(&[carol, other]).unwrap_err();
        let header = match error {
            InvalidImpersonation::UnknownHeader(_) => "unknown",
            InvalidImpersonation::Repeated(_) => "repeated",
            InvalidImpersonation::InvalidValue(_) => "value",
            InvalidImpersonation::InvalidExtraKey(_) => "key",
            InvalidImpersonation::MissingUser | InvalidImpersonation::TooMany => "other",
        };
        assert_eq!(header, name, "{other:?}");
    }
    let mut bytes = headers(&[]);
    bytes.append(USER_HEADER, HeaderValue::from_bytes(b"caf\xe9").unwrap());
    assert!(matches!(
        impersonation_target(&bytes, HeaderRules::Asserted),
        Err(InvalidImpersonation::InvalidValue(_))
    ));
}

#[test]
fn forwarded_headers_are_read_as_the_api_server_reads_them() {
    let read = |other: (&'static str, &str)| {
        let headers = headers(&[("impersonate-user", "carol"), other]);
        impersonation_target(&headers, HeaderRules::Forwarded)
            .unwrap()
            .unwrap()
    };
    for name in [
        "impersonate-",
        "impersonate-users",
        "impersonate_group",
        "impersonate-extra_scopes",
    ] {
        let parsed = read((name, "system:masters"));
        assert_eq!(permissions(&parsed), ["/users/ /carol"], "{name}");
        assert_eq!(parsed.user.groups, ["system:authenticated"], "{name}");
    }
    for (name, key) in [
        ("impersonate-extra-", ""),
        ("impersonate-extra-%41", "A"),
        ("impersonate-extra-a%", "a%"),
        ("impersonate-extra-a%zz", "a%zz"),
        ("impersonate-extra-a%0a", "a\n"),
    ] {
        let parsed = read((name, "b"));
        assert_eq!(parsed.user.extra, [(key.to_owned(), vec!["b".to_owned()])]);
        let required = format!("authentication.k8s.io/userextras/{key} /b");
        assert_eq!(permissions(&parsed), ["/users/ /carol", &*required]);
    }
    let alone = headers(&[("impersonate_user", "admin")]);
    let parsed = impersonation_target(&alone, HeaderRules::Forwarded);
    assert_eq!(parsed, Ok(None), "no impersonation");
}

#[test]
fn a_text_that_is_too_long_for_a_review_is_rejected() {
    let (longest, longer) = ("a".repeat(MAX_TEXT_BYTES), "a".repeat(MAX_TEXT_BYTES + 1));
    for rules in [HeaderRules::Asserted, HeaderRules::Forwarded] {
        for header in [USER_HEADER, GROUP_HEADER, UID_HEADER, "impersonate-extra-a"] {
            let with = |text: &str| {
                let mut headers = headers(&[("impersonate-user", "carol")]);
                headers.insert(header, HeaderValue::from_str(text).unwrap());
                impersonation_target(&headers, rules)
            };
            assert!(with(&longest).is_ok(), "{header}");
            let name = HeaderName::from_static(header);
            assert_eq!(with(&longer), Err(InvalidImpersonation::InvalidValue(name)));
        }
        let mut headers = headers(&[("impersonate-user", "carol")]);
        let name = HeaderName::try_from(format!("{EXTRA_PREFIX}{longer}")).unwrap();
        headers.append(&name, HeaderValue::from_static("a"));
        let parsed = impersonation_target(&headers, rules);
        assert_eq!(parsed, Err(InvalidImpersonation::InvalidExtraKey(name)));
    }
}

#[test]
fn hundreds_of_groups_are_accepted_and_thousands_are_rejected() {
    let with = |groups: usize| {
        let mut headers = headers(&[("impersonate-user", "carol")]);
        for n in 0..groups {
            headers.append(GROUP_HEADER, HeaderValue::from(n));
        }
        impersonation_target(&headers, HeaderRules::Asserted)
            .map(|parsed| parsed.unwrap().required_permissions.len())
    };
    assert_eq!(with(MAX_PERMISSIONS - 1), Ok(MAX_PERMISSIONS));
    assert_eq!(with(MAX_PERMISSIONS), Err(InvalidImpersonation::TooMany));
    assert_eq!(with(20_000), Err(InvalidImpersonation::TooMany));
}

#[test]
fn names_in_the_forbidden_message_are_quoted_as_go_quotes_them() {
    let parsed = target(&[("impersonate-user", "a\u{a0}\u{202e}\u{e9}")]);
    let message = parsed.required_permissions[0].forbidden_message("b\u{7f}\u{e0001}", "");
    assert_eq!(
        message,
        "users \"a\\u00a0\\u202e\u{e9}\" is forbidden: User \"b\\x7f\\U000e0001\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
}

#[test]
fn the_forbidden_message_is_the_api_server_s() {
    let parsed = target(&[
        ("impersonate-user", "system:serviceaccount:team:builder"),
        ("impersonate-uid", "u"),
        ("impersonate-extra-scopes", "all"),
    ]);
    let messages: Vec<_> = parsed
        .required_permissions
        .iter()
        .map(|permission| permission.forbidden_message("alice", ""))
        .collect();
    assert_eq!(
        messages,
        [
            "serviceaccounts \"builder\" is forbidden: User \"alice\" cannot impersonate resource \"serviceaccounts\" in \
             API group \"\" in the namespace \"team\"",
            "uids.authentication.k8s.io \"u\" is forbidden: User \"alice\" cannot impersonate resource \"uids\" in API \
             group \"authentication.k8s.io\" at the cluster scope",
            "userextras.authentication.k8s.io \"all\" is forbidden: User \"alice\" cannot impersonate resource \
             \"userextras/scopes\" in API group \"authentication.k8s.io\" at the cluster scope",
        ]
    );
    assert!(
        parsed.required_permissions[0]
            .forbidden_message("alice", "no")
            .ends_with("\"team\": no")
    );
}
