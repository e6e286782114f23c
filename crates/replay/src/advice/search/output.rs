//! The report of a search as text, and as manifests. Pure.

use super::model::{FoundReport, ResampledReport, SearchReport, SearchTotals};
use crate::report::table;
use weir_kubernetes::encoding::printable::escape;
use weir_kubernetes::encoding::yaml::{comment, write_value};

/// The report as text.
#[must_use]
pub fn render_table(report: &SearchReport) -> String {
    let mut text = String::new();
    table::write_input(&mut text, &report.input);
    table::write_model(&mut text, &report.input, &report.model);
    write_objectives(&mut text, report);
    text.push('\n');
    let Some(found) = &report.found else {
        write_line(&mut text, &not_found(report));
        return text;
    };
    for line in result(report, found) {
        write_line(&mut text, &line);
    }
    for shares in &found.shares {
        let (level, before, after) = (&shares.level, shares.configured, shares.found);
        write_line(
            &mut text,
            &format!("shares of {level}: {before} before, {after} after"),
        );
    }
    for seats in &found.seats {
        let (level, before, after) = (&seats.level, seats.configured, seats.found);
        write_line(
            &mut text,
            &format!("seats of {level}: {before} before, {after} after"),
        );
    }
    write_line(&mut text, &tried(report, found));
    for line in sureness(report, found) {
        write_line(&mut text, &line);
    }
    table::write_all_changes(&mut text, &found.changes);
    text
}

/// The objects that change, ready to be applied, with the flags in comments.
#[must_use]
pub fn render_yaml(report: &SearchReport) -> String {
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
    lines.extend(result(report, found));
    lines.push(tried(report, found));
    lines.extend(sureness(report, found));
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
    let (configured, found) = match (&report.found, report.tried_shares) {
        (Some(_), Some(_)) => ("CONFIGURED".to_owned(), "OTHER SHARES".to_owned()),
        (None, Some(_)) => ("CONFIGURED".to_owned(), "CLOSEST".to_owned()),
        (found, None) => {
            let found = found.as_ref().map(|found| found.totals.total);
            let at = |total: u32| format!("AT {total}");
            (
                at(report.configured.total),
                at(found.unwrap_or(report.largest)),
            )
        }
    };
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
    if let Some(tried) = report.tried_shares {
        return format!(
            "With none of the {tried} sets of shares that were tried do the objectives hold at {}. Look for a larger total: \
             --search without --search-shares.",
            report.configured.total
        );
    }
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

/// The total, or that it stays.
fn result(report: &SearchReport, found: &FoundReport) -> Vec<String> {
    let configured = flags(&report.configured);
    if report.tried_shares.is_none() {
        return vec![
            format!("smallest total: {}", flags(&found.totals)),
            format!("configured: {configured}"),
        ];
    }
    vec![if found.shares.is_empty() {
        format!("The objectives hold with the configured shares at the total of {configured}.")
    } else {
        format!("shares for the total of {configured}, with the smallest change that was found:")
    }]
}

fn tried(report: &SearchReport, found: &FoundReport) -> String {
    report.tried_shares.map_or_else(
        || monotonicity(report, found),
        |tried| format!("tried: {tried} sets of shares"),
    )
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

fn sureness(report: &SearchReport, found: &FoundReport) -> Vec<String> {
    let Some(resampled) = &found.resampled else {
        return Vec::new();
    };
    if resampled.of == 0 {
        return vec![
            "not known how sure: none of the logs that were drawn from this one has requests of the objectives".to_owned(),
        ];
    }
    if report.tried_shares.is_some() {
        return sureness_of_shares(found, *resampled);
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

fn sureness_of_shares(found: &FoundReport, resampled: ResampledReport) -> Vec<String> {
    let ResampledReport { held, of, .. } = resampled;
    let mut lines = vec![format!(
        "sure: in {held} of {of} logs drawn from this one the objectives hold with these shares"
    )];
    match found.surer {
        None if found.shares.is_empty() => {}
        None => lines.push(
            "No change of these shares up to eight times of it holds in nine of ten of them."
                .to_owned(),
        ),
        Some(_) if found.surer_shares == found.shares => {}
        Some(ResampledReport { held, of, .. }) => {
            let shares = found.surer_shares.iter().map(|change| {
                let (level, shares) = (&change.level, change.found);
                format!("{level}: {shares}")
            });
            let shares: Vec<String> = shares.collect();
            let shares = shares.join(", ");
            lines.push(format!("in {held} of {of} with the shares {shares}"));
        }
    }
    lines
}

fn write_line(text: &mut String, line: &str) {
    text.push_str(&escape(line));
    text.push('\n');
}
