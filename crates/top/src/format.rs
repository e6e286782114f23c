//! Formatting of numbers and names for `weir top`.

use crate::view_model::ViewModel;
use weir_kubernetes::encoding::printable::escape;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::top_keys::{RateLimitSnapshot, TopKey};
use weir_status::alarms::AlarmStatus;
use weir_status::replica_view::ALL_REPLICAS;
use weir_status::snapshot::{SlotsStatus, StatusSnapshot, ViewedReplicaStatus};

pub use weir_status::numbers::{bytes, count, duration, rate};

/// Block characters of a plot, from low to high.
const PLOT_BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Whose requests limits would reject that only count; `None` if there are none.
pub fn would_break(now: &StatusSnapshot) -> Option<String> {
    let users = now.would_be_rejected_users;
    let name = |user: &TopKey| format!("{} ({})", sanitize(&user.key), count(user.rejections));
    let names: Vec<_> = now.would_be_rejected.iter().map(name).collect();
    let more = users > saturating_u64(names.len());
    let plural = if users == 1 { "user" } else { "users" };
    let rest = if more { ", ..." } else { "" };
    (users > 0).then(|| format!("would break {users} {plural}: {}{rest}", names.join(", ")))
}

/// Explains rejection counts under `--flowcontrol-enforcement=DryRun`.
pub const DRY_RUN_LABEL: &str = "dry run: levels reject nothing";

/// Makes text that a client may have chosen safe for a terminal: escapes characters that move the
/// cursor, change the direction of the line, or are not printable at all.
#[must_use]
pub fn sanitize(text: &str) -> String {
    escape(text).into_owned()
}

/// A rate, or that there is none yet.
#[must_use]
pub fn known_rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), rate)
}

/// An uptime, given in seconds.
#[must_use]
pub fn uptime(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Borrowed seats. Negative: seats that are lent.
#[must_use]
pub fn borrowed(seats: i64) -> String {
    match seats {
        0 => "-".to_owned(),
        1.. => format!("+{seats}"),
        _ => seats.to_string(),
    }
}

/// Executing seats and the current limit of a priority level.
#[must_use]
pub fn seats(in_use: u64, limit: Option<u32>) -> String {
    match limit {
        Some(limit) => format!("{in_use}/{limit}"),
        None => format!("{in_use}/-"),
    }
}

/// The last `width` values as blocks, relative to `max`. Zero is a space.
#[must_use]
pub fn plot(values: &[f32], max: f32, width: usize) -> String {
    let from = values.len().saturating_sub(width);
    let visible = values.get(from..).unwrap_or_default();
    let blocks = visible.iter().map(|&value| plot_block(value, max));
    let blank = std::iter::repeat_n(' ', width.saturating_sub(visible.len()));
    blank.chain(blocks).collect()
}

#[expect(clippy::as_conversions, reason = "between 0 and 7, and it saturates")]
fn plot_block(value: f32, max: f32) -> char {
    if value <= 0.0 || max <= 0.0 {
        return ' ';
    }
    let height = (value / max * 8.0).ceil() as usize;
    let last = PLOT_BLOCKS.len() - 1;
    PLOT_BLOCKS
        .get(height.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(' ')
}

/// The responses of one class of status codes, such as 2 for 2xx.
#[must_use]
pub fn responses_of_class(snapshot: &StatusSnapshot, class: u16) -> u64 {
    let codes = snapshot.requests.by_code.iter();
    codes
        .filter(|(code, _)| **code / 100 == class)
        .map(|(_, count)| count)
        .sum()
}

/// The API server's latency and errors, and its seats beside weir's total.
#[must_use]
pub fn api_server(view_model: &ViewModel, now: &StatusSnapshot) -> String {
    let latency = match view_model.upstream_latency(0.99) {
        Some(most) => {
            let half = view_model.upstream_latency(0.5).unwrap_or_default();
            format!(
                "half within {}, 99 % within {}",
                duration(half),
                duration(most)
            )
        }
        None => "no response".to_owned(),
    };
    let errors = view_model.rate(|snapshot| {
        let failures = snapshot.upstream.failures.values();
        failures.fold(snapshot.upstream.errors, |sum, count| {
            sum.saturating_add(*count)
        })
    });
    let seats = match (now.seats.own, now.seats.server) {
        (0, _) => "no total".to_owned(),
        (own, Some(server)) => format!("total {own} of its {server} seats"),
        (own, None) => format!("total {own}"),
    };
    format!("{latency}  errors {}/s  {seats}", known_rate(errors))
}

/// weir's own processors and memory, what was lost, and what ends first.
#[must_use]
pub fn own_state(view_model: &ViewModel, now: &StatusSnapshot) -> String {
    let process = &now.process;
    let cpus = view_model.cpus_in_use();
    let mut text = cpus.map_or_else(|| "-".to_owned(), |cpus| format!("{cpus:.2}"));
    if process.cpus > 0 {
        text.push_str(&format!(" of {}", process.cpus));
    }
    text.push_str(&format!(" processors  {}", bytes(process.memory_bytes)));
    if process.memory_limit_bytes > 0 {
        text.push_str(&format!(" of {}", bytes(process.memory_limit_bytes)));
    }
    for (name, lost) in now.losses.iter().filter(|(_, lost)| **lost > 0) {
        text.push_str(&format!("  lost {} {}", count(*lost), sanitize(name)));
    }
    if let Some(first) = now.expiries.first() {
        let now = i64::try_from(now.unix_ms / 1000).unwrap_or(i64::MAX);
        let name = sanitize(&first.name);
        text.push_str(
            &match u64::try_from(first.unix_seconds.saturating_sub(now)) {
                Ok(left) => format!("  {name} ends in {}", uptime(left)),
                Err(_) => format!("  {name} has ended"),
            },
        );
    }
    text
}

/// The last changes, the newest first.
#[must_use]
pub fn last_changes(now: &StatusSnapshot, most: usize) -> Option<String> {
    let changes = now.marks.iter().rev().take(most).map(|mark| {
        let age = uptime(now.unix_ms.saturating_sub(mark.unix_ms) / 1000);
        format!("{age} ago: {}", sanitize(&mark.text))
    });
    let changes = changes.collect::<Vec<_>>().join("  ");
    (!changes.is_empty()).then_some(changes)
}

/// The headline and its details, each of which may be empty.
#[must_use]
pub fn headline(now: &StatusSnapshot) -> (String, String) {
    let headline = &now.headline;
    let replica = headline.replica.as_deref().map(sanitize);
    let replica = replica.map_or_else(String::new, |name| format!("{name}: "));
    let detail = Some(sanitize(&headline.detail)).filter(|detail| !detail.is_empty());
    let also = headline
        .also
        .iter()
        .map(|also| format!("also: {}", sanitize(also)));
    let details: Vec<_> = detail.into_iter().chain(also).collect();
    (
        format!("{replica}{}", sanitize(&headline.text)),
        details.join("; "),
    )
}

/// The name of a limit, marked if it has a dry run.
#[must_use]
pub fn limit_name(limit: &RateLimitSnapshot) -> String {
    let dry_run = if limit.dry_run { " (dry run)" } else { "" };
    format!("{}{dry_run}", sanitize(&limit.name))
}

/// The key with most rejections of a limit, and their count.
#[must_use]
pub fn top_rejected_key(limit: &RateLimitSnapshot) -> String {
    let first = limit.top.first();
    first.map_or_else(
        || "-".to_owned(),
        |top| format!("{} ({})", sanitize(&top.key), count(top.rejections)),
    )
}

/// Several API servers: how many are used, and the first of the others. `None` for a single one.
#[must_use]
pub fn api_servers(snapshot: &StatusSnapshot) -> Option<String> {
    let servers = &snapshot.upstream.servers;
    if servers.len() < 2 {
        return None;
    }
    let healthy = servers.iter().filter(|server| server.healthy).count();
    let mut text = format!("{healthy}/{} servers", servers.len());
    if let Some(unused) = servers.iter().find(|server| !server.healthy) {
        text.push_str(&format!(" (not {})", sanitize(&unused.address)));
    }
    Some(text)
}

/// The weirs that divide the totals: how many are live, this one's shares, and its state if it is
/// not an ordinary one. `None` if they are not divided.
#[must_use]
pub fn replicas(snapshot: &StatusSnapshot) -> Option<String> {
    let replicas = snapshot.replicas.as_ref()?;
    let others = replicas.others.iter();
    let live = 1 + others.filter(|other| other.state == "live").count();
    let pools = replicas.pools.iter();
    let shares =
        pools.map(|pool| format!("{}/{} {}", pool.share, pool.total, sanitize(&pool.name)));
    let shares = shares.collect::<Vec<_>>().join(", ");
    let state = match &*replicas.state {
        "member" => String::new(),
        state => format!(" ({})", sanitize(state)),
    };
    Some(format!(
        "{live}/{} replicas, {shares}{state}",
        replicas.others.len() + 1
    ))
}

/// Which replicas are shown, and which are missing. `None` if there are no others to choose.
#[must_use]
pub fn shown_replicas(snapshot: &StatusSnapshot) -> Option<String> {
    let view = snapshot.view.as_ref()?;
    let total = view.replicas.len();
    if view.chosen != ALL_REPLICAS {
        let mut all = view.replicas.iter();
        let chosen = all.find(|replica| replica.name == view.chosen);
        let state = match chosen {
            Some(replica) if replica.counted => String::new(),
            Some(replica) => format!(" ({})", missing(replica)),
            None => " (unknown)".to_owned(),
        };
        return Some(format!("replica {}{state}", sanitize(&view.chosen)));
    }
    let absent = view.replicas.iter().filter(|replica| !replica.counted);
    let absent = absent.map(|replica| format!("{} {}", sanitize(&replica.name), missing(replica)));
    let absent = absent.collect::<Vec<_>>().join(", ");
    Some(match absent.is_empty() {
        true => format!("all {total} replicas"),
        false => format!("{} of {total} replicas ({absent})", view.counted().count()),
    })
}

fn missing(replica: &ViewedReplicaStatus) -> String {
    match replica.age_seconds {
        Some(age) => format!("missing for {}", duration(age)),
        None => "missing".to_owned(),
    }
}

/// The connection budget with the highest usage, and its largest holder. `None` if all are unused.
#[must_use]
pub fn fullest_connection_budget(snapshot: &StatusSnapshot) -> Option<String> {
    let used = snapshot.upstream.places.iter().filter(|of| of.taken > 0);
    let fullest = used.max_by(|a, b| {
        let usage = |of: &SlotsStatus| (u128::from(of.taken) << 64) / u128::from(of.total.max(1));
        usage(a).cmp(&usage(b))
    })?;
    let usage = format!(
        "{} {}/{}",
        sanitize(&fullest.kind),
        fullest.taken,
        fullest.total
    );
    let largest = fullest.holders.iter().find(|holder| holder.by != "watches");
    Some(match largest {
        Some(holder) => format!(
            "{usage} (most: {} {})",
            sanitize(&holder.name),
            holder.taken
        ),
        None => usage,
    })
}

/// An alarm: its severity, its name, the replica that has it, how long it lasts, and what has
/// happened. `now` is in milliseconds since 1970.
#[must_use]
pub fn alarm(alarm: &AlarmStatus, now: u64) -> String {
    let replica = alarm.replica.as_deref().map(sanitize);
    let replica = replica.map_or_else(String::new, |name| format!(" of {name}"));
    let age = uptime(now.saturating_sub(alarm.since_unix_ms) / 1000);
    let (severity, name) = (alarm.severity.name(), sanitize(&alarm.name));
    format!(
        "{severity} {name}{replica} for {age}: {}",
        sanitize(&alarm.text)
    )
}

/// A lever: what it does, to what, how long, how often it rejected, and why.
#[must_use]
pub fn lever(lever: &LeverSnapshot) -> String {
    let replica = lever.replica.as_deref().map(sanitize);
    let replica = replica.map_or_else(String::new, |name| format!(" of {name}"));
    let (id, summary) = (lever.id, sanitize(&lever.summary()));
    let rejected = match lever.value {
        Some(_) => String::new(),
        None => format!(", {} rejected", lever.rejected),
    };
    let reason = match &*lever.reason {
        "" => String::new(),
        reason => format!(": {}", sanitize(reason)),
    };
    format!(
        "{id}{replica} {summary} for another {}{rejected}, by {}{reason}",
        lever.remaining(),
        sanitize(&lever.pulled_by)
    )
}

/// The state of `/readyz` as text, and whether it is healthy.
#[must_use]
pub fn readiness(snapshot: &StatusSnapshot) -> (String, bool) {
    let readiness = &snapshot.readiness;
    match (readiness.ready, &readiness.upstream_failure) {
        _ if readiness.shutting_down => ("shutting down".to_owned(), false),
        (Some(true), _) => ("ready".to_owned(), true),
        _ if readiness.loop_failure.is_some() => {
            ("the upstream leads back to this weir".to_owned(), false)
        }
        (_, Some(why)) => (format!("API server: {}", sanitize(why)), false),
        (None, None) => ("waiting for the API server".to_owned(), true),
        (Some(false), None) => ("not ready".to_owned(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_move_the_cursor() {
        let name = "evil\x1b[2J\r\n\u{9b}31m\u{202e}fox ✓ü";
        assert_eq!(sanitize(name), r"evil\x1b[2J\r\n\u009b31m\u202efox ✓ü");
    }

    #[test]
    fn an_uptime_has_two_units() {
        assert_eq!(
            [59, 61, 3600, 90_000].map(uptime),
            ["59s", "1m01s", "1h00m", "1d01h"]
        );
    }

    #[test]
    fn a_plot_has_the_given_width_and_ends_with_the_newest_value() {
        assert_eq!(plot(&[0.0, 1.0, 4.0, 8.0], 8.0, 3), "▁▄█");
        assert_eq!(plot(&[8.0], 8.0, 3), "  █");
        assert_eq!(plot(&[], 0.0, 2), "  ");
    }
}
