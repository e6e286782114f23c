//! `weir top --once`: the same as one table, for a script or a look through a narrow door.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::cli::top::shown::Shown;
use crate::cli::top::shown::most_first;
use crate::cli::top::shown::talking;
use crate::cli::top::ui::Ui;
use crate::cli::top::words;
use crate::cli::top::words::plain;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talkers;
use crate::observe::talkers::By;
use crate::observe::talkers::Sort;
use crate::observe::talkers::Window;

/// Everything as text, in lines.
#[must_use]
pub fn table(shown: &Shown, ui: &Ui) -> String {
    let Some((now, _)) = &shown.now else {
        return String::new();
    };
    let mut text = overview(now, shown);
    text.push_str(&levels(now, shown, ui));
    if !now.rate_limits.is_empty() {
        text.push('\n');
        text.push_str(&limits(shown, ui));
    }
    if let Some(list) = shown.talkers(ui) {
        text.push('\n');
        text.push_str(&talkers(list, ui));
    }
    text
}

/// The lists that are asked for, in the order that is asked for; without a wish all, as they came.
pub fn choose(
    lists: &mut Vec<Talkers>,
    by: Option<By>,
    window: Option<Window>,
    sort: Option<Sort>,
) {
    lists.retain(|list| {
        by.is_none_or(|by| list.by == by.name())
            && window.is_none_or(|window| list.window_seconds == window.length().as_secs())
    });
    if let Some(sort) = sort {
        for list in lists {
            list.rows.sort_by(|a, b| most_first(sort, a, b));
        }
    }
}

fn overview(now: &Snapshot, shown: &Shown) -> String {
    let (ready, _) = words::readiness(now);
    let codes = (2..=5_u16).map(|class| {
        let rate = shown.rate(|snapshot| words::of_class(snapshot, class));
        format!("{class}xx {}/s", words::rate(rate))
    });
    let dry_run = match now.dry_run {
        true => format!(", {}", words::DRY_RUN),
        false => String::new(),
    };
    let open: u64 = now.upstream.connections.values().sum();
    let failed: u64 = now.upstream.failures.values().sum();
    let mut lines = vec![
        format!("weir {}: {ready}{dry_run}", plain(&now.version)),
        format!(
            "requests: {}, in flight {}, watches {}",
            codes.collect::<Vec<_>>().join(", "),
            now.requests.in_flight,
            now.requests.watches
        ),
    ];
    lines.extend(by_reason("rejections", shown, |snapshot| {
        &snapshot.rejections
    }));
    if now.dry_run {
        let would_be = by_reason("would-be rejections", shown, |snapshot| {
            &snapshot.would_be_rejections
        });
        lines.extend(would_be);
    }
    lines.push(format!(
        "upstream: {open} connections, {failed} requests without an answer"
    ));
    lines.extend(words::places(now).map(|places| format!("places: {places}")));
    lines.push("\n".to_owned());
    lines.join("\n")
}

fn by_reason(
    title: &str,
    shown: &Shown,
    of: fn(&Snapshot) -> &BTreeMap<String, u64>,
) -> Vec<String> {
    let all = shown.rate(|snapshot| of(snapshot).values().sum());
    let mut lines = vec![format!("{title}: {}/s", words::rate(all))];
    let reasons = shown.now.iter().flat_map(|(now, _)| of(now));
    lines.extend(reasons.map(|(reason, count)| format!("  {}: {count} in all", plain(reason))));
    lines
}

fn levels(now: &Snapshot, shown: &Shown, ui: &Ui) -> String {
    let rows = shown.levels(ui).into_iter().map(|row| {
        let level = row.level;
        vec![
            plain(&level.name),
            words::seats(level.seats_in_use, level.current_limit),
            words::borrowed(level.borrowed()),
            level.waiting.to_string(),
            row.wait.map_or_else(|| "-".to_owned(), words::time),
            words::rate(row.through),
            words::rate(row.rejected),
            level.rejections().to_string(),
        ]
    });
    let (rate, count) = match now.dry_run {
        true => ("WOULD-BE/S", "WOULD-BE"),
        false => ("REJECTED/S", "REJECTED"),
    };
    let head = [
        "LEVEL",
        "SEATS",
        "BORROWED",
        "WAITING",
        "WAIT",
        "THROUGH/S",
        rate,
        count,
    ];
    columns(&head, 1, rows.collect())
}

fn limits(shown: &Shown, ui: &Ui) -> String {
    let rows = shown.limits(ui).into_iter().map(|row| {
        let limit = row.limit;
        vec![
            words::limit(limit),
            plain(&limit.allows),
            words::rate(row.passed),
            words::rate(row.delayed),
            words::rate(row.rejected),
            limit.rejected.to_string(),
            format!("{}/{}", limit.keys, limit.most_keys),
            words::refused_most(limit),
        ]
    });
    let head = [
        "LIMIT",
        "ALLOWS",
        "PASSED/S",
        "DELAYED/S",
        "REFUSED/S",
        "REFUSED",
        "KEYS",
        "REFUSED MOST",
    ];
    columns(&head, 2, rows.collect())
}

fn talkers(list: &Talkers, ui: &Ui) -> String {
    let minutes = list.window_seconds / 60;
    let by = format!("{} ({minutes}m)", plain(&list.by).to_uppercase());
    let head = [
        by.as_str(),
        "REQUESTS",
        "SEAT-SECONDS",
        "WAITED",
        "BYTES",
        "REJECTED",
        "UP TO SO MANY MORE",
    ];
    let rows = talking(list, ui).into_iter().map(|row| {
        vec![
            plain(&row.name),
            row.requests.to_string(),
            words::rate(row.seat_seconds),
            words::time(row.queue_wait_seconds),
            words::bytes(row.bytes),
            row.rejections.to_string(),
            row.error.to_string(),
        ]
    });
    columns(&head, 1, rows.collect())
}

/// Cells in columns: the first `texts` to the left, the others to the right.
fn columns(head: &[&str], texts: usize, rows: Vec<Vec<String>>) -> String {
    let head = head.iter().map(|&title| title.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(row.len(), 0);
        for (cell, width) in row.iter().zip(&mut widths) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let between = if at > 0 { "  " } else { "" };
            let _ = match at < texts {
                true => write!(text, "{between}{cell:width$}"),
                false => write!(text, "{between}{cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::model::Message;
    use crate::cli::top::model::Model;
    use crate::limits::rates::RateLimit;
    use crate::observe::status::snapshot::PlaceHolder;
    use crate::observe::status::snapshot::Places;
    use crate::observe::status::snapshot::Talker;

    #[test]
    fn columns_stand_under_each_other() {
        let rows = vec![
            vec!["a".to_owned(), "100".to_owned()],
            vec!["longer".to_owned(), "7".to_owned()],
        ];
        assert_eq!(
            columns(&["N", "X"], 1, rows),
            "N         X\na       100\nlonger    7\n"
        );
    }

    fn model() -> Model {
        let mut model = Model::default();
        for second in 1..=2 {
            let rejected = second * 50;
            let mut now = Snapshot {
                unix_ms: second * 1000,
                dry_run: true,
                would_be_rejections: [("queue-full".to_owned(), rejected)].into(),
                rate_limits: vec![RateLimit {
                    name: "clientLimits/x".to_owned(),
                    allows: "each user: 5/s".to_owned(),
                    dry_run: true,
                    rejected,
                    ..RateLimit::default()
                }],
                ..Snapshot::default()
            };
            now.rejections = [("client-limit".to_owned(), 3)].into();
            let places = |kind: &str, taken| Places {
                kind: kind.to_owned(),
                total: 10,
                taken,
                holders: vec![PlaceHolder {
                    by: "user".to_owned(),
                    name: "alice".to_owned(),
                    taken,
                }],
            };
            now.upstream.places = vec![places("long-running", 1), places("watch", second * 2)];
            model.heard(Message::Snapshot(Box::new(now)));
        }
        model
    }

    #[test]
    fn a_dry_run_and_limits_are_in_the_table() {
        let model = model();
        let text = table(&model.shown, &model.ui);
        for part in [
            ", dry run: levels refuse nothing\n",
            "rejections: 0/s\n  client-limit: 3 in all\n",
            "\nplaces: watch 4/10 (most: alice 4)\n\n",
            "would-be rejections: 50/s\n  queue-full: 100 in all\n",
            "WOULD-BE/S  WOULD-BE\n",
            "\nclientLimits/x (dry run)  each user: 5/s         0          0         50      100   0/0             -\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn lists_are_chosen_by_what_is_asked_for_and_sorted() {
        let row = |name: &str, requests, bytes| Talker {
            name: name.to_owned(),
            requests,
            bytes,
            ..Talker::default()
        };
        let list = |by: By, window: Window| Talkers {
            by: by.name().to_owned(),
            window_seconds: window.length().as_secs(),
            rows: vec![row("asks", 9, 1), row("reads", 1, 9)],
            ..Talkers::default()
        };
        let all = Window::ALL.map(|window| By::ALL.map(|by| list(by, window)));
        let all = all.as_flattened();
        let mut lists = all.to_vec();
        choose(&mut lists, None, None, None);
        assert_eq!(lists, all);
        choose(&mut lists, None, Some(Window::FiveMinutes), None);
        assert_eq!(lists.len(), By::ALL.len());
        choose(&mut lists, Some(By::Flow), None, Some(Sort::Bytes));
        assert_eq!(lists.len(), 1);
        assert_eq!(
            (lists[0].by.as_str(), lists[0].window_seconds),
            ("flow", 300)
        );
        assert_eq!(lists[0].rows[0].name, "reads");
    }
}
