//! A new process takes over from a running one, and what the service manager learns.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::levers::ctl;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::{ConfigDir, WeirProcess, required_flags};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::ALICE;
use crate::support::{EVENT_TIMEOUT, HttpVersion, eventually};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

/// The line of the old process when the new one serves.
const NEW_PROCESS: &str = "the new process serves";

/// Idle connections stay open for so long after a hand-over, or until their clients know. Watches
/// end sooner.
const LONG_GRACE: &str = "--shutdown-watch-termination-grace-period=30s";

/// What the two processes log until the next hand-over can begin.
const IN_CHARGE: [&str; 2] = [NEW_PROCESS, "this process has taken over"];

/// A process that was not started by the test. Killed when it is dropped.
struct Successor(String);

impl Successor {
    /// Not if it has ended and its new parent has not noticed.
    fn is_running(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.0));
        // PID (NAME) STATE …
        let status = status.unwrap_or_default();
        let state = status.rsplit_once(") ").map(|(_, state)| state);
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    }

    fn send_signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.0]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", &self.0]).status();
    }
}

async fn start(flags: &[&str]) -> (WeirProcess, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    upstream.answer_readyz(200);
    let flags = [&["--token-auth-file=tokens.csv"], flags].concat();
    let weir = WeirProcess::serve(upstream.address, &flags).await;
    (weir, upstream)
}

/// The sockets that a process has open.
fn sockets(pid: &str) -> BTreeSet<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    let open = open.into_iter().flatten().flatten();
    open.filter_map(|file| fs::read_link(file.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .collect()
}

/// Waits until the process `old` has closed the listeners that it has handed over. Before, the
/// system may give a new connection to either process.
async fn wait_until_listeners_are_closed(old: &str, new: &str) {
    eventually("the old process to close its listeners", async || {
        // What this process has, too, is inherited by all.
        let others = &sockets(old) - &sockets("self");
        others.is_disjoint(&sockets(new)).then_some(())
    })
    .await;
}

/// Waits until the new process has taken over.
async fn hand_over(weir: &mut WeirProcess) -> Successor {
    weir.send_signal("USR2").await;
    let old = weir.id().to_string();
    successor_of(&old, &[NEW_PROCESS], weir).await
}

/// Waits until a process serves alone that the process `old` has started, and until the log
/// has these texts. Both processes write to it: they may come in any order.
async fn successor_of(old: &str, texts: &[&str], weir: &mut WeirProcess) -> Successor {
    let mut missing = texts.to_vec();
    let mut pid = None;
    while !missing.is_empty() {
        let line = weir.next_log_line("").await;
        missing.retain(|text| !line.contains(text));
        if line.contains(NEW_PROCESS) {
            let (_, id) = line.split_once("pid=").unwrap();
            pid = id.split_whitespace().next().map(ToOwned::to_owned);
        }
    }
    let successor = Successor(pid.unwrap());
    wait_until_listeners_are_closed(old, &successor.0).await;
    successor
}

/// The successful and the failed hand-overs that the process at the admin address has counted.
async fn handovers(weir: &WeirProcess) -> [u64; 2] {
    let metrics = weir.get_admin("/metrics").await;
    ["success", "failure"].map(|result| {
        let series = format!("weir_handovers_total{{result=\"{result}\"}} ");
        let line = metrics
            .text()
            .lines()
            .find(|line| line.starts_with(&series));
        let value = line.and_then(|line| line.strip_prefix(&series));
        value.unwrap().parse().unwrap()
    })
}

async fn list(client: &mut RawHttp1, upstream: &mut FakeUpstream) -> (u16, Option<String>) {
    let request = TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1();
    client.send(request).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    let (head, _) = client.read_response("GET").await;
    let connection = head.headers.get("connection").map(str::to_owned);
    (head.status, connection)
}

#[tokio::test]
async fn a_new_process_serves_new_connections_and_the_old_one_finishes_what_it_has() {
    let (mut weir, mut upstream) = start(&[LONG_GRACE]).await;
    let mut kept = weir.raw_http1().await;
    assert_eq!(list(&mut kept, &mut upstream).await, (200, None));
    let mut client = weir.alice(HttpVersion::Http2);
    let mut watch = client.send(TestRequest::get(WATCH)).await;
    let mut watched = upstream.next_exchange().await;
    watched.send_head(200, &[]).await;
    watched.send("one").await;
    assert_eq!(watch.head().await.status, 200);
    assert_eq!(watch.body().next_text().await, "one");
    let mut busy = weir.alice(HttpVersion::Http2);
    let call = busy.send(TestRequest::get(LIST)).await;
    let under_way = upstream.next_exchange().await;

    let successor = hand_over(&mut weir).await;
    // The old process announces the end of a connection before it ends.
    let closing = Some("close".to_owned());
    assert_eq!(list(&mut kept, &mut upstream).await, (200, closing));
    kept.reader.wait_for_close().await;
    let mut fresh = weir.raw_http1().await;
    assert_eq!(list(&mut fresh, &mut upstream).await, (200, None));
    under_way.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    let rest = watch.body().read_to_end().await;
    assert_eq!(rest.unwrap(), "", "the watch ends as a response does");
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    assert_eq!(list(&mut fresh, &mut upstream).await, (200, None));
    assert!(successor.is_running());
}

#[tokio::test]
async fn a_new_process_takes_over_what_the_old_one_has_learned() {
    let (mut weir, mut upstream) = start(&[]).await;
    let mut client = weir.raw_http1().await;
    for _ in 0..3 {
        assert_eq!(list(&mut client, &mut upstream).await, (200, None));
    }
    drop(client);
    let _successor = hand_over(&mut weir).await;
    weir.next_log_line("handed over: no new connections").await;
    let mut client = weir.raw_http1().await;
    list(&mut client, &mut upstream).await;
    let talkers = weir.get_admin("/debug/top_talkers?by=user").await;
    let talkers: serde_json::Value = serde_json::from_str(talkers.text()).unwrap();
    let row = &talkers["rows"][0];
    assert_eq!(
        (&row["name"], &row["requests"]),
        (&"alice".into(), &4.into()),
        "{talkers}"
    );
}

#[tokio::test]
async fn both_processes_together_stay_within_the_limit() {
    let flags = [
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=2",
    ];
    let (mut weir, mut upstream) = start(&flags).await;
    let mut old_client = weir.alice(HttpVersion::Http2);
    let old_call = old_client.send(TestRequest::get(LIST)).await;
    let of_old = upstream.next_exchange().await;
    let _successor = hand_over(&mut weir).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let of_new = upstream.next_exchange().await;
    assert_eq!(weir.alice(HttpVersion::Http1).get(LIST).await.status, 429);
    of_old.respond(200, "{}").await;
    assert_eq!(old_call.response().await.status, 200);
    crate::audit::spawn_ok_responder(upstream).await;
    eventually("a slot that the old process has given back", async || {
        let response = weir.alice(HttpVersion::Http1).get(LIST).await;
        (response.status == 200).then_some(())
    })
    .await;
    of_new.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn a_new_process_that_cannot_start_changes_nothing() {
    let upstream = FakeUpstream::start().await;
    let mut flags = required_flags(upstream.address);
    flags.extend(["--config=weir.yaml", "--token-auth-file=tokens.csv"].map(str::to_owned));
    let files = ConfigDir::new();
    files.write("weir.yaml", "maxConnections: 100\n");
    let mut weir = WeirProcess::start(files, &flags).await;
    crate::audit::spawn_ok_responder(upstream).await;
    weir.files.write("weir.yaml", "maxConnections: many\n");
    weir.send_signal("USR2").await;
    let line = weir.next_log_line("no hand-over").await;
    assert!(line.contains("exit status: 2"), "{line}");
    assert!(line.contains("this process keeps serving"), "{line}");
    assert_eq!(weir.alice(HttpVersion::Http1).get(LIST).await.status, 200);
    assert_eq!(handovers(&weir).await, [0, 1]);
    // The next attempt succeeds.
    weir.files.write("weir.yaml", "maxConnections: 200\n");
    weir.send_signal("USR2").await;
    let line = weir.next_log_line(NEW_PROCESS).await;
    let (_, pid) = line.split_once("pid=").unwrap();
    let successor = Successor(pid.split_whitespace().next().unwrap().to_owned());
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    assert_eq!(weir.alice(HttpVersion::Http2).get(LIST).await.status, 200);
    eventually("the hand-over that the new process counts", async || {
        (handovers(&weir).await == [1, 0]).then_some(())
    })
    .await;
    successor.send_signal("TERM");
    eventually("the end of the new process", async || {
        (!successor.is_running()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_chain_of_hand_overs_shares_one_limit_and_each_process_finishes_what_it_has() {
    let flags = [
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=3",
    ];
    let (mut weir, mut upstream) = start(&flags).await;
    let mut first_client = weir.alice(HttpVersion::Http2);
    let first_call = first_client.send(TestRequest::get(LIST)).await;
    let of_first = upstream.next_exchange().await;

    weir.send_signal("USR2").await;
    let first = weir.id().to_string();
    let second = successor_of(&first, &IN_CHARGE, &mut weir).await;
    let mut second_client = weir.alice(HttpVersion::Http2);
    let second_call = second_client.send(TestRequest::get(LIST)).await;
    let of_second = upstream.next_exchange().await;

    second.send_signal("USR2");
    let third = successor_of(&second.0, &IN_CHARGE, &mut weir).await;
    assert!(weir.is_running() && second.is_running(), "both still drain");
    let mut third_client = weir.alice(HttpVersion::Http2);
    let third_call = third_client.send(TestRequest::get(LIST)).await;
    let of_third = upstream.next_exchange().await;
    // The third process knows of the first one's request through the second one.
    assert_eq!(weir.alice(HttpVersion::Http1).get(LIST).await.status, 429);

    of_first.respond(200, "{}").await;
    assert_eq!(first_call.response().await.status, 200);
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    crate::audit::spawn_ok_responder(upstream).await;
    eventually("the slot of the first process", async || {
        let response = weir.alice(HttpVersion::Http1).get(LIST).await;
        (response.status == 200).then_some(())
    })
    .await;
    of_second.respond(200, "{}").await;
    assert_eq!(second_call.response().await.status, 200);
    eventually("the end of the second process", async || {
        (!second.is_running()).then_some(())
    })
    .await;
    of_third.respond(200, "{}").await;
    assert_eq!(third_call.response().await.status, 200);
    assert!(third.is_running());
}

#[tokio::test]
async fn both_processes_write_and_rotate_one_audit_log() {
    const CLIENTS: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let path = format!("--audit-log-path={}/audit.log", folder.path().display());
    let (mut weir, mut upstream) = start(&[&path, "--audit-log-maxsize=1", LONG_GRACE]).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = weir.raw_http1().await;
        assert_eq!(list(&mut client, &mut upstream).await, (200, None));
        clients.push(client);
    }
    // Keeps the old process until everything is written.
    let mut busy = weir.alice(HttpVersion::Http2);
    let last_call = busy.send(TestRequest::get(LIST)).await;
    let of_last = upstream.next_exchange().await;
    let successor = hand_over(&mut weir).await;
    crate::audit::spawn_ok_responder(upstream).await;
    let long = TestRequest::get(&crate::audit::long_target()).header(ALICE.0, ALICE.1);
    let long = long.to_http1();
    for old in &mut clients {
        old.send(long.clone()).await;
    }
    for _ in 0..CLIENTS {
        let mut fresh = weir.raw_http1().await;
        fresh.send(long.clone()).await;
        clients.push(fresh);
    }
    for client in &mut clients {
        let (head, _) = client.read_response("GET").await;
        assert_eq!(head.status, 200);
    }
    // One short request of each client of the old process, and one long one of each client.
    let count = 3 * CLIENTS;
    eventually("the events of both processes", async || {
        (audited_requests(folder.path()).len() == count).then_some(())
    })
    .await;
    of_last.respond(200, "{}").await;
    assert_eq!(last_call.response().await.status, 200);
    drop((clients, busy));
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    successor.send_signal("TERM");
    eventually("the end of the new process", async || {
        (!successor.is_running()).then_some(())
    })
    .await;

    assert_eq!(audited_requests(folder.path()).len(), count + 1);
    let files = crate::audit::log_files(folder.path());
    let size = |file| fs::metadata(file).unwrap().len();
    assert!(files.iter().all(|file| size(file) <= 1 << 20), "{files:?}");
    assert!(files.len() >= 5, "80 events of 60 kB: {files:?}");
}

/// The ids of the requests whose ends are in the audit log of this folder.
fn audited_requests(folder: &Path) -> BTreeSet<String> {
    let events = crate::audit::read_all_events(folder).into_iter();
    events
        .filter(|event| event["stage"] == "ResponseComplete")
        .map(|event| event["auditID"].to_string())
        .collect()
}

/// A service manager, as far as it receives notifications.
struct ServiceManager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl ServiceManager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
        Self { socket, folder }
    }

    fn address(&self) -> String {
        let path = self.folder.path().join("notify");
        path.to_str().unwrap().to_owned()
    }

    /// The next notification that contains `text`, and those before it.
    async fn next(&self, text: &str) -> (String, Vec<String>) {
        let (socket, text) = (self.socket.try_clone().unwrap(), text.to_owned());
        let received = tokio::task::spawn_blocking(move || {
            let mut earlier = Vec::new();
            loop {
                let mut buffer = [0; 1000];
                let length = match socket.recv(&mut buffer) {
                    Ok(length) => length,
                    Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                    Err(why) => panic!("no notification with {text}: {why}"),
                };
                let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
                if message.contains(&text) {
                    return (message, earlier);
                }
                earlier.push(message);
            }
        });
        received.await.unwrap()
    }
}

#[tokio::test]
async fn the_service_manager_learns_what_happens() {
    let manager = ServiceManager::new();
    let address = manager.address();
    let upstream = FakeUpstream::start().await;
    let flags = required_flags(upstream.address);
    let environment = [
        ("NOTIFY_SOCKET", address.as_str()),
        ("WATCHDOG_USEC", "20000000"),
    ];
    let mut weir = WeirProcess::start_with(ConfigDir::new(), &flags, &environment).await;
    crate::audit::spawn_ok_responder(upstream).await;
    let (_, earlier) = manager.next("READY=1").await;
    assert_eq!(earlier, [""; 0]);
    manager.next("WATCHDOG=1").await;
    weir.send_signal("HUP").await;
    let (message, _) = manager.next("RELOADING=1").await;
    assert!(message.contains("MONOTONIC_USEC="), "{message}");
    manager.next("READY=1").await;

    weir.send_signal("USR2").await;
    let (message, _) = manager.next("MAINPID=").await;
    let pid = message.strip_prefix("MAINPID=").unwrap().lines().next();
    let successor = Successor(pid.unwrap().to_owned());
    assert_ne!(successor.0, weir.id().to_string());
    manager.next("READY=1").await;
    // WATCHDOG_PID, if there was one, is not the new process's.
    manager.next("WATCHDOG=1").await;
    successor.send_signal("TERM");
    manager.next("STOPPING=1").await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_socket_of_the_service_manager_is_used_instead_of_the_configured_address() {
    let upstream = FakeUpstream::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let flags = required_flags(upstream.address);
    let weir = WeirProcess::start_activated(ConfigDir::new(), &flags, listener, "main").await;
    assert_eq!(weir.clients, address);
    crate::audit::spawn_ok_responder(upstream).await;
    assert_eq!(
        weir.anonymous(HttpVersion::Http1).get(LIST).await.status,
        200
    );
    assert_eq!(weir.get_admin("/livez").await.status, 200);
}

#[tokio::test]
async fn a_new_process_has_the_levers_with_the_rest_of_their_time() {
    let flags = [
        "--control-socket=control.sock",
        "--max-requests-inflight=10",
        "--audit-log-path=audit.log",
    ];
    let (mut weir, mut upstream) = start(&flags).await;
    let blocked = [
        "block",
        "--user=alice",
        "--for=1h",
        "--reason=a storm",
        "--as=carol",
    ];
    for arguments in [
        &blocked[..],
        &["limit", "--user=bob", "--qps=5"],
        &["total", "30"],
    ] {
        let set = ctl(&weir, arguments).await;
        assert_eq!(set.code, Some(0), "{}", set.stderr);
    }
    let undone = ctl(&weir, &["undo", "2"]).await;
    assert_eq!(undone.code, Some(0), "{}", undone.stderr);
    weir.send_signal("USR2").await;
    let old = weir.id().to_string();
    let taken_over = "levers of the old process are in force levers=2";
    let new = successor_of(&old, &[NEW_PROCESS, taken_over], &mut weir).await;
    let rejected = weir.alice(HttpVersion::Http2).get(LIST).await;
    assert_eq!(rejected.kube_status().cause, "weir/blocked");
    assert!(rejected.kube_status().message.contains("a storm"));
    let list = eventually("the new process to answer", async || {
        let list = ctl(&weir, &["list"]).await;
        (list.code == Some(0)).then_some(list.stdout)
    })
    .await;
    let lines: Vec<_> = list.lines().collect();
    assert!(
        lines[1].starts_with("1 ") && lines[1].contains("as carol"),
        "{list}"
    );
    assert!(
        lines[1].contains(" 59m") || lines[1].contains("1h0m0s"),
        "{list}"
    );
    assert!(
        lines[2].starts_with("3 ") && lines[2].contains("total 30"),
        "{list}"
    );
    assert_eq!(lines.len(), 3, "{list}");
    let seats = "weir_server_concurrency_limit_seats";
    assert_eq!(weir.metric(seats).await, 30.0);
    let next = ctl(&weir, &["block", "--user=dave"]).await;
    assert!(next.stdout.starts_with("lever 4 "), "{}", next.stdout);
    let undone = ctl(&weir, &["undo", "1"]).await;
    assert!(
        undone.stdout.starts_with("lever 1 has ended"),
        "{}",
        undone.stdout
    );
    let mut alice = weir.alice(HttpVersion::Http2);
    let call = alice.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    new.send_signal("TERM");
    eventually("the end of the new process", async || {
        (!new.is_running()).then_some(())
    })
    .await;
    let log = fs::read_to_string(weir.files.path().join("audit.log")).unwrap();
    let of_first = log.lines().filter(|line| line.contains("/weir/levers/1\""));
    assert_eq!(
        of_first.count(),
        2,
        "begun in one process, undone in the other: {log}"
    );
}
