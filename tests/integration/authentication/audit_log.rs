//! The audit log names the user of a request as the API server does, with ids that both logs share.

use std::collections::BTreeMap;

use ::weir::config::ReportingConfig;

use super::*;
use crate::audit::TempAuditLog;

/// The audit id of a response.
fn audit_id(response: &FullResponse) -> String {
    response.headers.get("audit-id").unwrap().to_owned()
}

#[tokio::test]
async fn both_audit_logs_have_the_same_requests_users_and_ids() {
    for http in HttpVersion::BOTH {
        let (cluster, log) = (PlaygroundCluster::start().await, TempAuditLog::new());
        let weir = cluster
            .start_weir(|config| {
                let audit = Some(log.config());
                config.reporting = ReportingConfig {
                    audit,
                    explain: false,
                    ..ReportingConfig::default()
                };
            })
            .await;
        let admin = authorization(cluster.token("admin"));
        let admin = (admin.0, admin.1.as_str());
        let account = authorization(&cluster.service_account_token("ci"));
        let account = (account.0, account.1.as_str());
        let watch = format!("{LIST}?watch=true&timeoutSeconds=1");
        let mut ids = BTreeMap::new();
        let mut by_admin = weir.with_authorization(http, admin);
        ids.insert("get", audit_id(&by_admin.get(LIST).await));
        let own = TestRequest::get(LIST).header("Audit-ID", "the-client-s-own");
        ids.insert("own", audit_id(&by_admin.request(own).await));
        let as_bob = TestRequest::get(LIST).header("Impersonate-User", "bob");
        let as_bob = by_admin.request(as_bob).await;
        assert_eq!(as_bob.status, 200);
        ids.insert("as bob", audit_id(&as_bob));
        let alice = authorization(cluster.token("alice"));
        let as_admin = TestRequest::get(LIST).header("Impersonate-User", "admin");
        let mut by_alice = weir.with_authorization(http, (alice.0, alice.1.as_str()));
        let as_admin = by_alice.request(as_admin).await;
        assert_eq!(as_admin.status, 403);
        ids.insert("as admin", audit_id(&as_admin));
        ids.insert("watch", audit_id(&by_admin.get(&watch).await));
        ids.insert(
            "account",
            audit_id(&weir.with_authorization(http, account).get(LIST).await),
        );
        ids.insert("nobody", audit_id(&weir.anonymous(http).get(LIST).await));
        let mut alice = weir.with_certificate(http, &pki().alice);
        ids.insert("certificate", audit_id(&alice.get(LIST).await));
        assert_eq!(ids["own"], "the-client-s-own");

        // Two for each request, three for the watch.
        let events = log.wait_for_events(2 * 7 + 3).await;
        let of = |name: &str| {
            let of = |event: &&Value| event["auditID"] == ids[name];
            events.iter().filter(of).cloned().collect::<Vec<_>>()
        };
        let stages = |name| {
            let stages = of(name).into_iter().map(|event| event["stage"].clone());
            Value::from_iter(stages)
        };
        assert_eq!(
            stages("get"),
            json!(["RequestReceived", "ResponseComplete"])
        );
        let three = ["RequestReceived", "ResponseStarted", "ResponseComplete"];
        assert_eq!(stages("watch"), json!(three));
        let users = BTreeMap::from([
            ("get", "admin"),
            ("own", "admin"),
            ("as bob", "admin"),
            ("as admin", "alice"),
            ("watch", "admin"),
            ("account", "system:serviceaccount:team:ci"),
            ("nobody", "system:anonymous"),
            ("certificate", "alice"),
        ]);
        let requests = cluster.server.requests();
        for (name, user) in users {
            let event = of(name).pop().unwrap();
            assert_eq!(event["user"]["username"], user, "{name}");
            let seen: Vec<_> = requests
                .iter()
                .filter(|request| {
                    let id = request.headers.get("audit-id");
                    id.is_some_and(|id| id == ids[name].as_str())
                })
                .collect();
            let [seen] = seen[..] else {
                panic!("{name}: the API server saw {} of it", seen.len());
            };
            let target = seen.uri.path_and_query().unwrap();
            assert_eq!(event["requestURI"], target.as_str());
            let seen_user = seen.user.as_ref().map_or("system:anonymous", |u| &*u.name);
            assert_eq!(seen_user, user, "{name}");
        }
        let as_bob = of("as bob").pop().unwrap();
        assert_eq!(
            as_bob["impersonatedUser"],
            json!({"username": "bob", "groups": ["system:authenticated"]})
        );
        // A client's request for a user does not make it that user.
        for name in ["get", "as admin"] {
            assert_eq!(of(name)[1].get("impersonatedUser"), None, "{name}");
        }
        let watch = of("watch").pop().unwrap();
        assert_eq!(watch["verb"], "watch");
        let code = |name| of(name).pop().unwrap()["responseStatus"]["code"].clone();
        assert_eq!(code("nobody"), 403);
        assert_eq!(code("get"), 200);
    }
}
