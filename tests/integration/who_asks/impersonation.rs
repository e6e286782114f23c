//! A certificate's user, told to the API server by impersonation.

use super::*;

#[tokio::test]
async fn where_there_is_no_front_proxies_ca_a_certificate_s_user_is_impersonated() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = cluster
            .weir(|config| {
                config.upstream.front_proxy = None;
                config.impersonate = true;
            })
            .await;
        let mut alice = weir.certified_bearing(http, &pki().alice, ("authorization", "Bearer x"));
        assert_eq!(alice.get(LIST).await.status, 200);
        // alice may not read there, and weir's own user may.
        let refused = alice.get("/api/v1/namespaces/kube-system/pods").await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        let requests = cluster.server.requests();
        let request = requests
            .iter()
            .find(|request| request.headers.contains_key("x-forwarded-for"))
            .unwrap();
        let all = |name: &str| -> Vec<String> {
            let values = request.headers.get_all(name).iter();
            values
                .map(|value| value.to_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(all("impersonate-user"), ["alice"]);
        assert_eq!(all("impersonate-group"), ["dev", "ops"]);
        let own = format!("Bearer {}", cluster.token("admin"));
        assert_eq!(all("authorization"), [own.as_str()]);
        let id = "impersonate-extra-authentication.kubernetes.io%2fcredential-id";
        assert!(
            all(id)[0].starts_with("X509SHA256="),
            "{:?}",
            request.headers
        );
        // Tokens and nobody go as they always do.
        assert_eq!(get(&weir, http, cluster.token("alice")).await.status, 200);
        let _ = weir.anonymous(http).get(LIST).await;
        let last = cluster.server.requests();
        for request in last.iter().rev().take(2) {
            assert!(!request.headers.contains_key("impersonate-user"));
            let lent = request
                .headers
                .get("authorization")
                .is_some_and(|v| v == own.as_str());
            assert!(!lent, "{:?}", request.headers);
        }
    }
}

#[tokio::test]
async fn who_is_impersonated_already_impersonates_nobody() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = cluster
            .weir(|config| {
                config.upstream.front_proxy = None;
                config.impersonate = true;
            })
            .await;
        for (name, value) in [
            ("Impersonate-User", "admin"),
            ("impersonate-user", ""),
            ("impersonate_user", "admin"),
            ("IMPERSONATE-GROUP", "system:masters"),
            ("impersonate-group", "system:masters"),
            ("Impersonate_Group", "system:masters"),
            ("impersonate-uid", "u-admin"),
            ("impersonate-extra-scopes", "all"),
            ("impersonate_extra_scopes", "all"),
            ("impersonate-", "x"),
        ] {
            let ask = Ask::get(LIST).header(name, value);
            let answer = weir.certified(http, &pki().alice).ask(ask).await;
            let told = answer.told();
            assert_eq!(
                (answer.status, told.cause.as_str()),
                (403, "weir/impersonation")
            );
        }
        assert!(cluster.senders().is_empty());
    }
}
