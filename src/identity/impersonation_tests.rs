//! What is read of a wish to be somebody else, and what is not.

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn read(pairs: &[(&'static str, &str)]) -> Result<Option<Wish>, Unclear> {
    wish(&headers(pairs))
}

fn wanted(pairs: &[(&'static str, &str)]) -> Wish {
    read(pairs).unwrap().unwrap()
}

fn asked(wish: &Wish) -> Vec<String> {
    let said = |right: &Right| {
        let Right {
            group,
            resource,
            subresource,
            namespace,
            name,
        } = right;
        format!("{group}/{resource}/{subresource} {namespace}/{name}")
    };
    wish.rights.iter().map(said).collect()
}

#[test]
fn everything_that_is_impersonated_takes_a_right_in_the_api_server_s_order() {
    let wish = wanted(&[
        ("impersonate-extra-scopes%2fof", "a"),
        ("impersonate-group", "dev"),
        ("Impersonate-Uid", "u-1"),
        ("impersonate-group", ""),
        ("IMPERSONATE-USER", "carol"),
        ("impersonate-extra-scopes%2Fof", "b"),
    ]);
    assert_eq!(
        asked(&wish),
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
    assert_eq!(*wish.user, user);
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
        assert_eq!(wanted(&pairs).user.groups, expected, "{name} {groups:?}");
    }
}

#[test]
fn a_service_account_is_asked_for_as_one_if_its_name_is_one() {
    let account = wanted(&[("impersonate-user", "system:serviceaccount:team:a.b-c")]);
    assert_eq!(asked(&account), ["/serviceaccounts/ team/a.b-c"]);
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
        let wish = wanted(&[("impersonate-user", name)]);
        assert_eq!(asked(&wish), [format!("/users/ /{name}")]);
        assert_eq!(wish.user.groups, ["system:authenticated"]);
    }
}

#[test]
fn who_names_nobody_is_who_he_is() {
    for pairs in [
        &[][..],
        &[("impersonate-user", "")],
        &[("impersonate-uid", "")],
        &[("x-impersonate-user", "carol")],
    ] {
        assert_eq!(read(pairs), Ok(None), "{pairs:?}");
    }
    for pairs in [
        &[("impersonate-group", "dev")][..],
        &[("impersonate-group", "")],
        &[("impersonate-uid", "u")],
        &[("impersonate-extra-a", "b"), ("impersonate-user", "")],
    ] {
        assert_eq!(read(pairs), Err(Unclear::NoUser), "{pairs:?}");
    }
}

#[test]
fn what_can_be_read_in_two_ways_is_not_read() {
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
        let unclear = read(&[carol, other]).unwrap_err();
        let told = match unclear {
            Unclear::Unknown(_) => "unknown",
            Unclear::Repeated(_) => "repeated",
            Unclear::Value(_) => "value",
            Unclear::Key(_) => "key",
            Unclear::NoUser | Unclear::TooMany => "other",
        };
        assert_eq!(told, name, "{other:?}");
    }
    let mut bytes = headers(&[]);
    bytes.append(USER, HeaderValue::from_bytes(b"caf\xe9").unwrap());
    assert!(matches!(wish(&bytes), Err(Unclear::Value(_))));
}

#[test]
fn hundreds_of_groups_are_taken_and_thousands_are_not() {
    let with = |groups: usize| {
        let mut headers = headers(&[("impersonate-user", "carol")]);
        for n in 0..groups {
            headers.append(GROUP, HeaderValue::from(n));
        }
        wish(&headers).map(|wish| wish.unwrap().rights.len())
    };
    assert_eq!(with(MOST - 1), Ok(MOST));
    assert_eq!(with(MOST), Err(Unclear::TooMany));
    assert_eq!(with(20_000), Err(Unclear::TooMany));
}

#[test]
fn a_right_that_is_missing_is_told_in_the_api_server_s_words() {
    let wish = wanted(&[
        ("impersonate-user", "system:serviceaccount:team:builder"),
        ("impersonate-uid", "u"),
        ("impersonate-extra-scopes", "all"),
    ]);
    let said: Vec<_> = wish
        .rights
        .iter()
        .map(|right| right.refusal("alice", ""))
        .collect();
    assert_eq!(
        said,
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
        wish.rights[0]
            .refusal("alice", "no")
            .ends_with("\"team\": no")
    );
}
