//! The report of a search as text, and as manifests. Pure.

use super::model::FoundReport;
use super::model::ResampledReport;
use super::model::SearchReport;
use super::model::SearchTotals;
use crate::encoding::yaml::comment;
use crate::encoding::yaml::write_value;
use crate::replay::report::table;

/// The report as text.
#[must_use]
pub(crate) fn render_table(report: &SearchReport) -> String {
    let mut text = String::new();
    table::write_input(&mut text, &report.input);
    table::write_model(&mut text, &report.model);
    write_objectives(&mut text, report);
    text.push('\n');
    let Some(found) = &report.found else {
        write_line(&mut text, &not_found(report));
        return text;
    };
    write_line(&mut text, &smallest_total(found));
    write_line(
        &mut text,
        &format!("configured: {}", flags(&report.configured)),
    );
    for shares in &found.shares {
        let (level, before, after) = (&shares.level, shares.configured, shares.found);
        write_line(
            &mut text,
            &format!(
                "shares of {}: {before} before, {after} after",
                table::printable(level)
            ),
        );
    }
    write_line(&mut text, &monotonicity(report, found));
    for line in sureness(found) {
        write_line(&mut text, &line);
    }
    table::write_all_changes(&mut text, &found.changes);
    text
}

/// The objects that change, ready to be applied, with the flags in comments.
#[must_use]
pub(crate) fn render_yaml(report: &SearchReport) -> String {
    let mut lines = vec!["weir replay --search".to_owned()];
    for objective in &report.objectives {
        lines.push(format!(
            "objective: {} (configured: {}, here: {})",
            objective.objective, objective.configured.value, objective.found.value
        ));
    }
    let Some(found) = &report.found else {
        lines.push(not_found(report));
        return comment(&lines);
    };
    lines.push(smallest_total(found));
    lines.push(format!("configured: {}", flags(&report.configured)));
    lines.push(monotonicity(report, found));
    lines.extend(sureness(found));
    if found.objects.is_empty() {
        lines.push("No object changes.".to_owned());
    }
    let mut text = comment(&lines);
    for object in &found.objects {
        text.push_str("---\n");
        write_value(object, 0, &mut text);
    }
    text
}

fn write_objectives(text: &mut String, report: &SearchReport) {
    let found = match &report.found {
        Some(found) => format!("AT {}", found.totals.total),
        None => format!("AT {}", report.largest),
    };
    let configured = format!("AT {}", report.configured.total);
    let mut rows = vec![
        [
            "OBJECTIVE".to_owned(),
            configured,
            String::new(),
            found,
            String::new(),
        ]
        .into(),
    ];
    for objective in &report.objectives {
        let (before, after) = (&objective.configured, &objective.found);
        rows.push(vec![
            table::printable(&objective.objective),
            before.value.clone(),
            holds(before.holds).to_owned(),
            after.value.clone(),
            holds(after.holds).to_owned(),
        ]);
    }
    text.push('\n');
    table::write_table(text, &rows);
}

const fn holds(holds: bool) -> &'static str {
    if holds { "holds" } else { "does not" }
}

fn not_found(report: &SearchReport) -> String {
    let held = report.tried.iter().rev().find(|tried| tried.holds);
    let but = held.map_or_else(String::new, |tried| {
        format!(" (they hold at {}, but not at more)", tried.total)
    });
    format!(
        "The objectives hold at no total up to {}{but}. Seats are not what the requests lack.",
        report.largest
    )
}

fn flags(totals: &SearchTotals) -> String {
    format!(
        "{} (--max-requests-inflight={} --max-mutating-requests-inflight={})",
        totals.total,
        totals.flags.max_requests_inflight,
        totals.flags.max_mutating_requests_inflight
    )
}

fn smallest_total(found: &FoundReport) -> String {
    format!("smallest total: {}", flags(&found.totals))
}

/// What was tried, and whether it contradicts itself.
fn monotonicity(report: &SearchReport, found: &FoundReport) -> String {
    let total = found.totals.total;
    let above = report.tried.iter().filter(|tried| tried.total > total);
    let below = report.tried.iter().filter(|tried| tried.total < total);
    let tried = format!(
        "tried: {} larger totals, at which the objectives hold, and {} smaller ones",
        above.count(),
        below.clone().count()
    );
    let held = below.filter(|tried| tried.holds);
    let held: Vec<String> = held.map(|tried| tried.total.to_string()).collect();
    if held.is_empty() {
        return format!("{tried}, at which they do not");
    }
    let failed: Vec<String> = report.contradictions.iter().map(u32::to_string).collect();
    format!(
        "{tried}. More is not always better here: they hold at {}, and do not at {}",
        held.join(", "),
        failed.join(", ")
    )
}

fn sureness(found: &FoundReport) -> Vec<String> {
    let Some(resampled) = &found.resampled else {
        return Vec::new();
    };
    if resampled.of == 0 {
        return vec![
            "not known how sure: none of the logs that were drawn from this one has requests of the objectives".to_owned(),
        ];
    }
    let mut lines = vec![format!(
        "sure: in {} of {} logs drawn from this one the objectives hold at {}",
        resampled.held, resampled.of, resampled.totals.total
    )];
    lines.push(match &found.surer {
        None => "No total up to eight times of it holds in nine of ten of them.".to_owned(),
        Some(ResampledReport { totals, .. }) if totals.total == found.totals.total => return lines,
        Some(surer) => format!(
            "in {} of {} at {}",
            surer.held,
            surer.of,
            flags(&surer.totals)
        ),
    });
    lines
}

fn write_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}
