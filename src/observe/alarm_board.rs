//! Reads the state of weir for the list of alarms, and keeps since when each has lasted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use crate::limits::total_finder::TotalFinder;
use crate::observe::readiness::Readiness;
use crate::replicas::state::ReplicaReport;
use crate::upstream::servers::server_set::ServerSnapshot;
use crate::upstream::tls;
use weir_agreement::message::POOL_NAMES;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_base::process_metrics::open_files;
use weir_kubernetes::numeric::{saturating_i64, saturating_u64};
use weir_status::alarms;
use weir_status::alarms::{
    Alarm, AlarmState, AlarmStatus, CertificateLifetime, KINDS, Losses, OpenFiles, ServerHealth,
    TotalSetting, UnlikeTotal,
};

/// How long what was lost for good is an alarm.
const LOSS_TIME: Duration = Duration::from_secs(60 * 60);

/// How long a rejection at a limit of weir's process is an alarm.
const REJECTION_TIME: Duration = Duration::from_secs(5 * 60);

/// Returns a number that only grows.
pub(crate) type Total = Box<dyn Fn() -> u64 + Send + Sync>;

/// What is counted elsewhere.
pub(crate) struct LossCounts {
    /// Events of the audit log that were dropped or could not be written.
    pub(crate) audit_log: Total,
    /// Connections of clients that were refused because of `--max-connections`.
    pub(crate) connections: Total,
    /// Lines of the log that were dropped.
    pub(crate) log: Total,
    /// Requests that were rejected because of `--memory-limit`.
    pub(crate) memory: Total,
    /// Requests that are missing in records, and records that ended by an error.
    pub(crate) record: Total,
}

/// Returns the certificates and CAs in files, which a reload replaces.
pub(crate) type Certificates = Box<dyn Fn() -> Vec<CertificateLifetime> + Send + Sync>;

/// The alarms of a running weir.
pub struct AlarmBoard {
    readiness: Arc<Readiness>,
    finder: Arc<TotalFinder>,
    totals: LossCounts,
    certificates: Certificates,
    /// Locked for a few instructions.
    seen: Mutex<Seen>,
}

/// What earlier looks have shown.
#[derive(Default)]
struct Seen {
    /// When each alarm began, in milliseconds since 1970, by name.
    since: BTreeMap<&'static str, u64>,
    audit_log: Growth,
    connections: Growth,
    log: Growth,
    memory: Growth,
    record: Growth,
}

/// The growth of a total.
#[derive(Default)]
struct Growth {
    total: u64,
    grew: Option<Instant>,
}

impl Growth {
    /// The losses at `now`, which are recent for `time`.
    fn losses(&mut self, total: u64, time: Duration, now: Instant) -> Losses {
        if total > self.total {
            self.grew = Some(now);
        }
        self.total = total;
        let age = self.grew.map(|grew| now.saturating_duration_since(grew));
        Losses {
            total,
            is_recent: age.is_some_and(|age| age < time),
        }
    }
}

impl AlarmBoard {
    /// Registers the metric.
    pub(crate) fn register(
        readiness: Arc<Readiness>,
        finder: Arc<TotalFinder>,
        totals: LossCounts,
        certificates: Certificates,
        registry: &Registry,
    ) -> Arc<Self> {
        let board = Arc::new(Self {
            readiness,
            finder,
            totals,
            certificates,
            seen: Mutex::default(),
        });
        AlarmMetric::register(Some(Arc::clone(&board)), registry);
        board
    }

    /// The alarms of now, the critical ones first. Waits for nothing.
    #[must_use]
    pub(crate) fn alarms(&self) -> Vec<AlarmStatus> {
        let wall = Clock.wall().duration_since(SystemTime::UNIX_EPOCH);
        let wall = wall.unwrap_or_default();
        let wall_ms = saturating_u64(wall.as_millis());
        let mut state = self.state(Clock.now());
        state.now = saturating_i64(wall.as_secs());
        let found = alarms::alarms(&state);
        let mut seen = self.seen.lock();
        let is_found = |name: &str| found.iter().any(|alarm| alarm.kind.name == name);
        seen.since.retain(|name, _| is_found(name));
        let status = |Alarm {
                          kind,
                          severity,
                          text,
                      }| {
            let since = seen.since.entry(kind.name);
            AlarmStatus {
                name: kind.name.to_owned(),
                severity,
                since_unix_ms: *since.or_insert(wall_ms),
                text,
                action: kind.action.to_owned(),
                replica: None,
            }
        };
        let mut alarms: Vec<_> = found.into_iter().map(status).collect();
        alarms.sort_by_key(|alarm| alarm.severity);
        alarms
    }

    /// The text of `/readyz`: the checks of readiness, and the alarms that do not affect it. Without
    /// `reasons` it says of each only whether it fails.
    #[must_use]
    pub(crate) fn report(&self, reasons: bool) -> (bool, String) {
        let reason = |why: String| match reasons {
            true => why,
            false => "reason withheld".to_owned(),
        };
        let (checks, alarms) = (self.readiness.checks(), self.alarms());
        let ready = checks.iter().all(|(_, check)| check.is_ok());
        let mut text = String::new();
        for (name, check) in &checks {
            if let Err(why) = check {
                let why = reason(why.clone());
                text.push_str(&format!("[-]{name} failed: {why}\n"));
            } else if !KINDS.iter().any(|kind| kind.name == *name) {
                text.push_str(&format!("[+]{name} ok\n"));
            }
        }
        let has_failed = |name| {
            checks
                .iter()
                .any(|(check, result)| *check == name && result.is_err())
        };
        for kind in KINDS.iter().filter(|kind| !has_failed(kind.name)) {
            let name = kind.name;
            text.push_str(&match alarms.iter().find(|alarm| alarm.name == name) {
                None => format!("[+]{name} ok\n"),
                Some(AlarmStatus { text, .. }) => {
                    let why = reason(text.clone());
                    format!("[-]{name} failed, readiness not affected: {why}\n")
                }
            });
        }
        let servers = reasons.then(|| self.readiness.several_servers(Clock.now()));
        for server in servers.into_iter().flatten() {
            let address = &server.address;
            text.push_str(&match server.why.filter(|_| !server.healthy) {
                None => format!("[+]upstream/{address} ok\n"),
                Some(why) => format!("[-]upstream/{address} failed, others are used: {why}\n"),
            });
        }
        text.push_str(match ready {
            true => "readyz check passed\n",
            false => "readyz check failed\n",
        });
        (ready, text)
    }

    /// What was lost since the start, by the alarm that tells of it.
    #[must_use]
    pub(crate) fn losses(&self) -> BTreeMap<String, u64> {
        let totals = &self.totals;
        let losses: [(&str, &Total); 5] = [
            ("audit-log", &totals.audit_log),
            ("connections", &totals.connections),
            ("log", &totals.log),
            ("memory", &totals.memory),
            ("record", &totals.record),
        ];
        let losses = losses.into_iter();
        losses
            .map(|(name, total)| (name.to_owned(), total()))
            .collect()
    }

    /// When each certificate, CA and weir's own credential ends, in seconds since 1970. `now` and
    /// `wall` are the same moment.
    #[must_use]
    pub(crate) fn expiries(&self, now: Instant, wall: SystemTime) -> Vec<(String, i64)> {
        let mut certificates = (self.certificates)();
        certificates.extend(self.own_certificate());
        let ends = certificates.into_iter().map(|one| {
            let what = if one.is_ca { "a CA of " } else { "" };
            (format!("{what}{}", one.name), one.not_after)
        });
        let credential = self.readiness.own_credentials().expires().map(|expires| {
            let at = wall.checked_add(expires.saturating_duration_since(now));
            let since_1970 = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            let seconds = since_1970.map_or(0, |since_1970| since_1970.as_secs());
            ("weir's own credential".to_owned(), saturating_i64(seconds))
        });
        ends.chain(credential).collect()
    }

    fn state(&self, now: Instant) -> AlarmState {
        let readiness = self.readiness.snapshot(now);
        let replicas = self.readiness.replicas();
        let servers = self.readiness.servers(now).into_iter();
        let mut certificates = (self.certificates)();
        certificates.extend(self.own_certificate());
        let mut seen = self.seen.lock();
        let totals = &self.totals;
        AlarmState {
            now: 0, // set by the caller, which reads the clock once
            audit_log: seen.audit_log.losses((totals.audit_log)(), LOSS_TIME, now),
            certificates,
            config: self.readiness.config_error(),
            connections: seen
                .connections
                .losses((totals.connections)(), REJECTION_TIME, now),
            flowcontrol_source: self.readiness.flowcontrol_failure(),
            front_proxy: readiness.front_proxy_failure,
            log: seen.log.losses((totals.log)(), LOSS_TIME, now),
            upstream_loop: readiness.loop_failure,
            memory: seen.memory.losses((totals.memory)(), REJECTION_TIME, now),
            open_files: open_files().map(|(open, limit)| OpenFiles { open, limit }),
            own_credential: self.readiness.own_credentials().trouble(),
            record: seen.record.losses((totals.record)(), LOSS_TIME, now),
            replica_totals: replicas.as_ref().map(unlike_totals).unwrap_or_default(),
            replicas: replicas.as_ref().and_then(ReplicaReport::failure),
            servers: servers.map(server_health).collect(),
            shared_limits: readiness.shared_limits_failure,
            total: self.finder.warning(),
            upstream: readiness.upstream_failure,
        }
    }

    fn own_certificate(&self) -> Option<CertificateLifetime> {
        let key = self.readiness.own_credentials().certificate()?;
        let (not_before, not_after) = tls::lifetime(&key.cert)?;
        Some(CertificateLifetime {
            name: "weir's own certificate".to_owned(),
            not_before,
            not_after,
            is_ca: false,
        })
    }
}

fn server_health(server: ServerSnapshot) -> ServerHealth {
    let why = server.why.unwrap_or_else(|| "not healthy".to_owned());
    ServerHealth {
        address: server.address,
        failure: (!server.healthy).then_some(why),
    }
}

/// The settings of other replicas' totals that are not this one's. A total of zero is not divided,
/// and one that replicas find by themselves differs for a moment at each change.
fn unlike_totals(report: &ReplicaReport) -> Vec<UnlikeTotal> {
    let setting = |finds_total, total| match finds_total {
        true => TotalSetting::Auto,
        false => TotalSetting::Number(total),
    };
    let live = report.peers.iter().filter(|peer| peer.state() == "live");
    let each = live.flat_map(|peer| {
        let pools = POOL_NAMES.iter().zip(report.pools).zip(peer.claims);
        let divided = pools.filter(|((_, (own, _)), claim)| *own > 0 && claim.total > 0);
        divided.map(move |((pool, (own, _)), claim)| UnlikeTotal {
            pool: (*pool).to_owned(),
            own: setting(report.finds_total, own),
            replica: peer.name.clone(),
            other: setting(peer.finds_total, claim.total),
        })
    });
    each.filter(|total| total.own != total.other).collect()
}

impl fmt::Debug for AlarmBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlarmBoard").finish_non_exhaustive()
    }
}

/// The metric of the alarms, read at each scrape.
#[derive(Debug)]
pub struct AlarmMetric {
    board: Option<Arc<AlarmBoard>>,
    alarms: IntGaugeVec,
}

impl AlarmMetric {
    /// Registers the metric. Without a board there is no alarm.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    pub fn register(board: Option<Arc<AlarmBoard>>, registry: &Registry) {
        let opts = Opts::new(
            "weir_alarm",
            "1 while weir has this alarm with this severity (docs/reference/alarms.md), 0 otherwise. weir status shows what has happened and what to do.",
        );
        let alarms = IntGaugeVec::new(opts, &["alarm", "severity"]);
        registry.register_collector(Self {
            board,
            alarms: alarms.expect("a name is well-formed"),
        });
    }
}

impl Collector for AlarmMetric {
    fn desc(&self) -> Vec<&Desc> {
        self.alarms.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let alarms = self.board.as_ref().map(|board| board.alarms());
        let alarms = alarms.unwrap_or_default();
        for kind in &KINDS {
            for severity in kind.severities {
                let mut alarms = alarms.iter();
                let is_active =
                    alarms.any(|alarm| alarm.name == kind.name && alarm.severity == *severity);
                let gauge = self.alarms.with_label_values(&[kind.name, severity.name()]);
                gauge.set(is_active.into());
            }
        }
        self.alarms.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_an_alarm_for_its_time_after_the_last_one() {
        let (mut growth, start) = (Growth::default(), Clock.now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut losses = |total, seconds| growth.losses(total, LOSS_TIME, at(seconds));
        assert!(!losses(0, 0).is_recent);
        assert!(losses(3, 10).is_recent);
        assert!(losses(3, 3609).is_recent);
        assert!(!losses(3, 3610).is_recent);
        assert!(losses(4, 3611).is_recent);
        assert_eq!(losses(4, 9000).total, 4);
    }
}
