//! Rate limits in real time: the playground behind weir stores exactly the accepted events.

use std::fs;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Event, EventSource, Namespace, ObjectReference};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Error};
use tempfile::TempDir;

use crate::controller::Controller;
use crate::playground::{Playground, within};
use crate::recorder::Recorder;

fn write_file(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A client without retries of its own.
async fn client_without_retries(playground: &Playground) -> Client {
    let mut config = playground.config("admin").await;
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn event_limits_yaml(lines: &str) -> String {
    format!(
        "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n{lines}"
    )
}

fn meta(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    }
}

fn event(namespace: &str, n: usize) -> Event {
    Event {
        metadata: meta(Some(namespace), &format!("e.{n}")),
        involved_object: ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(format!("pod-{n}")),
            ..ObjectReference::default()
        },
        source: Some(EventSource {
            component: Some("test".to_owned()),
            host: None,
        }),
        reason: Some("Tested".to_owned()),
        type_: Some("Normal".to_owned()),
        ..Event::default()
    }
}

/// Writes this number of events to all namespaces at full speed. Returns how many were accepted.
async fn send_events(
    client: &Client,
    namespaces: &[String],
    events: std::ops::Range<usize>,
) -> usize {
    let sent = stream::iter(events).map(|n| {
        let namespace = &namespaces[n % namespaces.len()];
        let api: Api<Event> = Api::namespaced(client.clone(), namespace);
        async move {
            match api
                .create(&PostParams::default(), &event(namespace, n))
                .await
            {
                Ok(_) => 1,
                Err(Error::Api(status)) if status.code == 429 => 0,
                Err(other) => panic!("{other}"),
            }
        }
    });
    let sent = sent.buffer_unordered(32).collect::<Vec<usize>>();
    within("all events", sent).await.into_iter().sum()
}

fn round_to_usize(tokens: f64) -> usize {
    format!("{tokens:.0}").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proposal_s_example_is_enforced_in_real_time() {
    let folder = TempDir::new().unwrap();
    let lines = "- {type: Server, qps: 100, burst: 1000}\n- {type: Namespace, qps: 10, burst: 100, cacheSize: 50}\n";
    let config = write_file(&folder, "events.yaml", &event_limits_yaml(lines));
    let playground = Playground::start(&[&format!("--event-rate-limit-config={config}")]).await;
    let client = client_without_retries(&playground).await;
    let namespaces: Vec<String> = (0..15).map(|n| format!("ns-{n}")).collect();
    let api: Api<Namespace> = Api::all(client.clone());
    for name in &namespaces {
        let namespace = Namespace {
            metadata: meta(None, name),
            ..Namespace::default()
        };
        within(
            "a namespace",
            api.create(&PostParams::default(), &namespace),
        )
        .await
        .unwrap();
    }
    let began = Instant::now();
    let first = send_events(&client, &namespaces, 0..1500).await;
    let middle = began.elapsed();
    // Each namespace gets 100, its burst, so that only the server's bucket decides.
    let most = 1000 + round_to_usize(100.0 * middle.as_secs_f64()) + 1;
    assert!((1000..=most).contains(&first), "{first} in {middle:?}");
    // The second of the example, in which buckets fill: events go on until 100 more are accepted.
    let mut accepted = first;
    for n in 1500.. {
        if accepted >= first + 100 {
            break;
        }
        accepted += send_events(&client, &namespaces, n..n + 1).await;
    }
    let all = began.elapsed();
    let most = 1000 + round_to_usize(100.0 * all.as_secs_f64()) + 1;
    assert!(accepted <= most, "{accepted} in {all:?}");
    let held: Api<Event> = Api::all(client);
    let held = within("a list", held.list(&ListParams::default()))
        .await
        .unwrap();
    let held = held
        .items
        .iter()
        .filter(|event| event.reason.as_deref() == Some("Tested"))
        .count();
    assert_eq!(
        held, accepted,
        "the API server holds just what was accepted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_that_honours_retry_after_has_few_events_rejected() {
    let folder = TempDir::new().unwrap();
    let config = write_file(
        &folder,
        "events.yaml",
        &event_limits_yaml("- {type: User, qps: 1, burst: 5}\n"),
    );
    let playground = Playground::start(&[&format!("--event-rate-limit-config={config}")]).await;
    let mut recorder = Recorder::new(client_without_retries(&playground).await, "default");
    let began = Instant::now();
    for n in 0..2000 {
        within("an event", recorder.record(&event("default", n)))
            .await
            .unwrap();
    }
    let seconds = round_to_usize(began.elapsed().as_secs_f64().ceil());
    let tally = recorder.tally;
    assert_eq!(tally.written + tally.refused + tally.abandoned, 2000);
    assert!((5..=6 + seconds).contains(&tally.written), "{tally:?}");
    assert!((1..=1 + seconds).contains(&tally.refused), "{tally:?}");
}

fn controllers_config(lines: &str) -> String {
    format!(
        "clientLimits:\n- name: controllers\n  rules:\n  - subjects: [{{kind: User, user: {{name: admin}}}}]\n    \
         resourceRules: [{{verbs: [get, update], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}]\n{lines}"
    )
}

async fn create_objects(client: &Client, count: usize) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut names = Vec::new();
    for n in 0..count {
        let name = format!("object-{n}");
        let map = ConfigMap {
            metadata: meta(None, &name),
            ..ConfigMap::default()
        };
        within("a map", maps.create(&PostParams::default(), &map))
            .await
            .unwrap();
        names.push(name);
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_a_limit_of_its_own_settles_at_its_reconcile_rate() {
    let folder = TempDir::new().unwrap();
    // The bursts of one second, for an early result.
    let lines = "  maxReconcileRate: 10\n  requests: {burst: 50}\n  writes: {burst: 10}\n  limitResponse: Delay\n";
    let config = write_file(&folder, "weir.yaml", &controllers_config(lines));
    let playground = Playground::start(&[&format!("--config={config}")]).await;
    let client = client_without_retries(&playground).await;
    let names = create_objects(&client, 30).await;
    let controller = Controller::new(client, "default");
    let began = Instant::now();
    let work =
        futures_util::future::join_all(names.iter().map(|name| controller.reconcile(name, false)));
    let ended = tokio::time::timeout(Duration::from_secs(4), work).await;
    assert!(ended.is_err(), "it never ends by itself: {ended:?}");
    let (seen, elapsed) = (controller.seen(), began.elapsed().as_secs_f64());
    let requests = seen.reads.len() + seen.writes.len();
    assert!(
        requests <= 51 + round_to_usize(50.0 * elapsed),
        "{requests} in {elapsed} s"
    );
    assert!(
        seen.writes.len() <= 11 + round_to_usize(10.0 * elapsed),
        "{} in {elapsed} s",
        seen.writes.len()
    );
    assert!(requests > 60, "and it gets that much: {requests}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_of_a_failing_object_back_off() {
    let leasts = [250, 500, 1000, 2000, 2000];
    let folder = TempDir::new().unwrap();
    // A failure is forgotten after twice the longest backoff, which is longer than a slow machine
    // pauses.
    let lines = "  maxReconcileRate: 1000\n  objectBackoff: {base: 250ms, max: 2s}\n";
    let config = write_file(&folder, "weir.yaml", &controllers_config(lines));
    // It ignores `Retry-After`, which is at least a second, and must report each backoff.
    let flags = [&format!("--config={config}"), "--rejection-hold=0"];
    let playground = Playground::start(&flags).await;
    let client = client_without_retries(&playground).await;
    let names = create_objects(&client, 1).await;
    let controller = Controller::new(client, "default");
    let mut work = pin!(controller.reconcile(&names[0], true));
    let failures = poll_fn(|context| {
        let ended = work.as_mut().poll(context);
        assert!(ended.is_pending(), "it never ends by itself: {ended:?}");
        let failures = controller.seen().failures;
        if failures.len() > leasts.len() {
            Poll::Ready(failures)
        } else {
            Poll::Pending
        }
    });
    let failures = within("six failures", failures).await;
    // weir receives the response to the earlier request after this one was sent, and admits the
    // next before this one is answered.
    let gaps = failures.windows(2).map(|pair| pair[1].end - pair[0].start);
    let gaps: Vec<Duration> = gaps.collect();
    for (gap, least) in gaps.iter().zip(leasts) {
        assert!(*gap >= Duration::from_millis(least), "{gaps:?}");
    }
}
