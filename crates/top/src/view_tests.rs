//! The screen, drawn from constructed models.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::model::StatusUpdate;
use crate::view_options::Panel;
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::top_keys::{RateLimitSnapshot, TopKey};
use weir_status::marks::MarkStatus;
use weir_status::snapshot::{
    DurationHistogram, ExpiryStatus, Headline, LevelStatus, ProcessStatus, ReplicaViewStatus,
    SlotHolderStatus, SlotsStatus, TalkerStatus, TopTalkersStatus, ViewedReplicaStatus,
};

fn snapshot(second: u64, levels: usize) -> StatusSnapshot {
    let level = |n: usize| LevelStatus {
        name: format!("level-{n:02}"),
        seats_in_use: if n == 3 { 10 } else { 2 },
        current_limit: Some(10),
        nominal_limit: Some(if n == 3 { 6 } else { 10 }),
        waiting: if n == 3 { 7 } else { 0 },
        rejected: [(
            "queue-full".to_owned(),
            if n == 3 { second * 40 } else { 0 },
        )]
        .into(),
        ..LevelStatus::default()
    };
    let mut snapshot = StatusSnapshot {
        version: "1.2.3".to_owned(),
        unix_ms: 1_000_000_000_000 + second * 1000,
        uptime_seconds: 3_700.0,
        levels: (0..levels).map(level).collect(),
        ..StatusSnapshot::default()
    };
    snapshot.readiness.ready = Some(true);
    snapshot.headline = Headline {
        severity: HeadlineSeverity::Critical,
        text: "40 requests a second are rejected: queue-full".to_owned(),
        detail: "most by level-03".to_owned(),
        also: vec!["7 requests wait in level-03, 2.0s (p99)".to_owned()],
        ..Headline::default()
    };
    snapshot.rejections = [("queue-full".to_owned(), second * 40)].into();
    snapshot.requests.by_code = [(200, second * 100), (429, second * 40)].into();
    let talker = |name: &str, requests| TalkerStatus {
        name: name.to_owned(),
        requests,
        ..TalkerStatus::default()
    };
    let talkers = |by: &str, rows| TopTalkersStatus {
        by: by.to_owned(),
        window_seconds: 60,
        requests: 1239,
        rows,
    };
    snapshot.talkers = vec![
        talkers(
            "user",
            vec![talker("alice", 1234), talker("bob\x1b[31m", 5)],
        ),
        talkers("userAgent", vec![talker("wrk", 1239)]),
    ];
    snapshot
}

fn model(levels: usize) -> TopModel {
    let mut model = TopModel::default();
    for second in 0..12 {
        model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot(second, levels))));
    }
    model
}

fn press(model: &mut TopModel, key: char) {
    model.handle_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
}

/// The screen as lines.
fn render_lines(model: &TopModel, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            draw(frame, model, "http://weir");
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let symbols = (0..width).map(|x| buffer[(x, y)].symbol());
        symbols.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

/// The first row of the priority levels.
fn first_level(lines: &[String]) -> &str {
    let at = lines.iter().position(|line| line.starts_with("LEVEL "));
    &lines[at.unwrap() + 1]
}

#[test]
fn rejections_and_the_rejecting_level_are_at_the_top() {
    let lines = render_lines(&model(8), 120, 30);
    assert_eq!(
        lines[0],
        "weir 1.2.3  up 1h01m  ready  http://weir  01:46:51Z"
    );
    assert_eq!(
        lines[1],
        "now         40 requests a second are rejected: queue-full"
    );
    assert_eq!(
        lines[2],
        "            most by level-03; also: 7 requests wait in level-03, 2.0s (p99)"
    );
    assert_eq!(lines[3], "rejections  40/s  queue-full 40/s (440)");
    assert!(
        lines[4].starts_with("requests    2xx 100/s  3xx 0/s  4xx 40/s  5xx 0/s"),
        "{}",
        lines[4]
    );
    let levels = "priority levels 8/8";
    let at = lines.iter().position(|line| line.contains(levels)).unwrap();
    let first = &lines[at + 2];
    assert!(first.starts_with("level-03"), "{first}");
    for part in ["██████████ 10/10", "+4", "7", "40", "█"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let all = lines.join("\n");
    assert!(
        all.contains("top talkers by user, 1m") && all.contains("alice"),
        "{all}"
    );
}

#[test]
fn the_fullest_connection_budget_and_its_largest_holder_are_shown() {
    let mut model = model(8);
    let mut now = snapshot(12, 8);
    now.upstream.places = vec![SlotsStatus {
        kind: "long-running".to_owned(),
        total: 95,
        taken: 47,
        holders: vec![SlotHolderStatus {
            by: "user".to_owned(),
            name: "mallory\x1b[31m".to_owned(),
            taken: 40,
        }],
    }];
    model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
    let lines = render_lines(&model, 120, 30);
    assert_eq!(
        lines[5],
        "upstream    0 connections  0 failed  places long-running 47/95 (most: mallory\\x1b[31m 40)"
    );
}

#[test]
fn the_view_fits_every_terminal_size() {
    let mut model = model(50);
    for (width, height) in [
        (0, 0),
        (1, 1),
        (39, 24),
        (40, 8),
        (80, 24),
        (81, 9),
        (300, 100),
        (1000, 8),
    ] {
        for help in [false, true] {
            model.options.help = help;
            assert_eq!(
                render_lines(&model, width, height).len(),
                usize::from(height)
            );
        }
    }
    model.options.help = false;
    let lines = render_lines(&model, 80, 24);
    let first = first_level(&lines);
    assert!(
        first.starts_with("level-03") && first.contains("10/10"),
        "{lines:?}"
    );
    assert!(lines[23].contains("q quit"), "{lines:?}");
    let narrow = render_lines(&model, 48, 12);
    let first = first_level(&narrow);
    assert!(first.starts_with("level-03 █████ 10/10"), "{narrow:?}");
    assert!(first.ends_with("40"), "the rejections: {narrow:?}");
    assert!(narrow[1].starts_with("now   "), "{narrow:?}");
}

#[test]
fn fifty_levels_can_be_scrolled_through() {
    let mut model = model(50);
    press(&mut model, '1');
    assert!(first_level(&render_lines(&model, 100, 30)).starts_with("level-00"));
    for _ in 0..3 {
        press(&mut model, 'j');
    }
    assert!(first_level(&render_lines(&model, 100, 30)).starts_with("level-03"));
    for _ in 0..100 {
        press(&mut model, 'j');
    }
    let all = render_lines(&model, 100, 30).join("\n");
    assert!(all.contains("level-49"), "the last stays in sight: {all}");
}

#[test]
fn names_chosen_by_clients_are_sanitized() {
    let all = render_lines(&model(2), 100, 30).join("\n");
    assert!(all.contains(r"bob\x1b[31m"), "{all}");
}

#[test]
fn the_view_shows_disconnected_frozen_and_filter_states() {
    let mut model = TopModel::default();
    assert!(render_lines(&model, 80, 24)[0].contains("asking http://weir"));
    model.handle_update(StatusUpdate::Disconnected("connection refused".to_owned()));
    let line = render_lines(&model, 80, 24)[0].clone();
    assert!(
        line.contains("http://weir is not reachable: connection refused; trying again"),
        "{line}"
    );
    model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot(0, 3))));
    assert!(
        !render_lines(&model, 80, 24)
            .join("\n")
            .contains("not reachable")
    );
    model.handle_update(StatusUpdate::Disconnected("closed".to_owned()));
    assert!(render_lines(&model, 80, 24)[5].contains("not reachable: closed; trying again"));
    press(&mut model, ' ');
    assert!(render_lines(&model, 80, 24)[0].contains("FROZEN"));
    for key in "/-02".chars() {
        press(&mut model, key);
    }
    let lines = render_lines(&model, 80, 24);
    assert_eq!(lines[23], "filter: -02_");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("priority levels 1/3")),
        "{lines:?}"
    );
}

#[test]
fn talkers_are_grouped_by_the_selected_key() {
    let mut model = model(2);
    press(&mut model, 'b');
    assert!(
        render_lines(&model, 100, 30)
            .join("\n")
            .contains("top talkers by userAgent")
    );
    for _ in 0..6 {
        press(&mut model, 'b');
    }
    assert!(
        render_lines(&model, 100, 30)
            .join("\n")
            .contains("top talkers by user,")
    );
}

/// A model with limits, and with more top talkers than fit on the screen.
fn crowded_model(dry_run: bool) -> TopModel {
    let mut model = TopModel::default();
    for second in 0..12 {
        let mut now = snapshot(second, 8);
        if dry_run {
            now.headline.severity = HeadlineSeverity::Calm;
            now.dry_run = true;
            now.would_be_rejections = std::mem::take(&mut now.rejections);
        }
        now.rate_limits = vec![RateLimitSnapshot {
            name: "clientLimits/strict".to_owned(),
            allows: "each user: 5/s, burst 10".to_owned(),
            passed: second * 5,
            rejected: second * 20,
            keys: 3,
            most_keys: 50,
            top: vec![TopKey {
                key: "bob\x1b".to_owned(),
                rejections: 200,
                error: 0,
            }],
            ..RateLimitSnapshot::default()
        }];
        let rows = (0..40).map(|n| TalkerStatus {
            name: format!("user-{n:02}"),
            requests: 100 - n,
            bytes: n,
            ..TalkerStatus::default()
        });
        now.talkers[0].rows = rows.collect();
        model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
    }
    model
}

#[test]
fn limits_have_a_panel_of_their_own() {
    let lines = render_lines(&crowded_model(false), 140, 40);
    let at = lines
        .iter()
        .position(|line| line.contains("event and client limits 1"));
    let row = &lines[at.unwrap() + 2];
    for part in [
        "clientLimits/strict",
        "5.0",
        "20",
        "220",
        "3/50",
        r"bob\x1b (200)",
        "each user: 5/s, burst 10",
    ] {
        assert!(row.contains(part), "{part}: {row}");
    }
    let narrow = render_lines(&crowded_model(false), 80, 40).join("\n");
    assert!(
        narrow.contains("clientLimits/strict") && narrow.contains(r"bob\x1b (200)"),
        "{narrow}"
    );
}

#[test]
fn every_talker_can_be_scrolled_to() {
    let mut model = crowded_model(false);
    model.options.focus = Panel::Talkers;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let lines = render_lines(&model, 100, 30);
        let names = lines.iter().filter(|line| line.starts_with("user-"));
        seen.extend(names.map(|line| line[..7].to_owned()));
        press(&mut model, 'j');
    }
    assert_eq!(seen.len(), 40, "{seen:?}");
    for _ in 0..3 {
        press(&mut model, 't'); // by bytes; scrolled back to the top
    }
    let lines = render_lines(&model, 100, 30);
    let first = lines.iter().find(|line| line.starts_with("user-"));
    assert!(first.unwrap().starts_with("user-39"), "{lines:?}");
}

#[test]
fn a_dry_run_shows_would_be_rejections_and_no_red() {
    let model = crowded_model(true);
    let lines = render_lines(&model, 140, 40);
    assert!(
        lines[0].contains("ready  DRY RUN: LEVELS REJECT NOTHING"),
        "{}",
        lines[0]
    );
    assert_eq!(
        lines[3],
        "rejections  0/s  would be  40/s  queue-full 40/s (440)"
    );
    let all = lines.join("\n");
    assert!(all.contains("priority levels 8/8 on paper"), "{all}");
    assert!(all.contains("WOULD-BE/S"), "{all}");
    let mut terminal = Terminal::new(TestBackend::new(140, 12)).unwrap();
    let mut red = |model: &TopModel| {
        terminal
            .draw(|frame| {
                draw(frame, model, "http://weir");
            })
            .unwrap();
        let cells = terminal.backend().buffer().content().iter();
        cells.filter(|cell| cell.fg == Color::Red).count()
    };
    assert_eq!(red(&model), 0);
    assert!(red(&crowded_model(false)) > 0, "what is refused is red");
}

#[test]
fn the_focused_panel_has_room_and_levels_keep_some() {
    for focus in [Panel::Levels, Panel::Limits, Panel::Talkers] {
        for rest in 0..200 {
            let (limits, talkers) = panels::panel_heights(rest, 20, 40, focus);
            let least = 3.min(rest);
            assert!(
                limits + talkers + least <= rest,
                "{focus:?} {rest}: {limits} {talkers}"
            );
            if rest >= 9 {
                assert!(focus != Panel::Limits || limits >= 3);
                assert!(focus != Panel::Talkers || talkers >= 3);
            }
        }
    }
    assert_eq!(panels::panel_heights(40, 0, 0, Panel::Levels), (0, 0));
}

#[test]
fn the_shown_replicas_are_named_and_so_are_those_that_are_missing() {
    let replica = |name: &str, counted, age_seconds| ViewedReplicaStatus {
        name: name.to_owned(),
        counted,
        age_seconds,
        failure: None,
    };
    let mut shown = ReplicaViewStatus {
        chosen: "all".to_owned(),
        replicas: vec![
            replica("one", true, Some(0.0)),
            replica("two", true, Some(1.0)),
        ],
    };
    let first_line = |shown: &ReplicaViewStatus| {
        let mut now = snapshot(1, 3);
        now.view = Some(shown.clone());
        let mut model = TopModel::default();
        model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
        let lines = render_lines(&model, 120, 30);
        assert!(
            lines[29].contains("x l u ctl  p replica  Tab"),
            "{}",
            lines[29]
        );
        lines[0].clone()
    };
    let line = first_line(&shown);
    assert!(line.contains("  ready  all 2 replicas  http"), "{line}");
    shown.replicas[1] = replica("two", false, Some(12.0));
    shown.replicas.push(replica("x\x1b[2J", false, None));
    let line = first_line(&shown);
    let expected = "  1 of 3 replicas (two missing for 12.0s, x\\x1b[2J missing)  ";
    assert!(line.contains(expected), "{line}");
    shown.chosen = "two".to_owned();
    let line = first_line(&shown);
    assert!(
        line.contains("  replica two (missing for 12.0s)  "),
        "{line}"
    );
    let lines = render_lines(&model(3), 120, 30);
    assert!(!lines[29].contains("p replica"), "there is one only");
}

#[test]
fn levers_in_force_are_lines_of_the_header() {
    let mut model = model(3);
    let mut last = snapshot(12, 3);
    last.levers = vec![LeverSnapshot {
        id: 7,
        action: "block".to_owned(),
        target: "user=alice".to_owned(),
        remaining_seconds: 61.0,
        reason: "a\u{7}storm".to_owned(),
        pulled_by: "uid 0".to_owned(),
        ..LeverSnapshot::default()
    }];
    model.handle_update(StatusUpdate::Snapshot(Box::new(last)));
    let lines = render_lines(&model, 120, 30);
    let expected = "lever       7 block user=alice for another 1m1s, 0 rejected, by uid 0: a";
    let line = lines.iter().find(|line| line.starts_with(expected));
    assert!(
        line.is_some_and(|line| line.contains("storm")),
        "{lines:#?}"
    );
}

#[test]
fn a_name_is_one_word_of_a_shell() {
    let arguments = [
        r"--user-agent=x'; id; '\b".to_owned(),
        "--qps=10".to_owned(),
    ];
    let expected = r"'--user-agent=x'\''; id; '\''\b' --qps=10";
    assert_eq!(command_line(&arguments), expected);
}

#[test]
fn a_dialog_shows_the_command_that_blocks_the_chosen_talker() {
    let mut model = model(3);
    press(&mut model, 'x');
    press(&mut model, 'j');
    let lines = render_lines(&model, 120, 30);
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has(" alice") && has("Enter sets it"), "{lines:#?}");
    let command = r"weir ctl block '--user=bob\x1b[31m'";
    assert!(has(command), "escaped and quoted: {lines:#?}");
    model.handle_key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    model.handle_answer(vec!["lever 1 is in force".to_owned()]);
    let lines = render_lines(&model, 120, 30);
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(
        has("lever 1 is in force") && has("any key goes on"),
        "{lines:#?}"
    );
}

#[test]
fn before_there_is_a_rate_there_is_no_zero() {
    let mut model = TopModel::default();
    model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot(0, 3))));
    let lines = render_lines(&model, 120, 40);
    assert_eq!(lines[3], "rejections  -/s  queue-full -/s (0)");
    assert!(
        lines[4].starts_with("requests    2xx -/s  3xx -/s"),
        "{}",
        lines[4]
    );
    let first = first_level(&lines);
    let numbers: Vec<_> = first.split_whitespace().rev().take(2).collect();
    assert_eq!(numbers, ["-", "-"], "{first}");
}

#[test]
fn the_api_server_weir_itself_and_changes_are_in_the_header_of_a_large_terminal() {
    let mut model = model(3);
    let mut now = snapshot(12, 3);
    now.upstream.latency = DurationHistogram {
        count: 100,
        seconds: 1.0,
        buckets: vec![(0.1, 100)],
    };
    now.upstream.errors = 30;
    (now.seats.own, now.seats.server) = (180, Some(600));
    now.process = ProcessStatus {
        cpu_seconds: 1.5,
        cpus: 2,
        memory_bytes: 100 << 20,
        memory_limit_bytes: 400 << 20,
    };
    now.losses = [("audit-log".to_owned(), 12), ("log".to_owned(), 0)].into();
    now.expiries = vec![ExpiryStatus {
        name: "--tls-cert-file".to_owned(),
        unix_seconds: 1_000_000_012 + 90_000,
        replica: None,
    }];
    let mark = |second: u64, text: &str| MarkStatus {
        unix_ms: 1_000_000_000_000 + second * 1000,
        text: text.to_owned(),
        ..MarkStatus::default()
    };
    now.marks = vec![
        mark(1, "weir 1.2.3 has started"),
        mark(2, "configuration 2 is in force"),
        mark(10, "lever 1: block user=al\x1bice"),
    ];
    model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
    let lines = render_lines(&model, 140, 40);
    assert_eq!(
        lines[6..9],
        [
            "API server  half within 50ms, 99 % within 99ms  errors 10/s  total 180 of its 600 seats",
            "weir        0.50 of 2 processors  100 MiB of 400 MiB  lost 12 audit-log  --tls-cert-file ends in 1d01h",
            "changes     2s ago: lever 1: block user=al\\x1bice  10s ago: configuration 2 is in force",
        ]
    );
    let small = render_lines(&model, 60, 12);
    assert!(first_level(&small).starts_with("level-"), "{small:?}");
    let small = small.join("\n");
    assert!(
        small.contains("now   ") && !small.contains("weir        "),
        "{small}"
    );
}
