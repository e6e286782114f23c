//! `weir top --once`: the same as one table, for a script or a look through a narrow door.

use std::fmt::Write;

use crate::cli::top::model::Shown;
use crate::cli::top::model::Ui;
use crate::cli::top::words;
use crate::cli::top::words::plain;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talkers;

/// Everything as text, in lines.
#[must_use]
pub fn table(shown: &Shown, ui: &Ui) -> String {
    let Some((now, _)) = &shown.now else {
        return String::new();
    };
    let mut text = overview(now, shown);
    text.push_str(&levels(shown, ui));
    if let Some(list) = shown.talkers(ui) {
        text.push('\n');
        text.push_str(&talkers(list));
    }
    text
}

fn overview(now: &Snapshot, shown: &Shown) -> String {
    let (ready, _) = words::readiness(now);
    let codes = (2..=5_u16).map(|class| {
        let rate = shown.rate(|snapshot| words::of_class(snapshot, class));
        format!("{class}xx {}/s", words::rate(rate))
    });
    let rejected = shown.rate(|snapshot| snapshot.rejections.values().sum());
    let open: u64 = now.upstream.connections.values().sum();
    let failed: u64 = now.upstream.failures.values().sum();
    let mut lines = vec![
        format!("weir {}: {ready}", plain(&now.version)),
        format!(
            "requests: {}, in flight {}, watches {}",
            codes.collect::<Vec<_>>().join(", "),
            now.requests.in_flight,
            now.requests.watches
        ),
        format!("rejections: {}/s", words::rate(rejected)),
    ];
    for (reason, count) in &now.rejections {
        lines.push(format!("  {}: {count} in all", plain(reason)));
    }
    lines.push(format!(
        "upstream: {open} connections, {failed} requests without an answer\n\n"
    ));
    lines.join("\n")
}

fn levels(shown: &Shown, ui: &Ui) -> String {
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
    let head = [
        "LEVEL",
        "SEATS",
        "BORROWED",
        "WAITING",
        "WAIT",
        "THROUGH/S",
        "REJECTED/S",
        "REJECTED",
    ];
    columns(&head, rows.collect())
}

fn talkers(list: &Talkers) -> String {
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
    let rows = list.rows.iter().map(|row| {
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
    columns(&head, rows.collect())
}

/// Cells in columns: the first to the left, the others to the right.
fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
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
            let _ = match at {
                0 => write!(text, "{cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let rows = vec![
            vec!["a".to_owned(), "100".to_owned()],
            vec!["longer".to_owned(), "7".to_owned()],
        ];
        assert_eq!(
            columns(&["N", "X"], rows),
            "N         X\na       100\nlonger    7\n"
        );
    }
}
