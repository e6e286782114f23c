//! Draws the panels below the priority levels: event and client limits, and top talkers.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Row, Table};

use crate::format::sanitize;
use crate::model::TopModel;
use crate::view_model::{LimitRow, talker_rows};
use crate::{format, view_options};
use weir_kubernetes::numeric::saturating_u16;
use weir_status::snapshot::TopTalkersStatus;
use weir_talkers::UsageMeasure;

/// Maximum lines of limits, with border and header, while another panel has the focus.
const UNFOCUSED_LIMIT_LINES: u16 = 6;

/// Maximum lines of top talkers while another panel has the focus.
const UNFOCUSED_TALKER_LINES: u16 = 12;

/// Border, header and one row. A panel with fewer lines is not drawn.
const MIN_PANEL_LINES: u16 = 3;

/// Lines that priority levels always have.
const MIN_LEVEL_LINES: u16 = 3;

/// The width from which limits have all their columns.
const ALL_COLUMNS_WIDTH: u16 = 120;

/// The heights of limits and of top talkers. `rest` lines are shared with the priority levels. The
/// panel with the focus gets more.
pub(crate) fn panel_heights(
    rest: u16,
    limits: usize,
    talkers: usize,
    focus: view_options::Panel,
) -> (u16, u16) {
    let full_height = |rows: usize| match rows {
        0 => 0,
        rows => saturating_u16(rows.saturating_add(2)),
    };
    let room = rest.saturating_sub(MIN_LEVEL_LINES);
    let (limits, talkers) = (
        full_height(limits).min(room),
        full_height(talkers).min(room),
    );
    let visible = |lines: u16| if lines < MIN_PANEL_LINES { 0 } else { lines };
    let third = |used: u16| rest.saturating_sub(used) / 3;
    match focus {
        view_options::Panel::Levels => {
            let talkers = visible(talkers.min(UNFOCUSED_TALKER_LINES).min(rest.div_ceil(2)));
            (
                visible(limits.min(UNFOCUSED_LIMIT_LINES).min(third(talkers))),
                talkers,
            )
        }
        view_options::Panel::Limits => {
            let limits = visible(limits.min(rest.div_ceil(2)));
            (
                limits,
                visible(talkers.min(UNFOCUSED_TALKER_LINES).min(third(limits))),
            )
        }
        view_options::Panel::Talkers => {
            let talkers = visible(talkers.min(rest.saturating_mul(2) / 3));
            (
                visible(limits.min(UNFOCUSED_LIMIT_LINES).min(third(talkers))),
                talkers,
            )
        }
    }
}

/// A block with this title, reversed while the panel has the focus.
pub(crate) fn panel_block(
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

/// Draws the limits. Returns their maximum scroll offset.
pub(crate) fn draw_limits(frame: &mut Frame<'_>, area: Rect, model: &TopModel) -> usize {
    let rows = model.view_model.limit_rows(&model.options);
    let (from, max) = scroll_range(rows.len(), area, model.options.scroll_offsets.limits);
    let wide = area.width >= ALL_COLUMNS_WIDTH;
    let name = rows
        .iter()
        .map(|row| format::limit_name(row.limit).chars().count());
    let name = saturating_u16(name.max().unwrap_or_default());
    let name = Constraint::Length(name.clamp(8, area.width / 3));
    let (number, wide_number, keys, rest) = (
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(13),
        Constraint::Fill(1),
    );
    // Title, width, whether it is text, whether narrow terminals show it.
    let columns = [
        ("LIMIT", name, true, true),
        ("PASSED/S", number, false, true),
        ("DELAYED/S", number, false, false),
        ("REJECTED/S", wide_number, false, true),
        ("REJECTED", number, false, true),
        ("KEYS", keys, false, false),
        ("REJECTED MOST", rest, true, true),
        ("ALLOWS", rest, true, false),
    ];
    let columns = columns.into_iter().filter(|(.., always)| wide || *always);
    let (header, widths): (Vec<_>, Vec<_>) = columns
        .map(|(title, width, text, _)| match text {
            true => (Cell::from(title), width),
            false => (right_aligned(title.to_owned()), width),
        })
        .unzip();
    let visible = rows.iter().skip(from).map(|row| limit_row(row, wide));
    let title = format!(" event and client limits {} ", rows.len());
    let table = Table::new(visible, widths)
        .header(Row::new(header).dim())
        .block(panel_block(title, view_options::Panel::Limits, model));
    frame.render_widget(table, area);
    max
}

fn limit_row(row: &LimitRow<'_>, wide: bool) -> Row<'static> {
    let limit = row.limit;
    let rejected = right_aligned(format::known_rate(row.rejected));
    let rejected = match (row.rejected.is_some_and(|rate| rate > 0.0), limit.dry_run) {
        (true, false) => rejected.style(Style::new().red().bold()),
        (true, true) => rejected.style(Style::new().yellow().bold()),
        (false, _) => rejected.dim(),
    };
    let mut cells = vec![
        Cell::from(format::limit_name(limit)),
        right_aligned(format::known_rate(row.passed)),
    ];
    cells.extend(wide.then(|| right_aligned(format::known_rate(row.delayed))));
    cells.extend([rejected, right_aligned(format::count(limit.rejected))]);
    cells.extend(wide.then(|| {
        let (keys, max_keys) = (format::count(limit.keys), format::count(limit.most_keys));
        right_aligned(format!("{keys}/{max_keys}"))
    }));
    cells.push(Cell::from(format::top_rejected_key(limit)));
    cells.extend(wide.then(|| Cell::from(sanitize(&limit.allows))));
    Row::new(cells)
}

/// Draws the top talkers. Returns their maximum scroll offset.
pub(crate) fn draw_talkers(
    frame: &mut Frame<'_>,
    area: Rect,
    list: &TopTalkersStatus,
    model: &TopModel,
) -> usize {
    let rows = talker_rows(list, &model.options);
    let (from, max) = scroll_range(rows.len(), area, model.options.scroll_offsets.talkers);
    let minutes = list.window_seconds / 60;
    let (by, count) = (sanitize(&list.by), rows.len());
    let title = format!(" top talkers by {by}, {minutes}m, {count} ");
    // Only where there are any: the names need the room.
    let is_dry_run = rows.iter().any(|row| row.would_be_rejections > 0);
    let would_be = is_dry_run.then_some(("WOULD BE", UsageMeasure::WouldBeRejections));
    let header = [
        ("REQUESTS", UsageMeasure::Requests),
        ("SEAT-S", UsageMeasure::SeatSeconds),
        ("WAITED", UsageMeasure::QueueWait),
        ("BYTES", UsageMeasure::Bytes),
        ("REJECTED", UsageMeasure::Rejections),
    ];
    let header = header.into_iter().chain(would_be).map(|(title, sort)| {
        highlight_sorted(
            right_aligned(title.to_owned()),
            sort == model.options.talker_sort,
        )
    });
    let header = Row::new([Cell::from("NAME")].into_iter().chain(header)).dim();
    let rows = rows.into_iter().skip(from).map(|row| {
        let rejected = right_aligned(format::count(row.rejections));
        let would_be = right_aligned(format::count(row.would_be_rejections));
        let cells = [
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
        ];
        let would_be = is_dry_run.then_some(would_be.yellow());
        Row::new(cells.into_iter().chain(would_be))
    });
    let widths = [9, 8, 8, 9, 9].into_iter().chain(is_dry_run.then_some(9));
    let widths = widths.map(Constraint::Length);
    let widths = [Constraint::Min(12)].into_iter().chain(widths);
    let table = Table::new(rows, widths).header(header).block(panel_block(
        title,
        view_options::Panel::Talkers,
        model,
    ));
    frame.render_widget(table, area);
    max
}

/// The first visible row and the maximum scroll offset of `rows` rows under a border and a header.
pub(crate) fn scroll_range(rows: usize, area: Rect, offset: usize) -> (usize, usize) {
    let room = usize::from(area.height.saturating_sub(2)).max(1);
    let max = rows.saturating_sub(room);
    (offset.min(max), max)
}

/// Highlights the header cell of the column that rows are sorted by.
pub(crate) fn highlight_sorted(cell: Cell<'static>, sorted: bool) -> Cell<'static> {
    if sorted {
        cell.style(Modifier::BOLD | Modifier::UNDERLINED)
    } else {
        cell
    }
}

/// A cell with right-aligned text.
pub(crate) fn right_aligned(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}
