//! A report for a terminal: tables of text. Pure.

use std::fmt::Write as _;

use crate::report::model::{
    AutoTotalReport, Change, ChangesReport, ClosedLoopReport, GroupReport, GroupsReport,
    InputReport, ModelReport, Report, RunReport,
};
use weir_base::columns;
use weir_kubernetes::encoding::printable::escape;

/// The groups of a table.
const MAX_ROWS: usize = 10;

/// The longest name in characters; a longer one loses its middle.
const MAX_NAME: usize = 44;

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    write_input(&mut text, &report.input);
    write_model(&mut text, &report.input, &report.model);
    for run in &report.runs {
        write_run(&mut text, run);
    }
    write_all_changes(&mut text, &report.changes);
    text
}

/// The users who fare worse, and those who fare better.
pub fn write_all_changes(text: &mut String, changes: &ChangesReport) {
    write_changes(
        text,
        &format!("WORSE than {} under {}", changes.before, changes.after),
        &changes.losers,
    );
    write_changes(
        text,
        &format!("BETTER than {} under {}", changes.before, changes.after),
        &changes.winners,
    );
}

/// What was read.
pub fn write_input(text: &mut String, input: &InputReport) {
    let skipped = &input.skipped;
    let from = input.first.as_deref().unwrap_or("-");
    let until = input.last.as_deref().unwrap_or("-");
    line(
        text,
        &format!(
            "{} requests in {} s, from {from} to {until}",
            input.arrivals,
            shown(input.duration_s)
        ),
    );
    line(
        text,
        &format!(
            "recorded: {} rejected, {} s of waiting",
            input.recorded_rejected,
            shown(input.recorded_wait_s)
        ),
    );
    for (count, what) in [
        (skipped.not_json, "lines are not JSON"),
        (skipped.truncated, "files end in the middle of a line"),
        (
            skipped.trailing,
            "compressed files have other bytes behind their end",
        ),
        (
            skipped.not_events,
            "lines are neither audit events nor arrivals",
        ),
        (
            skipped.incomplete,
            "events lack a usable time, user, verb or URL",
        ),
        (
            skipped.malformed_requests,
            "requests are malformed: weir answers them before all limits",
        ),
        (skipped.unknown_fields, "fields are not known"),
        (
            skipped.not_recorded,
            "requests are missing, says the record",
        ),
        (
            input.left_out_retries,
            "recorded rejections are left out: the simulated clients retry",
        ),
    ] {
        if count > 0 {
            line(text, &format!("{count} {what}"));
        }
    }
    write_doubts(text, input);
}

/// What makes the result doubtful.
fn write_doubts(text: &mut String, input: &InputReport) {
    let order = &input.order;
    if order.late > 0 {
        line(
            text,
            &format!(
                "{} requests are replayed late, by {} s at most: --window is {} s",
                order.late,
                shown(order.latest_by_s),
                shown(order.window_s)
            ),
        );
        if input.is_out_of_order() {
            line(
                text,
                "WARNING: more than 1 % are late. What follows says little: see whether times of the log are wrong",
            );
        }
    }
    if let Some(classification) = input.classification
        && classification.different > 0
    {
        line(
            text,
            &format!(
                "WARNING: {} of {} requests match another flow schema than was recorded. FlowSchemas of the cluster are not \
                 read: --flowcontrol-config",
                classification.different, classification.recorded
            ),
        );
    }
}

/// The assumptions, and whether they fit the log.
pub fn write_model(text: &mut String, input: &InputReport, model: &ModelReport) {
    let mut said = format!("clients: {}", model.clients);
    if model.service_time_scale != 1.0 {
        let _ = write!(said, ", service times × {}", model.service_time_scale);
    }
    if let Some(capacity) = model.capacity {
        let _ = write!(said, ", capacity of {capacity} requests at a time");
    }
    line(text, &said);
    if let Some(unfit) = input.unfit_clients(model) {
        line(text, &format!("WARNING: {unfit}"));
    }
}

fn write_run(text: &mut String, run: &RunReport) {
    let seats = if run.limiter == "fairness" {
        "seats"
    } else {
        "slots"
    };
    let _ = write!(
        text,
        "\n{}: {}, {} {seats}\n",
        escape(&run.policies),
        run.limiter,
        run.seats
    );
    let mut rows = vec![group_titles("PRIORITY LEVEL")];
    rows.extend(
        run.levels
            .iter()
            .map(|level| group_row(&level.requests, &level.requests.name)),
    );
    rows.push(group_row(&run.total, &run.total.name));
    write_table(text, &rows);
    let by = [
        ("FLOW SCHEMA", &run.schemas),
        ("FLOW", &run.flows),
        ("USER", &run.users),
        ("USER AGENT", &run.user_agents),
        ("ADDRESS", &run.sources),
    ];
    for (title, groups) in by {
        write_groups(text, title, groups);
    }
    let reasons: Vec<String> = run
        .total
        .rejected_by
        .iter()
        .map(|(by, count)| format!("{count} {by}"))
        .collect();
    if !reasons.is_empty() {
        let _ = write!(text, "\nrejected by: {}\n", reasons.join(", "));
    }
    if let Some(delays) = run.closed_loop {
        write_delays(text, delays);
    }
    if let Some(total) = &run.auto_total {
        write_auto_total(text, total);
    }
}

fn write_auto_total(text: &mut String, total: &AutoTotalReport) {
    let AutoTotalReport {
        least,
        greatest,
        last,
        changes,
        target_ms,
        ref large_changes,
    } = *total;
    let target = shown(target_ms);
    let _ = write!(
        text,
        "\ntotal found for small reads of {target} ms: {least} to {greatest} seats, {last} at the end, {changes} changes\n"
    );
    for change in large_changes.iter().take(MAX_ROWS) {
        let at = shown(change.at_s);
        line(
            text,
            &format!("  at {at} s: {} seats, {}", change.seats, change.reason),
        );
    }
    let more = large_changes.len().saturating_sub(MAX_ROWS);
    if more > 0 {
        line(
            text,
            &format!("  and {more} more changes by more than a fifth"),
        );
    }
}

fn write_delays(text: &mut String, delays: ClosedLoopReport) {
    let _ = write!(
        text,
        "\nsent later than in the record, since clients wait for their own requests: {}",
        delays.sent_later
    );
    if delays.sent_later > 0 {
        let (mean, longest) = (shown(delays.mean_s), shown(delays.longest_s));
        let _ = write!(text, ", by {mean} s on average and {longest} s at most");
    }
    text.push('\n');
    if delays.log_paused_s > 0.0 {
        let paused = shown(delays.log_paused_s);
        line(
            text,
            &format!("too many waited: the whole log is later by {paused} s at its end"),
        );
    }
}

fn write_groups(text: &mut String, title: &str, groups: &GroupsReport) {
    if groups.top.is_empty() {
        return;
    }
    text.push('\n');
    let mut rows = vec![group_titles(title)];
    for group in groups.top.iter().take(MAX_ROWS) {
        let name = match &group.flow_schema {
            Some(schema) => format!("{schema}/{}", group.name),
            None => group.name.clone(),
        };
        rows.push(group_row(group, &name));
    }
    write_table(text, &rows);
    let shown = u64::try_from(MAX_ROWS).unwrap_or(u64::MAX);
    if groups.count > shown {
        line(text, &format!("and {} more", groups.count - shown));
    }
}

fn group_titles(title: &str) -> Vec<String> {
    [
        title, "ARRIVED", "EXECUTED", "REJECTED", "WAITED", "P50 MS", "P99 MS", "MAX MS", "SEAT-S",
    ]
    .map(str::to_owned)
    .into()
}

fn group_row(group: &GroupReport, name: &str) -> Vec<String> {
    vec![
        printable(name),
        group.arrivals.to_string(),
        group.executed.to_string(),
        group.rejected.to_string(),
        group.wait.waited.to_string(),
        shown(group.wait.p50_ms),
        shown(group.wait.p99_ms),
        shown(group.wait.max_ms),
        shown(group.seat_seconds),
    ]
}

fn write_changes(text: &mut String, title: &str, changes: &[Change]) {
    if changes.is_empty() {
        return;
    }
    let _ = write!(text, "\n{}\n", escape(title));
    let titles = ["USER", "ARRIVED", "REJECTED", "AFTER", "WAITED S", "AFTER"];
    let mut rows: Vec<Vec<String>> = vec![titles.map(str::to_owned).into()];
    for change in changes.iter().take(MAX_ROWS) {
        let ([rejected_before, rejected_after], [wait_before, wait_after]) =
            (change.rejected, change.wait_s);
        rows.push(vec![
            printable(&change.user),
            change.arrivals.to_string(),
            rejected_before.to_string(),
            rejected_after.to_string(),
            shown(wait_before),
            shown(wait_after),
        ]);
    }
    write_table(text, &rows);
}

/// The first column is text, all others are numbers.
pub fn write_table(text: &mut String, rows: &[Vec<String>]) {
    text.push_str(&columns::align(rows, 1, 2));
}

fn line(text: &mut String, words: &str) {
    text.push_str(words);
    text.push('\n');
}

/// Three digits after the point where the number is small, none where it is large.
fn shown(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n.abs() < 10.0 => format!("{n:.3}"),
        n if n.abs() < 1000.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// A name of bounded length, with what is not printable escaped.
pub fn printable(name: &str) -> String {
    let characters: Vec<char> = escape(name).chars().collect();
    if characters.len() <= MAX_NAME {
        return characters.into_iter().collect();
    }
    let side = MAX_NAME / 2;
    let begin = characters.iter().take(side);
    let end = characters.iter().skip(characters.len() - side + 1);
    begin.chain(['…'].iter()).chain(end).collect()
}
