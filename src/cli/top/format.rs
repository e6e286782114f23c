//! Formatting of numbers and names for `weir top`.

use crate::observe::alarms::list::AlarmStatus;
use crate::observe::status::replica_view::ALL_REPLICAS;
use crate::observe::status::snapshot::{SlotsStatus, StatusSnapshot, ViewedReplicaStatus};
use weir_kubernetes::encoding::printable::escape;
use weir_kubernetes::numeric::{saturating_u64, to_f64};
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::snapshot::RateLimitSnapshot;
use weir_limits::rate::top_keys::TopKey;

/// Block characters of a plot, from low to high.
const PLOT_BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Whose requests limits would reject that only count; `None` if there are none.
pub(crate) fn would_break(now: &StatusSnapshot) -> Option<String> {
    let users = now.would_be_rejected_users;
    let name = |user: &TopKey| format!("{} ({})", sanitize(&user.key), count(user.rejections));
    let names: Vec<_> = now.would_be_rejected.iter().map(name).collect();
    let more = users > saturating_u64(names.len());
    let plural = if users == 1 { "user" } else { "users" };
    let rest = if more { ", ..." } else { "" };
    (users > 0).then(|| format!("would break {users} {plural}: {}{rest}", names.join(", ")))
}

/// Explains rejection counts under `--flowcontrol-enforcement=DryRun`.
pub(crate) const DRY_RUN_LABEL: &str = "dry run: levels reject nothing";

/// Makes text that a client may have chosen safe for a terminal: escapes characters that move the
/// cursor, change the direction of the line, or are not printable at all.
#[must_use]
pub(crate) fn sanitize(text: &str) -> String {
    escape(text).into_owned()
}

/// A rate.
#[must_use]
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        ..=0.0 => "0".to_owned(),
        ..0.1 => "<0.1".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        ..100_000.0 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

/// A count.
#[must_use]
pub(crate) fn count(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{:.0}k", to_f64(count) / 1e3),
        _ => format!("{:.0}M", to_f64(count) / 1e6),
    }
}

/// A duration, given in seconds.
#[must_use]
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..=0.0 => "0".to_owned(),
        ..0.001 => "<1ms".to_owned(),
        ..1.0 => format!("{:.0}ms", seconds * 1000.0),
        ..100.0 => format!("{seconds:.1}s"),
        _ => format!("{seconds:.0}s"),
    }
}

/// An uptime, given in seconds.
#[must_use]
pub(crate) fn uptime(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// An amount of data, given in bytes.
#[must_use]
pub(crate) fn bytes(bytes: u64) -> String {
    let mut rest = to_f64(bytes);
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if rest < 1024.0 {
            return format!("{rest:.0} {unit}");
        }
        rest /= 1024.0;
    }
    format!("{rest:.0} TiB")
}

/// Borrowed seats. Negative: seats that are lent.
#[must_use]
pub(crate) fn borrowed(seats: i64) -> String {
    match seats {
        0 => "-".to_owned(),
        1.. => format!("+{seats}"),
        _ => seats.to_string(),
    }
}

/// Executing seats and the current limit of a priority level.
#[must_use]
pub(crate) fn seats(in_use: u64, limit: Option<u32>) -> String {
    match limit {
        Some(limit) => format!("{in_use}/{limit}"),
        None => format!("{in_use}/-"),
    }
}

/// The last `width` values as blocks, relative to `max`. Zero is a space.
#[must_use]
pub(crate) fn plot(values: &[f32], max: f32, width: usize) -> String {
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
pub(crate) fn responses_of_class(snapshot: &StatusSnapshot, class: u16) -> u64 {
    let codes = snapshot.requests.by_code.iter();
    codes
        .filter(|(code, _)| **code / 100 == class)
        .map(|(_, count)| count)
        .sum()
}

/// The name of a limit, marked if it has a dry run.
#[must_use]
pub(crate) fn limit_name(limit: &RateLimitSnapshot) -> String {
    let dry_run = if limit.dry_run { " (dry run)" } else { "" };
    format!("{}{dry_run}", sanitize(&limit.name))
}

/// The key with most rejections of a limit, and their count.
#[must_use]
pub(crate) fn top_rejected_key(limit: &RateLimitSnapshot) -> String {
    let first = limit.top.first();
    first.map_or_else(
        || "-".to_owned(),
        |top| format!("{} ({})", sanitize(&top.key), count(top.rejections)),
    )
}

/// Several API servers: how many are used, and the first of the others. `None` for a single one.
#[must_use]
pub(crate) fn api_servers(snapshot: &StatusSnapshot) -> Option<String> {
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
pub(crate) fn replicas(snapshot: &StatusSnapshot) -> Option<String> {
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
pub(crate) fn shown_replicas(snapshot: &StatusSnapshot) -> Option<String> {
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
pub(crate) fn fullest_connection_budget(snapshot: &StatusSnapshot) -> Option<String> {
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
pub(crate) fn alarm(alarm: &AlarmStatus, now: u64) -> String {
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
pub(crate) fn lever(lever: &LeverSnapshot) -> String {
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
pub(crate) fn readiness(snapshot: &StatusSnapshot) -> (String, bool) {
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
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.04, 3.25, 99.5, 250_000.0].map(rate),
            ["0", "<0.1", "3.2", "100", "250k"]
        );
        assert_eq!(
            [0, 99_999, 100_000, 12_345_678].map(count),
            ["0", "99999", "100k", "12M"]
        );
        assert_eq!(
            [0.0, 0.0002, 0.25, 1.25].map(duration),
            ["0", "<1ms", "250ms", "1.2s"]
        );
        assert_eq!(
            [59, 61, 3600, 90_000].map(uptime),
            ["59s", "1m01s", "1h00m", "1d01h"]
        );
        assert_eq!([10, 2048, 5 << 20].map(bytes), ["10 B", "2 KiB", "5 MiB"]);
    }

    #[test]
    fn a_plot_has_the_given_width_and_ends_with_the_newest_value() {
        assert_eq!(plot(&[0.0, 1.0, 4.0, 8.0], 8.0, 3), "▁▄█");
        assert_eq!(plot(&[8.0], 8.0, 3), "  █");
        assert_eq!(plot(&[], 0.0, 2), "  ");
    }
}
