//! Compares the generated parts of the documentation with the program. `WEIR_WRITE_DOCS=1` writes
//! them. Checks that links lead to existing files and headings.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use clap::{Command, CommandFactory};
use weir::cli::commands::Cli;
use weir::flowcontrol::controller;
use weir::flowcontrol::controller::Enforcement;
use weir::flowcontrol::sources::{FlowcontrolSources, LiveObjects};
use weir::identity::review_queue::fair_queue::MAX_QUEUED as WAITING_REVIEWS;
use weir::identity::review_queue::fair_queue::MAX_QUEUED_PER_SOURCE;
use weir::limits::abandoned_backlog::{
    AbandonedBacklog, MAX_EXECUTING, MAX_WAITING, MAX_WAITING_PER_REQUESTER,
};
use weir::limits::levers::Levers;
use weir::limits::list_bytes;
use weir::limits::list_bytes::ListBytes;
use weir::limits::memory_limit::MemoryLimit;
use weir::limits::total_finder::TotalMetrics;
use weir::limits::upgrade_rate::{
    DEFAULT_UPGRADES_PER_SECOND, UPGRADE_BURST_SECONDS, UpgradeRateLimit,
};
use weir::limits::watch_starts;
use weir::limits::watch_starts::{MAX_STARTING, WatchStarts};
use weir::observe::alarm_board::AlarmMetric;
use weir::observe::info_metrics::InfoMetrics;
use weir::observe::logging::non_blocking::DroppedLineCounter;
use weir::observe::readiness::config_status::ConfigStatus;
use weir::observe::readiness::front_proxy::FrontProxyHealth;
use weir::observe::spans;
use weir::pipeline::connection::head_budget::{HEAD_BUDGET, HeadBudget};
use weir::pipeline::connection::peer::BODY_DRAINS_PER_CONNECTION;
use weir::pipeline::connection::request_count::RESET_BURST_SECONDS;
use weir::pipeline::reject::body_drain::{BodyDrainBudget, MAX_BODY_DRAINS};
use weir::pipeline::reject::delay::MAX_HELD_REJECTIONS as HELD_IN_ALL;
use weir::pipeline::reject::delay::{RejectionDelay, RejectionDelayConfig};
use weir::pipeline::response::abandoned::AbandonedRequests;
use weir::pipeline::response::deadlines::SlowTransfers;
use weir::pipeline::steps::request_body::{REQUEST_BODY_BUDGET, request_body_budget};
use weir::pipeline::trace::RequestMetrics;
use weir::replicas::config::MAX_CONNECTIONS as MAX_PEER_CONNECTIONS;
use weir::replicas::config::MAX_HANDSHAKES as MAX_PEER_HANDSHAKES;
use weir::replicas::config::MAX_HANDSHAKES_PER_ADDRESS as MAX_PEER_HANDSHAKES_PER_ADDRESS;
use weir::server::connection::HANDSHAKE_TIMEOUT;
use weir::server::connection::connection_shares::ConnectionShares;
use weir::upstream::connection::address::ServerAddress;
use weir::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use weir::upstream::loop_detection::LoopDetector;
use weir::upstream::loop_detection::cdn_loop::InstanceId;
use weir_base::metrics::Registry;
use weir_base::process_metrics;
use weir_base::process_metrics::HandoverMetrics;
use weir_limits::MaxInFlight;
use weir_limits::max_in_flight;
use weir_limits::rate::clients::enforcer::ClientLimits;
use weir_limits::rate::events::buckets::LimitedEventGroups;
use weir_limits::rate::events::enforcer;
use weir_limits::rate::events::enforcer::EventRateLimit;
use weir_limits::rate::policies::enforcer::RequestPolicies;
use weir_limits::rejection_hold::OWNER_SHARE_DIVISOR;
use weir_limits::shared_limits::status::SharedLimitsStatus;
use weir_limits::throttling::memory_budget::SOURCE_FRACTION;
use weir_limits::throttling::read_pacing::{INEFFECTIVE_FRAMES_PER_RESET, READ_INTERVAL};
use weir_limits::throttling::reconnect_backoff::{BACKOFF, CONNECT_INTERVAL};
use weir_lint::rule::Rule;
use weir_playground::Fault;
use weir_status::alarms::KINDS;

/// RBAC compares resources as a whole, or by `*` (`ResourceMatches`): `userextras/*` would grant
/// nothing.
#[test]
fn the_role_for_impersonation_covers_every_extra() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/authentication.md")).unwrap();
    let from = text.find("name: weir-impersonator}").expect("the role");
    let role = &text[from..from + text[from..].find("```").unwrap()];
    let rule = |group: &str| {
        let line = role.lines().find(|line| line.contains(group));
        line.expect("a rule").to_owned()
    };
    let core = rule("apiGroups: [\"\"]");
    for resource in ["users", "groups", "serviceaccounts"] {
        assert!(core.contains(resource), "{core}");
    }
    let extras = rule("apiGroups: [authentication.k8s.io]");
    assert!(extras.contains("resources: [\"*\"]"), "{extras}");
    for place in ["README.md", "docs", "deploy", "examples"] {
        for file in collect_files(&root.join(place)) {
            let text = fs::read_to_string(&file).unwrap_or_default();
            assert!(!text.contains("\"userextras/*\""), "{}", file.display());
        }
    }
}

fn collect_files(place: &Path) -> Vec<std::path::PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let entries = fs::read_dir(place).unwrap();
    entries
        .flat_map(|entry| collect_files(&entry.unwrap().path()))
        .collect()
}

fn compare_section(page: &str, name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap();
    let begin = format!("<!-- {name}: made by tests/docs.rs -->\n");
    let end = format!("<!-- end of {name} -->");
    let from = text.find(&begin).expect("the mark where it begins") + begin.len();
    let to = text.find(&end).expect("the mark where it ends");
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(
            &path,
            format!("{}{generated}{}", &text[..from], &text[to..]),
        )
        .unwrap();
        return;
    }
    assert_eq!(
        &text[from..to],
        generated,
        "{page}: the {name} are not those of the program; run this with WEIR_WRITE_DOCS=1"
    );
}

fn flags_table(command: &Command, except: Option<&Command>) -> String {
    let mut generated = String::new();
    let mut heading = String::new();
    for argument in command.get_arguments() {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else {
            continue;
        };
        if except.is_some_and(|other| other.get_arguments().any(|a| a.get_long() == Some(long))) {
            continue;
        }
        let own = argument.get_help_heading().unwrap_or("General");
        if own != heading {
            own.clone_into(&mut heading);
            write!(generated, "\n| {heading} | default | |\n|---|---|---|\n").unwrap();
        }
        let names = argument
            .get_value_names()
            .filter(|_| argument.get_action().takes_values());
        let value = names.map_or_else(String::new, |names| {
            if argument.is_require_equals_set() {
                format!("[={}]", names[0])
            } else {
                format!(" {}", names[0])
            }
        });
        let defaults: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|v| v.to_string_lossy())
            .collect();
        let default = if defaults.is_empty() || value.is_empty() {
            String::new()
        } else {
            format!("`{}`", defaults.join(","))
        };
        let help = argument
            .get_long_help()
            .or_else(|| argument.get_help())
            .unwrap()
            .to_string()
            .replace('\n', " ")
            .replace('<', "&lt;"); // Markdown would take it for a tag and drop it
        writeln!(
            generated,
            "| `--{long}{value}` | {default} | {} |",
            help.trim_end_matches('.')
        )
        .unwrap();
    }
    generated
}

#[test]
fn every_rule_of_weir_check_is_documented() {
    let mut made = String::new();
    for (title, warnings) in [("Errors", false), ("Warnings", true)] {
        writeln!(made, "| {title} | reports | |\n|---|---|---|").unwrap();
        let rules = Rule::ALL
            .iter()
            .filter(|rule| rule.is_warning() == warnings);
        for rule in rules {
            writeln!(made, "| `{rule}` | {} | {} |", rule.summary(), rule.help()).unwrap();
        }
        made.push('\n');
    }
    compare_section("docs/reference/rules.md", "rules", &made);
}

#[test]
fn the_flags_page_matches_the_program() {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let playground = command.find_subcommand("playground").unwrap();
    let check = command.find_subcommand("check").unwrap();
    let top = command.find_subcommand("top").unwrap();
    let ctl = command.find_subcommand("ctl").unwrap();
    let block = ctl.find_subcommand("block").unwrap();
    let limit = ctl.find_subcommand("limit").unwrap();
    let disconnect = ctl.find_subcommand("disconnect").unwrap();
    let total = ctl.find_subcommand("total").unwrap();
    let listed = ctl.find_subcommand("talkers").unwrap();
    let version = command.find_subcommand("version").unwrap();
    let explain = command.find_subcommand("explain").unwrap();
    let replay = command.find_subcommand("replay").unwrap();
    let made = format!(
        "{}\n`weir playground` takes all of these but those of the upstream, and:\n{}\n`weir check` takes all of these, and:\n{}\n`weir explain METHOD URL` takes all of these, and:\n{}\n`weir replay FILE…` takes all of these, and:\n{}\n`weir top`:\n{}\n`weir ctl` (each of its commands takes it):\n{}\n`weir ctl block`:\n{}\n`weir ctl limit` takes all of these but --now, and:\n{}\n`weir ctl disconnect` takes all of these but --now and --for, and:\n{}\n`weir ctl total N|auto` (`bypass on|off` and `dry-run on|off` take --for, --reason and --as of these):\n{}\n`weir ctl talkers`:\n{}\n`weir version`:\n{}\n",
        flags_table(serve, None),
        flags_table(playground, Some(serve)),
        flags_table(check, Some(serve)),
        flags_table(explain, Some(serve)),
        flags_table(replay, Some(serve)),
        flags_table(top, None),
        flags_table(ctl, None),
        flags_table(block, None),
        flags_table(limit, Some(block)),
        flags_table(disconnect, Some(block)),
        flags_table(total, None),
        flags_table(listed, None),
        flags_table(version, None)
    );
    compare_section("docs/reference/flags.md", "flags", &made);
}

/// The bounds before fairness: their subject, the limit for one, the total limit, the effect on
/// excess requests, and the metric that shows it.
fn limit_rows() -> Vec<[String; 6]> {
    const MIB: usize = 1 << 20;
    let handshakes = weir::server::handshake_queue::handshake_limits(HANDSHAKE_TIMEOUT);
    let mib = |bytes: usize| format!("{} MiB", bytes / MIB);
    let shown = |metrics: &[&str]| {
        let names: Vec<_> = metrics.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    let row = |what: &str, one: String, all: String, more: &str, held: &[&str], gone: &[&str]| {
        [what.into(), one, all, more.into(), shown(held), shown(gone)]
    };
    let part = |all: usize| all / SOURCE_FRACTION;
    vec![
        row(
            "connections before the end of their TLS handshake",
            "the address with most of them makes room".into(),
            "`--max-connections`".into(),
            "closed",
            &["weir_client_connections_pending"],
            &[
                "weir_client_connections_refused_total",
                "weir_client_handshakes_turned_away_total",
            ],
        ),
        row(
            "TLS handshakes",
            format!("{} by address", handshakes.max_active_per_address),
            format!(
                "{}, and {} that wait",
                handshakes.max_active, handshakes.max_queued
            ),
            &format!(
                "wait for {} s at most, then closed",
                handshakes.max_wait.as_secs()
            ),
            &["weir_client_handshakes", "weir_client_handshakes_waiting"],
            &["weir_client_handshakes_turned_away_total"],
        ),
        row(
            "open connections",
            "`--max-connections-per-address` by address, or three times as many as are free".into(),
            "`--max-connections`".into(),
            "closed",
            &[
                "weir_client_connections",
                "weir_client_connections_largest_address",
            ],
            &[
                "weir_client_connections_refused_total",
                "weir_client_connections_share_refused_total",
            ],
        ),
        row(
            "TLS handshakes of other replicas (`--peer-bind-address`)",
            format!("{MAX_PEER_HANDSHAKES_PER_ADDRESS} by address"),
            format!("{MAX_PEER_HANDSHAKES}"),
            "closed",
            &[],
            &[],
        ),
        row(
            "open connections of other replicas",
            String::new(),
            format!("{MAX_PEER_CONNECTIONS}"),
            "closed",
            &[],
            &[],
        ),
        row(
            "memory of the process",
            "an equal share of the unread responses by user (unauthenticated: by address), at the limit".into(),
            "`--memory-limit`".into(),
            "429 (`weir/memory-limit`), and connections without a request close. An eighth above it, all requests get 429, and new connections are closed",
            &[
                "process_resident_memory_bytes",
                "weir_memory_pressure",
                "weir_memory_unread_response_bytes",
            ],
            &[
                "weir_memory_limit_rejected_total",
                "weir_memory_limit_refused_connections_total",
            ],
        ),
        row(
            "memory of request heads that are incomplete, or whose user is being looked up",
            format!(
                "{} by address, or as much as is free",
                mib(part(HEAD_BUDGET))
            ),
            mib(HEAD_BUDGET),
            "503; on HTTP/2 an incomplete one ends its connection",
            &["weir_request_head_bytes"],
            &["weir_request_heads_refused_total"],
        ),
        row(
            "TokenReviews that wait (`--token-reviews-per-second`), for tokens of 64 KiB at most",
            format!("{} by address", MAX_QUEUED_PER_SOURCE),
            format!("{WAITING_REVIEWS}"),
            "counts as `system:anonymous`",
            &["weir_token_reviews_waiting"],
            &["weir_token_reviews_passed_over_total"],
        ),
        row(
            "SubjectAccessReviews that wait (`--access-reviews-per-second`), for names of 4 KiB at most",
            format!("{} by address", MAX_QUEUED_PER_SOURCE),
            format!("{WAITING_REVIEWS}"),
            "counts for who sends it; 503 with `--assert-by=impersonation`",
            &["weir_access_reviews_waiting"],
            &["weir_access_reviews_passed_over_total"],
        ),
        row(
            "memory of request bodies that are read before their requests go on",
            format!(
                "{} by address, or as much as is free",
                mib(part(REQUEST_BODY_BUDGET))
            ),
            mib(REQUEST_BODY_BUDGET),
            "429 (`weir/event-bodies`) for an event that a limit looks into; others stream",
            &["weir_request_body_bytes"],
            &["apiserver_request_terminations_total"],
        ),
        row(
            "bodies of rejected requests that are read to their end",
            format!(
                "{} by address, or as many as are free, {BODY_DRAINS_PER_CONNECTION} on an HTTP/2 connection",
                part(MAX_BODY_DRAINS)
            ),
            format!("{MAX_BODY_DRAINS}"),
            "the connection (on HTTP/2 the stream) ends after the answer",
            &["weir_skipped_bodies"],
            &["weir_skipped_bodies_refused_total"],
        ),
        row(
            "rejections that are held (`--rejection-hold`)",
            format!(
                "{} by user (unauthenticated: by address)",
                HELD_IN_ALL / OWNER_SHARE_DIVISOR
            ),
            format!("{HELD_IN_ALL}"),
            "sent at once; in all, the one held longest",
            &["weir_rejection_holds"],
            &[
                "weir_rejection_holds_refused_total",
                "weir_rejection_holds_total",
            ],
        ),
        row(
            "requests that are cancelled on an HTTP/2 connection",
            format!(
                "`--http2-max-resets-per-second` by connection, {RESET_BURST_SECONDS} times as many at once"
            ),
            String::new(),
            "GOAWAY",
            &[],
            &["weir_client_connections_closed_total"],
        ),
        row(
            "frames without effect on an HTTP/2 connection: resets, PINGs, settings, empty DATA",
            format!(
                "{INEFFECTIVE_FRAMES_PER_RESET} × `--http2-max-resets-per-second` by connection, as many at once"
            ),
            String::new(),
            &format!(
                "the connection is read every {} ms",
                READ_INTERVAL.as_millis()
            ),
            &[],
            &[],
        ),
        row(
            "new connections after one was closed for too many resets, too many headers in a frame, or the memory of incomplete heads",
            format!(
                "one in {} ms by address, until {} s after the last such end; any number with `--max-connections-per-address=0`",
                CONNECT_INTERVAL.as_millis(),
                BACKOFF.as_secs()
            ),
            String::new(),
            &format!(
                "wait for {} s at most, then closed",
                handshakes.max_wait.as_secs()
            ),
            &["weir_client_handshakes_delayed_total"],
            &["weir_client_handshakes_turned_away_total"],
        ),
        row(
            "exempt requests that wait while the API server executes abandoned ones",
            format!(
                "{MAX_WAITING_PER_REQUESTER} by user (unauthenticated: by address), behind {MAX_EXECUTING} abandoned ones of its own"
            ),
            format!("{MAX_WAITING}"),
            "429 (`weir/abandoned-requests`)",
            &["weir_abandoned_backlog_waiting"],
            &["weir_abandoned_backlog_rejected_total"],
        ),
        row(
            "watches that wait to be queued, because as many of their user start already",
            format!(
                "behind {MAX_STARTING} that are queued or hold seats, by user (unauthenticated: by address)"
            ),
            format!("{}", watch_starts::MAX_WAITING),
            "are queued",
            &["weir_watch_starts_waiting"],
            &[],
        ),
        row(
            "lists that wait for bytes of the API server (`--max-list-bytes-inflight`)",
            String::new(),
            format!("{}", list_bytes::MAX_WAITING_LISTS),
            "429 (`weir/list-bytes`)",
            &["weir_list_bytes_waiting"],
            &[],
        ),
        row(
            "requests for another protocol (`Upgrade`) without a proven credential",
            format!(
                "`--unproven-upgrades-per-second` by address, {UPGRADE_BURST_SECONDS} times as many at once"
            ),
            String::new(),
            "429 (`weir/unproven-upgrades`)",
            &[],
            &["weir_unproven_upgrades_rejected_total"],
        ),
    ]
}

#[test]
fn the_limits_table_matches_the_program() {
    let mut generated = String::from(
        "\n| what | for one | in all | more than that | held | turned away |\n|---|---|---|---|---|---|\n",
    );
    for row in limit_rows() {
        writeln!(generated, "| {} |", row.join(" | ")).unwrap();
    }
    generated.push('\n');
    compare_section("docs/reference/bounds.md", "bounds", &generated);
}

#[test]
fn the_instruction_counts_are_those_of_the_release() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.json");
    let release: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut generated = String::from("\n| benchmark | instructions |\n|---|---|\n");
    for (name, count) in release["counts"].as_object().unwrap() {
        let count = count.as_u64().unwrap();
        writeln!(generated, "| `{name}` | {} |", count / 1000).unwrap();
    }
    writeln!(
        generated,
        "\n{}, {}\n",
        release["of"].as_str().unwrap(),
        release["rustc"].as_str().unwrap()
    )
    .unwrap();
    compare_section("docs/performance.md", "instruction counts", &generated);
}

#[test]
fn the_metrics_in_the_limits_table_are_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md");
    let text = fs::read_to_string(path).unwrap();
    for row in limit_rows() {
        for metric in row[4..].iter().flat_map(|metrics| metrics.split(", ")) {
            let listed = format!("\n| {metric} | ");
            assert!(metric.is_empty() || text.contains(&listed), "{metric}");
        }
    }
}

fn upstream_config() -> weir::upstream::UpstreamConfig {
    let authority = "192.0.2.1:6443".parse().unwrap();
    let name = "192.0.2.1".try_into().unwrap();
    weir::upstream::UpstreamConfig {
        servers: vec![ServerAddress::new(authority, name)],
        endpoint_slices: false,
        roots: weir_x509::CertificatePool::default(),
        front_proxy: None,
        max_http2_connections: 1,
        protocol: weir::upstream::UpstreamProtocol::Auto,
        max_connections: 1,
        instance_id: InstanceId::from_bytes([1; 16]),
        probe_interval: None,
    }
}

#[test]
fn the_alarms_of_the_page_are_those_of_the_program() {
    let mut generated = "| alarm | severity | when | what to do |\n|---|---|---|---|\n".to_owned();
    for kind in &KINDS {
        let severities = kind.severities.iter().map(|severity| severity.name());
        let severities = severities.collect::<Vec<_>>().join(", ");
        let (name, meaning, action) = (kind.name, kind.meaning, kind.action);
        writeln!(
            generated,
            "| `{name}` | {severities} | {meaning} | {action} |"
        )
        .unwrap();
    }
    compare_section("docs/reference/alarms.md", "alarms", &generated);
}

#[test]
fn the_metrics_page_matches_the_program() {
    let registry = Registry::new();
    AlarmMetric::register(None, &registry);
    let limits = max_in_flight::MaxInFlightConfig {
        read_only: 1.into(),
        mutating: 1.into(),
    };
    let _limiter = MaxInFlight::new(limits, &registry);
    let _events = EventRateLimit::new(
        &enforcer::EventRateLimitConfig {
            limits: Vec::new(),
            groups: LimitedEventGroups::All,
            retry_after: true,
            dry_run: false,
        },
        &registry,
    );
    let _clients = ClientLimits::new(&[], &registry);
    let switch = Arc::default();
    let _policies = RequestPolicies::replacing(None, &[], &switch, None, &registry);
    let _shared = SharedLimitsStatus::register(String::new(), 1, &registry);
    let _requests = RequestMetrics::register(&registry);
    let _holding = RejectionDelay::new(RejectionDelayConfig::default(), &registry);
    let fairness = controller::ControllerConfig {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let apart = Registry::new(); // separate: the two limiters share names and never run together
    let files = FlowcontrolSources::from_files(Vec::new());
    let _objects = LiveObjects::start(fairness, files, &apart);
    let _server = weir::server::metrics::ServerMetrics::register(&registry);
    let _heads = HeadBudget::new(&registry);
    let _skipped = BodyDrainBudget::new(&registry);
    let _event_bodies = request_body_budget(&registry);
    InfoMetrics::register(None, Vec::new(), &registry);
    let _front_proxy = FrontProxyHealth::register(&registry);
    process_metrics::register(&registry);
    let _handovers = HandoverMetrics::register(&registry);
    DroppedLineCounter::default().register(&registry);
    let _spans = spans::SpanMetrics::register(&registry);
    let _upstream = weir::upstream::UpstreamMetrics::register(&registry);
    let _servers = weir::upstream::server_set(&upstream_config(), &registry);
    let _loops = LoopDetector::register(InstanceId::from_bytes([1; 16]), &registry);
    let _places = ConnectionBudget::new(4, &SlotMetrics::register(&registry));
    let _slow = SlowTransfers::register(&registry);
    let _upgrades = UpgradeRateLimit::new(DEFAULT_UPGRADES_PER_SECOND, &registry);
    let _backlog = AbandonedBacklog::new(&registry);
    let _levers = Levers::new(&registry);
    let _dry_run = weir::limits::register_dry_run(&registry);
    let _dry_run_rejections = weir::observe::dry_run::register_rejections(&registry);
    let _watch_starts = WatchStarts::new(&registry);
    let _lists = ListBytes::new(|| (1, 1), &registry);
    let _total = TotalMetrics::register(&registry);
    let _config = ConfigStatus::register(&registry, SystemTime::UNIX_EPOCH);
    let _memory = MemoryLimit::new(0, &registry);
    let _shares = ConnectionShares::new(&registry);
    let _given_up = AbandonedRequests::register(&registry);
    let _tokens = weir::identity::tokens::TokenMetrics::register(&registry);
    let _access =
        weir::identity::impersonation::authorizer::AccessReviewMetrics::register(&registry);
    let _delegated = weir::identity::delegated::DelegatedMetrics::register(&registry);
    let _audit = weir::observe::audit::AuditMetrics::register(&registry);
    let _record = weir::observe::logging::recording::RecordingMetrics::register(&registry);
    let _replicas = weir::replicas::metrics::ReplicaMetrics::register(&registry);
    let mut generated = String::from("\n| metric | labels | |\n|---|---|---|\n");
    let mut all = [registry.descriptions(), apart.descriptions()].concat();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    for metric in all {
        let labels = metric.labels.join(", ");
        let help = metric
            .help
            .split_once("] ")
            .map_or(metric.help.as_str(), |(_, help)| help);
        writeln!(
            generated,
            "| `{}` | {labels} | {} |",
            metric.name,
            help.trim_end_matches('.').replace('<', "&lt;")
        )
        .unwrap();
    }
    generated.push('\n');
    compare_section("docs/reference/metrics.md", "metrics", &generated);
}

/// The anchor of a heading as Git forges make it: lower case, without punctuation, dashes for
/// spaces.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// The lines of a page outside its code blocks.
fn prose_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The words of a text that are code.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The text of all Rust sources in these folders.
fn read_sources(folders: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = folders
        .iter()
        .flat_map(|folder| collect_files(&root.join(folder)));
    let sources = files.filter(|file| file.extension().is_some_and(|end| end == "rs"));
    sources
        .map(|file| fs::read_to_string(file).unwrap())
        .collect()
}

/// Each row of docs/failures.md: what fails, what a client gets, what an operator sees, how it ends,
/// and its tests.
#[test]
fn every_failure_has_a_row_and_what_it_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let (page, rejections) = (read("docs/failures.md"), read("docs/rejections.md"));
    let (metrics, alerts) = (
        read("docs/reference/metrics.md"),
        read("deploy/prometheus-rules.yaml"),
    );
    let program = read_sources(&["src", "crates"]);
    let tests = program.clone() + &read_sources(&["tests/integration"]);
    let rows: Vec<Vec<&str>> = prose_lines(&page)
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").collect())
        .filter(|row: &Vec<&str>| !row[1].starts_with("a client"))
        .collect();
    let mut errors = Vec::new();
    for fault in Fault::ALL {
        let is_named = |row: &&Vec<&str>| code_words(row[0]).any(|word| word == fault.name());
        let count = rows.iter().filter(is_named).count();
        if count != 1 {
            errors.push(format!("{} has {count} rows", fault.name()));
        }
    }
    for row in &rows {
        let [_, client, operator, _, tested] = row[..] else {
            errors.push(format!("not five cells: {row:?}"));
            continue;
        };
        for cause in code_words(client).filter(|word| word.starts_with("weir/")) {
            if !rejections.contains(&format!("`{cause}`")) {
                errors.push(format!("{cause} is no cause of docs/rejections.md"));
            }
        }
        for word in code_words(operator) {
            let exists = KINDS.iter().any(|kind| kind.name == word)
                || metrics.contains(&format!("| `{word}` |"))
                || alerts.contains(&format!("alert: {word}\n"))
                || (!word.starts_with("weir_") && program.contains(word));
            if !exists {
                errors.push(format!(
                    "{word}: no alarm, metric, alert or line of the log"
                ));
            }
        }
        let mut names = code_words(tested).peekable();
        if names.peek().is_none() {
            errors.push(format!("no test: {row:?}"));
        }
        for name in names {
            let exists = if name.ends_with(".sh") {
                root.join("tests/tools").join(name).exists()
            } else {
                tests.contains(&format!("fn {name}("))
            };
            if !exists {
                errors.push(format!("{name} is no test"));
            }
        }
    }
    assert!(rows.len() > 20, "{} rows", rows.len());
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

/// The targets of a page's links, except web links.
fn link_targets(text: &str) -> Vec<&str> {
    prose_lines(text)
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.starts_with("http"))
        .collect()
}

#[test]
fn links_point_to_files_and_headings_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let pages: Vec<_> = top
        .filter(|path| path.is_file())
        .chain(collect_files(&root.join("docs")))
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    let mut errors = Vec::new();
    let mut count = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for target in link_targets(&text) {
            count += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let there = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let found = there.exists()
                && (heading.is_empty()
                    || prose_lines(&fs::read_to_string(&there).unwrap_or_default())
                        .filter(|line| line.starts_with('#'))
                        .any(|line| anchor(line.trim_start_matches('#').trim()) == heading));
            if !found {
                errors.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(count > 30, "{count} links in {} pages", pages.len());
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

/// Each alert leads to the section of the runbook that is for it.
#[test]
fn every_alert_has_a_section_of_the_runbook() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let runbook = read("docs/incident.md");
    let sections: Vec<_> = prose_lines(&runbook)
        .filter_map(|line| line.strip_prefix("## "))
        .map(anchor)
        .collect();
    let rules = read("deploy/prometheus-rules.yaml");
    let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 20, "{} alerts", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        let annotations = alert.split_once("annotations:\n").expect(name).1;
        let url = annotations.trim_start().strip_prefix("runbook_url: ");
        let url = url.and_then(|rest| rest.lines().next()).expect(name);
        let section = url.strip_prefix("docs/incident.md#").expect(name);
        assert!(
            sections.iter().any(|known| known == section),
            "{name}: no section {section}"
        );
    }
}
