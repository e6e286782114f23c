//! The tables: levels, heaviest flows, losers and winners, and the groups of requests. Pure.

use crate::report::html::text::{count, escape, milliseconds, number, section};
use crate::report::model::{Change, GroupReport, GroupsReport, LevelReport, Report, RunReport};

/// Rows of a table of flows or other groups.
const MAX_ROWS: usize = 20;

/// The columns of requests.
const GROUP_COLUMNS: [&str; 7] = [
    "arrivals", "executed", "rejected", "wait p50", "wait p99", "longest", "seat-s",
];

/// All levels, of both configurations.
pub(super) fn levels(report: &Report) -> String {
    let mut html = section("Priority levels", "");
    for run in &report.runs {
        html.push_str(&run_title(report, run));
        let rows = run.levels.iter().map(level_row);
        let mut columns = vec!["level", "seats", "with borrowing"];
        columns.extend(GROUP_COLUMNS);
        html.push_str(&table(&columns, 1, rows));
    }
    html.push_str("</section>\n");
    html
}

/// The flows with most work.
pub(super) fn flows(report: &Report) -> String {
    let mut html = section("Heaviest flows", "by seat-seconds");
    for run in &report.runs {
        let mut flows: Vec<_> = run.flows.top.iter().collect();
        flows.sort_by(|a, b| b.seat_seconds.total_cmp(&a.seat_seconds));
        html.push_str(&run_title(report, run));
        let rows = flows.into_iter().take(MAX_ROWS).map(|flow| {
            let mut cells = vec![
                name(&flow.name),
                escape(flow.flow_schema.as_deref().unwrap_or_default()),
                escape(flow.priority_level.as_deref().unwrap_or_default()),
            ];
            cells.extend(group_cells(flow));
            cells
        });
        let mut columns = vec!["flow", "flow schema", "level"];
        columns.extend(GROUP_COLUMNS);
        html.push_str(&table(&columns, 3, rows));
    }
    html.push_str("</section>\n");
    html
}

/// The users that fare worse, and those that fare better.
pub(super) fn changes(report: &Report) -> String {
    let changes = &report.changes;
    if changes.losers.is_empty() && changes.winners.is_empty() {
        return String::new();
    }
    let note = format!("from {} to {}", changes.before, changes.after);
    let mut html = section("Who loses, who wins", &note);
    html.push_str("<div class=\"pair\">\n");
    for (title, users) in [("loses", &changes.losers), ("wins", &changes.winners)] {
        let rows = users.iter().take(MAX_ROWS).map(change_row);
        html.push_str(&table(
            &[title, "arrivals", "rejected", "seconds waited"],
            1,
            rows,
        ));
    }
    html.push_str("</div></section>\n");
    html
}

/// Flow schemas, users, user agents and addresses, each folded up.
pub(super) fn groups(report: &Report) -> String {
    let mut html = section("Requests by group", "those that lost most first");
    let groups: [(&str, GroupsOf); 4] = [
        ("Flow schemas", |run| &run.schemas),
        ("Users", |run| &run.users),
        ("User agents", |run| &run.user_agents),
        ("Addresses", |run| &run.sources),
    ];
    for (title, of) in groups {
        let total = report.runs.iter().map(|run| of(run).count).max();
        let Some(total) = total.filter(|total| *total > 0) else {
            continue;
        };
        html.push_str(&format!(
            "<details><summary>{title} ({})</summary>\n",
            count(total)
        ));
        for run in &report.runs {
            html.push_str(&run_title(report, run));
            let groups = of(run);
            let rows = groups.top.iter().take(MAX_ROWS).chain(&groups.others);
            let rows = rows.map(|group| {
                let mut cells = vec![name(&group.name)];
                cells.extend(group_cells(group));
                cells
            });
            let mut columns = vec!["name"];
            columns.extend(GROUP_COLUMNS);
            html.push_str(&table(&columns, 1, rows));
        }
        html.push_str("</details>\n");
    }
    html.push_str("</section>\n");
    html
}

/// Where the groups of a table are.
type GroupsOf = fn(&RunReport) -> &GroupsReport;

/// The name of the configuration, if there are two.
fn run_title(report: &Report, run: &RunReport) -> String {
    if report.runs.len() < 2 {
        return String::new();
    }
    format!("<p class=\"empty\"><b>{}</b></p>\n", escape(&run.policies))
}

fn level_row(level: &LevelReport) -> Vec<String> {
    let borrowing = format!(
        "{} to {} (of {} to {})",
        level.least_limit, level.greatest_limit, level.min_seats, level.max_seats
    );
    let mut cells = vec![
        format!(
            "{}<span class=\"tag\">{}</span>",
            name(&level.requests.name),
            escape(level.kind)
        ),
        level.nominal_seats.to_string(),
        borrowing,
    ];
    cells.extend(group_cells(&level.requests));
    cells
}

fn group_cells(group: &GroupReport) -> [String; 7] {
    [
        count(group.arrivals),
        count(group.executed),
        count(group.rejected),
        milliseconds(group.wait.p50_ms),
        milliseconds(group.wait.p99_ms),
        milliseconds(group.wait.max_ms),
        number(group.seat_seconds),
    ]
}

fn change_row(change: &Change) -> Vec<String> {
    let [rejected_before, rejected_after] = change.rejected;
    let [waited_before, waited_after] = change.wait_s;
    vec![
        name(&change.user),
        count(change.arrivals),
        format!("{} → {}", count(rejected_before), count(rejected_after)),
        format!("{} → {}", number(waited_before), number(waited_after)),
    ]
}

fn name(text: &str) -> String {
    let text = if text.is_empty() { "(none)" } else { text };
    format!("<bdi title=\"{0}\">{0}</bdi>", escape(text))
}

/// A table whose first `texts` columns are texts. The cells are HTML.
fn table(columns: &[&str], texts: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |n: usize| if n < texts { " class=\"text\"" } else { "" };
    let head: String = columns
        .iter()
        .enumerate()
        .map(|(n, column)| format!("<th scope=\"col\"{}>{column}</th>", class(n)))
        .collect();
    let row = |cells: Vec<String>| {
        let cells = cells.iter().enumerate().map(|(n, cell)| match n {
            0 => format!("<th scope=\"row\">{cell}</th>"),
            n => format!("<td{}>{cell}</td>", class(n)),
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.map(row).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}
