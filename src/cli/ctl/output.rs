//! What `weir ctl` prints. Names may come from clients: they are escaped.

use crate::control::message::{ControlAnswer, EstimateRow, LeverEstimate};
use weir_base::columns;
use weir_kubernetes::encoding::printable::escape;
use weir_limits::levers::LeverSnapshot;
use weir_talkers::TopTalkersReport;

/// Blanks between columns.
const GAP: usize = 3;

/// The text for an answer; empty for one that is printed as an error.
pub(super) fn render(answer: &ControlAnswer) -> String {
    match answer {
        ControlAnswer::Draining { requests, watches } => format!(
            "weir is not ready any more, and ends when its requests and watches have ended: now {requests} and {watches}\n"
        ),
        ControlAnswer::DryRun { estimate, notes } => render_estimate(estimate) + &lines(notes),
        ControlAnswer::Error { .. } => String::new(),
        ControlAnswer::Levers { levers } if levers.is_empty() => {
            "there is no lever in force\n".to_owned()
        }
        ControlAnswer::Levers { levers } => render_levers(levers),
        ControlAnswer::Pulled { lever, notes } => {
            let text = format!(
                "lever {} is in force for {}: {}\n",
                lever.id,
                lever.remaining(),
                escape(&lever.summary())
            );
            text + &lines(notes)
        }
        ControlAnswer::Talkers(report) => render_talkers(report),
        ControlAnswer::Undone { levers, notes, .. } => {
            let line = |lever: &LeverSnapshot| {
                let (id, rejected) = (lever.id, lever.rejected);
                let rejected = match lever.value {
                    Some(_) => String::new(),
                    None => format!(", {rejected} rejected"),
                };
                format!(
                    "lever {id} has ended: {}{rejected}\n",
                    escape(&lever.summary())
                )
            };
            levers.iter().map(line).collect::<String>() + &lines(notes)
        }
    }
}

fn lines(notes: &[String]) -> String {
    let notes = notes.iter();
    notes.map(|note| format!("  {}\n", escape(note))).collect()
}

fn render_levers(levers: &[LeverSnapshot]) -> String {
    const TITLES: [&str; 7] = [
        "ID",
        "ACTION",
        "TARGET",
        "REMAINING",
        "REJECTED",
        "BY",
        "REASON",
    ];
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    for lever in levers {
        let forced = if lever.is_forced { " (forced)" } else { "" };
        let spared = match lever.spared {
            0 => String::new(),
            spared => format!(" ({spared} spared)"),
        };
        rows.push(vec![
            lever.id.to_string(),
            format!("{}{forced}", lever.effect()),
            escape(&lever.target).into_owned(),
            lever.remaining(),
            format!("{}{spared}", lever.rejected),
            escape(&lever.pulled_by).into_owned(),
            escape(&lever.reason).into_owned(),
        ]);
    }
    columns::align(&rows, TITLES.len(), GAP)
}

fn render_talkers(report: &TopTalkersReport) -> String {
    if report.rows.is_empty() {
        return "nothing was seen\n".to_owned();
    }
    const TITLES: [&str; 7] = [
        "NAME", "REQUESTS", "REJECTED", "WOULD BE", "SEAT-S", "QUEUED", "BYTES",
    ];
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    for row in &report.rows {
        rows.push(vec![
            escape(&row.name).into_owned(),
            row.usage.requests.to_string(),
            row.usage.rejections.to_string(),
            row.usage.would_be_rejections.to_string(),
            format!("{:.1}", row.usage.seat_seconds),
            format!("{:.1}s", row.usage.queue_wait_seconds),
            row.usage.bytes.to_string(),
        ]);
    }
    columns::align(&rows, 1, GAP)
}

fn render_estimate(estimate: &LeverEstimate) -> String {
    let Some(requests) = estimate.requests else {
        return "not known: top talkers know no groups\n".to_owned();
    };
    let at_most = if estimate.is_at_most { "at most " } else { "" };
    let seconds = estimate.covered_seconds;
    let mut text =
        format!("it would have hit {at_most}{requests} requests of the last {seconds:.0}s\n");
    let mut rows = Vec::new();
    for EstimateRow { by, name, requests } in &estimate.rows {
        rows.push(vec![
            format!("  {}", escape(by)),
            escape(name).into_owned(),
            requests.to_string(),
        ]);
    }
    text.push_str(&columns::align(&rows, 2, GAP));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levers_are_a_table() {
        let levers = vec![LeverSnapshot {
            id: 3,
            action: "limit".to_owned(),
            qps: Some(5),
            in_flight_limit: Some(2),
            target: "user=alice".to_owned(),
            remaining_seconds: 61.2,
            rejected: 7,
            spared: 1,
            reason: "a\u{7}storm".to_owned(),
            pulled_by: "uid 0, pid 9".to_owned(),
            ..LeverSnapshot::default()
        }];
        let text = render(&ControlAnswer::Levers { levers });
        let line = text.lines().nth(1).unwrap();
        let expected = [
            "3",
            "limit",
            "to",
            "5/s,",
            "2",
            "at",
            "a",
            "time",
            "user=alice",
            "1m2s",
            "7",
            "(1",
            "spared)",
            "uid",
            "0,",
            "pid",
            "9",
        ];
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(&words[..expected.len()], expected);
        assert!(!text.contains('\u{7}'));
    }

    #[test]
    fn an_estimate_says_what_top_talkers_do_not_know() {
        let mut estimate = LeverEstimate {
            covered_seconds: 62.0,
            requests: Some(9),
            is_at_most: true,
            rows: vec![EstimateRow {
                by: "user".to_owned(),
                name: "alice".to_owned(),
                requests: 9,
            }],
        };
        let text = render_estimate(&estimate);
        assert!(
            text.starts_with("it would have hit at most 9 requests of the last 62s\n"),
            "{text}"
        );
        assert!(text.contains("user   alice"), "{text}");
        estimate.requests = None;
        assert!(render_estimate(&estimate).contains("no groups"));
    }
}
