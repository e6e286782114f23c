//! Draws a [`TopModel`]. The result depends on the model and on the size of the frame only.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use crate::format::sanitize;
use crate::lever_dialog::{LeverDialog, LeverDialogKind};
use crate::model::TopModel;
use crate::panels::{highlight_sorted, right_aligned};
use crate::view_model::{LevelRow, ViewModel};
use crate::view_options::{LevelSort, ScrollOffsets};
use crate::{format, panels, view_options};
use weir_kubernetes::encoding::printable::escape_message;
use weir_kubernetes::numeric::saturating_u16;
use weir_status::alarms::AlarmSeverity;
use weir_status::snapshot::{AdmissionMode, HeadlineSeverity, StatusSnapshot};

/// The smallest terminal on which the status is drawn.
const MIN_SIZE: (u16, u16) = (40, 8);

/// Width of the seat bar in columns, and its width on narrow terminals.
const BAR_WIDTH: usize = 10;
const NARROW_BAR_WIDTH: usize = 5;

/// Width of all columns of priority levels except the first and the plot, with the gaps between
/// columns.
const ALL_COLUMNS_WIDTH: u16 = 72;

/// The width from which plots are drawn.
const PLOT_MIN_WIDTH: u16 = 100;

/// Most lines of alarms and levers.
const MAX_ALARM_LINES: usize = 4;

/// Changes in the header, the newest first.
const SHOWN_CHANGES: usize = 2;

/// Lines of the header that most terminals have, and of the footer.
const HEADER_LINES: u16 = 5;
const FOOTER_LINES: u16 = 1;

/// The terminal heights from which the headline has its details, and the header its background.
const DETAIL_MIN_HEIGHT: u16 = 16;
const BACKGROUND_MIN_HEIGHT: u16 = 24;

/// Lines that priority levels have: their border, their header and a row.
const MIN_LEVEL_LINES: u16 = 3;

const KEY_HELP: &[(&str, &str)] = &[
    ("1 .. 7", "sort levels by that column; again: turn round"),
    ("s, r", "the next column; turn round"),
    ("/", "filter by name (Enter keeps it, Esc clears it)"),
    ("space", "freeze, go on"),
    ("b", "tell talkers apart by something else"),
    ("w", "talkers over another time"),
    ("t", "sort talkers by the next column"),
    ("p", "pick out the next replica; all of them after the last"),
    (
        "x, l",
        "block or limit a talker, by the control socket of this machine",
    ),
    ("u", "end a lever"),
    ("Tab", "scroll levels, limits or talkers"),
    ("arrows, PgUp, PgDn", "scroll; Home, End"),
    ("q, Ctrl-C", "quit"),
];

/// Draws the screen. Returns the maximum scroll offset of each panel.
pub fn draw(frame: &mut Frame<'_>, model: &TopModel, address: &str) -> ScrollOffsets {
    let area = frame.area();
    let mut max_offsets = ScrollOffsets::default();
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        frame.render_widget(Paragraph::new("weir top: too small"), area);
        return max_offsets;
    }
    let Some((now, _)) = &model.view_model.now else {
        draw_waiting(frame, area, model, address);
        return max_offsets;
    };
    let talkers = model.view_model.talker_list(&model.options);
    let room = (HEADER_LINES + area.height / 4)
        .min(area.height.saturating_sub(FOOTER_LINES + MIN_LEVEL_LINES));
    let least_need = if area.height < DETAIL_MIN_HEIGHT {
        Need::Alarm
    } else if area.height < BACKGROUND_MIN_HEIGHT {
        Need::Detail
    } else {
        Need::Background
    };
    let mut lines = header_lines(now, model, address);
    lines.retain(|(need, _)| *need <= least_need);
    let header_text = fitting(lines, room.into());
    let header_height = saturating_u16(header_text.lines.len());
    let rest = area.height.saturating_sub(header_height + FOOTER_LINES);
    let rows = talkers.map_or(0, |list| list.rows.len());
    let (limits, talker_lines) =
        panels::panel_heights(rest, now.rate_limits.len(), rows, model.options.focus);
    let [header, levels, limits, talker_area, footer] = Layout::vertical([
        Constraint::Length(header_height),
        Constraint::Min(3),
        Constraint::Length(limits),
        Constraint::Length(talker_lines),
        Constraint::Length(FOOTER_LINES),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(header_text), header);
    max_offsets.levels = draw_levels(frame, levels, now, model);
    if limits.height > 0 {
        max_offsets.limits = panels::draw_limits(frame, limits, model);
    }
    if let Some(list) = talkers.filter(|_| talker_area.height > 0) {
        max_offsets.talkers = panels::draw_talkers(frame, talker_area, list, model);
    }
    frame.render_widget(footer_line(model), footer);
    if model.options.help {
        draw_help(frame, area);
    }
    if let Some(dialog) = &model.dialog {
        draw_dialog(frame, area, dialog);
    }
    max_offsets
}

/// Draws the screen before the first snapshot.
fn draw_waiting(frame: &mut Frame<'_>, area: Rect, model: &TopModel, address: &str) {
    let text = match &model.disconnect_reason {
        None => Line::from(format!("asking {address}")),
        Some(why) => Line::from(format!(
            "{address} is not reachable: {}; trying again",
            sanitize(why)
        ))
        .red(),
    };
    frame.render_widget(Paragraph::new(text), area);
}

/// How much a line of the header is needed, the most first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Always,
    Alarm,
    Detail,
    Background,
}

/// The lines of the header, each with how much it is needed.
fn header_lines(
    now: &StatusSnapshot,
    model: &TopModel,
    address: &str,
) -> Vec<(Need, Line<'static>)> {
    let view_model = &model.view_model;
    let (headline, detail) = format::headline(now);
    let style = headline_style(now.headline.severity);
    let mut lines = vec![
        (Need::Always, title_line(now, model, address)),
        (
            Need::Always,
            Line::from(vec![
                Span::from("now         ").dim(),
                Span::styled(headline, style.bold()),
            ]),
        ),
    ];
    if !detail.is_empty() {
        let line = Line::from(format!("            {detail}"));
        lines.push((Need::Detail, line));
    }
    lines.push((Need::Always, rejections_line(now, view_model)));
    lines.push((Need::Always, requests_line(now, view_model)));
    lines.push(match &model.disconnect_reason {
        Some(why) => {
            let text = format!("not reachable: {}; trying again", sanitize(why));
            (Need::Always, Line::from(text).red().bold())
        }
        None => (Need::Detail, upstream_line(now)),
    });
    for (name, text) in [
        ("API server  ", Some(format::api_server(view_model, now))),
        ("weir        ", Some(format::own_state(view_model, now))),
        ("changes     ", format::last_changes(now, SHOWN_CHANGES)),
    ] {
        let line = text.map(|text| Line::from(vec![Span::from(name).dim(), Span::from(text)]));
        lines.extend(line.map(|line| (Need::Background, line)));
    }
    let alarms = now.alarms.iter().map(|alarm| {
        let line = Line::from(format!("alarm       {}", format::alarm(alarm, now.unix_ms)));
        match alarm.severity {
            AlarmSeverity::Critical => line.red().bold(),
            AlarmSeverity::Warning => line.yellow(),
        }
    });
    let levers = now.levers.iter().map(|lever| {
        let line = Line::from(format!("lever       {}", format::lever(lever)));
        line.magenta().bold()
    });
    let alarms = alarms.chain(levers).take(MAX_ALARM_LINES);
    lines.extend(alarms.map(|line| (Need::Alarm, line)));
    lines
}

/// At most `room` lines: those that are needed most.
fn fitting(mut lines: Vec<(Need, Line<'static>)>, room: usize) -> Text<'static> {
    while lines.len() > room {
        let least = lines.iter().map(|(need, _)| *need).max();
        match lines.iter().rposition(|(need, _)| Some(*need) == least) {
            Some(last) => drop(lines.remove(last)),
            None => break,
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

const fn headline_style(severity: HeadlineSeverity) -> Style {
    match severity {
        HeadlineSeverity::Calm => Style::new().fg(Color::Green),
        HeadlineSeverity::Unknown => Style::new(),
        HeadlineSeverity::Warning => Style::new().fg(Color::Yellow),
        HeadlineSeverity::Critical => Style::new().fg(Color::Red),
    }
}

fn title_line(now: &StatusSnapshot, model: &TopModel, address: &str) -> Line<'static> {
    let (ready, healthy) = format::readiness(now);
    let mut first = vec![
        Span::from(format!("weir {}", sanitize(&now.version))).bold(),
        Span::from(format!(
            "  up {}  ",
            format::uptime(whole_seconds(now.uptime_seconds))
        )),
        match healthy {
            true => Span::from(ready),
            false => Span::from(ready).red(),
        },
    ];
    if now.dry_run {
        let words = format::DRY_RUN_LABEL.to_uppercase();
        first.push(Span::from(format!("  {words}")).yellow().bold());
    }
    if let Some(shown) = format::shown_replicas(now) {
        let is_whole = now
            .view
            .iter()
            .all(|view| view.replicas.iter().all(|one| one.counted));
        let shown = Span::from(format!("  {shown}"));
        first.push(if is_whole { shown } else { shown.yellow() });
    }
    first.push(Span::from(format!("  {address}  ")).dim());
    first.push(Span::from(time_of_day(now.unix_ms)).dim());
    if model.options.frozen {
        first.push(Span::from("  FROZEN").cyan().bold());
    }
    Line::from(first)
}

fn rejections_line(now: &StatusSnapshot, view_model: &ViewModel) -> Line<'static> {
    let mut line = vec![Span::from("rejections  ").dim()];
    line.extend(reason_spans(
        view_model,
        |snapshot| &snapshot.rejections,
        Style::new().red(),
    ));
    if now.dry_run || !now.would_be_rejections.is_empty() {
        line.push(Span::from("  would be  ").dim());
        let yellow = Style::new().yellow();
        line.extend(reason_spans(
            view_model,
            |snapshot| &snapshot.would_be_rejections,
            yellow,
        ));
        line.extend(
            format::would_break(now).map(|users| Span::from(format!("  {users}")).yellow()),
        );
    }
    Line::from(line)
}

/// The total rate, highlighted unless it is zero, and the rate of each reason.
fn reason_spans(
    view_model: &ViewModel,
    of: fn(&StatusSnapshot) -> &BTreeMap<String, u64>,
    hot: Style,
) -> Vec<Span<'static>> {
    let total = view_model.rate(|snapshot| of(snapshot).values().sum());
    let style = if total.is_some_and(|total| total > 0.0) {
        hot.bold()
    } else {
        Style::new()
    };
    let mut line = vec![Span::styled(
        format!("{}/s", format::known_rate(total)),
        style,
    )];
    for (reason, count) in view_model.now.iter().flat_map(|(now, _)| of(now)) {
        let rate =
            view_model.rate(|snapshot| of(snapshot).get(reason).copied().unwrap_or_default());
        line.push(Span::from(format!(
            "  {} {}/s ({})",
            sanitize(reason),
            format::known_rate(rate),
            format::count(*count)
        )));
    }
    line
}

fn requests_line(now: &StatusSnapshot, view_model: &ViewModel) -> Line<'static> {
    let mut line = vec![Span::from("requests    ").dim()];
    for class in 2..=5_u16 {
        let rate = view_model.rate(|snapshot| format::responses_of_class(snapshot, class));
        line.push(Span::from(format!(
            "{class}xx {}/s  ",
            format::known_rate(rate)
        )));
    }
    line.push(Span::from(format!(
        "in flight {}  watches {}  held rejections {}  connections {}",
        now.requests.in_flight, now.requests.watches, now.holds.now, now.connections.open
    )));
    Line::from(line)
}

fn upstream_line(now: &StatusSnapshot) -> Line<'static> {
    let open: u64 = now.upstream.connections.values().sum();
    let failed: u64 = now.upstream.failures.values().sum();
    let mut line = vec![
        Span::from("upstream    ").dim(),
        Span::from(format!(
            "{open} connections  {} failed",
            format::count(failed)
        )),
    ];
    if let Some(servers) = format::api_servers(now) {
        line.push(Span::from(format!("  {servers}")));
    }
    if let Some(replicas) = format::replicas(now) {
        line.push(Span::from(format!("  {replicas}")));
    }
    if let Some(usage) = format::fullest_connection_budget(now) {
        line.push(Span::from(format!("  places {usage}")));
    }
    if let Some(last) = &now.upstream.last_failure {
        line.push(
            Span::from(format!(
                "  last {}: {}",
                time_of_day(last.unix_ms),
                sanitize(&last.why)
            ))
            .yellow(),
        );
    }
    Line::from(line)
}

/// The columns of the priority levels, for a width.
#[derive(Clone, Copy)]
struct LevelColumns {
    name: u16,
    bar: usize,
    plot: u16,
    narrow: bool,
}

impl LevelColumns {
    fn for_width(rows: &[LevelRow<'_>], width: u16) -> Self {
        let name = rows.iter().map(|row| row.level.name.chars().count()).max();
        let name = saturating_u16(name.unwrap_or_default()).clamp(8, width / 3);
        let wide = width >= PLOT_MIN_WIDTH;
        let narrow = width < name + ALL_COLUMNS_WIDTH;
        Self {
            name,
            bar: if narrow { NARROW_BAR_WIDTH } else { BAR_WIDTH },
            plot: if wide {
                width.saturating_sub(name + ALL_COLUMNS_WIDTH + 1)
            } else {
                0
            },
            narrow,
        }
    }

    fn widths(self) -> Vec<Constraint> {
        let seats = if self.narrow { 14 } else { 21 };
        let all = [self.name, seats, 8, 8, 8, 9, 10, self.plot];
        self.visible(all.map(Constraint::Length))
    }

    /// The columns that fit. Name, seats, waiting and rejected are always visible.
    fn visible<T>(self, all: [T; 8]) -> Vec<T> {
        let least = [true, true, false, true, false, false, true, false];
        let kept = all.into_iter().zip(least);
        let kept = kept.filter(|(_, least)| *least || !self.narrow);
        kept.map(|(of, _)| of).collect()
    }
}

fn draw_levels(frame: &mut Frame<'_>, area: Rect, now: &StatusSnapshot, model: &TopModel) -> usize {
    let rows = model.view_model.level_rows(&model.options);
    let (from, max_offset) =
        panels::scroll_range(rows.len(), area, model.options.scroll_offsets.levels);
    let columns = LevelColumns::for_width(&rows, area.width);
    let title = match now.mode {
        AdmissionMode::MaxInFlight => "max in flight",
        AdmissionMode::PriorityAndFairness => "priority levels",
    };
    let dry_run = if now.dry_run { "on paper " } else { "" };
    let title = format!(" {title} {}/{} {dry_run}", rows.len(), now.levels.len());
    let hot = match now.dry_run {
        true => Style::new().yellow(),
        false => Style::new().red(),
    };
    let visible = rows.iter().skip(from);
    let visible = visible.map(|row| level_row(row, model, columns, hot));
    let table = Table::new(visible, columns.widths())
        .header(level_header(now, model, columns))
        .block(panels::panel_block(
            title,
            view_options::Panel::Levels,
            model,
        ));
    frame.render_widget(table, area);
    max_offset
}

fn level_header(now: &StatusSnapshot, model: &TopModel, columns: LevelColumns) -> Row<'static> {
    let title = |title: &'static str, sort| {
        let left = sort == LevelSort::Name || sort == LevelSort::Seats;
        let cell = match left {
            true => Cell::from(title),
            false => right_aligned(title.to_owned()),
        };
        highlight_sorted(cell, sort == model.options.sort)
    };
    let rejected = match now.dry_run {
        true => "WOULD-BE/S",
        false => "REJECTED/S",
    };
    let plot = if columns.plot > 0 {
        "15 MINUTES: SEATS"
    } else {
        ""
    };
    let cells = [
        title("LEVEL", LevelSort::Name),
        title("SEATS", LevelSort::Seats),
        title("BORROWED", LevelSort::Borrowed),
        title("WAITING", LevelSort::Waiting),
        title("WAIT", LevelSort::Wait),
        title("THROUGH/S", LevelSort::Dispatched),
        title(rejected, LevelSort::Rejected),
        Cell::from(plot),
    ];
    Row::new(columns.visible(cells)).dim()
}

/// `hot` is the style of rejections.
fn level_row(
    row: &LevelRow<'_>,
    model: &TopModel,
    columns: LevelColumns,
    hot: Style,
) -> Row<'static> {
    let level = row.level;
    let colour = match (row.rejects() > 0.0, row.utilization() >= 1.0) {
        (true, _) => hot,
        (_, true) => Style::new().yellow(),
        _ => Style::new().cyan(),
    };
    let seats = format::seats(level.seats_in_use, level.current_limit);
    let seats = vec![
        Span::styled(seat_bar(row, columns.bar), colour),
        Span::from(format!(" {seats}")),
    ];
    let number = |text: String, any: bool, style: Style| {
        let cell = right_aligned(text);
        if any {
            cell.style(style.bold())
        } else {
            cell.dim()
        }
    };
    let mut name = vec![Span::from(sanitize(&level.name))];
    name.extend(level.quiescing.then(|| " going".dim()));
    let waiting = format::count(level.waiting);
    let rejected = format::known_rate(row.rejected);
    let plot = format::plot(&seat_history(row, model), 1.0, columns.plot.into());
    Row::new(columns.visible([
        Cell::from(Line::from(name)),
        Cell::from(Line::from(seats)),
        right_aligned(format::borrowed(level.borrowed_seats())),
        number(waiting, level.waiting > 0, Style::new().yellow()),
        right_aligned(row.wait.map_or_else(|| "-".to_owned(), format::duration)),
        right_aligned(format::known_rate(row.dispatched)),
        number(rejected, row.rejects() > 0.0, hot),
        Cell::from(plot).cyan(),
    ]))
}

/// The seats of the last 15 minutes, relative to the highest number of seats or limit in that time.
fn seat_history(row: &LevelRow<'_>, model: &TopModel) -> Vec<f32> {
    let Some(history) = model.view_model.history.levels.get(&row.level.name) else {
        return Vec::new();
    };
    let all = history.seats.iter().chain(&history.limit);
    let max = all.max().copied().unwrap_or_default().max(1);
    let seats = history.seats.iter();
    seats.map(|&seats| to_f32(seats) / to_f32(max)).collect()
}

fn footer_line(model: &TopModel) -> Line<'static> {
    let options = &model.options;
    if options.editing_filter {
        return Line::from(format!("filter: {}_", sanitize(&options.filter))).cyan();
    }
    let now = model.view_model.now.as_ref();
    let replica = match now.and_then(|(now, _)| now.view.as_ref()) {
        Some(_) => "p replica  ",
        None => "",
    };
    let filter = match options.filter.as_str() {
        "" => String::new(),
        filter => format!("  [filter: {}]", sanitize(filter)),
    };
    Line::from(format!(
        "s t sort  / filter  space freeze  b w by  x l u ctl  {replica}Tab scroll  ? help  q quit{filter}"
    ))
    .dim()
}

/// An argument as a shell takes it.
fn quote(argument: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:/.,@%+".contains(c);
    match argument.chars().all(is_plain) {
        true => argument.into(),
        false => format!("'{}'", argument.replace('\'', r"'\''")).into(),
    }
}

/// The arguments as a shell takes them. What cannot be shown is escaped, and then is another name.
fn command_line(arguments: &[String]) -> String {
    let quoted: Vec<_> = arguments.iter().map(|one| quote(one)).collect();
    escape_message(&quoted.join(" ")).into_owned()
}

/// Lines of a dialog that are not choices.
const DIALOG_LINES: u16 = 6;

fn draw_dialog(frame: &mut Frame<'_>, area: Rect, dialog: &LeverDialog) {
    let (title, keys) = match (dialog.kind, &dialog.answer) {
        (_, Some(answer)) if answer.is_empty() => (" weir ctl ", "waiting for weir"),
        (_, Some(_)) => (" weir ctl ", "any key goes on"),
        (LeverDialogKind::Limit, None) => (
            " limit ",
            "arrows choose  digits: requests/s  Enter sets it  Esc",
        ),
        (LeverDialogKind::Block, None) => (" block ", "arrows choose  Enter sets it  Esc"),
        (LeverDialogKind::Undo, None) => (" end a lever ", "arrows choose  Enter ends it  Esc"),
    };
    let most = usize::from(area.height.saturating_sub(DIALOG_LINES)).clamp(1, 10);
    let mut lines = Vec::new();
    match &dialog.answer {
        Some(answer) => lines.extend(
            answer
                .iter()
                .map(|line| Line::from(format!(" {}", sanitize(line)))),
        ),
        None => {
            let first = (dialog.chosen + 1).saturating_sub(most);
            let shown = dialog.choices.iter().enumerate().skip(first).take(most);
            lines.extend(shown.map(|(at, choice)| {
                let line = Line::from(format!(" {}", sanitize(&choice.label)));
                match at == dialog.chosen {
                    true => line.reversed(),
                    false => line,
                }
            }));
        }
    }
    lines.push(Line::from(""));
    lines.push(Line::from(format!(" weir ctl {}", command_line(&dialog.arguments()))).bold());
    lines.push(Line::from(format!(" {keys}")).dim());
    let height = saturating_u16(lines.len() + 2).min(area.height);
    let area = area.centered(Constraint::Length(100), Constraint::Length(height));
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = KEY_HELP
        .iter()
        .map(|(keys, what)| Line::from(format!(" {keys:<21} {what}")));
    let height = saturating_u16(KEY_HELP.len() + 2);
    let area = area.centered(Constraint::Length(74), Constraint::Length(height));
    frame.render_widget(Clear, area);
    let text: Text<'_> = lines.collect();
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Paragraph::new(text).block(block), area);
}

/// A bar of `blocks` characters, filled in proportion to the executing seats.
#[expect(clippy::as_conversions, reason = "small, and it saturates")]
fn seat_bar(row: &LevelRow<'_>, blocks: usize) -> String {
    if row.level.current_limit.is_none() {
        return " ".repeat(blocks);
    }
    let filled = ((row.utilization() * blocks as f64).ceil() as usize).min(blocks);
    "█".repeat(filled) + &"░".repeat(blocks - filled)
}

/// The time of day in UTC. The time zone of the terminal is not known.
fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[expect(clippy::as_conversions, reason = "it saturates")]
const fn whole_seconds(value: f64) -> u64 {
    value as u64
}

#[expect(clippy::as_conversions, reason = "a plot needs no more")]
const fn to_f32(value: u32) -> f32 {
    value as f32
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
