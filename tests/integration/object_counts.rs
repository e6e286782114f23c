//! Object counts that weir requests itself: from the API server's metrics, and by lists of one
//! object where metrics are forbidden. In front of the playground, which serves reviews, metadata
//! and `remainingItemCount` as kube-apiserver does.

use std::time::Duration;

use ::weir::upstream::credentials::{BearerToken, CredentialSource};
use ::weir_tokens::bearer::bearer_header;
use weir_playground::{Denial, PlaygroundSettings, RequestRecord};

use crate::authentication::{PlaygroundCluster, authorization};
use crate::seat_estimates::{StoredObjects, expected_seats, wide_limits};
use crate::support::client::TestClient;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually};

/// Some of the pods, by a selector: such a list does not tell the total.
const PODS: &str = "/api/v1/namespaces/default/pods";
const COUNTED_METRIC: &str = "weir_object_count_calls_total{result=\"counted\"}";
const OWN_USER: &str = "system:serviceaccount:team:weir";

/// A cluster, and weir with its own credentials in front of it.
struct ObjectCountHarness {
    cluster: PlaygroundCluster,
    weir: Weir,
    client: TestClient,
}

impl ObjectCountHarness {
    /// Denies weir's own user these verbs.
    async fn start(pods: usize, denied: &[(&str, &str)]) -> Self {
        let settings = PlaygroundSettings {
            pods,
            ..PlaygroundSettings::default()
        };
        let cluster = PlaygroundCluster::start_with(settings).await;
        for (verb, what) in denied {
            cluster.server.deny(Denial {
                user: OWN_USER.to_owned(),
                verb: (*verb).to_owned(),
                target: (*what).to_owned(),
            });
        }
        let own = cluster.service_account_token("weir");
        let weir = cluster
            .start_weir(|config| {
                config.own_credentials = CredentialSource::Configured {
                    certificate: None,
                    token: Some(BearerToken::Inline(bearer_header(&own).unwrap())),
                };
                config.reporting.explain = true;
                config.admission = wide_limits();
                config.object_count_poll_period = Duration::from_secs(3600);
            })
            .await;
        let (name, value) = authorization(cluster.token("bob"));
        let client = weir.with_authorization(HttpVersion::Http2, (name, &value));
        Self {
            cluster,
            weir,
            client,
        }
    }

    /// The seats of a list, which is answered.
    async fn seats(&mut self, target: &str) -> u32 {
        let response = self.client.get(target).await;
        assert_eq!(response.status, 200, "{target}: {}", response.text());
        response.headers["x-weir-seats"].parse().unwrap()
    }

    async fn wait_for_seats(&mut self, target: &str, seats: u32) {
        eventually("the seats", async || {
            (self.seats(target).await == seats).then_some(())
        })
        .await;
    }

    /// The result of kube-apiserver's formula for the stored objects.
    fn expected_seats(&self, target: &str) -> u32 {
        let count = self.cluster.server.object_count("pods").unwrap();
        let size = self.cluster.server.object_bytes("pods").unwrap() / count;
        let stored = StoredObjects {
            path: "/api/v1/pods",
            kind: "Pod",
            count,
            size,
        };
        expected_seats(target, stored)
    }

    /// weir's own requests, except reviews.
    fn own_list_requests(&self) -> Vec<RequestRecord> {
        let requests = self.cluster.server.requests().into_iter();
        requests
            .filter(|request| !request.headers.contains_key("x-forwarded-for"))
            .filter(|request| request.uri.path().starts_with("/api/"))
            .collect()
    }

    /// The resources for which weir has checked its permission to list.
    fn reviewed_resources(&self) -> Vec<String> {
        let reviews = self.cluster.server.reviews().into_iter();
        reviews
            .filter(|review| review.kind == "SelfSubjectAccessReview")
            .map(|review| {
                let attributes = &review.spec["resourceAttributes"];
                assert_eq!(attributes["verb"], "list");
                assert!(attributes.get("namespace").is_none(), "in all of them");
                attributes["resource"].as_str().unwrap().to_owned()
            })
            .collect()
    }
}

#[tokio::test]
async fn without_access_to_metrics_a_list_of_one_object_provides_the_count() {
    let mut harness = ObjectCountHarness::start(2000, &[("get", "/metrics")]).await;
    let server = harness.expected_seats(PODS);
    assert_eq!(server, 10, "as many as a list from memory has at most");
    assert_eq!(harness.seats(PODS).await, 1, "nothing is known");
    harness.wait_for_seats(PODS, server).await;
    let lists = harness.own_list_requests();
    let targets: Vec<_> = lists.iter().map(|list| list.uri.to_string()).collect();
    assert_eq!(
        targets,
        ["/api/v1/pods?limit=1"],
        "no version: it has a limit then"
    );
    assert_eq!(
        lists[0].headers["accept"],
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    );
    assert_eq!(harness.reviewed_resources(), ["pods"]);
    assert_eq!(harness.weir.metric(COUNTED_METRIC).await, 1.0);
}

/// A list of one object does not tell the object size. The length of the next list of all objects
/// does.
#[tokio::test]
async fn the_size_of_counted_objects_follows_from_the_length_of_a_list() {
    let mut harness = ObjectCountHarness::start(400, &[("get", "/metrics")]).await;
    let server = harness.expected_seats(PODS);
    assert_eq!(harness.seats(PODS).await, 1, "nothing is known");
    harness.wait_for_seats(PODS, 8).await; // of 2 kB each
    assert_ne!(server, 8);
    let response = harness.client.get("/api/v1/pods").await;
    assert_eq!(response.status, 200);
    harness.wait_for_seats(PODS, server).await;
}

#[tokio::test]
async fn resources_that_weir_may_not_list_are_never_listed() {
    let denied = [("get", "/metrics"), ("list", "configmaps")];
    let mut harness = ObjectCountHarness::start(20, &denied).await;
    for target in ["/api/v1/namespaces/default/configmaps", PODS] {
        assert_eq!(harness.seats(target).await, 1);
    }
    harness.weir.wait_for_metric(COUNTED_METRIC, 1.0).await;
    assert_eq!(harness.reviewed_resources(), ["configmaps", "pods"]);
    for list in harness.own_list_requests() {
        assert_eq!(list.uri.path(), "/api/v1/pods");
    }
    let denied = "weir_object_count_calls_total{result=\"denied\"}";
    assert_eq!(harness.weir.metric(denied).await, 1.0);
}

#[tokio::test]
async fn secrets_are_never_listed() {
    let mut harness = ObjectCountHarness::start(20, &[("get", "/metrics")]).await;
    for target in [
        "/api/v1/namespaces/default/secrets",
        "/api/v1/secrets?limit=500",
        PODS,
    ] {
        harness.seats(target).await;
    }
    harness.weir.wait_for_metric(COUNTED_METRIC, 1.0).await;
    assert_eq!(
        harness.reviewed_resources(),
        ["pods"],
        "though it may list everything"
    );
    for list in harness.own_list_requests() {
        assert_eq!(list.uri.path(), "/api/v1/pods");
    }
}

#[tokio::test]
async fn resources_counted_by_metrics_are_not_listed() {
    let mut harness = ObjectCountHarness::start(2000, &[]).await;
    let server = harness.expected_seats(PODS);
    harness.wait_for_seats(PODS, server).await;
    assert_eq!(harness.reviewed_resources(), <[String; 0]>::default());
    assert_eq!(harness.own_list_requests().len(), 0);
}
