//! Tokens that are verified by signature.

use super::*;
use weir_tokens::jwt::ClaimMapping;

#[tokio::test(start_paused = true)]
async fn a_service_account_token_is_verified_by_signature_without_a_review() {
    let setup = TokenFixture::with_defaults();
    let key = Es256Signer::new("one");
    setup.server.publish(&[&key]);
    let tokens: Vec<String> = (0..100)
        .map(|n| key.service_account_token(&format!("sa-{n}")))
        .collect();
    let all = tokens.iter().map(|token| setup.verify(token));
    for (n, verified) in futures_util::future::join_all(all).await.iter().enumerate() {
        assert_eq!(
            verified.user.name,
            format!("system:serviceaccount:team:sa-{n}")
        );
        assert!(matches!(
            verified.verified_by,
            Some(VerifiedBy::Signature(_))
        ));
    }
    assert_eq!(
        (setup.server.fetch_count(), setup.server.review_count()),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_fetched_once_and_forged_key_ids_cause_no_more_fetches() {
    let setup = TokenFixture::with_defaults();
    let (one, two, forger) = (
        Es256Signer::new("one"),
        Es256Signer::new("two"),
        Es256Signer::new("three"),
    );
    setup.server.publish(&[&one]);
    let builder = "system:serviceaccount:team:builder";
    assert_eq!(
        setup.user_name(&one.service_account_token("builder")).await,
        builder
    );
    setup.server.publish(&[&one, &two]);
    sleep_seconds(10).await;
    for _ in 0..20 {
        assert_eq!(
            setup.user_name(&two.service_account_token("builder")).await,
            builder
        );
    }
    assert_eq!(
        (setup.server.fetch_count(), setup.server.review_count()),
        (2, 0)
    );
    for n in 0..20 {
        let forged = forger.service_account_token(&format!("f{n}"));
        assert_eq!(setup.user_name(&forged).await, "system:anonymous");
    }
    assert!(setup.server.fetch_count() <= 3);
    assert_eq!(
        setup.user_name(&one.service_account_token("builder")).await,
        builder
    );
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_key_is_used_for_at_most_five_minutes() {
    let setup = TokenFixture::with_defaults();
    let (one, two) = (Es256Signer::new("one"), Es256Signer::new("two"));
    setup.server.publish(&[&one]);
    assert_ne!(
        setup.user_name(&one.service_account_token("a")).await,
        "system:anonymous"
    );
    setup.server.publish(&[&two]);
    sleep_seconds(300).await;
    let _ = setup.user_name(&one.service_account_token("b")).await; // the old keys serve while new ones are fetched
    sleep_seconds(1).await;
    assert_eq!(
        setup.user_name(&one.service_account_token("c")).await,
        "system:anonymous"
    );
    assert_ne!(
        setup.user_name(&two.service_account_token("d")).await,
        "system:anonymous"
    );
}

#[tokio::test(start_paused = true)]
async fn a_bad_signature_or_an_expired_token_causes_no_review() {
    let setup = TokenFixture::with_defaults();
    let (key, forger) = (Es256Signer::new("one"), Es256Signer::new("one"));
    setup.server.publish(&[&key]);
    let mut expired = service_account_claims("builder");
    expired["exp"] = json!(unix_now() - 1.0);
    for token in [forger.service_account_token("builder"), key.token(&expired)] {
        assert_eq!(setup.user_name(&token).await, "system:anonymous");
    }
    assert_eq!(setup.server.review_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_signed_token_for_an_unconfigured_audience_is_reviewed() {
    let setup = TokenFixture::with_defaults();
    let key = Es256Signer::new("one");
    setup.server.publish(&[&key]);
    let mut claims = service_account_claims("builder");
    claims["aud"] = json!(["sts.example.com"]);
    let token = key.token(&claims);
    assert_eq!(setup.user_name(&token).await, "system:anonymous");
    setup
        .server
        .users
        .lock()
        .insert(token.clone(), "builder".into());
    sleep_seconds(10).await;
    assert_eq!(setup.user_name(&token).await, "builder");
    assert_eq!(setup.server.review_count(), 2);

    let configured = TokenFixture::new(|config, _| config.audiences = vec!["mine".to_owned()]);
    configured.server.publish(&[&key]);
    assert_eq!(configured.user_name(&token).await, "system:anonymous");
    assert_eq!(configured.server.review_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_issuer_s_keys_are_fetched_from_its_url_and_its_users_mapped_from_claims() {
    let url = "https://login.example";
    let setup = TokenFixture::new(|config, server| {
        let keys = KeyProvider::Url(format!("{url}/keys"), Arc::new(Arc::clone(server)));
        let issuer = JwtIssuer {
            url: url.to_owned(),
            audiences: vec!["kubernetes".to_owned()],
            username: ClaimMapping {
                claim: "sub".to_owned(),
                prefix: "oidc:".to_owned(),
            },
            groups: None,
            uid: None,
            required_claims: Vec::new(),
        };
        config.issuers.push((issuer, KeySource::new(keys)));
    });
    let key = Es256Signer::new("one");
    setup.server.publish(&[&key]);
    let claims = json!({"iss": url, "aud": "kubernetes", "exp": unix_now() + 60.0, "sub": "carol"});
    assert_eq!(setup.user_name(&key.token(&claims)).await, "oidc:carol");
    let mut other = claims.clone();
    other["aud"] = json!("other");
    assert_eq!(
        setup.user_name(&key.token(&other)).await,
        "system:anonymous"
    );
    assert_eq!(
        (setup.server.fetch_count(), setup.server.review_count()),
        (1, 0)
    );
}
