//! Which alarms there are, from a plain snapshot of state. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use weir_kubernetes::numeric::to_f64;

/// The smallest useful limit of open files: each client and each tunnel is one or two of them.
const MIN_OPEN_FILES: u64 = 1000;

/// The part of the open files from which they are about to run out.
const SCARCE_FILES: f64 = 0.9;

const DAY: i64 = 24 * 60 * 60;

/// How long before its end a certificate is an alarm: as a part of its lifetime, since short ones
/// are renewed late, and at most in seconds.
const EXPIRY_WARNING: (i64, i64) = (10, 14 * DAY);
const EXPIRY_CRITICAL: (i64, i64) = (30, DAY);

/// How urgent an alarm is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlarmSeverity {
    /// Requests fail or are about to.
    Critical,
    /// An operator should look today.
    #[default]
    Warning,
}

impl AlarmSeverity {
    /// As labels and pages name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

/// An alarm for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AlarmStatus {
    /// The name of its kind.
    pub name: String,
    /// How urgent it is.
    pub severity: AlarmSeverity,
    /// When it began, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// What has happened.
    pub text: String,
    /// What to do.
    pub action: String,
    /// The replica that has it; `None` if it is the one that is asked.
    pub replica: Option<String>,
}

/// A kind of alarm.
#[derive(Debug, PartialEq, Eq)]
pub struct AlarmKind {
    /// The name, everywhere.
    pub name: &'static str,
    /// The severities that it can have.
    pub severities: &'static [AlarmSeverity],
    /// When there is such an alarm.
    pub meaning: &'static str,
    /// What to do.
    pub action: &'static str,
}

const CRITICAL: &[AlarmSeverity] = &[AlarmSeverity::Critical];
const WARNING: &[AlarmSeverity] = &[AlarmSeverity::Warning];
const BOTH: &[AlarmSeverity] = &[AlarmSeverity::Critical, AlarmSeverity::Warning];

/// All alarms, by name.
pub const KINDS: [AlarmKind; 18] = [
    AlarmKind {
        name: "audit-log",
        severities: WARNING,
        meaning: "Events of the audit log were lost in the last hour.",
        action: "The log says why. Free the disk or give weir the right to write (apiserver_audit_error_total); use a faster disk or select fewer requests by --audit-policy-file (weir_audit_dropped_total).",
    },
    AlarmKind {
        name: "certificates",
        severities: BOTH,
        meaning: "A certificate or CA expires: within 14 days or the last tenth of its lifetime, critical within a day or the last thirtieth.",
        action: "Replace the file: weir reads it by itself.",
    },
    AlarmKind {
        name: "config",
        severities: WARNING,
        meaning: "A changed configuration was refused; the one before stays in force.",
        action: "Correct the files: weir reads them again by itself. A restart would fail with the same errors.",
    },
    AlarmKind {
        name: "connections",
        severities: CRITICAL,
        meaning: "Connections of clients were closed in the last five minutes because --max-connections were open.",
        action: "Look for a client that opens connections and does not use them. Otherwise raise the limit of open files or --max-connections, or add another weir.",
    },
    AlarmKind {
        name: "flowcontrol-source",
        severities: WARNING,
        meaning: "The flow schemas and priority levels of the cluster cannot be read or used.",
        action: "Give weir's user the rights of the ClusterRole weir, or correct the objects that the reason names.",
    },
    AlarmKind {
        name: "front-proxy",
        severities: CRITICAL,
        meaning: "The API server does not accept weir's front-proxy certificate: clients with certificates get 503.",
        action: "Replace the certificate of --proxy-client-cert-file: it must not have expired, and the API server's --requestheader-client-ca-file and --requestheader-allowed-names must admit it.",
    },
    AlarmKind {
        name: "log",
        severities: WARNING,
        meaning: "Lines of weir's log were lost in the last hour.",
        action: "Read the standard error faster, or log less (--log-level).",
    },
    AlarmKind {
        name: "loop",
        severities: CRITICAL,
        meaning: "The upstream leads back to this weir.",
        action: "Set --upstream, or the server of the kubeconfig, to the address of the API server.",
    },
    AlarmKind {
        name: "memory",
        severities: CRITICAL,
        meaning: "Requests were rejected in the last five minutes because of --memory-limit.",
        action: "The log line \"memory is scarce\" names the user that holds most. Raise the memory limit of the container or --memory-limit, or add another weir.",
    },
    AlarmKind {
        name: "open-files",
        severities: BOTH,
        meaning: "Fewer than 1,000 files may be open, or (critical) more than 90 % of them are.",
        action: "Raise the limit of open files (LimitNOFILE of the systemd unit, ulimit -n).",
    },
    AlarmKind {
        name: "own-credential",
        severities: BOTH,
        meaning: "weir's own credential cannot be renewed, or (critical) has expired or gets 401.",
        action: "Renew the token, the certificate or the exec plugin's login of --kubeconfig.",
    },
    AlarmKind {
        name: "record",
        severities: WARNING,
        meaning: "Requests are missing in the record, or it ended because its file could not be written, in the last hour.",
        action: "Free the disk of --record-path, or use a faster one.",
    },
    AlarmKind {
        name: "replica-totals",
        severities: WARNING,
        meaning: "Another replica divides other totals than this one.",
        action: "Give all replicas the same limits.",
    },
    AlarmKind {
        name: "replicas",
        severities: WARNING,
        meaning: "Replicas are missing, or this one cannot divide the totals with them.",
        action: "Look at the missing replicas, at the peer port between them, and at the rights of weir's user to Leases.",
    },
    AlarmKind {
        name: "servers",
        severities: WARNING,
        meaning: "One of several API servers is not ready, hangs or cannot be reached.",
        action: "Look at that API server; the others get its requests.",
    },
    AlarmKind {
        name: "shared-limits",
        severities: WARNING,
        meaning: "The server of --shared-limits does not answer: each replica admits its share of every rate.",
        action: "Look at that server, and at the network and the password to it.",
    },
    AlarmKind {
        name: "total",
        severities: WARNING,
        meaning: "The total does not suit the API server's own, or the priority levels have too few seats of it.",
        action: "Leave out --max-requests-inflight and --max-mutating-requests-inflight, so that weir finds the total, or give the number that the reason names.",
    },
    AlarmKind {
        name: "upstream",
        severities: CRITICAL,
        meaning: "The API server does not respond, or hangs.",
        action: "Look at the API server, and at its address and CA in weir's configuration.",
    },
];

/// What was lost or rejected so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Since the start.
    pub total: u64,
    /// Whether the number has grown in the time that the alarm lasts.
    pub is_recent: bool,
}

/// A certificate or a CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateLifetime {
    /// What it is for: the flag that names it.
    pub name: String,
    /// In seconds since 1970.
    pub not_before: i64,
    /// In seconds since 1970.
    pub not_after: i64,
    /// Whether it is one of the CAs of a file, which may keep an old one beside its successor.
    pub is_ca: bool,
}

/// A total that replicas divide, as two of them have it configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlikeTotal {
    /// The total's name.
    pub pool: String,
    /// This replica's.
    pub own: TotalSetting,
    /// The name of the other replica.
    pub replica: String,
    /// The other's.
    pub other: TotalSetting,
}

/// How a total is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TotalSetting {
    /// weir finds it.
    Auto,
    /// This many.
    Number(u32),
}

impl fmt::Display for TotalSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// An API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHealth {
    /// HOST:PORT.
    pub address: String,
    /// Why it is not healthy. `None` if it is.
    pub failure: Option<String>,
}

/// The files that weir has open, and how many it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// Open now.
    pub open: u64,
    /// The limit.
    pub limit: u64,
}

/// What is wrong with weir's own credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialTrouble {
    /// Whether the credential of now still works.
    pub still_works: bool,
    /// The reason.
    pub why: String,
}

/// The state that alarms are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmState {
    /// The time in seconds since 1970.
    pub now: i64,
    /// Events of the audit log.
    pub audit_log: Losses,
    /// All certificates and CAs.
    pub certificates: Vec<CertificateLifetime>,
    /// Why the last configuration was refused, if it was.
    pub config: Option<String>,
    /// Refused connections of clients.
    pub connections: Losses,
    /// Why the cluster's objects are not in force.
    pub flowcontrol_source: Option<String>,
    /// Why the front-proxy certificate is not accepted.
    pub front_proxy: Option<String>,
    /// Lines of the log.
    pub log: Losses,
    /// Why the upstream counts as a loop.
    pub upstream_loop: Option<String>,
    /// Requests that were rejected because of the memory limit.
    pub memory: Losses,
    /// `None` if it is not known.
    pub open_files: Option<OpenFiles>,
    /// What is wrong with weir's own credential.
    pub own_credential: Option<CredentialTrouble>,
    /// Requests that a record misses.
    pub record: Losses,
    /// Totals that other replicas have otherwise.
    pub replica_totals: Vec<UnlikeTotal>,
    /// What keeps this replica from dividing the totals with all others.
    pub replicas: Option<String>,
    /// The API servers.
    pub servers: Vec<ServerHealth>,
    /// Why rates are not shared.
    pub shared_limits: Option<String>,
    /// What is wrong with the configured total.
    pub total: Option<String>,
    /// Why the API server does not respond.
    pub upstream: Option<String>,
}

/// An alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Which one.
    pub kind: &'static AlarmKind,
    /// How urgent it is.
    pub severity: AlarmSeverity,
    /// What has happened.
    pub text: String,
}

/// The alarms of a state, by name. There is one of a kind at most.
#[must_use]
pub fn alarms(state: &AlarmState) -> Vec<Alarm> {
    let found = KINDS.iter().filter_map(|kind| {
        let (severity, text) = alarm(kind.name, state)?;
        Some(Alarm {
            kind,
            severity,
            text,
        })
    });
    found.collect()
}

/// The severity and the text of the alarm with this name, if there is one.
fn alarm(name: &str, state: &AlarmState) -> Option<(AlarmSeverity, String)> {
    let warning = |text: Option<String>| text.map(|text| (AlarmSeverity::Warning, text));
    let critical = |text: Option<String>| text.map(|text| (AlarmSeverity::Critical, text));
    let lost = |losses: Losses, what: &str| {
        let Losses { total, is_recent } = losses;
        is_recent.then(|| format!("{total} {what} since the start"))
    };
    match name {
        "audit-log" => warning(lost(state.audit_log, "events lost")),
        "certificates" => certificates(state),
        "config" => {
            let refused = |why| format!("refused, the one before stays in force: {why}");
            warning(state.config.as_ref().map(refused))
        }
        "connections" => critical(lost(state.connections, "connections refused")),
        "flowcontrol-source" => warning(state.flowcontrol_source.clone()),
        "front-proxy" => critical(state.front_proxy.clone()),
        "log" => warning(lost(state.log, "lines lost")),
        "loop" => critical(state.upstream_loop.clone()),
        "memory" => critical(lost(state.memory, "requests rejected")),
        "open-files" => open_files(state.open_files?),
        "own-credential" => {
            let CredentialTrouble { still_works, why } = state.own_credential.clone()?;
            match still_works {
                true => warning(Some(why)),
                false => critical(Some(why)),
            }
        }
        "record" => warning(lost(state.record, "requests missing")),
        "replica-totals" => warning(unlike_totals(&state.replica_totals)),
        "replicas" => warning(state.replicas.clone()),
        "servers" => warning(unhealthy_servers(&state.servers)),
        "shared-limits" => warning(state.shared_limits.clone()),
        "total" => warning(state.total.clone()),
        "upstream" => critical(state.upstream.clone().or_else(|| no_server(&state.servers))),
        _ => None,
    }
}

/// The certificates that expire soon, and those that have.
fn certificates(state: &AlarmState) -> Option<(AlarmSeverity, String)> {
    let is_replaced = |old: &CertificateLifetime| {
        let mut others = state.certificates.iter();
        old.is_ca
            && old.not_after <= state.now
            && others.any(|other| other.name == old.name && other.not_after > state.now)
    };
    let mut severity = AlarmSeverity::Warning;
    let mut texts: Vec<String> = Vec::new();
    for certificate in &state.certificates {
        let left = certificate.not_after - state.now;
        let lifetime = certificate.not_after - certificate.not_before;
        let is_within = |(part, most): (i64, i64)| left < most.min(lifetime / part);
        if !is_within(EXPIRY_WARNING) || is_replaced(certificate) {
            continue;
        }
        if is_within(EXPIRY_CRITICAL) {
            severity = AlarmSeverity::Critical;
        }
        let ca = if certificate.is_ca { "a CA of " } else { "" };
        let text = match left {
            ..=0 => format!("{ca}{} expired {} ago", certificate.name, days(-left)),
            _ => format!("{ca}{} expires in {}", certificate.name, days(left)),
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    (!texts.is_empty()).then(|| (severity, texts.join("; ")))
}

/// A number of seconds in the largest unit that is whole.
fn days(seconds: i64) -> String {
    let (count, unit) = match seconds {
        DAY.. => (seconds / DAY, "day"),
        3600.. => (seconds / 3600, "hour"),
        _ => (seconds / 60, "minute"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

fn open_files(files: OpenFiles) -> Option<(AlarmSeverity, String)> {
    let OpenFiles { open, limit } = files;
    if to_f64(open) > to_f64(limit) * SCARCE_FILES {
        return Some((
            AlarmSeverity::Critical,
            format!("{open} of {limit} files are open"),
        ));
    }
    (limit < MIN_OPEN_FILES).then(|| {
        (
            AlarmSeverity::Warning,
            format!("only {limit} files may be open"),
        )
    })
}

fn unlike_totals(totals: &[UnlikeTotal]) -> Option<String> {
    let text = |total: &UnlikeTotal| {
        let UnlikeTotal {
            pool,
            own,
            replica,
            other,
        } = total;
        format!("{pool}: {own} here, {other} at {replica}")
    };
    let texts: Vec<_> = totals.iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// The servers that are not healthy while another one is.
fn unhealthy_servers(servers: &[ServerHealth]) -> Option<String> {
    if servers.iter().all(|server| server.failure.is_some()) {
        return None; // see `no_server`
    }
    let failures: Vec<_> = failures(servers).collect();
    (!failures.is_empty()).then(|| failures.join("; "))
}

/// Why no server is healthy.
fn no_server(servers: &[ServerHealth]) -> Option<String> {
    let failures: Vec<_> = failures(servers).collect();
    (!failures.is_empty() && failures.len() == servers.len()).then(|| failures.join("; "))
}

fn failures(servers: &[ServerHealth]) -> impl Iterator<Item = String> {
    servers.iter().filter_map(|server| {
        let why = server.failure.as_ref()?;
        Some(format!("{}: {why}", server.address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names, severities and texts of the alarms.
    fn found(state: &AlarmState) -> Vec<(&'static str, AlarmSeverity, String)> {
        let alarms = alarms(state).into_iter();
        alarms
            .map(|alarm| (alarm.kind.name, alarm.severity, alarm.text))
            .collect()
    }

    #[test]
    fn names_are_sorted_and_distinct_and_a_good_state_has_no_alarm() {
        let names = KINDS.iter().map(|kind| kind.name);
        assert!(names.is_sorted_by(|a, b| a < b));
        let well = AlarmState {
            audit_log: Losses {
                total: 9154,
                is_recent: false,
            },
            open_files: Some(OpenFiles {
                open: 20,
                limit: 1_048_576,
            }),
            servers: vec![server("a", None), server("b", None)],
            certificates: vec![certificate("--tls-cert-file", 90, 30, false)],
            ..AlarmState::default()
        };
        assert_eq!(found(&well), []);
    }

    fn server(address: &str, failure: Option<&str>) -> ServerHealth {
        ServerHealth {
            address: address.to_owned(),
            failure: failure.map(str::to_owned),
        }
    }

    /// A certificate with a lifetime, of which so many days are left.
    fn certificate(name: &str, lifetime: i64, left: i64, is_ca: bool) -> CertificateLifetime {
        CertificateLifetime {
            name: name.to_owned(),
            not_before: (left - lifetime) * DAY,
            not_after: left * DAY,
            is_ca,
        }
    }

    fn why() -> Option<String> {
        Some("why".to_owned())
    }

    const LOST: Losses = Losses {
        total: 7,
        is_recent: true,
    };

    const fn trouble(still_works: bool) -> Option<CredentialTrouble> {
        let why = String::new();
        Some(CredentialTrouble { still_works, why })
    }

    const fn files(open: u64, limit: u64) -> Option<OpenFiles> {
        Some(OpenFiles { open, limit })
    }

    /// The change of a good state, and the alarm.
    type Case = (fn(&mut AlarmState), &'static str, &'static str);

    #[track_caller]
    fn assert_found(severity: AlarmSeverity, cases: &[Case]) {
        for (change, name, text) in cases {
            let mut state = AlarmState::default();
            change(&mut state);
            assert_eq!(found(&state), [(*name, severity, (*text).to_owned())]);
            let kind = KINDS.iter().find(|kind| kind.name == *name).unwrap();
            assert!(kind.severities.contains(&severity), "{name}");
        }
    }

    #[test]
    fn what_an_operator_should_look_at_is_a_warning() {
        let unlike = |s: &mut AlarmState| {
            s.replica_totals = vec![UnlikeTotal {
                pool: "seats".to_owned(),
                own: TotalSetting::Number(600),
                replica: "b".to_owned(),
                other: TotalSetting::Auto,
            }];
        };
        let refused = "refused, the one before stays in force: why";
        assert_found(
            AlarmSeverity::Warning,
            &[
                (
                    |s| s.audit_log = LOST,
                    "audit-log",
                    "7 events lost since the start",
                ),
                (|s| s.config = why(), "config", refused),
                (
                    |s| s.flowcontrol_source = why(),
                    "flowcontrol-source",
                    "why",
                ),
                (|s| s.log = LOST, "log", "7 lines lost since the start"),
                (
                    |s| s.open_files = files(10, 256),
                    "open-files",
                    "only 256 files may be open",
                ),
                (|s| s.own_credential = trouble(true), "own-credential", ""),
                (
                    |s| s.record = LOST,
                    "record",
                    "7 requests missing since the start",
                ),
                (|s| s.replicas = why(), "replicas", "why"),
                (unlike, "replica-totals", "seats: 600 here, auto at b"),
                (
                    |s| s.servers = vec![server("a", None), server("b", Some("hangs"))],
                    "servers",
                    "b: hangs",
                ),
                (|s| s.shared_limits = why(), "shared-limits", "why"),
                (|s| s.total = why(), "total", "why"),
            ],
        );
    }

    #[test]
    fn what_makes_requests_fail_is_critical() {
        assert_found(
            AlarmSeverity::Critical,
            &[
                (
                    |s| s.connections = LOST,
                    "connections",
                    "7 connections refused since the start",
                ),
                (|s| s.front_proxy = why(), "front-proxy", "why"),
                (|s| s.upstream_loop = why(), "loop", "why"),
                (
                    |s| s.memory = LOST,
                    "memory",
                    "7 requests rejected since the start",
                ),
                (
                    |s| s.open_files = files(950, 1024),
                    "open-files",
                    "950 of 1024 files are open",
                ),
                (|s| s.own_credential = trouble(false), "own-credential", ""),
                (
                    |s| s.servers = vec![server("a", Some("hangs"))],
                    "upstream",
                    "a: hangs",
                ),
                (|s| s.upstream = why(), "upstream", "why"),
            ],
        );
    }

    #[test]
    fn a_certificate_is_an_alarm_by_what_is_left_of_its_lifetime() {
        use AlarmSeverity::{Critical, Warning};
        for (lifetime, left, expected) in [
            (3650, 15, None),
            (3650, 13, Some((Warning, "x expires in 13 days"))),
            (365, 0, Some((Critical, "x expired 0 minutes ago"))),
            (365, -3, Some((Critical, "x expired 3 days ago"))),
            (90, 10, None), // cert-manager renews it after two thirds
            (90, 8, Some((Warning, "x expires in 8 days"))),
            (10, 2, None),
        ] {
            let state = AlarmState {
                certificates: vec![certificate("x", lifetime, left, false)],
                ..AlarmState::default()
            };
            let expected =
                expected.map(|(severity, text)| ("certificates", severity, text.to_owned()));
            assert_eq!(
                found(&state),
                Vec::from_iter(expected),
                "{left} of {lifetime}"
            );
        }
    }

    #[test]
    fn an_expired_ca_beside_its_successor_is_no_alarm_and_all_texts_are_in_one() {
        let old = certificate("--client-ca-file", 3650, -5, true);
        let new = certificate("--client-ca-file", 3650, 3000, true);
        let mut state = AlarmState {
            certificates: vec![old.clone(), new],
            ..AlarmState::default()
        };
        assert_eq!(found(&state), []);
        state.certificates = vec![old, certificate("own", 365, 5, false)];
        let text = "a CA of --client-ca-file expired 5 days ago; own expires in 5 days";
        let expected = ("certificates", AlarmSeverity::Critical, text.to_owned());
        assert_eq!(found(&state), [expected]);
    }
}
