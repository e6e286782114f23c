//! Whole pages, with names that clients chose.

use std::collections::BTreeMap;

use super::*;
use crate::report::model::{
    Change, ChangesReport, ClosedLoopReport, GroupReport, GroupsReport, InputReport, LevelReport,
    LevelSeries, ModelReport, RunReport, SeriesReport,
};

/// A name that would do harm if it became markup.
const HOSTILE: &str =
    "</title></style><script>alert(1)</script><img src=x onerror='alert(2)'>\"\u{202e}";

fn group(name: &str, rejected: u64) -> GroupReport {
    GroupReport {
        name: name.to_owned(),
        arrivals: 10_000,
        executed: 10_000 - rejected,
        rejected,
        rejected_by: BTreeMap::from([("queue-full", rejected)]),
        flow_schema: Some(HOSTILE.to_owned()),
        priority_level: Some(HOSTILE.to_owned()),
        seat_seconds: 12.5,
        ..GroupReport::default()
    }
}

fn groups(rejected: u64) -> GroupsReport {
    GroupsReport {
        count: 1,
        top: vec![group(HOSTILE, rejected)],
        others: Some(group("others", 0)),
    }
}

fn level_series(name: &str) -> LevelSeries {
    LevelSeries {
        name: name.to_owned(),
        arrivals: vec![5; 100],
        dispatched: vec![4; 100],
        rejected: vec![1; 100],
        longest_wait_ms: vec![250.0; 100],
        seats_in_use: (0..100).map(f64::from).collect(),
        seats_limit: vec![120.0; 100],
        waiting: vec![7; 100],
    }
}

fn run(policies: &str, rejected: u64) -> RunReport {
    let levels = [HOSTILE, "quiet", "exempt"];
    let level = |name: &str| LevelReport {
        requests: group(name, rejected),
        kind: "Queue",
        nominal_seats: 100,
        min_seats: 50,
        max_seats: 200,
        least_limit: 90,
        greatest_limit: 120,
        most_seats_in_use: 99,
        most_waiting: 7,
    };
    RunReport {
        policies: policies.to_owned(),
        limiter: "fairness",
        seats: 600,
        total: group("all", rejected),
        levels: levels.map(level).into(),
        schemas: groups(rejected),
        flows: groups(rejected),
        users: groups(rejected),
        user_agents: groups(rejected),
        sources: GroupsReport::default(),
        series: SeriesReport {
            start: Some("2026-11-23T19:00:00Z".to_owned()),
            step_s: 1.0,
            levels: levels.map(level_series).into(),
        },
        closed_loop: None,
        auto_total: None,
    }
}

fn report(runs: Vec<RunReport>) -> Report {
    Report {
        input: InputReport {
            lines: 10_001,
            arrivals: 10_000,
            first: Some("2026-11-23T19:00:00Z".to_owned()),
            last: Some("2026-11-23T19:01:40Z".to_owned()),
            duration_s: 100.0,
            ..InputReport::default()
        },
        model: ModelReport {
            clients: "open",
            service_time_scale: 1.0,
            capacity: None,
        },
        runs,
        changes: ChangesReport {
            before: HOSTILE.to_owned(),
            after: "after".to_owned(),
            losers: vec![Change {
                user: HOSTILE.to_owned(),
                arrivals: 5,
                rejected: [0, 5],
                wait_s: [0.0, 1.5],
            }],
            winners: Vec::new(),
        },
    }
}

fn hostile_origin() -> PageOrigin {
    PageOrigin {
        base_style: "main { margin: 0 }",
        files: vec![HOSTILE.to_owned()],
        command_line: vec!["--compare".to_owned(), HOSTILE.to_owned()],
        made_at: "2026-11-23T20:00:00Z".to_owned(),
    }
}

fn pages() -> [String; 3] {
    [
        report(Vec::new()),
        report(vec![run("flags", 3)]),
        report(vec![run(HOSTILE, 3), run("other.yaml", 0)]),
    ]
    .map(|report| render(&report, &hostile_origin()))
}

#[test]
fn the_page_loads_nothing_and_names_stay_text() {
    for page in pages() {
        for foreign in [
            "<script", "<img", "http://", "https://", "url(", "@import", " style=",
        ] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("<style>").count(), 1);
        assert!(!page.contains('\u{202e}'));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }
}

#[test]
fn requests_that_were_sent_later_are_told() {
    let mut closed = run("flags", 3);
    assert!(!render(&report(vec![closed.clone()]), &hostile_origin()).contains("Sent later"));
    closed.closed_loop = Some(ClosedLoopReport {
        sent_later: 12_345,
        mean_s: 0.25,
        longest_s: 7.5,
        log_paused_s: 0.0,
    });
    let page = render(&report(vec![closed]), &hostile_origin());
    let (_, row) = page.split_once("Sent later than in the log").unwrap();
    let (row, _) = row.split_once("</dd>").unwrap();
    for part in ["345 requests", "0.25 s", "7.5", "under flags"] {
        assert!(row.contains(part), "{part} in {row}");
    }
}

#[test]
fn the_policy_of_the_page_allows_its_style_only() {
    let [_, page, _] = pages();
    let (_, style) = page.split_once("<style>").unwrap();
    let (style, _) = style.split_once("</style>").unwrap();
    let hash = BASE64_STANDARD.encode(Sha256::digest(style.as_bytes()));
    assert!(
        style.contains("main { margin: 0 }"),
        "the style that the pages share"
    );
    let policy = format!("content=\"default-src 'none'; style-src 'sha256-{hash}';");
    assert!(page.contains(&policy));
}

#[test]
fn each_element_is_closed() {
    for page in pages() {
        let mut open = Vec::new();
        let body = page.split_once("</style>").unwrap().1;
        for tag in body.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("{tag}"));
            if let Some(closed) = tag.strip_prefix('/') {
                let last = open.pop();
                if !["head", "html"].contains(&closed) {
                    assert_eq!(last, Some(closed), "{open:?}");
                }
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}

#[test]
fn both_configurations_are_in_one_picture() {
    let [_, one, two] = pages();
    let plots = |page: &str| page.matches("<svg ").count();
    assert_eq!(plots(&one), 1 + 3 * 4);
    assert_eq!(plots(&two), 2 + 3 * 4);
    assert_eq!(two.matches("class=\"two\"").count(), 3 * 4);
    assert_eq!(one.matches("class=\"two\"").count(), 0);
    assert!(two.contains("<div class=\"big\">3 → 0</div>"), "rejected");
    assert!(two.contains("other.yaml"));
}
