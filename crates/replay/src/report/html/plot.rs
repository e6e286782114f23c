//! Plots as SVG: lines and areas over time, on one scale. Pure.

use crate::report::html::text::{escape, time_of_day};
use weir_kubernetes::numeric::saturating_u32;

/// The coordinates of a plot. Its lines keep their width however wide the page is.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// Most points of a line: the page is hardly wider in pixels.
const MAX_POINTS: usize = 300;

/// A line, or an area from the line to the bottom.
#[derive(Clone, Debug)]
pub(super) struct PlotLine {
    /// The class of the stroke and the fill.
    pub(super) class: String,
    pub(super) values: Vec<f64>,
    /// Where the area begins, for areas that lie on others.
    pub(super) base: Option<Vec<f64>>,
    pub(super) is_area: bool,
}

/// What the horizontal axis shows.
#[derive(Clone, Debug)]
pub(super) struct TimeAxis {
    /// RFC 3339.
    pub(super) start: Option<String>,
    pub(super) seconds: f64,
}

/// A plot.
pub(super) struct Plot<'p> {
    pub(super) title: &'p str,
    pub(super) lines: Vec<PlotLine>,
    /// The largest value of the scale; the largest of the lines if that is more.
    pub(super) at_least: f64,
    pub(super) unit: fn(f64) -> String,
}

impl PlotLine {
    pub(super) fn line(class: &str, values: Vec<f64>) -> Self {
        Self {
            class: class.to_owned(),
            values,
            base: None,
            is_area: false,
        }
    }

    pub(super) fn area(class: &str, values: Vec<f64>) -> Self {
        Self {
            is_area: true,
            ..Self::line(class, values)
        }
    }
}

impl Plot<'_> {
    pub(super) fn render(&self, axis: &TimeAxis) -> String {
        let greatest = self.greatest();
        let scale = if greatest > 0.0 { greatest } else { 1.0 };
        let paths = self.lines.iter().map(|line| path(line, scale));
        let paths: String = paths.collect();
        let grid: String = [0.25, 0.5, 0.75, 1.0]
            .map(|part| format!("M0 {y}H{WIDTH}", y = HEIGHT * (1.0 - part)))
            .concat();
        let (title, most) = (escape(self.title), escape(&(self.unit)(greatest)));
        let at = |part: f64| time_of_day(axis.start.as_deref(), axis.seconds * part);
        format!(
            "<figure class=\"flow\"><figcaption><b>{title}</b> <span>up to {most}</span></figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{title}, up to {most}\"><path class=\"grid\" d=\"{grid}\"/>{paths}</svg>\
             <div class=\"axis\"><span>{}</span><span>{}</span><span>{}</span></div></figure>\n",
            escape(&at(0.0)),
            escape(&at(0.5)),
            escape(&at(1.0)),
        )
    }

    fn greatest(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| &line.values);
        let values = values.copied().filter(|value| value.is_finite());
        values.fold(self.at_least, f64::max)
    }
}

/// The largest values of at most `MAX_POINTS` equal parts: peaks stay.
pub(super) fn reduce(values: &[f64]) -> Vec<f64> {
    let width = values.len().div_ceil(MAX_POINTS).max(1);
    let parts = values.chunks(width);
    let largest = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    parts.map(largest).collect()
}

fn path(line: &PlotLine, scale: f64) -> String {
    let values = reduce(&line.values);
    let steps = f64::from(saturating_u32(values.len().saturating_sub(1)).max(1));
    let point = |(n, value): (usize, f64)| {
        let x = f64::from(saturating_u32(n)) / steps * WIDTH;
        let value = if value.is_finite() { value } else { 0.0 };
        let y = HEIGHT * (1.0 - (value / scale).clamp(0.0, 1.0));
        format!("{x:.1} {y:.1}")
    };
    let mut points: Vec<_> = values.iter().copied().enumerate().map(point).collect();
    if let [only] = &points[..] {
        points.push(format!("{WIDTH} {}", only.split(' ').nth(1).unwrap_or("0")));
    }
    if points.is_empty() {
        return String::new();
    }
    let top = points.join("L");
    let class = escape(&line.class);
    if !line.is_area {
        return format!("<path class=\"{class}\" d=\"M{top}\"/>");
    }
    let bottom = match &line.base {
        None => format!("L{WIDTH} {HEIGHT}L0 {HEIGHT}"),
        Some(base) => {
            let base = reduce(base);
            let points: Vec<_> = base.iter().copied().enumerate().map(point).collect();
            let back = points.into_iter().rev().map(|point| format!("L{point}"));
            back.collect()
        }
    };
    format!("<path class=\"{class}\" d=\"M{top}{bottom}Z\"/>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::text::number;

    fn axis() -> TimeAxis {
        TimeAxis {
            start: Some("2026-11-23T19:00:00Z".to_owned()),
            seconds: 60.0,
        }
    }

    fn plot(lines: Vec<PlotLine>) -> String {
        let plot = Plot {
            title: "<seats>",
            lines,
            at_least: 0.0,
            unit: number,
        };
        plot.render(&axis())
    }

    #[test]
    fn a_line_reaches_from_edge_to_edge_on_the_scale_of_its_largest_value() {
        let svg = plot(vec![PlotLine::line("one", vec![0.0, 4.0, 2.0])]);
        assert!(
            svg.contains("d=\"M0.0 120.0L300.0 0.0L600.0 60.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("up to 4<") && svg.contains("&lt;seats&gt;"),
            "{svg}"
        );
        assert!(svg.contains("<span>19:00:00</span><span>19:00:30</span><span>19:01:00</span>"));
    }

    #[test]
    fn an_area_lies_on_its_base() {
        let mut area = PlotLine::area("two", vec![2.0, 4.0]);
        area.base = Some(vec![1.0, 2.0]);
        let svg = plot(vec![area]);
        assert!(
            svg.contains("d=\"M0.0 60.0L600.0 0.0L600.0 60.0L0.0 90.0Z\""),
            "{svg}"
        );
    }

    #[test]
    fn empty_single_and_impossible_values_are_drawn() {
        for values in [vec![], vec![3.0], vec![f64::NAN, f64::INFINITY, -1.0]] {
            let svg = plot(vec![
                PlotLine::area("one", values.clone()),
                PlotLine::line("two", values),
            ]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn peaks_stay_in_a_long_series() {
        let mut values = vec![1.0; 10_000];
        values[5001] = 7.0;
        let reduced = reduce(&values);
        assert!(reduced.len() <= MAX_POINTS);
        assert!(reduced.contains(&7.0));
    }
}
