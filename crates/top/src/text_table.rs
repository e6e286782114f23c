//! The status as plain text.

use std::collections::BTreeMap;

use crate::format;
use crate::format::sanitize;
use crate::view_model::{ViewModel, compare_talkers, talker_rows};
use crate::view_options::ViewOptions;
use weir_base::columns;
use weir_status::snapshot::{StatusSnapshot, TopTalkersStatus};
use weir_talkers::{Dimension, UsageMeasure, Window};

/// Changes that are listed.
const STATUS_CHANGES: usize = 3;

/// The whole status as lines of text.
#[must_use]
pub fn render_table(view_model: &ViewModel, options: &ViewOptions) -> String {
    let Some((now, _)) = &view_model.now else {
        return String::new();
    };
    let mut text = render_overview(now, view_model);
    text.push_str(&render_levels(now, view_model, options));
    if !now.rate_limits.is_empty() {
        text.push('\n');
        text.push_str(&render_limits(view_model, options));
    }
    if let Some(list) = view_model.talker_list(options) {
        text.push('\n');
        text.push_str(&render_talkers(list, options));
    }
    text
}

/// Keeps the lists of this grouping and window, and sorts their rows. `None` keeps all lists and
/// their order.
pub fn select_lists(
    lists: &mut Vec<TopTalkersStatus>,
    by: Option<Dimension>,
    window: Option<Window>,
    sort: Option<UsageMeasure>,
) {
    lists.retain(|list| {
        by.is_none_or(|by| list.by == by.name())
            && window.is_none_or(|window| list.window_seconds == window.duration().as_secs())
    });
    if let Some(sort) = sort {
        for list in lists {
            list.rows.sort_by(|a, b| compare_talkers(sort, a, b));
        }
    }
}

fn render_overview(now: &StatusSnapshot, view_model: &ViewModel) -> String {
    let (ready, _) = format::readiness(now);
    let codes = (2..=5_u16).map(|class| {
        let rate = view_model.rate(|snapshot| format::responses_of_class(snapshot, class));
        format!("{class}xx {}/s", format::known_rate(rate))
    });
    let dry_run = match now.dry_run {
        true => format!(", {}", format::DRY_RUN_LABEL),
        false => String::new(),
    };
    let open: u64 = now.upstream.connections.values().sum();
    let failed: u64 = now.upstream.failures.values().sum();
    let mut lines = vec![format!("weir {}: {ready}{dry_run}", sanitize(&now.version))];
    let (headline, detail) = format::headline(now);
    lines.push(format!("now: {headline}"));
    lines.extend((!detail.is_empty()).then(|| format!("  {detail}")));
    for alarm in &now.alarms {
        lines.push(format!("alarm: {}", format::alarm(alarm, now.unix_ms)));
        lines.push(format!("  {}", sanitize(&alarm.action)));
    }
    for lever in &now.levers {
        lines.push(format!("lever: {}", format::lever(lever)));
    }
    lines.push(format!(
        "requests: {}, in flight {}, watches {}",
        codes.collect::<Vec<_>>().join(", "),
        now.requests.in_flight,
        now.requests.watches
    ));
    lines.extend(format::shown_replicas(now).map(|shown| format!("shown: {shown}")));
    lines.extend(reason_lines("rejections", view_model, |snapshot| {
        &snapshot.rejections
    }));
    if now.dry_run || !now.would_be_rejections.is_empty() {
        let would_be = reason_lines("would-be rejections", view_model, |snapshot| {
            &snapshot.would_be_rejections
        });
        lines.extend(would_be);
        lines.extend(format::would_break(now));
    }
    lines.push(format!(
        "upstream: {open} connections, {failed} requests without a response"
    ));
    lines.push(format!(
        "API server: {}",
        format::api_server(view_model, now)
    ));
    lines.extend(format::api_servers(now).map(|servers| format!("API servers: {servers}")));
    lines.extend(format::replicas(now).map(|replicas| format!("replicas: {replicas}")));
    lines.extend(format::fullest_connection_budget(now).map(|usage| format!("places: {usage}")));
    lines.push(format!(
        "weir itself: {}",
        format::own_state(view_model, now)
    ));
    lines.extend(
        format::last_changes(now, STATUS_CHANGES).map(|changes| format!("changes: {changes}")),
    );
    lines.push("\n".to_owned());
    lines.join("\n")
}

fn reason_lines(
    title: &str,
    view_model: &ViewModel,
    of: fn(&StatusSnapshot) -> &BTreeMap<String, u64>,
) -> Vec<String> {
    let total = view_model.rate(|snapshot| of(snapshot).values().sum());
    let mut lines = vec![format!("{title}: {}/s", format::known_rate(total))];
    let reasons = view_model.now.iter().flat_map(|(now, _)| of(now));
    lines.extend(reasons.map(|(reason, count)| format!("  {}: {count} in all", sanitize(reason))));
    lines
}

fn render_levels(now: &StatusSnapshot, view_model: &ViewModel, options: &ViewOptions) -> String {
    let rows = view_model.level_rows(options).into_iter().map(|row| {
        let level = row.level;
        vec![
            sanitize(&level.name),
            format::seats(level.seats_in_use, level.current_limit),
            format::borrowed(level.borrowed_seats()),
            level.waiting.to_string(),
            row.wait.map_or_else(|| "-".to_owned(), format::duration),
            format::known_rate(row.dispatched),
            format::known_rate(row.rejected),
            level.rejected_total().to_string(),
        ]
    });
    let (rate, count) = match now.dry_run {
        true => ("WOULD-BE/S", "WOULD-BE"),
        false => ("REJECTED/S", "REJECTED"),
    };
    let header = [
        "LEVEL",
        "SEATS",
        "BORROWED",
        "WAITING",
        "WAIT",
        "THROUGH/S",
        rate,
        count,
    ];
    render_columns(&header, 1, rows)
}

fn render_limits(view_model: &ViewModel, options: &ViewOptions) -> String {
    let rows = view_model.limit_rows(options).into_iter().map(|row| {
        let limit = row.limit;
        vec![
            format::limit_name(limit),
            sanitize(&limit.allows),
            format::known_rate(row.passed),
            format::known_rate(row.delayed),
            format::known_rate(row.rejected),
            limit.rejected.to_string(),
            format!("{}/{}", limit.keys, limit.most_keys),
            format::top_rejected_key(limit),
        ]
    });
    let header = [
        "LIMIT",
        "ALLOWS",
        "PASSED/S",
        "DELAYED/S",
        "REJECTED/S",
        "REJECTED",
        "KEYS",
        "REJECTED MOST",
    ];
    render_columns(&header, 2, rows)
}

fn render_talkers(list: &TopTalkersStatus, options: &ViewOptions) -> String {
    let minutes = list.window_seconds / 60;
    let by = format!("{} ({minutes}m)", sanitize(&list.by).to_uppercase());
    let header = [
        by.as_str(),
        "REQUESTS",
        "SEAT-SECONDS",
        "WAITED",
        "BYTES",
        "REJECTED",
        "WOULD BE",
        "UP TO SO MANY MORE",
    ];
    let rows = talker_rows(list, options).into_iter().map(|row| {
        vec![
            sanitize(&row.name),
            row.requests.to_string(),
            format::rate(row.seat_seconds),
            format::duration(row.queue_wait_seconds),
            format::bytes(row.bytes),
            row.rejections.to_string(),
            row.would_be_rejections.to_string(),
            row.error.to_string(),
        ]
    });
    render_columns(&header, 1, rows)
}

/// Cells in columns, of which the first `texts` are no numbers.
fn render_columns(
    header: &[&str],
    texts: usize,
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let header = header.iter().map(|&title| title.to_owned()).collect();
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    columns::align(&rows, texts, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{StatusUpdate, TopModel};
    use weir_limits::rate::top_keys::RateLimitSnapshot;
    use weir_status::snapshot::{SlotHolderStatus, SlotsStatus, TalkerStatus};

    fn model() -> TopModel {
        let mut model = TopModel::default();
        for second in 1..=2 {
            let rejected = second * 50;
            let mut now = StatusSnapshot {
                unix_ms: second * 1000,
                dry_run: true,
                would_be_rejections: [("queue-full".to_owned(), rejected)].into(),
                rate_limits: vec![RateLimitSnapshot {
                    name: "clientLimits/x".to_owned(),
                    allows: "each user: 5/s".to_owned(),
                    dry_run: true,
                    rejected,
                    ..RateLimitSnapshot::default()
                }],
                ..StatusSnapshot::default()
            };
            now.rejections = [("client-limit".to_owned(), 3)].into();
            now.headline.text = "nothing hurts".to_owned();
            now.headline.detail = "all is well".to_owned();
            now.headline.also = vec!["else".to_owned()];
            now.seats.own = 100;
            let places = |kind: &str, taken| SlotsStatus {
                kind: kind.to_owned(),
                total: 10,
                taken,
                holders: vec![SlotHolderStatus {
                    by: "user".to_owned(),
                    name: "alice".to_owned(),
                    taken,
                }],
            };
            now.upstream.places = vec![places("long-running", 1), places("watch", second * 2)];
            model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
        }
        model
    }

    #[test]
    fn a_dry_run_and_limits_are_in_the_table() {
        let model = model();
        let text = render_table(&model.view_model, &model.options);
        for part in [
            ", dry run: levels reject nothing\n",
            "rejections: 0/s\n  client-limit: 3 in all\n",
            "\nplaces: watch 4/10 (most: alice 4)\n",
            "\nnow: nothing hurts\n  all is well; also: else\n",
            "\nAPI server: no response  errors 0/s  total 100\n",
            "\nweir itself: 0.00 processors  0 B\n\n",
            "would-be rejections: 50/s\n  queue-full: 100 in all\n",
            "WOULD-BE/S  WOULD-BE\n",
            "\nclientLimits/x (dry run)  each user: 5/s         0          0          50       100   0/0              -\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn lists_are_selected_by_grouping_and_window_and_sorted() {
        let row = |name: &str, requests, bytes| TalkerStatus {
            name: name.to_owned(),
            requests,
            bytes,
            ..TalkerStatus::default()
        };
        let list = |by: Dimension, window: Window| TopTalkersStatus {
            by: by.name().to_owned(),
            window_seconds: window.duration().as_secs(),
            rows: vec![row("asks", 9, 1), row("reads", 1, 9)],
            ..TopTalkersStatus::default()
        };
        let all = Window::ALL.map(|window| Dimension::ALL.map(|by| list(by, window)));
        let all = all.as_flattened();
        let mut lists = all.to_vec();
        select_lists(&mut lists, None, None, None);
        assert_eq!(lists, all);
        select_lists(&mut lists, None, Some(Window::FiveMinutes), None);
        assert_eq!(lists.len(), Dimension::ALL.len());
        select_lists(
            &mut lists,
            Some(Dimension::Flow),
            None,
            Some(UsageMeasure::Bytes),
        );
        assert_eq!(lists.len(), 1);
        assert_eq!(
            (lists[0].by.as_str(), lists[0].window_seconds),
            ("flow", 300)
        );
        assert_eq!(lists[0].rows[0].name, "reads");
    }
}
