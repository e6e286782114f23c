//! The beginning and the end of the page: what was replayed, the answers in numbers, and how the page
//! was made. Pure.

use crate::report::html::text::{count, escape, milliseconds, number, percent, section};
use crate::report::model::{InputReport, Report, RunReport};

/// What the page says about its origin, besides the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageOrigin {
    /// The style that this page shares with others.
    pub base_style: &'static str,
    /// The files that were read.
    pub files: Vec<String>,
    /// The command line, without the name of the program.
    pub command_line: Vec<String>,
    /// When the page was made, in RFC 3339.
    pub made_at: String,
}

/// The title, the range of time and the versions.
pub(super) fn header(report: &Report) -> String {
    let input = &report.input;
    let range = match (&input.first, &input.last) {
        (Some(first), Some(last)) => format!("{} to {}", escape(first), escape(last)),
        _ => "no requests".to_owned(),
    };
    let names: Vec<_> = report
        .runs
        .iter()
        .map(|run| escape(&run.policies))
        .collect();
    format!(
        "<header><h1>weir replay</h1><div class=\"facts\"><span>{range}</span>\
         <span>{} requests</span><span>{}</span><span>weir {}</span></div></header>\n",
        count(input.arrivals),
        names.join(" → "),
        escape(env!("CARGO_PKG_VERSION")),
    )
}

/// The cards: of two configurations, the second beside the first.
pub(super) fn answers(report: &Report) -> String {
    let cards = [
        card(report, "Rejected requests", |run| {
            let total = &run.total;
            let share = percent(total.rejected, total.arrivals);
            (
                to_card(total.rejected),
                format!("{share} of {}", count(total.arrivals)),
            )
        }),
        card(report, "Waits (99 of 100 are shorter)", |run| {
            let wait = &run.total.wait;
            let longest = milliseconds(wait.max_ms);
            (milliseconds(wait.p99_ms), format!("the longest {longest}"))
        }),
        card(report, "Seat-seconds", |run| {
            let seats = match run.seats {
                0 => "not limited".to_owned(),
                seats => format!("{} seats", count(seats)),
            };
            (number(run.total.seat_seconds), seats)
        }),
    ];
    format!("<div class=\"answers\">{}</div>\n", cards.concat())
}

fn to_card(rejected: u64) -> String {
    count(rejected)
}

fn card(report: &Report, title: &str, of: impl Fn(&RunReport) -> (String, String)) -> String {
    let values: Vec<_> = report.runs.iter().map(&of).collect();
    let big = values.iter().map(|(value, _)| escape(value));
    let big = big.collect::<Vec<_>>().join(" → ");
    let sub = values.iter().map(|(_, sub)| escape(sub));
    let sub = sub.collect::<Vec<_>>().join(" → ");
    let class = if big.len() > 18 { "big long" } else { "big" };
    format!(
        "<div class=\"card\"><h2>{}</h2><div class=\"{class}\">{big}</div><div class=\"sub\">{sub}</div></div>",
        escape(title)
    )
}

/// The inputs, the flags and the assumptions.
pub(super) fn origin(report: &Report, origin: &PageOrigin) -> String {
    let (input, model) = (&report.input, &report.model);
    let mut rows = vec![
        ("Log", origin.files.join(", ")),
        ("Command", format!("weir {}", origin.command_line.join(" "))),
        ("Made", origin.made_at.clone()),
        (
            "Time",
            format!(
                "{} to {} ({} s)",
                input.first.as_deref().unwrap_or("-"),
                input.last.as_deref().unwrap_or("-"),
                number(input.duration_s)
            ),
        ),
        ("Lines", count(input.lines)),
        ("Clients", model.clients.to_owned()),
    ];
    if model.service_time_scale != 1.0 {
        let scale = format!("recorded ones times {}", number(model.service_time_scale));
        rows.push(("Service times", scale));
    }
    if let Some(capacity) = model.capacity {
        rows.push((
            "Capacity",
            format!("{} requests at full speed", number(capacity)),
        ));
    }
    rows.extend(recorded(input).map(|recorded| ("In the log", recorded)));
    let delays = report.runs.iter().filter_map(delays);
    rows.extend(delays.map(|delays| ("Sent later than in the log", delays)));
    if let Some(classification) = input.classification {
        let schemas = format!(
            "{} of {} requests match another one than was recorded",
            count(classification.different),
            count(classification.recorded)
        );
        rows.push(("Flow schemas", schemas));
    }
    rows.extend(input.unfit_clients(model).map(|unfit| ("Warning", unfit)));
    if input.is_out_of_order() {
        let warning = "more than 1 % of the requests are replayed late: the results say little";
        rows.push(("Warning", warning.to_owned()));
    }
    let skipped = skipped(report);
    if !skipped.is_empty() {
        rows.push(("Not used", skipped.join("; ")));
    }
    let rows: String = rows
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escape(&value)))
        .collect();
    format!(
        "{}<dl>{rows}</dl></section>\n",
        section("How this was made", "")
    )
}

/// What the log says became of its requests.
fn recorded(input: &InputReport) -> Option<String> {
    let has_any = input.recorded_rejected > 0 || input.recorded_wait_s > 0.0;
    has_any.then(|| {
        format!(
            "{} requests rejected, {} s waited",
            count(input.recorded_rejected),
            number(input.recorded_wait_s)
        )
    })
}

/// What clients sent later, because they waited for their own requests.
fn delays(run: &RunReport) -> Option<String> {
    let delays = run.closed_loop?;
    Some(format!(
        "{} requests, by {} s on average and {} s at most, under {}; the whole log by {} s at its end",
        count(delays.sent_later),
        number(delays.mean_s),
        number(delays.longest_s),
        run.policies,
        number(delays.log_paused_s)
    ))
}

fn skipped(report: &Report) -> Vec<String> {
    let skipped = &report.input.skipped;
    let counts = [
        (skipped.not_json, "lines that are not JSON"),
        (skipped.truncated, "lines that are cut off"),
        (
            skipped.trailing,
            "compressed files with other bytes behind their end",
        ),
        (skipped.not_events, "lines that are no requests"),
        (
            skipped.incomplete,
            "lines without time, user, method or URL",
        ),
        (skipped.malformed_requests, "requests that are malformed"),
        (skipped.not_recorded, "requests that the record has lost"),
        (report.input.order.late, "requests replayed late"),
    ];
    let counts = counts.into_iter().filter(|(number, _)| *number > 0);
    counts
        .map(|(number, what)| format!("{} {what}", count(number)))
        .collect()
}
