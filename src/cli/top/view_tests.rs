use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::event::KeyModifiers;

use super::*;
use crate::cli::top::model::Message;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::Talker;

fn snapshot(second: u64, levels: usize) -> Snapshot {
    let level = |n: usize| Level {
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
        ..Level::default()
    };
    let mut snapshot = Snapshot {
        version: "1.2.3".to_owned(),
        unix_ms: 1_000_000_000_000 + second * 1000,
        uptime_seconds: 3_700.0,
        levels: (0..levels).map(level).collect(),
        ..Snapshot::default()
    };
    snapshot.readiness.ready = Some(true);
    snapshot.rejections = [("queue-full".to_owned(), second * 40)].into();
    snapshot.requests.by_code = [(200, second * 100), (429, second * 40)].into();
    let talker = |name: &str, requests| Talker {
        name: name.to_owned(),
        requests,
        ..Talker::default()
    };
    let talkers = |by: &str, rows| Talkers {
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

fn model(levels: usize) -> Model {
    let mut model = Model::default();
    for second in 0..12 {
        model.heard(Message::Snapshot(Box::new(snapshot(second, levels))));
    }
    model
}

fn press(model: &mut Model, key: char) {
    model.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
}

/// What is drawn, as lines.
fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, model, "http://weir"))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let symbols = (0..width).map(|x| buffer[(x, y)].symbol());
        symbols.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn a_flood_is_the_first_thing_to_be_seen() {
    let lines = drawn(&model(8), 120, 30);
    assert_eq!(
        lines[0],
        "weir 1.2.3  up 1h01m  ready  http://weir  01:46:51Z"
    );
    assert_eq!(lines[1], "rejections  40/s  queue-full 40/s (440)");
    assert!(
        lines[2].starts_with("requests    2xx 100/s  3xx 0/s  4xx 40/s  5xx 0/s"),
        "{}",
        lines[2]
    );
    assert!(lines[4].contains("priority levels 8/8"), "{}", lines[4]);
    let first = &lines[6];
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
fn it_fits_every_terminal() {
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
            model.ui.help = help;
            assert_eq!(drawn(&model, width, height).len(), usize::from(height));
        }
    }
    model.ui.help = false;
    let lines = drawn(&model, 80, 24);
    assert!(
        lines[6].starts_with("level-03") && lines[6].contains("10/10"),
        "{lines:?}"
    );
    assert!(lines[23].contains("q quit"), "{lines:?}");
    let narrow = drawn(&model, 48, 12);
    assert!(narrow[6].starts_with("level-03 █████ 10/10"), "{narrow:?}");
    assert!(narrow[6].ends_with("40"), "the rejections: {narrow:?}");
}

#[test]
fn fifty_levels_are_scrolled_through() {
    let mut model = model(50);
    press(&mut model, '1');
    assert!(drawn(&model, 100, 30)[6].starts_with("level-00"));
    for _ in 0..3 {
        press(&mut model, 'j');
    }
    assert!(drawn(&model, 100, 30)[6].starts_with("level-03"));
    for _ in 0..100 {
        press(&mut model, 'j');
    }
    let all = drawn(&model, 100, 30).join("\n");
    assert!(all.contains("level-49"), "the last stays in sight: {all}");
}

#[test]
fn what_clients_choose_is_text() {
    let all = drawn(&model(2), 100, 30).join("\n");
    assert!(all.contains("bob·[31m"), "{all}");
}

#[test]
fn it_says_what_is_lost_frozen_filtered_and_typed() {
    let mut model = Model::default();
    assert!(drawn(&model, 80, 24)[0].contains("asking http://weir"));
    model.heard(Message::Lost("connection refused".to_owned()));
    let line = drawn(&model, 80, 24)[0].clone();
    assert!(
        line.contains("http://weir is not reachable: connection refused; trying again"),
        "{line}"
    );
    model.heard(Message::Snapshot(Box::new(snapshot(0, 3))));
    assert!(!drawn(&model, 80, 24).join("\n").contains("not reachable"));
    model.heard(Message::Lost("closed".to_owned()));
    assert!(drawn(&model, 80, 24)[3].contains("not reachable: closed; trying again"));
    press(&mut model, ' ');
    assert!(drawn(&model, 80, 24)[0].contains("FROZEN"));
    for key in "/-02".chars() {
        press(&mut model, key);
    }
    let lines = drawn(&model, 80, 24);
    assert_eq!(lines[23], "filter: -02_");
    assert!(lines[4].contains("1/3"), "{}", lines[4]);
}

#[test]
fn talkers_are_told_apart_by_what_is_asked_for() {
    let mut model = model(2);
    press(&mut model, 'b');
    assert!(
        drawn(&model, 100, 30)
            .join("\n")
            .contains("top talkers by userAgent")
    );
    press(&mut model, 'b');
    assert!(
        drawn(&model, 100, 30)
            .join("\n")
            .contains("top talkers by user,")
    );
}
