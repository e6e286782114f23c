use super::*;
use crate::upstream::connection::address;

/// A short request.
const SHORT: RequestTraits = RequestTraits {
    long_running: false,
    is_health_check: false,
};

fn server(host: &str) -> ServerAddress {
    let (authority, name) = address::parse_server(&format!("https://{host}")).unwrap();
    ServerAddress::new(authority, name)
}

fn tls() -> UpstreamTls {
    UpstreamTls {
        roots: Arc::new(weir_x509::CertificatePool::default()),
        front_proxy: None,
    }
}

fn set(hosts: &[&str]) -> Arc<ServerSet> {
    let servers: Vec<_> = hosts.iter().map(|host| server(host)).collect();
    ServerSet::new(&servers, false, false, tls(), &Registry::new())
}

/// Three servers that have passed their probes long ago.
async fn ready_set() -> Arc<ServerSet> {
    let set = set(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    for server in &set.list().servers {
        set.record_probe(server, ProbeOutcome::Ready);
    }
    tokio::time::advance(health::SLOW_START).await;
    set
}

/// How often each server is picked in 3000 picks.
fn picks(set: &ServerSet, tried: &[Arc<ApiServer>]) -> Vec<usize> {
    let list = set.list();
    let mut random = fastrand::Rng::with_seed(7);
    let mut counts = vec![0; list.servers.len()];
    let mut candidates = Vec::new();
    for _ in 0..3_000 {
        if let Some(pick) = list.pick(SHORT, tried, &mut candidates, || random.f64()) {
            counts[pick.index] += 1;
        }
    }
    counts
}

fn slices_set(host: &str) -> Arc<ServerSet> {
    ServerSet::new(&[server(host)], true, false, tls(), &Registry::new())
}

fn sockets(list: &[&str]) -> Vec<SocketAddr> {
    list.iter().map(|socket| socket.parse().unwrap()).collect()
}

fn labels(set: &ServerSet) -> Vec<String> {
    let list = set.list();
    let labels = list.servers.iter().map(|server| server.label().to_owned());
    labels.collect()
}

/// The server at this address passes its probe.
fn pass(set: &ServerSet, label: &str) {
    probe(set, label, ProbeOutcome::Ready);
}

fn probe(set: &ServerSet, label: &str, outcome: ProbeOutcome) {
    let servers = set.list().servers.clone();
    let server = servers.iter().find(|server| server.label() == label);
    set.record_probe(server.unwrap(), outcome);
}

fn turn(set: &ServerSet) -> Duration {
    set.recovery_delay(&SlotHolder::User("alice".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_single_server_gets_every_request_without_a_probe() {
    let single = set(&["192.0.2.1"]);
    assert_eq!(picks(&single, &[]), [3_000]);
    let readiness = single.list().readiness(Clock.now());
    assert_eq!(readiness, UpstreamReadiness::Unknown);
    let name = set(&["api.example"]);
    let address = server("api.example");
    name.record_resolved(&address, sockets(&["192.0.2.1:443"]));
    assert_eq!(picks(&name, &[]), [3_000]);
    name.record_resolved(&address, sockets(&["192.0.2.2:443"]));
    assert_eq!(labels(&name), ["api.example"]);
    assert_eq!(picks(&name, &[]), [3_000]);
}

#[tokio::test(start_paused = true)]
async fn a_single_server_is_never_ejected() {
    let single = set(&["192.0.2.1"]);
    let only = Arc::clone(&single.list().servers[0]);
    for failure in [ServerFailure::Connect, ServerFailure::BrokenConnection] {
        for _ in 0..100 {
            single.record_failure(&only, failure);
        }
    }
    assert_eq!(only.ejections(), 0);
    assert_eq!(only.availability(), Availability::Always);
    assert_eq!(picks(&single, &[]), [3_000]);
    assert!(single.list().states(Clock.now())[0].healthy);
}

#[tokio::test(start_paused = true)]
async fn configured_servers_without_a_passed_probe_are_the_last_resort() {
    let set = set(&["192.0.2.1", "192.0.2.2"]);
    let even = |counts: &[usize]| counts.iter().all(|n| *n > 900);
    assert!(even(&picks(&set, &[])));
    for _ in 0..2 {
        let late = ProbeOutcome::NoResponse("late".to_owned());
        probe(&set, "192.0.2.1", late);
    }
    assert!(even(&picks(&set, &[])), "the connection was there");
    pass(&set, "192.0.2.2");
    assert_eq!(picks(&set, &[]), [0, 3_000]);
}

#[tokio::test(start_paused = true)]
async fn servers_from_endpoint_slices_get_nothing_before_a_passed_probe() {
    let set = slices_set("192.0.2.1:443");
    set.record_discovered(sockets(&["192.0.2.2:443"]));
    assert_eq!(picks(&set, &[]), [0, 3_000]);
    let only = Arc::clone(&set.list().servers[1]);
    assert_eq!(picks(&set, &[only]), [0, 0], "not even as another one");
    pass(&set, "192.0.2.2:443");
    assert_eq!(picks(&set, &[]), [3_000, 0]);
}

#[tokio::test(start_paused = true)]
async fn health_stays_with_an_address_wherever_it_comes_from() {
    let set = slices_set("192.0.2.1:443");
    pass(&set, "192.0.2.1:443");
    set.record_discovered(sockets(&["192.0.2.1:443", "192.0.2.2:443"]));
    assert_eq!(labels(&set), ["192.0.2.1:443", "192.0.2.2:443"]);
    assert_eq!(picks(&set, &[]), [3_000, 0]);
    pass(&set, "192.0.2.2:443");
    let second = Arc::clone(&set.list().servers[1]);
    let both = [server("192.0.2.1:443"), server("192.0.2.2:443")];
    set.reconfigure(&both, false, &tls());
    assert!(second.is_removed(), "its requests have another name");
    assert!(
        set.list()
            .servers
            .iter()
            .all(|server| server.is_ready(Clock.now()))
    );
}

#[tokio::test(start_paused = true)]
async fn old_endpoint_slices_are_used_until_a_new_server_passes_its_probe() {
    let set = slices_set("192.0.2.1:443");
    pass(&set, "192.0.2.1:443");
    set.record_discovered(sockets(&["192.0.2.2:443"]));
    pass(&set, "192.0.2.2:443");
    set.record_discovered(sockets(&["192.0.2.3:443", "192.0.2.4:443"]));
    let all = ["192.0.2.3:443", "192.0.2.4:443", "192.0.2.2:443"];
    assert_eq!(labels(&set), [&all[..], &["192.0.2.1:443"]].concat());
    assert_eq!(picks(&set, &[]), [0, 0, 3_000, 0]);
    let weir = ProbeOutcome::Weir(WeirServer::Peer);
    probe(&set, "192.0.2.4:443", weir);
    assert_eq!(picks(&set, &[]), [0, 0, 3_000, 0], "a weir is none");
    pass(&set, "192.0.2.3:443");
    assert_eq!(labels(&set), [&all[..2], &["192.0.2.1:443"]].concat());
    assert_eq!(picks(&set, &[]), [3_000, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn addresses_that_vanish_from_a_name_are_the_last_ones_while_they_respond() {
    let name = server("api.example:443");
    let set = set(&["api.example:443"]);
    set.record_resolved(&name, sockets(&["192.0.2.1:443", "192.0.2.2:443"]));
    pass(&set, "192.0.2.1:443");
    // The second one was not verified.
    set.record_resolved(&name, sockets(&["192.0.2.3:443", "192.0.2.4:443"]));
    let labels_now = ["192.0.2.3:443", "192.0.2.4:443", "192.0.2.1:443"];
    assert_eq!(labels(&set), labels_now);
    assert_eq!(picks(&set, &[]), [0, 0, 3_000]);
    set.record_resolved(&name, Vec::new());
    assert_eq!(labels(&set), labels_now, "no answer changes nothing");
    pass(&set, "192.0.2.3:443");
    assert_eq!(picks(&set, &[]), [3_000, 0, 0]);
    let gone = || ProbeOutcome::Unreachable(ForwardError::Closed);
    probe(&set, "192.0.2.3:443", gone());
    assert_eq!(picks(&set, &[]), [0, 0, 3_000], "it still responds");
    pass(&set, "192.0.2.3:443");
    probe(&set, "192.0.2.1:443", gone());
    assert_eq!(labels(&set), labels_now[..2]);
}

#[tokio::test(start_paused = true)]
async fn a_weir_among_the_servers_is_not_counted_as_one() {
    let set = ready_set().await;
    let servers = set.list().servers.clone();
    set.record_probe(&servers[0], ProbeOutcome::Weir(WeirServer::Peer));
    set.record_probe(&servers[1], ProbeOutcome::Weir(WeirServer::Peer));
    for _ in 0..10 {
        set.record_failure(&servers[2], ServerFailure::Connect);
    }
    assert_eq!(servers[2].ejections(), 0, "the only one is not ejected");
    tokio::time::advance(Duration::from_secs(5)).await;
    set.record_success(&servers[2]);
    assert!(set.is_recovering(), "all servers were down");
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_to_the_less_loaded_server_and_long_running_ones_count_apart() {
    let set = ready_set().await;
    let busy = Arc::clone(&set.list().servers[0]);
    let watches: Vec<_> = (0..100).map(|_| busy.count_request(true)).collect();
    let equal = picks(&set, &[]);
    assert!(equal.iter().all(|n| (900..1_100).contains(n)), "{equal:?}");
    let request = busy.count_request(false);
    assert_eq!(picks(&set, &[])[0], 0);
    drop(request);
    assert!(picks(&set, &[])[0] > 900);
    drop(watches);
    assert_eq!((busy.in_flight(true), busy.requests()), (0, 101));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_ready_gets_nothing_unless_all_are() {
    let set = ready_set().await;
    let not_ready = || ProbeOutcome::NotReady("500".to_owned());
    let servers = set.list().servers.clone();
    set.record_probe(&servers[1], not_ready());
    assert_eq!(picks(&set, &[])[1], 0);
    let readiness = || set.list().readiness(Clock.now());
    assert_eq!(readiness(), UpstreamReadiness::Ready);
    set.record_probe(&servers[0], not_ready());
    assert_eq!(picks(&set, &[]), [0, 0, 3_000]);
    set.record_probe(&servers[2], not_ready());
    assert!(picks(&set, &[]).iter().all(|n| *n > 900), "all of them");
    let why = "none of 3 API servers is ready".to_owned();
    assert_eq!(readiness(), UpstreamReadiness::NotReady(why));
    set.record_probe(&servers[2], ProbeOutcome::Ready);
    assert_eq!(picks(&set, &[]), [0, 0, 3_000], "at once");
}

#[tokio::test(start_paused = true)]
async fn a_second_try_goes_elsewhere_and_a_third_is_the_last() {
    let set = ready_set().await;
    let servers = set.list().servers.clone();
    assert_eq!(picks(&set, &servers[..1])[0], 0);
    let mut candidates = Vec::new();
    let mut alternative = |tried: &[Arc<ApiServer>]| {
        let pick = set.list().pick(SHORT, tried, &mut candidates, || 0.0);
        pick.map(|pick| pick.has_alternative)
    };
    assert_eq!(alternative(&[]), Some(true));
    assert_eq!(alternative(&servers[..1]), Some(true));
    assert_eq!(alternative(&servers[..2]), Some(false));
    assert_eq!(alternative(&servers), None);
}

#[tokio::test(start_paused = true)]
async fn at_most_half_are_ejected() {
    let set = ready_set().await;
    for server in &set.list().servers {
        for _ in 0..10 {
            set.record_failure(server, ServerFailure::BrokenConnection);
        }
    }
    let counts = picks(&set, &[]);
    assert_eq!(counts.iter().filter(|n| **n == 0).count(), 1, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_weir_is_never_used_even_where_all_others_are_down() {
    let set = ready_set().await;
    let servers = set.list().servers.clone();
    set.record_probe(&servers[0], ProbeOutcome::Weir(WeirServer::Peer));
    for server in &servers[1..] {
        set.record_probe(server, ProbeOutcome::Unreachable(ForwardError::Closed));
    }
    assert_eq!(picks(&set, &[])[0], 0);
    let states = set.list().states(Clock.now());
    assert!(states[0].refused && !states[0].healthy && !states[1].refused);
}

#[tokio::test(start_paused = true)]
async fn the_own_listener_is_refused_among_several_servers_only() {
    let several = set(&["127.0.0.1:6443", "127.0.0.1:6444"]);
    several.set_listener("0.0.0.0:6443".parse().unwrap());
    for server in &several.list().servers {
        set_ready(&several, server);
    }
    let states = several.list().states(Clock.now());
    assert_eq!(
        states.iter().map(|s| s.refused).collect::<Vec<_>>(),
        [true, false]
    );
    let single = set(&["127.0.0.1:6443"]);
    single.set_listener("127.0.0.1:6443".parse().unwrap());
    assert_eq!(picks(&single, &[]), [3_000]);
}

fn set_ready(set: &ServerSet, server: &ApiServer) {
    if server.availability() != Availability::Refused {
        set.record_probe(server, ProbeOutcome::Ready);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_configuration_keeps_the_servers_that_stay() {
    let set = ready_set().await;
    let before = set.list().servers.clone();
    let changed = [server("192.0.2.2"), server("192.0.2.9")];
    set.reconfigure(&changed, false, &tls());
    let list = set.list();
    assert!(Arc::ptr_eq(&list.servers[0], &before[1]));
    assert!(before[0].is_removed() && before[2].is_removed() && !before[1].is_removed());
    assert_eq!(list.servers[1].availability(), Availability::Unverified);
    assert_eq!(picks(&set, &[]), [3_000, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_all_servers_is_followed_by_a_pace() {
    let set = ready_set().await;
    let servers = set.list().servers.clone();
    assert_eq!(turn(&set), Duration::ZERO);
    for server in &servers[..2] {
        set.record_failure(server, ServerFailure::Connect);
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    set.record_success(&servers[0]);
    assert_eq!(turn(&set), Duration::ZERO, "one was there all along");
    for server in &servers {
        set.record_failure(server, ServerFailure::Connect);
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    set.record_success(&servers[0]);
    let waits: Vec<_> = (0..100).map(|_| turn(&set)).collect();
    assert!(waits[99] > Duration::from_millis(500), "{waits:?}");
    tokio::time::advance(Duration::from_secs(15)).await;
    assert_eq!(turn(&set), Duration::ZERO);
}

/// Servers that have to pass their `/readyz` first.
fn gated_set(hosts: &[&str]) -> Arc<ServerSet> {
    let servers: Vec<_> = hosts.iter().map(|host| server(host)).collect();
    ServerSet::new(&servers, false, true, tls(), &Registry::new())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_to_pass_its_readyz_gets_health_checks_only_for_a_minute() {
    for hosts in [&["192.0.2.1"][..], &["192.0.2.1", "192.0.2.2"]] {
        let set = gated_set(hosts);
        let total = || picks(&set, &[]).iter().sum::<usize>();
        let health_check = RequestTraits {
            is_health_check: true,
            ..SHORT
        };
        assert_eq!(total(), 0, "no probe yet");
        assert!(!set.is_ready());
        for host in labels(&set) {
            probe(&set, &host, ProbeOutcome::NotReady("500".to_owned()));
        }
        assert_eq!(total(), 0);
        let picked = set.list().pick(health_check, &[], &mut Vec::new(), || 0.0);
        assert!(picked.is_some());
        tokio::time::advance(Duration::from_millis(59_999)).await;
        assert_eq!(total(), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(total(), 3_000, "it may serve all the same");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_probe_of_a_server_that_has_to_pass() {
    let set = gated_set(&["192.0.2.1"]);
    let mut events = set.ready_events();
    let only = Arc::clone(&set.list().servers[0]);
    let probes = async |outcome: ProbeOutcome| {
        only.wait_for_probe_request().await;
        set.record_probe(&only, outcome);
    };
    let wait = async || {
        let deadline = Clock.now() + Duration::from_secs(2);
        set.wait_for_gates(deadline).await
    };
    let not_ready = ProbeOutcome::NotReady("500".to_owned());
    let (waited, ()) = tokio::join!(wait(), probes(not_ready));
    assert!(matches!(waited, Err(ForwardError::NotReady(_))));
    assert!(!events.has_changed().unwrap());
    let (waited, ()) = tokio::join!(wait(), probes(ProbeOutcome::Ready));
    assert!(waited.is_ok());
    assert!(events.has_changed().unwrap());
    events.mark_unchanged();
    set.record_failure(&only, ServerFailure::Connect);
    assert!(!only.is_gated(Clock.now()), "it has just answered");
    tokio::time::advance(Duration::from_secs(2)).await;
    set.record_failure(&only, ServerFailure::Connect);
    let before = Clock.now();
    assert!(wait().await.is_err(), "no probe ends");
    assert_eq!(Clock.now() - before, Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_server_hangs_if_it_is_silent_for_two_seconds_and_another_has_just_answered() {
    // When the server answered last, when the other one did, and when the request was sent: all in
    // milliseconds before now.
    for (server, other, sent, hangs) in [
        (2_001, 500, 2_000, true),
        (9_000, 1_000, 9_000, true),
        (2_001, 1_001, 2_000, false), // the other one may hang, too
        (2_001, 500, 1_999, false),
        (1_999, 500, 5_000, false),
        (500, 500, 5_000, false),
        (9_000, 9_000, 9_000, false),
    ] {
        let set = set(&["192.0.2.1", "192.0.2.2"]);
        for server in &set.list().servers {
            set.record_probe(server, ProbeOutcome::Ready);
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        let now = Clock.now();
        let ago = |millis| now - Duration::from_millis(millis);
        let [first, second] = [0, 1].map(|n| Arc::clone(&set.list().servers[n]));
        first.answers().record_answer(ago(server));
        second.answers().record_answer(ago(other));
        let is_hung = set.list().is_hung(&first, ago(sent), now);
        assert_eq!(is_hung, hangs, "{server} {other} {sent}");
        if is_hung {
            let excluded = set.list().unanswering(&first, now);
            assert!(excluded.len() == 1 && Arc::ptr_eq(&excluded[0], &first));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_gets_nothing_while_another_answers() {
    let set = ready_set().await;
    let servers = set.list().servers.clone();
    let is_even = |counts: &[usize]| counts.iter().all(|n| *n > 900);
    for server in &servers {
        server.answers().record_request(Clock.now());
    }
    tokio::time::advance(SUSPICIOUS_SILENCE).await;
    assert!(is_even(&picks(&set, &[])), "all are silent");
    servers[1].answers().record_answer(Clock.now());
    assert_eq!(picks(&set, &[]), [0, 3_000, 0]);
    servers[0].answers().record_answer(Clock.now());
    let counts = picks(&set, &[]);
    assert!(counts[2] == 0 && counts[0] > 1_400, "{counts:?}");
    servers[2].answers().record_answer(Clock.now());
    assert!(is_even(&picks(&set, &[])));
    tokio::time::advance(Duration::from_secs(1)).await;
    servers[0].answers().record_request(Clock.now());
    tokio::time::advance(SUSPICIOUS_SILENCE - Duration::from_millis(1)).await;
    servers[1].answers().record_answer(Clock.now());
    assert!(is_even(&picks(&set, &[])), "not for long enough");
}
