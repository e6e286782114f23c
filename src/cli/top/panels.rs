//! Draws the blocks below the levels: event and client limits, and top talkers.

use ratatui::Frame;
use ratatui::layout::Constraint;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::style::Style;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::text::Span;
use ratatui::widgets::Block;
use ratatui::widgets::Borders;
use ratatui::widgets::Cell;
use ratatui::widgets::Row;
use ratatui::widgets::Table;

use crate::cli::top::format;
use crate::cli::top::format::sanitize;
use crate::cli::top::model::TopModel;
use crate::cli::top::view_model::LimitRow;
use crate::cli::top::view_model::talker_rows;
use crate::cli::top::view_options;
use crate::observe::status::snapshot::TopTalkersStatus;
use crate::observe::top_talkers::UsageMeasure;

/// The lines of limits, with the head, where something else is in focus.
const UNFOCUSED_LIMIT_LINES: u16 = 6;

/// The lines of talkers, likewise.
const UNFOCUSED_TALKER_LINES: u16 = 12;

/// A block's border, its head, and a row: with fewer lines there is nothing to be seen of it.
const MIN_PANEL_LINES: u16 = 3;

/// The same for levels, which always have them.
const MIN_LEVEL_LINES: u16 = 3;

/// From this width on limits have all their columns.
const ALL_COLUMNS_WIDTH: u16 = 120;

/// The lines of limits and talkers, of `rest` lines that are for levels as well. What is in focus has more.
pub(super) fn panel_heights(
    rest: u16,
    limits: usize,
    talkers: usize,
    focus: view_options::Panel,
) -> (u16, u16) {
    let wanted = |rows: usize| match rows {
        0 => 0,
        rows => u16::try_from(rows.saturating_add(2)).unwrap_or(u16::MAX),
    };
    let room = rest.saturating_sub(MIN_LEVEL_LINES);
    let (limits, talkers) = (wanted(limits).min(room), wanted(talkers).min(room));
    let seen = |lines: u16| if lines < MIN_PANEL_LINES { 0 } else { lines };
    let third = |taken: u16| rest.saturating_sub(taken) / 3;
    match focus {
        view_options::Panel::Levels => {
            let talkers = seen(talkers.min(UNFOCUSED_TALKER_LINES).min(rest.div_ceil(2)));
            (
                seen(limits.min(UNFOCUSED_LIMIT_LINES).min(third(talkers))),
                talkers,
            )
        }
        view_options::Panel::Limits => {
            let limits = seen(limits.min(rest.div_ceil(2)));
            (
                limits,
                seen(talkers.min(UNFOCUSED_TALKER_LINES).min(third(limits))),
            )
        }
        view_options::Panel::Talkers => {
            let talkers = seen(talkers.min(rest.saturating_mul(2) / 3));
            (
                seen(limits.min(UNFOCUSED_LIMIT_LINES).min(third(talkers))),
                talkers,
            )
        }
    }
}

/// A block with this title, which stands out while arrows scroll it.
pub(super) fn panel_block(
    title: String,
    of: view_options::Panel,
    model: &TopModel,
) -> Block<'static> {
    let style = match of == model.options.focus {
        true => Style::new().add_modifier(Modifier::REVERSED),
        false => Style::new(),
    };
    Block::new()
        .borders(Borders::TOP)
        .title(Span::styled(title, style))
}

/// Draws the limits; how far they can be scrolled.
pub(super) fn draw_limits(frame: &mut Frame<'_>, area: Rect, model: &TopModel) -> usize {
    let rows = model.view_model.limit_rows(&model.options);
    let (from, most) = scroll_range(rows.len(), area, model.options.scroll_offsets.limits);
    let wide = area.width >= ALL_COLUMNS_WIDTH;
    let name = rows
        .iter()
        .map(|row| format::limit_name(row.limit).chars().count());
    let name = u16::try_from(name.max().unwrap_or_default()).unwrap_or(u16::MAX);
    let name = Constraint::Length(name.clamp(8, area.width / 3));
    let (number, keys, rest) = (
        Constraint::Length(9),
        Constraint::Length(13),
        Constraint::Fill(1),
    );
    // Title, width, whether it is text, whether it is always there.
    let columns = [
        ("LIMIT", name, true, true),
        ("PASSED/S", number, false, true),
        ("DELAYED/S", number, false, false),
        ("REFUSED/S", number, false, true),
        ("REFUSED", number, false, true),
        ("KEYS", keys, false, false),
        ("REFUSED MOST", rest, true, true),
        ("ALLOWS", rest, true, false),
    ];
    let columns = columns.into_iter().filter(|(.., always)| wide || *always);
    let (head, widths): (Vec<_>, Vec<_>) = columns
        .map(|(title, width, text, _)| match text {
            true => (Cell::from(title), width),
            false => (right_aligned(title.to_owned()), width),
        })
        .unzip();
    let shown = rows.iter().skip(from).map(|row| limit_row(row, wide));
    let title = format!(" event and client limits {} ", rows.len());
    let table = Table::new(shown, widths)
        .header(Row::new(head).dim())
        .block(panel_block(title, view_options::Panel::Limits, model));
    frame.render_widget(table, area);
    most
}

fn limit_row(row: &LimitRow<'_>, wide: bool) -> Row<'static> {
    let limit = row.limit;
    let refused = right_aligned(format::rate(row.rejected));
    let refused = match (row.rejected > 0.0, limit.dry_run) {
        (true, false) => refused.style(Style::new().red().bold()),
        (true, true) => refused.style(Style::new().yellow().bold()),
        (false, _) => refused.dim(),
    };
    let mut cells = vec![
        Cell::from(format::limit_name(limit)),
        right_aligned(format::rate(row.passed)),
    ];
    cells.extend(wide.then(|| right_aligned(format::rate(row.delayed))));
    cells.extend([refused, right_aligned(format::count(limit.rejected))]);
    cells.extend(wide.then(|| {
        let (keys, most) = (format::count(limit.keys), format::count(limit.most_keys));
        right_aligned(format!("{keys}/{most}"))
    }));
    cells.push(Cell::from(format::top_rejected_key(limit)));
    cells.extend(wide.then(|| Cell::from(sanitize(&limit.allows))));
    Row::new(cells)
}

/// Draws who does most; how far they can be scrolled.
pub(super) fn draw_talkers(
    frame: &mut Frame<'_>,
    area: Rect,
    list: &TopTalkersStatus,
    model: &TopModel,
) -> usize {
    let rows = talker_rows(list, &model.options);
    let (from, most) = scroll_range(rows.len(), area, model.options.scroll_offsets.talkers);
    let minutes = list.window_seconds / 60;
    let (by, count) = (sanitize(&list.by), rows.len());
    let title = format!(" top talkers by {by}, {minutes}m, {count} ");
    let head = [
        ("REQUESTS", UsageMeasure::Requests),
        ("SEAT-S", UsageMeasure::SeatSeconds),
        ("WAITED", UsageMeasure::QueueWait),
        ("BYTES", UsageMeasure::Bytes),
        ("REJECTED", UsageMeasure::Rejections),
    ];
    let head = head.map(|(title, sort)| {
        highlight_sorted(
            right_aligned(title.to_owned()),
            sort == model.options.talker_sort,
        )
    });
    let head = Row::new([Cell::from("NAME")].into_iter().chain(head)).dim();
    let rows = rows.into_iter().skip(from).map(|row| {
        let rejected = right_aligned(format::count(row.rejections));
        Row::new([
            Cell::from(sanitize(&row.name)),
            right_aligned(format::count(row.requests)),
            right_aligned(format::rate(row.seat_seconds)),
            right_aligned(format::duration(row.queue_wait_seconds)),
            right_aligned(format::bytes(row.bytes)),
            if row.rejections > 0 {
                rejected.red()
            } else {
                rejected.dim()
            },
        ])
    });
    let widths = [9, 8, 8, 9, 9].map(Constraint::Length);
    let widths = [Constraint::Min(12)].into_iter().chain(widths);
    let table = Table::new(rows, widths).header(head).block(panel_block(
        title,
        view_options::Panel::Talkers,
        model,
    ));
    frame.render_widget(table, area);
    most
}

/// From which row on so many rows are drawn under a border and a head, and from which one at most.
pub(super) fn scroll_range(rows: usize, area: Rect, wanted: usize) -> (usize, usize) {
    let room = usize::from(area.height.saturating_sub(2)).max(1);
    let most = rows.saturating_sub(room);
    (wanted.min(most), most)
}

/// The head of the column that rows are sorted by stands out.
pub(super) fn highlight_sorted(cell: Cell<'static>, is: bool) -> Cell<'static> {
    if is {
        cell.style(Modifier::BOLD | Modifier::UNDERLINED)
    } else {
        cell
    }
}

/// A cell with its text at the right.
pub(super) fn right_aligned(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}
