//! Keys, rates and orders, from snapshots that are made up.

use super::*;
use crate::cli::top::shown::float;
use crate::cli::top::shown::talking;
use crate::cli::top::ui::Block;
use crate::cli::top::ui::LONGEST_FILTER;
use crate::cli::top::ui::Scrolled;
use crate::cli::top::ui::Sort;
use crate::limits::rates::RateLimit;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::Talker;
use crate::observe::status::snapshot::Talkers;

fn snapshot(second: u64, levels: &[(&str, u64, u64)]) -> Snapshot {
    let level = |&(name, waiting, rejected): &(&str, u64, u64)| Level {
        name: name.to_owned(),
        waiting,
        current_limit: Some(10),
        nominal_limit: Some(10),
        rejected: [("queue-full".to_owned(), rejected)].into(),
        ..Level::default()
    };
    Snapshot {
        unix_ms: 1_000_000 + second * 1000,
        uptime_seconds: float(second),
        levels: levels.iter().map(level).collect(),
        ..Snapshot::default()
    }
}

fn press(model: &mut Model, keys: &str) -> Next {
    let mut next = Next::Draw;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        next = model.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    next
}

fn names(model: &Model) -> Vec<&str> {
    let rows = model.shown.levels(&model.ui);
    rows.iter().map(|row| row.level.name.as_str()).collect()
}

fn model() -> Model {
    let mut model = Model::default();
    for second in 0..4 {
        let levels = [
            ("calm", 0, 0),
            ("flooded", 1, second * 30),
            ("queued", 9, 0),
        ];
        model.heard(Message::Snapshot(Box::new(snapshot(second, &levels))));
    }
    model
}

#[test]
fn rates_are_of_the_last_seconds_and_the_worst_comes_first() {
    let model = model();
    assert_eq!(names(&model), ["flooded", "queued", "calm"]);
    assert_eq!(model.shown.levels(&model.ui)[0].rejected, 30.0);
}

#[test]
fn keys_sort_filter_and_turn_round() {
    let mut model = model();
    press(&mut model, "1");
    assert_eq!(names(&model), ["calm", "flooded", "queued"]);
    press(&mut model, "1");
    assert_eq!(names(&model), ["queued", "flooded", "calm"]);
    press(&mut model, "s");
    assert_eq!(model.ui.sort, Sort::Seats);
    press(&mut model, "/UE\n");
    assert_eq!(names(&model), ["queued"]);
    assert_eq!(press(&mut model, "/q"), Next::Draw, "typed, not pressed");
    model.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert_eq!(names(&model).len(), 3);
    assert_eq!(press(&mut model, "q"), Next::Quit);
}

#[test]
fn what_is_frozen_stays_and_goes_on_where_weir_is() {
    let mut model = model();
    press(&mut model, " ");
    let later = snapshot(9, &[("new", 0, 0)]);
    model.heard(Message::Snapshot(Box::new(later)));
    assert_eq!(names(&model).len(), 3);
    press(&mut model, " ");
    assert_eq!(names(&model), ["new"]);
}

#[test]
fn a_weir_that_began_anew_has_no_rates_from_before() {
    let mut model = model();
    model.heard(Message::Lost("connection refused".to_owned()));
    assert!(model.lost.is_some());
    let mut anew = snapshot(10, &[("flooded", 0, 5)]);
    anew.uptime_seconds = 0.5;
    model.heard(Message::Snapshot(Box::new(anew)));
    assert!(model.lost.is_none());
    assert_eq!(model.shown.levels(&model.ui)[0].rejected, 0.0);
}

#[test]
fn what_is_kept_does_not_grow() {
    let mut model = Model::default();
    for second in 0..5000 {
        model.heard(Message::Snapshot(Box::new(snapshot(
            second,
            &[("a", 0, 0)],
        ))));
    }
    assert!(model.snapshots.len() <= MOST_SNAPSHOTS);
    assert_eq!(model.shown.history.unix_ms.len(), 180);
    press(&mut model, "/");
    press(&mut model, &"x".repeat(1000));
    assert_eq!(model.ui.filter.len(), LONGEST_FILTER);
}

fn limits(second: u64) -> Vec<RateLimit> {
    let limit = |name: &str, dry_run, each: u64| RateLimit {
        name: name.to_owned(),
        dry_run,
        rejected: second * each,
        passed: second * 3,
        ..RateLimit::default()
    };
    vec![
        limit("clientLimits/calm", false, 0),
        limit("clientLimits/tried-out", true, 100),
        limit("clientLimits/strict", false, 20),
    ]
}

fn with_limits_and_talkers() -> Model {
    let talker = |name: &str, requests, bytes, seat_seconds| Talker {
        name: name.to_owned(),
        requests,
        bytes,
        seat_seconds,
        ..Talker::default()
    };
    let list = |by: &str, window_seconds| Talkers {
        by: by.to_owned(),
        window_seconds,
        rows: vec![
            talker("asks", 100, 1, 2.0),
            talker("reads", 1, 9_000, 1.0),
            talker("holds", 1, 1, 50.0),
        ],
        ..Talkers::default()
    };
    let mut model = Model::default();
    for second in 0..4 {
        let mut now = snapshot(second, &[("a", 0, 0)]);
        now.rate_limits = limits(second);
        now.talkers = vec![list("user", 60), list("user", 300), list("flow", 60)];
        model.heard(Message::Snapshot(Box::new(now)));
    }
    model
}

fn talkers(model: &Model) -> Vec<&str> {
    let list = model.shown.talkers(&model.ui);
    let rows = list.map(|list| talking(list, &model.ui));
    let rows = rows.into_iter().flatten();
    rows.map(|row| row.name.as_str()).collect()
}

#[test]
fn a_key_sorts_talkers_by_each_of_what_they_did() {
    let mut model = with_limits_and_talkers();
    assert_eq!(talkers(&model), ["asks", "holds", "reads"]);
    press(&mut model, "t");
    assert_eq!(talkers(&model)[0], "holds", "by seat-seconds");
    press(&mut model, "tt");
    assert_eq!(talkers(&model)[0], "reads", "by bytes");
    press(&mut model, "tt");
    assert_eq!(talkers(&model)[0], "asks", "by requests again");
}

#[test]
fn talkers_over_another_time_and_by_something_else_are_found_by_name() {
    let mut model = with_limits_and_talkers();
    press(&mut model, "w");
    let list = model.shown.talkers(&model.ui).unwrap();
    assert_eq!((list.by.as_str(), list.window_seconds), ("user", 300));
    press(&mut model, "w");
    assert_eq!(model.shown.talkers(&model.ui), None, "weir told of none");
    press(&mut model, "wbbbbb");
    let list = model.shown.talkers(&model.ui).unwrap();
    assert_eq!((list.by.as_str(), list.window_seconds), ("flow", 60));
}

#[test]
fn the_limit_that_refuses_most_is_the_first_and_one_that_only_counts_comes_after() {
    let model = with_limits_and_talkers();
    let rows = model.shown.limits(&model.ui);
    let rows = rows
        .iter()
        .map(|row| (row.limit.name.as_str(), row.rejected, row.passed));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("clientLimits/strict", 20.0, 3.0),
            ("clientLimits/tried-out", 100.0, 3.0),
            ("clientLimits/calm", 0.0, 3.0),
        ]
    );
}

#[test]
fn tab_goes_round_what_there_is_and_arrows_scroll_that_alone() {
    let mut model = with_limits_and_talkers();
    let tab = |model: &mut Model| model.key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(model.ui.focus);
        tab(&mut model);
    }
    let all = [Block::Levels, Block::Limits, Block::Talkers, Block::Levels];
    assert_eq!(seen, all);
    tab(&mut model);
    press(&mut model, "jjj");
    let (levels, limits, talkers) = (0, 0, 3);
    assert_eq!(model.ui.focus, Block::Talkers);
    assert_eq!(
        model.ui.scrolled,
        Scrolled {
            levels,
            limits,
            talkers
        }
    );
    model.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    press(&mut model, "j");
    let most = Scrolled {
        talkers: 2,
        ..Scrolled::default()
    };
    model.ui.bound(most);
    assert_eq!(model.ui.scrolled, most, "one step up is seen at once");
    let mut model = self::model();
    tab(&mut model);
    assert_eq!(model.ui.focus, Block::Levels, "there is nothing else");
}

#[test]
fn another_weir_goes_on_from_the_history_that_it_sends() {
    let mut model = model();
    let history = History {
        every_seconds: 5,
        unix_ms: vec![1, 2, 3],
        rejected: vec![0.0, 5.0, 0.0],
        ..History::default()
    };
    model.heard(Message::History(history.clone()));
    let mut anew = snapshot(60, &[("flooded", 0, 5)]);
    anew.uptime_seconds = 0.5;
    model.heard(Message::Snapshot(Box::new(anew)));
    assert_eq!(model.shown.history.rejected, history.rejected);
    assert_eq!(model.shown.levels(&model.ui)[0].rejected, 0.0);
}
