//! Draws what `weir top` knows: from a [`Model`] and a frame's size alone.

use ratatui::Frame;
use ratatui::layout::Constraint;
use ratatui::layout::Layout;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::style::Style;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::text::Span;
use ratatui::text::Text;
use ratatui::widgets::Block;
use ratatui::widgets::Borders;
use ratatui::widgets::Cell;
use ratatui::widgets::Clear;
use ratatui::widgets::Paragraph;
use ratatui::widgets::Row;
use ratatui::widgets::Table;

use crate::cli::top::model::LevelRow;
use crate::cli::top::model::Model;
use crate::cli::top::model::Shown;
use crate::cli::top::model::Sort;
use crate::cli::top::words;
use crate::cli::top::words::plain;
use crate::observe::status::snapshot::Mode;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talkers;

/// The smallest terminal on which more than a line is drawn.
const LEAST: (u16, u16) = (40, 8);

/// The bar of a level's seats, in columns; the small one where there is less room.
const BAR: usize = 10;
const SMALL_BAR: usize = 5;

/// What all columns of levels take but the first and the plot, with what stands between them.
const FULL: u16 = 72;

/// From this width on there is room for plots.
const WIDE: u16 = 100;

/// The lines of talkers, with the head: more is for the page.
const TALKER_LINES: u16 = 12;

const HELP: &[(&str, &str)] = &[
    ("1 .. 7", "sort levels by that column; again: turn round"),
    ("s, r", "the next column; turn round"),
    ("/", "filter by name (Enter keeps it, Esc clears it)"),
    ("space", "freeze, go on"),
    ("b", "tell talkers apart by something else"),
    ("w", "talkers over another time"),
    ("up, down, PgUp, PgDn", "scroll levels"),
    ("q, Ctrl-C", "quit"),
];

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model, address: &str) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return frame.render_widget(Paragraph::new("weir top: too small"), area);
    }
    let Some((now, _)) = &model.shown.now else {
        return waiting(frame, area, model, address);
    };
    let talkers = model.shown.talkers(&model.ui);
    let lines = talkers.map_or(0, |list| {
        u16::try_from(list.rows.len() + 2).map_or(TALKER_LINES, |lines| lines.min(TALKER_LINES))
    });
    let lines = lines.min(area.height.saturating_sub(4) / 2);
    let [head, levels, talking, keys] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(3),
        Constraint::Length(lines),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(header(now, model, address)), head);
    draw_levels(frame, levels, now, model);
    if let Some(list) = talkers {
        draw_talkers(frame, talking, list, model);
    }
    frame.render_widget(footer(model), keys);
    if model.ui.help {
        help(frame, area);
    }
}

/// Nothing has come yet.
fn waiting(frame: &mut Frame<'_>, area: Rect, model: &Model, address: &str) {
    let text = match &model.lost {
        None => Line::from(format!("asking {address}")),
        Some(why) => Line::from(format!(
            "{address} is not reachable: {}; trying again",
            plain(why)
        ))
        .red(),
    };
    frame.render_widget(Paragraph::new(text), area);
}

fn header(now: &Snapshot, model: &Model, address: &str) -> Text<'static> {
    let (ready, good) = words::readiness(now);
    let mut first = vec![
        Span::from(format!("weir {}", plain(&now.version))).bold(),
        Span::from(format!(
            "  up {}  ",
            words::span(seconds(now.uptime_seconds))
        )),
        if good {
            Span::from(ready).green()
        } else {
            Span::from(ready).red()
        },
        Span::from(format!("  {address}  ")).dim(),
        Span::from(clock(now.unix_ms)).dim(),
    ];
    if model.ui.frozen {
        first.push(Span::from("  FROZEN").cyan().bold());
    }
    let mut lines = vec![Line::from(first)];
    lines.push(rejections(now, &model.shown));
    lines.push(requests(now, &model.shown));
    lines.push(match &model.lost {
        Some(why) => Line::from(format!("not reachable: {}; trying again", plain(why)))
            .red()
            .bold(),
        None => upstream(now),
    });
    lines.into()
}

fn rejections(now: &Snapshot, shown: &Shown) -> Line<'static> {
    let all = shown.rate(|snapshot| snapshot.rejections.values().sum());
    let style = if all > 0.0 {
        Style::new().red().bold()
    } else {
        Style::new()
    };
    let mut line = vec![
        Span::from("rejections  ").dim(),
        Span::styled(format!("{}/s", words::rate(all)), style),
    ];
    for (reason, count) in &now.rejections {
        let of =
            shown.rate(|snapshot| snapshot.rejections.get(reason).copied().unwrap_or_default());
        line.push(Span::from(format!(
            "  {} {}/s ({})",
            plain(reason),
            words::rate(of),
            words::count(*count)
        )));
    }
    Line::from(line)
}

fn requests(now: &Snapshot, shown: &Shown) -> Line<'static> {
    let mut line = vec![Span::from("requests    ").dim()];
    for class in 2..=5_u16 {
        let of = shown.rate(|snapshot| words::of_class(snapshot, class));
        line.push(Span::from(format!("{class}xx {}/s  ", words::rate(of))));
    }
    line.push(Span::from(format!(
        "in flight {}  watches {}  held refusals {}  connections {}",
        now.requests.in_flight, now.requests.watches, now.holds.now, now.connections.open
    )));
    Line::from(line)
}

fn upstream(now: &Snapshot) -> Line<'static> {
    let open: u64 = now.upstream.connections.values().sum();
    let failed: u64 = now.upstream.failures.values().sum();
    let mut line = vec![
        Span::from("upstream    ").dim(),
        Span::from(format!(
            "{open} connections  {} failed",
            words::count(failed)
        )),
    ];
    if let Some(last) = &now.upstream.last_failure {
        line.push(
            Span::from(format!(
                "  last {}: {}",
                clock(last.unix_ms),
                plain(&last.why)
            ))
            .yellow(),
        );
    }
    Line::from(line)
}

/// The columns of the levels' table, for a width.
#[derive(Clone, Copy)]
struct Columns {
    name: u16,
    bar: usize,
    plot: u16,
    narrow: bool,
}

impl Columns {
    fn of(rows: &[LevelRow<'_>], width: u16) -> Self {
        let name = rows.iter().map(|row| row.level.name.chars().count()).max();
        let name = u16::try_from(name.unwrap_or_default())
            .unwrap_or(u16::MAX)
            .clamp(8, width / 3);
        let wide = width >= WIDE;
        let narrow = width < name + FULL;
        Self {
            name,
            bar: if narrow { SMALL_BAR } else { BAR },
            plot: if wide {
                width.saturating_sub(name + FULL + 1)
            } else {
                0
            },
            narrow,
        }
    }

    fn widths(self) -> Vec<Constraint> {
        let seats = if self.narrow { 14 } else { 21 };
        let all = [self.name, seats, 8, 8, 8, 9, 10, self.plot];
        self.kept(all.map(Constraint::Length))
    }

    /// What there is room for: name, seats, waiting, rejected at least.
    fn kept<T>(self, all: [T; 8]) -> Vec<T> {
        let least = [true, true, false, true, false, false, true, false];
        let kept = all.into_iter().zip(least);
        let kept = kept.filter(|(_, least)| *least || !self.narrow);
        kept.map(|(of, _)| of).collect()
    }
}

fn draw_levels(frame: &mut Frame<'_>, area: Rect, now: &Snapshot, model: &Model) {
    let rows = model.shown.levels(&model.ui);
    let room = usize::from(area.height.saturating_sub(2)).max(1);
    let scrolled = model.ui.scrolled.min(rows.len().saturating_sub(room));
    let columns = Columns::of(&rows, area.width);
    let title = match now.mode {
        Mode::MaxInFlight => "max in flight",
        Mode::PriorityAndFairness => "priority levels",
    };
    let title = format!(" {title} {}/{} ", rows.len(), now.levels.len());
    let shown = rows.iter().skip(scrolled).take(room);
    let shown = shown.map(|row| level(row, model, columns));
    let table = Table::new(shown, columns.widths())
        .header(head(model, columns))
        .block(Block::new().borders(Borders::TOP).title(title));
    frame.render_widget(table, area);
}

fn head(model: &Model, columns: Columns) -> Row<'static> {
    let title = |title: &str, sort| {
        let left = sort == Sort::Name || sort == Sort::Seats;
        let cell = right(title.to_owned(), left);
        if sort == model.ui.sort {
            cell.style(Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            cell
        }
    };
    let plot = if columns.plot > 0 {
        "15 MINUTES: SEATS"
    } else {
        ""
    };
    let cells = [
        title("LEVEL", Sort::Name),
        title("SEATS", Sort::Seats),
        title("BORROWED", Sort::Borrowed),
        title("WAITING", Sort::Waiting),
        title("WAIT", Sort::Wait),
        title("THROUGH/S", Sort::Through),
        title("REJECTED/S", Sort::Rejected),
        Cell::from(plot),
    ];
    Row::new(columns.kept(cells)).dim()
}

fn level(row: &LevelRow<'_>, model: &Model, columns: Columns) -> Row<'static> {
    let level = row.level;
    let colour = match (row.rejected > 0.0, row.fullness() >= 1.0) {
        (true, _) => Style::new().red(),
        (_, true) => Style::new().yellow(),
        _ => Style::new().cyan(),
    };
    let seats = words::seats(level.seats_in_use, level.current_limit);
    let seats = vec![
        Span::styled(bar(row, columns.bar), colour),
        Span::from(format!(" {seats}")),
    ];
    let number = |text: String, hot: bool, style: Style| {
        let cell = right(text, false);
        if hot {
            cell.style(style.bold())
        } else {
            cell.dim()
        }
    };
    let mut name = vec![Span::from(plain(&level.name))];
    name.extend(level.quiescing.then(|| " going".dim()));
    let waiting = words::count(level.waiting);
    let rejected = words::rate(row.rejected);
    let plot = words::plot(&past_seats(row, model), 1.0, columns.plot.into());
    Row::new(columns.kept([
        Cell::from(Line::from(name)),
        Cell::from(Line::from(seats)),
        right(words::borrowed(level.borrowed()), false),
        number(waiting, level.waiting > 0, Style::new().yellow()),
        right(row.wait.map_or_else(|| "-".to_owned(), words::time), false),
        right(words::rate(row.through), false),
        number(rejected, row.rejected > 0.0, Style::new().red()),
        Cell::from(plot).cyan(),
    ]))
}

/// The seats of the last 15 minutes, as a part of the most there were.
fn past_seats(row: &LevelRow<'_>, model: &Model) -> Vec<f32> {
    let Some(history) = model.shown.history.levels.get(&row.level.name) else {
        return Vec::new();
    };
    let all = history.seats.iter().chain(&history.limit);
    let most = all.max().copied().unwrap_or_default().max(1);
    let seats = history.seats.iter();
    seats.map(|&seats| small(seats) / small(most)).collect()
}

fn draw_talkers(frame: &mut Frame<'_>, area: Rect, list: &Talkers, model: &Model) {
    let minutes = list.window_seconds / 60;
    let title = format!(" top talkers by {}, {minutes}m ", plain(&list.by));
    let head = ["REQUESTS", "SEAT-S", "WAITED", "BYTES", "REJECTED"];
    let head = head.map(|title| right(title.to_owned(), false));
    let head = Row::new([Cell::from("NAME")].into_iter().chain(head)).dim();
    let wanted = model.ui.filter.to_lowercase();
    let rows = list.rows.iter();
    let rows = rows.filter(|row| row.name.to_lowercase().contains(&wanted));
    let rows = rows.map(|row| {
        let rejected = right(words::count(row.rejections), false);
        Row::new([
            Cell::from(plain(&row.name)),
            right(words::count(row.requests), false),
            right(words::rate(row.seat_seconds), false),
            right(words::time(row.queue_wait_seconds), false),
            right(words::bytes(row.bytes), false),
            if row.rejections > 0 {
                rejected.red()
            } else {
                rejected.dim()
            },
        ])
    });
    let widths = [9, 8, 8, 9, 9].map(Constraint::Length);
    let widths = [Constraint::Min(12)].into_iter().chain(widths);
    let table = Table::new(rows, widths)
        .header(head)
        .block(Block::new().borders(Borders::TOP).title(title));
    frame.render_widget(table, area);
}

fn footer(model: &Model) -> Line<'static> {
    let ui = &model.ui;
    if ui.typing {
        return Line::from(format!("filter: {}_", plain(&ui.filter))).cyan();
    }
    let filter = match ui.filter.as_str() {
        "" => String::new(),
        filter => format!("  [filter: {}]", plain(filter)),
    };
    Line::from(format!(
        "s sort  / filter  space freeze  b by  w window  ? help  q quit{filter}"
    ))
    .dim()
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines = HELP
        .iter()
        .map(|(keys, what)| Line::from(format!(" {keys:<21} {what}")));
    let height = u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX);
    let area = area.centered(Constraint::Length(74), Constraint::Length(height));
    frame.render_widget(Clear, area);
    let text: Text<'_> = lines.collect();
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn right(text: String, left: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if left { line } else { line.right_aligned() })
}

/// Of so many blocks as many as seats are taken of those there are.
#[expect(clippy::as_conversions, reason = "small, and it saturates")]
fn bar(row: &LevelRow<'_>, blocks: usize) -> String {
    if row.level.current_limit.is_none() {
        return " ".repeat(blocks);
    }
    let full = ((row.fullness() * blocks as f64).ceil() as usize).min(blocks);
    "█".repeat(full) + &"░".repeat(blocks - full)
}

/// The time of day, by the calendar of UTC: the terminal's own is not known here.
fn clock(unix_ms: u64) -> String {
    let of_day = unix_ms / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[expect(clippy::as_conversions, reason = "it saturates")]
const fn seconds(of: f64) -> u64 {
    of as u64
}

#[expect(clippy::as_conversions, reason = "a plot needs no more")]
const fn small(of: u32) -> f32 {
    of as f32
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
