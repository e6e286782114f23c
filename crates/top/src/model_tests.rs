//! Keys, rates and orders, from constructed snapshots.

use super::*;
use crate::view_model::talker_rows;
use crate::view_options::{LevelSort, MAX_FILTER_LENGTH, Panel, ScrollOffsets};
use weir_kubernetes::numeric::to_f64;
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::top_keys::RateLimitSnapshot;
use weir_status::snapshot::{
    LevelStatus, ReplicaViewStatus, TalkerStatus, TopTalkersStatus, ViewedReplicaStatus,
};

fn snapshot(second: u64, levels: &[(&str, u64, u64)]) -> StatusSnapshot {
    let level = |&(name, waiting, rejected): &(&str, u64, u64)| LevelStatus {
        name: name.to_owned(),
        waiting,
        current_limit: Some(10),
        nominal_limit: Some(10),
        rejected: [("queue-full".to_owned(), rejected)].into(),
        ..LevelStatus::default()
    };
    StatusSnapshot {
        unix_ms: 1_000_000 + second * 1000,
        uptime_seconds: to_f64(second),
        levels: levels.iter().map(level).collect(),
        ..StatusSnapshot::default()
    }
}

fn press(model: &mut TopModel, keys: &str) -> KeyOutcome {
    let mut next = KeyOutcome::Redraw;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        next = model.handle_key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    next
}

fn names(model: &TopModel) -> Vec<&str> {
    let rows = model.view_model.level_rows(&model.options);
    rows.iter().map(|row| row.level.name.as_str()).collect()
}

fn model() -> TopModel {
    let mut model = TopModel::default();
    for second in 0..4 {
        let levels = [
            ("calm", 0, 0),
            ("flooded", 1, second * 30),
            ("queued", 9, 0),
        ];
        model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot(second, &levels))));
    }
    model
}

#[test]
fn rates_cover_the_last_seconds_and_the_worst_level_is_first() {
    let model = model();
    assert_eq!(names(&model), ["flooded", "queued", "calm"]);
    assert_eq!(
        model.view_model.level_rows(&model.options)[0].rejected,
        Some(30.0)
    );
}

#[test]
fn keys_sort_filter_and_reverse() {
    let mut model = model();
    press(&mut model, "1");
    assert_eq!(names(&model), ["calm", "flooded", "queued"]);
    press(&mut model, "1");
    assert_eq!(names(&model), ["queued", "flooded", "calm"]);
    press(&mut model, "s");
    assert_eq!(model.options.sort, LevelSort::Seats);
    press(&mut model, "/UE\n");
    assert_eq!(names(&model), ["queued"]);
    assert_eq!(
        press(&mut model, "/q"),
        KeyOutcome::Redraw,
        "typed, not pressed"
    );
    model.handle_key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert_eq!(names(&model).len(), 3);
    assert_eq!(press(&mut model, "q"), KeyOutcome::Quit);
}

#[test]
fn a_frozen_view_stays_and_resumes_with_the_latest_snapshot() {
    let mut model = model();
    press(&mut model, " ");
    let later = snapshot(9, &[("new", 0, 0)]);
    model.handle_update(StatusUpdate::Snapshot(Box::new(later)));
    assert_eq!(names(&model).len(), 3);
    press(&mut model, " ");
    assert_eq!(names(&model), ["new"]);
}

#[test]
fn a_restarted_weir_has_no_rates_from_before() {
    let mut model = model();
    model.handle_update(StatusUpdate::Disconnected("connection refused".to_owned()));
    assert!(model.disconnect_reason.is_some());
    let mut anew = snapshot(10, &[("flooded", 0, 5)]);
    anew.uptime_seconds = 0.5;
    model.handle_update(StatusUpdate::Snapshot(Box::new(anew)));
    assert!(model.disconnect_reason.is_none());
    assert_eq!(
        model.view_model.level_rows(&model.options)[0].rejected,
        None
    );
    assert_eq!(model.view_model.rate(|now| now.requests.in_flight), None);
}

#[test]
fn snapshots_history_and_filter_are_bounded() {
    let mut model = TopModel::default();
    for second in 0..5000 {
        model.handle_update(StatusUpdate::Snapshot(Box::new(snapshot(
            second,
            &[("a", 0, 0)],
        ))));
    }
    assert!(model.snapshots.len() <= MAX_SNAPSHOTS);
    assert_eq!(model.view_model.history.unix_ms.len(), 180);
    press(&mut model, "/");
    press(&mut model, &"x".repeat(1000));
    assert_eq!(model.options.filter.len(), MAX_FILTER_LENGTH);
}

fn limits(second: u64) -> Vec<RateLimitSnapshot> {
    let limit = |name: &str, dry_run, each: u64| RateLimitSnapshot {
        name: name.to_owned(),
        dry_run,
        rejected: second * each,
        passed: second * 3,
        ..RateLimitSnapshot::default()
    };
    vec![
        limit("clientLimits/calm", false, 0),
        limit("clientLimits/tried-out", true, 100),
        limit("clientLimits/strict", false, 20),
    ]
}

fn model_with_limits_and_talkers() -> TopModel {
    let talker = |name: &str, requests, bytes, seat_seconds| TalkerStatus {
        name: name.to_owned(),
        requests,
        bytes,
        seat_seconds,
        ..TalkerStatus::default()
    };
    let list = |by: &str, window_seconds| TopTalkersStatus {
        by: by.to_owned(),
        window_seconds,
        rows: vec![
            talker("asks", 100, 1, 2.0),
            talker("reads", 1, 9_000, 1.0),
            talker("holds", 1, 1, 50.0),
        ],
        ..TopTalkersStatus::default()
    };
    let mut model = TopModel::default();
    for second in 0..4 {
        let mut now = snapshot(second, &[("a", 0, 0)]);
        now.rate_limits = limits(second);
        now.talkers = vec![list("user", 60), list("user", 300), list("flow", 60)];
        model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
    }
    model
}

fn talker_names(model: &TopModel) -> Vec<&str> {
    let list = model.view_model.talker_list(&model.options);
    let rows = list.map(|list| talker_rows(list, &model.options));
    let rows = rows.into_iter().flatten();
    rows.map(|row| row.name.as_str()).collect()
}

#[test]
fn a_key_cycles_the_talkers_sort_order() {
    let mut model = model_with_limits_and_talkers();
    assert_eq!(talker_names(&model), ["asks", "holds", "reads"]);
    press(&mut model, "t");
    assert_eq!(talker_names(&model)[0], "holds", "by seat-seconds");
    press(&mut model, "tt");
    assert_eq!(talker_names(&model)[0], "reads", "by bytes");
    press(&mut model, "tt");
    assert_eq!(talker_names(&model)[0], "asks", "by requests again");
}

#[test]
fn talkers_lists_are_selected_by_window_and_grouping() {
    let mut model = model_with_limits_and_talkers();
    press(&mut model, "w");
    let list = model.view_model.talker_list(&model.options).unwrap();
    assert_eq!((list.by.as_str(), list.window_seconds), ("user", 300));
    press(&mut model, "w");
    assert_eq!(
        model.view_model.talker_list(&model.options),
        None,
        "weir reported none"
    );
    press(&mut model, "wbbbbb");
    let list = model.view_model.talker_list(&model.options).unwrap();
    assert_eq!((list.by.as_str(), list.window_seconds), ("flow", 60));
}

#[test]
fn the_limit_that_rejects_most_is_first_and_dry_run_limits_are_last() {
    let model = model_with_limits_and_talkers();
    let rows = model.view_model.limit_rows(&model.options);
    let rows = rows
        .iter()
        .map(|row| (row.limit.name.as_str(), row.rejected, row.passed));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("clientLimits/strict", Some(20.0), Some(3.0)),
            ("clientLimits/tried-out", Some(100.0), Some(3.0)),
            ("clientLimits/calm", Some(0.0), Some(3.0)),
        ]
    );
}

#[test]
fn tab_cycles_the_panels_and_arrows_scroll_the_focused_one() {
    let mut model = model_with_limits_and_talkers();
    let tab =
        |model: &mut TopModel| model.handle_key(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(model.options.focus);
        tab(&mut model);
    }
    let all = [Panel::Levels, Panel::Limits, Panel::Talkers, Panel::Levels];
    assert_eq!(seen, all);
    tab(&mut model);
    press(&mut model, "jjj");
    let (levels, limits, talkers) = (0, 0, 3);
    assert_eq!(model.options.focus, Panel::Talkers);
    assert_eq!(
        model.options.scroll_offsets,
        ScrollOffsets {
            levels,
            limits,
            talkers
        }
    );
    model.handle_key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    press(&mut model, "j");
    let most = ScrollOffsets {
        talkers: 2,
        ..ScrollOffsets::default()
    };
    model.options.clamp_scroll_offsets(most);
    assert_eq!(
        model.options.scroll_offsets, most,
        "one step up is seen at once"
    );
    let mut model = self::model();
    tab(&mut model);
    assert_eq!(model.options.focus, Panel::Levels, "there is nothing else");
}

#[test]
fn history_of_a_restarted_weir_is_continued() {
    let mut model = model();
    let history = StatusHistory {
        every_seconds: 5,
        unix_ms: vec![1, 2, 3],
        rejected: vec![0.0, 5.0, 0.0],
        ..StatusHistory::default()
    };
    model.handle_update(StatusUpdate::History(history.clone()));
    let mut anew = snapshot(60, &[("flooded", 0, 5)]);
    anew.uptime_seconds = 0.5;
    model.handle_update(StatusUpdate::Snapshot(Box::new(anew)));
    assert_eq!(model.view_model.history.rejected, history.rejected);
    assert_eq!(
        model.view_model.level_rows(&model.options)[0].rejected,
        None
    );
    assert_eq!(model.view_model.rate(|now| now.requests.in_flight), None);
}

/// All of `names`, of which `counted` answer.
fn view(chosen: &str, names: &[&str], counted: &[&str]) -> ReplicaViewStatus {
    let replica = |name: &&str| ViewedReplicaStatus {
        name: (*name).to_owned(),
        counted: counted.contains(name),
        ..ViewedReplicaStatus::default()
    };
    ReplicaViewStatus {
        chosen: chosen.to_owned(),
        replicas: names.iter().map(replica).collect(),
    }
}

#[test]
fn a_key_picks_out_each_replica_and_then_all_of_them() {
    let mut model = model();
    press(&mut model, "p");
    assert_eq!(model.options.chosen_replica(), "all", "there is one only");
    let mut now = snapshot(4, &[("calm", 0, 0)]);
    now.view = Some(view("all", &["one", "two"], &["one"]));
    model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
    for expected in ["one", "two", "all", "one"] {
        press(&mut model, "p");
        assert_eq!(model.options.chosen_replica(), expected);
    }
    model.options.replica = Some("gone".to_owned());
    press(&mut model, "p");
    assert_eq!(model.options.chosen_replica(), "all");
}

#[test]
fn totals_of_a_replica_that_comes_back_are_no_growth() {
    let mut model = TopModel::default();
    let mut add = |second, rejected, counted: &[&str]| {
        let mut now = snapshot(second, &[("flooded", 0, rejected)]);
        now.view = Some(view("all", &["one", "two"], counted));
        model.handle_update(StatusUpdate::Snapshot(Box::new(now)));
        let rate = model.view_model.level_rows(&model.options)[0].rejected;
        let history = model.view_model.history.levels.get("flooded");
        let peak = history.map_or(0.0, |level| {
            level.rejected.iter().copied().fold(0.0, f32::max)
        });
        (rate.unwrap_or_default(), peak)
    };
    for second in 0..12 {
        add(second, 10, &["one"]);
    }
    for second in 12..24 {
        let (rate, peak) = add(second, 1_000_000, &["one", "two"]);
        assert_eq!((rate, peak), (0.0, 0.0), "at {second}");
    }
    for second in 24..26 {
        add(second, 1_000_000 + (second - 23) * 50, &["one", "two"]);
    }
    let (rate, _) = add(26, 1_000_150, &["one", "two"]);
    assert_eq!(rate, 50.0);
}

/// A model with talkers and a lever.
fn model_with_talkers() -> TopModel {
    let mut model = model();
    let mut last = snapshot(4, &[]);
    let talker = |name: &str, requests| TalkerStatus {
        name: name.to_owned(),
        requests,
        ..TalkerStatus::default()
    };
    let rows = vec![talker("alice", 90), talker("bob", 5)];
    let list = |by: &str| TopTalkersStatus {
        by: by.to_owned(),
        window_seconds: 60,
        requests: 95,
        rows: rows.clone(),
    };
    last.talkers = ["user", "userAgent", "flow"].map(list).to_vec();
    let lever = |id, replica: &str| LeverSnapshot {
        id,
        action: "block".to_owned(),
        target: "user=carol".to_owned(),
        replica: Some(replica.to_owned()),
        ..LeverSnapshot::default()
    };
    last.levers = vec![lever(7, "one"), lever(7, "two"), lever(9, "one")];
    model.handle_update(StatusUpdate::Snapshot(Box::new(last)));
    model
}

fn sent(arguments: &[&str]) -> KeyOutcome {
    KeyOutcome::Send(arguments.iter().map(|one| (*one).to_owned()).collect())
}

#[test]
fn keys_block_and_limit_a_talker_and_end_a_lever_once_they_are_confirmed() {
    let mut model = model_with_talkers();
    assert_eq!(press(&mut model, "x"), KeyOutcome::Redraw);
    assert_eq!(press(&mut model, "\n"), sent(&["block", "--user=alice"]));
    assert_eq!(press(&mut model, "\nxq"), KeyOutcome::Redraw, "one answer");
    model.handle_answer(vec!["lever 1 is in force".to_owned()]);
    assert!(model.dialog.is_some());
    press(&mut model, "x");
    assert!(model.dialog.is_none(), "any key goes on");

    press(&mut model, "b"); // by user agent
    press(&mut model, "l");
    model.handle_key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    let limited = sent(&["limit", "--user-agent=bob", "--qps=125"]);
    assert_eq!(press(&mut model, "25jjjk j\n"), limited);
    press(&mut model, "x");
    model.handle_key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
    assert!(model.dialog.is_none());

    press(&mut model, "u");
    let choices = model.dialog.as_ref().unwrap().choices.len();
    assert_eq!(choices, 2, "one for each lever, and not for each replica");
    assert_eq!(press(&mut model, "j\n"), sent(&["undo", "9"]));
}

#[test]
fn a_dialog_keeps_the_talker_that_was_meant_when_rows_change_their_places() {
    let mut model = model_with_talkers();
    press(&mut model, "x");
    let mut next = snapshot(9, &[]);
    next.talkers = vec![TopTalkersStatus {
        by: "user".to_owned(),
        window_seconds: 60,
        requests: 100,
        rows: vec![TalkerStatus {
            name: "innocent".to_owned(),
            requests: 100,
            ..TalkerStatus::default()
        }],
    }];
    model.handle_update(StatusUpdate::Snapshot(Box::new(next)));
    assert_eq!(press(&mut model, "\n"), sent(&["block", "--user=alice"]));
    let mut empty = TopModel::default();
    press(&mut empty, "xlu");
    assert!(empty.dialog.is_none(), "there is nothing to choose from");
}
