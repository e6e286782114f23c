//! Lists, watches, writes and logs.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Api, Error};

use crate::playground::{ALICE, Playground, within};

pub(crate) fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("value".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

fn value_of(map: &ConfigMap) -> Option<&str> {
    map.data.as_ref()?.get("value").map(String::as_str)
}

#[tokio::test]
async fn lists_are_complete_whole_and_in_pages() {
    let playground = Playground::start(&["--nodes=7", "--pods=500"]).await;
    for context in ALICE {
        let client = playground.client(context).await;
        let nodes: Api<Node> = Api::all(client.clone());
        let all = within("nodes", nodes.list(&ListParams::default()))
            .await
            .unwrap();
        assert_eq!(all.items.len(), 7, "as {context}");

        let pods: Api<Pod> = Api::all(client);
        let whole = within("pods", pods.list(&ListParams::default()))
            .await
            .unwrap();
        let mut page = ListParams::default().limit(64);
        let mut paged = Vec::new();
        loop {
            let found = within("a page", pods.list(&page)).await.unwrap();
            paged.extend(found.items);
            match found.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        assert_eq!(whole.items.len(), 500, "as {context}");
        assert_eq!(paged, whole.items, "as {context}");
    }
}

#[tokio::test]
async fn a_watch_delivers_the_writes_of_other_clients() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let maps: Api<ConfigMap> = Api::namespaced(playground.client(context).await, "default");
        let others: Api<ConfigMap> = Api::namespaced(playground.client("bob").await, "default");
        let now = within("a list", maps.list(&ListParams::default()))
            .await
            .unwrap();
        let version = now.metadata.resource_version.unwrap();
        let params = WatchParams::default().timeout(60);
        let events = within("a watch", maps.watch(&params, &version))
            .await
            .unwrap();
        let mut events = pin!(events);
        let mut next = async || {
            within("an event", events.try_next())
                .await
                .unwrap()
                .expect("the watch goes on")
        };

        let (post, delete) = (PostParams::default(), DeleteParams::default());
        let name = format!("watched-by-{context}");
        let map = config_map(&name, "1");
        let mut created = within("create", others.create(&post, &map)).await.unwrap();
        assert!(matches!(next().await, WatchEvent::Added(map) if value_of(&map) == Some("1")));
        created.data = config_map(&name, "2").data;
        within("replace", others.replace(&name, &post, &created))
            .await
            .unwrap();
        assert!(matches!(next().await, WatchEvent::Modified(map) if value_of(&map) == Some("2")));
        within("delete", others.delete(&name, &delete))
            .await
            .unwrap();
        assert!(matches!(next().await, WatchEvent::Deleted(map) if value_of(&map) == Some("2")));
    }
}

#[tokio::test]
async fn every_write_method_reaches_the_server() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let maps: Api<ConfigMap> = Api::namespaced(playground.client(context).await, "default");
        let name = format!("written-by-{context}");
        let params = PatchParams::apply("weir-tests");
        let write = |text: &'static str| (config_map(&name, text), name.as_str());

        let (applied, name) = write("applied");
        let mut applied = serde_json::to_value(applied).unwrap();
        applied["apiVersion"] = "v1".into();
        applied["kind"] = "ConfigMap".into();
        let apply = Patch::Apply(&applied);
        let got = within("apply", maps.patch(name, &params, &apply)).await;
        assert_eq!(value_of(&got.unwrap()), Some("applied"), "as {context}");

        let (params, post) = (PatchParams::default(), PostParams::default());
        for (text, patch) in [
            ("merged", Patch::Merge(write("merged").0)),
            ("strategic", Patch::Strategic(write("strategic").0)),
        ] {
            let got = within("patch", maps.patch(name, &params, &patch)).await;
            assert_eq!(value_of(&got.unwrap()), Some(text), "as {context}");
        }
        let stale = {
            let mut map = config_map(name, "stale");
            map.metadata.resource_version = Some("1".to_owned());
            map
        };
        match within("replace", maps.replace(name, &post, &stale)).await {
            Err(Error::Api(status)) => {
                assert_eq!((status.code, &*status.reason), (409, "Conflict"))
            }
            other => panic!("{other:?}, as {context}"),
        }
        within("delete", maps.delete(name, &DeleteParams::default()))
            .await
            .unwrap();
        let gone = within("get", maps.get_opt(name)).await.unwrap();
        assert!(gone.is_none(), "as {context}");
    }
}

#[tokio::test]
async fn a_forbidden_list_gets_the_server_s_403() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let maps: Api<ConfigMap> = Api::namespaced(playground.client(context).await, "kube-system");
        match within("a list", maps.list(&ListParams::default())).await {
            Err(Error::Api(status)) => {
                assert_eq!(status.code, 403, "as {context}");
                assert!(
                    status
                        .message
                        .contains("User \"alice\" cannot list resource"),
                    "{}, as {context}",
                    status.message
                );
            }
            other => panic!("{other:?}, as {context}"),
        }
    }
}

#[tokio::test]
async fn a_followed_log_keeps_streaming() {
    let playground = Playground::start(&[]).await;
    for context in ALICE {
        let (pods, name) = playground.pods(context).await;
        let once = within("a log", pods.logs(&name, &LogParams::default()))
            .await
            .unwrap();
        let params = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let followed = within("a log", pods.log_stream(&name, &params))
            .await
            .unwrap();
        let mut lines = followed.lines();
        // Two more than at the start.
        for number in 0..once.lines().count() + 2 {
            let line = within("a line", lines.try_next()).await.unwrap().unwrap();
            assert!(
                line.ends_with(&format!("line {number}")),
                "{line}, as {context}"
            );
        }
    }
}
